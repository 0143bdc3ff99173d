//! From a module to values and ties.
//!
//! A value is a leaf of [`Values`], with two more kinds of equals: what a call with one caller takes and gives, and the members of a
//! group of the user's. What a loop carries, and what several callers or branches give, is a value tied by edges to
//! what it comes from. A result of the entry of which the user says something is a value of its own as well.

use super::calls::{SpokenCall, allowed_direction, group_id};
use super::claims::{Claim, ClaimReader};
use super::counted_rows::find_counted_rows;
use super::rules::{find_rule, kind_of};
use super::ties::{Tie, TieId, TieKind, TieRule, TieTensor};
use super::values::{AtomSet, CutDim, CutId, CutValue, bits};
use crate::error::PartitionError;
use crate::sharding::{Atom, AtomList};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use hlo_analysis::values::{Origin, SharedCallees, Through, ValueId, Values, hands_on, params_of_operands};
use hlo_ir::op::FactorRule;
use hlo_ir::{InstId, Module};
use hlo_spmd::is_rebuilt;
use indexmap::IndexMap;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// What only hands values on.
pub(crate) const THROUGH: Through = Through { markers: true, copies: false, async_halves: true };

/// An end of the entry's result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// The flat leaf of the result.
    pub leaf: u32,
    /// What the entry's root hands on there.
    pub value: CutId,
    /// How the result is to be cut.
    pub wanted: CutId,
}

/// A use where a value becomes another one, whose sharding it must have by then.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    /// The instruction whose operand it is; `None` for the root of a computation.
    pub user: Option<(InstId, u32)>,
    /// What the operand or root is.
    pub given: InstId,
    /// For each leaf the value that it becomes.
    pub wanted: Vec<Option<CutId>>,
}

/// One value at an end of a manual region.
#[derive(Clone, Debug)]
pub(crate) struct Border {
    pub inst: InstId,
    /// The place of the value among the operands or the leaves of the result.
    pub place: u32,
    pub is_begin: bool,
    pub whole: CutId,
    pub local: CutId,
    /// The atoms along which the region is manual.
    pub manual: AtomSet,
    /// The manual atoms that cut each dim of the whole value.
    pub prefix: Arc<[AtomList]>,
    /// What the region says of the value.
    pub claim: Option<Arc<Claim>>,
}

/// All values and ties of a module.
pub(crate) struct ShardingGraph {
    pub leaves: Values,
    pub values: PrimaryMap<CutId, CutValue>,
    pub ties: PrimaryMap<TieId, Tie>,
    of: SecondaryMap<ValueId, PackedOption<CutId>>,
    pub exits: Vec<Exit>,
    pub borders: Vec<Border>,
    /// How often each value is used.
    n_uses: SecondaryMap<CutId, u32>,
}

impl ShardingGraph {
    /// Reads a module, without its manual regions and the user's annotations.
    ///
    /// # Errors
    /// An annotation is malformed.
    pub(crate) fn build(module: &Module, claims: &mut ClaimReader<'_>) -> Result<ShardingGraph, PartitionError> {
        let leaves = Values::find(module, THROUGH, SharedCallees::Entered);
        let mut same = Same::new();
        same.join_calls(&leaves);
        let alike = same.join_groups(module, &leaves, claims)?;
        let mut graph = ShardingGraph {
            leaves,
            values: PrimaryMap::new(),
            ties: PrimaryMap::new(),
            of: SecondaryMap::new(),
            exits: Vec::new(),
            borders: Vec::new(),
            n_uses: SecondaryMap::new(),
        };
        graph.add_values(module, &mut same);
        graph.count_uses(module);
        graph.add_ties(module);
        for (one, other) in alike {
            let pair = [one, other].map(|id| graph.value_of(id));
            if let ([Some(one), Some(other)], (inst, _)) = (pair, graph.leaves.values[other].sites[0]) {
                graph.add_tensors(inst, TieKind::Elementwise, &[one, other], 1);
            }
        }
        Ok(graph)
    }

    fn add_values(&mut self, module: &Module, same: &mut Same) {
        let ids: Vec<ValueId> = self.leaves.values.keys().collect();
        for &id in &ids {
            if same.root(id) == id {
                let (inst, leaf) = self.leaves.values[id].sites[0];
                let cut = new_value(module, inst, leaf);
                self.of[id] = Some(self.values.push(cut)).into();
            }
        }
        for id in ids {
            self.of[id] = self.of[same.root(id)];
        }
    }

