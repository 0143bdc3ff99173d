//! The state of a proof: terms, arrays, the loops that were met, and what was computed before.

use crate::array::{Arrays, Tree, Value};
use crate::control::{LoopRecord, Parting};
use crate::devices::{Classes, Spread};
use crate::effects::Outside;
use crate::elementwise::{Elementwise, ElementwiseOp, Freedom};
use crate::members::{Members, MembersId};
use crate::rules::{Rule, Rules};
use crate::segment::Coords;
use crate::term::{Arg, ArrayId, Extra, Head, Node, TermId, Terms};
use crate::trace::Trace;
use crate::words::ModuleWords;
use hashbrown::HashMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::shardy::Meshes;
use hlo_ir::{CompId, DType, InstId, Module};
use smallvec::SmallVec;
use std::rc::Rc;

/// One of the two modules.
pub(crate) struct Side<'m> {
    pub module: &'m Module,
    /// The meshes that Shardy's annotations name.
    pub meshes: Meshes,
    pub words: ModuleWords,
    /// Which of the modules: 0 is the first, the others are those that run after one another.
    pub number: usize,
    /// Whether `partition-id` and `replica-id` mean something: in a global program that is one program for all devices they do not.
    pub has_device_numbers: bool,
}

/// Where a call stands: the module, the computation, the loop within which it is, and how often loops that were noted had been
/// forgotten.
pub(crate) type CallPlace = (usize, CompId, Option<crate::term::LoopId>, usize);

pub(crate) struct Prover {
    pub arrays: Arrays,
    pub elementwise: Elementwise,
    pub loops: Vec<LoopRecord>,
    pub n_loops: u32,
    /// The terms that each loop starts from.
    pub loop_starts: HashMap<crate::term::LoopId, Vec<TermId>>,
    /// The loop of the first module within which the walk is.
    pub parent: Option<crate::term::LoopId>,
    /// The first term that each instruction made, in the order of making.
    pub origins: Vec<(u32, usize, InstId)>,
    /// What calls gave, by the arguments.
    pub calls: HashMap<CallPlace, HashMap<Vec<Tree>, Tree>>,
    /// Computations of which equal arguments need not give equal results.
    pub impure: HashMap<(usize, CompId), bool>,
    /// How often loops that were noted were forgotten, to be noted anew.
    pub n_forgotten: usize,
    /// Whether loops of the first module are noted with other cuts between iterations too.
    pub cuts_otherwise: bool,
    /// Of leaves of the second module's loops that are none of the first's: why. And of the loop that was tried last, as a whole.
    pub partings: HashMap<(crate::term::LoopId, u32), Parting>,
    pub last_parting: Option<Parting>,
    /// The effects that the world outside has seen so far.
    pub outside: Outside,
    /// What instructions gave, where it is wanted.
    pub trace: Option<Trace>,
    n_noted: usize,
    members: Vec<Rc<Members>>,
    member_ids: HashMap<Rc<Members>, MembersId>,
    spreads: HashMap<(MembersId, Vec<usize>), Spread>,
    sources: HashMap<(TermId, Spread), TermId>,
    moved: HashMap<(TermId, Coords, i64, TermId), TermId>,
    pub(crate) reduced: HashMap<(MembersId, Monoid, DType, Vec<ArrayId>), Option<ArrayId>>,
}

impl Prover {
    pub(crate) fn new(n_devices: usize, freedom: Freedom) -> Prover {
        let mut arrays = Arrays::new(n_devices);
        let nothing = Value::Same(arrays.intern(Vec::new()));
        Prover {
            arrays,
            elementwise: Elementwise::new(freedom),
            loops: Vec::new(),
            n_loops: 0,
            loop_starts: HashMap::new(),
            parent: None,
            origins: Vec::new(),
            calls: HashMap::new(),
            impure: HashMap::new(),
            n_forgotten: 0,
            cuts_otherwise: false,
            partings: HashMap::new(),
            last_parting: None,
            outside: Outside::new(nothing),
            trace: None,
            n_noted: 0,
            members: Vec::new(),
            member_ids: HashMap::new(),
            spreads: HashMap::new(),
            sources: HashMap::new(),
            moved: HashMap::new(),
            reduced: HashMap::new(),
        }
    }

    pub(crate) fn n_devices(&self) -> usize {
        self.arrays.n_devices()
    }

