//! Windows as sums: convolutions and window reductions, cut where windows begin to reach over the border.
//!
//! At the border fewer elements count, because padding adds nothing. So the result of an op with windows is one sum in the
//! middle and others along the borders; a device that holds some of the rows, with those around them that its windows
//! reach, has the same sums.

use crate::array::Value;
use crate::elementwise::{ElementwiseOp, Freedom, places, product_attributes};
use crate::movement::Window as Place;
use crate::prover::Prover;
use crate::rules::Rule;
use crate::segment::{Segment, refine, row_major};
use hlo_ir::attrs::{ConvAttrs, ReduceWindowAttrs, WindowDim};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, InstId, Literal, Module, Opcode};

/// More parts of a result than this, and it is taken as a whole.
const MAX_PARTS: usize = 1024;

/// More windows along a dim than this, and they are not looked at one by one.
const MAX_WINDOWS: i64 = 1 << 20;

/// Outputs along a dim that take the same elements of their windows.
#[derive(Clone, Copy)]
struct Run {
    first: i64,
    n: i64,
    /// The first element of the window that is no padding, and how many there are.
    element: i64,
    n_elements: i64,
}

/// The runs of a dim of `n_in` elements with `n_out` windows. `None` if the operand is dilated, or the windows are too many.
fn runs_of(window: &WindowDim, n_in: i64, n_out: i64) -> Option<Vec<Run>> {
    if window.base_dilation != 1 || window.window_dilation < 1 || n_out > MAX_WINDOWS {
        return None;
    }
    let mut runs: Vec<Run> = Vec::new();
    for first in 0..n_out {
        let start = first.checked_mul(window.stride)?.checked_sub(window.pad_low)?;
        let before = start.min(0).checked_neg()?;
        let element =
            before.div_euclid(window.window_dilation) + i64::from(before.rem_euclid(window.window_dilation) != 0);
        let end = match n_in.checked_sub(start)? {
            room if room <= 0 => 0,
            room => ((room - 1).div_euclid(window.window_dilation) + 1).min(window.size),
        };
        let n_elements = (end - element).max(0);
        match runs.last_mut() {
            Some(last) if (last.element, last.n_elements) == (element, n_elements) => last.n += 1,
            Some(_) | None => runs.push(Run { first, n: 1, element, n_elements }),
        }
    }
    Some(runs)
}

/// All combinations of the runs of several dims. `None` if they are too many.
fn combinations(runs: &[Vec<Run>]) -> Option<Vec<Vec<Run>>> {
    let n = runs.iter().try_fold(1usize, |n, runs| n.checked_mul(runs.len()))?;
    if n > MAX_PARTS {
        return None;
    }
    let mut out = vec![Vec::new()];
    for runs in runs {
        out = out.iter().flat_map(|before| runs.iter().map(move |&run| [before.as_slice(), &[run]].concat())).collect();
    }
    Some(out)
}

/// The part in two, along the dim with the most outputs whose windows overlap; `None` if there is none of several.
fn halves(part: &[Run]) -> Option<[Vec<Run>; 2]> {
    let is_windowed = |run: &&Run| run.n_elements > 1 && run.n > 1;
    let longest = part.iter().filter(is_windowed).map(|run| run.n).max()?;
    let along = part.iter().position(|run| run.n_elements > 1 && run.n == longest)?;
    let (mut low, mut high) = (part.to_vec(), part.to_vec());
    low[along].n = longest / 2;
    high[along].n = longest - longest / 2;
    high[along].first += longest / 2;
    Some([low, high])
}

impl Prover {
    /// A convolution or a window reduction as sums, where sums may be taken apart.
    pub(crate) fn window_op(
        &mut self,
        module: &Module,
        inst: InstId,
        values: &[&Value],
        shapes: &[&ArrayShape],
    ) -> Option<Value> {
        if self.elementwise.freedom < Freedom::Windows {
            return None;
        }
        let to = module.shape(inst).as_array()?;
        let attrs = &module.inst(inst).attrs;
        match (ConvAttrs::of(attrs), ReduceWindowAttrs::of(attrs)) {
            (Some(conv), _) => self.convolution(conv, values, shapes, to),
            (None, Some(attrs)) => self.reduce_window(module, attrs, values, shapes, to),
            (None, None) => None,
        }
    }

