//! `compare` sees faults on inputs that it draws by itself.
//!
//! Those of one element stand in the updates of Adam steps. A fault negates one element of a value that is computed in the shape of a weight: a gradient, a moment, a step. It stands in a copy
//! of the program, and the copy is compared with the program. Those of `tests/planted` stand in a line: in branches
//! that small integers and normal floats do not take, in small terms beside large ones, at the edges of what is indexed.

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
#[ignore = "takes long: .ci/nightly runs it"]
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

/// The programs of `tests/planted` with their faults: `// fault: LINE -> LINE`.
#[test]
fn compare_sees_faults_that_few_inputs_reach() {
    let folder = std::env::temp_dir().join(format!("hlo-opt-planted-lines-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let samples = root().join("../tests/planted");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&samples).expect("the samples").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let (mut unseen, mut n_faults) = (Vec::new(), 0);
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a sample");
        let (code, said) = compared(&path, &path);
        assert!(code == 0, "{}: {code} {said}", path.display());
        for fault in text.lines().filter_map(|line| line.strip_prefix("// fault: ")) {
            let (right, wrong) = fault.split_once(" -> ").expect("a line and a line");
            let program: String =
                text.lines().filter(|line| !line.starts_with("//")).map(|line| line.to_string() + "\n").collect();
            let faulty = program.replacen(right, wrong, 1);
            assert!(faulty != program, "{}: {fault}", path.display());
            let file = folder.join("faulty.hlo");
            std::fs::write(&file, faulty).expect("a file");
            let (code, said) = compared(&path, &file);
            n_faults += 1;
            if code != 4 {
                unseen.push(format!("{}: {fault}: {code} {said}", path.display()));
            }
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
    assert!(
        unseen.is_empty() && n_faults >= 40,
        "{} of {n_faults} faults are not seen\n{}",
        unseen.len(),
        unseen.join("\n")
    );
}

/// Where nothing is finite, nothing can be told.
#[test]
fn outputs_without_a_finite_element_are_undecided() {
    let file = std::env::temp_dir().join(format!("hlo-opt-infinite-{}.hlo", std::process::id()));
    let text = "HloModule m\n\nENTRY main {\n  x = f32[4] parameter(0)\n  i = f32[] constant(inf)\n  b = f32[4] broadcast(i), \
                dimensions={}\n  ROOT r = f32[4] multiply(x, b)\n}\n";
    std::fs::write(&file, text).expect("a file");
    let (code, said) = compared(&file, &file);
    std::fs::remove_file(&file).expect("the file");
    assert!(code == 5 && said.contains("infinite as all of their output"), "{code} {said}");
}
