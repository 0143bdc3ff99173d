//! Collectives in lockstep: who meets whom, what each device gets, and the error when a partner never comes.

use super::machine::{Machine, Place};
use super::program::ScalarComputation;
use super::pure::Operands;
use crate::error::EvalError;
use crate::kernels::elementwise::binary;
use crate::kernels::reducer::Reducer;
use crate::kernels::rounding::collective_type;
use crate::kernels::shape_ops::{concatenate, dim_index, slice};
use crate::value::{Spread, Value};
use hlo_ir::attrs::SliceDim;
use hlo_ir::groups::DeviceGroups;
use hlo_ir::literal::Buffer;
use hlo_ir::monoid::Monoid;
use hlo_ir::op::{CollectiveRule, CollectiveSource, Effects, EvalRule, Participation};
use hlo_ir::{ArrayShape, CompId, InstId, Literal, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// The arrays of one operand on the members of a group, in group order.
type Column = Vec<Arc<Literal>>;

impl Machine<'_> {
    /// The result of a collective (of a start, the pair of operands and outcome) on every active device.
    pub(super) fn eval_collective(
        &mut self,
        inst: InstId,
        rule: CollectiveRule,
        operands: &Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let outcomes = match rule.source {
            CollectiveSource::Pair => self.permute(inst, operands, active)?,
            CollectiveSource::Reduction
            | CollectiveSource::Members
            | CollectiveSource::Root
            | CollectiveSource::Rows => self.meet_in_groups(inst, rule, operands, active)?,
        };
        let outcome = Spread::of(outcomes);
        if rule.has_operands_in_result() {
            self.start_tuple(inst, operands, &outcome, active.len())
        } else {
            Ok(outcome)
        }
    }

    fn device_groups(&mut self, inst: InstId) -> Result<Arc<DeviceGroups>, EvalError> {
        if let Some(groups) = self.groups.get(&inst) {
            return Ok(groups.clone());
        }
        let groups = Arc::new(self.module.device_groups(inst)?);
        self.groups.insert(inst, groups.clone());
        Ok(groups)
    }

    fn meet_in_groups(
        &mut self,
        inst: InstId,
        rule: CollectiveRule,
        operands: &Operands,
        active: &[u32],
    ) -> Result<Vec<Value>, EvalError> {
        let groups = self.device_groups(inst)?;
        let mut results: Vec<Option<Value>> = vec![None; active.len()];
        for group in &groups.groups {
            let Some(members) = self.all_active(inst, group, active)? else { continue };
            let columns: Result<Vec<Column>, EvalError> =
                operands.iter().map(|o| members.iter().map(|&i| Ok(o.get(i)?.as_array()?.clone())).collect()).collect();
            let values = self.exchange(inst, rule, &columns?, members.len())?;
            for (&i, value) in members.iter().zip(values) {
                results[i] = Some(value);
            }
        }
        let may_be_absent = rule.participation() == Participation::SomeGroups;
        let mut out = Vec::with_capacity(active.len());
        for (i, result) in results.into_iter().enumerate() {
            out.push(match result {
                Some(value) => value,
                None if may_be_absent => self.zeros_like(operands, i)?,
                None => return Err(EvalError::invalid(format!("device {} is in no group", active[i]))),
            });
        }
        Ok(out)
    }

    /// Where the members of a group stand among the active devices; `None` if none is active.
    fn all_active(&self, inst: InstId, group: &[u32], active: &[u32]) -> Result<Option<Vec<usize>>, EvalError> {
        let found: Vec<Option<usize>> = group.iter().map(|d| active.binary_search(d).ok()).collect();
        let waiting = group.iter().zip(&found).find_map(|(&d, at)| at.map(|_| d));
        let missing = group.iter().zip(&found).find_map(|(&d, at)| at.is_none().then_some(d));
        match (waiting, missing) {
            (None, _) => Ok(None),
            (Some(waiting), Some(missing)) => Err(self.divergence(inst, waiting, missing)),
            (Some(_), None) => Ok(Some(found.into_iter().flatten().collect())),
        }
    }

    /// The error that `waiting` stands at `inst` for a device that does not come.
    pub(super) fn divergence(&self, inst: InstId, waiting: u32, missing: u32) -> EvalError {
        let name = |inst: InstId| {
            let comp = self.module.inst(inst).parent;
            format!("%{} in %{}", self.module.inst_name(inst), self.module.comp_name(comp))
        };
        let place = match self.places.get(missing as usize).copied().unwrap_or(Place::Absent) {
            Place::HasLeft(at) => format!("has left the loop {}", name(at)),
            Place::InBranch(at, branch) => {
                let comp = self.module.comp_name(branch);
                let next = match self.first_collective(branch) {
                    Some(next) => format!("where its first collective is {}", name(next)),
                    None => "which has no collective".to_string(),
                };
                format!("takes branch %{comp} of {}, {next}", name(at))
            }
            Place::Absent => "does not run this instruction".to_string(),
        };
        EvalError::Divergent(format!("device {waiting} waits at {} for device {missing}, which {place}", name(inst)))
    }

    /// The first collective that `comp` or what it calls would execute, loops and branches taken.
    fn first_collective(&self, comp: CompId) -> Option<InstId> {
        let mut stack: Vec<InstId> = self.module.comp(comp).insts.iter().rev().copied().collect();
        let mut seen = hashbrown::HashSet::new();
        while let Some(inst) = stack.pop() {
            if matches!(self.module.inst(inst).opcode.row().effects, Effects::Communicates) {
                return Some(inst);
            }
            for callee in self.module.called(inst).into_iter().rev() {
                if seen.insert(callee) {
                    stack.extend(self.module.comp(callee).insts.iter().rev());
                }
            }
        }
        None
    }

    fn zeros_like(&self, operands: &Operands, i: usize) -> Result<Value, EvalError> {
        let zeros: Result<Vec<Value>, EvalError> = operands
            .iter()
            .map(|o| {
                let array = o.get(i)?.as_array()?;
                Ok(Literal::zeros(array.dtype(), array.dims())?.into())
            })
            .collect();
        one_or_tuple(zeros?)
    }

    fn permute(&mut self, inst: InstId, operands: &Operands, active: &[u32]) -> Result<Vec<Value>, EvalError> {
        if self.module.inst(inst).attrs.collective().is_some_and(|view| view.is_in_place) {
            return Err(EvalError::unsupported("collective-permute in place (with slice_sizes)"));
        }
        let pairs = self.module.device_pairs(inst)?;
        let mut results: Vec<Option<Value>> = vec![None; active.len()];
        for (source, target) in pairs {
            match (active.binary_search(&source), active.binary_search(&target)) {
                (Ok(from), Ok(to)) => {
                    let values: Result<Vec<Value>, EvalError> = operands.iter().map(|o| o.get(from).cloned()).collect();
                    results[to] = Some(one_or_tuple(values?)?);
                }
                (Ok(_), Err(_)) => return Err(self.divergence(inst, source, target)),
                (Err(_), Ok(_)) => return Err(self.divergence(inst, target, source)),
                (Err(_), Err(_)) => {}
            }
        }
        let fill = |(i, value): (usize, Option<Value>)| value.map_or_else(|| self.zeros_like(operands, i), Ok);
        results.into_iter().enumerate().map(fill).collect()
    }

    /// The outcome for each member of one group, in group order: what it receives, and behind it what it keeps of its own.
    fn exchange(
        &self,
        inst: InstId,
        rule: CollectiveRule,
        columns: &[Column],
        n_members: usize,
    ) -> Result<Vec<Value>, EvalError> {
        let (exchanged, own) = columns.split_at(self.module.n_exchanged(inst, rule).min(columns.len()));
        let of_members = self.received_arrays(inst, rule, exchanged, n_members)?.into_iter().enumerate();
        let with_own = |(k, mut values): (usize, Vec<Value>)| {
            values.extend(own.iter().filter_map(|column| column.get(k)).cloned().map(Value::Array));
            self.like_result(inst, rule, values)
        };
        of_members.map(with_own).collect()
    }

    /// The arrays that each member of one group receives, an array for each operand. The sources are reduced or stand side by side, each is cut
    /// into parts or stays whole, and what one member receives is joined.
    fn received_arrays(
        &self,
        inst: InstId,
        rule: CollectiveRule,
        columns: &[Column],
        n_members: usize,
    ) -> Result<Vec<Vec<Value>>, EvalError> {
        let instruction = self.module.inst(inst);
        let Some(view) = instruction.attrs.collective() else {
            return Err(EvalError::invalid(format!("{} without its attributes", instruction.opcode)));
        };
        let sources: Vec<Column> = match rule.source {
            CollectiveSource::Reduction => self.reduce_all(view.to_apply, columns)?,
            CollectiveSource::Members if rule.scatters && view.dimensions.is_empty() => {
                return operands_to_members(columns, n_members);
            }
            CollectiveSource::Members => columns.to_vec(),
            CollectiveSource::Root => columns.iter().map(|column| column.iter().take(1).cloned().collect()).collect(),
            CollectiveSource::Rows => {
                return Ok(rows_to_members(columns, n_members)?.into_iter().map(|rows| vec![rows]).collect());
            }
            CollectiveSource::Pair => return Err(EvalError::invalid("expected groups, found pairs")),
        };
        let dim = view.dimensions.first().copied().unwrap_or(0);
        if !rule.scatters {
            let whole: Result<Vec<Value>, EvalError> = sources.iter().map(|from| received(rule, from, dim)).collect();
            return Ok(vec![whole?; n_members]);
        }
        let parts: Result<Vec<Vec<Column>>, EvalError> =
            sources.iter().map(|from| from.iter().map(|x| split(x, dim, n_members)).collect()).collect();
        let parts = parts?;
        (0..n_members)
            .map(|k| {
                let mine = parts.iter().map(|from| {
                    let of_k: Column = from.iter().filter_map(|parts| parts.get(k).cloned()).collect();
                    received(rule, &of_k, dim)
                });
                mine.collect()
            })
            .collect()
    }

    /// One array or a tuple, as the instruction's result (of a start, its second element) is.
    fn like_result(&self, inst: InstId, rule: CollectiveRule, mut values: Vec<Value>) -> Result<Value, EvalError> {
        let shape = match self.module.shape(inst) {
            Shape::Tuple(elements) if rule.has_operands_in_result() => elements.get(1),
            shape => Some(shape),
        };
        match (shape, values.len()) {
            (Some(Shape::Tuple(_)), _) => Ok(Value::tuple(values)),
            (_, 1) => values.pop().ok_or_else(|| EvalError::invalid("a collective without operands")),
            (_, n) => Err(EvalError::invalid(format!("expected one operand for an array result, found {n}"))),
        }
    }

    /// The reduction of every operand over the members, in group order. As in XLA, `bf16` is summed in `f32` and the 8-bit
    /// floats in `f16`, and rounded once; an `f16` sum is rounded at every step.
    fn reduce_all(&self, to_apply: Option<CompId>, columns: &[Column]) -> Result<Vec<Column>, EvalError> {
        let comp = to_apply.ok_or_else(|| EvalError::invalid("a reduction without its computation"))?;
        let mut reducer = ScalarComputation::new(self.module, comp, self.options);
        columns.iter().map(|column| Ok(vec![reduce_column(&mut reducer, column)?])).collect()
    }
}

