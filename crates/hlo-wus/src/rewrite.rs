//! Emits a placement: every value in the form that was chosen for it, conversions where a use wants the other one.
//!
//! `tuple` and its like, parameters, loops, calls and conditionals stay the instructions that they are; the leaves in shards get
//! their new shapes. Ops on shards are new instructions. A use that wants another form than the value has takes an all-gather or
//! a slice, built once for each value and computation. What nothing needs any more is removed at the end.

use crate::batch::pack_all_reduces;
use crate::context::ShardingContext;
use crate::error::WusError;
use crate::problem::Problem;
use crate::tables::{IndexMap, IndexSet};
use cranelift_entity::packed_option::PackedOption;
use hlo_analysis::values::{Through, User, ValueId, Values, hands_on, params_of_operands, tuple_elements};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};
use hlo_spmd::{
    Appender, OperandCut, ShardBuilder, ShardFormat, SpmdError, is_rebuilt, local_shape, shard_attrs, with_shard_size,
};
use smallvec::SmallVec;

/// What a rewrite put in.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// `(all-reduce, reduce-scatter)` pairs.
    pub scattered: Vec<(InstId, InstId)>,
    /// `(all-reduce, all-reduce)`: of a gradient, and of its shards across copies.
    pub summed_across: Vec<(InstId, InstId)>,
    /// Values gathered, with the all-gather.
    pub gathered: Vec<(ValueId, InstId)>,
    /// `(reduce, all-reduce)`: partial results and what combines them.
    pub combined: Vec<(InstId, InstId)>,
    /// Slices of whole values.
    pub n_slices: u64,
    /// Computations that were changed.
    pub comps: Vec<CompId>,
}

/// The form of a leaf: its format if it is in shards.
type Wanted = Option<ShardFormat>;

/// The forms of all leaves: most instructions have one.
type Forms = SmallVec<[Wanted; 1]>;

/// Rewrites a module.
pub struct Rewriter<'m, 's, 'a> {
    module: &'m mut Module,
    context: &'s mut ShardingContext<'a>,
    problem: &'s Problem,
    shards: ShardBuilder,
    /// The instruction that holds a value in a computation, in the value's own form.
    holders: IndexMap<(ValueId, CompId), InstId>,
    whole: IndexMap<(ValueId, CompId), InstId>,
    slices: IndexMap<(InstId, ShardFormat), InstId>,
    /// Whole results that another instruction now computes.
    replaced: IndexMap<InstId, InstId>,
    emitted: Emitted,
}

impl<'m, 's, 'a> Rewriter<'m, 's, 'a> {
    /// A rewriter of `module`, of which `context` holds an untouched copy.
    pub fn new(
        module: &'m mut Module,
        context: &'s mut ShardingContext<'a>,
        problem: &'s Problem,
        across: &[Vec<u32>],
    ) -> Self {
        let shards = ShardBuilder::new(module, context.groups.into()).summed_across(across.to_vec());
        Rewriter {
            module,
            context,
            problem,
            shards,
            holders: IndexMap::default(),
            whole: IndexMap::default(),
            slices: IndexMap::default(),
            replaced: IndexMap::default(),
            emitted: Emitted::default(),
        }
    }

    /// Emits the placement.
    ///
    /// # Errors
    /// A value that the placement has in shards cannot be emitted so: a defect of the pass, reported and not hidden.
    pub fn emit(mut self) -> Result<Emitted, WusError> {
        for comp in self.touched() {
            for &inst in self.context.module.comp(comp).insts.iter().filter(|&&i| self.context.values.is_live(i)) {
                self.instruction(comp, inst)?;
            }
            self.root(comp)?;
            self.redirect_control(comp);
            self.restore_order(comp)?;
            self.pack_partials(comp)?;
            // Dead code that was there before may read what has another shape now: it goes too.
            self.module.remove_dead(comp);
            self.restore_order(comp)?;
            self.emitted.comps.push(comp);
        }
        Ok(self.emitted)
    }

    fn restore_order(&mut self, comp: CompId) -> Result<(), WusError> {
        let ordered = self.module.restore_order(comp);
        ordered.map_err(|inst| WusError::depends_on_itself(self.module, inst))
    }

    /// Combines what combines partial results.
    fn pack_partials(&mut self, comp: CompId) -> Result<(), WusError> {
        let own = self.emitted.combined.iter().map(|&(_, new)| new).filter(|&i| self.module.inst(i).parent == comp);
        let packed = pack_all_reduces(self.module, comp, &own.collect::<Vec<_>>())?;
        for (_, new) in &mut self.emitted.combined {
            *new = packed.get(new).copied().unwrap_or(*new);
        }
        Ok(())
    }

