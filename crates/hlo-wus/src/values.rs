//! The values of a module: array leaves as their instructions define them, with tuples looked through.
//!
//! A *value* is a leaf of an instruction that computes or receives it: an op's result, a parameter's leaf, a leaf of what
//! a loop carries. `tuple`, `get-tuple-element`, `opt-barrier` and the like only hand values on. What a loop carries is
//! ONE value: the parameter of its body and of its condition, and its result. A use says in which computation a value is taken
//! and by whom.
//!
//! Computations that are called from several places are not looked into ([`crate::copies`] makes one of each call): what goes
//! in and out of them is used and computed whole. What nothing needs is not looked at. Reducers and other scalar callees are none of this module's business.

use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::op::{CalleeEntry, FactorRule, Flow};
use hlo_ir::{CompId, InstId, Module, Opcode};
use smallvec::SmallVec;

/// A value of a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);
entity_impl!(ValueId, "value");

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An instruction computes it.
    Computed,
    /// A leaf of an entry parameter.
    EntryParam,
    /// A leaf of a parameter of a callee or branch; its sources are the call's operand.
    Param,
    /// What a loop carries; its sources are the initial value and the body's root.
    Carry,
    /// A leaf of the result of a call, fusion or conditional; its sources are the callees' roots.
    CallResult,
}

/// One value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Where it comes from.
    pub origin: Origin,
    /// The instructions that define it, with the flat leaf: one, or for a carry the loop and the parameters of body and
    /// condition.
    pub sites: SmallVec<[(InstId, u32); 1]>,
}

/// What takes a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// Operand `operand` of an instruction that computes.
    Op {
        /// The instruction.
        inst: InstId,
        /// Which operand.
        operand: u32,
    },
    /// It becomes (one source of) another value: into a loop, a callee, a branch, or out of one.
    Becomes(ValueId),
    /// It leaves the entry; the flat leaf of the entry's result.
    Exit(u32),
    /// Something that takes it as it is.
    Opaque(InstId),
}

/// One use of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The computation in which the value is taken.
    pub comp: CompId,
    /// By whom.
    pub user: User,
}

/// All values of a module.
#[derive(Clone, Debug)]
pub struct Values {
    /// The values.
    pub values: PrimaryMap<ValueId, Value>,
    /// Uses of each value, in text order of the computations visited.
    pub uses: SecondaryMap<ValueId, Vec<Use>>,
    /// What becomes a value: the sources of carries, parameters and call results.
    pub sources: SecondaryMap<ValueId, Vec<ValueId>>,
    /// The value of every leaf of every instruction looked at; none for tokens.
    leaves: SecondaryMap<InstId, Box<[PackedOption<ValueId>]>>,
    /// Computations looked into, callers first.
    pub comps: Vec<CompId>,
    looked_into: EntitySet<CompId>,
    /// The instruction whose leaves a computation's root becomes; none for the entry and for loop conditions.
    returns_to: SecondaryMap<CompId, PackedOption<InstId>>,
    /// Computations inside a fusion, where no collective can stand.
    pub fused: EntitySet<CompId>,
    live: EntitySet<InstId>,
}

/// Whether an instruction hands its operands' values on unchanged.
pub fn is_plumbing(module: &Module, inst: InstId) -> bool {
    let row = module.inst(inst).opcode.row();
    match row.flow {
        Flow::Tuple | Flow::GetTupleElement => true,
        Flow::Identity => matches!(row.factors, FactorRule::Structural(_)),
        Flow::All
        | Flow::Parameter
        | Flow::Constant
        | Flow::ReplicaId
        | Flow::PartitionId
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::AllReduce
        | Flow::ReduceScatter
        | Flow::AllGather
        | Flow::AllToAll
        | Flow::CollectiveBroadcast
        | Flow::CollectivePermute
        | Flow::AsyncStart
        | Flow::AsyncUpdate
        | Flow::AsyncDone => false,
    }
}

