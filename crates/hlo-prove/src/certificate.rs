//! A certificate: which values of the second module are which parts of values of the first.
//!
//! It is a list of equations between values of the two programs, without the terms or the rules that led to them. So it can be
//! checked by who knows only what instructions compute: each equation follows from those before it by computing the
//! instruction from its operands. An equation that cannot be written as few affine regions is left out; whoever checks
//! then computes through the value.

use crate::array::{Tree, Value};
use crate::prover::Prover;
use crate::segment::{Coords, Dim, Region, Segment};
use crate::term::{Head, Node, TermId};
use crate::trace::Point;
use hashbrown::{HashMap, HashSet};
use hlo_ir::dtype::NumberClass;
use hlo_ir::op::Flow;
use hlo_ir::{DType, InstId, Module, Shape};
use smallvec::SmallVec;
use std::fmt;
use std::rc::Rc;

/// One leaf of the value of an instruction, where it is run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// 0 for the first module, then the others in the order in which they run.
    pub module: usize,
    /// The call sites from the entry to the instruction's computation: names, joined by `/`, with `:k` for the `k`-th of several
    /// computations that one instruction calls. Empty in the entry.
    pub path: Rc<str>,
    /// The instruction's name.
    pub inst: String,
    /// The leaf of its value.
    pub leaf: usize,
}

/// Elements of one value that are elements of another. Places are row-major numbers of elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The value of a later module, by its number in [`Certificate::sites`].
    pub site: usize,
    /// The device; every device if there is none, each with its own value of the source.
    pub device: Option<u32>,
    /// The value of the first module.
    pub source: usize,
    /// The device that has it; the same as [`Cut::device`] if there is none.
    pub source_device: Option<u32>,
    /// The first elements of both.
    pub at: [i64; 2],
    /// Numbers of steps, and what each adds to both places.
    pub dims: Vec<(i64, [i64; 2])>,
}

/// All equations of a proof.
#[derive(Clone, Default, Debug)]
pub struct Certificate {
    /// What the equations speak of.
    pub sites: Vec<Site>,
    /// Values of the first module that are equal on some devices: the value's number, and for each device the first that has it.
    pub equal: Vec<(usize, Vec<u32>)>,
    /// Parts of values that are parts of values of the first module.
    pub cuts: Vec<Cut>,
    /// The outputs that are proved.
    pub outputs: Vec<usize>,
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "hlo-prove certificate 1")?;
        for (k, site) in self.sites.iter().enumerate() {
            let path = if site.path.is_empty() { "-" } else { &site.path };
            writeln!(f, "site {k} {} {path} {} {}", site.module, site.inst, site.leaf)?;
        }
        for (site, reps) in &self.equal {
            write!(f, "equal {site}")?;
            reps.iter().try_for_each(|rep| write!(f, " {rep}"))?;
            writeln!(f)?;
        }
        let device = |device: Option<u32>| device.map_or("*".to_string(), |d| d.to_string());
        for cut in &self.cuts {
            let (on, from) = (device(cut.device), device(cut.source_device));
            write!(f, "cut {} {on} {} = {} {from} {}", cut.site, cut.at[0], cut.source, cut.at[1])?;
            cut.dims.iter().try_for_each(|(n, [a, b])| write!(f, " {n}:{a}:{b}"))?;
            writeln!(f)?;
        }
        self.outputs.iter().try_for_each(|leaf| writeln!(f, "output {leaf}"))
    }
}

/// A value with more segments than this is not written down.
const MAX_SEGMENTS: usize = 64;
/// How many places of a term are looked at.
const MAX_PLACES: usize = 64;

/// Where a term stands in the first module.
struct Source {
    site: usize,
    segment: Segment,
}

/// The equations of a proof that was traced.
pub(crate) fn certificate(prover: &mut Prover, modules: &[&Module]) -> Certificate {
    let points = prover.trace.take().map(|trace| trace.points).unwrap_or_default();
    let mut maker = Maker {
        prover,
        modules,
        sources: HashMap::new(),
        has_source: HashSet::new(),
        carried: HashSet::new(),
        out: Certificate::default(),
    };
    for (point, value) in points.iter().filter(|(point, _)| point.side == 0) {
        maker.note_source(point, value);
    }
    for (point, value) in points.iter().filter(|(point, _)| point.side > 0) {
        maker.note_cuts(point, value);
    }
    // What loops carry is equal where its equations say so, whether or not it is a source.
    let is_source: HashSet<usize> = maker.out.cuts.iter().map(|cut| cut.source).collect();
    let Maker { mut out, carried, .. } = maker;
    out.equal.retain(|(site, _)| is_source.contains(site) || carried.contains(site));
    out
}