/// What a member makes of the arrays that it receives for one operand.
fn received(rule: CollectiveRule, arrays: &[Arc<Literal>], dim: i64) -> Result<Value, EvalError> {
    match arrays {
        _ if rule.gathers => Ok(concatenate(arrays, dim)?.into()),
        [only] => Ok(Value::Array(only.clone())),
        _ => Err(EvalError::invalid(format!("expected one array to receive, found {}", arrays.len()))),
    }
}

fn one_or_tuple(mut values: Vec<Value>) -> Result<Value, EvalError> {
    match values.len() {
        1 => values.pop().ok_or_else(|| EvalError::invalid("no value")),
        _ => Ok(Value::tuple(values)),
    }
}

fn values(parts: Vec<Literal>) -> Vec<Value> {
    parts.into_iter().map(Value::from).collect()
}

fn reduce_column(reducer: &mut dyn Reducer, column: &[Arc<Literal>]) -> Result<Arc<Literal>, EvalError> {
    let (first, rest) = column.split_first().ok_or_else(|| EvalError::invalid("an empty group"))?;
    if rest.is_empty() {
        return Ok(first.clone());
    }
    let dtype = first.dtype();
    let known = reducer.known().filter(|known| known.is_defined_on(dtype)).map(Monoid::opcode);
    let (Some(op), Some(EvalRule::Binary(fns))) = (known, known.map(|op| &op.row().eval)) else {
        return reduce_by_callback(reducer, first, rest);
    };
    let sum_type = collective_type(dtype);
    let is_narrow = sum_type != dtype;
    let widen = |x: &Arc<Literal>| if is_narrow { Arc::new(x.convert(sum_type)) } else { x.clone() };
    let mut sum = widen(first);
    for x in rest {
        sum = Arc::new(binary(op, fns, sum, widen(x))?);
    }
    Ok(if is_narrow { Arc::new(sum.convert(dtype)) } else { sum })
}

