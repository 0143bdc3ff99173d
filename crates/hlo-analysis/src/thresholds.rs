//! At which values of the entry's parameters a program takes another way.
//!
//! An error shows on random inputs only if they reach it. What hangs on a step counter, a padding label, a clipped norm or a check for
//! overflow is not reached by small integers and normal floats. This analysis finds, for each array leaf of the entry's parameters:
//!
//! 1. *Thresholds*: a value is compared with a constant, clamped by one, chooses a branch, or the larger or smaller of it and one is
//!    taken. The constant is carried back to the parameters: moves keep it, and through a scalar op with one operand that is no
//!    constant it is solved by the op's formula, so that `(step + 1) % 16 == 0` asks for a step of 15. Values that are sorted, or compared with one another, ask for
//!    equal elements in the same way.
//! 2. *Reach*: which parameters something is computed from, by whatever ops, that is checked for being finite or that ends a loop.
//!
//! Nothing rests on these facts but the choice of inputs: a threshold that is missed makes a test weaker, and none wrong.
//!
//! Cost: linear in the uses of the module's values, times [`MOST_VALUES`].

use crate::values::{Origin, SharedCallees, Through, User, ValueId, Values, condition_and_body, entered};
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, CompareAttrs};
use hlo_ir::literal::{ConstantValue, Literal, Scalar};
use hlo_ir::op::{CalleeEntry, FactorRule, Formula, OpKind, ResultSign, ScalarFn};
use hlo_ir::{InstId, Module, NumberClass, Opcode};

/// Thresholds that are kept of a value. A counter of a loop has one more in each iteration.
pub const MOST_VALUES: usize = 8;

/// Facts about one array leaf of the entry's parameters: how its elements decide which way the program takes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LeafThresholds {
    /// Values at which the program takes another way, in the order in which they were found.
    pub values: Vec<f64>,
    /// The elements are compared with one another: equal ones matter.
    pub is_ordered: bool,
    /// Something that is computed from them is checked for being finite.
    pub is_checked: bool,
    /// Something that is computed from them ends a loop.
    pub ends_loop: bool,
}

/// Returns these facts for each array leaf of the entry's parameters, in order.
pub fn find_thresholds(module: &Module) -> Vec<LeafThresholds> {
    let values = Values::find(module, Through::ALL, SharedCallees::Entered);
    let mut finder = Finder { module, values, found: SecondaryMap::new(), open: Vec::new(), reach: Vec::new() };
    finder.find_seeds();
    finder.carry_thresholds();
    finder.carry_reach();
    let mut leaves = Vec::new();
    for &param in module.entry().map_or(&[][..], |entry| &module.comp(entry).params) {
        let mut leaf_idx = 0;
        module.shape(param).for_each_leaf(&mut |_, shape| {
            if shape.as_array().is_some() {
                let value = finder.values.leaves(param).get(leaf_idx).and_then(|value| value.expand());
                leaves.push(value.map_or_else(LeafThresholds::default, |value| finder.found[value].clone()));
            }
            leaf_idx += 1;
        });
    }
    leaves
}

/// A fact that is carried back from a value to its operands, by ops that can be solved.
#[derive(Clone, Copy, PartialEq)]
enum Need {
    /// The value is compared with this constant.
    Value(f64),
    /// The value's elements are compared with others.
    Order,
}

/// A fact that is carried back to everything from which a value is computed.
#[derive(Clone, Copy)]
enum Reach {
    Checked,
    Loop,
}

struct Finder<'m> {
    module: &'m Module,
    values: Values,
    found: SecondaryMap<ValueId, LeafThresholds>,
    open: Vec<(ValueId, Need)>,
    reach: Vec<(ValueId, Reach)>,
}

