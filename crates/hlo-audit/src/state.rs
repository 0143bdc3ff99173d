//! State: entry leaves whose next values are outputs.
//!
//! An output is the next value of a parameter leaf if it is that leaf with something added to it, perhaps scaled by numbers near one (a decay), or
//! with a part written over, or what a loop makes of it. Gradients with a small multiple of the weight are no next values. Of several
//! candidates an output takes the one that no other output can take; what is then still open is left out.

use crate::context::AuditCx;
use crate::follow::MAX_STEPS;
use hashbrown::{HashMap, HashSet};
use hlo_analysis::annotations::{ParamLeaf, entry_leaves};
use hlo_analysis::values::{InstLeaf, Origin, ValueId};
use hlo_ir::{InstId, Opcode, Scalar};
use hlo_spmd::{Splat, find_scaling};
use std::collections::VecDeque;

/// A parameter leaf and the output that is its next value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StatePair {
    /// The flat number of the parameter leaf.
    pub(crate) param: usize,
    /// The flat number of the output.
    pub(crate) output: usize,
    /// Whether a part of the parameter is written over, as in a cache: then nothing else could be meant.
    pub(crate) is_written: bool,
}

/// The entry's leaves, and what is known of them as state.
pub(crate) struct EntryState {
    /// The parameter leaves by number.
    pub(crate) leaves: Vec<ParamLeaf>,
    /// The outputs that the data flow shows as next values.
    pub(crate) pairs: Vec<StatePair>,
    /// Parameter leaf and output that share memory by the header.
    pub(crate) aliases: Vec<(usize, usize)>,
    /// Parameter leaves whose memory the header gives away without naming an output.
    pub(crate) donated: Vec<usize>,
}

/// A parameter leaf that an output may be the next value of.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Candidate {
    param: usize,
    is_written: bool,
}

/// A parameter that is scaled by less than this is no state that goes on.
const MIN_SCALE: f64 = 0.5;

impl EntryState {
    /// Of the module's entry.
    pub(crate) fn find(cx: &AuditCx<'_>) -> EntryState {
        let leaves = entry_leaves(cx.module);
        let (aliases, donated) = from_header(cx, &leaves);
        let mut state = EntryState { leaves, pairs: Vec::new(), aliases, donated };
        let Some(root) = root(cx) else { return state };
        let mut numbers: HashMap<ValueId, usize> = HashMap::new();
        for (number, leaf) in state.leaves.iter().enumerate() {
            let value = cx.values.leaves(leaf.param).get(leaf.leaf_idx).and_then(|value| value.expand());
            numbers.extend(value.map(|value| (value, number)));
        }
        let outputs = cx.values.leaves(root).iter().map(|value| value.expand());
        let candidates = outputs.map(|value| value.map_or_else(Vec::new, |value| candidates(cx, &numbers, value)));
        state.pairs = matched(candidates.collect());
        state
    }

    /// The parameter leaves that have a next value.
    pub(crate) fn going_on(&self) -> HashSet<usize> {
        self.aliases.iter().map(|&(param, _)| param).chain(self.pairs.iter().map(|pair| pair.param)).collect()
    }

    /// The flat leaf as an instruction's leaf.
    pub(crate) fn leaf(&self, param: usize) -> InstLeaf {
        InstLeaf::new(self.leaves[param].param, self.leaves[param].leaf_idx as u32)
    }
}

/// The entry's root.
pub(crate) fn root(cx: &AuditCx<'_>) -> Option<InstId> {
    cx.module.comp(cx.module.entry()?).root.expand()
}

/// The aliases and the donors of the header, by flat numbers.
fn from_header(cx: &AuditCx<'_>, leaves: &[ParamLeaf]) -> (Vec<(usize, usize)>, Vec<usize>) {
    let (module, header) = (cx.module, &cx.module.header);
    let numbered = leaves.iter().enumerate().map(|(number, leaf)| ((leaf.param, leaf.leaf_idx), number));
    let numbers: HashMap<(InstId, usize), usize> = numbered.collect();
    let number_of = |param: i64, index: &[i64]| {
        let param = *module.comp(module.entry()?).params.get(usize::try_from(param).ok()?)?;
        let leaf_idx = module.shapes.leaf_number(module.inst(param).shape, index)?;
        numbers.get(&(param, leaf_idx)).copied()
    };
    let aliases = header.input_output_alias.iter().filter_map(|alias| {
        let output = module.shapes.leaf_number(module.inst(root(cx)?).shape, &alias.output_index)?;
        Some((number_of(alias.param, &alias.param_index)?, output))
    });
    let donated = header.buffer_donor.iter().filter_map(|donor| number_of(donor.param, &donor.param_index));
    (aliases.collect(), donated.collect())
}

