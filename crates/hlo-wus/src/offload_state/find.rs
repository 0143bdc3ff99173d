//! Which parameters are optimizer state.

use crate::error::WusError;
use crate::pairs::{Pair, aliased, joined};
use crate::tables::IndexSet;
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::frequency::Frequencies;
use hlo_ir::cost::Costs;
use hlo_ir::memory_space::is_on_host;
use hlo_ir::op::{FactorRule, Flow};
use hlo_ir::{CompId, InstId, Module, Opcode};

/// An array of state.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) param: InstId,
    /// The parameter's number.
    pub(super) param_number: usize,
    /// Which operand of the entry's root is its next value.
    pub(super) root_operand: usize,
    pub(super) bytes: u64,
    /// What depends on it, in text order, without the root.
    pub(super) dependents: Vec<InstId>,
}

impl State {
    /// The name of the first instruction that depends on it.
    pub(super) fn first_user<'m>(&self, module: &'m Module) -> &'m str {
        self.dependents.first().map_or("", |&inst| module.inst_name(inst))
    }
}

/// State that can be moved, and parameters with a next value that stay, with the reason.
pub(super) struct Found {
    pub(super) states: Vec<State>,
    pub(super) left: Vec<(InstId, &'static str)>,
}

/// For each instruction of a computation those that need it to have run: users, and those behind it by a control dependency.
fn followers(module: &Module, comp: CompId) -> SecondaryMap<InstId, Vec<InstId>> {
    let mut all: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
    for &inst in &module.comp(comp).insts {
        module.needed(inst).for_each(|before| all[before].push(inst));
    }
    all
}

/// What depends on an instruction, without itself.
fn dependents(followers: &SecondaryMap<InstId, Vec<InstId>>, inst: InstId) -> EntitySet<InstId> {
    let (mut found, mut work) = (EntitySet::new(), vec![inst]);
    while let Some(at) = work.pop() {
        work.extend(followers[at].iter().filter(|&&follower| found.insert(follower)));
    }
    found
}

/// The state of a module.
///
/// # Errors
/// A pair names what the module does not have.
pub(super) fn find_state(
    module: &Module,
    frequencies: &Frequencies,
    said: &[Pair],
    min_bytes: u64,
) -> Result<Found, WusError> {
    let mut found = Found { states: Vec::new(), left: Vec::new() };
    let Some(entry) = module.entry() else { return Ok(found) };
    let Some(root) = module.comp(entry).root.expand() else { return Ok(found) };
    let params = entry_leaves(module);
    let operand_of_leaf = root_operands(module, root);
    let pairs = joined(aliased(module), said);
    if let Some(&pair) = pairs.iter().find(|pair| pair.0 >= params.len() || pair.1 >= operand_of_leaf.len()) {
        return Err(WusError::PairOutOfRange { n_params: params.len(), n_outputs: operand_of_leaf.len(), pair });
    }
    let (followers, products) = (followers(module, entry), Products { module, frequencies, costs: Costs::new(module) });
    let all_flops = products.of(&module.comp(entry).insts);
    let mut seen = IndexSet::default();
    for (param_leaf, output) in pairs {
        let leaf = &params[param_leaf];
        if !seen.insert((leaf.param, leaf.leaf_idx)) || is_on_host(module, leaf.param, leaf.leaf_idx) {
            continue;
        }
        let shape = module.shape(leaf.param);
        if shape.memory_bytes() < min_bytes {
            continue;
        }
        let place = module.comp(entry).params.iter().position(|&param| param == leaf.param);
        let (Some(array), Some(param_number)) = (shape.as_array().filter(|array| array.dynamic == 0), place) else {
            found.left.push((leaf.param, "it is a tuple, or its size is not fixed"));
            continue;
        };
        let Some(root_operand) = operand_of_leaf[output] else {
            found.left.push((leaf.param, "its next value is no operand of a tuple that the entry returns"));
            continue;
        };
        let next = module.inst(root).operands[root_operand];
        if !module.shape(next).as_array().is_some_and(|next| next.same_type(array)) {
            found.left.push((leaf.param, "its next value has another shape"));
            continue;
        }
        let behind = dependents(&followers, leaf.param);
        let insts = module.comp(entry).insts.iter().copied();
        let dependents: Vec<InstId> = insts.filter(|&inst| behind.contains(inst) && inst != root).collect();
        // What hands a parameter on as it is, or takes its memory for something else, is no update of it.
        if module.inst(next).opcode.row().flow == Flow::Parameter || !behind.contains(next) {
            continue;
        }
        if let Some(why) = why_no_state(&products, &dependents, next, all_flops) {
            found.left.push((leaf.param, why));
            continue;
        }
        found.states.push(State {
            param: leaf.param,
            param_number,
            root_operand,
            bytes: shape.memory_bytes(),
            dependents,
        });
    }
    Ok(found)
}

/// Why a parameter is no state of the optimizer: weights go into products, of which gradients come and their own next values.
fn why_no_state(products: &Products<'_>, dependents: &[InstId], next: InstId, all_flops: f64) -> Option<&'static str> {
    if all_flops == 0.0 {
        return Some("the step has no products, by which state of the optimizer is told from weights");
    }
    if products.of(dependents) * 2.0 >= all_flops {
        return Some("at least half of the step's products depend on it: it is no state of the optimizer alone");
    }
    // Backward from the next value, as far as the parameter is behind it.
    let depends: IndexSet<InstId> = dependents.iter().copied().collect();
    let (mut seen, mut work) = (EntitySet::new(), vec![next]);
    while let Some(at) = work.pop() {
        if products.of(&[at]) > 0.0 {
            return Some("its next value comes through products that depend on it, as that of a weight");
        }
        let operands = products.module.inst(at).operands.iter().copied();
        work.extend(operands.filter(|operand| depends.contains(operand) && seen.insert(*operand)));
    }
    None
}

/// The arithmetic of matrix products and convolutions.
struct Products<'m> {
    module: &'m Module,
    frequencies: &'m Frequencies,
    costs: Costs<'m>,
}

impl Products<'_> {
    /// The operations in these instructions of the entry and in what they call, as often as that runs.
    fn of(&self, insts: &[InstId]) -> f64 {
        let called: Vec<CompId> = insts.iter().flat_map(|&inst| self.module.called(inst)).collect();
        let below = self.module.callees_first(&called);
        let within = below.iter().map(|&comp| self.frequencies.of(comp) * self.own(&self.module.comp(comp).insts));
        self.own(insts) + within.sum::<f64>()
    }

    fn own(&self, insts: &[InstId]) -> f64 {
        let is_product = |inst: &InstId| {
            let factors = self.module.inst(*inst).opcode.row().factors;
            factors == FactorRule::Dot || factors == FactorRule::Convolution
        };
        insts.iter().filter(|inst| is_product(inst)).map(|&inst| self.costs.of(inst).flops as f64).sum()
    }
}

/// For each leaf of the result the operand of the root that it is; `None` for leaves of operands that are tuples, and where the root makes no tuple.
fn root_operands(module: &Module, root: InstId) -> Vec<Option<usize>> {
    if module.inst(root).opcode != Opcode::Tuple {
        return vec![None; module.shape(root).n_leaves()];
    }
    let operands = module.inst(root).operands.iter().enumerate();
    let leaves = operands.flat_map(|(k, &operand)| {
        let shape = module.shape(operand);
        let own = shape.as_array().map(|_| k);
        std::iter::repeat_n(own, shape.n_leaves())
    });
    leaves.collect()
}
