//! `gather` and `scatter`: windows of an operand whose starts are read from an array of indices.
//!
//! A gather moves a window that would leave the operand back inside; a scatter skips it as a whole. Updates of one place
//! are applied in row-major order of the indices.

use hlo_ir::attrs::{GatherAttrs, ScatterAttrs};
use hlo_ir::literal::Buffer;
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, Dims, Literal, NumberClass, Scalar};

use super::index::{check_dims, literal, n_elems, offsets, other_dims, strides, with_elems};
use super::number::{Number, converted, typed, with_stored};
use super::reducer::{Reducer, check, with_op};
use crate::EvalError;

/// How the dims of an operand, of its indices and of its windows go together; the part that gather and scatter share.
struct Numbers<'a> {
    /// Operand dim of each component of an index vector.
    index_map: &'a [i64],
    /// Operand dims of which a window has one element and which the window lacks.
    dropped: &'a [i64],
    /// Operand dims that go with batch dims of the indices, and those.
    operand_batching: &'a [i64],
    indices_batching: &'a [i64],
    index_vector_dim: i64,
}

/// Where every window starts, before the bounds are looked at.
struct Starts {
    /// Sizes of the dims of the indices without the index vector's.
    batch: Dims,
    /// `[batch…, operand rank]`.
    starts: Vec<i64>,
}

impl Numbers<'_> {
    fn starts(&self, operand_rank: usize, indices: &Literal) -> Result<Starts, EvalError> {
        let rank = indices.dims().len();
        let vector_dim = usize::try_from(self.index_vector_dim).ok().filter(|&dim| dim <= rank);
        let vector_dim = vector_dim.ok_or_else(|| {
            EvalError::invalid(format!("index_vector_dim: expected 0 to {rank}, found {}", self.index_vector_dim))
        })?;
        check_dims("index map", self.index_map, operand_rank)?;
        check_dims("dropped dims", self.dropped, operand_rank)?;
        check_dims("operand batching dims", self.operand_batching, operand_rank)?;
        check_dims("indices batching dims", self.indices_batching, rank)?;
        let n_components = indices.dims().get(vector_dim).copied().unwrap_or(1);
        if n_components != self.index_map.len() as i64
            || self.operand_batching.len() != self.indices_batching.len()
            || self.indices_batching.contains(&self.index_vector_dim)
        {
            return Err(EvalError::invalid(format!(
                "expected {} index components, found {n_components}",
                self.index_map.len()
            )));
        }
        let all_strides = strides(indices.dims());
        let component_stride = all_strides.get(vector_dim).copied().unwrap_or(0);
        let batch_dims = other_dims(rank, &[&[self.index_vector_dim]]);
        let batch: Dims = batch_dims.iter().map(|&dim| indices.dims()[dim as usize]).collect();
        let batch_strides: Vec<usize> = batch_dims.iter().map(|&dim| all_strides[dim as usize]).collect();
        let values = index_values(indices)?;
        let mut starts = vec![0i64; n_elems(&batch)?.saturating_mul(operand_rank)];
        if operand_rank == 0 || starts.is_empty() {
            return Ok(Starts { batch, starts });
        }
        for (start, base) in starts.chunks_exact_mut(operand_rank).zip(offsets(&batch, &batch_strides)) {
            for (k, &dim) in self.index_map.iter().enumerate() {
                start[dim as usize] = values[base + k * component_stride];
            }
        }
        for (&dim, indices_dim) in self.operand_batching.iter().zip(self.indices_batching) {
            let steps: Vec<usize> = batch_dims.iter().map(|other| usize::from(other == indices_dim)).collect();
            for (start, at) in starts.chunks_exact_mut(operand_rank).zip(offsets(&batch, &steps)) {
                start[dim as usize] = at as i64;
            }
        }
        Ok(Starts { batch, starts })
    }

    /// The operand dims that a window has, ascending.
    fn window_dims(&self, operand_rank: usize) -> Dims {
        other_dims(operand_rank, &[self.dropped, self.operand_batching])
    }
}

/// Index values; an unsigned one beyond `i64` is far out of range either way.
fn index_values(indices: &Literal) -> Result<Vec<i64>, EvalError> {
    match indices.dtype().class() {
        NumberClass::Signed => Ok(typed::<i64>(&converted(indices, hlo_ir::DType::S64))?.to_vec()),
        NumberClass::Unsigned => {
            let wide = converted(indices, hlo_ir::DType::U64);
            Ok(typed::<u64>(&wide)?.iter().map(|&x| i64::try_from(x).unwrap_or(i64::MAX)).collect())
        }
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => {
            Err(EvalError::invalid(format!("expected integer indices, found {}", indices.dtype())))
        }
    }
}

