//! Reductions over the dim that is cut: each device reduces its shard, and the devices combine their partial results.

use crate::context::ShardingContext;
use crate::placement::Node;
use crate::problem::Problem;
use crate::tables::{IndexMap, IndexSet};
use cranelift_entity::SecondaryMap;
use hlo_analysis::values::User;
use hlo_ir::attrs::Attrs;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, DType, InstId, Module};
use hlo_spmd::ResultCut;

impl Problem {
    /// Finds the reductions over a cut dim whose partial results an all-reduce combines.
    pub(crate) fn add_partials(&mut self, context: &mut ShardingContext<'_>) {
        let mut found = Vec::new();
        for region in &self.regions {
            for (&value, &run) in &region.runs {
                for taken in &context.values.uses[value] {
                    let User::Op { inst, operand: 0 } = taken.user else { continue };
                    let cut = context.relation(inst).map(|r| r.result_cut(0, run));
                    let is_fused = context.values.fused.contains(taken.comp);
                    let is_equal = context.replication.is_equal_within(inst, 0, context.groups);
                    if cut == Some(ResultCut::Partial) && is_equal && !is_fused && partial_reducer(context.module, inst)
                    {
                        found.push(inst);
                    }
                }
            }
        }
        for inst in found {
            let node = self.costs.add_node();
            self.partials.insert(inst, node);
        }
    }

    /// Partial results that are combined together and pay the latency once: those of one computation, element type and
    /// reducer that do not wait for one another.
    pub(crate) fn batches(&self, module: &Module) -> Vec<(CompId, Vec<Node>)> {
        let mut batches: IndexMap<(CompId, u32, DType, Option<Monoid>), Vec<Node>> = IndexMap::default();
        let comps: IndexSet<CompId> = self.partials.keys().map(|&inst| module.inst(inst).parent).collect();
        for comp in comps {
            let mut n_waited: SecondaryMap<InstId, u32> = SecondaryMap::new();
            for &inst in &module.comp(comp).insts {
                let instruction = module.inst(inst);
                let waited = instruction.operands.iter().map(|&o| n_waited[o]).max().unwrap_or(0);
                let node = self.partials.get(&inst);
                n_waited[inst] = waited + u32::from(node.is_some());
                if let (Some(&node), Attrs::Reduce(reduce), Some(array)) =
                    (node, &instruction.attrs, module.shape(inst).as_array())
                {
                    let reducer = reduce.to_apply.and_then(|c| find_monoid(module, c));
                    batches.entry((comp, waited, array.dtype, reducer)).or_default().push(node);
                }
            }
        }
        batches.into_iter().map(|((comp, ..), nodes)| (comp, nodes)).collect()
    }
}

/// Whether the partial results of a reduce can be combined by an all-reduce: one array, a known reducer, and an initial
/// value that is its identity.
fn partial_reducer(module: &Module, inst: InstId) -> bool {
    let Attrs::Reduce(reduce) = &module.inst(inst).attrs else { return false };
    let [_, init] = module.inst(inst).operands.as_slice() else { return false };
    let Some(reducer) = reduce.to_apply.and_then(|c| find_monoid(module, c)) else { return false };
    let Attrs::Constant(constant) = &module.inst(*init).attrs else { return false };
    let ConstantValue::Array(literal) = &**constant else { return false };
    match (reducer, literal.get(0)) {
        (Monoid::Add, Some(Scalar::Float(x))) => x == 0.0,
        (Monoid::Add | Monoid::Or, Some(Scalar::Int(0) | Scalar::Uint(0) | Scalar::Pred(false))) => true,
        (Monoid::And, Some(Scalar::Pred(true))) => true,
        (Monoid::Maximum, Some(Scalar::Float(x))) => x == f64::NEG_INFINITY,
        (Monoid::Minimum, Some(Scalar::Float(x))) => x == f64::INFINITY,
        (Monoid::Add, Some(Scalar::Complex(re, im))) => (re, im) == (0.0, 0.0),
        (Monoid::Add | Monoid::Or | Monoid::And | Monoid::Maximum | Monoid::Minimum | Monoid::Multiply, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::attrs::{ParameterAttrs, ReduceAttrs};
    use hlo_ir::edit::Builder;
    use hlo_ir::{Literal, Opcode, Shape};

    /// Whether a reduction by `opcode` from `init` can be combined.
    fn is_combined(opcode: Opcode, dtype: DType, init: Scalar) -> bool {
        let mut module = Module::new("m");
        let comps = ["reducer", "entry"].map(|name| {
            let name = module.names.intern(name);
            module.add_computation(name)
        });
        let array = |dims: &[i64]| Shape::array(dtype, dims.iter().copied());
        let attrs = |number| ParameterAttrs { number, ..ParameterAttrs::default() };
        let mut b = Builder::new(&mut module, comps[0]);
        let params = [0, 1].map(|number| b.add("x", Opcode::Parameter, array(&[]), [], attrs(number)));
        let root = b.add("r", opcode, array(&[]), params, Attrs::Plain);
        module.comp_mut(comps[0]).root = Some(root).into();
        let mut b = Builder::new(&mut module, comps[1]);
        let x = b.add("x", Opcode::Parameter, array(&[4]), [], attrs(0));
        let init = b.constant("init", Literal::scalar(dtype, init));
        let reduce = ReduceAttrs { dimensions: [0].into_iter().collect(), to_apply: Some(comps[0]) };
        let inst = b.add("reduce", Opcode::Reduce, array(&[]), [x, init], reduce);
        partial_reducer(&module, inst)
    }

    #[test]
    fn partial_results_are_combined_where_the_initial_value_changes_nothing() {
        let float = |opcode, x| is_combined(opcode, DType::F32, Scalar::Float(x));
        assert_eq!([0.0, 1.0].map(|x| float(Opcode::Add, x)), [true, false]);
        let infinities = [f64::NEG_INFINITY, f64::INFINITY, 0.0];
        assert_eq!(infinities.map(|x| float(Opcode::Maximum, x)), [true, false, false]);
        assert_eq!(infinities.map(|x| float(Opcode::Minimum, x)), [false, true, false]);
        assert_eq!([0.0, 1.0].map(|x| float(Opcode::Multiply, x)), [false, false]);
        assert_eq!([0, 1].map(|x| is_combined(Opcode::Add, DType::S32, Scalar::Int(x))), [true, false]);
        assert_eq!([0, 1].map(|x| is_combined(Opcode::Or, DType::U8, Scalar::Uint(x))), [true, false]);
        let truth = |opcode| [false, true].map(|x| is_combined(opcode, DType::Pred, Scalar::Pred(x)));
        assert_eq!((truth(Opcode::And), truth(Opcode::Or)), ([false, true], [true, false]));
        let complex = |re, im| is_combined(Opcode::Add, DType::C64, Scalar::Complex(re, im));
        assert_eq!([complex(0.0, 0.0), complex(0.0, 1.0), complex(1.0, 0.0)], [true, false, false]);
    }
}
