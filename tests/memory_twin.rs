//! Peak memory against a slow twin: a machine that runs random small modules step by step on named cells of memory. Before
//! every decision it looks at all that is still to come in all frames, to find which cells are still needed.
//!
//! It shares nothing with the analysis but the rules of its documentation; no buffer numbers, no last uses, no contexts.

use crate::lockstep::parse;
use hlo_analysis::memory::peak_memory_as_written;
use hlo_ir::attrs::Attrs;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_tests::random_module::Rng;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A place in memory, by number.
type Cell = usize;

#[derive(Clone, Debug)]
struct CellState {
    bytes: i64,
    /// Counted, to be freed when no longer needed.
    is_paid: bool,
}

/// Memory that is set aside for a result.
#[derive(Clone, Debug)]
struct SlotState {
    /// What lies there, until something moves in.
    occupant: Option<Cell>,
    is_taken: bool,
}

#[derive(Clone, Debug)]
struct Frame {
    comp: CompId,
    /// Where it stands.
    position: usize,
    values: BTreeMap<(InstId, usize), Cell>,
    /// Cells that the caller keeps while something runs at `position`.
    pins: Vec<Cell>,
    /// For each leaf of the result, the slot into which it goes.
    targets: Vec<Option<usize>>,
}

#[derive(Clone)]
struct Machine<'m> {
    module: &'m Module,
    cells: Vec<CellState>,
    slots: Vec<SlotState>,
    stack: Vec<Frame>,
    now: i64,
    peak: i64,
}

fn leaf_bytes(module: &Module, inst: InstId) -> Vec<i64> {
    let mut out = Vec::new();
    module.shape(inst).for_each_leaf(&mut |_, shape| out.push(shape.size_bytes() as i64));
    out
}

/// The operand leaf that a tuple or its element stands for.
fn forwarded(module: &Module, inst: InstId, leaf: usize) -> Option<(InstId, usize)> {
    let instruction = module.inst(inst);
    match (instruction.opcode.row().flow, &instruction.attrs) {
        (Flow::Tuple, _) => {
            let leaves =
                instruction.operands.iter().flat_map(|&o| (0..leaf_bytes(module, o).len()).map(move |l| (o, l)));
            leaves.collect::<Vec<_>>().get(leaf).copied()
        }
        (Flow::GetTupleElement, Attrs::TupleIndex(attrs)) => {
            let operand = instruction.operands[0];
            let before = &module.shape(operand).as_tuple().expect("a tuple")[..attrs.index as usize];
            Some((operand, leaf + before.iter().map(|s| s.n_leaves()).sum::<usize>()))
        }
        _ if instruction.opcode == Opcode::Bitcast => Some((instruction.operands[0], leaf)),
        _ => None,
    }
}

/// The operand leaf that a call or a loop only hands through, or the first leaf that a call returns twice.
fn handed_through(module: &Module, inst: InstId, leaf: usize) -> Option<(InstId, usize)> {
    let (comp, is_loop) = match &module.inst(inst).attrs {
        Attrs::Call(attrs) => (attrs.to_apply?, false),
        Attrs::While(attrs) => (attrs.body?, true),
        _ => return None,
    };
    let root = module.comp(comp).root.expand()?;
    let (param, from) = computed(module, (root, leaf));
    let is_same = |&earlier: &usize| computed(module, (root, earlier)) == (param, from);
    if !is_loop && let Some(earlier) = (0..leaf).find(is_same) {
        return Some((inst, earlier));
    }
    let Attrs::Parameter(attrs) = &module.inst(param).attrs else { return None };
    let operand = *module.inst(inst).operands.get(attrs.number as usize)?;
    (!is_loop || from == leaf).then_some((operand, from))
}

/// The leaf that is computed, behind all that hands it on.
fn computed(module: &Module, mut at: (InstId, usize)) -> (InstId, usize) {
    while let Some(next) = forwarded(module, at.0, at.1).or_else(|| handed_through(module, at.0, at.1)) {
        at = next;
    }
    at
}

