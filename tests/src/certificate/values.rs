//! Single elements of values, computed from the elements that they are made of.
//!
//! Elements of some values of the first module are unknowns; an equation of the certificate makes elements of the second
//! module's values such unknowns. What an element is beyond them is computed.

use super::field::{self, Number};
use super::program::{FrameId, Place, Programs, Run};
use super::text::CutText;
use hlo_ir::op::Flow;
use hlo_ir::{ConstantValue, DType, InstId, NumberClass};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Why an element has no number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// It takes more work than one check may.
    Work,
    /// What the check does not read.
    Unread(String),
}

/// One element on one device.
pub(super) type Element = (Place, i64, u32);

/// Elements of a value of the second module that are elements of one of the first.
pub(super) struct Equation {
    pub text: CutText,
    pub source: Place,
    pub is_usable: bool,
}

pub(super) struct Values<'m> {
    pub programs: Programs<'m>,
    pub n_devices: u32,
    pub seed: u64,
    pub equations: Vec<Equation>,
    /// Equations by the value that they speak of.
    pub by_place: HashMap<Place, Vec<usize>>,
    /// Values of the first module whose elements are unknowns.
    pub unknowns: HashSet<Place>,
    /// For each device the first one that holds the same.
    pub equal: HashMap<Place, Vec<u32>>,
    /// Integers that the programs compare with, and their neighbours: unknown integers are among them.
    pub near: Vec<Number>,
    /// Unknowns that are computed all the same.
    pub expanded: HashSet<Place>,
    /// Unknowns that were met.
    pub met: BTreeSet<Place>,
    /// Elements that may still be computed.
    pub work: usize,
    known: HashMap<Element, Number>,
    same: HashMap<Place, Option<Place>>,
    pub(super) groups: HashMap<(usize, InstId), Vec<Vec<u32>>>,
    pub(super) words: HashMap<(usize, InstId), u64>,
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Place) -> std::cmp::Ordering {
        let key = |place: &Place| (place.frame, place.inst.as_u32(), place.leaf);
        key(self).cmp(&key(other))
    }
}

