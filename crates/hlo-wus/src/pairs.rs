//! Which output of the entry is the next value of which parameter: state that a training loop outside of the module feeds back.
//!
//! The aliases of the header say so. Without an alias the data flow decides: an output belongs to a parameter of its shape
//! and format from which it is computed. There may be several such parameters: a new weight is computed from the weight and
//! its moments. Then the output takes the parameter that no other output can take. If that does not decide, it takes the one
//! with the fewest ops between them, because an update adds to its state at the end. The user must say what is still open.

use crate::context::ShardingContext;
use crate::error::WusError;
use crate::region::UpdateRegion;
use crate::tables::{IndexMap, IndexSet};
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_ir::{InstId, Module};

/// Parameter leaf and output leaf, both flat.
pub(crate) type Pair = (usize, usize);

/// Reads `[0:0,3:1]`: parameter leaf and output leaf. Without brackets, and with `=` in the place of `:`, too.
///
/// # Errors
/// What was expected and what was found.
pub(crate) fn parse_pairs(text: &str) -> Result<Vec<Pair>, WusError> {
    let mut pairs = Vec::new();
    let text = text.trim();
    let listed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    for pair in listed.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let numbers = pair.split_once([':', '=']);
        let numbers = numbers.and_then(|(p, o)| Some((p.trim().parse().ok()?, o.trim().parse().ok()?)));
        let (param, output) = numbers.ok_or_else(|| WusError::PairSyntax { found: pair.into() })?;
        if pairs.iter().any(|&(p, o): &Pair| p == param || o == output) {
            return Err(WusError::PairTwice { pair: pair.into() });
        }
        pairs.push((param, output));
    }
    Ok(pairs)
}

/// The pairs of the header's aliases and those that the user says. One that contradicts an alias is left out: arrays that
/// share their memory are in the same form.
pub(crate) fn joined(aliased: Vec<Pair>, said: &[Pair]) -> Vec<Pair> {
    let contradicts = |&(p, o): &Pair, &(q, r): &Pair| (p == q) != (o == r);
    let agrees = |pair: &&Pair| !aliased.iter().any(|alias| contradicts(pair, alias) || alias == *pair);
    let more: Vec<Pair> = said.iter().filter(agrees).copied().collect();
    let mut pairs = aliased;
    pairs.extend(more);
    pairs
}

/// Pairs that the header's aliases give.
pub(crate) fn aliased(module: &Module) -> Vec<Pair> {
    let Some(entry) = module.entry() else { return Vec::new() };
    let Some(root) = module.comp(entry).root.expand() else { return Vec::new() };
    let params =
        entry_leaves(module).into_iter().enumerate().map(|(number, leaf)| ((leaf.param, leaf.leaf_idx), number));
    let numbers: IndexMap<(InstId, usize), usize> = params.collect();
    let mut places: IndexMap<InstId, IndexMap<Vec<i64>, usize>> = IndexMap::default();
    let mut leaf_of = |inst: InstId, index: &[i64]| {
        let known = places.entry(inst).or_insert_with(|| {
            let mut places = IndexMap::default();
            module.shape(inst).for_each_leaf(&mut |place, _| {
                places.insert(place.to_vec(), places.len());
            });
            places
        });
        known.get(index).copied()
    };
    let aliases = module.header.input_output_alias.iter().filter_map(|alias| {
        let param = *module.comp(entry).params.get(usize::try_from(alias.param).ok()?)?;
        let leaf_idx = leaf_of(param, &alias.param_index)?;
        Some((*numbers.get(&(param, leaf_idx))?, leaf_of(root, &alias.output_index)?))
    });
    aliases.collect()
}

/// The pairs that are known or decided by the data flow, and the outputs for which several parameters are left.
#[derive(Clone)]
pub(crate) struct SettledPairs {
    known: Vec<Pair>,
    pairs: IndexMap<usize, ValueId>,
    open: IndexMap<usize, Candidates>,
}

