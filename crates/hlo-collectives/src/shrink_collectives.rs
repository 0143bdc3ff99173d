//! Convert and slice before a collective that only moves numbers, where it then moves fewer bytes.
//!
//! Before, weights are gathered in f32 and used in bf16:
//! ```text
//! %whole = f32[64,32] all-gather(%weight), replica_groups={{0,1,2,3}}, dimensions={0}
//! %used = bf16[64,32] convert(%whole)
//! ```
//! after, half of the bytes move:
//! ```text
//! %narrow = bf16[16,32] convert(%weight)
//! %used = bf16[64,32] all-gather(%narrow), replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//! The sample `ir-samples/passes/shrink-collectives/narrowed.hlo` runs this.
//!
//! **Why.** Front ends convert and slice where a value is used, and a partitioner gathers it where it is cut: the gather moves what the use throws
//! away. `hlo-opt audit` names them (`wide-collective`, `sliced-all-gather`).
//!
//! **What it does.** 1. A conversion to fewer bits that is the only use goes before the collective; transposes and reshapes between them are done in
//! the narrow type. 2. A conversion to more bits before the collective goes behind it. 3. Where nothing but slices reads the result, and
//! they read at most half, each device takes its part of them first.
//!
//! **What it does not do.** Reductions stay: adding in the wider type is more exact. Conversions on both sides stay, as XLA writes them where a
//! backend has no collective for the type. The dim along which a gather joins is not sliced, nor are operands of an all-to-all. Types of fewer
//! than 8 bits are not sent.
//!
//! **Algorithm.** One look at the users and the operand of each collective, until nothing changes. Linear in the instructions.
//!
//! **Requires** nothing. **Ensures** the same results, bit for bit: moving commutes with what is done to each element. **Errors**: none.

use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::attrs::{Attrs, GatheringAttrs, SliceAttrs, SliceDim};
use hlo_ir::module::UserMap;
use hlo_ir::op::CollectiveForm;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode, Shape};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{CollectiveChange, Rewrite, array, check_free};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "shrink-collectives",
    help: "convert to fewer bits and slice before a gather or permute, not behind it",
    options: &[],
    build: |_| Ok(Box::new(ShrinkCollectives)),
};

/// The fewest bits of elements that are sent.
const LEAST_BITS: u32 = 8;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShrinkCollectives;

impl Pass for ShrinkCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_shrunk = 0;
        for comp in code_computations(module) {
            loop {
                let n_now = shrink_in(module, comp, cx.report)?;
                n_shrunk += n_now;
                if n_now == 0 {
                    break;
                }
            }
        }
        cx.report.count("collectives-shrunk", n_shrunk);
        if n_shrunk == 0 {
            let why = "no gather or permute moves numbers that are narrower or fewer before or behind it";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// How a collective moves less.
enum Shrinking {
    /// It sends the type of these conversions, which read its result behind these moves.
    Narrowed { dtype: DType, moves: Vec<InstId>, converts: Vec<InstId> },
    /// It sends what was converted before these moves of its operand.
    Widened { narrow: InstId, moves: Vec<InstId> },
    /// It sends the rows from where to where, which is what these slices read.
    Sliced { rows: Vec<(i64, i64)>, slices: Vec<InstId> },
}

fn shrink_in(module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
    if !module.comp(comp).insts.iter().any(|&inst| moves_only(module, inst)) {
        return Ok(0);
    }
    let pinned = pinned_by_control(module, comp);
    let users = module.users();
    let mut rewrite = Rewrite::new(module, comp);
    let mut live = EntitySet::with_capacity(module.n_inst_slots());
    live.extend(rewrite.live_insts(module));
    let mut n_shrunk = 0;
    for inst in rewrite.live_insts(module) {
        if !moves_only(module, inst) || check_free(module, inst, &pinned).is_err() {
            continue;
        }
        let search = Search { module, users: &users, live: &live, pinned: &pinned };
        let Some(shrinking) = search.find(inst) else { continue };
        let mut told = Decision::about(module, inst, "shrunk", shrinking.reason());
        told.collectives.push(CollectiveChange::removed(module, inst, "moves more than is used"));
        let new = emit(module, &mut rewrite, inst, &shrinking);
        told.collectives.push(CollectiveChange::inserted(module, new, "moves what is used"));
        report.decisions.push(told);
        n_shrunk += 1;
        // The search rests on users as they were.
        break;
    }
    if n_shrunk > 0 {
        rewrite.finish(module)?;
    }
    Ok(n_shrunk)
}

/// Whether an instruction moves one array between devices, and does nothing else.
fn moves_only(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let rule = instruction.opcode.row().collective;
    let is_one = instruction.operands.len() == 1 && array(module, inst).is_some_and(|shape| shape.dynamic == 0);
    is_one && rule.is_some_and(|rule| !rule.reduces() && rule.form == CollectiveForm::Synchronous)
}

struct Search<'a> {
    module: &'a Module,
    users: &'a UserMap,
    live: &'a EntitySet<InstId>,
    pinned: &'a EntitySet<InstId>,
}

