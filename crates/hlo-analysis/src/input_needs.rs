//! Which values of the entry's parameters make a program compute numbers, and reach the bounds of what it indexes.
//!
//! Random inputs show an error only where the results are numbers. Adam takes the root of its second moments: drawn with both signs,
//! half of the results are NaN, and NaN hides every difference. The column [`Signs`](hlo_ir::op::Signs) of the op table says which
//! operands an op needs to be positive, or not zero. This analysis carries these needs back to the entry's parameters:
//!
//! 1. Assume that all parameters are positive, and find the values that cannot be negative then ([`find_not_negative`]). A dot, a
//!    sum over a dim or a sine ends this: no sign of a parameter helps what is behind it.
//! 2. Carry each need from the op that has it back through values found in step 1, by steps that keep the sign: a positive scale, a
//!    conversion, a broadcast, the addition of a square. A square, an exponential, a magnitude and a maximum of one of these end it, because
//!    they are not negative whatever the parameter is. A weight that reaches the root only through a dot keeps both signs.
//! 3. Carry the bounds of indices back in the same way, without a condition.
//!
//! Cost: linear in the leaves of the module's values, times the depth of its loops.

use crate::values::{Origin, SharedCallees, Through, User, ValueId, Values};
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, GatherAttrs, ScatterAttrs};
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::op::{Domain, ResultSign};
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};

/// Values of one array leaf of the entry's parameters for which the program computes numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeafNeeds {
    /// It must be above zero.
    pub is_positive: bool,
    /// It must not be zero, and all such leaves have one sign: sums of them are not zero either.
    pub is_nonzero: bool,
    /// It must lie between zero and one.
    pub is_fraction: bool,
    /// It is an index; all its users clamp or skip what is larger than this.
    pub last_index: Option<u64>,
    /// A user promises that these indices are sorted.
    pub is_sorted: bool,
    /// A user promises that no two of these indices are the same.
    pub is_unique: bool,
}

impl LeafNeeds {
    fn of_domain(domain: Domain) -> LeafNeeds {
        match domain {
            Domain::Positive => LeafNeeds { is_positive: true, ..LeafNeeds::default() },
            Domain::NotZero => LeafNeeds { is_nonzero: true, ..LeafNeeds::default() },
            Domain::Fraction => LeafNeeds { is_fraction: true, is_positive: true, ..LeafNeeds::default() },
        }
    }

    /// Returns the needs of both.
    fn and(self, other: LeafNeeds) -> LeafNeeds {
        LeafNeeds {
            is_positive: self.is_positive || other.is_positive,
            is_nonzero: self.is_nonzero || other.is_nonzero,
            is_fraction: self.is_fraction || other.is_fraction,
            last_index: self.last_index.max(other.last_index),
            is_sorted: self.is_sorted || other.is_sorted,
            is_unique: self.is_unique || other.is_unique,
        }
    }

    /// The needs of an index alone.
    fn of_index(self) -> LeafNeeds {
        LeafNeeds { is_positive: false, is_nonzero: false, is_fraction: false, ..self }
    }
}

/// The needs of each array leaf of the entry's parameters, in order.
pub fn find_input_needs(module: &Module) -> Vec<LeafNeeds> {
    let values = Values::find(module, Through::ALL, SharedCallees::Entered);
    let [always, not_negative] = [false, true].map(|are_params| find_not_negative(module, &values, are_params));
    let finder = Finder { module, not_negative, always, values };
    let needs = finder.carry_back();
    let mut leaves = Vec::new();
    let params = module.entry().map_or(&[][..], |entry| &module.comp(entry).params);
    for &param in params {
        let mut leaf_idx = 0;
        module.shape(param).for_each_leaf(&mut |_, shape| {
            if shape.as_array().is_some() {
                let value = finder.values.leaves(param).get(leaf_idx).and_then(|value| value.expand());
                leaves.push(value.map_or(LeafNeeds::default(), |value| needs[value]));
            }
            leaf_idx += 1;
        });
    }
    leaves
}

/// The values that are not negative if no parameter of the entry is (`are_params`), or whatever these are.
///
/// Starts from all of them and drops those that may be negative until nothing changes, so that what a loop carries is found as well.
fn find_not_negative(module: &Module, values: &Values, are_params: bool) -> SecondaryMap<ValueId, bool> {
    let mut kept: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(true);
    loop {
        let mut has_changed = false;
        for (value, leaf) in &values.values {
            let holds = match leaf.origin {
                Origin::EntryParam => are_params,
                Origin::Param | Origin::Carry | Origin::CallResult => values.sources[value].iter().all(|&s| kept[s]),
                Origin::Computed => is_not_negative(module, values, &kept, value),
            };
            if kept[value] && !holds {
                kept[value] = false;
                has_changed = true;
            }
        }
        if !has_changed {
            return kept;
        }
    }
}

