//! `reduce-window` and `select-and-scatter`: which elements a window covers.

use hlo_ir::attrs::{Attrs, PadDim, Window, WindowDim};
use hlo_ir::{InstId, Module};
use smallvec::SmallVec;

use super::dtype::CType;
use super::emitter::{Atom, Element, Emitted, Emitter, Index};
use super::reduction::{Combiner, Reduced};
use crate::GpuError;

/// The input position that output `at` of a windowed dim of `n` elements sees through tap `tap`; conditions under which
/// it is an element are added to `conditions`, unless they always hold.
pub(super) fn input_position(
    e: &mut Emitter<'_>,
    dim: &WindowDim,
    n: i64,
    n_outputs: i64,
    (at, tap): (Atom, Atom),
    conditions: &mut Vec<String>,
) -> Atom {
    let tap = if dim.is_reversed { e.affine(tap, -1, dim.size - 1) } else { tap };
    let start = e.affine(at, dim.stride, -dim.pad_low);
    let step = e.affine(tap, dim.window_dilation, 0);
    let dilated = e.sum(start, step);
    if dim.pad_low > 0 {
        conditions.push(format!("{dilated} >= 0"));
    }
    let (position, rest) = e.divide(dilated, dim.base_dilation);
    if dim.base_dilation > 1 {
        conditions.push(format!("{rest} == 0"));
    }
    let last = (n_outputs - 1) * dim.stride - dim.pad_low + (dim.size - 1) * dim.window_dilation;
    if last / dim.base_dilation >= n {
        conditions.push(format!("{position} < {n}"));
    }
    position
}

/// The window's dims; an absent one covers single elements.
pub(crate) fn window_dims(window: &Window, rank: usize) -> Vec<WindowDim> {
    if window.dims.is_empty() { vec![WindowDim::default(); rank] } else { window.dims.clone() }
}

/// How far an instruction's windows or pads go: a bound on the positions, those of padding and of holes between elements among them, that a kernel
/// counts through. Arrays may be small and pads not.
pub(super) fn farthest_position(module: &Module, inst: InstId) -> i64 {
    let node = module.inst(inst);
    let longest = |inst: InstId| module.shape(inst).as_array().and_then(|a| a.dims.iter().copied().max()).unwrap_or(0);
    let n_in = node.operands.first().map_or(0, |&operand| longest(operand));
    let n_out = longest(inst);
    let total = |parts: [i64; 5]| parts.into_iter().fold(0i64, |sum, part| sum.saturating_add(part.saturating_abs()));
    let of_window = |dim: &WindowDim| {
        let taps = dim.size.saturating_mul(dim.window_dilation);
        let (base, steps) = (n_in.saturating_mul(dim.base_dilation), n_out.saturating_mul(dim.stride));
        total([dim.pad_low, dim.pad_high, taps, base, steps])
    };
    let of_pad =
        |dim: &PadDim| total([dim.low, dim.high, n_in.saturating_mul(dim.interior.saturating_add(1)), n_out, 0]);
    let window = if let Attrs::Conv(attrs) = &node.attrs {
        &attrs.window
    } else if let Attrs::ReduceWindow(attrs) = &node.attrs {
        &attrs.window
    } else if let Attrs::SelectAndScatter(attrs) = &node.attrs {
        &attrs.window
    } else if let Attrs::Pad(attrs) = &node.attrs {
        return attrs.padding.iter().map(of_pad).max().unwrap_or(0);
    } else {
        return 0;
    };
    window.dims.iter().map(of_window).max().unwrap_or(0)
}

