//! Which well-known reduction a reducer computation is. It is read off the instructions, never off the name.

use crate::custom_target::CustomTarget;
use crate::dtype::{DType, NumberClass};
use crate::literal::{Literal, Scalar};
use crate::module::{CompId, InstId, Module};
use crate::op::Opcode;

/// An associative and commutative op of two scalars that has an identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub enum Monoid {
    Add,
    Multiply,
    Maximum,
    Minimum,
    And,
    Or,
}

impl Monoid {
    const ALL: [Monoid; 6] = [Monoid::Add, Monoid::Multiply, Monoid::Maximum, Monoid::Minimum, Monoid::And, Monoid::Or];

    /// The op that combines two values.
    pub fn opcode(self) -> Opcode {
        match self {
            Monoid::Add => Opcode::Add,
            Monoid::Multiply => Opcode::Multiply,
            Monoid::Maximum => Opcode::Maximum,
            Monoid::Minimum => Opcode::Minimum,
            Monoid::And => Opcode::And,
            Monoid::Or => Opcode::Or,
        }
    }

    /// Whether the op exists on elements of this type.
    pub fn is_defined_on(self, dtype: DType) -> bool {
        match (self, dtype.class()) {
            (Monoid::Add | Monoid::Multiply, _) => true,
            (Monoid::Maximum | Monoid::Minimum, class) => class != NumberClass::Complex,
            (Monoid::And | Monoid::Or, class) => !matches!(class, NumberClass::Float | NumberClass::Complex),
        }
    }

    /// The value that changes no other when both are combined; `None` if the element type has none.
    pub fn identity(self, dtype: DType) -> Option<Scalar> {
        let (bits, class) = (dtype.bits(), dtype.class());
        let is_truth = class == NumberClass::Pred;
        match (self, class) {
            (Monoid::Add, _) => Some(Scalar::Pred(false)).filter(|_| dtype != DType::F8E8M0FNU),
            (Monoid::Multiply, _) => Some(Scalar::Pred(true)),
            (Monoid::Maximum, NumberClass::Float) => stored(dtype, f64::NEG_INFINITY),
            (Monoid::Minimum, NumberClass::Float) => stored(dtype, f64::INFINITY),
            (Monoid::Maximum | Monoid::Minimum, NumberClass::Complex) => None,
            (Monoid::And | Monoid::Or, NumberClass::Float | NumberClass::Complex) => None,
            (Monoid::Or | Monoid::Maximum, NumberClass::Pred | NumberClass::Unsigned) => Some(Scalar::Pred(false)),
            (Monoid::Or, NumberClass::Signed) => Some(Scalar::Pred(false)),
            (Monoid::And | Monoid::Minimum, _) if is_truth => Some(Scalar::Pred(true)),
            (Monoid::And, NumberClass::Signed) => Some(Scalar::Int(-1)),
            (Monoid::And | Monoid::Minimum, _) if class == NumberClass::Unsigned => {
                Some(Scalar::Uint(u64::MAX >> 64u32.saturating_sub(bits)))
            }
            (Monoid::Maximum, _) => Some(Scalar::Int(i64::MIN >> 64u32.saturating_sub(bits))),
            (Monoid::And | Monoid::Minimum, _) => Some(Scalar::Int(i64::MAX >> 64u32.saturating_sub(bits))),
        }
    }
}

/// The value, if the element type holds it exactly.
fn stored(dtype: DType, value: f64) -> Option<Scalar> {
    let held = Literal::scalar(dtype, Scalar::Float(value)).get(0);
    held.filter(|scalar| matches!(scalar, Scalar::Float(x) if *x == value))
}

/// The reduction of a computation that applies one op to its two scalar parameters, in either order, and has no effect
/// besides; `None` for any other.
pub fn find_monoid(module: &Module, comp: CompId) -> Option<Monoid> {
    let [a, b] = module.comp(comp).params.as_slice() else { return None };
    if module.comp(comp).insts.len() > 3 && !module.effectful_among(&[comp]).is_empty() {
        return None;
    }
    monoid_of(module, module.comp(comp).root.expand()?, *a, *b)
}