    fn values(&self) -> &'a Values {
        self.context.values
    }

    /// Computations in which a value is in shards, or taken so.
    fn touched(&self) -> Vec<CompId> {
        let mut touched: IndexSet<CompId> = IndexSet::default();
        let values = self.values();
        for region in &self.problem.regions {
            for &value in region.runs.keys() {
                if self.problem.shards(value).is_none() {
                    continue;
                }
                let sites = values.values[value].sites.iter().map(|&(inst, _)| self.context.module.inst(inst).parent);
                touched.extend(sites);
                touched.extend(values.uses[value].iter().map(|u| u.comp));
                let sources = values.sources[value].iter().flat_map(|&s| values.uses[s].iter().map(|u| u.comp));
                touched.extend(sources);
            }
            for &value in region.runs.keys() {
                touched.extend(values.uses[value].iter().filter_map(|taken| match taken.user {
                    User::Op { inst, .. } => self.problem.partial(self.context, inst).map(|_| taken.comp),
                    User::Becomes(_) | User::Exit(_) | User::Opaque(_) => None,
                }));
            }
        }
        values.comps.iter().copied().filter(|comp| touched.contains(comp)).collect()
    }

    fn instruction(&mut self, comp: CompId, inst: InstId) -> Result<(), WusError> {
        let (before, values) = (self.context.module, self.values());
        let opcode = before.inst(inst).opcode;
        let shards = self.forms(inst);
        let is_any_sharded = shards.iter().any(Option::is_some);
        if hands_on(before, inst, Through::MARKERS) || opcode == Opcode::Parameter {
            for (k, &operand) in before.inst(inst).operands.iter().enumerate() {
                let taken = self.own_form(comp, operand)?;
                self.module.set_operand(inst, k, taken);
            }
            if is_any_sharded {
                self.reshape_leaves(inst, &shards);
            }
            self.hold(comp, inst);
            return Ok(());
        }
        if self.is_entered(inst) {
            self.call(comp, inst)?;
            if is_any_sharded {
                self.reshape_leaves(inst, &shards);
            }
            self.hold(comp, inst);
            return Ok(());
        }
        if let (Some(value), [Some(format)]) = (values.of(inst), shards.as_slice()) {
            let shard = match self.context.gradients.contains(&value) {
                true => self.gradient(comp, inst, format)?,
                false => self.on_shard(comp, inst, format)?,
            };
            self.holders.insert((value, comp), shard);
            return Ok(());
        }
        if let Some(format) = self.problem.partial(self.context, inst) {
            return self.partial(comp, inst, &format);
        }
        self.whole_operands(comp, inst)
    }

    /// A gradient's sum, in shards.
    fn gradient(&mut self, comp: CompId, all_reduce: InstId, format: &ShardFormat) -> Result<InstId, WusError> {
        self.whole_operands(comp, all_reduce)?;
        let value = self.values().of(all_reduce);
        if value.is_some_and(|value| !self.context.is_summed_by_all(value)) {
            // Devices that repeat the work of others have the whole sum: each takes its shard of it.
            return self.slice(comp, all_reduce, format);
        }
        let scattered = self.shards.reduce_scatter(self.module, all_reduce, format)?;
        self.emitted.scattered.push((all_reduce, scattered.reduce_scatter));
        self.emitted.summed_across.extend(scattered.across.map(|across| (all_reduce, across)));
        Ok(scattered.shard())
    }

    /// Whether an instruction enters computations whose parameters have values of their own.
    fn is_entered(&self, inst: InstId) -> bool {
        let callees = self.context.module.called(inst);
        !callees.is_empty() && callees.iter().all(|&c| self.values().knows(c))
    }

    /// Remembers the first array instruction that holds a value in a computation.
    fn hold(&mut self, comp: CompId, inst: InstId) {
        if self.module.shape(inst).as_array().is_some()
            && let Some(value) = self.values().of(inst)
        {
            self.holders.entry((value, comp)).or_insert(inst);
        }
    }

    /// Operands of an instruction that takes them whole.
    fn whole_operands(&mut self, comp: CompId, inst: InstId) -> Result<(), WusError> {
        for k in 0..self.context.module.inst(inst).operands.len() {
            let operand = self.context.module.inst(inst).operands[k];
            let taken = self.whole_form(comp, operand)?;
            self.module.set_operand(inst, k, taken);
        }
        Ok(())
    }

    fn whole_form(&mut self, comp: CompId, inst: InstId) -> Result<InstId, WusError> {
        let n = self.values().leaves(inst).len();
        self.in_form(comp, inst, &Forms::from_elem(None, n))
    }

    /// The forms that were chosen for an instruction's leaves.
    fn forms(&self, inst: InstId) -> Forms {
        self.values().leaves(inst).iter().map(|v| v.expand().and_then(|v| self.problem.shards(v))).collect()
    }

    /// An instruction's value in the forms that were chosen for its leaves.
    fn own_form(&mut self, comp: CompId, inst: InstId) -> Result<InstId, WusError> {
        if self.context.module.shape(inst).as_array().is_none() {
            // Tuples have their leaves' own forms already.
            return Ok(inst);
        }
        let forms = self.forms(inst);
        self.in_form(comp, inst, &forms)
    }

    /// An instruction's value with each leaf in the form wanted.
    fn in_form(&mut self, comp: CompId, inst: InstId, wanted: &[Wanted]) -> Result<InstId, WusError> {
        let (before, values) = (self.context.module, self.values());
        let leaves = values.leaves(inst);
        if before.shape(inst).as_array().is_some() {
            return match (values.of(inst), wanted.first().copied().flatten()) {
                (Some(value), Some(format)) => match self.problem.shards(value) {
                    Some(own) if own == format => self.holder(comp, value),
                    Some(_) => {
                        let whole = self.gather(comp, value)?;
                        self.slice(comp, whole, &format)
                    }
                    None => self.slice(comp, inst, &format),
                },
                (Some(value), None) if self.problem.shards(value).is_some() => self.gather(comp, value),
                (_, None) => Ok(self.replaced.get(&inst).copied().unwrap_or(inst)),
                (None, Some(_)) => Err(WusError::NoValue { name: before.inst_name(inst).into() }),
            };
        }
        if self.is_own_form(leaves, wanted) {
            return Ok(inst);
        }
        let Some(elements) = tuple_elements(before, inst) else {
            return self.converted(comp, inst, leaves, wanted);
        };
        let (mut parts, mut start) = (Vec::new(), 0);
        for &operand in elements {
            let end = start + before.shape(operand).n_leaves();
            parts.push(self.in_form(comp, operand, &wanted[start..end])?);
            start = end;
        }
        Ok(self.tuple(comp, inst, parts))
    }

    /// Whether the forms wanted are those that were chosen for the leaves.
    fn is_own_form(&self, leaves: &[PackedOption<ValueId>], wanted: &[Wanted]) -> bool {
        let own = |leaf: &PackedOption<ValueId>| leaf.expand().and_then(|v| self.problem.shards(v));
        leaves.iter().zip(wanted).all(|(leaf, form)| own(leaf) == *form)
    }

    /// The value of an emitted instruction, whose leaves have their own forms, in the forms wanted.
    fn converted(
        &mut self,
        comp: CompId,
        inst: InstId,
        leaves: &[PackedOption<ValueId>],
        wanted: &[Wanted],
    ) -> Result<InstId, WusError> {
        if self.is_own_form(leaves, wanted) {
            return Ok(inst);
        }
        let Some(n_elements) = self.module.shape(inst).as_tuple().map(<[Shape]>::len) else {
            let value = leaves.first().and_then(|v| v.expand()).ok_or(WusError::LeafWithoutValue)?;
            let is_sharded = self.problem.shards(value).is_some();
            let whole = if is_sharded { self.gather(comp, value)? } else { inst };
            return match wanted.first().copied().flatten() {
                Some(format) => self.slice(comp, whole, &format),
                None => Ok(whole),
            };
        };
        let (mut parts, mut start) = (Vec::new(), 0);
        for k in 0..n_elements {
            let part = self.tuple_element(comp, inst, k)?;
            let end = start + self.module.shape(part).n_leaves();
            parts.push(self.converted(comp, part, &leaves[start..end], &wanted[start..end])?);
            start = end;
        }
        Ok(self.tuple(comp, inst, parts))
    }

    /// A tuple of `parts`, named after `inst`.
    fn tuple(&mut self, comp: CompId, inst: InstId, parts: Vec<InstId>) -> InstId {
        let shape = Shape::Tuple(parts.iter().map(|&p| self.module.shape(p).clone()).collect());
        let hint = self.module.inst_name(inst).to_string();
        Builder::new(self.module, comp).add(&hint, Opcode::Tuple, shape, parts, Attrs::Plain)
    }

    fn tuple_element(&mut self, comp: CompId, tuple: InstId, k: usize) -> Result<InstId, WusError> {
        let shape =
            self.module.shape(tuple).as_tuple().and_then(|e| e.get(k)).cloned().ok_or(WusError::TupleElement)?;
        let hint = format!("{}.{k}", self.module.inst_name(tuple));
        let attrs = TupleIndexAttrs { index: k as i64 };
        Ok(Builder::new(self.module, comp).add(&hint, Opcode::GetTupleElement, shape, [tuple], attrs))
    }

    /// The array instruction that holds a value in its own form.
    fn holder(&mut self, comp: CompId, value: ValueId) -> Result<InstId, WusError> {
        if let Some(&inst) = self.holders.get(&(value, comp)) {
            return Ok(inst);
        }
        let sites = self.values().values[value].sites.clone();
        let site = sites.iter().find(|&&(inst, _)| self.module.inst(inst).parent == comp);
        let &(mut inst, leaf_idx) = site.ok_or_else(|| {
            let name = sites.first().map_or("", |&(inst, _)| self.context.module.inst_name(inst));
            WusError::NotAtHand { name: name.into() }
        })?;
        let mut leaf_idx = leaf_idx as usize;
        while let Some((k, rest)) = self.module.shapes.element_of_leaf(self.module.inst(inst).shape, leaf_idx) {
            inst = self.tuple_element(comp, inst, k)?;
            leaf_idx = rest;
        }
        self.holders.insert((value, comp), inst);
        Ok(inst)
    }

    /// A value in shards made whole, once in a computation.
    fn gather(&mut self, comp: CompId, value: ValueId) -> Result<InstId, WusError> {
        if let Some(&whole) = self.whole.get(&(value, comp)) {
            return Ok(whole);
        }
        let shard = self.holder(comp, value)?;
        let format = self.problem.shards(value).ok_or(WusError::WholeGathered)?;
        let shape = self.values().shape(self.context.module, value).ok_or(WusError::NoArrayValue)?;
        let joined = self.shards.join(self.module, shard, shape, &format);
        self.emitted.gathered.push((value, joined.all_gather));
        self.whole.insert((value, comp), joined.whole);
        Ok(joined.whole)
    }

    /// This device's shard of a whole value, built once in a computation.
    fn slice(&mut self, comp: CompId, inst: InstId, format: &ShardFormat) -> Result<InstId, WusError> {
        let inst = self.replaced.get(&inst).copied().unwrap_or(inst);
        if let Some(&shard) = self.slices.get(&(inst, *format)) {
            return Ok(shard);
        }
        let rebuilt = match is_rebuilt(self.module, inst) {
            true => self.shards.rebuild(self.module, comp, inst, format)?,
            false => None,
        };
        let shard = match rebuilt {
            Some(shard) => shard,
            None => {
                self.emitted.n_slices += 1;
                self.shards.cut(self.module, inst, format)?
            }
        };
        self.slices.insert((inst, *format), shard);
        Ok(shard)
    }

    /// Gives the leaves in shards their shapes.
    fn reshape_leaves(&mut self, inst: InstId, shards: &[Wanted]) {
        let shape = local_shape(self.context.module.shape(inst), shards);
        let shape = self.module.shapes.intern(shape);
        self.module.inst_mut(inst).shape = shape;
        self.module.forget_sharding(inst);
    }

    /// Operands of a loop, call, fusion or conditional, in the forms that the callees take.
    fn call(&mut self, comp: CompId, inst: InstId) -> Result<(), WusError> {
        let before = self.context.module;
        let params = params_of_operands(before, inst);
        for (k, (&operand, param)) in before.inst(inst).operands.iter().zip(params).enumerate() {
            let taken = match param {
                Some(param) => {
                    let forms = self.forms(param);
                    self.in_form(comp, operand, &forms)?
                }
                // What chooses a branch.
                None => self.whole_form(comp, operand)?,
            };
            self.module.set_operand(inst, k, taken);
        }
        Ok(())
    }

    /// The instruction computed on this device's shard.
    fn on_shard(&mut self, comp: CompId, inst: InstId, format: &ShardFormat) -> Result<InstId, WusError> {
        let source = self.context.module.inst(inst).clone();
        let run = format.run;
        let cuts: Vec<OperandCut> = match self.context.relation(inst) {
            Some(relation) => (0..source.operands.len()).map(|k| relation.operand_cut(k, run)).collect(),
            None => return Err(WusError::NotOnShards { name: self.context.module.inst_name(inst).into() }),
        };
        let mut operands = Vec::with_capacity(source.operands.len());
        for (&operand, taken) in source.operands.iter().zip(&cuts) {
            operands.push(match *taken {
                OperandCut::Whole => self.whole_form(comp, operand)?,
                OperandCut::Run(run) => {
                    let format = format.of_run(&self.array(operand)?, run);
                    self.in_form(comp, operand, &[Some(format)])?
                }
                OperandCut::Impossible => return Err(WusError::OperandNotCut),
            });
        }
        let first = cuts.first().and_then(|c| if let OperandCut::Run(run) = c { Some(*run) } else { None });
        if let (Some(first), true) = (first, self.context.relation(inst).is_some_and(|r| r.changes_end(run.start))) {
            return self.with_other_end(inst, &operands, &format.of_run(&self.array(source.operands[0])?, first));
        }
        let shape = format.shard_shape(&self.array(inst)?);
        let attrs = shard_attrs(self.context.module, inst, first, Some(run), self.context.n_shards);
        let attrs = with_shard_size(attrs.map_err(WusError::Localize)?, run.start, format.split.shard_size);
        let hint = format!("{}.shard", self.context.module.inst_name(inst));
        Ok(Appender::standing_for(comp, inst).add(self.module, &hint, source.opcode, shape, &operands, attrs))
    }

    /// The shard of what is padded behind the end of the cut dim, or is a slice from its start: the operand's shard, in which padding
    /// takes the place of what the operand has no elements for.
    fn with_other_end(&mut self, inst: InstId, operands: &[InstId], format: &ShardFormat) -> Result<InstId, WusError> {
        match operands {
            [shard, fill] => Ok(self.shards.mask(self.module, *shard, *fill, format)?),
            [shard] => Ok(*shard),
            _ => Err(WusError::NotOnShards { name: self.context.module.inst_name(inst).into() }),
        }
    }

    /// A reduction over the cut dim: each device reduces its shard, an all-reduce combines.
    fn partial(&mut self, comp: CompId, inst: InstId, format: &ShardFormat) -> Result<(), WusError> {
        let source = self.context.module.inst(inst).clone();
        let shard = self.in_form(comp, source.operands[0], &[Some(*format)])?;
        let init = self.whole_form(comp, source.operands[1])?;
        let masked = self.shards.mask(self.module, shard, init, format)?;
        let attrs = shard_attrs(self.context.module, inst, Some(format.run), None, self.context.n_shards);
        let attrs = attrs.map_err(WusError::Localize)?;
        let shape = self.array(inst)?;
        let hint = format!("{}.partial", self.context.module.inst_name(inst));
        let at = Appender::standing_for(comp, inst);
        let partial = at.add(self.module, &hint, source.opcode, shape, &[masked, init], attrs);
        let Attrs::Reduce(reduce) = &source.attrs else { return Err(WusError::NotAReduce) };
        let whole = self.shards.all_reduce(self.module, partial, reduce.to_apply.ok_or(WusError::NoReducer)?)?;
        self.emitted.combined.push((inst, whole));
        self.replaced.insert(inst, whole);
        Ok(())
    }

    /// The shape of an array of the module as it was.
    fn array(&self, inst: InstId) -> Result<ArrayShape, SpmdError> {
        let module = self.context.module;
        module.shape(inst).as_array().cloned().ok_or_else(|| SpmdError::not_an_array(module, inst))
    }

    /// The root in the forms that the callers take.
    fn root(&mut self, comp: CompId) -> Result<(), WusError> {
        let before = self.context.module;
        let Some(root) = before.comp(comp).root.expand() else { return Ok(()) };
        let forms: Forms = match self.values().returns_to(comp).first() {
            Some(&caller) => self.forms(caller),
            None => {
                // The entry's outputs; what a loop's condition returns is nobody's next value.
                let is_entry = before.entry() == Some(comp);
                let exit_form = |leaf| self.problem.exit_form(leaf).filter(|_| is_entry);
                (0..self.values().leaves(root).len()).map(exit_form).collect()
            }
        };
        let taken = self.in_form(comp, root, &forms)?;
        self.module.comp_mut(comp).root = Some(taken).into();
        Ok(())
    }

    /// Control predecessors that are gone are followed by what took their place.
    fn redirect_control(&mut self, comp: CompId) {
        let stand_in = |old: InstId, this: &Self| {
            let value = this.values().of(old).filter(|&v| this.problem.shards(v).is_some());
            let holder = value.and_then(|v| this.holders.get(&(v, comp)).copied());
            holder.or(this.replaced.get(&old).copied()).unwrap_or(old)
        };
        for inst in self.module.comp(comp).insts.clone() {
            let Some(marks) = self.module.inst(inst).marks.as_ref() else { continue };
            let predecessors: Vec<InstId> = marks.control_predecessors.iter().map(|&p| stand_in(p, self)).collect();
            if !predecessors.is_empty() {
                self.module.marks_mut(inst).control_predecessors = predecessors;
            }
        }
    }
}
