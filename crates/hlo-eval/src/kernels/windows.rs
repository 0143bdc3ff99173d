//! `reduce-window` and `select-and-scatter`: which elements a window covers, and what is done with them.
//!
//! Padding and the holes of a dilated base are skipped: the initial value enters once for each window, as in XLA.

use hlo_ir::attrs::{Window, WindowDim};
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, Literal, Scalar};
use std::sync::Arc;

use super::index::{advance, n_elems, strides};
use super::number::{
    Number, compute_type, converted, finished, from_scalars, scalars, typed, with_number, with_stored,
};
use super::reduce::reduce;
use super::reducer::{Comparator, KnownComparison, Reducer, check, fold_type, holds, with_op};
use super::rounding::{Cumulative, Rounding};
use crate::EvalError;

/// Checks that a window dim's numbers can be computed with: dilations and stride positive, nothing beyond 2³².
///
/// # Errors
/// The number that is out of range.
pub(crate) fn check_window(dim: &WindowDim) -> Result<(), EvalError> {
    const LIMIT: i64 = 1 << 32;
    let in_range = |what: &str, value: i64, low: i64| {
        if value < low || value > LIMIT {
            return Err(EvalError::invalid(format!("window {what}: expected {low} to {LIMIT}, found {value}")));
        }
        Ok(())
    };
    in_range("size", dim.size, 0)?;
    in_range("stride", dim.stride, 1)?;
    in_range("padding", dim.pad_low, -LIMIT)?;
    in_range("padding", dim.pad_high, -LIMIT)?;
    in_range("base dilation", dim.base_dilation, 1)?;
    in_range("window dilation", dim.window_dilation, 1)?;
    (dim.size.checked_mul(dim.window_dilation).is_some())
        .then_some(())
        .ok_or_else(|| EvalError::invalid("a window's extent is out of range"))
}

/// A window over an array: for every dim and tap, which outputs see which inputs, as offsets into the arrays.
struct Cover {
    output_dims: Vec<i64>,
    input_dims: Vec<i64>,
    window: Vec<WindowDim>,
}

impl Cover {
    fn new(input_dims: &[i64], window: &Window) -> Result<Cover, EvalError> {
        let window = match window.dims.as_slice() {
            [] => vec![WindowDim::default(); input_dims.len()],
            dims => dims.to_vec(),
        };
        if window.len() != input_dims.len() {
            return Err(EvalError::invalid(format!(
                "expected a window of {} dims, found {}",
                input_dims.len(),
                window.len()
            )));
        }
        window.iter().try_for_each(check_window)?;
        let output_dims: Vec<i64> = window.iter().zip(input_dims).map(|(dim, &n)| dim.n_outputs(n)).collect();
        n_elems(&output_dims)?;
        Ok(Cover { output_dims, input_dims: input_dims.to_vec(), window })
    }

    /// The input index that output `at` of dim `dim_idx` sees through tap `tap`.
    fn input(&self, dim_idx: usize, at: i64, tap: i64) -> Option<usize> {
        let dim = &self.window[dim_idx];
        let tap = if dim.is_reversed { dim.size - 1 - tap } else { tap };
        let dilated = at.checked_mul(dim.stride)?.checked_add(tap * dim.window_dilation - dim.pad_low)?;
        let input = dilated / dim.base_dilation;
        let is_hit = dilated >= 0 && dilated % dim.base_dilation == 0 && input < self.input_dims[dim_idx];
        is_hit.then_some(input as usize)
    }