fn is_constant(module: &Module, inst: InstId) -> bool {
    module.inst(inst).opcode == Opcode::Constant
}

impl<'m> Machine<'m> {
    fn frame(&self) -> &Frame {
        self.stack.last().expect("a frame")
    }

    fn note(&mut self) {
        self.peak = self.peak.max(self.now);
    }

    fn new_cell(&mut self, bytes: i64) -> Cell {
        self.cells.push(CellState { bytes, is_paid: false });
        self.cells.len() - 1
    }

    fn pay(&mut self, cell: Cell) {
        self.cells[cell].is_paid = true;
        self.now += self.cells[cell].bytes;
    }

    fn free(&mut self, cell: Cell) {
        if std::mem::replace(&mut self.cells[cell].is_paid, false) {
            self.now -= self.cells[cell].bytes;
        }
    }

    fn cell(&self, frame: &Frame, inst: InstId, leaf: usize) -> Option<Cell> {
        frame.values.get(&computed(self.module, (inst, leaf))).copied()
    }

    fn operand_cells(&self, inst: InstId) -> Vec<Cell> {
        let operands = self.module.inst(inst).operands.iter();
        operands.flat_map(|&o| self.cells_of(o)).collect()
    }

    fn cells_of(&self, inst: InstId) -> Vec<Cell> {
        let n = leaf_bytes(self.module, inst).len();
        (0..n).map(|leaf| self.cell(self.frame(), inst, leaf).expect("a computed value")).collect()
    }

    /// Whether a frame reads a cell at or after an instruction of its list, or hands it over at its end.
    fn is_read_from(&self, frame: &Frame, cell: Cell, position: usize) -> bool {
        let module = self.module;
        let holds =
            |inst: InstId| (0..leaf_bytes(module, inst).len()).any(|leaf| self.cell(frame, inst, leaf) == Some(cell));
        let later = &module.comp(frame.comp).insts[position.min(module.comp(frame.comp).insts.len())..];
        let is_real = |inst: InstId| {
            module.inst(inst).opcode != Opcode::Bitcast
                && !matches!(module.inst(inst).opcode.row().flow, Flow::Tuple | Flow::GetTupleElement)
        };
        later.iter().any(|&inst| is_real(inst) && module.inst(inst).operands.iter().any(|&o| holds(o)))
            || module.comp(frame.comp).root.expand().is_some_and(holds)
    }

    /// Whether anyone needs a cell, the innermost frame from `position` on.
    fn is_needed(&self, cell: Cell, position: usize) -> bool {
        let (inner, outer) = self.stack.split_last().expect("a frame");
        self.is_read_from(inner, cell, position)
            || inner.pins.contains(&cell)
            || outer.iter().any(|f| f.pins.contains(&cell) || self.is_read_from(f, cell, f.position + 1))
    }

    /// Whether a frame outside of the innermost one needs a cell.
    fn is_needed_outside(&self, cell: Cell) -> bool {
        let (_, outer) = self.stack.split_last().expect("a frame");
        outer.iter().any(|f| f.pins.contains(&cell) || self.is_read_from(f, cell, f.position + 1))
    }

    fn sweep(&mut self, position: usize) {
        for cell in 0..self.cells.len() {
            if self.cells[cell].is_paid && !self.is_needed(cell, position) {
                self.free(cell);
            }
        }
    }

    /// The slot for a value: that of the first result leaf which it is.
    fn slot_for(&self, inst: InstId, leaf: usize) -> Option<usize> {
        let frame = self.frame();
        let root = self.module.comp(frame.comp).root.expand()?;
        let n = leaf_bytes(self.module, root).len();
        let result = (0..n).find(|&r| computed(self.module, (root, r)) == (inst, leaf))?;
        frame.targets.get(result).copied().flatten().filter(|&slot| !self.slots[slot].is_taken)
    }

