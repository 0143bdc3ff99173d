//! Layouts that nobody wrote: which classes are considered, the integer program of a module, and its solution by memory or by time.

use super::classes::{DimProgram, OpDim};
use super::layout::{Layout, is_computed_in_tiles};
use super::names::NamedClass;
use super::parts::PartId;
use super::search::{LayoutProblem, NameSet, Solution};
use super::text::NamedAxis;
use crate::propagate_shardings::values::CutId;
use cranelift_entity::EntitySet;
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, InstId};
use indexmap::IndexMap;

/// Names that a set of bits can have.
const MOST_NAMES: usize = 64;

/// The classes that a search considers, and the integer program over them.
pub(crate) struct AutoLayout {
    /// Numbers of classes; name `i` of the problem is the class `considered[i]`.
    pub considered: Vec<usize>,
    pub problem: LayoutProblem,
}

impl AutoLayout {
    /// The program of a module: over the classes with given names, else over the `most_names` classes whose values are largest.
    pub(crate) fn new(
        program: &DimProgram,
        classes: &[NamedClass],
        axes: &[NamedAxis],
        most_names: usize,
    ) -> AutoLayout {
        let considered = considered(program, classes, axes, most_names.min(MOST_NAMES));
        let name_of: IndexMap<PartId, usize, FixedHash> =
            considered.iter().enumerate().map(|(name, &class)| (classes[class].class.part, name)).collect();
        let mut problem = LayoutProblem {
            sizes: considered.iter().map(|&class| classes[class].class.size).collect(),
            axes: axes.iter().map(|axis| axis.size).collect(),
            conflicts: vec![0; considered.len()],
            ..LayoutProblem::default()
        };
        let mut sets: IndexMap<CutId, NameSet, FixedHash> = IndexMap::default();
        for (id, value) in &program.graph.values {
            let dims = || (0..value.dims.len()).map(|dim| program.parts_of(id, dim));
            note_together(&mut problem, &name_of, dims().flatten());
            // Only the major part of a dim makes it smaller for certain.
            let majors = dims().filter_map(|parts| name_of.get(parts.first()?).copied());
            sets.insert(id, majors.fold(0, |set, name| set | 1 << name));
        }
        for tie in program.graph.ties.values().filter(|tie| tie.rule.is_some()) {
            let dims = program.op_dims(tie);
            let tiled = dims.iter().filter(|dim: &&OpDim| is_computed_in_tiles(dim.effect));
            note_together(&mut problem, &name_of, tiled.flat_map(|dim| dim.parts.iter().copied()));
        }
        let mut numbers: IndexMap<NameSet, usize, FixedHash> = IndexMap::default();
        for &set in sets.values() {
            let next = numbers.len();
            numbers.entry(set).or_insert(next);
        }
        problem.tensors = numbers.keys().copied().collect();
        (problem.live, problem.n_left_out) = live_memory(program, &|value| {
            let set = sets.get(&value).copied().unwrap_or(0);
            numbers.get(&set).copied().unwrap_or(0)
        });
        problem.live.iter_mut().for_each(|live| live.resize(numbers.len(), 0.0));
        AutoLayout { considered, problem }
    }

    /// A solution as a layout.
    pub(crate) fn layout(&self, classes: &[NamedClass], solution: &Solution) -> Layout {
        let mut layout = Layout::default();
        for (&class, axis) in self.considered.iter().zip(&solution.axis_of) {
            if let Some(axis) = axis {
                layout.axis_of.insert(classes[class].class.part, *axis);
            }
        }
        layout
    }

    /// All legal layouts, `most` at most; with whether these are all.
    pub(crate) fn legal(&self, most: usize) -> (Vec<Vec<Option<usize>>>, bool) {
        let mut out: Vec<Vec<Option<usize>>> = vec![Vec::new()];
        let n_names = self.problem.sizes.len();
        let mut is_all = true;
        for name in 0..n_names {
            let mut longer = Vec::new();
            for start in &out {
                let mut padded = start.clone();
                padded.resize(n_names, None);
                let axes = (0..self.problem.axes.len()).filter(|&axis| self.problem.allows(&padded, name, axis));
                for axis in axes.map(Some).chain([None]) {
                    longer.push(start.iter().copied().chain([axis]).collect());
                }
            }
            is_all &= longer.len() <= most;
            longer.truncate(most);
            out = longer;
        }
        (out, is_all)
    }
}

/// The classes with given names, else those whose values have most bytes and that some axis divides.
fn considered(program: &DimProgram, classes: &[NamedClass], axes: &[NamedAxis], most: usize) -> Vec<usize> {
    let bytes = |class: &NamedClass| -> f64 {
        let values = class.class.places.iter().filter(|place| place.part == 0);
        values.map(|place| program.graph.values[place.value].bytes()).sum()
    };
    let is_cut = |class: &NamedClass| axes.iter().any(|axis| axis.size > 1 && class.class.size % axis.size == 0);
    let is_any_given = classes.iter().any(|class| class.is_given);
    let mut numbers: Vec<usize> = (0..classes.len())
        .filter(|&number| if is_any_given { classes[number].is_given } else { is_cut(&classes[number]) })
        .collect();
    // The largest first; they decide most, so the search starts with them.
    numbers.sort_by(|&a, &b| bytes(&classes[b]).total_cmp(&bytes(&classes[a])).then(a.cmp(&b)));
    numbers.truncate(most);
    numbers
}

