//! `compare` sees faults of one element in the updates of Adam steps on inputs that it draws by itself.
//!
//! A fault negates one element of a value that is computed in the shape of a weight: a gradient, a moment, a step. It stands in a copy
//! of the program, and the copy is compared with the program.

use crate::lockstep::parse;
use crate::tool::run;
use hlo_ir::attrs::Attrs;
use hlo_ir::edit::Builder;
use hlo_ir::literal::{Buffer, ConstantValue, Literal};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{ArrayShape, DType, InstId, Module, Opcode, Shape};
use hlo_tests::random_module::Rng;
use hlo_tests::root;
use std::path::{Path, PathBuf};

/// Steps by Adam, with a draw of seconds each.
const STEPS: [&str; 3] =
    ["programs/mlp_adam_2.hlo", "programs/mlp_adam_6.hlo", "passes/shard-weight-update/adam-replicas.hlo"];

/// Faults in each step.
const N_FAULTS: usize = 20;

/// The values of the entry from which an output that the step returns in the same shape is computed elementwise: those of the update.
fn values_of_updates(module: &Module) -> Vec<InstId> {
    let entry = module.entry().expect("an entry");
    let users = module.users();
    let insts = &module.comp(entry).insts;
    let is_array = |inst: InstId| {
        module.shape(inst).as_array().is_some_and(|array| array.dtype == DType::F32 && array.n_elems() > 1)
    };
    // Whether every use ends in an output by elementwise ops.
    let mut reaches = std::collections::BTreeSet::new();
    for &inst in insts.iter().rev() {
        let ends = users[inst].iter().any(|&user| {
            Some(user) == module.comp(entry).root.expand()
                || reaches.contains(&user) && module.inst(user).opcode.is_elementwise()
        });
        if ends && is_array(inst) {
            reaches.insert(inst);
        }
    }
    let is_computed = |inst: &InstId| module.inst(*inst).opcode.is_elementwise();
    insts.iter().copied().filter(|inst| reaches.contains(inst) && is_computed(inst)).collect()
}

/// Negates element `place` of `inst` for all its users.
fn plant(module: &mut Module, inst: InstId, place: usize) {
    let comp = module.inst(inst).parent;
    let array = module.shape(inst).as_array().expect("an array").clone();
    let is_place = (0..array.n_elems() as usize).map(|i| i == place).collect();
    let mask = Literal::new(DType::Pred, &array.dims, Buffer::Pred(is_place)).expect("a mask");
    let of_mask = Shape::Array(ArrayShape { dtype: DType::Pred, ..array.clone() });
    let shape = Shape::Array(array);
    let users: Vec<InstId> = module.users()[inst].to_vec();
    let mut builder = Builder::new(module, comp);
    let value = Attrs::Constant(Box::new(ConstantValue::Array(mask)));
    let mask = builder.add("fault.mask", Opcode::Constant, of_mask, [], value);
    let negated = builder.add("fault.negated", Opcode::Negate, shape.clone(), [inst], Attrs::Plain);
    let faulty = builder.add("fault", Opcode::Select, shape, [mask, negated, inst], Attrs::Plain);
    for user in users {
        let operands = module.inst(user).operands.clone();
        for (k, &operand) in operands.iter().enumerate() {
            if operand == inst {
                module.set_operand(user, k, faulty);
            }
        }
    }
    module.restore_order(comp).expect("no circle");
}

fn compared(a: &Path, b: &Path) -> (u8, String) {
    let (code, out, err) = run([Path::new("compare"), a, b]);
    (code, out + &err)
}

#[test]
fn compare_sees_faults_of_one_element_in_the_updates_of_adam() {
    let folder = std::env::temp_dir().join(format!("hlo-opt-planted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut unseen: Vec<String> = Vec::new();
    for step in STEPS {
        let path: PathBuf = root().join(step);
        let text = std::fs::read_to_string(&path).expect("the step");
        let module = parse(step, &text);
        let (code, said) = compared(&path, &path);
        assert!(code == 0 && !said.contains("NaN"), "{step}: {said}");
        let values = values_of_updates(&module);
        assert!(values.len() > N_FAULTS / 2, "{step}: found {} values of updates", values.len());
        let mut rng = Rng::new(7);
        for number in 0..N_FAULTS {
            let inst = values[number * values.len() / N_FAULTS];
            let n_elems = module.shape(inst).as_array().map_or(0, |array| array.n_elems() as usize);
            let place = rng.below(n_elems);
            let mut faulty = module.clone();
            plant(&mut faulty, inst, place);
            let file = folder.join("faulty.hlo");
            std::fs::write(&file, print_module(&faulty, &PrintOptions::default())).expect("a file");
            let (code, said) = compared(&path, &file);
            if code != 4 {
                let name = module.inst_name(inst);
                unseen
                    .push(format!("{step}: element {place} of %{name} ({}): {code} {said}", module.inst(inst).opcode));
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
    assert!(
        unseen.is_empty(),
        "{} of {} faults are not seen\n{}",
        unseen.len(),
        STEPS.len() * N_FAULTS,
        unseen.join("\n")
    );
}
