//! Collectives in flight: which may meet, where the order of the text is the order in which a device issues.
//!
//! A collective on a device waits for its group and keeps the device's resources meanwhile. Of two that are in flight at once, one device can run the first
//! before the second and another the second before the first; where both devices belong to both, each waits for the other for ever (openxla/xla
//! issue 19026). So between the start of one and its end there may be no other that shares more than one device with it. What a
//! loop, conditional or call between them runs counts.
//!
//! Cost: linear in the module, times the collectives that are open at once.

use crate::time::{Members, members_of};
use hashbrown::HashMap;
use hlo_ir::op::{Begun, Flow};
use hlo_ir::{CompId, InstId, Module};
use hlo_mesh::Exchange;

/// Two collectives that are in flight at once on several devices that belong to both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meeting {
    /// The one that began first.
    pub earlier: InstId,
    /// The one that begins before the other has ended, or what runs it.
    pub later: InstId,
    /// Two devices that take part in both.
    pub devices: (u32, u32),
}

/// The collectives that meet, in text order; of each the first one that it meets.
pub fn meetings(module: &Module) -> Vec<Meeting> {
    let mut found = Vec::new();
    let mut exchanges = Exchanges::new(module);
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    if !insts.any(|&inst| matches!(module.inst(inst).opcode.row().flow, Flow::AsyncStart(_))) {
        return found;
    }
    for comp in module.post_order() {
        let mut flight = Flight::default();
        for &inst in &module.comp(comp).insts {
            found.extend(flight.pass(module, inst, &mut exchanges));
        }
    }
    found
}

/// The pairs that are open on the way through a computation.
#[derive(Clone, Debug, Default)]
pub struct Flight {
    open: Vec<InstId>,
}

impl Flight {
    /// Those of the open pairs that what `inst` runs meets.
    pub fn met_by(&self, inst: InstId, exchanges: &mut Exchanges<'_>) -> Vec<Meeting> {
        if exchanges.of(inst).is_empty() {
            return Vec::new();
        }
        let meeting = |&earlier: &InstId| {
            let devices = exchanges.shared(earlier, inst)?;
            Some(Meeting { earlier, later: inst, devices })
        };
        self.open.iter().filter_map(meeting).collect()
    }

    /// Goes past an instruction: what it begins is open from here on, what it ends no more. The first that it meets.
    pub fn pass(&mut self, module: &Module, inst: InstId, exchanges: &mut Exchanges<'_>) -> Option<Meeting> {
        let flow = module.inst(inst).opcode.row().flow;
        if flow == Flow::AsyncDone {
            let start = start_of(module, inst);
            self.open.retain(|&open| Some(open) != start);
            return None;
        }
        let meeting = |&earlier: &InstId| {
            let devices = exchanges.shared(earlier, inst)?;
            Some(Meeting { earlier, later: inst, devices })
        };
        let met = self.open.iter().find_map(meeting);
        if matches!(flow, Flow::AsyncStart(_)) && !exchanges.of(inst).is_empty() {
            self.open.push(inst);
        }
        met
    }
}

/// What the pair began that this instruction ends.
pub fn start_of(module: &Module, done: InstId) -> Option<InstId> {
    let mut at = done;
    loop {
        at = *module.inst(at).operands.first()?;
        if module.inst(at).opcode.row().flow != Flow::AsyncUpdate {
            return Some(at);
        }
    }
}

/// Who exchanges with whom in each instruction.
pub struct Exchanges<'m> {
    module: &'m Module,
    /// The distinct exchanges, each as its groups.
    distinct: Vec<Vec<Vec<u32>>>,
    number_of: HashMap<Members, usize>,
    of_inst: HashMap<InstId, Vec<usize>>,
    of_comp: HashMap<CompId, Vec<usize>>,
    shared: HashMap<(usize, usize), Option<(u32, u32)>>,
}

impl<'m> Exchanges<'m> {
    /// Those of a module; found as they are asked for.
    pub fn new(module: &'m Module) -> Exchanges<'m> {
        Exchanges {
            module,
            distinct: Vec::new(),
            number_of: HashMap::new(),
            of_inst: HashMap::new(),
            of_comp: HashMap::new(),
            shared: HashMap::new(),
        }
    }

    /// The numbers of the exchanges that an instruction runs: its own, and those in what it calls.
    fn of(&mut self, inst: InstId) -> Vec<usize> {
        if let Some(known) = self.of_inst.get(&inst) {
            return known.clone();
        }
        let module = self.module;
        let row = module.inst(inst).opcode.row();
        let mut found: Vec<usize> = match row.flow {
            Flow::Collective(rule) | Flow::AsyncStart(Begun::Collective(rule)) => {
                let members = members_of(module, inst, Exchange::of(rule));
                vec![self.number(members)]
            }
            // What continues or ends a pair was begun before.
            Flow::AsyncUpdate | Flow::AsyncDone => return Vec::new(),
            Flow::All
            | Flow::Identity
            | Flow::Parameter
            | Flow::Constant
            | Flow::ReplicaId
            | Flow::PartitionId
            | Flow::Tuple
            | Flow::GetTupleElement
            | Flow::Call
            | Flow::While
            | Flow::Conditional
            | Flow::AsyncStart(Begun::Call | Begun::Copy) => Vec::new(),
        };
        for callee in module.called(inst) {
            found.extend(self.within(callee));
        }
        found.sort();
        found.dedup();
        self.of_inst.insert(inst, found.clone());
        found
    }

    fn within(&mut self, comp: CompId) -> Vec<usize> {
        if let Some(known) = self.of_comp.get(&comp) {
            return known.clone();
        }
        let mut all: Vec<usize> = self.module.comp(comp).insts.iter().flat_map(|&inst| self.of(inst)).collect();
        all.sort();
        all.dedup();
        self.of_comp.insert(comp, all.clone());
        all
    }

    fn number(&mut self, members: Members) -> usize {
        if let Some(&known) = self.number_of.get(&members) {
            return known;
        }
        let pairs = members.pairs.iter().map(|&(from, to)| vec![from, to]);
        self.distinct.push(members.groups.iter().cloned().chain(pairs).collect());
        self.number_of.insert(members, self.distinct.len() - 1);
        self.distinct.len() - 1
    }

    /// Two devices that belong to what both instructions run.
    fn shared(&mut self, one: InstId, other: InstId) -> Option<(u32, u32)> {
        let (ones, others) = (self.of(one), self.of(other));
        for &a in &ones {
            for &b in &others {
                let distinct = &self.distinct;
                let known = self.shared.entry((a, b)).or_insert_with(|| shared_pair(&distinct[a], &distinct[b]));
                if known.is_some() {
                    return *known;
                }
            }
        }
        None
    }
}

/// Two devices of one group of the one exchange that are in one group of the other as well.
pub fn shared_pair(ones: &[Vec<u32>], others: &[Vec<u32>]) -> Option<(u32, u32)> {
    let mut of_device: HashMap<u32, Vec<usize>> = HashMap::new();
    for (number, group) in ones.iter().enumerate() {
        for &device in group {
            of_device.entry(device).or_default().push(number);
        }
    }
    for group in others {
        let mut seen: HashMap<usize, u32> = HashMap::new();
        for &device in group {
            for &number in of_device.get(&device).into_iter().flatten() {
                match seen.insert(number, device) {
                    Some(first) if first != device => return Some((first, device)),
                    Some(_) | None => {}
                }
            }
        }
    }
    None
}