    /// Whether nothing that is still needed at `position` lies in a slot.
    fn is_free(&self, slot: usize, position: usize) -> bool {
        self.slots[slot].occupant.is_none_or(|occupant| !self.is_needed(occupant, position))
    }

    /// Memory for one result of the instruction at which the innermost frame stands.
    fn place(&mut self, inst: InstId, leaf: usize, cell: Cell, overwritable: &mut Vec<Cell>) {
        let position = self.frame().position;
        if let Some(slot) = self.slot_for(inst, leaf) {
            let in_place = self.slots[slot]
                .occupant
                .filter(|occupant| !self.is_needed(*occupant, position + 1) && overwritable.contains(occupant));
            if self.is_free(slot, position) || in_place.is_some() {
                overwritable.retain(|&c| Some(c) != in_place);
                self.slots[slot].is_taken = true;
                return;
            }
        }
        let fits = |&c: &Cell| {
            self.cells[c].is_paid && self.cells[c].bytes == self.cells[cell].bytes && !self.is_needed(c, position + 1)
        };
        match overwritable.iter().position(fits) {
            Some(i) => {
                let other = overwritable.swap_remove(i);
                self.cells[other].is_paid = false;
                self.cells[cell].is_paid = true;
            }
            None => self.pay(cell),
        }
    }

    fn op(&mut self, inst: InstId) {
        let module = self.module;
        let instruction = module.inst(inst);
        let mut overwritable = Vec::new();
        for (i, &operand) in instruction.operands.iter().enumerate() {
            if instruction.opcode.is_elementwise() || (instruction.opcode == Opcode::DynamicUpdateSlice && i == 0) {
                overwritable.extend(self.cells_of(operand));
            }
        }
        // What is read elsewhere too must not be overwritten.
        let all = self.operand_cells(inst);
        if !instruction.opcode.is_elementwise() {
            overwritable.retain(|c| all.iter().filter(|other| *other == c).count() == 1);
        }
        overwritable.dedup();
        for (leaf, bytes) in leaf_bytes(module, inst).into_iter().enumerate() {
            let cell = self.new_cell(bytes);
            self.stack.last_mut().expect("a frame").values.insert((inst, leaf), cell);
            if !is_constant(module, inst) {
                self.place(inst, leaf, cell, &mut overwritable);
            }
        }
        self.note();
    }

    /// The slot to hand to something that is run at this instruction, for one of its results: free, or free once it
    /// has read what it is given.
    fn slot_to_hand(&self, inst: InstId, leaf: usize, given: &[Cell]) -> Option<usize> {
        let position = self.frame().position;
        self.slot_for(inst, leaf).filter(|&slot| {
            let is_given_once = |c| given.iter().filter(|&&g| g == c).count() == 1;
            self.is_free(slot, position)
                || self.slots[slot].occupant.is_some_and(|c| !self.is_needed(c, position + 1) && is_given_once(c))
        })
    }

    fn enter(&mut self, comp: CompId, given: &[Cell], targets: Vec<Option<usize>>) {
        let mut values = BTreeMap::new();
        let mut cells = given.iter().copied();
        for &param in &self.module.comp(comp).params {
            for leaf in 0..leaf_bytes(self.module, param).len() {
                values.insert((param, leaf), cells.next().expect("an argument"));
            }
        }
        self.stack.push(Frame { comp, position: 0, values, pins: Vec::new(), targets });
        self.note();
        self.sweep(0);
    }

