//! The ways to compute a region: alternatives of its e-graph, as few as say something different.

use super::find::{Candidate, candidates};
use super::rules::Regions;
use cranelift_entity::EntitySet;
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module};
use hlo_mesh::{KernelWork, Machine};
use hlo_rules::bridge::{Region, read_region, write_alternative};
use hlo_rules::region::{Aim, Limits, Rewrite, aimed_rewrites, alternatives, is_backward_form};
use hlo_rules::{Op, TermId, Terms};
use indexmap::IndexMap;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::LazyLock;

/// One way to compute a region.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub roots: Vec<TermId>,
    /// The rules by which it follows, by name.
    pub rules: Vec<String>,
}

/// A region, and the ways to compute it beside the program's own.
#[derive(Clone, Debug)]
pub(super) struct RegionWays {
    pub region: Region,
    /// Its instructions.
    pub insts: Vec<InstId>,
    /// The store of all ways.
    pub terms: Terms,
    pub ways: Vec<Way>,
}

impl RegionWays {
    /// Tells of a way that is taken.
    pub(super) fn tell(&self, module: &Module, way: &Way) -> RewrittenRegion {
        let own: Vec<TermId> = self.region.outputs.iter().map(|output| output.1).collect();
        RewrittenRegion {
            computation: module.comp_name(self.region.comp).to_string(),
            results: self.region.outputs.iter().map(|output| module.inst_name(output.0).to_string()).collect(),
            n_products: Traits::of(&self.terms, &own).products.len(),
            n_products_so: Traits::of(&self.terms, &way.roots).products.len(),
            rules: way.rules.clone(),
        }
    }
}

/// A region of which a plan takes another way than the program's own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RewrittenRegion {
    /// The computation.
    pub computation: String,
    /// What the region gives, by name.
    pub results: Vec<String>,
    /// Its matrix products and convolutions as they were.
    pub n_products: usize,
    /// Those of the way that is taken.
    pub n_products_so: usize,
    /// The rules by which it follows.
    pub rules: Vec<String>,
}

/// The most ways beside the program's own.
const MOST_WAYS: usize = 3;
/// Limits of the e-graph: each aim has some dozens of rewrites, so that a region takes well below a second.
const LIMITS: Limits =
    Limits { n_ops: 60, n_alternatives: 24, n_classes: 600, n_rounds: 12, n_priced: 20_000, joins_again: true };
/// The most regions of one kind and of all kinds.
const MOST_REGIONS: usize = 400;
/// The most kinds of regions.
const MOST_KINDS: usize = 24;

/// Regions of a program with more than one way.
pub(super) fn find_ways(module: &Module, machine: &Machine, rules: Regions) -> Vec<RegionWays> {
    let mut known: IndexMap<String, Option<(Terms, Vec<Way>)>, FixedHash> = IndexMap::default();
    let mut all = Vec::new();
    for &comp in module.computations() {
        for candidate in candidates(module, comp) {
            let Ok(region) = read_region(module, candidate.comp, &candidate.insts) else { continue };
            let key = format!("{:?} {:?} {}", candidate.aim, region.dtype, kind_of(&region));
            if known.len() >= MOST_KINDS && !known.contains_key(&key) {
                continue;
            }
            let ways = known.entry(key).or_insert_with(|| ways_of(&region, &candidate, machine, rules)).clone();
            let Some((terms, mut ways)) = ways else { continue };
            // What is computed together has to be computable together.
            if needs_own_results(module, &candidate, &region) {
                ways.retain(|way| write_alternative(&mut module.clone(), &region, &terms, &way.roots).is_ok());
            }
            if !ways.is_empty() && all.len() < MOST_REGIONS {
                all.push(RegionWays { region, insts: candidate.insts, terms, ways });
            }
        }
    }
    all
}

/// Whether a region takes a value that is computed from what it gives.
fn needs_own_results(module: &Module, candidate: &Candidate, region: &Region) -> bool {
    let mut follows: EntitySet<InstId> = EntitySet::new();
    follows.extend(region.outputs.iter().map(|output| output.0));
    for &inst in &module.comp(candidate.comp).insts {
        if !candidate.insts.contains(&inst) && module.inst(inst).operands.iter().any(|&o| follows.contains(o)) {
            follows.insert(inst);
        }
    }
    region.inputs.iter().any(|&input| follows.contains(input))
}

/// What regions agree in that have the same alternatives.
fn kind_of(region: &Region) -> String {
    let roots: Vec<TermId> = region.outputs.iter().map(|output| output.1).collect();
    let mut text = format!("{roots:?}");
    for term in region.terms.reachable(&roots) {
        let node = region.terms.node(term);
        text.push_str(&format!(" {term}={:?}{:?}{:?}", node.op, node.args, node.dims));
    }
    text
}

/// The kept rewrites of an aim, by their entry.
fn kept_rewrites(aim: Aim) -> &'static [Rewrite] {
    static ALL: LazyLock<Vec<Vec<Rewrite>>> =
        LazyLock::new(|| Aim::ALL.into_iter().map(|aim| aimed_rewrites(aim).unwrap_or_default()).collect());
    Aim::ALL.into_iter().position(|one| one == aim).map_or(&[], |k| &ALL[k])
}

fn rewrites(aim: Aim, rules: Regions) -> Cow<'static, [Rewrite]> {
    let kept = kept_rewrites(aim);
    match rules {
        Regions::AsTheyAre => Cow::Borrowed(&[]),
        Regions::ByAllRules => Cow::Borrowed(kept),
        Regions::ByForwardRules => kept.iter().filter(|rewrite| !is_backward_form(rewrite)).cloned().collect(),
    }
}