    /// Calls `visit(output, input)` with element offsets for every pair of an output and an input that it covers; for
    /// each output the inputs come in row-major order of the window.
    fn for_each(&self, visit: &mut impl FnMut(usize, usize) -> Result<(), EvalError>) -> Result<(), EvalError> {
        if self.output_dims.contains(&0) || self.input_dims.contains(&0) || self.window.iter().any(|dim| dim.size == 0)
        {
            return Ok(());
        }
        let sizes: Vec<i64> = self.window.iter().map(|dim| dim.size).collect();
        let (output_strides, input_strides) = (strides(&self.output_dims), strides(&self.input_dims));
        let mut tap = vec![0i64; sizes.len()];
        let mut pairs: Vec<Vec<(usize, usize)>> = vec![Vec::new(); sizes.len()];
        loop {
            for (dim_idx, pairs) in pairs.iter_mut().enumerate() {
                let pair = |at: i64| {
                    let input = self.input(dim_idx, at, tap[dim_idx])?;
                    Some((at as usize * output_strides[dim_idx], input * input_strides[dim_idx]))
                };
                pairs.clear();
                pairs.extend((0..self.output_dims[dim_idx]).filter_map(pair));
            }
            visit_products(&pairs, 0, 0, visit)?;
            if !advance(&mut tap, &sizes) {
                return Ok(());
            }
        }
    }
}

impl Cover {
    /// The dims that the window covers as a whole, if it leaves all others as they are: a `reduce`, and XLA makes it one,
    /// which tells in the rounding.
    fn whole_dims(&self) -> Option<Vec<i64>> {
        let trivial = WindowDim::default();
        let is_whole = |dim: &WindowDim, n: i64| *dim == WindowDim { size: n, ..trivial };
        let mut pairs = self.window.iter().zip(&self.input_dims);
        if !pairs.clone().all(|(dim, &n)| *dim == trivial || is_whole(dim, n)) {
            return None;
        }
        let whole = pairs.clone().enumerate().filter(|(_, (dim, n))| is_whole(dim, **n) && **n > 1);
        pairs.any(|(dim, _)| *dim != trivial).then(|| whole.map(|(i, _)| i as i64).collect())
    }

    /// The elements of every output joined one after the other, or in blocks where XLA does so (see [`Cumulative`]).
    fn fold<T: Copy>(
        &self,
        elems: &[T],
        init: T,
        combine: &mut dyn FnMut(T, T) -> Result<T, EvalError>,
    ) -> Result<Vec<T>, EvalError> {
        if let Some(cumulative) = Cumulative::find(&self.input_dims, &self.window) {
            return cumulative.run(elems, &self.input_dims, init, combine);
        }
        let mut out = vec![init; n_elems(&self.output_dims)?];
        self.for_each(&mut |output, input| {
            out[output] = combine(out[output], elems[input])?;
            Ok(())
        })?;
        Ok(out)
    }
}

fn visit_products(
    pairs: &[Vec<(usize, usize)>],
    output: usize,
    input: usize,
    visit: &mut impl FnMut(usize, usize) -> Result<(), EvalError>,
) -> Result<(), EvalError> {
    match pairs {
        [] => visit(output, input),
        [last] => last.iter().try_for_each(|(o, i)| visit(output + o, input + i)),
        [first, rest @ ..] => first.iter().try_for_each(|(o, i)| visit_products(rest, output + o, input + i, visit)),
    }
}