fn pick(from: &[usize], dims: &[i64]) -> Vec<usize> {
    dims.iter().map(|&dim| from[dim as usize]).collect()
}

/// `gather`: starts that leave no room for their window are clamped.
///
/// # Errors
/// Operand, indices, attributes and result that do not fit each other.
pub(crate) fn gather(
    operand: &Literal,
    indices: &Literal,
    attrs: &GatherAttrs,
    result: &ArrayShape,
) -> Result<Literal, EvalError> {
    let numbers = Numbers {
        index_map: &attrs.start_index_map,
        dropped: &attrs.collapsed_slice_dims,
        operand_batching: &attrs.operand_batching_dims,
        indices_batching: &attrs.start_indices_batching_dims,
        index_vector_dim: attrs.index_vector_dim,
    };
    let rank = operand.dims().len();
    let Starts { batch, starts } = numbers.starts(rank, indices)?;
    let window_dims = numbers.window_dims(rank);
    check_dims("offset_dims", &attrs.offset_dims, result.dims.len())?;
    let batch_dims = other_dims(result.dims.len(), &[&attrs.offset_dims]);
    let sizes = &attrs.slice_sizes;
    let is_slice = sizes.len() == rank && sizes.iter().zip(operand.dims()).all(|(&size, &n)| (0..=n).contains(&size));
    let window: Dims =
        if is_slice { window_dims.iter().map(|&dim| sizes[dim as usize]).collect() } else { Dims::new() };
    let found = |dims: &[i64]| -> Dims { dims.iter().map(|&dim| result.dims[dim as usize]).collect() };
    if !is_slice || found(&attrs.offset_dims) != window || found(&batch_dims) != batch {
        return Err(EvalError::invalid(format!(
            "gather: operand {:?}, indices {:?}, slice sizes {sizes:?} and result {:?} do not fit",
            operand.dims(),
            indices.dims(),
            result.dims
        )));
    }
    let (operand_strides, result_strides) = (strides(operand.dims()), strides(&result.dims));
    let window_from = offsets(&window, &pick(&operand_strides, &window_dims));
    let window_to = offsets(&window, &pick(&result_strides, &attrs.offset_dims));
    let batch_to = offsets(&batch, &pick(&result_strides, &batch_dims));
    let n_result = n_elems(&result.dims)?;
    let start_of = |window: usize| -> usize {
        let start = &starts[window * rank..(window + 1) * rank];
        let clamped =
            start.iter().zip(operand.dims()).zip(sizes).map(|((&at, &n), &size)| at.clamp(0, n - size) as usize);
        clamped.zip(&operand_strides).map(|(at, stride)| at * stride).sum()
    };
    let fill = Fill { window_from: &window_from, window_to: &window_to, batch_to: &batch_to, n_result };
    let data = with_elems!(operand.data(), elems => fill.run(elems, start_of));
    literal(operand.dtype(), &result.dims, data)
}

/// Offsets of a gather's elements.
struct Fill<'a> {
    window_from: &'a [usize],
    window_to: &'a [usize],
    batch_to: &'a [usize],
    n_result: usize,
}

impl Fill<'_> {
    fn run<T: Copy + Default>(&self, elems: &[T], start_of: impl Fn(usize) -> usize) -> Vec<T> {
        let mut out = vec![T::default(); self.n_result];
        if out.is_empty() {
            return out;
        }
        for (window, &to) in self.batch_to.iter().enumerate() {
            let from = start_of(window);
            for (&target, &source) in self.window_to.iter().zip(self.window_from) {
                out[to + target] = elems[from + source];
            }
        }
        out
    }
}