struct Maker<'p, 'm> {
    prover: &'p mut Prover,
    modules: &'p [&'m Module],
    /// Where each term stands on a device, or alike on all.
    sources: HashMap<(TermId, Option<u32>), Vec<Source>>,
    has_source: HashSet<TermId>,
    /// The sites that loops carry.
    carried: HashSet<usize>,
    out: Certificate,
}

impl Maker<'_, '_> {
    fn note_source(&mut self, point: &Point, value: &Tree) {
        for (leaf, value) in leaves_of(self.modules, point, value, true) {
            let mut site = None;
            let n_lists = n_lists(&value);
            for list in 0..n_lists {
                let segments = self.prover.arrays.segments(self.prover.arrays.on(&value, list));
                if segments.len() > MAX_SEGMENTS {
                    break;
                }
                for segment in segments.iter().filter(|segment| !is_number(self.prover, segment.term)) {
                    let device = (n_lists > 1).then_some(list as u32);
                    let known = self.sources.entry((segment.term, device)).or_default();
                    if known.len() < MAX_PLACES {
                        let site = *site.get_or_insert_with(|| add_site(self.modules, point, leaf, &mut self.out));
                        known.push(Source { site, segment: segment.clone() });
                        self.has_source.insert(segment.term);
                    }
                }
            }
            if let Some(site) = site {
                if is_parameter(self.modules[point.side], point.inst) && !point.path.is_empty() {
                    self.carried.insert(site);
                }
                let classes = self.prover.arrays.classes(&value);
                let devices = &self.prover.arrays.terms.devices;
                let reps: Vec<u32> = (0..self.prover.n_devices()).map(|d| devices.rep(classes, d)).collect();
                if reps.iter().zip(0..).any(|(&rep, d)| rep != d) {
                    self.out.equal.push((site, reps));
                }
            }
        }
    }

    fn note_cuts(&mut self, point: &Point, value: &Tree) {
        for (leaf, value) in leaves_of(self.modules, point, value, false) {
            let mut site = None;
            let n_lists = n_lists(&value);
            for list in 0..n_lists {
                let segments = self.prover.arrays.segments(self.prover.arrays.on(&value, list));
                if segments.len() > MAX_SEGMENTS {
                    continue;
                }
                let device = (n_lists > 1).then_some(list as u32);
                for segment in segments.iter().filter(|segment| !is_number(self.prover, segment.term)) {
                    for (device, source_device, source, (at, dims)) in self.cuts_of(segment, device) {
                        let site = *site.get_or_insert_with(|| add_site(self.modules, point, leaf, &mut self.out));
                        self.out.cuts.push(Cut { site, device, source, source_device, at, dims });
                    }
                }
            }
        }
    }

    /// The equations that say what a segment is: one for each device if they are not alike, none if it stands nowhere.
    fn cuts_of(&self, segment: &Segment, device: Option<u32>) -> Vec<FoundCut> {
        let terms = &self.prover.arrays.terms;
        let (mut term, mut region) = (segment.term, segment.region.clone());
        // What other devices have, and elements of what stands somewhere.
        let mut spread = None;
        while !self.has_source.contains(&term) {
            match terms.node(term) {
                Node::Apply(Head::From(from), args) if spread.is_none() && args.len() == 1 => {
                    spread = Some(*from);
                    term = args[0].term;
                }
                Node::Element(of, at) => {
                    region.at.truncate(1);
                    region.at.extend_from_slice(at);
                    for dim in &mut region.dims {
                        dim.step.truncate(1);
                        dim.step.extend(std::iter::repeat_n(0, at.len()));
                    }
                    term = *of;
                }
                _ => return Vec::new(),
            }
        }
        let is_alike = spread.is_none() && self.sources.contains_key(&(term, None));
        let devices: Vec<Option<u32>> = match device {
            None if !is_alike => (0..self.prover.n_devices() as u32).map(Some).collect(),
            device => vec![device],
        };
        let mut out = Vec::new();
        for device in devices {
            let source_device = match (device, spread) {
                (Some(device), Some(spread)) => match terms.devices.members(spread, device as usize) {
                    [(source, 1)] => Some(*source),
                    _ => continue,
                },
                (device, _) => device,
            };
            let known = [None, source_device].map(|device| self.sources.get(&(term, device)));
            let mut known = known.into_iter().flatten().flatten();
            let found = known.find_map(|source| Some((source.site, places(&source.segment.region, &region)?)));
            if let Some((site, places)) = found {
                out.push((device, source_device, site, places));
            }
        }
        out
    }
}

fn n_lists(value: &Value) -> usize {
    match value {
        Value::Same(_) => 1,
        Value::Each(ids) => ids.len(),
    }
}

fn add_site(modules: &[&Module], point: &Point, leaf: usize, out: &mut Certificate) -> usize {
    let inst = modules[point.side].inst_name(point.inst).to_string();
    out.sites.push(Site { module: point.side, path: Rc::clone(&point.path), inst, leaf });
    out.sites.len() - 1
}