/// `reduce-window` of one or more operands of the same dims, each with its scalar initial value.
///
/// # Errors
/// Operands, initial values and window that do not fit each other, or an error of the reducer.
pub(crate) fn reduce_window(
    operands: &[&Literal],
    inits: &[&Literal],
    window: &Window,
    reducer: &mut dyn Reducer,
) -> Result<Vec<Literal>, EvalError> {
    let first = operands.first().ok_or_else(|| EvalError::invalid("reduce-window: expected an operand"))?;
    if inits.len() != operands.len() || operands.iter().any(|operand| operand.dims() != first.dims()) {
        return Err(EvalError::invalid("reduce-window: expected operands of equal dims, each with an initial value"));
    }
    let cover = Cover::new(first.dims(), window)?;
    if let ([operand], [init], Some(dims)) = (operands, inits, cover.whole_dims())
        && (reducer.known().is_none() || Rounding::of(operand.dtype()).is_some())
    {
        let (operand, init) = (Arc::new((*operand).clone()), Arc::new((*init).clone()));
        let sums = reduce(&[operand], &[init], &dims, reducer)?;
        return sums.into_iter().map(|sum| Ok(sum.with_dims(&cover.output_dims)?)).collect();
    }
    if let (Some(known), [operand], [init]) = (reducer.known(), operands, inits) {
        return Ok(vec![reduce_window_known(&cover, operand, init, known)?]);
    }
    if let ([operand], [init]) = (operands, inits) {
        let init = init.get(0).ok_or_else(|| EvalError::invalid("reduce-window: expected scalar initial values"))?;
        let mut combine = |a: Scalar, x: Scalar| {
            let sum = reducer.apply(&[a, x])?.first().copied();
            sum.ok_or_else(|| EvalError::invalid("expected one result of the reducer, found none"))
        };
        let out = cover.fold(&scalars(operand), init, &mut combine)?;
        return Ok(vec![from_scalars(operand.dtype(), &cover.output_dims, &out)?]);
    }
    let n_outputs = n_elems(&cover.output_dims)?;
    let n_operands = operands.len();
    let inputs: Vec<Vec<Scalar>> = operands.iter().map(|operand| scalars(operand)).collect();
    let init: Vec<Scalar> = inits.iter().filter_map(|init| init.get(0)).collect();
    if init.len() != n_operands {
        return Err(EvalError::invalid("reduce-window: expected scalar initial values"));
    }
    // Accumulators of one output stand together, so that they are the front of the reducer's arguments.
    let mut sums = init.repeat(n_outputs);
    let mut args = Vec::with_capacity(2 * n_operands);
    cover.for_each(&mut |output, input| {
        let slots = &mut sums[output * n_operands..(output + 1) * n_operands];
        args.clear();
        args.extend_from_slice(slots);
        args.extend(inputs.iter().map(|elems| elems[input]));
        let new = reducer.apply(&args)?;
        if new.len() != n_operands {
            return Err(EvalError::invalid(format!(
                "expected {n_operands} results of the reducer, found {}",
                new.len()
            )));
        }
        slots.copy_from_slice(&new);
        Ok(())
    })?;
    let result = |(i, operand): (usize, &&Literal)| {
        let own: Vec<Scalar> = sums.iter().skip(i).step_by(n_operands).copied().collect();
        from_scalars(operand.dtype(), &cover.output_dims, &own)
    };
    operands.iter().enumerate().map(result).collect()
}

fn reduce_window_known(cover: &Cover, operand: &Literal, init: &Literal, known: Monoid) -> Result<Literal, EvalError> {
    check(known, operand.dtype())?;
    let dtype = fold_type(known, operand.dtype());
    let (wide, init) = (converted(operand, dtype), converted(init, dtype));
    let missing = || EvalError::invalid("reduce-window: expected a scalar initial value");
    if let Some(rounding) = Rounding::of(operand.dtype()) {
        let elems = typed::<f32>(&wide)?;
        let &[init] = typed::<f32>(&init)? else { return Err(missing()) };
        let out = with_op!(known, op => cover.fold(elems, init, &mut |a: f32, x: f32| Ok(rounding.round(op(a, x))))?);
        return finished(&cover.output_dims, out, operand.dtype());
    }
    with_number!(dtype, T => {
        let elems = typed::<T>(&wide)?;
        let &[init] = typed::<T>(&init)? else { return Err(missing()) };
        let mut out = vec![init; n_elems(&cover.output_dims)?];
        with_op!(known, op => cover.for_each(&mut |output, input| {
            out[output] = op(out[output], elems[input]);
            Ok(())
        })?);
        finished(&cover.output_dims, out, operand.dtype())
    })
}

