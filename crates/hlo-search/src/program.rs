//! A global program as the search sees it: values, the ops between them, and who takes what. Nothing here knows a mesh.
//!
//! - What a call takes and gives is one value with what it comes from. What a loop carries, and what several callers or branches give, is
//!   a value of its own that *becomes* from others.
//! - A value that costs nothing to build (constants, iotas, repeated scalars and what is made of them) is *free*: it has any state.
//! - A value is *kept* in one state (a hub): entry parameters, carried values, and whatever is taken twice or more. Any other value goes
//!   straight from the op that computes it to the one that takes it.

use crate::choices::{Choices, Port};
use crate::error::SearchError;
pub(crate) use crate::ids::{CutId, OpId};
use crate::regions::{RegionId, UnionMarks, WayOf};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::values::{Origin, SharedCallees, Through, User, ValueId, Values};

use hlo_ir::factors::{FactorSet, find_factors};
use hlo_ir::{ArrayShape, Dims, InstId, Module};
use hlo_spmd::is_rebuilt;
use smallvec::SmallVec;

/// What only hands values on.
pub(crate) const THROUGH: Through = Through { markers: true, copies: false, async_halves: true };

/// Who takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taker {
    /// Operand `operand` of an op.
    Op { op: OpId, operand: u32 },
    /// It becomes another value: into a loop, out of one, out of a branch.
    Becomes(CutId),
    /// It leaves the program as this leaf of the result, in memory of its own.
    Exit(u32),
    /// It leaves the program in the memory of this parameter, whose state it takes.
    Replaces { leaf: u32, param: CutId },
    /// Something that needs it whole.
    Whole,
}

impl Taker {
    /// The op, if it is one.
    pub(crate) fn op(&self) -> Option<OpId> {
        match *self {
            Taker::Op { op, .. } => Some(op),
            Taker::Becomes(_) | Taker::Exit(_) | Taker::Replaces { .. } | Taker::Whole => None,
        }
    }
}

/// One value.
#[derive(Clone, Debug)]
pub(crate) struct CutValue {
    /// The instruction that computes or first defines it, and the leaf of its result.
    pub inst: InstId,
    pub leaf: u32,
    pub dims: Dims,
    pub elem_bytes: f64,
    /// Whether any device can build any part of it.
    pub is_free: bool,
    /// Which op computes it, as which of its results.
    pub producer: Option<(OpId, u32)>,
    /// Whether it is kept in one state.
    pub is_kept: bool,
    /// Whether it is a leaf of an entry parameter.
    pub is_param: bool,
    /// Whether it is a result of a region with several ways: it is what the way gives that runs.
    pub is_port: bool,
    /// Takers, with how often each takes it.
    pub takers: Vec<(Taker, f64)>,
}

impl CutValue {
    /// Bytes of the whole value.
    pub(crate) fn bytes(&self) -> f64 {
        self.dims.iter().map(|&size| size as f64).product::<f64>() * self.elem_bytes
    }
}

/// One op.
#[derive(Clone, Debug)]
pub(crate) struct SearchOp {
    pub inst: InstId,
    /// The values of its operands; none for tokens and what is no array.
    pub operands: Vec<PackedOption<CutId>>,
    /// The values of its results.
    pub results: Vec<PackedOption<CutId>>,
    /// How its dims go together; `None`: it needs whole operands.
    pub factors: Option<FactorSet>,
    /// How often it runs in a step.
    pub frequency: f64,
}

/// The program.
pub(crate) struct Program<'m> {
    pub module: &'m Module,
    pub leaves: Values,
    pub values: PrimaryMap<CutId, CutValue>,
    pub ops: PrimaryMap<OpId, SearchOp>,
    of: SecondaryMap<ValueId, PackedOption<CutId>>,
    /// The parameter whose memory a leaf of the result takes, by leaf.
    pub replaced: Vec<Option<CutId>>,
    /// Regions with several ways; none in a program as it is.
    pub choices: Choices,
}