    /// The value of a leaf.
    pub(crate) fn value_of(&self, id: ValueId) -> Option<CutId> {
        self.of[id].expand()
    }

    /// The values of an instruction's leaves; none for tokens and for what was not looked at.
    pub(crate) fn of_leaves(&self, inst: InstId) -> impl Iterator<Item = Option<CutId>> + '_ {
        self.leaves.leaves(inst).iter().map(|leaf| leaf.expand().and_then(|id| self.value_of(id)))
    }

    /// The value of an instruction's leaf.
    pub(crate) fn of_leaf(&self, inst: InstId, leaf: usize) -> Option<CutId> {
        self.value_of(self.leaves.leaves(inst).get(leaf)?.expand()?)
    }

    /// A value for an end of the entry's result, like `value` in shape.
    pub(crate) fn add_exit(&mut self, leaf: u32, value: CutId, (inst, at): (InstId, u32)) -> CutId {
        let model = &self.values[value];
        let dims = model.dims.iter().map(|dim| CutDim { size: dim.size, ..CutDim::default() }).collect();
        let wanted = self.values.push(CutValue {
            inst,
            leaf: at,
            dims,
            waiting: Vec::new(),
            used: 0,
            taken: model.manual,
            partial: 0,
            claimed_by: None,
            ..*model
        });
        self.add_end(leaf, value, wanted);
        wanted
    }

    /// Ties what the root hands on to the value that it is to leave as.
    pub(crate) fn add_end(&mut self, leaf: u32, value: CutId, wanted: CutId) {
        self.exits.push(Exit { leaf, value, wanted });
        let inst = self.values[wanted].inst;
        if !self.values[wanted].dims.is_empty() {
            self.add_tensors(inst, TieKind::Exit, &[value, wanted], 1);
        }
    }

    fn count_uses(&mut self, module: &Module) {
        for comp in self.leaves.comps.clone() {
            for &inst in module.comp(comp).insts.iter().filter(|&&inst| self.leaves.is_live(inst)) {
                if hands_on(module, inst, THROUGH) {
                    continue;
                }
                for &operand in &module.inst(inst).operands {
                    let used: SmallVec<[CutId; 4]> = self.of_leaves(operand).flatten().collect();
                    used.into_iter().for_each(|value| self.n_uses[value] += 1);
                }
            }
        }
        let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
        let left: Vec<CutId> = root.into_iter().flat_map(|root| self.of_leaves(root).flatten()).collect();
        left.into_iter().for_each(|value| self.n_uses[value] += 1);
    }

    fn add_ties(&mut self, module: &Module) {
        for comp in self.leaves.comps.clone() {
            for &inst in &module.comp(comp).insts {
                if self.leaves.is_live(inst) && !hands_on(module, inst, THROUGH) {
                    self.add_tie(module, inst);
                }
            }
        }
    }

    /// Ties rows that the indices of gathers and scatters count.
    pub(super) fn add_counted_rows(&mut self, module: &Module) {
        for comp in self.leaves.comps.clone() {
            for &inst in &module.comp(comp).insts {
                if self.leaves.is_live(inst) {
                    self.add_ruled(module, inst, TieKind::CountedRows, find_counted_rows(module, inst));
                }
            }
        }
    }

    /// Ties the operands and results of an instruction, or what it carries to where that comes from.
    fn add_tie(&mut self, module: &Module, inst: InstId) {
        match SpokenCall::of(module, inst) {
            Some(SpokenCall::Begin | SpokenCall::End | SpokenCall::Group) => return,
            Some(SpokenCall::Barrier) => {
                return self.add_identity(module, inst, TieKind::Barrier(allowed_direction(module, inst)));
            }
            Some(SpokenCall::Result) => return self.add_identity(module, inst, TieKind::Exit),
            Some(SpokenCall::Annotation) => return self.add_identity(module, inst, TieKind::Elementwise),
            None => {}
        }
        self.add_sources(inst);
        let rule = module.inst(inst).opcode.row().factors;
        if rule == FactorRule::Elementwise {
            self.add_elementwise(module, inst);
        } else {
            self.add_ruled(module, inst, kind_of(rule), find_rule(module, inst));
        }
    }

    /// Ties a value that comes from several places to these.
    fn add_sources(&mut self, inst: InstId) {
        let own: SmallVec<[ValueId; 4]> = self.leaves.leaves(inst).iter().filter_map(|leaf| leaf.expand()).collect();
        for id in own {
            let (first, _) = self.leaves.values[id].sites[0];
            let (Some(value), Origin::Carry | Origin::Param | Origin::CallResult) =
                (self.value_of(id), self.leaves.values[id].origin)
            else {
                continue;
            };
            if first != inst {
                continue;
            }
            let from = self.leaves.sources[id].iter().filter_map(|&source| self.value_of(source));
            let from: SmallVec<[CutId; 4]> = from.filter(|&source| source != value).collect();
            if !from.is_empty() {
                self.add_edge(inst, &from, value);
            }
        }
    }

    fn add_edge(&mut self, inst: InstId, from: &[CutId], to: CutId) {
        if self.values[to].dims.is_empty() {
            return;
        }
        let tensors = from.iter().chain([&to]).map(|&value| TieTensor { value, prefix: None }).collect();
        let n_operands = from.len() as u32;
        self.ties.push(Tie { inst, kind: TieKind::Edge, n_operands, tensors, rule: None, is_sole_use: true });
    }

    fn add_identity(&mut self, module: &Module, inst: InstId, kind: TieKind) {
        let operand = module.inst(inst).operands.first().and_then(|&operand| self.of_leaf(operand, 0));
        let (Some(from), Some(to)) = (operand, self.of_leaf(inst, 0)) else { return };
        self.add_tensors(inst, kind, &[from, to], 1);
    }

    fn add_elementwise(&mut self, module: &Module, inst: InstId) {
        let Some(result) = self.of_leaf(inst, 0) else { return };
        let rank = self.values[result].dims.len();
        let operands = module.inst(inst).operands.iter().filter_map(|&operand| self.of_leaf(operand, 0));
        let mut all: SmallVec<[CutId; 4]> =
            operands.filter(|&value| rank > 0 && self.values[value].dims.len() == rank).collect();
        let n_operands = all.len();
        all.push(result);
        if n_operands > 0 {
            self.add_tensors(inst, TieKind::Elementwise, &all, n_operands);
        }
    }

    fn add_tensors(&mut self, inst: InstId, kind: TieKind, all: &[CutId], n_operands: usize) {
        let is_sole_use = all.iter().take(n_operands).all(|&value| self.n_uses[value] <= 1);
        let tensors = all.iter().map(|&value| TieTensor { value, prefix: None }).collect();
        let n_operands = n_operands as u32;
        self.ties.push(Tie { inst, kind, n_operands, tensors, rule: None, is_sole_use });
    }

    /// Ties by the op's factors; tensors without shared factors are left out of the tie with their dims.
    fn add_ruled(&mut self, module: &Module, inst: InstId, kind: TieKind, rule: Option<TieRule>) {
        let Some(rule) = rule else { return };
        let operands = module.inst(inst).operands.iter().map(|&operand| self.of_leaf(operand, 0));
        let all: SmallVec<[Option<CutId>; 4]> = operands.chain(self.of_leaves(inst)).collect();
        let n_operands = module.inst(inst).operands.len();
        let is_fitting = all.len() == rule.tensors.len()
            && all.iter().zip(&rule.tensors).all(|(value, dims)| match value {
                Some(value) => self.values[*value].dims.len() == dims.len(),
                None => dims.is_empty(),
            });
        if !is_fitting {
            return;
        }
        let (mut tensors, mut dims, mut n_kept) = (SmallVec::new(), Vec::new(), 0);
        for (k, (value, of_dims)) in all.iter().zip(rule.tensors).enumerate() {
            if let Some(value) = value.filter(|_| !of_dims.is_empty()) {
                tensors.push(TieTensor { value, prefix: None });
                dims.push(of_dims);
                n_kept += u32::from(k < n_operands);
            }
        }
        let rule = TieRule { factors: rule.factors, tensors: dims };
        let is_sole_use = tensors.iter().take(n_kept as usize).all(|t: &TieTensor| self.n_uses[t.value] <= 1);
        self.ties.push(Tie { inst, kind, n_operands: n_kept, tensors, rule: Some(rule.into()), is_sole_use });
    }

    /// Ties whole values to the local ones of manual regions.
    pub(crate) fn add_borders(&mut self, borders: Vec<Border>) {
        borders.iter().for_each(|border| self.add_border(border));
        self.borders = borders;
    }

    fn add_border(&mut self, border: &Border) {
        let whole = TieTensor { value: border.whole, prefix: None };
        let local = TieTensor { value: border.local, prefix: Some(border.prefix.clone()) };
        let tensors = if border.is_begin { smallvec![whole, local] } else { smallvec![local, whole] };
        let tie = Tie { inst: border.inst, kind: TieKind::Edge, n_operands: 1, tensors, rule: None, is_sole_use: true };
        self.ties.push(tie);
    }

    /// Takes atoms that do not divide a dim away from parameters of which the user says nothing: who calls the program gives even tiles.
    pub(crate) fn even_out_params(&mut self, module: &Module, atom_sizes: &[i64]) {
        let params = module.entry().map_or(&[][..], |entry| &module.comp(entry).params);
        let of_params: Vec<CutId> = params.iter().flat_map(|&param| self.of_leaves(param).flatten()).collect();
        for value in of_params {
            let value = &mut self.values[value];
            if value.claimed_by.is_some() {
                continue;
            }
            for dim in &mut value.dims {
                let size = |atom: &Atom| atom_sizes.get(usize::from(atom.0)).copied().unwrap_or(1);
                let mut n_tiles = 1;
                let divides = |atom: &&Atom| {
                    n_tiles *= size(atom);
                    dim.size % n_tiles == 0
                };
                let n_kept = dim.atoms.iter().take_while(divides).count();
                dim.atoms.truncate(n_kept);
            }
            value.used = bits(value.dims.iter().flat_map(|dim| &dim.atoms));
        }
    }

    /// Takes atoms of manual axes away from what regions give, but for those by which their tiles are joined: nothing else could cut it
    /// there. Who wants it cut so cuts it afterwards.
    pub(crate) fn even_out_ends(&mut self) {
        for border in self.borders.iter().filter(|border| !border.is_begin) {
            let value = &mut self.values[border.whole];
            for (dim, joined) in value.dims.iter_mut().zip(&*border.prefix) {
                let is_kept = |(place, atom): &(usize, &Atom)| {
                    joined.get(*place) == Some(*atom) || border.manual & bits([*atom]) == 0
                };
                let n_kept = dim.atoms.iter().enumerate().take_while(is_kept).count();
                dim.atoms.truncate(n_kept);
            }
            value.used = bits(value.dims.iter().flat_map(|dim| &dim.atoms));
        }
    }

    /// The uses where values become others: what calls, loops and conditionals take, and what computations return.
    pub(crate) fn entrances(&self, module: &Module) -> Vec<Entrance> {
        let mut out = Vec::new();
        for &comp in &self.leaves.comps {
            for &inst in module.comp(comp).insts.iter().filter(|&&inst| self.leaves.is_live(inst)) {
                let params = params_of_operands(module, inst);
                for (k, (&given, param)) in module.inst(inst).operands.iter().zip(params).enumerate() {
                    let Some(param) = param else { continue };
                    if self.leaves.leaves(param).is_empty() {
                        continue;
                    }
                    let wanted = self.of_leaves(param).collect();
                    out.push(Entrance { user: Some((inst, k as u32)), given, wanted });
                }
            }
            let (Some(given), Some(&to)) = (module.comp(comp).root.expand(), self.leaves.returns_to(comp).first())
            else {
                continue;
            };
            out.push(Entrance { user: None, given, wanted: self.of_leaves(to).collect() });
        }
        out
    }
}

