//! Finds a collective that moves numbers in a wider type than they have before it or after it.
//!
//! Weights are gathered in f32 and then used in bf16:
//! ```text
//! %whole = f32[64,32] all-gather(%weight), replica_groups={{0,1,2,3}}, dimensions={0}
//! %used = bf16[64,32] convert(%whole)
//! ```
//! Converted first, half of the bytes move, and the numbers are the same.
//!
//! **Cost**: the share of the bytes that the wider type adds. It is advice, because a backend may have no collective for the narrow type.
//!
//! **What it does not find**: reductions (adding in the wider type is more exact), results with other uses, arrays below 1 KiB, and collectives with
//! conversions on both sides, which XLA writes where a backend has no collective for the type.
//!
//! **How sure**: a collective that only moves numbers commutes with a conversion of each number.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::follow::{Next, computed_by, next, only_moves};
use hlo_analysis::values::ValueId;
use hlo_ir::{DType, InstId, Opcode};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "wide-collective",
    level: Level::Advice,
    help: "a gather, exchange or permute of numbers that are narrower before or after it",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let moving = cx.collectives.iter().filter(|c| !c.rule.reduces() && !c.is_of_one_device());
    moving.flat_map(|c| (0..c.n_arrays(cx.module)).filter_map(|k| check(cx, c, k))).collect()
}

fn check(cx: &AuditCx<'_>, collective: &Collective, k: usize) -> Option<Finding> {
    let (operand, result) = (cx.operand(collective, k)?, cx.result(collective, k)?);
    let wide = cx.values.shape(cx.module, result)?.dtype;
    let is_narrower = |(_, dtype): &(InstId, DType)| dtype.is_float() && wide.is_float() && dtype.bits() < wide.bits();
    let before = widened_by(cx, operand).filter(is_narrower);
    let after = narrowed_by(cx, result).filter(is_narrower);
    let bytes = cx.array_bytes(collective, k);
    let (((convert, narrow), is_before), true) = (
        match (before, after) {
            (Some(before), None) => (before, true),
            (None, Some(after)) => (after, false),
            (Some(_), Some(_)) | (None, None) => return None,
        },
        bytes >= SMALL_BYTES,
    ) else {
        return None;
    };
    let needless = bytes - bytes / u64::from(wide.bits()) * u64::from(narrow.bits());
    let (verb, when, remedy) = match is_before {
        true => ("widens", "before", "convert after the collective, not before it"),
        false => ("narrows", "after", "convert before the collective, not after it"),
    };
    Some(Finding {
        check: &INFO,
        inst: collective.inst,
        also: vec![convert],
        message: format!(
            "{} moves {wide}, which {} {verb} {when} it: {narrow} would do",
            cx.name(collective.inst),
            cx.name(convert)
        ),
        cost: collective.cost(needless, collective.n_runs),
        remedy: cx.remedy(remedy, "shrink-collectives"),
    })
}

/// The conversion that makes a value, and the type before it.
fn widened_by(cx: &AuditCx<'_>, value: ValueId) -> Option<(InstId, DType)> {
    let mut inst = computed_by(&cx.values, value)?;
    while only_moves(cx, inst) {
        inst = computed_by(&cx.values, cx.values.of(*cx.module.inst(inst).operands.first()?)?)?;
    }
    let from = *cx.module.inst(inst).operands.first()?;
    let is_it = cx.module.inst(inst).opcode == Opcode::Convert;
    is_it.then_some((inst, cx.module.shape(from).as_array()?.dtype))
}

/// The conversion that is the only use of a value, and the type after it.
fn narrowed_by(cx: &AuditCx<'_>, value: ValueId) -> Option<(InstId, DType)> {
    let mut at = value;
    while let Next::Op(inst, _) = next(&cx.values, at)? {
        if cx.module.inst(inst).opcode == Opcode::Convert {
            return Some((inst, cx.module.shape(inst).as_array()?.dtype));
        }
        if !only_moves(cx, inst) {
            return None;
        }
        at = cx.values.of(inst)?;
    }
    None
}