impl<'m> Program<'m> {
    /// Reads a global program.
    ///
    /// # Errors
    /// It has no entry.
    pub(crate) fn read(module: &'m Module, frequencies: &Frequencies) -> Result<Program<'m>, SearchError> {
        Program::read_union(module, frequencies, &UnionMarks::default())
    }

    /// Reads a global program with several ways of its regions beside each other.
    ///
    /// # Errors
    /// It has no entry.
    pub(crate) fn read_union(
        module: &'m Module,
        frequencies: &Frequencies,
        marks: &UnionMarks,
    ) -> Result<Program<'m>, SearchError> {
        let entry = module.entry().ok_or(SearchError::NoEntry)?;
        let leaves = Values::find(module, THROUGH, SharedCallees::Entered);
        let mut program = Program {
            module,
            leaves,
            values: PrimaryMap::new(),
            ops: PrimaryMap::new(),
            of: SecondaryMap::new(),
            replaced: Vec::new(),
            choices: Choices::new(marks.n_ways.clone()),
        };
        program.add_values();
        program.add_ops(frequencies, marks);
        program.order_ops();
        for (id, op) in &program.ops {
            if let Some(of) = marks.way_of[op.inst] {
                program.choices.add_op(id, of);
            }
        }
        program.find_replaced(entry);
        program.add_takers(frequencies);
        Ok(program)
    }

    /// The value of a leaf.
    pub(crate) fn value_of(&self, id: ValueId) -> Option<CutId> {
        self.of[id].expand()
    }

    /// The way of a region that a value is part of; a port is part of none.
    pub(crate) fn way_of(&self, value: CutId) -> Option<WayOf> {
        let (op, _) = self.values[value].producer?;
        self.choices.of_op[op]
    }

