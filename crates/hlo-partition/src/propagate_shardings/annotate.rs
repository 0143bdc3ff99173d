//! Puts the user's annotations on the values of a module.

use super::calls::SpokenCall;
use super::claims::{Claim, ClaimReader, ClaimedDim};
use super::graph::{ShardingGraph, THROUGH};
use super::values::CutId;
use crate::error::PartitionError;
use hlo_analysis::values::hands_on;
use hlo_ir::shardy;
use hlo_ir::{Dims, InstId, Module, ShapeId};
use std::sync::Arc;

/// Whether parameters or results without an annotation may be cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Openness {
    All(bool),
    /// One for each leaf.
    Each(Vec<bool>),
}

impl Openness {
    /// `true`, `false`, or `[true,false,…]`; `None` for another text.
    pub(crate) fn parse(text: &str) -> Option<Openness> {
        let word = |word: &str| match word.trim() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        match text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(list) => list.split(',').map(word).collect::<Option<_>>().map(Openness::Each),
            None => word(text).map(Openness::All),
        }
    }

    fn is_open(&self, leaf: usize) -> bool {
        match self {
            Openness::All(is_open) => *is_open,
            Openness::Each(each) => each.get(leaf).copied().unwrap_or(true),
        }
    }
}

/// An annotation that does not hold, because another one says otherwise of the same value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostClaim {
    pub inst: InstId,
    pub leaf: u32,
    /// Whose word holds.
    pub kept: InstId,
}

/// Puts all annotations on values.
///
/// # Errors
/// One is malformed.
pub(crate) fn annotate(
    module: &Module,
    graph: &mut ShardingGraph,
    claims: &mut ClaimReader<'_>,
    open_params: &Openness,
    open_results: &Openness,
) -> Result<Vec<LostClaim>, PartitionError> {
    let mut lost = Vec::new();
    for border in graph.borders.clone() {
        if let Some(claim) = &border.claim {
            let (value, without) = if border.is_begin { (border.local, border.manual) } else { (border.whole, 0) };
            put(graph, (value, border.inst, border.place), claim, without, &mut lost);
        }
    }
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    for is_handing_on in [false, true] {
        for comp in graph.leaves.comps.clone() {
            for &inst in &module.comp(comp).insts {
                let hands_on = hands_on(module, inst, THROUGH);
                let is_end = hands_on && root == Some(inst);
                if hands_on == is_handing_on && !is_end && graph.leaves.is_live(inst) && is_annotated(module, inst) {
                    annotate_leaves(graph, claims, inst, &mut lost)?;
                }
            }
        }
    }
    close_params(module, graph, open_params);
    annotate_results(module, graph, claims, open_results)?;
    Ok(lost)
}

/// Whether anything is said of an instruction's value.
fn is_annotated(module: &Module, inst: InstId) -> bool {
    let marks = module.inst(inst).marks.as_ref();
    marks.is_some_and(|marks| marks.sharding.is_some() || !marks.frontend_attributes.is_empty())
}

fn annotate_leaves(
    graph: &mut ShardingGraph,
    claims: &mut ClaimReader<'_>,
    inst: InstId,
    lost: &mut Vec<LostClaim>,
) -> Result<(), PartitionError> {
    let leaves: Vec<Option<CutId>> = graph.of_leaves(inst).collect();
    for (leaf, value) in (0u32..).zip(leaves) {
        let Some(value) = value else { continue };
        if let Some(claim) = claims.claim(inst, leaf)? {
            put(graph, (value, inst, leaf), &claim, 0, lost);
        }
    }
    Ok(())
}

fn put(
    graph: &mut ShardingGraph,
    (value, by, leaf): (CutId, InstId, u32),
    claim: &Arc<Claim>,
    without: u64,
    lost: &mut Vec<LostClaim>,
) {
    let value = &mut graph.values[value];
    match value.claimed_by {
        None => claim.put_on(value, by, without),
        Some(kept) if kept != by && !claim.agrees_with(value) => lost.push(LostClaim { inst: by, leaf, kept }),
        Some(_) => {}
    }
}

/// A claim that a value of this rank is replicated, for good.
fn replicated(rank: usize) -> Claim {
    Claim { dims: vec![ClaimedDim::default(); rank], ..Claim::default() }
}

fn close_params(module: &Module, graph: &mut ShardingGraph, open: &Openness) {
    let mut flat = 0;
    let params = module.entry().map_or(&[][..], |entry| &module.comp(entry).params);
    for &param in params {
        let leaves: Vec<Option<CutId>> = graph.of_leaves(param).collect();
        for value in leaves {
            if let Some(value) = value.filter(|_| !open.is_open(flat)) {
                let value = &mut graph.values[value];
                if value.claimed_by.is_none() {
                    replicated(value.dims.len()).put_on(value, param, 0);
                }
            }
            flat += 1;
        }
    }
}