fn reduce_by_callback(
    reducer: &mut dyn Reducer,
    first: &Arc<Literal>,
    rest: &[Arc<Literal>],
) -> Result<Arc<Literal>, EvalError> {
    let mut out = first.as_ref().clone();
    for x in rest {
        for i in 0..out.n_elems() {
            let (Some(a), Some(b)) = (out.get(i), x.get(i)) else {
                return Err(EvalError::invalid("operands of different sizes in one group"));
            };
            let value = reducer.apply(&[a, b])?;
            out.set(i, *value.first().ok_or_else(|| EvalError::invalid("the reducer returns nothing"))?);
        }
    }
    Ok(Arc::new(out))
}

/// `x` cut into `n` equal parts along `dim`.
fn split(x: &Literal, dim: i64, n: usize) -> Result<Column, EvalError> {
    let at = dim_index(dim, x.dims().len())?;
    let size = x.dims()[at];
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    if n == 0 || size % n != 0 {
        return Err(EvalError::invalid(format!("expected dim {dim} to divide by {n}, found size {size}")));
    }
    let mut shape = ArrayShape::new(x.dtype(), x.dims().iter().copied());
    shape.dims[at] = size / n;
    (0..n)
        .map(|k| {
            let mut ranges: SmallVec<[SliceDim; 4]> =
                x.dims().iter().map(|&d| SliceDim { start: 0, limit: d, stride: 1 }).collect();
            ranges[at].start = k * (size / n);
            ranges[at].limit = (k + 1) * (size / n);
            Ok(Arc::new(slice(x, &ranges, &shape)?))
        })
        .collect()
}