/// Runs `body` under conditions, or plainly if there are none.
pub(super) fn guarded(
    e: &mut Emitter<'_>,
    conditions: &[String],
    body: impl FnOnce(&mut Emitter<'_>) -> Result<(), GpuError>,
) -> Result<(), GpuError> {
    if conditions.is_empty() { body(e) } else { e.branch(&conditions.join(" && "), body) }
}

pub(super) fn reduce_window(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    let Attrs::ReduceWindow(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected a window"));
    };
    let reduced = Reduced::new(e, frame, inst, attrs.to_apply)?;
    let shape = e.operand_shape(inst, 0)?;
    let window = window_dims(&attrs.window, shape.rank());
    let sizes: SmallVec<[i64; 4]> = window.iter().map(|dim| dim.size).collect();
    let accumulators = reduced.combiner.start(e, &reduced.inits);
    e.count_all(&sizes, &mut |e, taps| {
        let mut conditions = Vec::new();
        let own: Index = window
            .iter()
            .zip(&shape.dims)
            .zip(index.iter().zip(taps))
            .map(|((dim, &n), (&at, &tap))| input_position(e, dim, n, dim.n_outputs(n), (at, tap), &mut conditions))
            .collect();
        guarded(e, &conditions, |e| {
            let values = reduced.values(e, frame, &own)?;
            reduced.combiner.combine(e, &accumulators, &values)
        })
    })?;
    reduced.combiner.finish(e, frame, inst, leaf, index, &accumulators)
}

/// Every window that covers the element picks again; those that pick it give it their source element.
pub(super) fn select_and_scatter(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    let Attrs::SelectAndScatter(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected a window"));
    };
    let (Some(select), Some(scatter)) = (attrs.select, attrs.scatter) else {
        return Err(e.unsupported(inst, "expected computations to select and to scatter by"));
    };
    let (operand, source, init) = (e.operand(inst, 0)?, e.operand(inst, 1)?, e.operand(inst, 2)?);
    let shape = e.leaf_shape(operand, 0)?;
    let source_shape = e.leaf_shape(source, 0)?;
    let window = window_dims(&attrs.window, shape.rank());
    if window.iter().any(|dim| dim.base_dilation != 1 || dim.window_dilation != 1) {
        return Err(e.unsupported(inst, "expected a window without dilation"));
    }
    let combiner = Combiner::new(e, scatter, &[source_shape.dtype]);
    let held = CType::of(shape.dtype).held;
    let init = e.value(frame, init, 0, &[])?;
    let accumulators = combiner.start(e, &[init]);
    let order: SmallVec<[usize; 4]> = (0..shape.rank()).rev().collect();
    let own_place = e.position(index, &shape.dims, &order);
    let n_covering: SmallVec<[i64; 4]> = window.iter().map(|dim| (dim.size + dim.stride - 1) / dim.stride).collect();
    e.count_all(&n_covering, &mut |e, nth| {
        let (mut conditions, mut output) = (Vec::new(), Index::new());
        for (d, dim) in window.iter().enumerate() {
            // The last window that covers the element, minus the later ones.
            let padded = e.affine(index[d], 1, dim.pad_low);
            let (last, _) = e.divide(padded, dim.stride);
            let first = e.affine(last, 1, 1 - n_covering[d]);
            let at = e.sum(first, nth[d]);
            let start = e.affine(at, dim.stride, 0);
            conditions
                .push(format!("{at} >= 0 && {at} < {} && {padded} - {start} < {}", source_shape.dims[d], dim.size));
            output.push(at);
        }
        e.branch(&conditions.join(" && "), |e| {
            let chosen = e.variable(held, &format!("{held}()"));
            let place = e.variable("idx", "-1");
            let sizes: SmallVec<[i64; 4]> = window.iter().map(|dim| dim.size).collect();
            e.count_all(&sizes, &mut |e, taps| {
                let (mut inside, mut input) = (Vec::new(), Index::new());
                for (d, dim) in window.iter().enumerate() {
                    input.push(input_position(
                        e,
                        dim,
                        shape.dims[d],
                        source_shape.dims[d],
                        (output[d], taps[d]),
                        &mut inside,
                    ));
                }
                guarded(e, &inside, |e| {
                    let candidate = e.value(frame, operand, 0, &input)?;
                    let at = e.position(&input, &shape.dims, &order);
                    let keeps = e.apply(select, &[chosen.clone(), candidate.clone()])?;
                    let keeps = keeps.first().ok_or_else(|| e.unsupported(inst, "expected a result of select"))?;
                    e.line(format!("if ({} < 0 || !{}) {{", place.text, keeps.text));
                    e.line(format!("    {} = {};", chosen.text, candidate.text));
                    e.line(format!("    {} = {at};", place.text));
                    e.line("}");
                    Ok(())
                })
            })?;
            e.branch(&format!("{} == {own_place}", place.text), |e| {
                let value = e.value(frame, source, 0, &output)?;
                combiner.combine_rounded(e, &accumulators, &[value])
            })
        })
    })?;
    combiner.finish(e, frame, inst, leaf, index, &accumulators)
}