fn ways_of(region: &Region, candidate: &Candidate, machine: &Machine, rules: Regions) -> Option<(Terms, Vec<Way>)> {
    let roots: Vec<TermId> = region.outputs.iter().map(|output| output.1).collect();
    let price = |terms: &Terms, term: TermId| price(terms, term, region, machine, candidate.aim);
    let found = alternatives(&rewrites(candidate.aim, rules), &region.terms, &roots, LIMITS, &price).ok()?;
    let own = Traits::of(&found.terms, &roots);
    let mut kinds = vec![own.kind(candidate.aim)];
    let mut ways: Vec<(Traits, Way)> = Vec::new();
    for one in &found.all {
        let traits = Traits::of(&found.terms, &one.roots);
        // Zeros times what is no number are none; and as many products again say nothing that plans do not.
        if (traits.has_pad && !own.has_pad) || kinds.contains(&traits.kind(candidate.aim)) {
            continue;
        }
        kinds.push(traits.kind(candidate.aim));
        let names = one.entries.iter().map(|&entry| kept_rewrites(candidate.aim)[entry].rule.name.clone());
        let mut rules: Vec<String> = names.collect();
        rules.sort();
        rules.dedup();
        ways.push((traits, Way { roots: one.roots.clone(), rules }));
    }
    // Alternatives come the cheapest first. The one that goes furthest stays also where it is not among the cheapest.
    let furthest = (0..ways.len()).min_by_key(|&k| match candidate.aim {
        Aim::Join => ways[k].0.products.len(),
        Aim::Split => usize::MAX - ways[k].0.products.len(),
        Aim::Reorder => k,
    });
    if let Some(furthest) = furthest.filter(|&k| k >= MOST_WAYS) {
        ways.swap(furthest, MOST_WAYS - 1);
    }
    ways.truncate(MOST_WAYS);
    (!ways.is_empty()).then(|| (found.terms, ways.into_iter().map(|(_, way)| way).collect()))
}

/// What tells one way from another.
struct Traits {
    /// Of each product its arithmetic and the elements that it takes and gives, the least first.
    products: Vec<(u64, u64)>,
    has_pad: bool,
}

impl Traits {
    fn of(terms: &Terms, roots: &[TermId]) -> Traits {
        let (mut products, mut has_pad) = (Vec::new(), false);
        for term in terms.reachable(roots) {
            let node = terms.node(term);
            has_pad |= matches!(node.op, Op::Pad { .. });
            if let Some(flops) = flops(terms, term) {
                products.push((flops as u64, touched(terms, term) as u64));
            }
        }
        products.sort();
        Traits { products, has_pad }
    }

    /// Of ways that agree in this the cheapest is enough.
    fn kind(&self, aim: Aim) -> (usize, Vec<(u64, u64)>) {
        let products = match aim {
            Aim::Join | Aim::Split => Vec::new(),
            Aim::Reorder => self.products.clone(),
        };
        (self.products.len(), products)
    }
}

/// How much dearer what an aim is to get rid of counts than it is.
const UNWANTED: u64 = 1000;

/// Elements of a term.
fn n_elems(terms: &Terms, term: TermId) -> f64 {
    terms.dims(term).iter().map(|d| d.as_number().unwrap_or(1) as f64).product()
}

/// Elements that a term takes and gives.
fn touched(terms: &Terms, term: TermId) -> f64 {
    n_elems(terms, term) + terms.node(term).args.iter().map(|&arg| n_elems(terms, arg)).sum::<f64>()
}

/// The arithmetic of a product; `None` for other terms.
fn flops(terms: &Terms, term: TermId) -> Option<f64> {
    let node = terms.node(term);
    let size = |of: TermId, dim: usize| terms.dims(of)[dim].as_number().unwrap_or(1) as f64;
    let summed: f64 = match &node.op {
        Op::Dot(pairs) => pairs.contract.iter().map(|&(left, _)| size(node.args[0], usize::from(left))).product(),
        Op::Conv(_) => (1..terms.dims(node.args[1]).len()).map(|dim| size(node.args[1], dim)).product(),
        _ => return None,
    };
    Some(2.0 * n_elems(terms, term) * summed)
}

/// What a term takes on one device, in picoseconds, its operands given. The search prices what it chooses; this only says which
/// alternatives are handed to it.
fn price(terms: &Terms, term: TermId, region: &Region, machine: &Machine, aim: Aim) -> u64 {
    let node = terms.node(term);
    let elem_bytes = f64::from(region.dtype.bits()) / 8.0;
    let bytes = elem_bytes * touched(terms, term);
    let cost = |seconds: f64| (seconds * 1e12) as u64;
    let gives_product =
        |t: TermId| terms.reachable(&[t]).iter().any(|&below| matches!(terms.node(below).op, Op::Dot(_) | Op::Conv(_)));
    let moved = cost(machine.memory_s(bytes));
    match &node.op {
        Op::Input(_) => 0,
        Op::Dot(_) | Op::Conv(_) => {
            let arithmetic_s = machine.matrix_s(flops(terms, term).unwrap_or(0.0), region.dtype, false);
            cost(machine.kernel_s(KernelWork { bytes, arithmetic_s }))
        }
        Op::Concat { .. } | Op::Stack { .. } if aim == Aim::Split => moved.saturating_mul(UNWANTED),
        Op::Slice { .. } | Op::Pick { .. } if aim == Aim::Split && gives_product(term) => {
            moved.saturating_mul(UNWANTED)
        }
        _ => moved,
    }
}
