//! Effects as values: what the world outside has seen of a program, and how far its random state has come.
//!
//! Each effect takes the world before it and gives the world after it, beside its results. So two programs have the same
//! effects, in the same order, with the same operands and tokens, if they give equal worlds. Loops carry the world as a
//! leaf, conditionals choose it, and what an infeed or a receive gives is a function of the world before it. That function
//! is the same in both programs only if all effects are, on every device: the world may answer one device with what
//! another one said.
//!
//! Draws from a shared random state have a chain of their own. It is not seen from outside: a draw without users may go.

use crate::array::{Tree, Value};
use crate::effects::{Event, N_WORLDS, Worlds, effect_name, first_effect_within};
use crate::functions::{Effect, SEEN, effect_of, is_read_whole};
use crate::prover::{Prover, Side};
use crate::rules::Rules;
use crate::term::Node;
use hashbrown::{HashMap, HashSet};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use smallvec::SmallVec;

impl Prover {
    /// Begins a program. A chain that is not comparable begins with a world that nothing equals.
    pub(crate) fn begin_worlds(&mut self, is_comparable: [bool; N_WORLDS]) {
        for k in 0..N_WORLDS {
            let term = if is_comparable[k] {
                let word = self.arrays.terms.word(["the world", "the random state"][k]);
                let classes = self.arrays.terms.devices.all_different();
                self.arrays.terms.leaf(Node::Whole(word, Vec::new(), 0), 1, classes, Rules::NONE)
            } else {
                self.arrays.terms.unique(1)
            };
            self.outside.worlds[k] = Value::Same(self.arrays.whole(term, 1));
        }
    }

    /// Worlds that nothing equals.
    fn lose_worlds(&mut self, effect: Effect) {
        for k in 0..N_WORLDS {
            if effect.touches(k) {
                let term = self.arrays.terms.unique(1);
                self.outside.worlds[k] = Value::Same(self.arrays.whole(term, 1));
            }
        }
    }

    /// The value of an instruction that has effects or draws random numbers. `None` if it has none, or if more than its
    /// operands and the worlds says what it gives.
    pub(crate) fn effect(&mut self, side: &mut Side<'_>, inst: InstId, values: &[Value]) -> Option<Tree> {
        let module = side.module;
        let effect = effect_of(module, inst)?;
        let shape = module.shape(inst).without_layout();
        if !is_read_whole(module, inst) {
            self.lose_worlds(effect);
            return None;
        }
        let text = self.effect_text(side, inst, &shape);
        let word = self.arrays.terms.word(&text);
        if effect.touches(SEEN) && gives_arrays(&shape) {
            self.arrays.terms.note_effect(word);
        }
        let before = self.outside.worlds.clone();
        let mut operands: Vec<&Value> = (0..N_WORLDS).filter(|&k| effect.touches(k)).map(|k| &before[k]).collect();
        operands.extend(values);
        let n_leaves = shape.n_leaves() as u32;
        for k in 0..N_WORLDS {
            if effect.touches(k) {
                self.outside.worlds[k] = self.leaf_of_whole(word, &operands, 1, n_leaves + k as u32);
            }
        }
        let result = self.of_leaves(&shape, &mut |p, n, leaf| p.leaf_of_whole(word, &operands, n, leaf));
        self.note_event(side.number, inst, &before, values.to_vec());
        Some(result)
    }

    /// Notes that an instruction made these worlds those that there are now, if what is seen is another one.
    pub(crate) fn note_event(&mut self, side: usize, inst: InstId, before: &Worlds, operands: Vec<Value>) {
        let (before, after) = (before[SEEN].clone(), self.outside.worlds[SEEN].clone());
        if before != after {
            self.outside.events.push(Event { side, inst, before, after, operands });
        }
    }

    /// The word for an effect, besides its operands: all its attributes, those that name the other end of a transfer and where
    /// it runs included.
    fn effect_text(&mut self, side: &mut Side<'_>, inst: InstId, shape: &Shape) -> String {
        let module = side.module;
        let instruction = module.inst(inst);
        let mut text = format!("{} {shape:?}", instruction.opcode);
        for &operand in &instruction.operands {
            text.push_str(&format!(" {:?}", module.shape(operand).without_layout()));
        }
        text.push_str(&side.words.attributes(&mut self.arrays.terms, module, inst));
        // Who is called may read the order of elements in memory.
        if instruction.opcode == Opcode::CustomCall {
            for &with_layout in instruction.operands.iter().chain([&inst]) {
                let mut shape = module.shape(with_layout).clone();
                shape.fill_layouts();
                text.push_str(&format!(" {shape:?}"));
            }
        }
        text
    }