/// Notes that these parts are dims of one tensor or op: no axis may cut two of them, and what stands twice may not be cut.
fn note_together(
    problem: &mut LayoutProblem,
    name_of: &IndexMap<PartId, usize, FixedHash>,
    parts: impl Iterator<Item = PartId>,
) {
    let (mut set, mut twice): (NameSet, NameSet) = (0, 0);
    for name in parts.filter_map(|part| name_of.get(&part).copied()) {
        twice |= set & (1 << name);
        set |= 1 << name;
    }
    for name in 0..problem.sizes.len() {
        if twice >> name & 1 == 1 {
            problem.sizes[name] = 0;
        }
        if set >> name & 1 == 1 {
            problem.conflicts[name] |= set & !(1 << name);
        }
    }
}

/// At each op where something dies next, the live bytes by kind of tensor. Arguments live all the time; in a computation that is called lives
/// what lives at its call.
fn live_memory(program: &DimProgram, kind_of: &dyn Fn(CutId) -> usize) -> (Vec<Vec<f64>>, usize) {
    let (module, graph) = (&program.module, &program.graph);
    let mut base: IndexMap<CompId, EntitySet<CutId>, FixedHash> = IndexMap::default();
    let (mut out, mut n_left_out): (Vec<Vec<f64>>, usize) = (Vec::new(), 0);
    // Callers stand before what they call.
    for &comp in &graph.leaves.comps {
        let insts: Vec<InstId> =
            module.comp(comp).insts.iter().copied().filter(|&inst| graph.leaves.is_live(inst)).collect();
        let mut last_use: IndexMap<CutId, usize, FixedHash> = IndexMap::default();
        for (at, &inst) in insts.iter().enumerate() {
            let operands = module.inst(inst).operands.iter().flat_map(|&operand| graph.of_leaves(operand)).flatten();
            operands.chain(graph.of_leaves(inst).flatten()).for_each(|value| _ = last_use.insert(value, at));
        }
        let root = module.comp(comp).root.expand();
        let kept = root.into_iter().flat_map(|root| graph.of_leaves(root).flatten());
        let params = module.comp(comp).params.iter().flat_map(|&param| graph.of_leaves(param).flatten());
        kept.chain(params).for_each(|value| _ = last_use.insert(value, insts.len()));
        let mut dying: Vec<Vec<CutId>> = vec![Vec::new(); insts.len() + 1];
        for (&value, &at) in &last_use {
            dying[at].push(value);
        }
        let mut live: EntitySet<CutId> = base.get(&comp).cloned().unwrap_or_default();
        let mut sums: Vec<f64> = Vec::new();
        let add = |sums: &mut Vec<f64>, value: CutId, sign: f64| {
            let kind = kind_of(value);
            if sums.len() <= kind {
                sums.resize(kind + 1, 0.0);
            }
            sums[kind] += sign * graph.values[value].bytes();
        };
        let around: Vec<CutId> = live.keys().collect();
        around.into_iter().for_each(|value| add(&mut sums, value, 1.0));
        for (at, &inst) in insts.iter().enumerate() {
            let made: Vec<CutId> = graph.of_leaves(inst).flatten().collect();
            for value in made {
                if !live.contains(value) {
                    live.insert(value);
                    add(&mut sums, value, 1.0);
                }
            }
            for callee in module.called(inst) {
                base.entry(callee).or_insert_with(|| live.clone());
            }
            if !dying[at].is_empty() || at + 1 == insts.len() {
                n_left_out += usize::from(note_peak(&mut out, &sums));
            }
            for &value in &dying[at] {
                if live.contains(value) {
                    live.remove(value);
                    add(&mut sums, value, -1.0);
                }
            }
        }
    }
    (out, n_left_out)
}

/// Most moments that are kept. What is left out beyond may be the peak of a layout, which then is not proved to be the best.
const MOST_MOMENTS: usize = 4096;

/// Keeps a moment unless another one has as much of every kind of tensor. Returns whether one was left out.
fn note_peak(out: &mut Vec<Vec<f64>>, sums: &[f64]) -> bool {
    let at = |live: &[f64], kind: usize| live.get(kind).copied().unwrap_or(0.0);
    let covers = |a: &[f64], b: &[f64]| (0..a.len().max(b.len())).all(|kind| at(a, kind) >= at(b, kind));
    if out.iter().any(|known| covers(known, sums)) {
        return false;
    }
    out.retain(|known| !covers(sums, known));
    out.push(sums.to_vec());
    if out.len() <= MOST_MOMENTS {
        return false;
    }
    // The moment with the fewest bytes in all is the least likely to decide.
    let total = |live: &Vec<f64>| live.iter().sum::<f64>();
    if let Some(least) = (0..out.len()).min_by(|&a, &b| total(&out[a]).total_cmp(&total(&out[b]))) {
        out.swap_remove(least);
    }
    true
}