/// The parameter leaves that an output may be the next value of.
fn candidates(cx: &AuditCx<'_>, numbers: &HashMap<ValueId, usize>, output: ValueId) -> Vec<Candidate> {
    let values = &cx.values;
    let mut found: Vec<Candidate> = Vec::new();
    let mut open = vec![(output, 1.0f64, false)];
    let mut seen: HashMap<ValueId, f64> = HashMap::new();
    while let Some((value, scale, is_written)) = open.pop() {
        let known = seen.entry(value).or_insert(0.0);
        if scale.abs() < MIN_SCALE || *known >= scale.abs() || values.sources[value].len() > MAX_STEPS {
            continue;
        }
        *known = scale.abs();
        match values.values[value].origin {
            Origin::EntryParam => {
                let is_same = values.shape(cx.module, value).zip(values.shape(cx.module, output));
                let is_same = is_same.is_some_and(|(a, b)| a.same_type(b)) && value != output;
                let new = numbers.get(&value).filter(|_| is_same).map(|&param| Candidate { param, is_written });
                found.extend(new.filter(|new| found.iter().all(|old| old.param != new.param)));
            }
            Origin::Param | Origin::Carry | Origin::CallResult => {
                open.extend(values.sources[value].iter().map(|&source| (source, scale, is_written)));
            }
            Origin::Computed => open.extend(continued(cx, values.inst(value), scale, is_written)),
        }
    }
    found
}

/// The operands that go on in the result of `inst`, with their scales.
fn continued(cx: &AuditCx<'_>, inst: InstId, scale: f64, is_written: bool) -> Vec<(ValueId, f64, bool)> {
    const FIRST: [Opcode; 6] = [
        Opcode::Subtract,
        Opcode::Convert,
        Opcode::Bitcast,
        Opcode::Reshape,
        Opcode::Transpose,
        Opcode::ReducePrecision,
    ];
    const WRITES: [Opcode; 2] = [Opcode::DynamicUpdateSlice, Opcode::Scatter];
    let instruction = cx.module.inst(inst);
    let opcode = instruction.opcode;
    let of = |operand: &InstId, scale: f64, is_written: bool| Some((cx.values.of(*operand)?, scale, is_written));
    let operands = instruction.operands.as_slice();
    if opcode == Opcode::Add {
        return operands.iter().filter_map(|operand| of(operand, scale, is_written)).collect();
    }
    if opcode == Opcode::Select {
        return operands.iter().skip(1).filter_map(|operand| of(operand, scale, is_written)).collect();
    }
    if FIRST.contains(&opcode) || WRITES.contains(&opcode) {
        let is_written = is_written || WRITES.contains(&opcode);
        return operands.iter().take(1).filter_map(|operand| of(operand, scale, is_written)).collect();
    }
    let scaled = operands.iter().filter_map(|&operand| Some((operand, find_scaling(cx.module, inst, operand)?)));
    let next = scaled.filter_map(|(operand, scaling)| {
        let by = match scaling.splat {
            Splat::Value(Scalar::Float(by)) if scaling.opcode == Opcode::Divide => 1.0 / by,
            Splat::Value(Scalar::Float(by)) => by,
            Splat::Value(_) | Splat::Scalar(_) => 1.0,
        };
        of(&operand, scale * by, is_written)
    });
    next.collect()
}

/// Outputs with one candidate take it, until none has just one.
fn matched(mut candidates: Vec<Vec<Candidate>>) -> Vec<StatePair> {
    let mut outputs_of: HashMap<usize, Vec<usize>> = HashMap::new();
    for (output, list) in candidates.iter().enumerate() {
        list.iter().for_each(|candidate| outputs_of.entry(candidate.param).or_default().push(output));
    }
    let mut decided: VecDeque<usize> = (0..candidates.len()).filter(|&output| candidates[output].len() == 1).collect();
    let mut pairs = Vec::new();
    while let Some(output) = decided.pop_front() {
        let [Candidate { param, is_written }] = candidates[output][..] else { continue };
        pairs.push(StatePair { param, output, is_written });
        for &other in outputs_of.get(&param).into_iter().flatten() {
            candidates[other].retain(|candidate| candidate.param != param);
            decided.extend((candidates[other].len() == 1).then_some(other));
        }
    }
    pairs.sort_by_key(|pair| pair.output);
    pairs
}