fn is_parameter(module: &Module, inst: InstId) -> bool {
    matches!(module.inst(inst).opcode.row().flow, Flow::Parameter)
}

/// The leaves of a value of which equations may speak.
fn leaves_of(modules: &[&Module], point: &Point, value: &Tree, is_source: bool) -> Vec<(usize, Value)> {
    let module = modules[point.side];
    let has_own_value = match module.inst(point.inst).opcode.row().flow {
        Flow::All | Flow::Collective(_) | Flow::Conditional | Flow::AsyncDone => true,
        // What a later module takes is known without an equation, and so is what its loops give.
        Flow::Parameter => is_source || !point.path.is_empty(),
        Flow::While => is_source,
        Flow::Constant
        | Flow::Tuple
        | Flow::GetTupleElement
        | Flow::Identity
        | Flow::Call
        | Flow::ReplicaId
        | Flow::PartitionId
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate => false,
    };
    if !has_own_value {
        return Vec::new();
    }
    let mut dtypes: Vec<Option<DType>> = Vec::new();
    module.shape(point.inst).for_each_leaf(&mut |_, leaf| {
        dtypes.push(match leaf {
            Shape::Array(array) | Shape::Buffer(array) => Some(array.dtype),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque => None,
        });
    });
    let is_carried = is_parameter(module, point.inst) && !point.path.is_empty();
    let leaves = value.leaves().into_iter().enumerate().zip(dtypes);
    leaves
        .filter_map(|((leaf, value), dtype)| {
            let is_whole = !matches!(dtype?.class(), NumberClass::Float | NumberClass::Complex);
            // Whole numbers are computed again, but for those that loops carry.
            (is_source || !is_whole || is_carried).then_some((leaf, value))
        })
        .collect()
}

fn is_number(prover: &Prover, term: TermId) -> bool {
    matches!(prover.arrays.terms.node(term), Node::Constant(_) | Node::Table(_) | Node::Iota(_))
}

/// The devices of a value and of its source, the source, and the places.
type FoundCut = (Option<u32>, Option<u32>, usize, Places);

/// The first places in a value and in its source, then numbers of steps and what each adds to both.
type Places = ([i64; 2], Vec<(i64, [i64; 2])>);

/// The places in a source of a region that is given by the coordinates of their term.
fn places(source: &Region, region: &Region) -> Option<Places> {
    let start = place_of(source, &region.at[1..])?;
    let mut dims = Vec::with_capacity(region.dims.len());
    let mut corner: Coords = SmallVec::from_slice(&region.at[1..]);
    let mut expected = start;
    for dim in region.dims.iter().filter(|dim| dim.n > 1) {
        let at = |k: i64| -> Coords { region.at[1..].iter().zip(&dim.step[1..]).map(|(a, s)| a + k * s).collect() };
        let step = place_of(source, &at(1))? - start;
        if place_of(source, &at(dim.n - 1))? != start + (dim.n - 1) * step {
            return None;
        }
        corner.iter_mut().zip(&dim.step[1..]).for_each(|(c, s)| *c += (dim.n - 1) * s);
        expected += (dim.n - 1) * step;
        dims.push((dim.n, [dim.step[0], step]));
    }
    (place_of(source, &corner)? == expected).then_some(([region.at[0], start], dims))
}

/// The place of the element with these coordinates, if a coordinate tells each dim's steps apart from those of the others.
fn place_of(source: &Region, coords: &[i64]) -> Option<i64> {
    let mut rest: Coords = coords.iter().zip(&source.at[1..]).map(|(c, a)| c - a).collect();
    let mut dims: SmallVec<[&Dim; 4]> = source.dims.iter().collect();
    dims.retain(|dim| dim.step[1..].iter().any(|&s| s != 0));
    let mut place = source.at[0];
    while !dims.is_empty() {
        // A dim of which one step is more than all steps of the others together.
        let stands_out = |d: usize, k: usize| {
            let others = dims.iter().enumerate().filter(|(other, _)| *other != d);
            let span: i64 = others.map(|(_, dim)| (dim.n - 1) * dim.step[k].abs()).sum();
            dims[d].step[k].abs() > span
        };
        let pairs = (0..dims.len()).flat_map(|d| (1..source.at.len()).map(move |k| (d, k)));
        let (d, k) = pairs.into_iter().find(|&(d, k)| stands_out(d, k))?;
        let dim = dims.remove(d);
        let digit = rest[k - 1] / dim.step[k];
        if digit < 0 || digit >= dim.n {
            return None;
        }
        place += digit * dim.step[0];
        rest.iter_mut().zip(&dim.step[1..]).for_each(|(r, s)| *r -= digit * s);
    }
    rest.iter().all(|&r| r == 0).then_some(place)
}
