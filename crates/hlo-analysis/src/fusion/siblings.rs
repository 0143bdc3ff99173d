//! Sums of columns beside what reads the same.
//!
//! ```text
//! dx = …                        of dy and x, row by row: the gradient of a norm
//! dscale = reduce(dy * x)       reads dy and x too
//! ```
//! Nothing leads from one to the other, but one kernel reads `dy` and `x` once for both. The sum goes to the stage of the fusion that it shares
//! the most bytes with; what is of one stage has no path to another fusion of it, so no cycle comes about.

use super::columns::{ColumnSum, column_sum, may_be_of_rows};
use super::edges::Edges;
use super::members::{Group, Marks, components, positions};
use super::rows::RowPart;
use super::stages::Stages;
use super::sums::sums_of;
use hashbrown::HashMap;
use hlo_ir::{CompId, InstId, Module, Opcode};

/// Groups that read a value which are looked at for one sum.
const MAX_HOSTS: usize = 16;

/// What a sum can go beside: the fusions of a computation, each with its stage.
struct Finder<'a> {
    module: &'a Module,
    edges: &'a Edges,
    stages: &'a Stages,
    groups: Vec<Group>,
    /// The groups that read a value and are no sum alone, the earliest stage first.
    readers: HashMap<InstId, Vec<usize>>,
}

impl<'a> Finder<'a> {
    fn of(module: &'a Module, comp: CompId, edges: &'a Edges, stages: &'a Stages) -> Finder<'a> {
        let (mut marks, position) = (Marks::of(module, comp), positions(module, comp));
        let complete = |members| marks.complete(module, edges, &position, members);
        let groups: Vec<Group> = components(module, comp, edges, stages).into_iter().map(complete).collect();
        let mut readers: HashMap<InstId, Vec<usize>> = HashMap::new();
        let mut finder = Finder { module, edges, stages, groups, readers: HashMap::new() };
        for (i, group) in finder.groups.iter().enumerate().filter(|(_, group)| finder.only_sum(group).is_none()) {
            group.inputs.iter().for_each(|&input| readers.entry(input).or_default().push(i));
        }
        readers.values_mut().for_each(|readers| readers.sort_by_key(|&reader| finder.stage(reader)));
        finder.readers = readers;
        finder
    }

    /// The sum that a group is, where it is nothing else.
    fn only_sum(&self, group: &Group) -> Option<(InstId, ColumnSum)> {
        let &[output] = group.outputs.as_slice() else { return None };
        column_sum(self.module, output).map(|sum| (output, sum))
    }

    /// Groups of the sum's stage or a later one that compute arrays like its source and read some of what it reads: those that share the most
    /// bytes first. Nothing large that the sum alone reads would have to be kept for them.
    fn hosts(&self, own: usize, sum: &ColumnSum) -> Vec<usize> {
        let Some(shape) = self.module.shape(sum.source).as_array() else { return Vec::new() };
        let is_like_source = |inst: InstId| {
            let array = self.module.shape(inst).as_array();
            array.is_some_and(|array| array.dims == shape.dims && array.is_same_order(shape))
        };
        let mut shared: HashMap<usize, u64> = HashMap::new();
        for &input in self.groups[own].inputs.iter().filter(|&&input| is_like_source(input)) {
            let readers = self.readers.get(&input).map_or(&[][..], Vec::as_slice);
            let first = readers.partition_point(|&reader| self.stage(reader) < self.stage(own));
            for &other in readers[first..].iter().take(MAX_HOSTS).filter(|&&other| other != own) {
                *shared.entry(other).or_default() += self.module.shape(input).memory_bytes();
            }
        }
        let mut hosts: Vec<(u64, usize)> = shared
            .into_iter()
            .filter(|&(host, _)| {
                let is_whole = self.groups[host].outputs.iter().any(|&output| is_like_source(output));
                is_whole && self.bytes_kept(own, host) <= self.module.shape(sum.source).memory_bytes() / 8
            })
            .map(|(host, bytes)| (bytes, host))
            .collect();
        hosts.sort_by(|a, b| b.0.cmp(&a.0).then(self.stage(a.1).cmp(&self.stage(b.1))).then(a.1.cmp(&b.1)));
        hosts.into_iter().map(|(_, host)| host).collect()
    }

    /// Bytes that are read by a group alone, and would be kept for the stage of another.
    fn bytes_kept(&self, own: usize, host: usize) -> u64 {
        let (members, until) = (&self.groups[own].members, self.stage(host));
        if self.stage(own) == until {
            return 0;
        }
        let is_kept = |input: InstId| {
            let others = self.edges.users[input].iter().filter(|user| !members.contains(user));
            let opcode = self.module.inst(input).opcode;
            opcode == Opcode::Parameter
                || opcode == Opcode::Constant
                || others.map(|&u| self.stages[u]).max() >= Some(until)
        };
        let lost = self.groups[own].inputs.iter().filter(|&&input| !is_kept(input));
        lost.map(|&input| self.module.shape(input).memory_bytes()).sum()
    }

    fn stage(&self, group: usize) -> u32 {
        self.groups[group].members.first().map_or(0, |&member| self.stages[member])
    }

    /// Whether a group has rows of an array like a sum's source.
    fn has_rows(&self, group: &Group) -> bool {
        group.members.iter().any(|&member| matches!(self.edges.rows[member], RowPart::Reduce(_)))
    }
}

/// The sums that may go beside what has rows, whatever the number of their parts.
pub(super) fn sums_beside_rows(module: &Module, comp: CompId, edges: &Edges, stages: &Stages) -> Vec<InstId> {
    let finder = Finder::of(module, comp, edges, stages);
    let sums = finder.groups.iter().enumerate().filter_map(|(own, group)| Some((own, finder.only_sum(group)?)));
    let goes = |&(own, (_, sum)): &(usize, (InstId, ColumnSum))| {
        let host = || finder.hosts(own, &sum).first().copied();
        may_be_of_rows(module, &sum) && host().is_some_and(|host| finder.has_rows(&finder.groups[host]))
    };
    sums.filter(goes).map(|(_, (reduce, _))| reduce).collect()
}

/// Puts sums of columns beside what reads the same. Returns whether there were any; stages are to be found anew then.
pub(super) fn put_beside(module: &Module, comp: CompId, edges: &mut Edges, stages: &Stages) -> bool {
    let mut placed: Vec<(Vec<InstId>, InstId, InstId)> = Vec::new();
    let finder = Finder::of(module, comp, edges, stages);
    // Hosts with what has come beside them already: members and outputs.
    let mut joined: HashMap<usize, (Vec<InstId>, Vec<InstId>)> = HashMap::new();
    for (own, group) in finder.groups.iter().enumerate() {
        let Some((reduce, sum)) = finder.only_sum(group) else { continue };
        for host in finder.hosts(own, &sum) {
            let at = &finder.groups[host];
            let Some(&beside) = at.members.first() else { continue };
            let (members, outputs) = joined.entry(host).or_insert_with(|| (at.members.clone(), at.outputs.clone()));
            members.extend_from_slice(&group.members);
            outputs.push(reduce);
            if sums_of(module, edges, members, outputs).fit.contains(&reduce) {
                placed.push((group.members.clone(), reduce, beside));
                break;
            }
            members.truncate(members.len() - group.members.len());
            outputs.pop();
        }
    }
    let has_any = !placed.is_empty();
    for (members, reduce, beside) in placed {
        members.iter().for_each(|&member| edges.earliest[member] = edges.earliest[member].max(stages[beside]));
        edges.beside[reduce] = Some(beside);
    }
    has_any
}