    fn reduce_window(
        &mut self,
        module: &Module,
        attrs: &ReduceWindowAttrs,
        values: &[&Value],
        shapes: &[&ArrayShape],
        to: &ArrayShape,
    ) -> Option<Value> {
        let ([value, init], [from, _]) = (values, shapes) else { return None };
        let monoid = find_monoid(module, attrs.to_apply?)?;
        let identity = Literal::scalar(to.dtype, monoid.identity(to.dtype)?);
        if !self.is_number(init, &identity) {
            return None;
        }
        let windows = &attrs.window.dims;
        let runs: Vec<Vec<Run>> =
            (0..to.rank()).map(|d| runs_of(windows.get(d)?, from.dims[d], to.dims[d])).collect::<Option<_>>()?;
        let steps = row_major(&from.dims);
        self.in_parts(&runs, to, |p, part| {
            let mut dims: Vec<i64> = part.iter().map(|run| run.n).collect();
            dims.extend(part.iter().map(|run| run.n_elements));
            let mut along: Vec<i64> = (0..to.rank()).map(|d| windows[d].stride * steps[d]).collect();
            along.extend((0..to.rank()).map(|d| windows[d].window_dilation * steps[d]));
            let start = part.iter().enumerate().map(|(d, run)| first_element(&windows[d], run) * steps[d]).sum();
            let view = p.view(value, &dims, start, &along)?;
            let reduced: Vec<i64> = (to.rank() as i64..dims.len() as i64).collect();
            let sum = p.reduce(&view, &dims, &reduced, monoid, to.dtype)?;
            if monoid == Monoid::Add {
                p.mark(&sum, Rule::WindowSums);
            }
            let window = Place { start: part.iter().map(|run| run.first).collect(), sizes: dims[..to.rank()].to_vec() };
            Some((sum, window))
        })
    }

    fn convolution(
        &mut self,
        attrs: &ConvAttrs,
        values: &[&Value],
        shapes: &[&ArrayShape],
        to: &ArrayShape,
    ) -> Option<Value> {
        let ([lhs, rhs], [from, kernel]) = (values, shapes) else { return None };
        let is_one = |groups: Option<i64>| groups.unwrap_or(1) == 1;
        let labels = &attrs.dim_labels;
        if !is_one(attrs.feature_group_count)
            || !is_one(attrs.batch_group_count)
            || labels.unknown.iter().any(|dims| !dims.is_empty())
        {
            return None;
        }
        let index = |d: i64| d as usize;
        let n_spatial = labels.input_spatial.len();
        let windows: Vec<WindowDim> =
            (0..n_spatial).map(|k| attrs.window.dims.get(k).copied().unwrap_or_default()).collect();
        let mut runs = Vec::with_capacity(n_spatial);
        for (k, window) in windows.iter().enumerate() {
            let n_in = from.dims[index(labels.input_spatial[k])];
            runs.push(runs_of(window, n_in, to.dims[index(labels.output_spatial[k])])?);
        }
        let (lhs_steps, rhs_steps) = (row_major(&from.dims), row_major(&kernel.dims));
        let op = ElementwiseOp {
            opcode: Opcode::Convolution,
            dtype: to.dtype,
            operand_dtype: from.dtype,
            comparison: None,
            attributes: product_attributes(kernel.dtype, &attrs.operand_precision, ""),
        };
        let [batch, feature] = [labels.input_batch, labels.input_feature].map(index);
        let [kernel_in, kernel_out] = [labels.kernel_input_feature, labels.kernel_output_feature].map(index);
        // The result's dims in the order of the loops: batch, feature, space.
        let mut order = vec![index(labels.output_batch), index(labels.output_feature)];
        order.extend(labels.output_spatial.iter().map(|&d| index(d)));
        self.in_parts(&runs, to, |p, part| {
            let mut nest =
                vec![(from.dims[batch], lhs_steps[batch], 0), (kernel.dims[kernel_out], 0, rhs_steps[kernel_out])];
            let (mut lhs_start, mut rhs_start) = (0, 0);
            for (k, run) in part.iter().enumerate() {
                let step = lhs_steps[index(labels.input_spatial[k])];
                lhs_start += first_element(&windows[k], run) * step;
                nest.push((run.n, windows[k].stride * step, 0));
            }
            nest.push((from.dims[feature], lhs_steps[feature], rhs_steps[kernel_in]));
            for (k, run) in part.iter().enumerate() {
                let (step, by) =
                    (lhs_steps[index(labels.input_spatial[k])], rhs_steps[index(labels.kernel_spatial[k])]);
                let is_reversed = windows[k].is_reversed;
                rhs_start += by * if is_reversed { windows[k].size - 1 - run.element } else { run.element };
                nest.push((run.n_elements, windows[k].window_dilation * step, if is_reversed { -by } else { by }));
            }
            let dims: Vec<i64> = nest.iter().map(|n| n.0).collect();
            dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
            let a = p.view(lhs, &dims, lhs_start, &nest.iter().map(|n| n.1).collect::<Vec<_>>())?;
            let b = p.view(rhs, &dims, rhs_start, &nest.iter().map(|n| n.2).collect::<Vec<_>>())?;
            let products = p.products(op.clone(), &a, &b)?;
            p.mark(&products, Rule::WindowSums);
            let n_kept = order.len();
            let reduced: Vec<i64> = (n_kept as i64..dims.len() as i64).collect();
            let sum = p.reduce(&products, &dims, &reduced, Monoid::Add, to.dtype)?;
            if [&a, &b].into_iter().any(|operand| p.has_zeros(operand)) {
                p.mark(&sum, Rule::ZeroProduct);
            }
            // The loops' order to that of the result.
            let loop_of = |d: usize| order.iter().position(|&o| o == d);
            let permutation: Vec<i64> = (0..n_kept).map(|d| loop_of(d).map(|k| k as i64)).collect::<Option<_>>()?;
            let sum = p.transpose(&sum, &dims[..n_kept], &permutation)?;
            let mut window = Place { start: vec![0; n_kept], sizes: to.dims.to_vec() };
            for (k, run) in part.iter().enumerate() {
                window.start[order[k + 2]] = run.first;
                window.sizes[order[k + 2]] = run.n;
            }
            Some((sum, window))
        })
    }

