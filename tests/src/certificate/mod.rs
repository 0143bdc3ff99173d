//! A second, smaller checker of what the prover says: it reads a certificate (`hlo-opt prove --certificate`), which is a list of
//! equations between values of two programs, and the programs, and shares nothing with the prover.
//!
//! An equation says that elements of a value of the second program are elements of a value of the first. It is checked where it
//! stands: both elements are computed from the elements that their instructions take, where those are unknowns that
//! equations before it speak of. Real numbers are elements of a prime field ([`field`]), functions that are no polynomials are
//! hashes, and unknowns are drawn: so two expressions agree by chance only, unless they are equal for exact numbers. What is
//! drawn besides is places: the first and the last element of each part and some in between, up to 64 spread evenly.
//!
//! An equation that does not follow is dropped, and what rested on it is computed. Of a loop, the equations of what it carries
//! are assumed, and hold if they hold at the start and again after an iteration, and if both loops go on alike.

mod exchange;
mod field;
mod indexed;
mod ops;
mod program;
mod text;
mod values;
mod windows;

use hlo_ir::Module;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::op::{Effects, Flow};
use program::{FrameId, Place, Programs, Run};
use std::collections::{BTreeSet, HashMap, HashSet};
use values::{Element, Equation, Stop, Values};

/// How many elements one side of a comparison may compute.
const WORK: usize = 8_000_000;
/// A comparison that computes more than this is made with one drawing of the unknowns.
const WORK_OF_SEVERAL: usize = 200_000;
/// So many places of an equation are looked at, each on so many devices, and more as long as they compute fewer elements than
/// the third number.
const MIN_PLACES: usize = 4;
const MIN_DEVICES: usize = 2;
const WORK_OF_PLACES: usize = 4_000;
/// How many places of an equation are looked at most.
const MAX_PLACES: u64 = 64;
/// How far an instruction's operands are followed for whether devices hold the same.
const MAX_DEPTH: usize = 16;
/// How many unknowns are computed in the end, where two expressions differ without.
const MAX_EXPANDED: usize = 8;
/// How often a loop is looked at again without an equation that failed.
const MAX_TURNS: usize = 4;
/// With more devices than this some are drawn.
const MAX_DEVICES: u32 = 8;
/// Unknowns are drawn anew so often.
const N_SEEDS: u64 = 2;
/// And for what decides whether a loop goes on, where one integer may make the difference.
const N_SEEDS_OF_CONDITIONS: u64 = 1024;

/// What came of a certificate.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// How many equations hold.
    pub n_held: usize,
    /// Equations that do not follow, with the reason.
    pub dropped: Vec<String>,
    /// Outputs that the certificate says are equal, and are.
    pub held: Vec<usize>,
    /// Outputs that the certificate says are equal and that do not follow, with the reason.
    pub failed: Vec<(usize, String)>,
}

/// Checks a certificate of the first module and those that run after one another, with the unknowns that `seed` gives. It
/// computes `work` elements at most, some millions a second; what would take more does not follow.
///
/// # Errors
/// The text is no certificate, or the modules are not those of it.
pub fn check(modules: Vec<&Module>, certificate: &str, seed: u64, work: usize) -> Result<Checked, String> {
    let text = text::parse(certificate)?;
    let n_devices = modules.first().map_or(1, |module| module.n_devices()) as u32;
    if modules.iter().any(|module| module.n_devices() as u32 != n_devices) {
        return Err(format!("expected modules on {n_devices} devices: global programs are not read"));
    }
    let programs = Programs::new(modules).ok_or("a module has no entry")?;
    let values = Values::new(programs, n_devices, seed);
    let mut places = Vec::with_capacity(text.sites.len());
    for site in &text.sites {
        let found = values.programs.find(site);
        places.push(found.ok_or_else(|| format!("no module has %{} in {}", site.inst, site.path))?);
    }
    let mut checker = Checker { values, claims: HashMap::new(), out: Checked::default(), draw: seed, left: work };
    checker.promise_inputs();
    for (site, reps) in text.equal {
        let is_valid = reps.len() == n_devices as usize && reps.iter().all(|&rep| rep < n_devices);
        if let (Ok(place), true) = (checker.values.same(places[site]), is_valid) {
            checker.claims.entry(place).or_insert(reps);
        }
    }
    for cut in text.cuts {
        let found = (checker.values.same(places[cut.site]), checker.values.same(places[cut.source]));
        let (Ok(place), Ok(source)) = found else { continue };
        if checker.values.programs.is_first(place.frame) || !checker.values.programs.is_first(source.frame) {
            continue;
        }
        checker.values.unknowns.insert(source);
        checker.values.by_place.entry(place).or_default().push(checker.values.equations.len());
        checker.values.equations.push(Equation { text: cut, source, is_usable: false });
    }
    let entries = checker.values.programs.entries.clone();
    checker.equal_devices(entries[0]);
    for &entry in &entries[1..] {
        checker.equations(entry);
    }
    for leaf in text.outputs {
        let last = entries[entries.len() - 1];
        match checker.output(last, entries[0], leaf) {
            Ok(()) => checker.out.held.push(leaf),
            Err(reason) => checker.out.failed.push((leaf, reason)),
        }
    }
    checker.out.n_held = checker.values.equations.iter().filter(|equation| equation.is_usable).count();
    Ok(checker.out)
}