/// The computations that an instruction runs with its operands as arguments, and how.
fn entered(module: &Module, inst: InstId) -> Option<(CalleeEntry, SmallVec<[CompId; 2]>)> {
    Some((module.inst(inst).opcode.row().flow.entry()?, module.called(inst)))
}

impl Values {
    /// The values of everything that is reachable from the entry. Linear in the instructions and their leaves.
    pub fn find(module: &Module) -> Values {
        let mut values = Values {
            values: PrimaryMap::new(),
            uses: SecondaryMap::new(),
            sources: SecondaryMap::new(),
            leaves: SecondaryMap::with_capacity(module.n_inst_slots()),
            comps: Vec::new(),
            looked_into: EntitySet::new(),
            returns_to: SecondaryMap::new(),
            fused: EntitySet::new(),
            live: EntitySet::new(),
        };
        let Some(entry) = module.entry() else { return values };
        let mut order = module.post_order();
        order.reverse();
        let n_callers = values.find_live(module, &order);
        // A computation is looked into once its only caller was.
        let mut ready: EntitySet<CompId> = EntitySet::new();
        ready.insert(entry);
        for comp in order {
            if ready.contains(comp) {
                values.comps.push(comp);
                values.looked_into.insert(comp);
                values.look_into(module, comp, &n_callers, &mut ready);
            }
        }
        values.use_roots(module, entry);
        values
    }

    /// Finds what is live in the computations, callers first, and counts the call sites of each, those of all opcodes. Dead
    /// ones count unless a live one stands beside them: where that changes, the rewriter takes dead code away.
    fn find_live(&mut self, module: &Module, order: &[CompId]) -> SecondaryMap<CompId, u32> {
        let mut n_callers: SecondaryMap<CompId, u32> = SecondaryMap::with_capacity(module.n_comp_slots());
        let mut live_caller: SecondaryMap<CompId, PackedOption<CompId>> = SecondaryMap::new();
        let effectful = module.effectful_computations();
        for &comp in order {
            if module.entry() != Some(comp) && n_callers[comp] == 0 {
                continue;
            }
            let live = module.live_given(comp, &effectful);
            for &inst in module.comp(comp).insts.iter().filter(|&&inst| live.contains(inst)) {
                self.live.insert(inst);
                for callee in module.called(inst) {
                    n_callers[callee] += 1;
                    live_caller[callee] = Some(comp).into();
                }
            }
        }
        for &comp in module.computations() {
            for &inst in module.comp(comp).insts.iter().filter(|&&inst| !self.live.contains(inst)) {
                let elsewhere = module.called(inst).into_iter().filter(|&c| live_caller[c].expand() != Some(comp));
                elsewhere.for_each(|callee| n_callers[callee] += 1);
            }
        }
        n_callers
    }

    /// Whether a computation was looked into.
    pub fn knows(&self, comp: CompId) -> bool {
        self.looked_into.contains(comp)
    }

    /// Whether an instruction was looked at: what nothing needs is not.
    pub fn is_live(&self, inst: InstId) -> bool {
        self.live.contains(inst)
    }

    /// The instruction whose leaves a computation's root becomes.
    pub fn returns_to(&self, comp: CompId) -> Option<InstId> {
        self.returns_to[comp].expand()
    }

    /// The values of an instruction's leaves.
    pub fn leaves(&self, inst: InstId) -> &[PackedOption<ValueId>] {
        &self.leaves[inst]
    }

    /// The value of an array instruction.
    pub fn of(&self, inst: InstId) -> Option<ValueId> {
        match &*self.leaves[inst] {
            [value] => value.expand(),
            _ => None,
        }
    }

    /// The instruction that computes a value or the first that defines it.
    pub fn inst(&self, value: ValueId) -> InstId {
        self.values[value].sites[0].0
    }