    /// The products of two arrays, element by element. Where the first is zero they are, whatever the second is: padding has a
    /// shape of its own, by which the second would be cut to pieces.
    fn products(&mut self, op: ElementwiseOp, a: &Value, b: &Value) -> Option<Value> {
        let word = self.elementwise.word(&mut self.arrays.terms, op.clone());
        self.map(&[a, b], |p, arrays| {
            let &[a, b] = arrays else { return None };
            let (first, second) = (p.arrays.segments(a), p.arrays.segments(b));
            let mut out = Vec::new();
            let is_finite =
                |p: &mut Prover, term| !op.rounds_operands() && p.elementwise.is_finite(&mut p.arrays.terms, term);
            let is_second_finite = second.iter().all(|s| is_finite(p, s.term));
            for segment in first.iter() {
                if p.arrays.terms.is_zero(segment.term) && is_second_finite {
                    out.push(segment.clone());
                    continue;
                }
                for (k, mut region) in refine(&second, segment.region.clone(), 0)? {
                    region.dims.retain(|dim| dim.n != 1);
                    let term = second[k].term;
                    if p.arrays.terms.is_zero(term) && is_finite(p, segment.term) {
                        out.push(Segment { term, region: places(&region) });
                    } else {
                        p.elementwise.apply_region(&mut p.arrays, word, &op, &[segment.term, term], &region, &mut out);
                    }
                }
            }
            Some(p.arrays.intern(out))
        })
    }

    /// A result from its parts; `make` gives a part and where it stands. A part of which no rule makes one is cut in two.
    fn in_parts(
        &mut self,
        runs: &[Vec<Run>],
        to: &ArrayShape,
        mut make: impl FnMut(&mut Prover, &[Run]) -> Option<(Value, Place)>,
    ) -> Option<Value> {
        let mut parts = combinations(runs)?;
        let (mut values, mut windows) = (Vec::new(), Vec::new());
        while let Some(part) = parts.pop() {
            // Windows of padding alone: such results are left whole.
            if part.iter().any(|run| run.n_elements == 0) || values.len() + parts.len() > MAX_PARTS {
                return None;
            }
            match make(self, &part) {
                Some((value, window)) => {
                    values.push(value);
                    windows.push(window);
                }
                None => parts.extend(halves(&part)?),
            }
        }
        let refs: Vec<&Value> = values.iter().collect();
        self.map(&refs, |p, arrays| {
            let mut out = Vec::new();
            for (&array, window) in arrays.iter().zip(&windows) {
                p.place(array, window, &to.dims, &mut out)?;
            }
            Some(p.arrays.intern(out))
        })
    }

    /// Whether a value has zeros that are known.
    fn has_zeros(&self, value: &Value) -> bool {
        let mut has_zeros = false;
        self.for_each_term(value, &mut |term| has_zeros |= self.arrays.terms.is_zero(term));
        has_zeros
    }

    /// Whether a value is this number on every device.
    fn is_number(&mut self, value: &Value, number: &Literal) -> bool {
        let Value::Same(array) = value else { return false };
        let term = self.scalar_term(*array);
        term.is_some_and(|term| self.arrays.terms.as_constant(term) == Some(number))
    }
}

/// The place along a dim of the first element that the first window of a run takes.
fn first_element(window: &WindowDim, run: &Run) -> i64 {
    run.first * window.stride - window.pad_low + run.element * window.window_dilation
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each output's elements of the operand, one by one.
    fn elements(window: &WindowDim, n_in: i64, n_out: i64) -> Vec<Vec<i64>> {
        let of =
            |q: i64| (0..window.size).map(move |k| q * window.stride - window.pad_low + k * window.window_dilation);
        (0..n_out).map(|q| of(q).filter(|at| (0..n_in).contains(at)).collect()).collect()
    }

    #[test]
    fn runs_take_the_elements_that_are_no_padding() {
        for (size, stride, pad_low, dilation, n_in, n_out) in [
            (3, 1, 1, 1, 8, 8),
            (7, 2, 2, 1, 9, 5),
            (4, 3, 5, 2, 6, 4),
            (2, 1, -1, 1, 6, 4),
            (5, 1, 4, 1, 5, 5),
            (1, 2, 0, 1, 7, 4),
        ] {
            let window = WindowDim { size, stride, pad_low, window_dilation: dilation, ..WindowDim::default() };
            let mut found = Vec::new();
            for run in runs_of(&window, n_in, n_out).unwrap() {
                for k in 0..run.n {
                    let start = first_element(&window, &run) + k * stride;
                    found.push((0..run.n_elements).map(|e| start + e * dilation).collect::<Vec<_>>());
                }
            }
            assert_eq!(found, elements(&window, n_in, n_out), "{window:?}");
        }
    }
}