impl Search<'_> {
    fn find(&self, collective: InstId) -> Option<Shrinking> {
        let (narrowed, widened) = (self.narrowed(collective), self.widened(collective));
        match (narrowed, widened) {
            (Some(_), Some(_)) => None,
            (Some(one), None) | (None, Some(one)) => Some(one),
            (None, None) => self.sliced(collective),
        }
    }

    /// The live users of a value; none of what a computation returns.
    fn readers(&self, value: InstId) -> Vec<InstId> {
        if self.module.comp(self.module.inst(value).parent).root.expand() == Some(value) {
            return Vec::new();
        }
        let mut readers: Vec<InstId> =
            self.users[value].iter().copied().filter(|&user| self.live.contains(user)).collect();
        readers.dedup();
        readers
    }

    fn is_move(&self, inst: InstId) -> bool {
        let moves = [Opcode::Transpose, Opcode::Reshape, Opcode::Copy].contains(&self.module.inst(inst).opcode);
        moves && check_free(self.module, inst, self.pinned).is_ok()
    }

    /// The type that a conversion goes to and that it comes from.
    fn conversion(&self, inst: InstId) -> Option<(DType, DType)> {
        let instruction = self.module.inst(inst);
        let from = array(self.module, *instruction.operands.first()?)?.dtype;
        let to = array(self.module, inst)?.dtype;
        let is_free = check_free(self.module, inst, self.pinned).is_ok();
        (instruction.opcode == Opcode::Convert && is_free).then_some((to, from))
    }

    fn narrowed(&self, collective: InstId) -> Option<Shrinking> {
        let (mut at, mut moves) = (collective, Vec::new());
        loop {
            let readers = self.readers(at);
            match readers.as_slice() {
                &[only] if self.is_move(only) => {
                    moves.push(only);
                    at = only;
                }
                [first, ..] => {
                    let (dtype, wide) = self.conversion(*first)?;
                    let is_alike = |&inst: &InstId| self.conversion(inst) == Some((dtype, wide));
                    let is_narrower = dtype.bits() < wide.bits() && dtype.bits() >= LEAST_BITS;
                    let fits = is_narrower && readers.iter().all(is_alike);
                    return fits.then_some(Shrinking::Narrowed { dtype, moves, converts: readers });
                }
                [] => return None,
            }
        }
    }

    fn widened(&self, collective: InstId) -> Option<Shrinking> {
        let mut at = *self.module.inst(collective).operands.first()?;
        let mut moves = Vec::new();
        while self.is_move(at) {
            moves.push(at);
            at = *self.module.inst(at).operands.first()?;
        }
        let (wide, narrow) = self.conversion(at)?;
        moves.reverse();
        let from = *self.module.inst(at).operands.first()?;
        let is_wider = narrow.bits() < wide.bits() && narrow.bits() >= LEAST_BITS;
        is_wider.then_some(Shrinking::Widened { narrow: from, moves })
    }

    fn sliced(&self, collective: InstId) -> Option<Shrinking> {
        let instruction = self.module.inst(collective);
        let rule = instruction.opcode.row().collective?;
        if rule.scatters {
            return None;
        }
        let gathered = GatheringAttrs::of(&instruction.attrs).map(|attrs| attrs.dimensions.clone()).unwrap_or_default();
        let joined: Vec<usize> = gathered.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
        let whole = array(self.module, collective)?;
        let slices = self.readers(collective);
        let mut rows: Option<Vec<(i64, i64)>> = None;
        for &slice in &slices {
            let attrs = SliceAttrs::of(&self.module.inst(slice).attrs)?;
            check_free(self.module, slice, self.pinned).ok()?;
            let own = attrs.slice.iter().map(|at| (at.start, at.limit));
            rows = Some(match rows {
                None => own.collect(),
                Some(known) => known.into_iter().zip(own).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).collect(),
            });
        }
        let mut rows = rows?;
        for (dim, rows) in rows.iter_mut().enumerate().filter(|(dim, _)| joined.contains(dim)) {
            *rows = (0, *whole.dims.get(dim)?);
        }
        let n_read: i64 = rows.iter().map(|(low, high)| high - low).product();
        let n_elems = i64::try_from(whole.n_elems()).ok()?;
        (n_read > 0 && n_read <= n_elems / 2).then_some(Shrinking::Sliced { rows, slices })
    }
}

impl Shrinking {
    fn reason(&self) -> String {
        match self {
            Shrinking::Narrowed { dtype, .. } => format!("its result is used in {dtype}"),
            Shrinking::Widened { .. } => "its operand has fewer bits before a conversion".into(),
            Shrinking::Sliced { .. } => "its result is read in slices".into(),
        }
    }
}