impl SettledPairs {
    /// The pairs among the values of `regions`: first those `known`, then what the data flow gives.
    pub(crate) fn find(context: &ShardingContext<'_>, regions: &[UpdateRegion], known: &[Pair]) -> SettledPairs {
        let numbers = param_numbers(context);
        let values: IndexMap<usize, ValueId> = numbers.iter().map(|(&value, &number)| (number, value)).collect();
        let (mut by_param, mut by_output): (IndexMap<usize, Vec<usize>>, IndexMap<usize, Vec<usize>>) =
            Default::default();
        for &(param, output) in known {
            by_param.entry(param).or_default().push(output);
            by_output.entry(output).or_default().push(param);
        }
        let (mut pairs, mut all_open) = (IndexMap::default(), IndexMap::default());
        for region in regions {
            let mut open: IndexMap<usize, Candidates> = IndexMap::default();
            for (&value, run) in &region.runs {
                for taken in &context.values.uses[value] {
                    let User::Exit(output) = taken.user else { continue };
                    let mut candidates = params_behind(context, region, value);
                    candidates.retain(|&p, _| region.runs[&p] == *run && same_shape(context, p, value));
                    // A parameter has one next value, wherever that is computed.
                    let outputs_of = |p: &ValueId| by_param.get(&numbers[p]).into_iter().flatten();
                    let is_others = |p: &ValueId| outputs_of(p).any(|&o| o != output as usize);
                    candidates.retain(|p, _| !is_others(p));
                    open.insert(output as usize, candidates);
                }
            }
            for (output, candidates) in &mut open {
                let params = by_output.get(output).into_iter().flatten();
                if let Some(&value) = params.filter_map(|param| values.get(param)).next_back() {
                    // What the user or an alias says needs no data flow, but still the same shape and format.
                    let is_possible = region.runs.contains_key(&value);
                    *candidates = is_possible.then_some((value, 0)).into_iter().collect();
                }
            }
            settle(&mut open, &mut pairs);
            all_open.extend(open);
        }
        SettledPairs { known: known.to_vec(), pairs, open: all_open }
    }

    /// Outputs that are the next value of a parameter, also where it is open of which one.
    pub(crate) fn outputs(&self) -> IndexSet<usize> {
        self.pairs.keys().chain(self.open.keys()).copied().collect()
    }

    /// The pairs with these as the known ones.
    ///
    /// # Errors
    /// An output that several parameters could take, with all of them.
    pub(crate) fn with_known(
        self,
        context: &ShardingContext<'_>,
        regions: &[UpdateRegion],
        known: &[Pair],
    ) -> Result<IndexMap<usize, ValueId>, WusError> {
        let SettledPairs { pairs, open, .. } =
            if self.known == known { self } else { SettledPairs::find(context, regions, known) };
        let Some((output, candidates)) = open.first() else { return Ok(pairs) };
        let numbers = param_numbers(context);
        let params = candidates.keys().map(|v| numbers[v]).collect();
        Err(WusError::AmbiguousOutput { output: *output, params })
    }
}

/// Parameters that an output may be the next value of, each with the number of ops between.
type Candidates = IndexMap<ValueId, usize>;

/// Gives each output its only candidate, or the nearest one to which no other output is as near, which nobody else can take
/// then, until nothing changes. Outputs without candidates are no state.
fn settle(open: &mut IndexMap<usize, Candidates>, pairs: &mut IndexMap<usize, ValueId>) {
    loop {
        open.retain(|_, candidates| !candidates.is_empty());
        let only = open.iter().find_map(|(&output, c)| (c.len() == 1).then(|| (output, c.get_index(0))));
        let only = only.and_then(|(output, c)| Some((output, *c?.0)));
        let Some((output, param)) = only.or_else(|| nearest(open)) else { return };
        pairs.insert(output, param);
        open.shift_remove(&output);
        for candidates in open.values_mut() {
            candidates.shift_remove(&param);
        }
    }
}

/// An output and a parameter that are nearer to each other than to any other.
fn nearest(open: &IndexMap<usize, Candidates>) -> Option<(usize, ValueId)> {
    open.iter().find_map(|(&output, candidates)| {
        let (&param, &distance) = candidates.iter().min_by_key(|(_, distance)| **distance)?;
        let is_sole = candidates.iter().all(|(&p, &d)| p == param || d > distance);
        let rivals = open.iter().filter(|(other, _)| **other != output);
        let is_mutual = rivals.filter_map(|(_, c)| c.get(&param)).all(|&d| d > distance);
        (is_sole && is_mutual).then_some((output, param))
    })
}