struct Checker<'m> {
    values: Values<'m>,
    /// Which devices are said to hold equal values.
    claims: HashMap<Place, Vec<u32>>,
    out: Checked,
    draw: u64,
    /// Elements that may still be computed.
    left: usize,
}

/// One side of a comparison: an element, computed even if it is an unknown or if an equation speaks of it.
#[derive(Clone, Copy)]
enum Side {
    Computed(Element),
    Value(Element),
}

impl Checker<'_> {
    /// Inputs are equal on devices that hold the same tile.
    fn promise_inputs(&mut self) {
        let module = self.values.programs.modules[0];
        let frame = self.values.programs.entries[0];
        let n = self.values.n_devices as usize;
        let partitions = module.header.num_partitions.max(1) as usize;
        for &inst in &module.comp(self.values.programs.frames[frame].comp).params {
            let flags = ParameterAttrs::of(&module.inst(inst).attrs).map(|a| a.parameter_replication.clone());
            let mut n_leaves = 0;
            module.shape(inst).for_each_leaf(&mut |_, _| n_leaves += 1);
            for leaf in 0..n_leaves {
                let flag = flags.as_ref().and_then(|flags| flags.get(leaf)).copied();
                let sharding = module.sharding(inst).and_then(|sharding| sharding.leaf(leaf));
                let tiles = sharding.filter(|_| partitions > 1 && flag != Some(false));
                let tiles = tiles.and_then(|sharding| sharding.tile_of_device(partitions));
                // A device is as the first one with its tile, and with a flag as the one of the first replica.
                let reps = (0..n).map(|d| {
                    let (replica, partition) = (d / partitions, d % partitions);
                    let first = tiles.as_ref().and_then(|t| t.iter().position(|tile| *tile == t[partition]));
                    let replica = if flag == Some(true) { 0 } else { replica };
                    (replica * partitions + first.unwrap_or(partition)) as u32
                });
                self.values.equal.insert(Place { frame, inst, leaf }, reps.collect());
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.draw = field::hash([self.draw, 7]);
        self.draw
    }

    /// Some of the numbers below `n`: the first, the last, and others, each of which halves a gap between those before.
    fn some(&mut self, n: i64) -> Vec<i64> {
        let mut out = vec![0, n - 1];
        for k in 1..MAX_PLACES {
            // The digits of k in reverse, as a fraction, and a part of the gap.
            let part = k.reverse_bits() >> 32;
            let jitter = self.next() % (1 << 32) / MAX_PLACES;
            out.push(((u128::from(part + jitter) * n.max(0) as u128) >> 32) as i64);
        }
        let mut seen = HashSet::new();
        out.retain(|&k| k >= 0 && k < n && seen.insert(k));
        out
    }

    /// Calls `holds` for some of the numbers below `n` on some of the devices, for more if that takes little work.
    fn at_some(
        &mut self,
        n: i64,
        devices: &[u32],
        mut holds: impl FnMut(&mut Self, i64, u32) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = self.left;
        for (k, at) in self.some(n).into_iter().enumerate() {
            if k >= MIN_PLACES && before - self.left > WORK_OF_PLACES {
                break;
            }
            let before = self.left;
            // Other devices come first at each place.
            let turned = (0..devices.len()).map(|d| devices[(d + k * MIN_DEVICES) % devices.len()]);
            for (d, device) in turned.enumerate() {
                if d >= MIN_DEVICES && before - self.left > WORK_OF_PLACES / MIN_PLACES {
                    break;
                }
                holds(self, at, device)?;
            }
        }
        Ok(())
    }

    fn devices(&mut self) -> Vec<u32> {
        let n = self.values.n_devices;
        if n <= MAX_DEVICES {
            return (0..n).collect();
        }
        let mut out = BTreeSet::from([0, n - 1]);
        while (out.len() as u32) < MAX_DEVICES {
            let drawn = self.next();
            out.insert((drawn % u64::from(n)) as u32);
        }
        out.into_iter().collect()
    }

    /// Whether two elements are equal, whatever the unknowns are.
    fn agree(&mut self, left: Side, right: Side) -> Result<(), String> {
        self.agree_often(left, right, N_SEEDS)
    }

    fn agree_often(&mut self, left: Side, right: Side, n_seeds: u64) -> Result<(), String> {
        let first = self.values.seed;
        let mut outcome = Ok(());
        for seed in 0..n_seeds {
            self.values.seed = first.wrapping_add(seed);
            let before = self.left;
            outcome = self.agree_once(left, right);
            if outcome.is_err() || before - self.left > WORK_OF_SEVERAL {
                break;
            }
        }
        self.values.seed = first;
        outcome
    }

    fn agree_once(&mut self, left: Side, right: Side) -> Result<(), String> {
        self.values.expanded.clear();
        for side in [left, right] {
            if let Side::Computed((place, ..)) = side {
                self.values.expanded.insert(place);
            }
        }
        for _ in 0..MAX_EXPANDED {
            let (a, met_left) = self.number(left)?;
            let (b, met_right) = self.number(right)?;
            if a == b {
                return Ok(());
            }
            // What one side knows as an unknown and the other does not is computed, the latest first.
            let can_be_computed =
                |place: &&Place| self.values.has_definition(**place) && !self.values.expanded.contains(*place);
            let differing = met_left.symmetric_difference(&met_right).filter(can_be_computed).max();
            let any = met_left.union(&met_right).filter(can_be_computed).max();
            match differing.or(any) {
                Some(&place) => self.values.expanded.insert(place),
                None => return Err("the two differ".to_string()),
            };
        }
        Err("the two differ as far as they were computed".to_string())
    }

    fn number(&mut self, side: Side) -> Result<(u64, BTreeSet<Place>), String> {
        let work = WORK.min(self.left);
        self.values.restart(work);
        let number = match side {
            Side::Computed((place, at, device)) if self.values.has_definition(place) => {
                self.values.computed(place, at, device)
            }
            Side::Computed((place, at, device)) | Side::Value((place, at, device)) => {
                self.values.value(place, at, device)
            }
        };
        self.left -= work - self.values.work;
        match number {
            Ok(number) => Ok((number, std::mem::take(&mut self.values.met))),
            Err(Stop::Work) => Err("it takes more work than a check may".to_string()),
            Err(Stop::Unread(what)) => Err(what),
        }
    }

    fn name(&self, place: Place) -> String {
        let frame = &self.values.programs.frames[place.frame];
        let name = self.values.programs.module(place.frame).inst_name(place.inst);
        format!("module {}, %{name}, leaf {}", frame.module, place.leaf)
    }

    // Devices of the first module.

    /// Finds which claims of equal devices hold, in program order.
    fn equal_devices(&mut self, frame: FrameId) {
        let module = self.values.programs.module(frame);
        for &inst in &module.comp(self.values.programs.frames[frame].comp).insts {
            let is_loop = matches!(module.inst(inst).opcode.row().flow, Flow::While);
            if is_loop {
                self.equal_devices_of_loop(frame, inst);
            } else {
                for callee in self.values.programs.callees(frame, inst).to_vec() {
                    self.equal_devices(callee);
                }
            }
            let is_parameter = matches!(module.inst(inst).opcode.row().flow, Flow::Parameter);
            if is_parameter || is_loop {
                continue;
            }
            for place in self.claimed(frame, inst) {
                let reps = self.claims[&place].clone();
                let follows = self.follows(place, &reps, MAX_DEPTH);
                let outcome = if follows { Ok(()) } else { self.is_equal_on(Side::Computed, place, &reps) };
                match outcome {
                    Ok(()) => {
                        self.values.equal.insert(place, reps);
                    }
                    Err(reason) => self.out.dropped.push(format!("equal devices of {}: {reason}", self.name(place))),
                }
            }
        }
    }

    fn claimed(&self, frame: FrameId, inst: hlo_ir::InstId) -> Vec<Place> {
        let mut out: Vec<Place> = self.claims.keys().filter(|p| p.frame == frame && p.inst == inst).copied().collect();
        out.sort();
        out
    }

    /// Whether a value is a function of values that are known to be equal on these devices.
    fn follows(&mut self, place: Place, reps: &[u32], depth: usize) -> bool {
        let Ok(place) = self.values.same(place) else { return false };
        let instruction = self.values.programs.module(place.frame).inst(place.inst);
        let row = instruction.opcode.row();
        if let (Some(known), true) = (self.values.equal.get(&place), depth < MAX_DEPTH) {
            let is_known = |(d, &rep): (usize, &u32)| known[d] == known[rep as usize];
            if reps.iter().enumerate().all(is_known) {
                return true;
            }
        }
        match row.flow {
            Flow::Constant => true,
            Flow::All if depth > 0 && matches!(row.effects, Effects::Pure) => {
                (0..instruction.operands.len()).all(|k| {
                    let operand = self.values.programs.operand(Place { leaf: 0, ..place }, k);
                    operand.is_some_and(|operand| self.follows(operand, reps, depth - 1))
                })
            }
            Flow::All
            | Flow::Parameter
            | Flow::Tuple
            | Flow::GetTupleElement
            | Flow::Identity
            | Flow::Call
            | Flow::While
            | Flow::Conditional
            | Flow::ReplicaId
            | Flow::PartitionId
            | Flow::Collective(_)
            | Flow::AsyncStart(_)
            | Flow::AsyncUpdate
            | Flow::AsyncDone => false,
        }
    }

    fn is_equal_on(&mut self, side: fn(Element) -> Side, place: Place, reps: &[u32]) -> Result<(), String> {
        let n = self.values.programs.shape(place).map_or(0, |shape| shape.n_elems() as i64);
        let devices: Vec<u32> = self.devices().into_iter().filter(|&d| reps[d as usize] != d).collect();
        self.at_some(n, &devices, |checker, at, device| {
            checker.agree(side((place, at, device)), side((place, at, reps[device as usize])))
        })
    }

    fn equal_devices_of_loop(&mut self, frame: FrameId, inst: hlo_ir::InstId) {
        let programs = &self.values.programs;
        let found = (programs.of_loop(frame, inst, Run::Body), programs.of_loop(frame, inst, Run::Condition));
        let (Some(body), Some(condition)) = found else { return };
        let params = programs.module(body).comp(programs.frames[body].comp).params.first().copied();
        let Some(param) = params else { return };
        for _ in 0..MAX_TURNS {
            let carried = self.claimed(body, param);
            for &place in &carried {
                let reps = self.claims[&place].clone();
                self.values.equal.insert(place, reps);
            }
            self.equal_devices(condition);
            self.equal_devices(body);
            let mut failed = Vec::new();
            for &place in &carried {
                let reps = self.claims[&place].clone();
                let start = Place { frame, inst, leaf: place.leaf };
                let start = self.values.programs.operand(start, 0);
                let root = self.values.programs.root(body, place.leaf);
                let goes_on = self.values.programs.root(condition, 0);
                let holds = [start, root, goes_on]
                    .into_iter()
                    .all(|side| side.is_some_and(|side| self.is_equal_on(Side::Value, side, &reps).is_ok()));
                if !holds {
                    failed.push(place);
                }
            }
            if failed.is_empty() {
                for place in carried {
                    let result = Place { frame, inst, leaf: place.leaf };
                    // The result is equal where what is carried is.
                    self.values.equal.insert(result, self.claims[&place].clone());
                }
                return;
            }
            for place in failed {
                self.out.dropped.push(format!("equal devices of {}", self.name(place)));
                self.claims.remove(&place);
            }
            self.forget_equal(&[body, condition]);
        }
        for place in self.claimed(body, param) {
            self.claims.remove(&place);
        }
        self.forget_equal(&[body, condition]);
        self.equal_devices(condition);
        self.equal_devices(body);
    }

    /// Forgets what was found of devices within these frames.
    fn forget_equal(&mut self, roots: &[FrameId]) {
        let programs = &self.values.programs;
        let inner: HashSet<FrameId> =
            (0..programs.frames.len()).filter(|&frame| is_within(programs, frame, roots)).collect();
        self.values.equal.retain(|place, _| !inner.contains(&place.frame));
    }

    // Values of the later modules.

    /// Finds which equations hold, in program order.
    fn equations(&mut self, frame: FrameId) {
        let module = self.values.programs.module(frame);
        for &inst in &module.comp(self.values.programs.frames[frame].comp).insts {
            if matches!(module.inst(inst).opcode.row().flow, Flow::While) {
                self.equations_of_loop(frame, inst);
                continue;
            }
            for callee in self.values.programs.callees(frame, inst).to_vec() {
                self.equations(callee);
            }
            let mut n_leaves = 0;
            module.shape(inst).for_each_leaf(&mut |_, _| n_leaves += 1);
            for leaf in 0..n_leaves {
                let place = Place { frame, inst, leaf };
                if !self.values.has_definition(place) {
                    continue;
                }
                for number in self.values.by_place.get(&place).cloned().unwrap_or_default() {
                    match self.equation(place, number) {
                        Ok(()) => self.values.equations[number].is_usable = true,
                        Err(reason) => self.out.dropped.push(format!("{}: {reason}", self.name(place))),
                    }
                }
            }
        }
    }

    /// Compares elements of an equation: `sides` makes the two sides of an element of the value and one of the source.
    fn compare(&mut self, number: usize, sides: impl Fn((i64, u32), (i64, u32)) -> [Side; 2]) -> Result<(), String> {
        let cut = self.values.equations[number].text.clone();
        let sizes: Vec<i64> = cut.dims.iter().map(|(n, _)| *n).collect();
        let devices = cut.device.map_or_else(|| self.devices(), |device| vec![device]);
        self.at_some(sizes.iter().product(), &devices, |checker, step, device| {
            let mut at = cut.at;
            for (digit, (_, steps)) in ops::index_of(&sizes, step).into_iter().zip(&cut.dims) {
                at[0] += digit * steps[0];
                at[1] += digit * steps[1];
            }
            let [left, right] = sides((at[0], device), (at[1], cut.source_device.unwrap_or(device)));
            checker.agree(left, right)
        })
    }

    fn equation(&mut self, place: Place, number: usize) -> Result<(), String> {
        let source = self.values.equations[number].source;
        self.compare(number, |(at, device), (source_at, source_device)| {
            [Side::Computed((place, at, device)), Side::Computed((source, source_at, source_device))]
        })
    }

    fn equations_of_loop(&mut self, frame: FrameId, inst: hlo_ir::InstId) {
        let programs = &self.values.programs;
        let found = (programs.of_loop(frame, inst, Run::Body), programs.of_loop(frame, inst, Run::Condition));
        let (Some(body), Some(condition)) = found else { return };
        let Some(&param) = programs.module(body).comp(programs.frames[body].comp).params.first() else { return };
        let mut n_leaves = 0;
        programs.module(body).shape(param).for_each_leaf(&mut |_, _| n_leaves += 1);
        let mut carried: Vec<(Place, usize)> = Vec::new();
        for leaf in 0..n_leaves {
            let place = Place { frame: body, inst: param, leaf };
            let numbers = self.values.by_place.get(&place).cloned().unwrap_or_default();
            carried.extend(numbers.into_iter().map(|number| (place, number)));
        }
        let loop_of = |values: &Values<'_>, number: usize| {
            let source = values.equations[number].source;
            let frame = &values.programs.frames[source.frame];
            (frame.run == Run::Body && !values.has_definition(source)).then_some(source.frame)
        };
        let Some(source_body) = carried.iter().find_map(|&(_, number)| loop_of(&self.values, number)) else {
            self.out.dropped.push(format!("{}: no loop is named", self.name(Place { frame, inst, leaf: 0 })));
            self.equations(condition);
            self.equations(body);
            return;
        };
        carried.retain(|&(_, number)| loop_of(&self.values, number) == Some(source_body));
        for _ in 0..MAX_TURNS {
            for &(_, number) in &carried {
                self.values.equations[number].is_usable = true;
            }
            self.equations(condition);
            self.equations(body);
            let goes_on = self.goes_on_alike(condition, source_body);
            let mut failed = Vec::new();
            for &(place, number) in &carried {
                if let Err(reason) = self.is_kept((frame, inst), body, source_body, place, number) {
                    failed.push((number, format!("{}: {reason}", self.name(place))));
                }
            }
            if failed.is_empty() && goes_on.is_ok() {
                return;
            }
            self.forget_equations(&[body, condition]);
            if failed.is_empty() {
                carried.clear();
                self.out.dropped.extend(goes_on.err());
                break;
            }
            carried.retain(|(_, number)| failed.iter().all(|(other, _)| other != number));
            self.out.dropped.extend(failed.into_iter().map(|(_, reason)| reason));
        }
        self.forget_equations(&[body, condition]);
    }

    /// Whether an equation of what a loop carries holds at the start, and after an iteration.
    fn is_kept(
        &mut self,
        (frame, inst): (FrameId, hlo_ir::InstId),
        body: FrameId,
        source_body: FrameId,
        place: Place,
        number: usize,
    ) -> Result<(), String> {
        let source = self.values.equations[number].source;
        let caller = self.values.programs.frames[source_body].caller.ok_or("a body that nothing calls")?;
        let programs = &self.values.programs;
        let starts = (
            programs.operand(Place { frame, inst, leaf: place.leaf }, 0),
            programs.operand(Place { frame: caller.0, inst: caller.1, leaf: source.leaf }, 0),
        );
        let ends = (programs.root(body, place.leaf), programs.root(source_body, source.leaf));
        for (what, sides) in [("at the start", starts), ("after an iteration", ends)] {
            let (Some(left), Some(right)) = sides else { return Err("a loop without a value".to_string()) };
            let outcome = self.compare(number, |(at, device), (source_at, source_device)| {
                [Side::Value((left, at, device)), Side::Value((right, source_at, source_device))]
            });
            outcome.map_err(|reason| format!("{what} {reason}"))?;
        }
        Ok(())
    }

    fn goes_on_alike(&mut self, condition: FrameId, source_body: FrameId) -> Result<(), String> {
        let programs = &self.values.programs;
        let (frame, inst) = programs.frames[source_body].caller.ok_or("a body that nothing calls")?;
        let source = programs.of_loop(frame, inst, Run::Condition).and_then(|frame| programs.root(frame, 0));
        let (Some(left), Some(right)) = (programs.root(condition, 0), source) else {
            return Err("a loop without a condition".to_string());
        };
        for device in self.devices() {
            let sides = (Side::Value((left, 0, device)), Side::Value((right, 0, device)));
            let outcome = self.agree_often(sides.0, sides.1, N_SEEDS_OF_CONDITIONS);
            outcome.map_err(|reason| format!("{}: {reason}", self.name(left)))?;
        }
        Ok(())
    }

    fn forget_equations(&mut self, roots: &[FrameId]) {
        let values = &mut self.values;
        let numbers = values.by_place.iter().filter(|(place, _)| is_within(&values.programs, place.frame, roots));
        let numbers: HashSet<usize> = numbers.flat_map(|(_, numbers)| numbers.iter().copied()).collect();
        for (number, equation) in values.equations.iter_mut().enumerate() {
            equation.is_usable &= !numbers.contains(&number);
        }
    }

    fn output(&mut self, last: FrameId, first: FrameId, leaf: usize) -> Result<(), String> {
        let programs = &self.values.programs;
        let (Some(left), Some(right)) = (programs.root(last, leaf), programs.root(first, leaf)) else {
            return Err("no such output".to_string());
        };
        let (Some(to), Some(from)) = (programs.shape(left), programs.shape(right)) else { return Ok(()) };
        if to.dims != from.dims || to.dtype != from.dtype {
            return Err("the outputs have different shapes".to_string());
        }
        let devices = self.devices();
        self.at_some(to.n_elems() as i64, &devices, |checker, at, device| {
            checker.agree(Side::Value((left, at, device)), Side::Value((right, at, device)))
        })
    }
}

/// Whether a frame is one of `roots`, or called within one.
fn is_within(programs: &Programs<'_>, mut frame: FrameId, roots: &[FrameId]) -> bool {
    loop {
        if roots.contains(&frame) {
            return true;
        }
        match programs.frames[frame].caller {
            Some((caller, _)) => frame = caller,
            None => return false,
        }
    }
}