    /// Runs the innermost frame to its end; its results.
    fn run(&mut self) -> Vec<Cell> {
        let comp = self.frame().comp;
        for (position, &inst) in self.module.comp(comp).insts.iter().enumerate() {
            self.stack.last_mut().expect("a frame").position = position;
            let is_forward =
                forwarded(self.module, inst, 0).is_some() || self.module.inst(inst).opcode == Opcode::Tuple;
            if is_forward || self.module.inst(inst).opcode == Opcode::Parameter {
                continue;
            }
            match &self.module.inst(inst).attrs {
                Attrs::Call(attrs) => self.call(inst, attrs.to_apply.expect("a callee")),
                Attrs::While(w) => self.repeat(inst, w.condition.expect("one"), w.body.expect("one")),
                Attrs::Conditional(_) => self.choose(inst),
                _ => self.op(inst),
            }
            self.sweep(position + 1);
        }
        self.module.comp(comp).root.expand().map_or(Vec::new(), |root| self.cells_of(root))
    }

    fn repeated(cells: &[Cell]) -> Vec<Cell> {
        cells.iter().copied().filter(|c| cells.iter().filter(|other| *other == c).count() > 1).collect()
    }

    fn call(&mut self, inst: InstId, callee: CompId) {
        let given = self.operand_cells(inst);
        let root = self.module.comp(callee).root.expand().expect("a root");
        let n = leaf_bytes(self.module, inst).len();
        // Arguments that come back out stay the caller's until it has the result.
        let param_leaves: Vec<(InstId, usize)> = self
            .module
            .comp(callee)
            .params
            .iter()
            .flat_map(|&p| (0..leaf_bytes(self.module, p).len()).map(move |l| (p, l)))
            .collect();
        let sources: Vec<(InstId, usize)> = (0..n).map(|leaf| computed(self.module, (root, leaf))).collect();
        let mut pins = Self::repeated(&given);
        pins.extend(param_leaves.iter().zip(&given).filter(|(p, _)| sources.contains(p)).map(|(_, &c)| c));
        let is_given_back = |c: Cell, m: &Self| m.slots.iter().any(|s| s.occupant == Some(c)) && pins.contains(&c);
        let targets: Vec<Option<usize>> = (0..n)
            .map(|leaf| {
                let is_first = sources.iter().position(|s| *s == sources[leaf]) == Some(leaf);
                let slot = self.slot_to_hand(inst, leaf, &given).filter(|_| is_first);
                slot.filter(|&s| !self.slots[s].occupant.is_some_and(|c| is_given_back(c, self)))
            })
            .collect();
        self.stack.last_mut().expect("a frame").pins = pins;
        self.enter(callee, &given, targets.clone());
        let results = self.run();
        self.stack.pop();
        let frame = self.stack.last_mut().expect("a frame");
        frame.pins.clear();
        for (leaf, &cell) in results.iter().enumerate() {
            frame.values.insert((inst, leaf), cell);
        }
        for (target, cell) in targets.into_iter().zip(results) {
            if let Some(slot) = target {
                self.slots[slot].is_taken = true;
                self.free(cell);
            }
        }
    }