/// Whether a computed value is not negative, given which values are not.
fn is_not_negative(module: &Module, values: &Values, kept: &SecondaryMap<ValueId, bool>, value: ValueId) -> bool {
    let (inst, leaf_idx) = values.values[value].sites[0];
    if let Some(least) = least_of_constant(module, inst) {
        return least >= 0.0;
    }
    let operands = &module.inst(inst).operands;
    let is_kept = |operand: InstId| values.of(operand).is_some_and(|value| kept[value]);
    let are_all = || data_operands(module, (inst, leaf_idx)).into_iter().all(is_kept);
    match result_sign(module, inst) {
        ResultSign::Any => false,
        ResultSign::NotNegative => true,
        ResultSign::Kept => are_all(),
        ResultSign::Product => operands.first() == operands.get(1) || are_all(),
        ResultSign::Difference => match operands.as_slice() {
            [from, less] => least_of_splat(module, *from).is_some_and(|least| least >= 1.0) && is_kept(*less),
            _ => false,
        },
        ResultSign::AnyOperand => operands.iter().any(|&operand| is_kept(operand)),
    }
}

/// Whether an instruction is a custom call that only marks, moves or cuts its operands: leaf `k` of its result is made of operand `k`.
fn is_mark(module: &Module, inst: InstId) -> bool {
    CustomTarget::of(&module.inst(inst).attrs)
        .is_some_and(|target| target.is_identity() || matches!(target, CustomTarget::Boundary(_)))
}

/// The sign of an instruction's result.
fn result_sign(module: &Module, inst: InstId) -> ResultSign {
    if is_mark(module, inst) { ResultSign::Kept } else { module.inst(inst).opcode.row().signs.result }
}

/// The operands whose elements a leaf of the result is made of: predicates and indices of another type are none.
fn data_operands(module: &Module, (inst, leaf_idx): (InstId, u32)) -> Vec<InstId> {
    let operands = &module.inst(inst).operands;
    let dtype = |shape: Option<&Shape>| shape.and_then(Shape::as_array).map(|array| array.dtype);
    let of_leaf = dtype(module.shapes.leaf(module.inst(inst).shape, leaf_idx as usize));
    match operands.as_slice() {
        [only] => vec![*only],
        several if is_mark(module, inst) => several.get(leaf_idx as usize).copied().into_iter().collect(),
        several => several.iter().copied().filter(|&operand| dtype(Some(module.shape(operand))) == of_leaf).collect(),
    }
}

/// The least element of a real constant; `None` for everything else, and for elements that the text leaves out.
fn least_of_constant(module: &Module, inst: InstId) -> Option<f64> {
    let Attrs::Constant(value) = &module.inst(inst).attrs else { return None };
    let ConstantValue::Array(literal) = value.as_ref() else { return None };
    let number = |index: usize| match literal.get(index)? {
        Scalar::Pred(_) => Some(0.0),
        Scalar::Int(value) => Some(value as f64),
        Scalar::Uint(value) => Some(value as f64),
        Scalar::Float(value) => Some(value),
        Scalar::Complex(..) => None,
    };
    (0..literal.n_elems()).map(number).try_fold(f64::INFINITY, |least, value| Some(least.min(value?)))
}

/// As [`least_of_constant`], also of a constant that is only broadcast, reshaped or converted.
fn least_of_splat(module: &Module, inst: InstId) -> Option<f64> {
    let mut inst = inst;
    while least_of_constant(module, inst).is_none() {
        match module.inst(inst).operands.as_slice() {
            [only] if result_sign(module, inst) == ResultSign::Kept => inst = *only,
            _ => return None,
        }
    }
    least_of_constant(module, inst)
}

struct Finder<'m> {
    module: &'m Module,
    values: Values,
    not_negative: SecondaryMap<ValueId, bool>,
    /// The values that are not negative whatever the parameters are.
    always: SecondaryMap<ValueId, bool>,
}