/// `select-and-scatter`: each window of `operand` picks the element that `select` keeps against all later ones, and the
/// window's element of `source` is combined into that place of an array filled with `init`.
///
/// # Errors
/// Arrays and window that do not fit each other, or an error of a computation.
pub(crate) fn select_and_scatter(
    operand: &Literal,
    source: &Literal,
    init: &Literal,
    window: &Window,
    select: &mut dyn Comparator,
    scatter: &mut dyn Reducer,
) -> Result<Literal, EvalError> {
    let cover = Cover::new(operand.dims(), window)?;
    if source.dims() != cover.output_dims || source.dtype() != init.dtype() {
        return Err(EvalError::invalid(format!(
            "select-and-scatter: expected a source of dims {:?}, found {:?}",
            cover.output_dims,
            source.dims()
        )));
    }
    let picks = match select.known().filter(|known| known.operand == 0) {
        Some(known) => picks_known(&cover, operand, known)?,
        None => {
            let elems = scalars(operand);
            cover.picks(|a, b| select.apply(&[elems[a], elems[b]]))?
        }
    };
    let init = init.get(0).ok_or_else(|| EvalError::invalid("select-and-scatter: expected a scalar to start from"))?;
    let mut out =
        Literal::splat(source.dtype(), operand.dims(), init).map_err(|error| EvalError::invalid(error.to_string()))?;
    // What is stored in more bits than it has would not wrap.
    match scatter.known().filter(|_| source.dtype().bits() >= 8) {
        Some(known) => {
            check(known, source.dtype())?;
            with_stored!(source.dtype(), T => scatter_known::<T>(&picks, source, known, &mut out),
                else scatter_scalars(&picks, source, scatter, &mut out))?;
        }
        None => scatter_scalars(&picks, source, scatter, &mut out)?,
    }
    Ok(out)
}

impl Cover {
    /// For every output, the input that `keeps(chosen, candidate)` leaves chosen; `None` if the window covers nothing.
    fn picks(
        &self,
        mut keeps: impl FnMut(usize, usize) -> Result<bool, EvalError>,
    ) -> Result<Vec<Option<usize>>, EvalError> {
        let mut picks: Vec<Option<usize>> = vec![None; n_elems(&self.output_dims)?];
        self.for_each(&mut |output, input| {
            match picks[output] {
                Some(chosen) if keeps(chosen, input)? => {}
                _ => picks[output] = Some(input),
            }
            Ok(())
        })?;
        Ok(picks)
    }
}

fn picks_known(cover: &Cover, operand: &Literal, known: KnownComparison) -> Result<Vec<Option<usize>>, EvalError> {
    let wide = converted(operand, compute_type(operand.dtype(), &[]));
    with_number!(wide.dtype(), T => {
        let elems = typed::<T>(&wide)?;
        cover.picks(|chosen, candidate| {
            let (a, b) = (elems[chosen], elems[candidate]);
            let order = if known.is_total_order { Some(a.total_order(b)) } else { a.order(b) };
            Ok(holds(known.direction, order))
        })
    })
}

/// Combines in the stored type: every step is rounded, as on XLA's CPU backend.
fn scatter_known<T: Number>(
    picks: &[Option<usize>],
    source: &Literal,
    known: Monoid,
    out: &mut Literal,
) -> Result<(), EvalError> {
    let source = typed::<T>(source)?;
    let dtype: DType = out.dtype();
    let slots = out.elems_mut::<T>().ok_or_else(|| EvalError::invalid(format!("expected {dtype} elements")))?;
    with_op!(known, op => for (pick, &x) in picks.iter().zip(source) {
        if let Some(slot) = pick.and_then(|at| slots.get_mut(at)) {
            *slot = op(*slot, x);
        }
    });
    Ok(())
}