/// `scatter` of one or more operands of the same dims with updates of the same dims; the reducer gets the old elements
/// and then the updates.
///
/// # Errors
/// Operands, indices, updates and attributes that do not fit each other, or an error of the reducer.
pub(crate) fn scatter(
    operands: &[&Literal],
    indices: &Literal,
    updates: &[&Literal],
    attrs: &ScatterAttrs,
    reducer: &mut dyn Reducer,
) -> Result<Vec<Literal>, EvalError> {
    let (Some(first), Some(update)) = (operands.first(), updates.first()) else {
        return Err(EvalError::invalid("scatter: expected an operand and its updates"));
    };
    let is_uniform = operands.len() == updates.len()
        && operands.iter().all(|operand| operand.dims() == first.dims())
        && updates.iter().all(|other| other.dims() == update.dims())
        && operands.iter().zip(updates).all(|(operand, update)| operand.dtype() == update.dtype());
    if !is_uniform {
        return Err(EvalError::invalid("scatter: expected operands of equal dims, each with updates of its type"));
    }
    let places = Places::new(first.dims(), indices, update.dims(), attrs)?;
    let mut out: Vec<Literal> = operands.iter().map(|&operand| operand.clone()).collect();
    if let ([target], [update]) = (&mut out[..], updates) {
        // What is stored in more bits than it has would not wrap.
        let known = reducer.known().filter(|_| target.dtype().bits() >= 8);
        known.map_or(Ok(()), |known| check(known, target.dtype()))?;
        let is_done = with_stored!(target.dtype(), T => places.apply_known::<T>(known, reducer.replaces(), update, target)?, else false);
        if is_done {
            return Ok(out);
        }
    }
    let mut args: Vec<Scalar> = Vec::with_capacity(2 * out.len());
    places.for_each(&mut |to, from| {
        args.clear();
        args.extend(out.iter().filter_map(|target| target.get(to)));
        args.extend(updates.iter().filter_map(|update| update.get(from)));
        let new = reducer.apply(&args)?;
        if new.len() != out.len() {
            return Err(EvalError::invalid(format!(
                "expected {} results of the reducer, found {}",
                out.len(),
                new.len()
            )));
        }
        for (target, &value) in out.iter_mut().zip(&new) {
            target.set(to, value);
        }
        Ok(())
    })?;
    Ok(out)
}

/// Which element of the updates goes where.
struct Places {
    /// For each window that lies inside: its offset in the operand and in the updates.
    windows: Vec<(usize, usize)>,
    /// Offsets of a window's elements in the operand and in the updates.
    window_to: Vec<usize>,
    window_from: Vec<usize>,
}

impl Places {
    fn new(operand: &[i64], indices: &Literal, updates: &[i64], attrs: &ScatterAttrs) -> Result<Places, EvalError> {
        let numbers = Numbers {
            index_map: &attrs.scatter_dims_to_operand_dims,
            dropped: &attrs.inserted_window_dims,
            operand_batching: &attrs.input_batching_dims,
            indices_batching: &attrs.scatter_indices_batching_dims,
            index_vector_dim: attrs.index_vector_dim,
        };
        let rank = operand.len();
        let Starts { batch, starts } = numbers.starts(rank, indices)?;
        let window_dims = numbers.window_dims(rank);
        check_dims("update_window_dims", &attrs.update_window_dims, updates.len())?;
        let batch_dims = other_dims(updates.len(), &[&attrs.update_window_dims]);
        let window: Dims = attrs.update_window_dims.iter().map(|&dim| updates[dim as usize]).collect();
        let found: Dims = batch_dims.iter().map(|&dim| updates[dim as usize]).collect();
        if window.len() != window_dims.len() || found != batch {
            return Err(EvalError::invalid(format!(
                "scatter: operand {operand:?}, indices {:?} and updates {updates:?} do not fit",
                indices.dims()
            )));
        }
        let mut sizes = vec![1i64; rank];
        for (&dim, &size) in window_dims.iter().zip(&window) {
            sizes[dim as usize] = size;
        }
        let (operand_strides, update_strides) = (strides(operand), strides(updates));
        let batch_from = offsets(&batch, &pick(&update_strides, &batch_dims));
        let mut windows = Vec::with_capacity(batch_from.len());
        for (i, &from) in batch_from.iter().enumerate() {
            let start = &starts[i * rank..(i + 1) * rank];
            let is_inside = |((&at, &n), &size): ((&i64, &i64), &i64)| at >= 0 && size <= n && at <= n - size;
            if start.iter().zip(operand).zip(&sizes).all(is_inside) {
                windows
                    .push((start.iter().zip(&operand_strides).map(|(&at, stride)| at as usize * stride).sum(), from));
            }
        }
        Ok(Places {
            windows,
            window_to: offsets(&window, &pick(&operand_strides, &window_dims)),
            window_from: offsets(&window, &pick(&update_strides, &attrs.update_window_dims)),
        })
    }