/// Flat numbers of the entry's parameter leaves by value.
pub(crate) fn param_numbers(context: &ShardingContext<'_>) -> IndexMap<ValueId, usize> {
    let leaves = entry_leaves(context.module);
    let value = |leaf: &hlo_analysis::annotations::ParamLeaf| {
        context.values.leaves(leaf.param).get(leaf.leaf_idx).and_then(|v| v.expand())
    };
    leaves.iter().enumerate().filter_map(|(number, leaf)| Some((value(leaf)?, number))).collect()
}

fn same_shape(context: &ShardingContext<'_>, a: ValueId, b: ValueId) -> bool {
    match (context.values.shape(context.module, a), context.values.shape(context.module, b)) {
        (Some(a), Some(b)) => a.same_type(b),
        (_, _) => false,
    }
}

/// The entry's parameters from which a value is computed within its region, with the fewest ops between.
fn params_behind(context: &ShardingContext<'_>, region: &UpdateRegion, value: ValueId) -> Candidates {
    let mut seen: IndexMap<ValueId, usize> = [(value, 0)].into_iter().collect();
    let mut next = 0;
    while let Some((&value, &distance)) = seen.get_index(next) {
        next += 1;
        let mut sources: Vec<ValueId> = context.values.sources[value].clone();
        if context.values.values[value].origin == Origin::Computed && !context.gradients.contains(&value) {
            let operands = &context.module.inst(context.values.inst(value)).operands;
            sources.extend(operands.iter().filter_map(|&o| context.values.of(o)));
        }
        for source in sources.into_iter().filter(|v| region.runs.contains_key(v)) {
            seen.entry(source).or_insert(distance + 1);
        }
    }
    seen.retain(|&v, _| context.values.values[v].origin == Origin::EntryParam);
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    fn v(n: usize) -> ValueId {
        ValueId::new(n)
    }

    #[test]
    fn a_new_weight_takes_what_its_moments_leave() {
        let set = |values: &[usize]| values.iter().map(|&n| (v(n), 5)).collect::<Candidates>();
        let open = [(0, set(&[0, 1, 2])), (1, set(&[1])), (2, set(&[2])), (3, set(&[]))];
        let mut open: IndexMap<usize, Candidates> = open.into_iter().collect();
        let mut pairs = IndexMap::default();
        settle(&mut open, &mut pairs);
        assert!(open.is_empty());
        assert_eq!((pairs[&0], pairs[&1], pairs[&2], pairs.len()), (v(0), v(1), v(2), 3));
        let mut open: IndexMap<usize, Candidates> = [(0, set(&[0, 1])), (1, set(&[0, 1]))].into_iter().collect();
        settle(&mut open, &mut IndexMap::default());
        assert_eq!(open.len(), 2, "either output could be either parameter");
        // LARS: the momentum is computed from the weight too, but through more ops.
        open[0].insert(v(0), 1);
        let mut pairs = IndexMap::default();
        settle(&mut open, &mut pairs);
        assert_eq!((pairs[&0], pairs[&1]), (v(0), v(1)));
    }

    #[test]
    fn pairs_are_read_and_refused() {
        assert_eq!(parse_pairs("0=1, 12=3"), Ok(vec![(0, 1), (12, 3)]));
        for text in ["[0:1,12:3]", "[ 0 : 1 , 12 : 3 ]", "[0=1,12=3]", "0:1,12:3"] {
            assert_eq!(parse_pairs(text), Ok(vec![(0, 1), (12, 3)]), "{text}");
        }
        assert_eq!(parse_pairs(""), Ok(vec![]));
        assert_eq!(parse_pairs("[]"), Ok(vec![]));
        assert!(parse_pairs("0=1,1=1").is_err() && parse_pairs("0=0,0=1").is_err());
        assert_eq!(joined(vec![(0, 0)], &[(0, 0), (2, 1)]), vec![(0, 0), (2, 1)]);
        assert_eq!(joined(vec![(0, 0)], &[(3, 0), (0, 2), (3, 2)]), vec![(0, 0), (3, 2)]);
        assert!(parse_pairs("0-1").is_err_and(|e| e.to_string().contains("`0-1`")));
        assert!(parse_pairs("[0:1").is_err_and(|e| e.to_string().contains("`[0:1`")));
    }
}