    fn repeat(&mut self, inst: InstId, condition: CompId, body: CompId) {
        let module = self.module;
        let position = self.frame().position;
        let given = self.operand_cells(inst);
        let param = module.comp(body).params[0];
        let root = module.comp(body).root.expand().expect("a root");
        let is_handed = |leaf: usize| computed(module, (root, leaf)) == (param, leaf);
        let kept: Vec<Cell> =
            given.iter().copied().enumerate().filter(|(l, _)| is_handed(*l)).map(|(_, c)| c).collect();
        let mut carried = given.clone();
        for leaf in (0..given.len()).filter(|&leaf| !is_handed(leaf)) {
            let cell = self.new_cell(self.cells[given[leaf]].bytes);
            let mut init: Vec<Cell> =
                [given[leaf]].into_iter().filter(|c| !kept.contains(c) && !self.is_needed(*c, position + 1)).collect();
            self.place(inst, leaf, cell, &mut init);
            carried[leaf] = cell;
        }
        self.note();
        let frame = self.stack.last_mut().expect("a frame");
        for (leaf, &cell) in carried.iter().enumerate() {
            frame.values.insert((inst, leaf), cell);
        }
        frame.pins = kept.clone();
        // The loop's own cells live to its end even if nobody reads the result.
        let own: Vec<Cell> = carried.iter().copied().filter(|c| !given.contains(c)).collect();
        frame.pins.extend(own.iter().copied());
        self.sweep(position + 1);
        self.enter(condition, &carried, Vec::new());
        let result = self.run();
        self.stack.pop();
        result.into_iter().for_each(|cell| self.free(cell));
        // In the body a cell may be written over once it was read there: then only the body's own frame decides.
        let frame = self.stack.last_mut().expect("a frame");
        let hidden: BTreeMap<(InstId, usize), Cell> = frame.values.clone();
        frame.values.retain(|_, cell| !own.contains(cell));
        frame.pins.retain(|cell| !own.contains(cell));
        let was_paid: Vec<bool> = own.iter().map(|&c| std::mem::replace(&mut self.cells[c].is_paid, false)).collect();
        let mut targets = vec![None; given.len()];
        for (leaf, target) in targets.iter_mut().enumerate().filter(|(l, _)| !is_handed(*l)) {
            self.slots.push(SlotState { occupant: Some(carried[leaf]), is_taken: false });
            *target = Some(self.slots.len() - 1);
        }
        self.enter(body, &carried, targets);
        let before: Vec<Cell> = carried.clone();
        let results = self.run();
        self.stack.pop();
        results.into_iter().filter(|cell| !before.contains(cell)).for_each(|cell| self.free(cell));
        own.iter().zip(was_paid).for_each(|(&c, paid)| self.cells[c].is_paid = paid);
        let frame = self.stack.last_mut().expect("a frame");
        frame.values = hidden;
        frame.pins.clear();
    }

    fn choose(&mut self, inst: InstId) {
        let module = self.module;
        let position = self.frame().position;
        let operands = module.inst(inst).operands.clone();
        let all = self.operand_cells(inst);
        let n = leaf_bytes(module, inst).len();
        let targets: Vec<Option<usize>> = (0..n)
            .map(|leaf| {
                self.slot_for(inst, leaf).filter(|&slot| {
                    let dies = |c: Cell| !self.is_needed(c, position + 1) && all.contains(&c);
                    self.is_free(slot, position) || self.slots[slot].occupant.is_some_and(dies)
                })
            })
            .collect();
        let mut peak = self.peak;
        for (branch, operand) in module.called(inst).into_iter().zip(&operands[1..]) {
            let mut inner = self.clone();
            let given = inner.cells_of(*operand);
            let chooser = inner.cells_of(operands[0]);
            let frame = inner.stack.last_mut().expect("a frame");
            frame.pins = Self::repeated(&given);
            frame.pins.extend(chooser);
            inner.enter(branch, &given, targets.clone());
            inner.run();
            inner.hand_over();
            peak = peak.max(inner.peak);
        }
        self.peak = peak;
        for cell in all {
            if !self.is_needed(cell, position + 1) && operands[1..].iter().any(|&o| self.cells_of(o).contains(&cell)) {
                self.free(cell);
            }
        }
        for (leaf, bytes) in leaf_bytes(module, inst).into_iter().enumerate() {
            let cell = self.new_cell(bytes);
            self.stack.last_mut().expect("a frame").values.insert((inst, leaf), cell);
            match targets[leaf] {
                Some(slot) => self.slots[slot].is_taken = true,
                None => self.pay(cell),
            }
        }
        // The results exist only now; nothing is noted that a branch has not noted.
    }

    /// At the end of a branch or of the entry: results that have no memory of their own are copied.
    fn hand_over(&mut self) {
        let comp = self.frame().comp;
        let root = self.module.comp(comp).root.expand().expect("a root");
        let results = self.cells_of(root);
        for (leaf, &cell) in results.iter().enumerate() {
            let is_first = results.iter().position(|&c| c == cell) == Some(leaf);
            let is_own = self.cells[cell].is_paid && !self.is_needed_outside(cell);
            if self.frame().targets[leaf].is_none() && !(is_first && is_own) {
                self.now += self.cells[cell].bytes;
            }
        }
        self.note();
    }
}

