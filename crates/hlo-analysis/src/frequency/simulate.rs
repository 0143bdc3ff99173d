//! Running the scalar part of a loop: how many iterations, and in how many of them a branch is taken.
//!
//! A [`Slice`] is the closure of some expressions over one loop's states: everything needed to compute them in iteration
//! after iteration from the initial values alone. An induction variable with a constant step that is compared with a constant needs no
//! iterations at all: [`linear_trip_count`].

use super::trace::{Expr, ExprId, Tracer};
use crate::scalar::{Element, ScalarOp, as_number, int_range};
use hashbrown::HashMap;
use hlo_ir::attrs::Comparison;
use hlo_ir::{InstId, Opcode};
use smallvec::SmallVec;

/// Iterations that are run of one loop.
pub(super) const MAX_ITERATIONS: u64 = 1_000_000;
/// Scalar ops that are run for one module.
const BUDGET: u64 = 50_000_000;

/// What is left of the module's budget.
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new() -> Budget {
        Budget(BUDGET)
    }

    /// Iterations of `cost` ops each that may be run, at most `wanted`; they are taken off.
    fn take(&mut self, wanted: u64, cost: usize) -> u64 {
        let cost = cost.max(1) as u64;
        let granted = wanted.min(MAX_ITERATIONS).min(self.0 / cost);
        self.0 -= granted * cost;
        granted
    }
}

/// One loop's scalar code for some targets.
pub(super) struct Slice {
    /// The loop; `None` if the targets need no state.
    pub(super) site: Option<InstId>,
    /// Whether a state begins at a value that is not known, taken as 0.
    pub(super) is_start_assumed: bool,
    /// Registers: first the states, then constants and results.
    start: Vec<Element>,
    code: Vec<(ScalarOp, SmallVec<[u32; 3]>, u32)>,
    /// Register of each state's next value, by state.
    next: Vec<u32>,
    targets: Vec<u32>,
}

/// Whether a state may begin at an unknown value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownStart {
    /// Then the slice cannot be run.
    Refuse,
    /// An integer is taken to begin at 0.
    AssumeZero,
}

impl Slice {
    /// The closure of `targets`; `None` if they need more than constants and the states of one loop.
    pub(super) fn build(tracer: &mut Tracer<'_>, targets: &[ExprId], unknown: UnknownStart) -> Option<Slice> {
        let mut site = None;
        let mut states: Vec<(ExprId, u32)> = Vec::new();
        let mut rest: Vec<ExprId> = Vec::new();
        let mut seen: HashMap<ExprId, ()> = HashMap::new();
        let mut work = targets.to_vec();
        while let Some(node) = work.pop() {
            if seen.insert(node, ()).is_some() {
                continue;
            }
            match &tracer.nodes[node] {
                Expr::Unknown => return None,
                Expr::Known(_) => rest.push(node),
                Expr::Op(_, args) => {
                    work.extend(args.iter().copied());
                    rest.push(node);
                }
                &Expr::State(of, leaf) => {
                    if *site.get_or_insert(of) != of {
                        return None;
                    }
                    states.push((node, leaf));
                    let next = tracer.next(of, leaf);
                    work.push(next);
                }
            }
        }
        // Arguments have smaller ids than their users.
        rest.sort();
        states.sort();
        let mut slice = Slice {
            site,
            is_start_assumed: false,
            start: Vec::with_capacity(states.len() + rest.len()),
            code: Vec::new(),
            next: Vec::new(),
            targets: Vec::new(),
        };
        let mut register: HashMap<ExprId, u32> = HashMap::new();
        for (i, &(node, leaf)) in states.iter().enumerate() {
            register.insert(node, i as u32);
            let init = tracer.init(site?, leaf);
            let element = match (&tracer.nodes[init], unknown) {
                (Expr::Known(element), _) => *element,
                (Expr::State(..) | Expr::Op(..) | Expr::Unknown, UnknownStart::AssumeZero) => {
                    slice.is_start_assumed = true;
                    Element::Int(0)
                }
                (Expr::State(..) | Expr::Op(..) | Expr::Unknown, UnknownStart::Refuse) => return None,
            };
            slice.start.push(element);
        }
        for (i, &node) in rest.iter().enumerate() {
            let place = (states.len() + i) as u32;
            register.insert(node, place);
            match &tracer.nodes[node] {
                Expr::Known(element) => slice.start.push(*element),
                Expr::Op(op, args) => {
                    let args = args.iter().map(|arg| register.get(arg).copied()).collect::<Option<_>>()?;
                    slice.start.push(Element::Int(0));
                    slice.code.push((*op, args, place));
                }
                Expr::State(..) | Expr::Unknown => return None,
            }
        }
        for &(_, leaf) in &states {
            let next = tracer.next(site?, leaf);
            slice.next.push(*register.get(&next)?);
        }
        slice.targets = targets.iter().map(|target| register.get(target).copied()).collect::<Option<_>>()?;
        Some(slice)
    }

