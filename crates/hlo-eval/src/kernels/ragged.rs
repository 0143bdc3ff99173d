//! `ragged-dot`: a dot in which one dim of the left operand is cut into groups of run-time sizes.
//!
//! Which kind of dim is cut gives the mode:
//! - a free dim: each group of rows meets its own matrix, `[b…, m…, k] · [g, b…, k, n…] → [b…, m…, n…]`; rows beyond the
//!   last group are 0;
//! - a contracted dim: each group gives a product of its own, `→ [g, b…, m…, n…]`;
//! - a batch dim: a plain dot, whatever the groups.

use hlo_ir::attrs::DotAttrs;
use hlo_ir::{ArrayShape, DType, Dims, Literal};

use super::index::{check_dims, n_elems, offsets, other_dims, strides};
use super::number::{Number, compute_type, converted, finished, typed, with_number};
use crate::EvalError;

/// `ragged-dot` in its three modes; `group_sizes` is `[g]`, or has the dims before the cut one in front (batch dims, then
/// those of the cut dim's kind).
///
/// # Errors
/// Operands, attributes and result that do not fit each other.
pub(crate) fn ragged_dot(
    lhs: &Literal,
    rhs: &Literal,
    group_sizes: &Literal,
    attrs: &DotAttrs,
    result: &ArrayShape,
) -> Result<Literal, EvalError> {
    let plan = Plan::new(lhs, rhs, group_sizes, attrs)?;
    if plan.result_dims != result.dims {
        return Err(EvalError::invalid(format!(
            "ragged-dot: expected a result of dims {:?}, found {:?}",
            plan.result_dims, result.dims
        )));
    }
    let dtype = compute_type(result.dtype, &[lhs.dtype(), rhs.dtype()]);
    let (lhs, rhs) = (converted(lhs, dtype), converted(rhs, dtype));
    with_number!(dtype, T => {
        let out = plan.run::<T>(typed(&lhs)?, typed(&rhs)?)?;
        finished(&result.dims, out, result.dtype)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The cut dim is a free one of the left operand.
    Rows,
    /// It is contracted.
    Terms,
    /// It is a batch dim.
    Batch,
}

/// Offsets of the elements along batch, free and contracted positions.
struct Plan {
    mode: Mode,
    result_dims: Dims,
    batch: (Vec<usize>, Vec<usize>),
    rows: Vec<usize>,
    columns: Vec<usize>,
    terms: (Vec<usize>, Vec<usize>),
    n_groups: usize,
    /// Distance between two groups' matrices in the right operand; 0 if it has none.
    group_stride: usize,
    /// For each batch position, and each row (`Rows`) or term (`Terms`), its group; `None` beyond the last.
    groups: Vec<Option<usize>>,
}

impl Plan {
    fn new(lhs: &Literal, rhs: &Literal, group_sizes: &Literal, attrs: &DotAttrs) -> Result<Plan, EvalError> {
        let DotAttrs {
            lhs_batch_dims: lb,
            lhs_contracting_dims: lc,
            rhs_batch_dims: rb,
            rhs_contracting_dims: rc,
            lhs_ragged_dims: ragged,
            rhs_group_dims: rg,
            // A plan says which elements are multiplied, not how.
            operand_precision: _,
            algorithm: _,
        } = attrs;
        let (lb, lc, rb, rc, rg) = (&lb[..], &lc[..], &rb[..], &rc[..], &rg[..]);
        let (l_rank, r_rank) = (lhs.dims().len(), rhs.dims().len());
        check_dims("ragged-dot: dims of the left operand", &[lb, lc].concat(), l_rank)?;
        check_dims("ragged-dot: dims of the right operand", &[rb, rc, rg].concat(), r_rank)?;
        let &[cut] = &ragged[..] else {
            return Err(EvalError::invalid(format!("expected one ragged dim, found {ragged:?}")));
        };
        let free = other_dims(l_rank, &[lb, lc]);
        let columns = other_dims(r_rank, &[rb, rc, rg]);
        let (mode, kind): (Mode, &[i64]) = match cut {
            _ if lb.contains(&cut) => (Mode::Batch, lb),
            _ if lc.contains(&cut) => (Mode::Terms, lc),
            _ if free.contains(&cut) => (Mode::Rows, &free),
            _ => return Err(EvalError::invalid(format!("ragged-dot: expected a dim below {l_rank}, found {cut}"))),
        };
        let sizes = |of: &Literal, dims: &[i64]| -> Dims { dims.iter().map(|&dim| of.dims()[dim as usize]).collect() };
        let n_groups = group_sizes.dims().last().copied();
        let n_groups = n_groups.ok_or_else(|| EvalError::invalid("ragged-dot: expected group sizes in a dim"))?;
        let has_group_dim = if mode == Mode::Rows { sizes(rhs, rg)[..] == [n_groups] } else { rg.is_empty() };
        if sizes(lhs, lb) != sizes(rhs, rb) || sizes(lhs, lc) != sizes(rhs, rc) || !has_group_dim {
            return Err(EvalError::invalid(format!(
                "ragged-dot: {:?}, {:?} and {n_groups} groups do not fit",
                lhs.dims(),
                rhs.dims()
            )));
        }
        let (l_strides, r_strides) = (strides(lhs.dims()), strides(rhs.dims()));
        let along = |of: &Literal, strides: &[usize], dims: &[i64]| {
            let steps: Vec<usize> = dims.iter().map(|&dim| strides[dim as usize]).collect();
            offsets(&sizes(of, dims), &steps)
        };
        let mut result_dims: Dims = if mode == Mode::Terms { Dims::from_slice(&[n_groups]) } else { Dims::new() };
        result_dims.extend(sizes(lhs, lb).into_iter().chain(sizes(lhs, &free)).chain(sizes(rhs, &columns)));
        n_elems(&result_dims)?;
        let groups = match mode {
            Mode::Batch => Vec::new(),
            Mode::Rows | Mode::Terms => find_groups(lhs, group_sizes, lb, kind, cut)?,
        };
        Ok(Plan {
            mode,
            result_dims,
            batch: (along(lhs, &l_strides, lb), along(rhs, &r_strides, rb)),
            rows: along(lhs, &l_strides, &free),
            columns: along(rhs, &r_strides, &columns),
            terms: (along(lhs, &l_strides, lc), along(rhs, &r_strides, rc)),
            n_groups: n_groups as usize,
            group_stride: rg.first().map_or(0, |&dim| r_strides[dim as usize]),
            groups,
        })
    }

    fn run<T: Number>(&self, lhs: &[T], rhs: &[T]) -> Result<Vec<T>, EvalError> {
        let mut out = vec![T::ZERO; n_elems(&self.result_dims)?];
        let (n_rows, n_columns, n_terms) = (self.rows.len(), self.columns.len(), self.terms.0.len());
        let n_batch = self.batch.0.len();
        if out.is_empty() || n_terms == 0 {
            return Ok(out);
        }
        let n_members = if self.mode == Mode::Rows { n_rows } else { n_terms };
        for (b, (&l_batch, &r_batch)) in self.batch.0.iter().zip(&self.batch.1).enumerate() {
            for (row, &l_row) in self.rows.iter().enumerate() {
                for (term, (&l_term, &r_term)) in self.terms.0.iter().zip(&self.terms.1).enumerate() {
                    let member = if self.mode == Mode::Rows { row } else { term };
                    let group = match self.mode {
                        Mode::Batch => 0,
                        Mode::Rows | Mode::Terms => match self.groups[b * n_members + member] {
                            Some(group) => group,
                            None => continue,
                        },
                    };
                    let block = if self.mode == Mode::Terms { group * n_batch + b } else { b };
                    let x = lhs[l_batch + l_row + l_term];
                    let factors = r_batch + r_term + group * self.group_stride;
                    let sums = &mut out[(block * n_rows + row) * n_columns..][..n_columns];
                    for (sum, &column) in sums.iter_mut().zip(&self.columns) {
                        *sum = sum.add(x.multiply(rhs[factors + column]));
                    }
                }
            }
        }
        debug_assert!(self.mode != Mode::Terms || out.len() == self.n_groups * n_batch * n_rows * n_columns);
        Ok(out)
    }
}

/// The group of every batch position and every position along the dims of `kind`, which holds the cut dim.
fn find_groups(
    lhs: &Literal,
    group_sizes: &Literal,
    batch: &[i64],
    kind: &[i64],
    cut: i64,
) -> Result<Vec<Option<usize>>, EvalError> {
    let outer: Vec<i64> = kind.iter().copied().take_while(|&dim| dim != cut).collect();
    let prefix: Dims = batch.iter().chain(&outer).map(|&dim| lhs.dims()[dim as usize]).collect();
    let (found, n_groups) = match group_sizes.dims().split_last() {
        Some((&n, found)) => (found, n as usize),
        None => return Err(EvalError::invalid("ragged-dot: expected group sizes in a dim")),
    };
    if !found.is_empty() && found != &prefix[..] {
        return Err(EvalError::invalid(format!(
            "ragged-dot: expected group sizes for {prefix:?}, found dims {:?}",
            group_sizes.dims()
        )));
    }
    if !group_sizes.dtype().is_integer() {
        return Err(EvalError::invalid(format!("ragged-dot: expected integer sizes, found {}", group_sizes.dtype())));
    }
    let wide = converted(group_sizes, DType::S64);
    let sizes = typed::<i64>(&wide)?;
    // One stride into the group sizes for each dim of batch and kind; 0 where they are shared.
    let own = strides(group_sizes.dims());
    let dims: Vec<i64> = batch.iter().chain(kind).copied().collect();
    let step = |i: usize| if found.is_empty() || i >= found.len() { 0 } else { own[i] };
    let steps: Vec<usize> = (0..dims.len()).map(step).collect();
    let lengths: Vec<i64> = dims.iter().map(|&dim| lhs.dims()[dim as usize]).collect();
    let cut_steps: Vec<usize> = dims.iter().map(|&dim| usize::from(dim == cut)).collect();
    let group_of = |(base, at): (usize, usize)| {
        let mut end = 0i64;
        sizes[base..base + n_groups].iter().position(|&size| {
            end = end.saturating_add(size.max(0));
            (at as i64) < end
        })
    };
    Ok(offsets(&lengths, &steps).into_iter().zip(offsets(&lengths, &cut_steps)).map(group_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(dims: &[i64], seed: i32) -> Literal {
        let n = dims.iter().product::<i64>() as i32;
        Literal::from_elems(dims, (0..n).map(|i| (i * 31 + seed) % 17 - 8).collect()).unwrap()
    }

    fn get(literal: &Literal, index: &[usize]) -> i32 {
        let at: usize = index.iter().zip(strides(literal.dims())).map(|(i, stride)| i * stride).sum();
        literal.elems::<i32>().unwrap()[at]
    }

    fn dims(list: &[i64]) -> Dims {
        Dims::from_slice(list)
    }

    #[test]
    fn each_group_of_rows_meets_its_own_matrix() {
        let (a, b) = (ints(&[2, 7, 5], 1), ints(&[2, 3, 5, 4], 2));
        let attrs = DotAttrs {
            lhs_batch_dims: dims(&[0]),
            rhs_batch_dims: dims(&[0]),
            lhs_contracting_dims: dims(&[2]),
            rhs_contracting_dims: dims(&[2]),
            lhs_ragged_dims: dims(&[1]),
            rhs_group_dims: dims(&[1]),
            ..DotAttrs::default()
        };
        let shape = ArrayShape::new(DType::S32, [2, 7, 4]);
        // The last row of the first batch, and the last four of the second, belong to no group.
        let of_row = [
            [Some(0), Some(0), Some(2), Some(2), Some(2), Some(2), None],
            [Some(1), Some(1), Some(2), None, None, None, None],
        ];
        let groups = Literal::from_elems(&[2, 3], vec![2i32, 0, 4, 0, 2, 1]).unwrap();
        let out = ragged_dot(&a, &b, &groups, &attrs, &shape).unwrap();
        for (n, i, j) in (0..56).map(|at| (at / 28, at / 4 % 7, at % 4)) {
            let want = of_row[n][i].map_or(0, |g| (0..5).map(|k| get(&a, &[n, i, k]) * get(&b, &[n, g, k, j])).sum());
            assert_eq!(get(&out, &[n, i, j]), want, "{n} {i} {j}");
        }
        let shared = Literal::from_elems(&[3], vec![2i32, 0, 4]).unwrap();
        let same = ragged_dot(&a, &b, &shared, &attrs, &shape).unwrap();
        assert_eq!(same.elems::<i32>().unwrap()[..28], out.elems::<i32>().unwrap()[..28]);
        assert!(ragged_dot(&a, &b, &groups, &attrs, &ArrayShape::new(DType::S32, [2, 7, 5])).is_err());
        assert!(ragged_dot(&a, &b, &ints(&[4], 0), &attrs, &shape).is_err());
        assert!(ragged_dot(&a, &b, &Literal::from_elem(3i32), &attrs, &shape).is_err());
    }

    #[test]
    fn each_group_of_terms_gives_its_own_product() {
        let (a, b) = (ints(&[7, 5], 1), ints(&[5, 4], 2));
        let attrs = DotAttrs {
            lhs_contracting_dims: dims(&[1]),
            rhs_contracting_dims: dims(&[0]),
            lhs_ragged_dims: dims(&[1]),
            ..DotAttrs::default()
        };
        let groups = Literal::from_elems(&[3], vec![2i32, 2, 1]).unwrap();
        let out = ragged_dot(&a, &b, &groups, &attrs, &ArrayShape::new(DType::S32, [3, 7, 4])).unwrap();
        let ranges = [0..2, 2..4, 4..5];
        for (g, i, j) in (0..84).map(|at| (at / 28, at / 4 % 7, at % 4)) {
            let want: i32 = ranges[g].clone().map(|k| get(&a, &[i, k]) * get(&b, &[k, j])).sum();
            assert_eq!(get(&out, &[g, i, j]), want);
        }
    }

    #[test]
    fn a_cut_batch_dim_is_a_plain_dot() {
        let (a, b) = (ints(&[3, 2, 5], 1), ints(&[3, 5, 4], 2));
        let attrs = DotAttrs {
            lhs_batch_dims: dims(&[0]),
            rhs_batch_dims: dims(&[0]),
            lhs_contracting_dims: dims(&[2]),
            rhs_contracting_dims: dims(&[1]),
            lhs_ragged_dims: dims(&[0]),
            ..DotAttrs::default()
        };
        let groups = Literal::from_elems(&[2], vec![1i32, 2]).unwrap();
        let out = ragged_dot(&a, &b, &groups, &attrs, &ArrayShape::new(DType::S32, [3, 2, 4])).unwrap();
        for (n, i, j) in (0..24).map(|at| (at / 8, at / 4 % 2, at % 4)) {
            let want: i32 = (0..5).map(|k| get(&a, &[n, i, k]) * get(&b, &[n, k, j])).sum();
            assert_eq!(get(&out, &[n, i, j]), want);
        }
    }
}