impl<'m> Values<'m> {
    pub(super) fn new(programs: Programs<'m>, n_devices: u32, seed: u64) -> Values<'m> {
        let near = near_constants(&programs);
        Values {
            programs,
            near,
            n_devices,
            seed,
            equations: Vec::new(),
            by_place: HashMap::new(),
            unknowns: HashSet::new(),
            equal: HashMap::new(),
            expanded: HashSet::new(),
            met: BTreeSet::new(),
            work: 0,
            known: HashMap::new(),
            same: HashMap::new(),
            groups: HashMap::new(),
            words: HashMap::new(),
        }
    }

    /// Forgets what was computed, because what is unknown changes.
    pub(super) fn restart(&mut self, work: usize) {
        self.known.clear();
        self.met.clear();
        self.work = work;
    }

    /// The value that another one is, if it is read.
    pub(super) fn same(&mut self, place: Place) -> Result<Place, Stop> {
        let found = match self.same.get(&place) {
            Some(&known) => known,
            None => {
                let found = self.programs.same(place);
                self.same.insert(place, found);
                found
            }
        };
        found.ok_or_else(|| self.unread(place, "where it comes from"))
    }

    pub(super) fn unread(&self, place: Place, what: &str) -> Stop {
        let module = self.programs.module(place.frame);
        Stop::Unread(format!("%{} ({}): {what}", module.inst_name(place.inst), module.inst(place.inst).opcode))
    }

    /// The number of an element.
    pub(super) fn value(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        let place = self.same(place)?;
        if self.programs.is_first(place.frame) {
            return self.first(place, at, device);
        }
        if let Some((source, at, device)) = self.by_equation(place, at, device) {
            return self.first(source, at, device);
        }
        self.computed(place, at, device)
    }

    /// An element of a value of the first module.
    fn first(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        if !self.has_definition(place) || self.unknowns.contains(&place) && !self.expanded.contains(&place) {
            return self.unknown(place, at, device);
        }
        self.computed(place, at, device)
    }

    fn unknown(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        self.spend()?;
        self.met.insert(place);
        let device = self.equal.get(&place).and_then(|reps| reps.get(device as usize)).copied().unwrap_or(device);
        let shape = self.programs.shape(place).ok_or_else(|| self.unread(place, "its shape"))?;
        let parts = [self.seed, place.frame as u64, u64::from(place.inst.as_u32()), place.leaf as u64];
        let hash = field::hash(parts.into_iter().chain([at as u64, u64::from(device)]));
        // Half of the integers are small, for indices; the others tell comparisons apart.
        let near = self.near.get((hash / 2 % (self.near.len().max(1) as u64)) as usize);
        Ok(match near {
            Some(&near) if is_integer(shape.dtype) && hash % 2 == 1 => field::wrapped(shape.dtype, near),
            _ => field::drawn(hash / 2, shape.dtype),
        })
    }

    /// Whether an element is computed from others: inputs and what loops carry are not.
    pub(super) fn has_definition(&self, place: Place) -> bool {
        let opcode = self.programs.module(place.frame).inst(place.inst).opcode;
        !matches!(opcode.row().flow, Flow::Parameter | Flow::While)
    }

    /// An element as its instruction makes it of its operands.
    pub(super) fn computed(&mut self, place: Place, at: i64, device: u32) -> Result<Number, Stop> {
        if let Some(&known) = self.known.get(&(place, at, device)) {
            return Ok(known);
        }
        self.spend()?;
        let number = self.define(place, at, device)?;
        self.known.insert((place, at, device), number);
        Ok(number)
    }

    pub(super) fn spend(&mut self) -> Result<(), Stop> {
        self.work = self.work.checked_sub(1).ok_or(Stop::Work)?;
        Ok(())
    }

    /// The element of the first module that a usable equation says that an element is.
    fn by_equation(&mut self, place: Place, at: i64, device: u32) -> Option<Element> {
        // What a loop gives is what it carries.
        let (carried, result_of) = match self.programs.of_loop(place.frame, place.inst, Run::Body) {
            Some(body) => {
                let module = self.programs.module(body);
                let inst = *module.comp(self.programs.frames[body].comp).params.first()?;
                (Place { frame: body, inst, leaf: place.leaf }, true)
            }
            None => (place, false),
        };
        for &number in self.by_place.get(&carried)? {
            let equation = &self.equations[number];
            let cut = &equation.text;
            if !equation.is_usable || cut.device.is_some_and(|d| d != device) {
                continue;
            }
            let Some(source_at) = place_in(cut, at) else { continue };
            let source_device = cut.source_device.unwrap_or(device);
            let mut source = equation.source;
            if result_of {
                let (frame, inst) = self.programs.frames[source.frame].caller?;
                source = Place { frame, inst, leaf: source.leaf };
                source = self.same(source).ok()?;
            }
            return Some((source, source_at, source_device));
        }
        None
    }

    pub(super) fn callee_root(&self, frame: FrameId, leaf: usize) -> Result<Place, Stop> {
        self.programs.root(frame, leaf).ok_or(Stop::Unread("a computation without a root".to_string()))
    }
}

/// The place in the source of a place that is among those of an equation.
fn place_in(cut: &CutText, at: i64) -> Option<i64> {
    let mut dims: Vec<&(i64, [i64; 2])> = cut.dims.iter().collect();
    dims.sort_by_key(|(_, steps)| std::cmp::Reverse(steps[0].abs()));
    let (mut rest, mut source) = (at - cut.at[0], cut.at[1]);
    for (n, [step, source_step]) in dims {
        if *step == 0 {
            return None;
        }
        let digit = rest / step;
        if digit < 0 || digit >= *n {
            return None;
        }
        rest -= digit * step;
        source += digit * source_step;
    }
    (rest == 0).then_some(source)
}

fn is_integer(dtype: DType) -> bool {
    matches!(dtype.class(), NumberClass::Signed | NumberClass::Unsigned)
}

/// The scalar integers among the constants of all modules, with those before and after, in order.
fn near_constants(programs: &Programs<'_>) -> Vec<Number> {
    let mut out = BTreeSet::new();
    for module in &programs.modules {
        let insts = module.post_order().into_iter().flat_map(|comp| &module.comp(comp).insts);
        for &inst in insts {
            let Some(ConstantValue::Array(literal)) = module.inst(inst).attrs.as_constant() else { continue };
            if literal.n_elems() == 1 && is_integer(literal.dtype()) {
                let value = field::element(literal, 0).map(field::to_integer).unwrap_or_default();
                out.extend((-1..=1).map(|step| value.wrapping_add(step)));
            }
        }
    }
    out.into_iter().take(MAX_NEAR).map(field::from_integer).collect()
}

/// How many integers near constants are drawn from.
const MAX_NEAR: usize = 64;