impl Finder<'_> {
    /// Finds what is compared, clamped, sorted or checked, and what ends loops.
    fn find_seeds(&mut self) {
        let all: Vec<ValueId> = self.values.values.keys().collect();
        for &value in &all {
            for taken in std::mem::take(&mut self.values.uses[value]) {
                match taken.user {
                    User::Op { inst, operand } => self.of_operand(value, inst, operand as usize),
                    User::Opaque(inst) => self.of_selector(value, inst),
                    User::Becomes(_) | User::Exit(_) => {}
                }
            }
        }
        let insts = self.values.comps.iter().flat_map(|&comp| &self.module.comp(comp).insts);
        let roots = insts.filter_map(|&inst| {
            let (condition, _) = condition_and_body(self.module, inst)?;
            self.values.of(self.module.comp(condition).root.expand()?)
        });
        self.reach.extend(roots.map(|root| (root, Reach::Loop)));
    }

    /// Notes the branches that a number chooses. A truth value is drawn both ways anyhow.
    fn of_selector(&mut self, value: ValueId, inst: InstId) {
        let Some((CalleeEntry::Branches, branches)) = entered(self.module, inst) else { return };
        let selector = self.module.inst(inst).operands.first().and_then(|&of| self.module.shape(of).as_array());
        if selector.is_some_and(|of| of.dtype.is_integer()) {
            (0..branches.len()).for_each(|number| self.compare(value, number as f64));
        }
    }

    /// Notes the facts that an instruction gives for one of its operands.
    fn of_operand(&mut self, value: ValueId, inst: InstId, operand: usize) {
        let module = self.module;
        let operands = &module.inst(inst).operands;
        if module.inst(inst).opcode == Opcode::IsFinite {
            self.reach.push((value, Reach::Checked));
        } else if module.inst(inst).opcode.row().factors == FactorRule::Sort {
            self.open.push((value, Need::Order));
        } else if CompareAttrs::of(&module.inst(inst).attrs).is_some() {
            let Some(other) = operands.get(1 - operand.min(1)).and_then(|&other| self.values.of(other)) else { return };
            if other == value {
                // Only a NaN is not equal to itself.
                self.reach.push((value, Reach::Checked));
                return;
            }
            match self.constant(other, 0) {
                Some(constant) => self.compare(value, constant),
                None => self.open.push((value, Need::Order)),
            }
        } else if module.inst(inst).opcode == Opcode::Clamp {
            if operand == 1 {
                for bound in [0, 2] {
                    let bound = operands.get(bound).and_then(|&bound| self.values.of(bound));
                    if let Some(constant) = bound.and_then(|bound| self.constant(bound, 0)) {
                        self.compare(value, constant);
                    }
                }
            }
        } else if let Some(Formula::Apply(ScalarFn::Larger | ScalarFn::Smaller, _)) = self.formula(inst)
            && let Some(constant) = self.constant_beside(inst, operand)
            && constant.is_finite()
        {
            self.compare(value, constant);
        }
    }

    fn compare(&mut self, value: ValueId, constant: f64) {
        self.open.push((value, Need::Value(constant)));
        if constant.is_infinite() {
            self.reach.push((value, Reach::Checked));
        }
    }

    /// The function that an instruction is of its operands' elements.
    fn formula(&self, inst: InstId) -> Option<Formula> {
        let OpKind::Scalar(formulas) = self.module.inst(inst).opcode.row().kind else { return None };
        let class = self.module.shape(inst).as_array()?.dtype.class();
        match class {
            NumberClass::Float => formulas.real.map(|make| make()),
            NumberClass::Signed | NumberClass::Unsigned => formulas.int.map(|make| make()),
            NumberClass::Pred | NumberClass::Complex => None,
        }
    }

    /// The constant that is the other operand of an op with two.
    fn constant_beside(&self, inst: InstId, operand: usize) -> Option<f64> {
        match self.module.inst(inst).operands.as_slice() {
            [a, b] => self.constant(self.values.of(if operand == 0 { *b } else { *a })?, 0),
            _ => None,
        }
    }

    /// The number that all elements of a value are; `depth` is how many values lie behind.
    fn constant(&self, value: ValueId, depth: usize) -> Option<f64> {
        if depth > MAX_DEPTH {
            return None;
        }
        let leaf = &self.values.values[value];
        match leaf.origin {
            Origin::EntryParam | Origin::Carry => None,
            Origin::Param | Origin::CallResult => {
                let mut sources = self.values.sources[value].iter().map(|&source| self.constant(source, depth + 1));
                let first = sources.next()??;
                sources.all(|other| other == Some(first)).then_some(first)
            }
            Origin::Computed => {
                let (inst, _) = leaf.sites[0];
                if let Attrs::Constant(constant) = &self.module.inst(inst).attrs {
                    let ConstantValue::Array(literal) = constant.as_ref() else { return None };
                    return only_number(literal);
                }
                match self.module.inst(inst).operands.as_slice() {
                    [only] if self.is_move(inst) => self.constant(self.values.of(*only)?, depth + 1),
                    _ => None,
                }
            }
        }
    }

    /// Whether an instruction's elements are those of its operands, rounded or in other places.
    fn is_move(&self, inst: InstId) -> bool {
        let row = self.module.inst(inst).opcode.row();
        row.signs.result == ResultSign::Kept && self.formula(inst).is_none()
    }

    /// Carries thresholds back to the entry's parameters.
    fn carry_thresholds(&mut self) {
        while let Some((value, need)) = self.open.pop() {
            if !self.note(value, need) {
                continue;
            }
            let leaf = &self.values.values[value];
            match leaf.origin {
                Origin::EntryParam => {}
                Origin::Param | Origin::Carry | Origin::CallResult => {
                    self.open.extend(self.values.sources[value].iter().map(|&source| (source, need)));
                }
                Origin::Computed => self.of_sources(leaf.sites[0].0, need),
            }
        }
    }

    /// Notes what is asked of a value; false if it is known or there is too much of it.
    fn note(&mut self, value: ValueId, need: Need) -> bool {
        let found = &mut self.found[value];
        match need {
            Need::Order => !std::mem::replace(&mut found.is_ordered, true),
            Need::Value(number) => {
                let is_new = number.is_finite() && !found.values.contains(&number) && found.values.len() < MOST_VALUES;
                if is_new {
                    found.values.push(number);
                }
                is_new
            }
        }
    }

    /// Carries a fact about a value to the operands of the instruction that computes it.
    fn of_sources(&mut self, inst: InstId, need: Need) {
        let operands = &self.module.inst(inst).operands;
        if self.is_move(inst) {
            let class = |inst: InstId| self.module.shape(inst).as_array().map(|array| array.dtype.class());
            let is_choice = |inst: InstId| class(inst) == Some(NumberClass::Pred) && operands.len() > 1;
            let data = operands.iter().filter(|&&operand| !is_choice(operand));
            self.open.extend(data.filter_map(|&operand| self.values.of(operand)).map(|value| (value, need)));
            return;
        }
        let Some(formula) = self.formula(inst) else { return };
        for (k, &operand) in operands.iter().enumerate() {
            let others = operands.iter().map(|&other| self.values.of(other).and_then(|other| self.constant(other, 0)));
            let numbers: Vec<Option<f64>> = others.collect();
            let is_only = (0..numbers.len()).all(|other| other == k || numbers[other].is_some());
            let (true, None, Some(value)) = (is_only, numbers[k], self.values.of(operand)) else { continue };
            match need {
                Need::Order => self.open.push((value, need)),
                Need::Value(number) => {
                    let solutions = solve(&formula, k, &numbers, number);
                    self.open.extend(solutions.into_iter().map(|number| (value, Need::Value(number))));
                }
            }
        }
    }

    /// Carries what is reached back to the entry's parameters, through every op.
    fn carry_reach(&mut self) {
        while let Some((value, reach)) = self.reach.pop() {
            let found = &mut self.found[value];
            let flag = match reach {
                Reach::Checked => &mut found.is_checked,
                Reach::Loop => &mut found.ends_loop,
            };
            if std::mem::replace(flag, true) {
                continue;
            }
            let leaf = &self.values.values[value];
            match leaf.origin {
                Origin::EntryParam => {}
                Origin::Param | Origin::Carry | Origin::CallResult => {
                    self.reach.extend(self.values.sources[value].iter().map(|&source| (source, reach)));
                }
                Origin::Computed => {
                    let operands = &self.module.inst(leaf.sites[0].0).operands;
                    let leaves = operands.iter().flat_map(|&operand| self.values.leaves(operand));
                    let sources: Vec<ValueId> = leaves.filter_map(|value| value.expand()).collect();
                    self.reach.extend(sources.into_iter().map(|source| (source, reach)));
                }
            }
        }
    }
}