    fn for_each(&self, visit: &mut impl FnMut(usize, usize) -> Result<(), EvalError>) -> Result<(), EvalError> {
        for &(to, from) in &self.windows {
            for (&target, &source) in self.window_to.iter().zip(&self.window_from) {
                visit(to + target, from + source)?;
            }
        }
        Ok(())
    }

    /// Combines in the stored type, rounding each step as XLA's CPU backend does; false if the reducer is not known.
    fn apply_known<T: Number>(
        &self,
        known: Option<Monoid>,
        replaces: bool,
        update: &Literal,
        target: &mut Literal,
    ) -> Result<bool, EvalError> {
        let dtype = target.dtype();
        let updates = typed::<T>(update)?;
        let slots = target.elems_mut::<T>().ok_or_else(|| EvalError::invalid(format!("expected {dtype} elements")))?;
        if replaces {
            self.for_each(&mut |to, from| {
                slots[to] = updates[from];
                Ok(())
            })?;
            return Ok(true);
        }
        let Some(known) = known else { return Ok(false) };
        with_op!(known, op => self.for_each(&mut |to, from| {
            slots[to] = op(slots[to], updates[from]);
            Ok(())
        }))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::advance;
    use super::super::reducer::ScalarReducer;
    use super::*;
    use hlo_ir::DType;
    use smallvec::SmallVec;

    fn dims(list: &[i64]) -> Dims {
        Dims::from_slice(list)
    }

    fn ints(sizes: &[i64], elems: &[i32]) -> Literal {
        Literal::from_elems(sizes, elems.to_vec()).unwrap()
    }

    fn at(index: &[i64], sizes: &[i64]) -> usize {
        index.iter().zip(sizes).fold(0, |sum, (&i, &n)| sum * n as usize + i as usize)
    }

    /// The definition of gather for one result element at a time.
    fn naive_gather(operand: &Literal, indices: &Literal, a: &GatherAttrs, result: &[i64]) -> Vec<i32> {
        let (values, starts) = (operand.elems::<i32>().unwrap(), indices.elems::<i32>().unwrap());
        let mut index = vec![0i64; result.len()];
        let mut out = Vec::new();
        loop {
            let is_batch = |d: &usize| !a.offset_dims.contains(&(*d as i64));
            let batch: Vec<i64> = (0..result.len()).filter(is_batch).map(|d| index[d]).collect();
            let component = |k: usize| {
                let mut full = batch.clone();
                if (a.index_vector_dim as usize) < indices.dims().len() {
                    full.insert(a.index_vector_dim as usize, k as i64);
                }
                i64::from(starts[at(&full, indices.dims())])
            };
            let mut source = vec![0i64; operand.dims().len()];
            for (k, &d) in a.start_index_map.iter().enumerate() {
                let d = d as usize;
                source[d] = component(k).clamp(0, operand.dims()[d] - a.slice_sizes[d]);
            }
            for (&d, &b) in a.operand_batching_dims.iter().zip(&a.start_indices_batching_dims) {
                source[d as usize] = batch[if b > a.index_vector_dim { b as usize - 1 } else { b as usize }];
            }
            let mut offset = a.offset_dims.iter();
            for (d, slot) in source.iter_mut().enumerate() {
                let d = d as i64;
                if !a.collapsed_slice_dims.contains(&d) && !a.operand_batching_dims.contains(&d) {
                    *slot += index[*offset.next().unwrap() as usize];
                }
            }
            out.push(values[at(&source, operand.dims())]);
            if !advance(&mut index, result) {
                return out;
            }
        }
    }

    #[test]
    fn gather_agrees_with_the_definition() {
        let operand = ints(&[3, 7, 5], &(0..105).collect::<Vec<_>>());
        let check = |indices: Literal, attrs: GatherAttrs, result: &[i64]| {
            let shape = ArrayShape::new(DType::S32, result.iter().copied());
            let out = gather(&operand, &indices, &attrs, &shape).unwrap();
            assert_eq!(out.elems::<i32>().unwrap(), naive_gather(&operand, &indices, &attrs, result), "{attrs:?}");
        };
        let plain = GatherAttrs {
            offset_dims: dims(&[0, 2]),
            collapsed_slice_dims: dims(&[1]),
            start_index_map: dims(&[2, 1]),
            index_vector_dim: 0,
            slice_sizes: dims(&[3, 1, 2]),
            ..GatherAttrs::default()
        };
        check(ints(&[2, 4], &[0, -5, 3, 9, 6, 7, i32::MAX, i32::MIN]), plain, &[3, 4, 2]);
        let batched = GatherAttrs {
            offset_dims: dims(&[2]),
            collapsed_slice_dims: dims(&[1]),
            start_index_map: dims(&[1]),
            operand_batching_dims: dims(&[0]),
            start_indices_batching_dims: dims(&[1]),
            index_vector_dim: 2,
            slice_sizes: dims(&[1, 1, 5]),
            ..GatherAttrs::default()
        };
        check(ints(&[2, 3, 1], &[0, 6, 7, -1, 3, 2]), batched, &[2, 3, 5]);
        let whole = GatherAttrs {
            offset_dims: dims(&[0, 1, 2]),
            start_index_map: dims(&[0]),
            index_vector_dim: 0,
            slice_sizes: dims(&[2, 7, 5]),
            ..GatherAttrs::default()
        };
        check(Literal::from_elem(9i32), whole, &[2, 7, 5]);
    }

    #[test]
    fn unsigned_indices_beyond_the_signed_range_are_clamped_as_in_xla() {
        let operand = ints(&[7], &(1..8).collect::<Vec<_>>());
        let attrs = GatherAttrs {
            offset_dims: dims(&[1]),
            start_index_map: dims(&[0]),
            index_vector_dim: 1,
            slice_sizes: dims(&[2]),
            ..GatherAttrs::default()
        };
        let shape = ArrayShape::new(DType::S32, [4, 2]);
        let indices = Literal::from_elems(&[4], vec![1u32, u32::MAX, 1 << 31, 6]).unwrap();
        assert_eq!(
            gather(&operand, &indices, &attrs, &shape).unwrap().elems::<i32>().unwrap(),
            [2, 3, 6, 7, 6, 7, 6, 7]
        );
        let wide = indices.convert(DType::U64);
        assert_eq!(gather(&operand, &wide, &attrs, &shape).unwrap().elems::<i32>().unwrap()[2..4], [6, 7]);
        assert!(gather(&operand, &indices.convert(DType::F32), &attrs, &shape).is_err());
    }

    struct Opaque(ScalarReducer);

    impl Reducer for Opaque {
        fn known(&self) -> Option<Monoid> {
            None
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
            self.0.apply(args)
        }
    }

    struct Replace;

    impl Reducer for Replace {
        fn known(&self) -> Option<Monoid> {
            None
        }
        fn replaces(&self) -> bool {
            true
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
            Ok(SmallVec::from_slice(&args[args.len() / 2..]))
        }
    }

    fn rows() -> ScatterAttrs {
        ScatterAttrs {
            update_window_dims: dims(&[1]),
            scatter_dims_to_operand_dims: dims(&[0]),
            index_vector_dim: 1,
            ..ScatterAttrs::default()
        }
    }

    #[test]
    fn scatter_skips_windows_that_leave_the_operand() {
        let operand = ints(&[7], &[0; 7]);
        let indices = ints(&[5], &[-1, 6, 5, 2, 5]);
        let updates = ints(&[5, 2], &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        let add = ScalarReducer { known: Monoid::Add, dtype: DType::S32 };
        let want = [0, 0, 64, 128, 0, 272, 544];
        let out = scatter(&[&operand], &indices, &[&updates], &rows(), &mut { add }).unwrap();
        assert_eq!(out[0].elems::<i32>().unwrap(), want);
        let out = scatter(&[&operand], &indices, &[&updates], &rows(), &mut Opaque(add)).unwrap();
        assert_eq!(out[0].elems::<i32>().unwrap(), want);
        let out = scatter(&[&operand], &indices, &[&updates], &rows(), &mut Replace).unwrap();
        assert_eq!(out[0].elems::<i32>().unwrap(), [0, 0, 64, 128, 0, 256, 512]);
        let both = scatter(&[&operand, &operand], &indices, &[&updates, &updates], &rows(), &mut Replace).unwrap();
        assert_eq!(both[1], out[0]);
    }

    #[test]
    fn scatter_undoes_gather_with_batching_dims() {
        let operand = ints(&[3, 7, 5], &(0..105).collect::<Vec<_>>());
        let indices = ints(&[2, 3, 1], &[0, 6, 4, 1, 3, 2]);
        let how = GatherAttrs {
            offset_dims: dims(&[0]),
            collapsed_slice_dims: dims(&[1]),
            start_index_map: dims(&[1]),
            operand_batching_dims: dims(&[0]),
            start_indices_batching_dims: dims(&[1]),
            index_vector_dim: 2,
            slice_sizes: dims(&[1, 1, 5]),
            ..GatherAttrs::default()
        };
        let rows = gather(&operand, &indices, &how, &ArrayShape::new(DType::S32, [5, 2, 3])).unwrap();
        let back = ScatterAttrs {
            update_window_dims: dims(&[0]),
            inserted_window_dims: dims(&[1]),
            scatter_dims_to_operand_dims: dims(&[1]),
            input_batching_dims: dims(&[0]),
            scatter_indices_batching_dims: dims(&[1]),
            index_vector_dim: 2,
            ..ScatterAttrs::default()
        };
        let zeros = ints(&[3, 7, 5], &[0; 105]);
        let out = scatter(&[&zeros], &indices, &[&rows], &back, &mut Replace).unwrap();
        let want = |i: usize, j: usize, k: usize| {
            let is_written = indices.elems::<i32>().unwrap().iter().skip(i).step_by(3).any(|&x| x as usize == j);
            if is_written { ((i * 7 + j) * 5 + k) as i32 } else { 0 }
        };
        for (n, &x) in out[0].elems::<i32>().unwrap().iter().enumerate() {
            assert_eq!(x, want(n / 35, n / 5 % 7, n % 5), "{n}");
        }
    }

    #[test]
    fn each_step_of_a_bf16_scatter_is_rounded_as_in_xla() {
        let operand = Literal::zeros(DType::BF16, &[2]).unwrap();
        let updates = Literal::splat(DType::BF16, &[5000], Scalar::Float(1.0)).unwrap();
        let indices = ints(&[5000], &[1; 5000]);
        let attrs = ScatterAttrs {
            inserted_window_dims: dims(&[0]),
            scatter_dims_to_operand_dims: dims(&[0]),
            index_vector_dim: 1,
            ..ScatterAttrs::default()
        };
        let mut add = ScalarReducer { known: Monoid::Add, dtype: DType::BF16 };
        let out = scatter(&[&operand], &indices, &[&updates], &attrs, &mut add).unwrap();
        assert_eq!((out[0].get(0), out[0].get(1)), (Some(Scalar::Float(0.0)), Some(Scalar::Float(256.0))));
    }

    #[test]
    fn empty_and_misfitting_operands() {
        let operand = ints(&[0, 2], &[]);
        let none = ints(&[0, 1], &[]);
        let attrs = GatherAttrs {
            offset_dims: dims(&[1]),
            collapsed_slice_dims: dims(&[0]),
            start_index_map: dims(&[0]),
            index_vector_dim: 1,
            slice_sizes: dims(&[1, 2]),
            ..GatherAttrs::default()
        };
        let shape = ArrayShape::new(DType::S32, [0, 2]);
        assert!(gather(&operand, &none, &attrs, &shape).is_err()); // a slice of 1 from a dim of 0
        let slices = GatherAttrs {
            slice_sizes: dims(&[0, 2]),
            offset_dims: dims(&[1, 2]),
            collapsed_slice_dims: dims(&[]),
            ..attrs.clone()
        };
        let one = ints(&[1, 1], &[3]);
        let out = gather(&operand, &one, &slices, &ArrayShape::new(DType::S32, [1, 0, 2])).unwrap();
        assert_eq!(out.n_elems(), 0);
        for vector_dim in [-1, 3, 0] {
            let bad = GatherAttrs { index_vector_dim: vector_dim, ..attrs.clone() };
            assert!(gather(&ints(&[1, 2], &[1, 2]), &one, &bad, &shape).is_err());
        }
        let updates = ints(&[1, 2], &[1, 2]);
        let attrs = ScatterAttrs { inserted_window_dims: dims(&[0]), ..rows() };
        let out = scatter(&[&operand], &one, &[&updates], &attrs, &mut Replace).unwrap();
        assert_eq!(out[0], operand);
        assert!(scatter(&[&operand], &one, &[], &attrs, &mut Replace).is_err());
        assert!(scatter(&[&operand], &one, &[&one], &rows(), &mut Replace).is_err());
    }
}
