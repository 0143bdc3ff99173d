//! The graph of a module's values: what each leaf is, what it becomes and who takes it.
//!
//! A *value* is a leaf of an instruction that computes or receives it: an op's result, a parameter's leaf, a leaf of what
//! a loop carries. What only hands leaves on ([`Through`]) adds no value. What a loop carries is ONE value: the parameter of
//! its body and of its condition, and its result. A use says in which computation a value is taken and by whom.
//!
//! A computation with several callers is either entered or opaque ([`SharedCallees`]). Entered, a leaf of its parameters has
//! a source at each call site, and a leaf of its root becomes a result at each; a loop's body or condition then has
//! values of its own, which the carried ones become. Opaque, the call takes and computes whole values.
//!
//! What nothing needs is not looked at, and neither is what is called with other arguments than operands (reducers,
//! asynchronous computations). Linear in the instructions and their leaves.

use super::calls::{CallSite, CallSites, arguments, entered};
use super::enterable::{SharedCallees, find_enterable, find_live};
use super::source::{LeafRun, Through, handed_on, hands_on};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::op::{CalleeEntry, LeafRule};
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
    /// A leaf of a parameter of a callee or branch; its sources are the operands of the calls.
    Param,
    /// What a loop carries; its sources are the initial value and the body's root.
    Carry,
    /// A leaf of the result of a call, fusion or conditional; its sources are the callees' roots.
    CallResult,
}

/// One value.
#[derive(Clone, Debug)]
pub struct LeafValue {
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
    pub values: PrimaryMap<ValueId, LeafValue>,
    /// Uses of each value, in text order of the computations visited.
    pub uses: SecondaryMap<ValueId, Vec<Use>>,
    /// What becomes a value: the sources of carries, parameters and call results.
    pub sources: SecondaryMap<ValueId, Vec<ValueId>>,
    /// The value of every leaf of every instruction looked at; none for tokens.
    leaves: SecondaryMap<InstId, Box<[PackedOption<ValueId>]>>,
    /// Computations looked into, callers first.
    pub comps: Vec<CompId>,
    looked_into: EntitySet<CompId>,
    /// The instructions whose leaves a computation's root becomes; none for the entry and for loop conditions.
    returns_to: SecondaryMap<CompId, SmallVec<[InstId; 1]>>,
    /// Computations inside a fusion, where no collective can stand.
    pub fused: EntitySet<CompId>,
    live: EntitySet<InstId>,
}

impl Values {
    /// The values of everything that is reachable from the entry. What `through` names hands values on.
    pub fn find(module: &Module, through: Through, shared: SharedCallees) -> Values {
        let mut order = module.post_order();
        order.reverse();
        let live = find_live(module, &order);
        let insts = order.iter().flat_map(|&comp| &module.comp(comp).insts);
        let sites = CallSites::of_insts(module, insts.copied().filter(|&inst| live.contains(inst)));
        let enterable = find_enterable(module, &order, &sites, &live, shared);
        let values = Values {
            values: PrimaryMap::new(),
            uses: SecondaryMap::new(),
            sources: SecondaryMap::new(),
            leaves: SecondaryMap::with_capacity(module.n_inst_slots()),
            comps: Vec::new(),
            looked_into: EntitySet::new(),
            returns_to: SecondaryMap::new(),
            fused: EntitySet::new(),
            live,
        };
        let Some(entry) = module.entry() else { return values };
        let mut finder = Finder { module, through, sites, enterable, ready: EntitySet::new(), values };
        // A computation is looked into once all its callers were.
        finder.ready.insert(entry);
        for comp in order {
            if finder.ready.contains(comp) {
                finder.values.comps.push(comp);
                finder.values.looked_into.insert(comp);
                finder.look_into(comp);
            }
        }
        finder.use_roots(entry);
        finder.values
    }

    /// Whether a computation was looked into.
    #[inline]
    pub fn knows(&self, comp: CompId) -> bool {
        self.looked_into.contains(comp)
    }

    /// Whether an instruction was looked at: what nothing needs is not.
    #[inline]
    pub fn is_live(&self, inst: InstId) -> bool {
        self.live.contains(inst)
    }

    /// The instructions whose leaves a computation's root becomes: one, or several of a shared callee that is entered.
    pub fn returns_to(&self, comp: CompId) -> &[InstId] {
        &self.returns_to[comp]
    }

    /// The values of an instruction's leaves.
    #[inline]
    pub fn leaves(&self, inst: InstId) -> &[PackedOption<ValueId>] {
        &self.leaves[inst]
    }