/// Member `j` gets operand `j` of every member, in group order.
fn operands_to_members(columns: &[Column], n_members: usize) -> Result<Vec<Vec<Value>>, EvalError> {
    if columns.len() != n_members {
        let text = format!("expected one operand for each of {n_members} group members, found {}", columns.len());
        return Err(EvalError::invalid(text));
    }
    Ok(columns.iter().map(|column| column.iter().cloned().map(Value::Array).collect()).collect())
}

/// Operands: input, output, then for each peer input offsets, send sizes, output offsets (in the receiver's output) and
/// receive sizes, all along dim 0.
fn rows_to_members(columns: &[Column], n_members: usize) -> Result<Vec<Value>, EvalError> {
    let [input, output, input_offsets, send_sizes, output_offsets, _recv_sizes] = columns else {
        return Err(EvalError::invalid(format!("expected 6 operands, found {}", columns.len())));
    };
    let mut out: Vec<Literal> = output.iter().map(|x| x.as_ref().clone()).collect();
    for from in 0..n_members {
        let n_offsets = input_offsets[from].n_elems();
        if n_members == 0 || n_offsets % n_members != 0 {
            return Err(EvalError::invalid(format!("expected offsets for {n_members} members, found {n_offsets}")));
        }
        let n_updates = n_offsets / n_members;
        for k in 0..n_offsets {
            let at = |x: &Column| {
                let i = crate::kernels::shape_ops::index_of(&x[from], k);
                i.ok_or_else(|| EvalError::invalid("expected integer offsets and sizes"))
            };
            let rows = (at(input_offsets)?, at(output_offsets)?, at(send_sizes)?);
            copy_rows(&input[from], &mut out[k / n_updates], rows)?;
        }
    }
    Ok(values(out))
}

/// Copies `n` rows of dim 0 from row `start` of `from` to row `to_start` of `to`.
fn copy_rows(from: &Literal, to: &mut Literal, (start, to_start, n): (i64, i64, i64)) -> Result<(), EvalError> {
    let row: i64 = from.dims().iter().skip(1).product();
    let range = |start: i64| {
        let first = usize::try_from(start.checked_mul(row)?).ok()?;
        Some(first..first.checked_add(usize::try_from(n.checked_mul(row)?).ok()?)?)
    };
    let error = || EvalError::invalid(format!("rows {start}.. or {to_start}.. for {n} rows lie outside their array"));
    let (source, target) = (range(start).ok_or_else(error)?, range(to_start).ok_or_else(error)?);
    let (dtype, dims) = (to.dtype(), to.dims().to_vec());
    let empty = Literal::new(dtype, &[0], Buffer::splat(dtype, hlo_ir::Scalar::Pred(false), 0))?;
    let data = std::mem::replace(to, empty).into_data();
    let data = crate::kernels::typed::zip_elems!(data, from.data(), (t, f) => {
        let mut t = t;
        let f = f.get(source).ok_or_else(error)?;
        t.get_mut(target).ok_or_else(error)?.copy_from_slice(f);
        t
    })?;
    *to = Literal::new(dtype, &dims, data)?;
    Ok(())
}