    /// The values of an instruction's leaves.
    pub(crate) fn of_leaves(&self, inst: InstId) -> impl Iterator<Item = Option<CutId>> + '_ {
        self.leaves.leaves(inst).iter().map(|leaf| leaf.expand().and_then(|id| self.value_of(id)))
    }

    /// The shape of a value.
    pub(crate) fn shape(&self, value: CutId) -> Option<&'m ArrayShape> {
        let value = &self.values[value];
        self.module.shapes.leaf(self.module.inst(value.inst).shape, value.leaf as usize)?.as_array()
    }

    fn add_values(&mut self) {
        let ids: Vec<ValueId> = self.leaves.values.keys().collect();
        for &id in &ids {
            if self.sole_source(id).is_none() {
                let new = self.new_value(id);
                self.of[id] = Some(self.values.push(new)).into();
            }
        }
        for id in ids {
            let (mut at, mut n_steps) = (id, 0);
            while let Some(source) = self.sole_source(at).filter(|_| n_steps <= self.leaves.values.len()) {
                (at, n_steps) = (source, n_steps + 1);
            }
            self.of[id] = self.of[at];
        }
    }

    /// What a value is another name of: a parameter or result of a call that has one source.
    fn sole_source(&self, id: ValueId) -> Option<ValueId> {
        match (self.leaves.values[id].origin, self.leaves.sources[id].as_slice()) {
            (Origin::Param | Origin::CallResult, &[source]) => Some(source),
            (Origin::Param | Origin::CallResult | Origin::Carry | Origin::EntryParam | Origin::Computed, _) => None,
        }
    }

    fn new_value(&self, id: ValueId) -> CutValue {
        let value = &self.leaves.values[id];
        let (inst, leaf) = value.sites[0];
        let shape = self.leaves.shape(self.module, id);
        CutValue {
            inst,
            leaf,
            dims: shape.map(|array| array.dims.clone()).unwrap_or_default(),
            elem_bytes: shape.map_or(0.0, |array| f64::from(array.dtype.bits()) / 8.0),
            is_free: false,
            producer: None,
            is_kept: value.origin != Origin::Computed,
            is_param: value.origin == Origin::EntryParam,
            is_port: false,
            takers: Vec::new(),
        }
    }

    fn add_ops(&mut self, frequencies: &Frequencies, marks: &UnionMarks) {
        for comp in self.leaves.comps.clone() {
            for &inst in &self.module.comp(comp).insts {
                if !self.leaves.is_live(inst) {
                    continue;
                }
                let own: Vec<PackedOption<CutId>> = self.of_leaves(inst).map(PackedOption::from).collect();
                let is_computed = self.leaves.leaves(inst).iter().filter_map(|leaf| leaf.expand()).any(|id| {
                    let value = &self.leaves.values[id];
                    value.origin == Origin::Computed && value.sites[0].0 == inst
                });
                match marks.port_of[inst] {
                    Some(region) => self.add_port(inst, region),
                    None if is_computed => self.add_op(inst, own, frequencies.of(comp)),
                    None => {}
                }
            }
        }
    }

    fn add_port(&mut self, inst: InstId, region: RegionId) {
        let Some(value) = self.of_leaves(inst).next().flatten() else { return };
        let operands = self.module.inst(inst).operands.iter();
        let roots: Vec<CutId> = operands.filter_map(|&operand| self.of_leaves(operand).next().flatten()).collect();
        (self.values[value].is_kept, self.values[value].is_port) = (true, true);
        self.choices.add_port(Port { region, value, roots });
    }

    fn add_op(&mut self, inst: InstId, results: Vec<PackedOption<CutId>>, frequency: f64) {
        let module = self.module;
        let operands: Vec<PackedOption<CutId>> = module
            .inst(inst)
            .operands
            .iter()
            .map(|&operand| match self.leaves.leaves(operand) {
                [leaf] => leaf.expand().and_then(|id| self.value_of(id)).into(),
                _ => None.into(),
            })
            .collect();
        let is_free = is_rebuilt(module, inst) && operands.iter().all(|operand| self.is_free_operand(*operand))
            || self.repeats_free(inst, &operands);
        if is_free {
            results.iter().filter_map(|value| value.expand()).for_each(|value| self.values[value].is_free = true);
            return;
        }
        let factors = find_factors(module, inst).ok();
        let op = self.ops.push(SearchOp { inst, operands, results: results.clone(), factors, frequency });
        for (k, value) in results.iter().enumerate() {
            if let Some(value) = value.expand() {
                self.values[value].producer = Some((op, k as u32));
            }
        }
    }

    /// Puts ops behind those that compute their operands, also where these stand in a callee.
    fn order_ops(&mut self) {
        let mut order: Vec<OpId> = Vec::with_capacity(self.ops.len());
        let mut is_seen: EntitySet<OpId> = EntitySet::new();
        for first in self.ops.keys() {
            let mut stack = vec![(first, 0usize)];
            while let Some((op, next)) = stack.pop() {
                if next == 0 && !is_seen.insert(op) {
                    continue;
                }
                let makers =
                    self.ops[op].operands.iter().filter_map(|v| v.expand()).flat_map(|value| self.makers(value));
                match makers.enumerate().skip(next).find(|(_, maker)| !is_seen.contains(*maker)) {
                    Some((k, maker)) => stack.extend([(op, k + 1), (maker, 0)]),
                    None => order.push(op),
                }
            }
        }
        let old = std::mem::take(&mut self.ops);
        for &op in &order {
            let new = self.ops.push(old[op].clone());
            for value in old[op].results.iter().filter_map(|value| value.expand()) {
                self.values[value].producer = self.values[value].producer.map(|(_, k)| (new, k));
            }
        }
    }

    /// The ops that compute a value: of a port those of every way.
    pub(crate) fn makers(&self, value: CutId) -> SmallVec<[OpId; 4]> {
        match self.choices.port(value) {
            Some(port) => port.roots.iter().flat_map(|&root| self.makers(root)).collect(),
            None => self.values[value].producer.iter().map(|(op, _)| *op).collect(),
        }
    }

    fn is_free_operand(&self, operand: PackedOption<CutId>) -> bool {
        operand.expand().is_some_and(|value| self.values[value].is_free)
    }

    /// Whether an op makes something of free values alone, tile by tile: elementwise ops, broadcasts, reshapes.
    fn repeats_free(&self, inst: InstId, operands: &[PackedOption<CutId>]) -> bool {
        use hlo_ir::op::FactorRule;
        let rule = self.module.inst(inst).opcode.row().factors;
        let is_local = matches!(
            rule,
            FactorRule::Elementwise | FactorRule::Broadcast | FactorRule::Reshape | FactorRule::Transpose
        );
        is_local && !operands.is_empty() && operands.iter().all(|&operand| self.is_free_operand(operand))
    }

    /// Which parameter's memory each leaf of the result takes: aliases, and donors of the same shape in order.
    fn find_replaced(&mut self, entry: hlo_ir::CompId) {
        let module = self.module;
        let Some(root) = module.comp(entry).root.expand() else { return };
        let n_leaves = self.leaves.leaves(root).len();
        self.replaced = vec![None; n_leaves];
        let params = &module.comp(entry).params;
        let leaf_of = |inst: InstId, index: &[i64]| module.shapes.leaf_number(module.inst(inst).shape, index);
        for alias in &module.header.input_output_alias {
            let param = usize::try_from(alias.param).ok().and_then(|k| params.get(k).copied());
            let Some(param) = param else { continue };
            let (Some(to), Some(from)) = (leaf_of(root, &alias.output_index), leaf_of(param, &alias.param_index))
            else {
                continue;
            };
            let value = self.of_leaves(param).nth(from).flatten();
            if let Some(slot) = self.replaced.get_mut(to) {
                *slot = value;
            }
        }
        self.find_donated(entry, root);
    }

    /// A donor gives its memory to the first result of its shape that has none.
    fn find_donated(&mut self, entry: hlo_ir::CompId, root: InstId) {
        let module = self.module;
        for donor in &module.header.buffer_donor {
            let param = usize::try_from(donor.param).ok().and_then(|k| module.comp(entry).params.get(k).copied());
            let Some(param) = param else { continue };
            let leaf = module.shapes.leaf_number(module.inst(param).shape, &donor.param_index);
            let Some(value) = leaf.and_then(|leaf| self.of_leaves(param).nth(leaf).flatten()) else { continue };
            let wanted = self.shape(value).map(|shape| (shape.dtype, shape.dims.clone()));
            let fits = |leaf: usize| {
                let shape = module.shapes.leaf(module.inst(root).shape, leaf).and_then(|shape| shape.as_array());
                self.replaced[leaf].is_none() && shape.map(|shape| (shape.dtype, shape.dims.clone())) == wanted
            };
            if let Some(leaf) = (0..self.replaced.len()).find(|&leaf| fits(leaf)) {
                self.replaced[leaf] = Some(value);
            }
        }
    }

    /// The value of an instruction that is a port.
    fn port_at(&self, inst: InstId) -> Option<CutId> {
        self.of_leaves(inst).next().flatten().filter(|&value| self.values[value].is_port)
    }

    fn add_takers(&mut self, frequencies: &Frequencies) {
        let op_of: SecondaryMap<InstId, PackedOption<OpId>> = {
            let mut map = SecondaryMap::new();
            self.ops.iter().for_each(|(id, op)| map[op.inst] = Some(id).into());
            map
        };
        for id in self.leaves.values.keys() {
            let Some(value) = self.value_of(id) else { continue };
            for taken in &self.leaves.uses[id] {
                let frequency = frequencies.of(taken.comp);
                let taker = match taken.user {
                    User::Op { inst, operand } => match (op_of[inst].expand(), self.port_at(inst)) {
                        (Some(op), _) => Taker::Op { op, operand },
                        (None, Some(port)) => Taker::Becomes(port),
                        (None, None) => continue,
                    },
                    User::Becomes(into) => match self.value_of(into) {
                        Some(into) if into != value => Taker::Becomes(into),
                        Some(_) | None => continue,
                    },
                    User::Exit(leaf) => match self.replaced.get(leaf as usize).copied().flatten() {
                        Some(param) => Taker::Replaces { leaf, param },
                        None => Taker::Exit(leaf),
                    },
                    User::Opaque(_) => Taker::Whole,
                };
                self.values[value].takers.push((taker, frequency));
            }
        }
        for value in self.values.values_mut() {
            value.is_kept |= value.takers.len() > 1;
        }
    }
}