/// Emits the smaller collective, and what comes before and behind it.
fn emit(module: &mut Module, rewrite: &mut Rewrite, old: InstId, shrinking: &Shrinking) -> InstId {
    let operand = module.inst(old).operands[0];
    match shrinking {
        Shrinking::Narrowed { dtype, moves, converts } => {
            let converted = in_type(module, operand, *dtype);
            let hint = format!("{}.narrow", module.inst_name(operand));
            let narrow =
                rewrite.add(module, converts[0], (&hint, Opcode::Convert), converted, &[operand], Attrs::Plain);
            let new = collective(module, rewrite, old, narrow);
            let moved = moves.iter().fold(new, |value, &inst| again(module, rewrite, inst, value));
            for &convert in converts {
                let result = rewrite.with_shape_of(module, moved, convert);
                rewrite.redirect(convert, result);
            }
            new
        }
        Shrinking::Widened { narrow, moves } => {
            let moved = moves.iter().fold(*narrow, |value, &inst| again(module, rewrite, inst, value));
            let new = collective(module, rewrite, old, moved);
            let (hint, shape) = (format!("{}.wide", module.inst_name(old)), module.shape(old).clone());
            let wide = rewrite.add(module, old, (&hint, Opcode::Convert), shape, &[new], Attrs::Plain);
            rewrite.redirect(old, wide);
            new
        }
        Shrinking::Sliced { rows, slices } => {
            // Along the dims that are joined, a device's part is taken whole.
            let whole = array(module, old).map(|shape| shape.dims.to_vec()).unwrap_or_default();
            let dims = array(module, operand).map(|shape| shape.dims.to_vec()).unwrap_or_default();
            let own = rows.iter().zip(&whole).zip(&dims).map(
                |((&rows, &whole), &size)| {
                    if rows == (0, whole) { (0, size) } else { rows }
                },
            );
            let part = sliced(module, rewrite, (operand, slices[0]), &own.collect::<Vec<_>>());
            let new = collective(module, rewrite, old, part);
            for &slice in slices {
                let attrs = SliceAttrs::of(&module.inst(slice).attrs).cloned();
                let Some(attrs) = attrs else { continue };
                let within = attrs.slice.iter().zip(rows).map(|(at, &(low, _))| SliceDim {
                    start: at.start - low,
                    limit: at.limit - low,
                    stride: at.stride,
                });
                let (hint, shape) = (module.inst_name(slice).to_string(), module.shape(slice).clone());
                let attrs = SliceAttrs { slice: within.collect() };
                let result = rewrite.add(module, slice, (&hint, Opcode::Slice), shape, &[new], attrs);
                rewrite.redirect(slice, result);
            }
            new
        }
    }
}

/// The shape of an array in another element type.
fn in_type(module: &Module, inst: InstId, dtype: DType) -> Shape {
    match module.shape(inst) {
        Shape::Array(array) => Shape::Array(ArrayShape { dtype, ..array.clone() }),
        other => other.clone(),
    }
}

/// The old collective of another operand, which has another type, or fewer rows along dims that are not joined.
fn collective(module: &mut Module, rewrite: &Rewrite, old: InstId, operand: InstId) -> InstId {
    let source = module.inst(old).clone();
    let was = array(module, source.operands[0]).map(|shape| shape.dims.to_vec()).unwrap_or_default();
    let (now, dtype) =
        array(module, operand).map_or((Vec::new(), DType::F32), |shape| (shape.dims.to_vec(), shape.dtype));
    let mut shape = in_type(module, old, dtype);
    if let Shape::Array(array) = &mut shape {
        for ((size, was), now) in array.dims.iter_mut().zip(was).zip(now) {
            *size = if was == now { *size } else { now };
        }
    }
    let hint = module.inst_name(old).to_string();
    rewrite.add(module, old, (&hint, source.opcode), shape, &[operand], source.attrs)
}

/// A move of another value, in its type.
fn again(module: &mut Module, rewrite: &Rewrite, inst: InstId, value: InstId) -> InstId {
    let source = module.inst(inst).clone();
    let dtype = array(module, value).map_or(DType::F32, |shape| shape.dtype);
    let (hint, shape) = (format!("{}.narrow", module.inst_name(inst)), in_type(module, inst, dtype));
    rewrite.add(module, inst, (&hint, source.opcode), shape, &[value], source.attrs)
}

/// Rows of a value, found where `source` was found.
fn sliced(module: &mut Module, rewrite: &Rewrite, (value, source): (InstId, InstId), rows: &[(i64, i64)]) -> InstId {
    let hint = format!("{}.part", module.inst_name(value));
    let shape = match module.shape(value) {
        Shape::Array(array) => {
            Shape::Array(ArrayShape { dims: rows.iter().map(|(low, high)| high - low).collect(), ..array.clone() })
        }
        other => other.clone(),
    };
    let slice = rows.iter().map(|&(start, limit)| SliceDim { start, limit, stride: 1 }).collect();
    rewrite.add(module, source, (&hint, Opcode::Slice), shape, &[value], SliceAttrs { slice })
}