fn scatter_scalars(
    picks: &[Option<usize>],
    source: &Literal,
    scatter: &mut dyn Reducer,
    out: &mut Literal,
) -> Result<(), EvalError> {
    for (i, pick) in picks.iter().enumerate() {
        let Some(at) = *pick else { continue };
        let (Some(old), Some(new)) = (out.get(at), source.get(i)) else { continue };
        let [sum] = scatter.apply(&[old, new])?[..] else {
            return Err(EvalError::invalid("expected one result of the scatter computation"));
        };
        out.set(at, sum);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::reducer::{ScalarComparator, ScalarReducer};
    use super::*;
    use hlo_ir::attrs::Comparison;
    use smallvec::SmallVec;

    /// Hides that a reduction is known, so that the general path runs.
    struct Opaque(ScalarReducer);

    impl Reducer for Opaque {
        fn known(&self) -> Option<Monoid> {
            None
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
            self.0.apply(args)
        }
    }

    fn window(dims: &[WindowDim]) -> Window {
        Window { dims: dims.to_vec() }
    }

    fn odd_windows() -> Vec<Window> {
        let w = WindowDim::default();
        vec![
            window(&[w, WindowDim { size: 3, stride: 2, pad_low: 2, pad_high: 1, ..w }]),
            window(&[
                WindowDim { size: 2, pad_low: -1, ..w },
                WindowDim { size: 2, base_dilation: 3, pad_high: 4, ..w },
            ]),
            window(&[
                WindowDim { size: 2, window_dilation: 3, pad_low: 3, ..w },
                WindowDim { size: 3, stride: 3, pad_high: -2, is_reversed: true, ..w },
            ]),
            window(&[WindowDim { size: 9, ..w }, w]),
        ]
    }

    fn naive(elems: &[i32], dims: [i64; 2], init: i32, window: &Window) -> Vec<i32> {
        let [a, b] = [window.dims[0], window.dims[1]];
        let seen = |w: &WindowDim, o: i64, t: i64, n: i64| {
            let t = if w.is_reversed { w.size - 1 - t } else { t };
            let at = o * w.stride + t * w.window_dilation - w.pad_low;
            (at >= 0 && at % w.base_dilation == 0 && at / w.base_dilation < n).then_some(at / w.base_dilation)
        };
        let mut out = Vec::new();
        for i in 0..a.n_outputs(dims[0]) {
            for j in 0..b.n_outputs(dims[1]) {
                let mut sum = init;
                for s in 0..a.size {
                    for t in 0..b.size {
                        if let (Some(y), Some(x)) = (seen(&a, i, s, dims[0]), seen(&b, j, t, dims[1])) {
                            sum += elems[(y * dims[1] + x) as usize];
                        }
                    }
                }
                out.push(sum);
            }
        }
        out
    }

    #[test]
    fn reduce_window_agrees_with_the_definition() {
        let elems: Vec<i32> = (0..35).map(|i| i * i % 23).collect();
        let operand = Literal::from_elems(&[5, 7], elems.clone()).unwrap();
        let init = Literal::from_elem(100i32);
        for window in odd_windows() {
            let mut known = ScalarReducer { known: Monoid::Add, dtype: DType::S32 };
            let want = naive(&elems, [5, 7], 100, &window);
            let out = reduce_window(&[&operand], &[&init], &window, &mut known).unwrap();
            assert_eq!(out[0].elems::<i32>().unwrap(), want, "{window:?}");
            let out = reduce_window(&[&operand], &[&init], &window, &mut Opaque(known)).unwrap();
            assert_eq!(out[0].elems::<i32>().unwrap(), want, "{window:?}");
        }
    }

    #[test]
    fn long_sums_of_small_floats_are_rounded_as_in_xla() {
        let operand = Literal::splat(DType::BF16, &[5000], Scalar::Float(1.0)).unwrap();
        let init = Literal::scalar(DType::BF16, Scalar::Float(0.0));
        let whole = window(&[WindowDim { size: 5000, ..WindowDim::default() }]);
        let mut add = ScalarReducer { known: Monoid::Add, dtype: DType::BF16 };
        let out = reduce_window(&[&operand], &[&init], &whole, &mut add).unwrap();
        assert_eq!(out[0].get(0), Some(Scalar::Float(4992.0))); // as XLA's CPU backend gives
    }

    #[test]
    fn variadic_windows_keep_their_operands_apart() {
        struct ArgMax;
        impl Reducer for ArgMax {
            fn known(&self) -> Option<Monoid> {
                None
            }
            fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
                match *args {
                    [Scalar::Float(a), i, Scalar::Float(b), j] => Ok(match a >= b {
                        true => SmallVec::from_slice(&[Scalar::Float(a), i]),
                        false => SmallVec::from_slice(&[Scalar::Float(b), j]),
                    }),
                    _ => Err(EvalError::invalid("arguments")),
                }
            }
        }
        let values = Literal::from_elems(&[6], vec![1f32, 5.0, 2.0, 2.0, 9.0, 0.0]).unwrap();
        let numbers = Literal::from_elems(&[6], (0..6i32).collect()).unwrap();
        let inits = [Literal::from_elem(f32::NEG_INFINITY), Literal::from_elem(-1i32)];
        let window = window(&[WindowDim { size: 3, stride: 2, pad_high: 3, ..WindowDim::default() }]);
        let out = reduce_window(&[&values, &numbers], &[&inits[0], &inits[1]], &window, &mut ArgMax).unwrap();
        assert_eq!(out[0].elems::<f32>().unwrap(), [5.0, 9.0, 9.0, f32::NEG_INFINITY]);
        assert_eq!(out[1].elems::<i32>().unwrap(), [1, 4, 4, -1]);
    }

    #[test]
    fn select_and_scatter_agrees_with_xla() {
        // -1, -2, … so that padding, if it counted, would win.
        let operand = Literal::from_elems(&[5], vec![-1f32, -2.0, -3.0, -4.0, -5.0]).unwrap();
        let source = Literal::from_elems(&[6], vec![1f32, 10.0, 100.0, 1000.0, 10000.0, 100000.0]).unwrap();
        let window = window(&[WindowDim { size: 2, pad_low: 1, pad_high: 1, ..WindowDim::default() }]);
        let ge = KnownComparison { operand: 0, direction: Comparison::Ge, is_total_order: false };
        let add = ScalarReducer { known: Monoid::Add, dtype: DType::F32 };
        let want = [111f32, 200.0, 1100.0, 10100.0, 100100.0]; // computed by XLA
        let init = Literal::from_elem(100f32);
        let mut select = ScalarComparator(ge);
        let out = select_and_scatter(&operand, &source, &init, &window, &mut select, &mut { add }).unwrap();
        assert_eq!(out.elems::<f32>().unwrap(), want);
        let out = select_and_scatter(&operand, &source, &init, &window, &mut select, &mut Opaque(add)).unwrap();
        assert_eq!(out.elems::<f32>().unwrap(), want);
    }

    #[test]
    fn odd_sizes_are_no_panic() {
        let operand = Literal::zeros(DType::F32, &[0, 3]).unwrap();
        let init = Literal::from_elem(2f32);
        let w = WindowDim::default();
        let mut add = ScalarReducer { known: Monoid::Add, dtype: DType::F32 };
        let padded = window(&[WindowDim { size: 2, pad_low: 1, pad_high: 2, ..w }, w]);
        let out = reduce_window(&[&operand], &[&init], &padded, &mut add).unwrap();
        assert_eq!((out[0].dims(), out[0].elems::<f32>().unwrap()), (&[2i64, 3][..], &[2f32; 6][..]));
        for bad in
            [WindowDim { stride: 0, ..w }, WindowDim { pad_low: i64::MIN, ..w }, WindowDim { size: 1 << 60, ..w }]
        {
            assert!(reduce_window(&[&operand], &[&init], &window(&[bad, w]), &mut add).is_err());
        }
        assert!(reduce_window(&[&operand], &[&init], &window(&[w]), &mut add).is_err());
        assert!(reduce_window(&[], &[], &window(&[w]), &mut add).is_err());
    }
}
