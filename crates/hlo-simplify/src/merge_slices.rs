//! Take slices of what was put together from its parts.
//!
//! Before, a stencil pads its array round the border and reads it shifted:
//! ```text
//! %around = f32[10] concatenate(%last, %x, %first), dimensions={0}
//! %left = f32[8] slice(%around), slice={[0:8]}
//! %right = f32[8] slice(%around), slice={[2:10]}
//! ```
//! after, each shifted array is put together for itself, and has the size of `%x`:
//! ```text
//! %left = f32[8] concatenate(%last, slice(%x, [0:7])), dimensions={0}
//! %right = f32[8] concatenate(slice(%x, [1:8]), %first), dimensions={0}
//! ```
//! The sample `ir-samples/passes/merge-slices/stencil.hlo` runs this.
//!
//! **Why.** A padded array is cut over devices at other places than the array itself, so that a partitioner moves rows between neighbours
//! on the way there and back. A slice of one part is that part's, whatever else was joined to it.
//!
//! **What it does not do.** Arrays that something else than slices reads stay whole, and so do those that carry a sharding; slices of several
//! of their parts stay then. Strides, interior and negative padding stay.
//!
//! **Algorithm.** Forward walks until nothing changes. A slice is taken inwards through slices, concatenations and pads, to the parts that it
//! meets. Linear in the slices times the parts, for each dim that is padded after another one.
//!
//! **Requires** nothing. **Ensures** the same results, bit for bit. **Errors**: none.