    /// The array shape of a value.
    pub fn shape<'m>(&self, module: &'m Module, value: ValueId) -> Option<&'m hlo_ir::ArrayShape> {
        let (inst, leaf) = self.values[value].sites[0];
        module.shapes.leaf(module.inst(inst).shape, leaf as usize)?.as_array()
    }

    fn look_into(
        &mut self,
        module: &Module,
        comp: CompId,
        n_callers: &SecondaryMap<CompId, u32>,
        ready: &mut EntitySet<CompId>,
    ) {
        for &inst in &module.comp(comp).insts {
            if !self.live.contains(inst) {
                continue;
            }
            let instruction = module.inst(inst);
            if is_plumbing(module, inst) {
                self.leaves[inst] = self.handed_on(module, inst);
                continue;
            }
            if instruction.opcode == Opcode::Parameter {
                if self.leaves[inst].is_empty() {
                    self.define(module, inst, Origin::EntryParam);
                }
                continue;
            }
            match entered(module, inst) {
                Some((how, callees)) if !callees.is_empty() && callees.iter().all(|&c| n_callers[c] == 1) => {
                    self.enter(module, comp, inst, how, &callees);
                    for &callee in &callees {
                        ready.insert(callee);
                        let is_fused = instruction.opcode == Opcode::Fusion || self.fused.contains(comp);
                        if is_fused {
                            self.fused.insert(callee);
                        }
                    }
                }
                Some(_) => self.define_from_operands(module, comp, inst, false),
                None => self.define_from_operands(module, comp, inst, true),
            }
        }
    }

    /// The leaves of an instruction that hands its operands on.
    fn handed_on(&mut self, module: &Module, inst: InstId) -> Box<[PackedOption<ValueId>]> {
        let instruction = module.inst(inst);
        let first = instruction.operands.first().copied();
        match (instruction.opcode.row().flow, &instruction.attrs, first) {
            (Flow::GetTupleElement, hlo_ir::attrs::Attrs::TupleIndex(index), Some(tuple)) => {
                let k = usize::try_from(index.index).unwrap_or(usize::MAX);
                let range = module.shapes.element_leaves(module.inst(tuple).shape, k);
                self.leaves[tuple].get(range).unwrap_or(&[]).into()
            }
            (Flow::Tuple, ..) => instruction.operands.iter().flat_map(|&o| self.leaves[o].iter().copied()).collect(),
            (_, _, Some(operand)) => self.leaves[operand].clone(),
            (_, _, None) => Box::default(),
        }
    }

    fn add(&mut self, origin: Origin, site: (InstId, u32)) -> ValueId {
        self.values.push(Value { origin, sites: SmallVec::from_elem(site, 1) })
    }

    /// Gives every array leaf of `inst` a value of its own.
    fn define(&mut self, module: &Module, inst: InstId, origin: Origin) {
        let mut leaves = Vec::new();
        let mut arrays = Vec::new();
        module.shape(inst).for_each_leaf(&mut |_, shape| arrays.push(shape.as_array().is_some()));
        for (leaf_idx, is_array) in arrays.into_iter().enumerate() {
            leaves.push(is_array.then(|| self.add(origin, (inst, leaf_idx as u32))).into());
        }
        self.leaves[inst] = leaves.into();
    }

    fn use_leaves(&mut self, comp: CompId, leaves: &[PackedOption<ValueId>], user: impl Fn(usize) -> Option<User>) {
        for (i, value) in leaves.iter().enumerate() {
            if let (Some(value), Some(user)) = (value.expand(), user(i)) {
                self.uses[value].push(Use { comp, user });
            }
        }
    }

    /// An instruction that computes from its operands (`is_op`), or takes them as they are.
    fn define_from_operands(&mut self, module: &Module, comp: CompId, inst: InstId, is_op: bool) {
        self.define(module, inst, Origin::Computed);
        for (operand, &from) in module.inst(inst).operands.iter().enumerate() {
            let leaves = std::mem::take(&mut self.leaves[from]);
            let user = match is_op && leaves.len() == 1 {
                true => User::Op { inst, operand: operand as u32 },
                false => User::Opaque(inst),
            };
            self.use_leaves(comp, &leaves, |_| Some(user));
            self.leaves[from] = leaves;
        }
    }

    /// `from`'s leaves become `into`'s, one by one.
    fn becomes(&mut self, comp: CompId, from: &[PackedOption<ValueId>], into: &[PackedOption<ValueId>]) {
        self.use_leaves(comp, from, |i| Some(User::Becomes(into.get(i)?.expand()?)));
        for (from, into) in from.iter().zip(into) {
            if let (Some(from), Some(into)) = (from.expand(), into.expand()) {
                self.sources[into].push(from);
            }
        }
    }

    /// Binds the parameters of callees, before these are looked into.
    fn enter(&mut self, module: &Module, comp: CompId, inst: InstId, how: CalleeEntry, callees: &[CompId]) {
        let operands = &module.inst(inst).operands;
        match how {
            CalleeEntry::Loop => {
                self.define(module, inst, Origin::Carry);
                let carried = self.leaves[inst].clone();
                for &callee in callees {
                    let Some(&param) = module.comp(callee).params.first() else { continue };
                    for (leaf_idx, value) in carried.iter().enumerate() {
                        if let Some(value) = value.expand() {
                            self.values[value].sites.push((param, leaf_idx as u32));
                        }
                    }
                    self.leaves[param] = carried.clone();
                }
                let init = self.leaves[operands[0]].clone();
                self.becomes(comp, &init, &carried);
            }
            CalleeEntry::Call | CalleeEntry::Branches => {
                self.define(module, inst, Origin::CallResult);
                let mut next = 0;
                if how == CalleeEntry::Branches {
                    let selector = self.leaves[operands[0]].clone();
                    self.use_leaves(comp, &selector, |_| Some(User::Opaque(inst)));
                    next = 1;
                }
                for &callee in callees {
                    for &param in &module.comp(callee).params {
                        self.define(module, param, Origin::Param);
                        let Some(&operand) = operands.get(next) else { continue };
                        next += 1;
                        let (from, into) = (self.leaves[operand].clone(), self.leaves[param].clone());
                        self.becomes(comp, &from, &into);
                    }
                }
            }
        }
    }

    /// The roots of all computations become what their callers return.
    fn use_roots(&mut self, module: &Module, entry: CompId) {
        for comp in self.comps.clone() {
            for &inst in &module.comp(comp).insts {
                if !self.live.contains(inst) {
                    continue;
                }
                let Some((how, callees)) = entered(module, inst) else { continue };
                let returning = match how {
                    // A condition returns to nobody; `called` lists condition and body.
                    CalleeEntry::Loop => match &module.inst(inst).attrs {
                        hlo_ir::attrs::Attrs::While(attrs) => attrs.body.into_iter().collect(),
                        _ => SmallVec::new(),
                    },
                    CalleeEntry::Call | CalleeEntry::Branches => callees.clone(),
                };
                for callee in callees {
                    let Some(root) = module.comp(callee).root.expand() else { continue };
                    if !self.looked_into.contains(callee) {
                        continue;
                    }
                    let leaves = self.leaves[root].clone();
                    if returning.contains(&callee) {
                        self.returns_to[callee] = Some(inst).into();
                        let into = self.leaves[inst].clone();
                        self.becomes(callee, &leaves, &into);
                    } else {
                        self.use_leaves(callee, &leaves, |_| Some(User::Opaque(inst)));
                    }
                }
            }
        }
        if let Some(root) = module.comp(entry).root.expand() {
            let leaves = self.leaves[root].clone();
            self.use_leaves(entry, &leaves, |i| Some(User::Exit(i as u32)));
        }
    }
}