    /// Whether the second side's worlds are those of the first; if not, where they part.
    pub(crate) fn compare_worlds(&mut self, modules: &[&Module], expected: &Value, found: &Value) -> Option<String> {
        match self.arrays.is_equal(expected, found) {
            true => self.lost_order(modules),
            false => Some(self.first_unlike_effect(modules)),
        }
    }

    /// An order of two effects that the first module asks for, by whatever stands between them, and the later ones do not.
    fn lost_order(&self, modules: &[&Module]) -> Option<String> {
        // Operands alone ask for the same order wherever they are the same.
        if !modules.first().is_some_and(|module| orders_beside_operands(module)) {
            return None;
        }
        let callers: Vec<_> = modules.iter().map(|module| callers_of(module)).collect();
        let shared = modules.iter().zip(&callers).find_map(|(module, callers)| shared_effects(module, callers));
        if let Some(shared) = shared {
            let text = |module: &Module| print_module(module, &PrintOptions::default());
            let is_same = modules.windows(2).all(|two| text(two[0]) == text(two[1]));
            return (!is_same).then(|| {
                format!("{shared} is called from several places, so that the order of its effects is not compared")
            });
        }
        let events = &self.outside.events;
        let of_inst: HashMap<(usize, InstId), &Event> = events.iter().map(|e| ((e.side, e.inst), e)).collect();
        // Effects by what they make of the world, with what must have come before; of schedules that is every effect before.
        let orders = |is_first: bool| -> HashMap<&Value, HashSet<&Value>> {
            let mut orders: HashMap<&Value, HashSet<&Value>> = HashMap::new();
            let mut known: HashMap<(usize, InstId), HashSet<InstId>> = HashMap::new();
            for event in events.iter().filter(|event| (event.side == 0) == is_first) {
                let Some(module) = modules.get(event.side) else { continue };
                let before = known
                    .entry((event.side, event.inst))
                    .or_insert_with(|| runs_before(module, &callers[event.side], event.inst));
                let before = before.iter().filter_map(|&inst| of_inst.get(&(event.side, inst)));
                orders.entry(&event.after).or_default().extend(before.map(|event| &event.after));
            }
            orders
        };
        let (expected, found) = (orders(true), orders(false));
        let is_scheduled = |event: &Event| modules.get(event.side).is_some_and(|module| module.header.is_scheduled);
        for event in events.iter().filter(|event| event.side > 0 && !is_scheduled(event)) {
            let (Some(expected), Some(found)) = (expected.get(&event.after), found.get(&event.after)) else { continue };
            let is_lost = |other: &&Event| expected.contains(&other.after) && !found.contains(&other.after);
            if let Some(first) = events.iter().filter(|other| other.side == 0).find(is_lost) {
                let (name, first) = (named(modules, event), named(modules, first));
                return Some(format!("{name} need not come after {first} of the first module, as it must there"));
            }
        }
        None
    }

    /// The first effect of a later module that the first module has not there, or the first that the later ones lack.
    fn first_unlike_effect(&mut self, modules: &[&Module]) -> String {
        let events = std::mem::take(&mut self.outside.events);
        let of_first = |event: &&Event| event.side == 0;
        let expected: HashSet<&Value> = events.iter().filter(of_first).map(|event| &event.after).collect();
        let found: HashSet<&Value> = events.iter().filter(|event| event.side > 0).map(|event| &event.after).collect();
        let text = match first_without(&events, false, &expected).or_else(|| first_without(&events, true, &found)) {
            Some(event) if event.side == 0 => {
                format!("{} of the first module is missing, or has another place", named(modules, event))
            }
            Some(event) => {
                let like = events.iter().filter(of_first).find(|other| other.before == event.before);
                let name = named(modules, event);
                match like {
                    Some(other) => {
                        let contrast = self.contrast_of_events(modules, other, event);
                        format!("{name}: expected {} of the first module there{contrast}", named(modules, other))
                    }
                    None => format!("{name}: the first module has no such effect there"),
                }
            }
            None => "the modules have their effects in another order, or not as often".to_string(),
        };
        drop((expected, found));
        self.outside.events = events;
        text
    }

    /// The first operand in which two effects differ.
    fn contrast_of_events(&mut self, modules: &[&Module], expected: &Event, found: &Event) -> String {
        let mut pairs = expected.operands.iter().zip(&found.operands).enumerate();
        let unlike = pairs.find(|(_, (a, b))| !self.arrays.is_equal(a, b));
        match unlike {
            Some((k, (a, b))) => {
                let (text, _) = self.explain(modules, a, b);
                format!("; leaf {k} of its operands: {text}")
            }
            None => String::new(),
        }
    }
}

/// Whether a module asks for an order by more than what its instructions compute from.
fn orders_beside_operands(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| {
        let instruction = module.inst(inst);
        let has_control = instruction.marks.as_ref().is_some_and(|marks| !marks.control_predecessors.is_empty());
        has_control || matches!(instruction.opcode, Opcode::AddDependency | Opcode::OptimizationBarrier)
    })
}