fn new_value(module: &Module, inst: InstId, leaf: u32) -> CutValue {
    let shape = module.shapes.leaf(module.inst(inst).shape, leaf as usize).and_then(|shape| shape.as_array());
    let dims = shape.map_or(&[][..], |array| &array.dims);
    // What is computed from nothing is computed where it is needed.
    let elem_bytes = shape.map_or(0, |array| i64::from(array.dtype.bits().div_ceil(8)));
    CutValue {
        inst,
        leaf,
        dims: dims.iter().map(|&size| CutDim { size, ..CutDim::default() }).collect(),
        n_elems: dims.iter().fold(1i64, |n, &dim| n.saturating_mul(dim)),
        elem_bytes: if is_rebuilt(module, inst) { 0 } else { elem_bytes },
        waiting: Vec::new(),
        used: 0,
        taken: 0,
        partial: 0,
        manual: 0,
        claimed_by: None,
        is_given: is_given(module, inst),
    }
}

/// Whether GSPMD lets nothing but operands say how a value is cut: what transforms and solves give, and ends of manual regions.
fn is_given(module: &Module, inst: InstId) -> bool {
    let is_border = match SpokenCall::of(module, inst) {
        Some(SpokenCall::Begin | SpokenCall::End) => true,
        Some(SpokenCall::Annotation | SpokenCall::Result | SpokenCall::Barrier | SpokenCall::Group) | None => false,
    };
    is_border || kind_of(module.inst(inst).opcode.row().factors) == TieKind::Transform
}