    /// The value of an array instruction.
    #[inline]
    pub fn of(&self, inst: InstId) -> Option<ValueId> {
        match &*self.leaves[inst] {
            [value] => value.expand(),
            _ => None,
        }
    }

    /// The instruction that computes a value or the first that defines it.
    #[inline]
    pub fn inst(&self, value: ValueId) -> InstId {
        self.values[value].sites[0].0
    }

    /// The array shape of a value.
    #[inline]
    pub fn shape<'m>(&self, module: &'m Module, value: ValueId) -> Option<&'m hlo_ir::ArrayShape> {
        let (inst, leaf) = self.values[value].sites[0];
        module.shapes.leaf(module.inst(inst).shape, leaf as usize)?.as_array()
    }
}

struct Finder<'m> {
    module: &'m Module,
    through: Through,
    /// Call sites that are live.
    sites: CallSites,
    enterable: EntitySet<CompId>,
    /// Computations of which a caller was looked into.
    ready: EntitySet<CompId>,
    values: Values,
}

impl Finder<'_> {
    fn look_into(&mut self, comp: CompId) {
        let module = self.module;
        for &inst in &module.comp(comp).insts {
            if !self.values.live.contains(inst) {
                continue;
            }
            if hands_on(module, inst, self.through) {
                self.values.leaves[inst] = self.handed_on(inst);
                continue;
            }
            match module.inst(inst).opcode.row().flow.leaf_rule() {
                LeafRule::Argument => {
                    if self.values.leaves[inst].is_empty() {
                        self.define(inst, Origin::EntryParam);
                    }
                }
                LeafRule::Callees(_) => match entered(module, inst) {
                    Some((how, callees)) if callees.iter().all(|&callee| self.enterable.contains(callee)) => {
                        self.enter(comp, inst, how, &callees);
                    }
                    Some(_) | None => self.define_from_operands(comp, inst, false),
                },
                LeafRule::Computed
                | LeafRule::Operands
                | LeafRule::Element
                | LeafRule::FirstOperand
                | LeafRule::AsyncStart
                | LeafRule::AsyncUpdate
                | LeafRule::AsyncDone => self.define_from_operands(comp, inst, true),
            }
        }
    }

    /// The leaves of an instruction that only hands leaves on.
    fn handed_on(&self, inst: InstId) -> Box<[PackedOption<ValueId>]> {
        let runs = handed_on(self.module, inst, self.through);
        let of_run = |run: &LeafRun| self.values.leaves[run.operand].get(run.in_operand()).unwrap_or_default();
        runs.iter().flat_map(of_run).copied().collect()
    }

    fn add(&mut self, origin: Origin, site: (InstId, u32)) -> ValueId {
        self.values.values.push(LeafValue { origin, sites: SmallVec::from_elem(site, 1) })
    }

    /// Gives every array leaf of `inst` a value of its own, except those that are handed on.
    fn define(&mut self, inst: InstId, origin: Origin) {
        let mut is_array = Vec::new();
        self.module.shape(inst).for_each_leaf(&mut |_, shape| is_array.push(shape.as_array().is_some()));
        let mut leaves: Vec<PackedOption<ValueId>> = vec![None.into(); is_array.len()];
        for run in handed_on(self.module, inst, self.through) {
            for (result, operand) in run.in_result().zip(run.in_operand()) {
                let known = self.values.leaves[run.operand].get(operand);
                if let (Some(leaf), Some(&known)) = (leaves.get_mut(result), known) {
                    *leaf = known;
                }
            }
        }
        for (leaf_idx, is_array) in is_array.into_iter().enumerate() {
            if is_array && leaves[leaf_idx].is_none() {
                leaves[leaf_idx] = Some(self.add(origin, (inst, leaf_idx as u32))).into();
            }
        }
        self.values.leaves[inst] = leaves.into();
    }

    fn use_leaves(&mut self, comp: CompId, leaves: &[PackedOption<ValueId>], user: impl Fn(usize) -> Option<User>) {
        for (i, value) in leaves.iter().enumerate() {
            if let (Some(value), Some(user)) = (value.expand(), user(i)) {
                self.values.uses[value].push(Use { comp, user });
            }
        }
    }

    /// An instruction that computes from its operands (`is_op`), or takes them as they are.
    fn define_from_operands(&mut self, comp: CompId, inst: InstId, is_op: bool) {
        self.define(inst, Origin::Computed);
        for (operand, &from) in self.module.inst(inst).operands.iter().enumerate() {
            let leaves = std::mem::take(&mut self.values.leaves[from]);
            let user = match is_op && leaves.len() == 1 {
                true => User::Op { inst, operand: operand as u32 },
                false => User::Opaque(inst),
            };
            self.use_leaves(comp, &leaves, |_| Some(user));
            self.values.leaves[from] = leaves;
        }
    }

    /// `from`'s leaves become `into`'s, one by one.
    fn becomes(&mut self, comp: CompId, from: InstId, into: InstId) {
        let (from, into) = (self.values.leaves[from].clone(), self.values.leaves[into].clone());
        self.use_leaves(comp, &from, |i| Some(User::Becomes(into.get(i)?.expand()?)));
        for (from, into) in from.iter().zip(&into) {
            if let (Some(from), Some(into)) = (from.expand(), into.expand()) {
                self.values.sources[into].push(from);
            }
        }
    }

    /// Binds the parameters of callees, before these are looked into.
    fn enter(&mut self, comp: CompId, inst: InstId, how: CalleeEntry, callees: &[CompId]) {
        let operands = &self.module.inst(inst).operands;
        match how {
            CalleeEntry::Loop => {
                self.define(inst, Origin::Carry);
                callees.iter().for_each(|&callee| self.carry_into(comp, inst, callee));
                self.becomes(comp, operands[0], inst);
            }
            CalleeEntry::Call | CalleeEntry::Branches => {
                self.define(inst, Origin::CallResult);
                if how == CalleeEntry::Branches {
                    let selector = self.values.leaves[operands[0]].clone();
                    self.use_leaves(comp, &selector, |_| Some(User::Opaque(inst)));
                }
                for (slot, &callee) in (0..).zip(callees) {
                    for (param, operand) in arguments(self.module, CallSite { inst, slot }, callee) {
                        self.bind(comp, operand, param);
                    }
                }
            }
        }
        let is_fused = self.module.inst(inst).opcode == Opcode::Fusion || self.values.fused.contains(comp);
        for &callee in callees {
            self.ready.insert(callee);
            if is_fused {
                self.values.fused.insert(callee);
            }
        }
    }

    /// What a loop carries is the parameter of its body and condition, or becomes it where other loops run that too.
    fn carry_into(&mut self, comp: CompId, inst: InstId, callee: CompId) {
        let Some(&param) = self.module.comp(callee).params.first() else { return };
        if self.sites.of(callee).len() > 1 {
            return self.bind(comp, inst, param);
        }
        let carried = self.values.leaves[inst].clone();
        for (leaf_idx, value) in carried.iter().enumerate() {
            if let Some(value) = value.expand() {
                self.values.values[value].sites.push((param, leaf_idx as u32));
            }
        }
        self.values.leaves[param] = carried;
    }

    /// `from`'s leaves become those of the parameter of a callee.
    fn bind(&mut self, comp: CompId, from: InstId, param: InstId) {
        if self.values.leaves[param].is_empty() {
            self.define(param, Origin::Param);
        }
        self.becomes(comp, from, param);
    }

    /// The roots of all computations become what their callers return.
    fn use_roots(&mut self, entry: CompId) {
        let module = self.module;
        for comp in self.values.comps.clone() {
            for &inst in &module.comp(comp).insts {
                if !self.values.live.contains(inst) {
                    continue;
                }
                let Some((how, callees)) = entered(module, inst) else { continue };
                for (slot, &callee) in callees.iter().enumerate() {
                    if self.values.looked_into.contains(callee) {
                        self.use_root(inst, callee, how.returns(slot));
                    }
                }
            }
        }
        if let Some(root) = module.comp(entry).root.expand() {
            let leaves = self.values.leaves[root].clone();
            self.use_leaves(entry, &leaves, |i| Some(User::Exit(i as u32)));
        }
    }

    fn use_root(&mut self, inst: InstId, callee: CompId, returns: bool) {
        let Some(root) = self.module.comp(callee).root.expand() else { return };
        if !returns {
            let leaves = self.values.leaves[root].clone();
            return self.use_leaves(callee, &leaves, |_| Some(User::Opaque(inst)));
        }
        // Two branches of a conditional may be one computation.
        if self.values.returns_to[callee].last() != Some(&inst) {
            self.values.returns_to[callee].push(inst);
            self.becomes(callee, root, inst);
        }
    }
}