/// The instructions that call each computation.
fn callers_of(module: &Module) -> HashMap<CompId, Vec<InstId>> {
    let mut callers: HashMap<CompId, Vec<InstId>> = HashMap::new();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        for comp in module.called(inst) {
            callers.entry(comp).or_default().push(inst);
        }
    }
    callers
}

/// Returns the instructions that have to run before one: those that it needs, and what its callers need, with all that these call.
fn runs_before(module: &Module, callers: &HashMap<CompId, Vec<InstId>>, inst: InstId) -> HashSet<InstId> {
    let (mut before, mut open) = (HashSet::new(), Vec::new());
    let mut within: HashSet<CompId> = HashSet::new();
    let mut outwards = vec![inst];
    while let Some(inst) = outwards.pop() {
        open.extend(module.needed(inst));
        let parent = module.inst(inst).parent;
        if within.insert(parent) {
            outwards.extend(callers.get(&parent).into_iter().flatten());
        }
    }
    while let Some(inst) = open.pop() {
        if before.insert(inst) {
            open.extend(module.needed(inst));
            let done = done_by(module, inst).into_iter().flat_map(|inst| module.called(inst));
            open.extend(done.flat_map(|comp| module.comp(comp).insts.iter().copied()));
        }
    }
    before
}

/// The instruction that calls what has been computed once `inst` has run: an `async-start` only begins what its `async-done` ends.
fn done_by(module: &Module, inst: InstId) -> Option<InstId> {
    let is = |inst: InstId, opcode: Opcode| module.inst(inst).opcode == opcode;
    if is(inst, Opcode::AsyncStart) || is(inst, Opcode::AsyncUpdate) {
        return None;
    }
    let mut at = inst;
    while is(at, Opcode::AsyncDone) || is(at, Opcode::AsyncUpdate) {
        at = *module.inst(at).operands.first()?;
    }
    Some(at)
}

/// A computation with effects that several instructions call.
fn shared_effects(module: &Module, callers: &HashMap<CompId, Vec<InstId>>) -> Option<String> {
    let effectful = module.effectful_computations();
    let begins = |inst: &&InstId| !matches!(module.inst(**inst).opcode, Opcode::AsyncUpdate | Opcode::AsyncDone);
    let n_callers = |comp: &CompId| callers.get(comp).map_or(0, |of| of.iter().filter(begins).count());
    let is_shared = |comp: &CompId| effectful.contains(*comp) && n_callers(comp) > 1;
    let shared = module.computations().iter().copied().find(is_shared)?;
    Some(format!("%{}", module.comp_name(shared)))
}

/// The first instruction of one side of which no event leads to one of these worlds.
fn first_without<'e>(events: &'e [Event], is_first: bool, worlds: &HashSet<&Value>) -> Option<&'e Event> {
    let mut order: Vec<(usize, InstId)> = Vec::new();
    // The last time that it was met: loops are read several times, first as what they may be.
    let mut of_inst: HashMap<(usize, InstId), (&Event, bool)> = HashMap::new();
    for event in events.iter().filter(|event| (event.side == 0) == is_first) {
        let key = (event.side, event.inst);
        let is_there = worlds.contains(&event.after);
        let (first, was_there) = of_inst.entry(key).or_insert_with(|| {
            order.push(key);
            (event, false)
        });
        if !*was_there && !is_there && worlds.contains(&event.before) {
            *first = event;
        }
        *was_there |= is_there;
    }
    order.iter().filter_map(|key| of_inst.get(key)).find(|(_, is_there)| !is_there).map(|(event, _)| *event)
}

fn named(modules: &[&Module], event: &Event) -> String {
    let Some(module) = modules.get(event.side) else { return "an effect".to_string() };
    let name = format!("`{}` %{}", effect_name(module, event.inst), module.inst_name(event.inst));
    match first_effect_within(module, event.inst) {
        Some(inner) => format!("{inner} within {name}"),
        None => name,
    }
}

/// Whether a value has arrays, not tokens alone.
fn gives_arrays(shape: &Shape) -> bool {
    let mut has_arrays = false;
    shape.for_each_leaf(&mut |_, leaf| has_arrays |= leaf.as_array().is_some());
    has_arrays
}

/// The worlds at the end of the leaves of a loop or a conditional.
pub(crate) fn split_worlds(leaves: &mut Vec<Value>) -> Option<Worlds> {
    let at = leaves.len().checked_sub(N_WORLDS)?;
    let worlds: SmallVec<[Value; N_WORLDS]> = leaves.drain(at..).collect();
    worlds.into_inner().ok()
}