/// Values behind which a constant is looked for.
const MAX_DEPTH: usize = 64;

/// The number that all elements of a literal are.
fn only_number(literal: &Literal) -> Option<f64> {
    let number = |index: usize| match literal.get(index)? {
        Scalar::Int(value) => Some(value as f64),
        Scalar::Uint(value) => Some(value as f64),
        Scalar::Float(value) => Some(value),
        Scalar::Pred(_) | Scalar::Complex(..) => None,
    };
    let first = number(0)?;
    (1..literal.n_elems()).all(|index| number(index) == Some(first)).then_some(first)
}

/// The values of operand `unknown` for which a formula has the value `target`; the other operands are `numbers`. None where the formula
/// is not solved.
fn solve(formula: &Formula, unknown: usize, numbers: &[Option<f64>], target: f64) -> Vec<f64> {
    let Formula::Apply(function, terms) = formula else {
        return if *formula == Formula::Operand(unknown) { vec![target] } else { Vec::new() };
    };
    let known = |term: &Formula| match term {
        Formula::Operand(k) if *k != unknown => numbers.get(*k).copied().flatten(),
        Formula::Real(value) => Some(*value),
        Formula::Integer(value) => Some(*value as f64),
        Formula::Operand(_) | Formula::Apply(..) => None,
    };
    let at = |term: &Formula, target: f64| solve(term, unknown, numbers, target);
    let (first, second) = match terms.as_slice() {
        [only] => return if *function == ScalarFn::Negate { at(only, -target) } else { Vec::new() },
        [first, second] => (first, second),
        _ => return Vec::new(),
    };
    let (open, other, is_first) = match (known(first), known(second)) {
        (None, Some(other)) => (first, other, true),
        (Some(other), None) => (second, other, false),
        (Some(_), Some(_)) | (None, None) => return Vec::new(),
    };
    match (function, is_first) {
        (ScalarFn::Add, _) => at(open, target - other),
        (ScalarFn::Subtract, true) => at(open, target + other),
        (ScalarFn::Subtract, false) => at(open, other - target),
        (ScalarFn::Multiply, _) => at(open, target / other),
        (ScalarFn::Divide, true) => at(open, target * other),
        (ScalarFn::Divide, false) => at(open, other / target),
        (ScalarFn::Larger | ScalarFn::Smaller, _) => at(open, target),
        (ScalarFn::Remainder, true) => [at(open, target), at(open, target + other.abs())].concat(),
        (
            ScalarFn::Remainder
            | ScalarFn::Math(_)
            | ScalarFn::Negate
            | ScalarFn::Not
            | ScalarFn::And
            | ScalarFn::Or
            | ScalarFn::Xor
            | ScalarFn::Above
            | ScalarFn::Below
            | ScalarFn::Choose
            | ScalarFn::Power
            | ScalarFn::Sign
            | ScalarFn::MultiplyHigh
            | ScalarFn::ShiftLeft
            | ScalarFn::ShiftRightArithmetic
            | ScalarFn::ShiftRightLogical
            | ScalarFn::CountLeadingZeros
            | ScalarFn::PopulationCount,
            _,
        ) => Vec::new(),
    }
}