/// The peak by the twin; `aliases[i]` is the parameter in whose memory result `i` goes.
fn slow_peak(module: &Module, aliases: &[Option<usize>]) -> i64 {
    let entry = module.entry().expect("an entry");
    let mut machine = Machine { module, cells: Vec::new(), slots: Vec::new(), stack: Vec::new(), now: 0, peak: 0 };
    let mut given = Vec::new();
    for &param in &module.comp(entry).params {
        for bytes in leaf_bytes(module, param) {
            given.push(machine.new_cell(bytes));
        }
    }
    let targets = aliases.iter().map(|alias| {
        alias.map(|param| {
            machine.slots.push(SlotState { occupant: Some(given[param]), is_taken: false });
            machine.slots.len() - 1
        })
    });
    let targets = targets.collect();
    machine.enter(entry, &given, targets);
    machine.run();
    machine.hand_over();
    let constants = module.computations().iter().flat_map(|&c| &module.comp(c).insts);
    let constants = constants.filter(|&&inst| is_constant(module, inst)).map(|&inst| leaf_bytes(module, inst)[0]);
    machine.peak + given.iter().map(|&cell| machine.cells[cell].bytes).sum::<i64>() + constants.sum::<i64>()
}

/// Text of random modules: arrays of two sizes, all kinds of ops and control flow.
struct Writer {
    rng: Rng,
    done: String,
    n_names: usize,
}

const SHORT: &str = "f32[4]";
const LONG: &str = "f32[8]";

impl Writer {
    fn name(&mut self, what: &str) -> String {
        self.n_names += 1;
        format!("%{what}{}", self.n_names)
    }