/// The reductions of a computation of `2 n` scalars: result `i` combines parameters `i` and `n + i` by one op.
/// `None` for any other computation.
pub(crate) fn find_monoids(module: &Module, comp: CompId, n: usize) -> Option<Vec<Monoid>> {
    if n == 1 {
        return Some(vec![find_monoid(module, comp)?]);
    }
    let computation = module.comp(comp);
    let root = module.inst(computation.root.expand()?);
    if root.opcode != Opcode::Tuple || root.operands.len() != n || computation.params.len() != 2 * n {
        return None;
    }
    let pairs = computation.params[..n].iter().zip(&computation.params[n..]);
    root.operands.iter().zip(pairs).map(|(&leaf, (&a, &b))| monoid_of(module, leaf, a, b)).collect()
}

/// The op of `inst`, if it combines `a` and `b` in either order. JAX puts a copy, or an annotation, behind the op of a
/// reducer within a manual region.
fn monoid_of(module: &Module, mut inst: InstId, a: InstId, b: InstId) -> Option<Monoid> {
    while gives_operand(module, inst) {
        inst = *module.inst(inst).operands.first()?;
    }
    let inst = module.inst(inst);
    let takes_both = matches!(inst.operands.as_slice(), &[x, y] if (x, y) == (a, b) || (x, y) == (b, a));
    Monoid::ALL.into_iter().find(|monoid| takes_both && monoid.opcode() == inst.opcode)
}

/// Whether an instruction is its operand, whatever that is.
fn gives_operand(module: &Module, inst: InstId) -> bool {
    let inst = module.inst(inst);
    inst.opcode == Opcode::Copy || CustomTarget::of(&inst.attrs).is_some_and(CustomTarget::is_identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::{Attrs, ParameterAttrs};
    use crate::edit::Builder;
    use crate::shape::Shape;

    #[test]
    fn identities_are_those_of_the_element_type() {
        let identity = |monoid: Monoid, dtype| monoid.identity(dtype).and_then(|x| Literal::scalar(dtype, x).get(0));
        assert_eq!(identity(Monoid::Add, DType::F32), Some(Scalar::Float(0.0)));
        assert_eq!(identity(Monoid::Multiply, DType::C64), Some(Scalar::Complex(1.0, 0.0)));
        assert_eq!(identity(Monoid::Maximum, DType::BF16), Some(Scalar::Float(f64::NEG_INFINITY)));
        assert_eq!(identity(Monoid::Maximum, DType::F8E4M3FN), None, "the type has no infinity");
        assert_eq!(identity(Monoid::Maximum, DType::S8), Some(Scalar::Int(-128)));
        assert_eq!(identity(Monoid::Minimum, DType::U16), Some(Scalar::Uint(65535)));
        assert_eq!(identity(Monoid::Minimum, DType::S64), Some(Scalar::Int(i64::MAX)));
        assert_eq!(identity(Monoid::And, DType::S4), Some(Scalar::Int(-1)));
        assert_eq!(identity(Monoid::And, DType::Pred), Some(Scalar::Pred(true)));
        assert_eq!(identity(Monoid::Or, DType::Pred), Some(Scalar::Pred(false)));
        assert_eq!(identity(Monoid::Or, DType::F32), None);
    }

    #[test]
    fn several_reductions_pair_each_parameter_with_the_one_n_later() {
        let mut module = Module::new("m");
        let name = module.names.intern("both");
        let comp = module.add_computation(name);
        let mut b = Builder::new(&mut module, comp);
        let scalar = Shape::array(DType::F32, []);
        let params = [0, 1, 2, 3].map(|number| {
            let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
            b.add("p", Opcode::Parameter, scalar.clone(), [], attrs)
        });
        let sum = b.add("sum", Opcode::Add, scalar.clone(), [params[2], params[0]], Attrs::Plain);
        let most = b.add("most", Opcode::Maximum, scalar.clone(), [params[1], params[3]], Attrs::Plain);
        let mut returned = |leaves: &[InstId]| {
            let shape = Shape::Tuple(vec![scalar.clone(); leaves.len()]);
            let root =
                Builder::new(&mut module, comp).add("t", Opcode::Tuple, shape, leaves.iter().copied(), Attrs::Plain);
            module.comp_mut(comp).root = Some(root).into();
            [1, 2, 3].map(|n| find_monoids(&module, comp, n))
        };
        assert_eq!(returned(&[sum, most]), [None, Some(vec![Monoid::Add, Monoid::Maximum]), None]);
        assert_eq!(returned(&[sum, most, sum]), [None, None, None]);
        assert_eq!(returned(&[most, sum]), [None, None, None]);
    }
}
