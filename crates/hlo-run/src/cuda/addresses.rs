//! Where the matrices of a product lie on a card, and how the library is told.

use super::context::{Allocation, DeviceContext};
use super::products::{Columns, Product};
use crate::ExecutionError;

/// Alignment beyond which algorithms do not differ.
const MOST_ALIGNMENT: u64 = 256;

/// How a call finds its matrices, and how many it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The first and a stride.
    Strided(u64),
    /// By arrays on the card of the addresses of all matrices.
    Pointers(u64),
}

/// The addresses of a product's matrices.
pub(super) struct Addresses {
    /// How the library is told.
    pub way: Way,
    /// What each call is told: where `a`, `b` and `d` begin, or where their arrays of addresses do.
    pub calls: Vec<[u64; 3]>,
    /// Powers of two that divide the addresses of `a`, `b` and `d` in all calls.
    pub alignments: [u32; 3],
    /// What the calls need on the card.
    _arrays: Vec<Allocation>,
}

impl Addresses {
    /// A call for each batch, whose matrices lie a stride apart.
    pub(super) fn of_batches(context: &DeviceContext<'_>, product: &Product) -> Result<Addresses, ExecutionError> {
        let call = |outer| addresses(context, product, outer, 0);
        let calls = (0..product.outer_batch).map(call).collect::<Result<Vec<[u64; 3]>, ExecutionError>>()?;
        let alignments = [0, 1, 2].map(|k| alignment(calls.iter().fold(0, |all, call| all | call[k])));
        Ok(Addresses { way: Way::Strided(product.batch), calls, alignments, _arrays: Vec::new() })
    }

    /// One call, with the addresses of all matrices of all batches.
    pub(super) fn of_each(context: &DeviceContext<'_>, product: &Product) -> Result<Addresses, ExecutionError> {
        let mut all: Vec<[u64; 3]> = Vec::new();
        for outer in 0..product.outer_batch {
            for batch in 0..product.batch {
                all.push(addresses(context, product, outer, batch)?);
            }
        }
        let mut arrays = Vec::new();
        for k in 0..3 {
            let bytes: Vec<u8> = all.iter().flat_map(|matrices| matrices[k].to_le_bytes()).collect();
            let array = Allocation::new(context.card, bytes.len(), "the addresses of matrices")?;
            context.upload(array.address, &bytes)?;
            arrays.push(array);
        }
        let alignments = [0, 1, 2].map(|k| alignment(all.iter().fold(0, |bits, matrices| bits | matrices[k])));
        let calls = vec![[arrays[0].address, arrays[1].address, arrays[2].address]];
        Ok(Addresses { way: Way::Pointers(all.len() as u64), calls, alignments, _arrays: arrays })
    }
}

/// Where `a`, `b` and `d` of one product of a batch begin.
fn addresses(
    context: &DeviceContext<'_>,
    product: &Product,
    outer: u64,
    batch: u64,
) -> Result<[u64; 3], ExecutionError> {
    let address = |matrix: &Columns| -> Result<u64, ExecutionError> {
        let dtype = context.plan.buffers[matrix.buffer].shape.dtype;
        let elems = batch * matrix.batch_stride + outer * matrix.outer_stride;
        Ok(context.address(matrix.buffer)? + dtype.bytes_of(elems))
    };
    Ok([address(&product.a)?, address(&product.b)?, address(&product.d)?])
}

/// The largest power of two up to [`MOST_ALIGNMENT`] that divides an address, or all addresses whose bits these are.
fn alignment(address: u64) -> u32 {
    (1u64 << address.trailing_zeros().min(MOST_ALIGNMENT.trailing_zeros())) as u32
}

#[cfg(test)]
mod tests {
    use super::alignment;

    #[test]
    fn alignments_are_powers_of_two() {
        assert_eq!(
            [alignment(0x1000), alignment(0x1010), alignment(2), alignment(3), alignment(0)],
            [256, 16, 2, 1, 256]
        );
    }
}