impl Finder<'_> {
    /// The needs of all values.
    fn carry_back(&self) -> SecondaryMap<ValueId, LeafNeeds> {
        let mut needs: SecondaryMap<ValueId, LeafNeeds> = SecondaryMap::new();
        let mut open: Vec<(ValueId, LeafNeeds)> = Vec::new();
        for value in self.values.values.keys() {
            for taken in &self.values.uses[value] {
                if let User::Op { inst, operand } = taken.user {
                    open.push((value, self.of_operand(inst, operand as usize)));
                }
            }
        }
        while let Some((value, more)) = open.pop() {
            let joined = needs[value].and(more);
            if joined == needs[value] {
                continue;
            }
            needs[value] = joined;
            match self.values.values[value].origin {
                Origin::EntryParam => {}
                Origin::Param | Origin::Carry | Origin::CallResult => {
                    open.extend(self.values.sources[value].iter().map(|&source| (source, joined)));
                }
                Origin::Computed => self.of_sources(value, joined, &mut open),
            }
        }
        needs
    }

    /// The needs of the operands of the op that computes `value`, which has these needs.
    fn of_sources(&self, value: ValueId, needs: LeafNeeds, open: &mut Vec<(ValueId, LeafNeeds)>) {
        let site @ (inst, _) = self.values.values[value].sites[0];
        let operands = &self.module.inst(inst).operands;
        let result = result_sign(self.module, inst);
        // A need of a sign that no parameter's sign can meet is dropped.
        let needs = if self.not_negative[value] { needs } else { needs.of_index() };
        let mut give = |operand: InstId, needs: LeafNeeds| {
            open.extend(self.values.of(operand).map(|value| (value, needs)));
        };
        let data = data_operands(self.module, site);
        match result {
            ResultSign::Any => {}
            ResultSign::Product if operands.first() == operands.get(1) => {}
            ResultSign::Kept | ResultSign::Product => {
                // A sum of fractions is none.
                let is_one = data.len() == 1 || result == ResultSign::Product;
                let needs = LeafNeeds { is_fraction: needs.is_fraction && is_one, ..needs };
                data.into_iter().for_each(|operand| give(operand, needs));
            }
            ResultSign::Difference => {
                data.into_iter().for_each(|operand| give(operand, needs.of_index()));
                if let (true, [_, less]) = (needs.is_positive || needs.is_nonzero, operands.as_slice()) {
                    give(*less, LeafNeeds::of_domain(Domain::Fraction));
                }
            }
            // One that is never negative is enough.
            ResultSign::AnyOperand => {
                let is_met =
                    data.iter().any(|&operand| self.values.of(operand).is_some_and(|value| self.always[value]));
                let needs = if is_met { needs.of_index() } else { needs };
                data.into_iter().for_each(|operand| give(operand, needs));
            }
            ResultSign::NotNegative => {
                // A power or a root of a fraction is one.
                let domain = self.module.inst(inst).opcode.row().signs.domain;
                if let (true, Some((operand, _))) = (needs.is_fraction, domain) {
                    operands.get(operand).into_iter().for_each(|&of| give(of, LeafNeeds::of_domain(Domain::Fraction)));
                }
            }
        }
    }

    /// Returns the needs that an op has of one of its operands.
    fn of_operand(&self, inst: InstId, operand: usize) -> LeafNeeds {
        let row = self.module.inst(inst).opcode.row();
        let of_domain = row.signs.domain.filter(|&(of, _)| of == operand);
        let is_real = |array: &ArrayShape| array.dtype.is_float();
        let has_sign = || self.module.shape(inst).as_array().is_some_and(is_real) || row.signs.domain.is_some();
        // Whole powers are those of negative numbers too.
        let is_whole_power = || {
            let exponent = self.module.inst(inst).operands.get(1);
            exponent.and_then(|&of| least_of_splat(self.module, of)).is_some_and(|least| least.fract() == 0.0)
        };
        let domain_here = |domain: Domain| match domain {
            Domain::Positive if self.module.inst(inst).opcode == Opcode::Power && is_whole_power() => Domain::NotZero,
            Domain::Positive | Domain::NotZero | Domain::Fraction => domain,
        };
        let of_domain = of_domain.filter(|_| has_sign()).map(|(_, domain)| LeafNeeds::of_domain(domain_here(domain)));
        of_domain.unwrap_or_default().and(self.of_index(inst, operand).unwrap_or_default())
    }

    /// The bounds of an index operand; `None` of other operands.
    fn of_index(&self, inst: InstId, operand: usize) -> Option<LeafNeeds> {
        let module = self.module;
        let (attrs, operands) = (&module.inst(inst).attrs, &module.inst(inst).operands);
        let array = |operand: usize| module.shape(*operands.get(operand)?).as_array();
        let last = |of: &ArrayShape, dim: i64, size: i64| {
            let dim = usize::try_from(dim).ok()?;
            u64::try_from(of.dims.get(dim)? - size).ok()
        };
        if let Some(gather) = GatherAttrs::of(attrs) {
            let size = |dim: i64| gather.slice_sizes.get(usize::try_from(dim).ok()?).copied();
            let lasts = gather.start_index_map.iter().filter_map(|&dim| last(array(0)?, dim, size(dim)?));
            let bounds =
                LeafNeeds { is_sorted: gather.indices_are_sorted, last_index: lasts.max(), ..LeafNeeds::default() };
            return (operand == 1).then_some(bounds);
        }
        if let Some(scatter) = ScatterAttrs::of(attrs) {
            // A window that the update does not fill counts as one element: what is beyond it is skipped.
            let lasts = scatter.scatter_dims_to_operand_dims.iter().filter_map(|&dim| last(array(0)?, dim, 1));
            let bounds = LeafNeeds {
                is_sorted: scatter.indices_are_sorted,
                is_unique: scatter.unique_indices,
                last_index: lasts.max(),
                ..LeafNeeds::default()
            };
            return (operand == operands.len().saturating_sub(1) / 2).then_some(bounds);
        }
        if !module.inst(inst).opcode.row().factors.takes_window() {
            return None;
        }
        // The indices come last, one for each dim; a window is the result of a slice, and the second operand of an update.
        let whole = array(0)?;
        let first_index = operands.len().checked_sub(whole.rank())?;
        let dim = operand.checked_sub(first_index)?;
        let window = if first_index == 1 { module.shape(inst).as_array() } else { array(1) };
        Some(LeafNeeds { last_index: last(whole, dim as i64, *window?.dims.get(dim)?), ..LeafNeeds::default() })
    }
}
