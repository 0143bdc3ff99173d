//! Compute on a flat sum what is computed alike on all its slices.
//!
//! Before, an optimizer runs on one flat array, and its result is sliced for the weights:
//! ```text
//! %u = f32[24] multiply(%gradient, %rates)
//! %a = f32[16] slice(%u), slice={[0:16]}
//! %a.u = f32[4,4] reshape(%a)
//! %a1 = f32[4,4] subtract(%a.w, %a.u)
//! %b = f32[8] slice(%u), slice={[16:24]}
//! %b1 = f32[8] subtract(%b.w, %b)
//! ```
//! after, the weights are updated flat, too:
//! ```text
//! %a.flat = f32[16] reshape(%a.w)
//! %w = f32[24] concatenate(%a.flat, %b.w), dimensions={0}
//! %w1 = f32[24] subtract(%w, %u)
//! %a = f32[16] slice(%w1), slice={[0:16]}
//! %a1 = f32[4,4] reshape(%a)
//! %b1 = f32[8] slice(%w1), slice={[16:24]}
//! ```
//! The sample `ir-samples/passes/flatten-update/sgd.hlo` runs this.
//!
//! **Why.** A shard of the flat array is another piece of the weights than a shard of each weight. Where the last steps of the update are
//! computed on slices, every device does them for all weights. Flat, they are sharded like the rest, and what is gathered is
//! as much as before: the new weights instead of their updates.
//!
//! **What it does not do.** It looks at arrays of one dim that are computed elementwise from an all-reduce. All slices have to be
//! used alike, each in one place: by the same elementwise op, with an array of the slice's size, with the same repeated scalar, or with the
//! same scalar. Nothing that such an op takes may be computed from another slice's. Slices with a stride, or that leave
//! elements out, stay.
//!
//! **Algorithm.** From each all-reduce, the flat values; from each with slices, one op of all slices at a time, until they are
//! not alike. Linear in the instructions for each op that is moved.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.