    /// `f` of the values on each device; it is called once for equal arrays.
    pub(crate) fn map(
        &mut self,
        values: &[&Value],
        mut f: impl FnMut(&mut Prover, &[ArrayId]) -> Option<ArrayId>,
    ) -> Option<Value> {
        if values.iter().all(|v| matches!(v, Value::Same(_))) {
            let arrays: Vec<ArrayId> = values.iter().map(|v| self.arrays.on(v, 0)).collect();
            return f(self, &arrays).map(Value::Same);
        }
        let mut known: HashMap<SmallVec<[ArrayId; 4]>, ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let arrays: SmallVec<[ArrayId; 4]> = values.iter().map(|v| self.arrays.on(v, device)).collect();
            let id = match known.get(&arrays) {
                Some(&id) => id,
                None => {
                    let id = f(self, &arrays)?;
                    known.insert(arrays, id);
                    id
                }
            };
            each.push(id);
        }
        Some(self.arrays.value(each))
    }

    /// Notes that an instruction made the terms from `first` on that no instruction within it made.
    pub(crate) fn note_origin(&mut self, first: usize, side: usize, inst: InstId) {
        let first = first.max(self.n_noted);
        if self.arrays.terms.len() > first {
            self.origins.push((first as u32, side, inst));
            self.n_noted = self.arrays.terms.len();
        }
    }

    /// An elementwise op on values of `n_elems` elements.
    pub(crate) fn elementwise(&mut self, op: ElementwiseOp, operands: &[&Value], n_elems: i64) -> Option<Value> {
        let word = self.elementwise.word(&mut self.arrays.terms, op);
        let n_lists = if operands.iter().all(|v| matches!(v, Value::Same(_))) { 1 } else { self.n_devices() };
        let mut each = Vec::with_capacity(n_lists);
        for device in 0..n_lists {
            let arrays: SmallVec<[ArrayId; 3]> = operands.iter().map(|v| self.arrays.on(v, device)).collect();
            each.push(self.elementwise.apply(&mut self.arrays, word, arrays, n_elems)?);
        }
        Some(self.arrays.value(each))
    }

    /// Notes that a rule was used to make the terms of a value.
    pub(crate) fn mark(&mut self, value: &Value, rule: Rule) {
        let mut terms = Vec::new();
        self.for_each_term(value, &mut |term| terms.push(term));
        for term in terms {
            self.arrays.terms.mark(term, Rules::of(rule));
        }
    }

    pub(crate) fn members(&mut self, members: Members) -> MembersId {
        if let Some(&id) = self.member_ids.get(&members) {
            return id;
        }
        let id = MembersId(self.members.len());
        let members = Rc::new(members);
        self.members.push(members.clone());
        self.member_ids.insert(members, id);
        id
    }

    pub(crate) fn members_of(&self, members: MembersId) -> Rc<Members> {
        self.members[members.0].clone()
    }

    /// For each device the members at these positions of its list.
    pub(crate) fn spread(&mut self, id: MembersId, positions: &[usize]) -> Spread {
        if let Some(&spread) = self.spreads.get(&(id, positions.to_vec())) {
            return spread;
        }
        let members = self.members_of(id);
        let chosen = |list: &Vec<u32>| positions.iter().filter_map(|&k| list.get(k).copied()).collect();
        let chosen: Vec<Vec<u32>> = members.lists().iter().map(chosen).collect();
        let spread = self.arrays.terms.devices.spread_of_lists(&chosen, |device| members.list_idx(device));
        self.spreads.insert((id, positions.to_vec()), spread);
        spread
    }

    /// A term as another device has it; `source` names one device for each.
    pub(crate) fn from(&mut self, term: TermId, source: Spread) -> TermId {
        // A list in the place of recursion: terms are as deep as programs are long.
        let mut open = vec![(term, source)];
        while let Some(&(term, source)) = open.last() {
            if self.known_from(term, source).is_none() && !self.take_from(term, source, &mut open) {
                continue;
            }
            open.pop();
        }
        self.known_from(term, source).unwrap_or(term)
    }

    /// A term as another device has it, if that is known.
    fn known_from(&mut self, term: TermId, source: Spread) -> Option<TermId> {
        let terms = &mut self.arrays.terms;
        let classes = terms.classes(term);
        if classes == Classes::ALL_EQUAL {
            return Some(term);
        }
        let spread = terms.devices.normalize(source, classes);
        if spread == terms.devices.own(classes) {
            return Some(term);
        }
        let known = self.sources.get(&(term, source)).copied()?;
        let rules = self.arrays.terms.rules(term);
        self.arrays.terms.mark(known, rules);
        Some(known)
    }

    /// Makes the term that another device has; false if it needs terms that are not known, which are added to `open`.
    fn take_from(&mut self, term: TermId, source: Spread, open: &mut Vec<(TermId, Spread)>) -> bool {
        let rules = self.arrays.terms.rules(term);
        let n_open = open.len();
        let mut known = |p: &mut Prover, term: TermId, source: Spread| {
            let known = p.known_from(term, source);
            if known.is_none() {
                open.push((term, source));
            }
            known.unwrap_or(term)
        };
        let taken = match self.arrays.terms.node(term).clone() {
            Node::Element(of, at) => {
                let of = known(self, of, source);
                if open.len() > n_open {
                    return false;
                }
                self.arrays.terms.element(of, &at)
            }
            Node::Apply(Head::Sum(monoid, dtype), args) => {
                let args = args
                    .into_iter()
                    .map(|mut arg| {
                        if let Extra::Extent(mut extent) = self.arrays.terms.extra_of(arg.extra).clone() {
                            extent.spread = self.arrays.terms.devices.compose(source, extent.spread);
                            arg.extra = self.arrays.terms.extra(Extra::Extent(extent));
                        }
                        arg
                    })
                    .collect();
                self.arrays.terms.apply_mapped(Head::Sum(monoid, dtype), args)
            }
            Node::Apply(Head::From(inner), args) => {
                let both = self.arrays.terms.devices.compose(source, inner);
                let taken = known(self, args[0].term, both);
                if open.len() > n_open {
                    return false;
                }
                taken
            }
            Node::Apply(head @ (Head::Elementwise(_) | Head::Unit(_) | Head::Moved), args) => {
                let args = args.into_iter().map(|arg| Arg { term: known(self, arg.term, source), ..arg }).collect();
                if open.len() > n_open {
                    return false;
                }
                self.arrays.terms.apply_mapped(head, args)
            }
            _ => {
                let classes = self.arrays.terms.classes(term);
                let spread = self.arrays.terms.devices.normalize(source, classes);
                let arg = Arg::same(&self.arrays.terms, term, Terms::NO_EXTRA);
                self.arrays.terms.apply_mapped(Head::From(spread), vec![arg])
            }
        };
        self.arrays.terms.mark(taken, rules);
        self.sources.insert((term, source), taken);
        true
    }

    /// An array as another device has it.
    pub(crate) fn array_from(&mut self, array: ArrayId, source: Spread) -> ArrayId {
        let mut segments = self.arrays.segments(array).to_vec();
        let mut changed = false;
        for segment in &mut segments {
            let taken = self.from(segment.term, source);
            changed |= taken != segment.term;
            segment.term = taken;
        }
        if changed { self.arrays.intern(segments) } else { array }
    }

    /// A term with its coordinates moved by `step` times a scalar that is clamped to `0..=max`.
    pub(crate) fn moved(&mut self, term: TermId, step: &Coords, max: i64, by: TermId) -> TermId {
        // A list in the place of recursion: terms are as deep as programs are long.
        let mut open = vec![(term, step.clone())];
        while let Some((term, step)) = open.last().cloned() {
            if self.known_moved(term, &step, max, by).is_none() && !self.make_moved((term, &step), max, by, &mut open) {
                continue;
            }
            open.pop();
        }
        self.known_moved(term, step, max, by).unwrap_or(term)
    }

    /// A moved term, if it is known.
    fn known_moved(&mut self, term: TermId, step: &Coords, max: i64, by: TermId) -> Option<TermId> {
        if step.iter().all(|&s| s == 0) {
            return Some(term);
        }
        let known = self.moved.get(&(term, step.clone(), max, by)).copied()?;
        let rules = self.arrays.terms.rules(term);
        self.arrays.terms.mark(known, rules);
        Some(known)
    }

    /// Makes a moved term; false if it needs terms that are not known, which are added to `open`.
    fn make_moved(
        &mut self,
        (term, step): (TermId, &Coords),
        max: i64,
        by: TermId,
        open: &mut Vec<(TermId, Coords)>,
    ) -> bool {
        let rules = self.arrays.terms.rules(term);
        let is_equal = self.arrays.terms.classes(by) == Classes::ALL_EQUAL;
        let moved = match self.arrays.terms.node(term).clone() {
            Node::Apply(head @ (Head::Elementwise(_) | Head::Unit(_) | Head::Sum(..)), mut args)
                if is_equal || !matches!(head, Head::Sum(..)) =>
            {
                let n_open = open.len();
                for arg in &mut args {
                    let step = arg.step(step);
                    match self.known_moved(arg.term, &step, max, by) {
                        Some(moved) => arg.term = moved,
                        None => open.push((arg.term, step)),
                    }
                }
                if open.len() > n_open {
                    return false;
                }
                self.arrays.terms.apply_mapped(head, args)
            }
            _ => {
                let terms = &mut self.arrays.terms;
                let extra = terms.extra(Extra::Moves(vec![(step.clone(), max)]));
                let by = Arg { term: by, extra: Terms::NO_EXTRA, map: Default::default() };
                let args = vec![Arg::same(terms, term, extra), by];
                terms.apply_mapped(Head::Moved, args)
            }
        };
        self.arrays.terms.mark(moved, rules);
        self.moved.insert((term, step.clone(), max, by), moved);
        true
    }
}