/// Results: what the root says of its leaves, else the sharding of the parameter that a result takes the memory of.
fn annotate_results(
    module: &Module,
    graph: &mut ShardingGraph,
    claims: &mut ClaimReader<'_>,
    open: &Openness,
) -> Result<(), PartitionError> {
    let Some(root) = module.entry().and_then(|entry| module.comp(entry).root.expand()) else { return Ok(()) };
    let leaves: Vec<Option<CutId>> = graph.of_leaves(root).collect();
    let mut donors = Donors::of(module, graph, root);
    for (leaf, value) in leaves.into_iter().enumerate() {
        let Some(value) = value else { continue };
        let is_said = SpokenCall::of(module, graph.values[value].inst) == Some(SpokenCall::Result);
        let is_stand_in = is_stand_in(module, root, leaf);
        let claim = match hands_on(module, root, THROUGH) && !is_said && !is_stand_in {
            true => claims.claim(root, leaf as u32)?,
            false => None,
        };
        let (at, is_claimed) = ((root, leaf as u32), graph.values[value].claimed_by.is_some());
        if let Some(claim) = claim {
            if !(is_claimed && claim.agrees_with(&graph.values[value])) {
                let wanted = graph.add_exit(leaf as u32, value, at);
                claim.put_on(&mut graph.values[wanted], root, 0);
            }
        } else if is_claimed {
            donors.take(module, graph, leaf);
        } else if let Some(param) = donors.take(module, graph, leaf) {
            if param != value {
                graph.add_end(leaf as u32, value, param);
            }
        } else if !open.is_open(leaf) {
            let wanted = graph.add_exit(leaf as u32, value, at);
            let value = &mut graph.values[wanted];
            replicated(value.dims.len()).put_on(value, root, 0);
        }
    }
    Ok(())
}

/// Whether a leaf of the root is `{replicated}` only because Shardy's exporter has nothing to say of it: it says what it means in calls.
fn is_stand_in(module: &Module, root: InstId, leaf: usize) -> bool {
    let is_shardy = module.header.frontend_attributes.iter().any(|(key, _)| key == shardy::MESHES);
    let said = module.sharding(root).and_then(|sharding| sharding.leaf(leaf));
    is_shardy && said.is_some_and(|said| said.kind.is_replicated())
}

/// Which parameter each result takes the memory of.
struct Donors {
    /// By leaf of the result.
    aliased: Vec<Option<CutId>>,
    /// Parameters given away without a result, with their shapes.
    free: Vec<(CutId, ShapeId)>,
    root: InstId,
}

impl Donors {
    fn of(module: &Module, graph: &ShardingGraph, root: InstId) -> Donors {
        let params = module.entry().map_or(&[][..], |entry| &module.comp(entry).params);
        let leaf_at = |inst: InstId, index: &Dims| module.shapes.leaf_number(module.inst(inst).shape, index);
        let param_leaf = |number: i64, index: &Dims| {
            let &param = params.get(usize::try_from(number).ok()?)?;
            Some((graph.of_leaf(param, leaf_at(param, index)?)?, module.inst(param).shape))
        };
        let mut aliased = vec![None; module.shape(root).n_leaves()];
        for entry in &module.header.input_output_alias {
            let to = leaf_at(root, &entry.output_index).and_then(|leaf| aliased.get_mut(leaf));
            if let (Some(slot), Some((param, _))) = (to, param_leaf(entry.param, &entry.param_index)) {
                *slot = Some(param);
            }
        }
        let donors = module.header.buffer_donor.iter();
        let free = donors.filter_map(|donor| param_leaf(donor.param, &donor.param_index)).collect();
        Donors { aliased, free, root }
    }

    /// The parameter of the same shape whose memory a result takes; the first free one, as JAX pairs them.
    fn take(&mut self, module: &Module, graph: &ShardingGraph, leaf: usize) -> Option<CutId> {
        let result = module.shapes.leaf(module.inst(self.root).shape, leaf)?.as_array()?;
        let fits = |param: CutId| {
            let value = &graph.values[param];
            let shape = module.shapes.leaf(module.inst(value.inst).shape, value.leaf as usize);
            shape.and_then(|shape| shape.as_array()).is_some_and(|a| a.dtype == result.dtype && a.dims == result.dims)
        };
        if let Some(param) = self.aliased.get(leaf).copied().flatten() {
            return Some(param).filter(|&param| fits(param));
        }
        let place = self.free.iter().position(|&(param, _)| fits(param))?;
        Some(self.free.remove(place).0)
    }
}