use crate::refusal::FlattenRefusal;
use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::attrs::{DimsAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::module::UserMap;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{Rewrite, Splat, array, check_free, find_all_reduce, find_splat};
use indexmap::IndexSet;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "flatten-update",
    help: "compute on a flat sum what is computed alike on all its slices, so that a flat optimizer's update can be sharded",
    options: &[],
    build: |_| Ok(Box::new(FlattenUpdate)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlattenUpdate;

impl Pass for FlattenUpdate {
    fn takes_single_all_reduces(&self) -> bool {
        true
    }

    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_flattened = 0;
        for comp in code_computations(module) {
            if !module.comp(comp).insts.iter().any(|&inst| module.inst(inst).opcode == Opcode::AllReduce) {
                continue;
            }
            loop {
                match flatten_in(module, comp, cx.report)? {
                    0 => break,
                    n => n_flattened += n,
                }
            }
        }
        cx.report.count("ops-flattened", n_flattened);
        if n_flattened == 0 {
            let why = "no flat sum has slices that are a partition of it and are used alike";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Moves one op of the slices of each flat value; how many ops were moved.
fn flatten_in(module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
    let (pinned, users) = (pinned_by_control(module, comp), module.users());
    let mut followers = users.clone();
    for &inst in &module.comp(comp).insts {
        module.inst(inst).control_predecessors().iter().for_each(|&before| followers[before].push(inst));
    }
    let mut rewrite = Rewrite::new(module, comp);
    let mut left: Vec<Decision> = Vec::new();
    let mut n_flattened = 0;
    for flat in find_flat(module, &users, &pinned, &rewrite.live_insts(module)) {
        let Some(found) = find_slices(module, &users, flat) else { continue };
        let reader = Reader { module, followers: &followers, pinned: &pinned };
        let alike = found.and_then(|parts| reader.find_alike(&parts).map(|operands| (parts, operands)));
        match alike {
            Err(reason) => left.push(Decision::about(module, flat, "left", reason)),
            Ok((parts, operands)) => {
                let opcode = parts.iter().find_map(|part| part.user).map_or("", |op| module.inst(op).opcode.name());
                let reason = format!("the {opcode} of each of its {} slices is computed on the whole", parts.len());
                report.decisions.push(Decision::about(module, flat, "flattened", reason));
                emit(module, &mut rewrite, flat, &parts, &operands);
                n_flattened += 1;
                // Operands of the next may be what was just replaced.
                break;
            }
        }
    }
    match n_flattened {
        0 => report.decisions.extend(left),
        _ => rewrite.finish(module)?,
    }
    Ok(n_flattened)
}

/// Arrays of one dim that are all-reduces, or computed elementwise from one.
fn find_flat(module: &Module, users: &UserMap, pinned: &EntitySet<InstId>, live: &[InstId]) -> IndexSet<InstId> {
    let is_flat = |inst: InstId| array(module, inst).is_some_and(|s| s.rank() == 1 && s.dynamic == 0);
    let is_sum = |&inst: &InstId| is_flat(inst) && matches!(find_all_reduce(module, inst, pinned), Ok(Some(_)));
    let mut flat: IndexSet<InstId> = live.iter().copied().filter(is_sum).collect();
    let mut next = 0;
    while let Some(&value) = flat.get_index(next) {
        next += 1;
        let n_elems = array(module, value).map(|s| s.dims.clone());
        for &user in &users[value] {
            let is_same_size = array(module, user).map(|s| s.dims.clone()) == n_elems;
            if module.inst(user).opcode.is_elementwise() && is_flat(user) && is_same_size {
                flat.insert(user);
            }
        }
    }
    flat
}

/// One slice of a flat array.
struct Part {
    /// The slice, or its reshape.
    value: InstId,
    /// What alone uses it.
    user: Option<InstId>,
    range: (i64, i64),
}

/// The slices of a flat value, in order; `None` if it has fewer than two.
fn find_slices(module: &Module, users: &UserMap, flat: InstId) -> Option<Result<Vec<Part>, FlattenRefusal>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut is_plain = true;
    for &user in &users[flat] {
        let Some(attrs) = SliceAttrs::of(&module.inst(user).attrs) else { continue };
        let [range] = attrs.slice.as_slice() else { continue };
        is_plain &= range.stride == 1;
        let sole = |value: InstId| match users[value].as_slice() {
            [only] if module.comp(module.inst(value).parent).root.expand() != Some(value) => Some(*only),
            _ => None,
        };
        let reshape = sole(user).filter(|&u| module.inst(u).opcode == Opcode::Reshape);
        let value = reshape.unwrap_or(user);
        parts.push(Part { value, user: sole(value), range: (range.start, range.limit) });
    }
    if parts.len() < 2 {
        return None;
    }
    parts.sort_by_key(|part| part.range);
    let n_elems = array(module, flat)?.dims.first().copied()?;
    let starts = parts.iter().map(|part| part.range.0).chain([n_elems]);
    let ends = [0].into_iter().chain(parts.iter().map(|part| part.range.1));
    let is_partition = is_plain && starts.eq(ends) && parts.iter().all(|part| part.range.0 < part.range.1);
    Some(if is_partition { Ok(parts) } else { Err(FlattenRefusal::NoPartition) })
}

/// What an operand of the op on the whole array is.
enum FlatOperand {
    /// The array itself.
    Whole,
    /// A scalar that is repeated.
    Repeated(Splat),
    /// A scalar.
    Scalar(InstId),
    /// An array for each slice.
    Arrays(Vec<InstId>),
}

/// Compares what is done with slices.
struct Reader<'a> {
    module: &'a Module,
    /// Users, and what must run later.
    followers: &'a UserMap,
    pinned: &'a EntitySet<InstId>,
}

impl Reader<'_> {
    /// The operands of the one op that is done with all slices.
    fn find_alike(&self, parts: &[Part]) -> Result<Vec<FlatOperand>, FlattenRefusal> {
        let module = self.module;
        let name = |inst| module.inst_name(inst).to_string();
        let mut ops: Vec<(InstId, InstId)> = Vec::with_capacity(parts.len());
        for part in parts {
            let op = part.user.ok_or_else(|| FlattenRefusal::SeveralUses { part: name(part.value) })?;
            if !self.is_elementwise(part.value, op) {
                return Err(FlattenRefusal::NotElementwise { name: name(op) });
            }
            ops.push((part.value, op));
        }
        let Some(&first) = ops.first() else { return Err(FlattenRefusal::NoPartition) };
        let n_operands = module.inst(first.1).operands.len();
        let other = ops.iter().find(|op| !self.is_alike(first, **op));
        let not_alike = |other: InstId| FlattenRefusal::NotAlike { first: name(first.1), other: name(other) };
        if let Some(&(_, other)) = other {
            return Err(not_alike(other));
        }
        let operands = (0..n_operands).map(|k| self.operand(&ops, k).map_err(not_alike));
        let operands: Vec<FlatOperand> = operands.collect::<Result<_, _>>()?;
        self.check_independent(&ops, &operands)?;
        Ok(operands)
    }

    fn is_elementwise(&self, value: InstId, op: InstId) -> bool {
        let module = self.module;
        let dims = |inst| array(module, inst).filter(|s| s.dynamic == 0).map(|s| s.dims.clone());
        module.inst(op).opcode.is_elementwise()
            && dims(op).is_some()
            && dims(op) == dims(value)
            && !module.must_stay(op)
            && check_free(module, op, self.pinned).is_ok()
    }

    /// Whether two ops are the same but for the values of their operands.
    fn is_alike(&self, (a, first): (InstId, InstId), (b, other): (InstId, InstId)) -> bool {
        let (x, y) = (self.module.inst(first), self.module.inst(other));
        let dtype = |inst| array(self.module, inst).map(|s| s.dtype);
        x.opcode == y.opcode
            && x.attrs == y.attrs
            && dtype(first) == dtype(other)
            && x.operands.len() == y.operands.len()
            && x.operands.iter().zip(&y.operands).all(|(&o, &p)| (o == a) == (p == b) && dtype(o) == dtype(p))
    }

    /// Operand `k` of the op on the whole array.
    ///
    /// # Errors
    /// The op whose operand is not alike.
    fn operand(&self, ops: &[(InstId, InstId)], k: usize) -> Result<FlatOperand, InstId> {
        let module = self.module;
        let at = |&(_, op): &(InstId, InstId)| module.inst(op).operands[k];
        let Some(first) = ops.first() else { return Ok(FlatOperand::Whole) };
        if at(first) == first.0 {
            return Ok(FlatOperand::Whole);
        }
        let rank = |inst| array(module, inst).map_or(0, ArrayShape::rank);
        let is_scalar = |op: &&(InstId, InstId)| rank(op.1) > 0 && rank(at(op)) == 0;
        if let Some(scalar) = ops.iter().find(is_scalar) {
            let other = ops.iter().find(|op| at(op) != at(scalar));
            return other.map_or(Ok(FlatOperand::Scalar(at(scalar))), |other| Err(other.1));
        }
        let splat = find_splat(module, at(first));
        match splat.filter(|_| ops.iter().all(|op| find_splat(module, at(op)) == splat)) {
            Some(splat) => Ok(FlatOperand::Repeated(splat)),
            None => Ok(FlatOperand::Arrays(ops.iter().map(at).collect())),
        }
    }

    /// Nothing that one op takes may be computed from what another gives.
    fn check_independent(&self, ops: &[(InstId, InstId)], operands: &[FlatOperand]) -> Result<(), FlattenRefusal> {
        let mut reached: EntitySet<InstId> = EntitySet::new();
        let mut work: Vec<InstId> = ops.iter().map(|op| op.1).collect();
        while let Some(inst) = work.pop() {
            if reached.insert(inst) {
                work.extend(self.followers[inst].iter().copied());
            }
        }
        for operand in operands {
            let taken: &[InstId] = match operand {
                FlatOperand::Whole | FlatOperand::Repeated(Splat::Value(_)) => &[],
                FlatOperand::Repeated(Splat::Scalar(scalar)) | FlatOperand::Scalar(scalar) => {
                    std::slice::from_ref(scalar)
                }
                FlatOperand::Arrays(arrays) => arrays,
            };
            if let Some(&taken) = taken.iter().find(|&&taken| reached.contains(taken)) {
                return Err(FlattenRefusal::Dependent { name: self.module.inst_name(taken).into() });
            }
        }
        Ok(())
    }
}

/// Emits the op on the whole array, and slices of its result in place of the ops on slices.
fn emit(module: &mut Module, rewrite: &mut Rewrite, flat: InstId, parts: &[Part], operands: &[FlatOperand]) {
    let ops: Vec<InstId> = parts.iter().filter_map(|part| part.user).collect();
    let (Some(&first), Some(whole)) = (ops.first(), array(module, flat).cloned()) else { return };
    let mut taken = Vec::with_capacity(operands.len());
    for (k, operand) in operands.iter().enumerate() {
        let model = module.inst(first).operands[k];
        let dtype = array(module, model).map_or(whole.dtype, |s| s.dtype);
        let shape = ArrayShape { dtype, ..whole.clone() };
        taken.push(match operand {
            FlatOperand::Whole => flat,
            FlatOperand::Scalar(scalar) => *scalar,
            FlatOperand::Repeated(Splat::Value(value)) => rewrite.splat(module, "flat", *value, &shape),
            FlatOperand::Repeated(Splat::Scalar(scalar)) => {
                let shape = Shape::Array(shape);
                rewrite.add(module, model, ("flat", Opcode::Broadcast), shape, &[*scalar], DimsAttrs::default())
            }
            FlatOperand::Arrays(arrays) => concatenate(module, rewrite, model, arrays, &shape),
        });
    }
    let source = module.inst(first).clone();
    let Some(dtype) = array(module, first).map(|s| s.dtype) else { return };
    let shape = ArrayShape { dtype, ..whole };
    let hint = format!("{}.flat", module.inst_name(first));
    let result = rewrite.add(module, first, (&hint, source.opcode), Shape::Array(shape.clone()), &taken, source.attrs);
    for (part, op) in parts.iter().zip(ops) {
        let (start, limit) = part.range;
        let hint = module.inst_name(op).to_string();
        let piece = Shape::Array(ArrayShape { dims: [limit - start].into_iter().collect(), ..shape.clone() });
        let slice = SliceAttrs { slice: vec![SliceDim { start, limit, stride: 1 }] };
        let mut value = rewrite.add(module, op, (&hint, Opcode::Slice), piece, &[result], slice);
        let wanted = module.shape(op).clone();
        if array(module, op).is_some_and(|s| s.rank() != 1) {
            value = rewrite.add(module, op, (&hint, Opcode::Reshape), wanted, &[value], ReshapeAttrs::default());
        }
        rewrite.redirect(op, value);
    }
}

/// The arrays, each as one dim, one behind the other.
fn concatenate(module: &mut Module, rewrite: &Rewrite, model: InstId, arrays: &[InstId], whole: &ArrayShape) -> InstId {
    let mut pieces = Vec::with_capacity(arrays.len());
    for &piece in arrays {
        let Some(shape) = array(module, piece).cloned() else { continue };
        if shape.rank() == 1 {
            pieces.push(piece);
            continue;
        }
        let flat = Shape::Array(ArrayShape { dims: [shape.n_elems() as i64].into_iter().collect(), ..whole.clone() });
        let hint = format!("{}.flat", module.inst_name(piece));
        pieces.push(rewrite.add(module, piece, (&hint, Opcode::Reshape), flat, &[piece], ReshapeAttrs::default()));
    }
    let hint = format!("{}.all", module.inst_name(model));
    let attrs = DimsAttrs { dimensions: [0].into_iter().collect() };
    rewrite.add(module, model, (&hint, Opcode::Concatenate), Shape::Array(whole.clone()), &pieces, attrs)
}