use cranelift_entity::{EntityRef, EntitySet};
use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, is_annotated, pinned_by_control};
use hlo_ir::attrs::{Attrs, DimsAttrs, PadAttrs, PadDim, SliceAttrs, SliceDim};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// Most ops that a slice is taken inwards through, and most walks.
const MAX_DEPTH: usize = 64;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "merge-slices",
    help: "take slices of concatenations and padded arrays from their parts, so that shifted arrays keep their size",
    options: &[],
    build: |_| Ok(Box::new(MergeSlices)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeSlices;

impl Pass for MergeSlices {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let effectful = module.effectful_computations();
        let mut n_merged = 0;
        for comp in code_computations(module) {
            // An array that only another slice kept whole may be taken from its parts in the next round.
            for _ in 0..MAX_DEPTH {
                match merge_in(module, comp, &effectful)? {
                    0 => break,
                    n => n_merged += n,
                }
            }
        }
        cx.report.count("slices-merged", n_merged);
        if n_merged == 0 {
            cx.report.unchanged_because = Some("no slice reads part of what was only put together to be sliced".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

fn merge_in(module: &mut Module, comp: CompId, effectful: &EntitySet<CompId>) -> Result<u64, PassError> {
    if !module.comp(comp).insts.iter().any(|&inst| module.inst(inst).opcode == Opcode::Slice) {
        return Ok(0);
    }
    let (was_live, n_slots) = (module.live_given(comp, effectful), module.n_inst_slots());
    let pinned = pinned_by_control(module, comp);
    let users = module.users();
    let mut merged: HashMap<InstId, InstId> = HashMap::new();
    for inst in module.comp(comp).insts.clone() {
        module.map_operands(inst, |operand| merged.get(&operand).copied().unwrap_or(operand));
        if !was_live.contains(inst) || pinned.contains(inst) || is_annotated(module, inst) {
            continue;
        }
        let Some(rows) = contiguous(module, inst) else { continue };
        let Some(&operand) = module.inst(inst).operands.first() else { continue };
        let mut inward = Inward { module: &mut *module, users: &users, pinned: &pinned, n_slots, slice: inst };
        // A slice that lies in memory otherwise than its parts is a copy besides.
        let taken = inward.taken(operand, &rows, MAX_DEPTH);
        if let Some(new) = taken.filter(|&new| module.inst(new).shape == module.inst(inst).shape) {
            merged.insert(inst, new);
        }
    }
    let root = module.comp(comp).root.expand().and_then(|root| merged.get(&root).copied());
    if let Some(root) = root {
        module.comp_mut(comp).root = Some(root).into();
    }
    if !merged.is_empty() {
        let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
        module.restore_order(comp).map_err(cycle)?;
        module.remove_newly_dead_given(comp, &was_live, n_slots, effectful);
    }
    Ok(merged.len() as u64)
}

/// From where to where along each dim.
type Rows = Vec<(i64, i64)>;

/// The rows of a slice without strides.
fn contiguous(module: &Module, inst: InstId) -> Option<Rows> {
    let attrs = SliceAttrs::of(&module.inst(inst).attrs)?;
    let rows = attrs.slice.iter().map(|dim| (dim.stride == 1).then_some((dim.start, dim.limit)));
    rows.collect()
}

/// A slice on its way to the parts of what it is taken of.
struct Inward<'m> {
    module: &'m mut Module,
    users: &'m UserMap,
    pinned: &'m EntitySet<InstId>,
    /// How many instructions there were when users were looked up.
    n_slots: usize,
    /// For which new instructions stand.
    slice: InstId,
}

impl Inward<'_> {
    /// The rows of `value` from its parts; none where they are not taken from them.
    fn taken(&mut self, value: InstId, rows: &Rows, depth: usize) -> Option<InstId> {
        if depth == 0 || self.pinned.contains(value) {
            return None;
        }
        let instruction = self.module.inst(value).clone();
        let first = *instruction.operands.first()?;
        if let Some(outer) = contiguous(self.module, value) {
            let moved = rows.iter().zip(&outer).map(|(&(low, high), &(start, _))| (start + low, start + high));
            return Some(self.part(first, &moved.collect(), depth));
        }
        if let Some(attrs) = PadAttrs::of(&instruction.attrs) {
            return self.taken_of_padded(value, (first, &attrs.padding), rows, depth);
        }
        let attrs = DimsAttrs::of(&instruction.attrs).filter(|_| instruction.opcode == Opcode::Concatenate)?;
        let dim = usize::try_from(*attrs.dimensions.first()?).ok()?;
        self.taken_of_parts(value, &instruction.operands, (dim, rows), depth)
    }

    /// The rows of `value`, as they are or from its parts.
    fn part(&mut self, value: InstId, rows: &Rows, depth: usize) -> InstId {
        let dims = self.dims(value);
        if rows.iter().zip(&dims).all(|(&(low, high), &size)| (low, high) == (0, size)) {
            return value;
        }
        if let Some(taken) = self.taken(value, rows, depth - 1) {
            return taken;
        }
        let slice = rows.iter().map(|&(start, limit)| SliceDim { start, limit, stride: 1 }).collect();
        self.add(Opcode::Slice, rows, &[value], SliceAttrs { slice })
    }

    fn taken_of_parts(
        &mut self,
        value: InstId,
        parts: &[InstId],
        (dim, rows): (usize, &Rows),
        depth: usize,
    ) -> Option<InstId> {
        let (low, high) = *rows.get(dim)?;
        let mut start = 0;
        let mut wanted: Vec<(InstId, (i64, i64))> = Vec::new();
        for &part in parts {
            let size = *self.dims(part).get(dim)?;
            let (from, to) = (low.max(start), high.min(start + size));
            if from < to {
                wanted.push((part, (from - start, to - start)));
            }
            start += size;
        }
        if wanted.is_empty() || (wanted.len() > 1 && !self.is_only_sliced(value)) {
            return None;
        }
        let mut taken = Vec::with_capacity(wanted.len());
        for (part, own) in wanted {
            let mut rows = rows.clone();
            rows[dim] = own;
            taken.push(self.part(part, &rows, depth));
        }
        if let [only] = taken.as_slice() {
            return Some(*only);
        }
        let dimensions = std::iter::once(dim as i64).collect();
        Some(self.add(Opcode::Concatenate, rows, &taken, DimsAttrs { dimensions }))
    }

    fn taken_of_padded(
        &mut self,
        value: InstId,
        (inner, padding): (InstId, &[PadDim]),
        rows: &Rows,
        depth: usize,
    ) -> Option<InstId> {
        let dims = self.dims(inner);
        let (mut own, mut left) = (Rows::new(), Vec::new());
        for ((&(low, high), pad), &size) in rows.iter().zip(padding).zip(&dims) {
            if pad.interior != 0 || pad.low < 0 || pad.high < 0 {
                return None;
            }
            let (from, to) = ((low - pad.low).clamp(0, size), (high - pad.low).clamp(0, size));
            if from == to {
                // Nothing but padding: there is no part to take it from.
                return None;
            }
            let before = (pad.low - low).max(0);
            left.push(PadDim { low: before, high: (high - low) - before - (to - from), interior: 0 });
            own.push((from, to));
        }
        let is_inside = left.iter().all(|pad| *pad == PadDim::default());
        if !is_inside && !self.is_only_sliced(value) {
            return None;
        }
        let fill = *self.module.inst(value).operands.get(1)?;
        let part = self.part(inner, &own, depth);
        Some(if is_inside { part } else { self.add(Opcode::Pad, rows, &[part, fill], PadAttrs { padding: left }) })
    }

    /// Whether nothing but slices reads a value.
    fn is_only_sliced(&self, value: InstId) -> bool {
        let is_root = self.module.comp(self.module.inst(value).parent).root.expand() == Some(value);
        let is_slice = |&user: &InstId| self.module.inst(user).opcode == Opcode::Slice;
        let is_known = value.index() < self.n_slots;
        is_known && !is_root && !is_annotated(self.module, value) && self.users[value].iter().all(is_slice)
    }

    fn dims(&self, value: InstId) -> Vec<i64> {
        self.module.shape(value).as_array().map(|array| array.dims.to_vec()).unwrap_or_default()
    }

    /// An array of as many rows, laid out as the slice is.
    fn add(&mut self, opcode: Opcode, rows: &Rows, operands: &[InstId], attrs: impl Into<Attrs>) -> InstId {
        let hint = self.module.inst_name(self.slice).to_string();
        let comp = self.module.inst(self.slice).parent;
        let sizes = rows.iter().map(|&(low, high)| high - low);
        let shape = match self.module.shape(self.slice) {
            Shape::Array(like) => Shape::Array(ArrayShape { dims: sizes.collect(), ..like.clone() }),
            other => other.clone(),
        };
        let new = Builder::new(self.module, comp).add(&hint, opcode, shape, operands.iter().copied(), attrs);
        if let Some(metadata) = self.module.inst(self.slice).marks.as_ref().and_then(|marks| marks.metadata.clone()) {
            self.module.marks_mut(new).metadata = Some(metadata);
        }
        new
    }
}