    /// Runs iterations until `visit`, which gets the targets' values, says false or `wanted` of them are done. Gives
    /// the number of iterations at which `visit` said true; `None` if an op cannot be computed.
    pub(super) fn run(
        &self,
        wanted: u64,
        budget: &mut Budget,
        mut visit: impl FnMut(&[Element]) -> bool,
    ) -> Option<u64> {
        let granted = budget.take(wanted, self.code.len() + self.next.len());
        let mut registers = self.start.clone();
        let mut next: Vec<Element> = Vec::with_capacity(self.next.len());
        let mut values: Vec<Element> = Vec::with_capacity(self.targets.len());
        let mut args: SmallVec<[Element; 3]> = SmallVec::new();
        for done in 0..granted {
            for (op, from, to) in &self.code {
                args.clear();
                args.extend(from.iter().map(|&arg| registers[arg as usize]));
                registers[*to as usize] = op.apply(&args)?;
            }
            values.clear();
            values.extend(self.targets.iter().map(|&target| registers[target as usize]));
            if !visit(&values) {
                return Some(done);
            }
            next.clear();
            next.extend(self.next.iter().map(|&r| registers[r as usize]));
            registers[..next.len()].copy_from_slice(&next);
        }
        Some(granted)
    }
}

/// The trip count of a loop whose condition compares `i` with a constant, where `i` begins at a constant and moves by a
/// constant; `None` for other loops and where `i` would leave its type's range.
pub(super) fn linear_trip_count(tracer: &mut Tracer<'_>, site: InstId, condition: ExprId) -> Option<u64> {
    let Expr::Op(compare, args) = tracer.nodes[condition].clone() else { return None };
    let direction = compare.as_compare()?;
    let dtype = compare.operand_type();
    let [left, right] = args.as_slice() else { return None };
    let (leaf, bound, direction) = match (&tracer.nodes[*left], &tracer.nodes[*right]) {
        (&Expr::State(of, leaf), &Expr::Known(Element::Int(bound))) if of == site => (leaf, bound, direction),
        (&Expr::Known(Element::Int(bound)), &Expr::State(of, leaf)) if of == site => (leaf, bound, direction.swapped()),
        _ => return None,
    };
    let next = tracer.next(site, leaf);
    let step = find_step(tracer, site, leaf, next)?;
    let step = as_number(step.0, dtype) * if step.1 { 1 } else { -1 };
    let init = tracer.init(site, leaf);
    let Expr::Known(Element::Int(init)) = tracer.nodes[init] else { return None };
    let (init, bound) = (as_number(init, dtype), as_number(bound, dtype));
    let n = n_iterations(init, step, bound, direction)?;
    // The last value computed is the one that ends the loop; it must not have wrapped around.
    let (low, high) = int_range(dtype);
    let last = init.checked_add(n.checked_mul(step)?)?;
    if (low..=high).contains(&last) { u64::try_from(n).ok() } else { None }
}

/// The constant that an iteration adds to a state (true) or takes off it (false).
fn find_step(tracer: &Tracer<'_>, site: InstId, leaf: u32, next: ExprId) -> Option<(i64, bool)> {
    let Expr::Op(op, args) = &tracer.nodes[next] else { return None };
    let [left, right] = args.as_slice() else { return None };
    let is_state = |node: ExprId| matches!(tracer.nodes[node], Expr::State(s, l) if s == site && l == leaf);
    match (&tracer.nodes[*left], &tracer.nodes[*right]) {
        (_, &Expr::Known(Element::Int(step))) if is_state(*left) && op.opcode() == Opcode::Add => Some((step, true)),
        (&Expr::Known(Element::Int(step)), _) if is_state(*right) && op.opcode() == Opcode::Add => Some((step, true)),
        (_, &Expr::Known(Element::Int(step))) if is_state(*left) && op.opcode() == Opcode::Subtract => {
            Some((step, false))
        }
        _ => None,
    }
}

/// How often `i` in `init, init + step, …` satisfies the comparison before it first does not; `None` if it always does.
fn n_iterations(init: i128, step: i128, bound: i128, direction: Comparison) -> Option<i128> {
    let up_to = |limit: i128, step: i128, init: i128| match (init < limit, step > 0) {
        (false, _) => Some(0),
        (true, true) => Some((limit - init + step - 1) / step),
        (true, false) => None,
    };
    match direction {
        Comparison::Lt => up_to(bound, step, init),
        Comparison::Le => up_to(bound + 1, step, init),
        // Mirrored at 0.
        Comparison::Gt => up_to(-bound, -step, -init),
        Comparison::Ge => up_to(-bound + 1, -step, -init),
        Comparison::Eq if init != bound => Some(0),
        Comparison::Eq => (step != 0).then_some(1),
        Comparison::Ne if init == bound => Some(0),
        Comparison::Ne if step != 0 && (bound - init) % step == 0 && (bound - init) / step > 0 => {
            Some((bound - init) / step)
        }
        Comparison::Ne => None,
    }
}