    /// A random value of a type, made if there is none.
    fn pick(&mut self, values: &mut Vec<(String, &'static str)>, ty: &'static str, out: &mut String) -> String {
        let fitting: Vec<String> = values.iter().filter(|v| v.1 == ty).map(|v| v.0.clone()).collect();
        if fitting.is_empty() || self.rng.one_in(25) {
            let name = self.name("made");
            let zeros = if ty == SHORT { "{1, 2, 3, 4}" } else { "{1, 2, 3, 4, 5, 6, 7, 8}" };
            let _ = writeln!(out, "  {name} = {ty}{{0}} constant({zeros})");
            values.push((name.clone(), ty));
            return name;
        }
        // Mostly the newest, so that older ones die.
        let back = self.rng.below(fitting.len().min(4));
        fitting[fitting.len() - 1 - back].clone()
    }

    fn step(&mut self, values: &mut Vec<(String, &'static str)>, depth: usize, out: &mut String) {
        let ty = *self.rng.pick(&[SHORT, LONG]);
        let kind = self.rng.below(if depth > 0 { 10 } else { 7 });
        let name = self.name("v");
        match kind {
            0 | 1 => {
                let (a, b) = (self.pick(values, ty, out), self.pick(values, ty, out));
                let _ = writeln!(out, "  {name} = {ty}{{0}} add({a}, {b})");
                values.push((name, ty));
            }
            2 => {
                let a = self.pick(values, ty, out);
                let op = *self.rng.pick(&["negate", "copy", "bitcast"]);
                let _ = writeln!(out, "  {name} = {ty}{{0}} {op}({a})");
                values.push((name, ty));
            }
            3 => {
                let a = self.pick(values, ty, out);
                let _ = writeln!(out, "  {name} = {ty}{{0}} reverse({a}), dimensions={{0}}");
                values.push((name, ty));
            }
            4 => {
                let a = self.pick(values, LONG, out);
                let _ = writeln!(out, "  {name} = {SHORT}{{0}} slice({a}), slice={{[2:6]}}");
                values.push((name, SHORT));
            }
            5 => {
                let (a, b) = (self.pick(values, SHORT, out), self.pick(values, SHORT, out));
                let _ = writeln!(out, "  {name} = {LONG}{{0}} concatenate({a}, {b}), dimensions={{0}}");
                values.push((name, LONG));
            }
            6 => {
                let (a, b, at) = (self.pick(values, LONG, out), self.pick(values, SHORT, out), self.name("at"));
                let _ = writeln!(out, "  {at} = s32[] constant(1)");
                let _ = writeln!(out, "  {name} = {LONG}{{0}} dynamic-update-slice({a}, {b}, {at})");
                values.push((name, LONG));
            }
            7 => self.call(values, depth, out, &name),
            8 => self.repeat(values, depth, out, &name),
            _ => self.choose(values, depth, out, &name),
        }
    }

    fn types(&mut self) -> Vec<&'static str> {
        let n = 1 + self.rng.below(3);
        (0..n).map(|_| *self.rng.pick(&[SHORT, LONG])).collect()
    }

    fn take(
        &mut self,
        values: &mut Vec<(String, &'static str)>,
        types: &[&'static str],
        out: &mut String,
    ) -> Vec<String> {
        types.iter().map(|ty| self.pick(values, ty, out)).collect()
    }

    fn elements(
        &mut self,
        values: &mut Vec<(String, &'static str)>,
        tuple: &str,
        types: &[&'static str],
        out: &mut String,
    ) {
        for (i, &ty) in types.iter().enumerate() {
            if !self.rng.one_in(6) {
                let name = self.name("e");
                let _ = writeln!(out, "  {name} = {ty}{{0}} get-tuple-element({tuple}), index={i}");
                values.push((name, ty));
            }
        }
    }

    fn call(&mut self, values: &mut Vec<(String, &'static str)>, depth: usize, out: &mut String, name: &str) {
        let (params, results) = (self.types(), self.types());
        let callee = self.computation(&params, &results, depth - 1, false);
        let args = self.take(values, &params, out).join(", ");
        let _ = writeln!(out, "  {name} = {} call({args}), to_apply={callee}", tuple_type(&results));
        self.elements(values, name, &results, out);
    }

    fn repeat(&mut self, values: &mut Vec<(String, &'static str)>, depth: usize, out: &mut String, name: &str) {
        let state = self.types();
        let body = self.computation(&state, &state, depth - 1, true);
        let (condition, param, yes) = (self.name("cond"), self.name("cp"), self.name("yes"));
        let _ = writeln!(
            self.done,
            "{condition} {{\n  {param} = {} parameter(0)\n  ROOT {yes} = pred[] constant(false)\n}}\n",
            tuple_type(&state)
        );
        let (args, init) = (self.take(values, &state, out).join(", "), self.name("init"));
        let _ = writeln!(out, "  {init} = {} tuple({args})", tuple_type(&state));
        let _ = writeln!(out, "  {name} = {} while({init}), condition={condition}, body={body}", tuple_type(&state));
        self.elements(values, name, &state, out);
    }

    fn choose(&mut self, values: &mut Vec<(String, &'static str)>, depth: usize, out: &mut String, name: &str) {
        let results = self.types();
        let (mut branches, mut args) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let params = self.types();
            branches.push(self.computation(&params, &results, depth - 1, true));
            let (taken, arg) = (self.take(values, &params, out).join(", "), self.name("arg"));
            let _ = writeln!(out, "  {arg} = {} tuple({taken})", tuple_type(&params));
            args.push(arg);
        }
        let which = self.name("which");
        let _ = writeln!(out, "  {which} = s32[] constant(0)");
        let _ = writeln!(
            out,
            "  {name} = {} conditional({which}, {}), branch_computations={{{}}}",
            tuple_type(&results),
            args.join(", "),
            branches.join(", ")
        );
        self.elements(values, name, &results, out);
    }

    /// Writes a computation; its name.
    fn computation(&mut self, params: &[&'static str], results: &[&'static str], depth: usize, tupled: bool) -> String {
        let (comp, mut out, mut values) = (self.name("comp"), String::new(), Vec::new());
        if tupled {
            let param = self.name("p");
            let _ = writeln!(out, "  {param} = {} parameter(0)", tuple_type(params));
            for (i, &ty) in params.iter().enumerate() {
                let name = self.name("pe");
                let _ = writeln!(out, "  {name} = {ty}{{0}} get-tuple-element({param}), index={i}");
                values.push((name, ty));
            }
        } else {
            for (i, &ty) in params.iter().enumerate() {
                let name = self.name("p");
                let _ = writeln!(out, "  {name} = {ty}{{0}} parameter({i})");
                values.push((name, ty));
            }
        }
        let n_steps = 1 + self.rng.below(6);
        for _ in 0..n_steps {
            self.step(&mut values, depth, &mut out);
        }
        let roots = self.take(&mut values, results, &mut out).join(", ");
        let root = self.name("root");
        let _ = writeln!(self.done, "{comp} {{\n{out}  ROOT {root} = {} tuple({roots})\n}}\n", tuple_type(results));
        comp
    }
}

fn tuple_type(types: &[&str]) -> String {
    let parts: Vec<String> = types.iter().map(|ty| format!("{ty}{{0}}")).collect();
    format!("({})", parts.join(", "))
}

/// A module and, for each of its results, the parameter in whose memory it goes.
fn random_text(seed: u64) -> (String, Vec<Option<usize>>) {
    let mut writer = Writer { rng: Rng::new(seed), done: String::new(), n_names: 0 };
    let (params, results) = (writer.types(), writer.types());
    writer.computation(&params, &results, 2, false);
    let mut aliases: Vec<Option<usize>> = vec![None; results.len()];
    for (param, ty) in params.iter().enumerate() {
        let fits = |&r: &usize| aliases[r].is_none() && results[r] == *ty;
        if writer.rng.one_in(2)
            && let Some(result) = (0..results.len()).find(fits)
        {
            aliases[result] = Some(param);
        }
    }
    let pairs = aliases.iter().enumerate().filter_map(|(r, p)| Some(format!("{{{r}}}: ({}, {{}}, may-alias)", (*p)?)));
    let pairs = pairs.collect::<Vec<_>>().join(", ");
    let header = if pairs.is_empty() { String::new() } else { format!(", input_output_alias={{ {pairs} }}") };
    let last = writer.done.rfind("%comp").map_or(0, |_| writer.done.rfind("\n\n%comp").map_or(0, |i| i + 2));
    let (before, entry) = writer.done.split_at(last);
    (format!("HloModule random, is_scheduled=true{header}\n\n{before}ENTRY {entry}"), aliases)
}

#[test]
fn random_modules_need_what_the_slow_twin_counts() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let mut n_above_ends = 0;
    for seed in 0..n_cases {
        let (text, aliases) = random_text(seed);
        let module = parse(&format!("seed {seed}"), &text);
        let report = peak_memory_as_written(&module);
        let slow = slow_peak(&module, &aliases);
        assert_eq!(
            report.sizes.peak_bytes as i64, slow,
            "seed {seed}: found (left), expected the twin's (right)\n{text}"
        );
        let live: u64 = report.live_at_peak.iter().map(|buffer| buffer.bytes).sum();
        assert_eq!(live, report.sizes.peak_bytes, "seed {seed}: what lives at the peak must add up to it\n{text}");
        n_above_ends += usize::from(report.sizes.temp_bytes > 0);
    }
    assert!(n_above_ends * 2 > n_cases as usize, "only {n_above_ends} modules had temporaries at their peak");
}