/// Which leaves are one value: a forest over them.
struct Same {
    above: SecondaryMap<ValueId, PackedOption<ValueId>>,
}

impl Same {
    fn new() -> Same {
        Same { above: SecondaryMap::new() }
    }

    fn root(&mut self, id: ValueId) -> ValueId {
        let mut top = id;
        while let Some(above) = self.above[top].expand() {
            top = above;
        }
        let mut at = id;
        while let Some(above) = self.above[at].expand() {
            self.above[at] = Some(top).into();
            at = above;
        }
        top
    }

    fn join(&mut self, id: ValueId, into: ValueId) {
        let (id, into) = (self.root(id), self.root(into));
        if id != into {
            self.above[id] = Some(into).into();
        }
    }

    /// What has one source is that source.
    fn join_calls(&mut self, leaves: &Values) {
        for (id, value) in &leaves.values {
            match (value.origin, leaves.sources[id].as_slice()) {
                (Origin::Param | Origin::CallResult, &[source]) => self.join(id, source),
                (Origin::Param | Origin::CallResult | Origin::Carry | Origin::EntryParam | Origin::Computed, _) => {}
            }
        }
    }

    /// Joins the members of a group of the user's that end equal; gives pairs of members that may differ.
    fn join_groups(
        &mut self,
        module: &Module,
        leaves: &Values,
        claims: &mut ClaimReader<'_>,
    ) -> Result<Vec<(ValueId, ValueId)>, PartitionError> {
        let (mut first, mut alike): (IndexMap<SaidGroup, ValueId>, Vec<(ValueId, ValueId)>) = Default::default();
        let dims = |id: ValueId| leaves.shape(module, id).map(|array| array.dims.clone());
        for &inst in leaves.comps.iter().flat_map(|&comp| &module.comp(comp).insts) {
            let mut said: Vec<(SaidGroup, ValueId)> = Vec::new();
            if SpokenCall::of(module, inst) == Some(SpokenCall::Group) {
                let member = module.inst(inst).operands.first().and_then(|&operand| leaves.of(operand));
                said.extend(group_id(module, inst).map(SaidGroup::Shardy).zip(member));
            }
            if module.sharding(inst).is_some() {
                for (leaf, id) in leaves.leaves(inst).iter().enumerate() {
                    let group = claims.claim(inst, leaf as u32)?.and_then(|claim| claim.group);
                    let group = group.map(|g| if g.is_as { SaidGroup::As(g.id) } else { SaidGroup::Like(g.id) });
                    said.extend(group.zip(id.expand()));
                }
            }
            for (group, member) in said {
                let one = *first.entry(group).or_insert(member);
                if one == member || dims(one) != dims(member) {
                    continue;
                }
                match group {
                    SaidGroup::Like(_) => alike.push((one, member)),
                    SaidGroup::Shardy(_) | SaidGroup::As(_) => self.join(member, one),
                }
            }
        }
        Ok(alike)
    }
}

/// A group of values by its number, as an annotation says it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SaidGroup {
    /// A call of Shardy's: members end equal.
    Shardy(i64),
    /// `shard_as`: members end equal.
    As(i64),
    /// `shard_like`: members get each other's shardings where nothing speaks against it.
    Like(i64),
}
