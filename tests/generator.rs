//! The generator of random modules gives valid, repeatable programs.

use hlo_ir::infer::{Inferred, agrees};
use hlo_tests::random_module::{Size, random_module};

fn sizes() -> impl Iterator<Item = (u64, Size)> {
    (0..120u64).map(|seed| {
        let (replica_count, num_partitions) = (1 + (seed % 4) as usize, 1 + (seed / 4 % 4) as usize);
        (seed, Size { replica_count, num_partitions, n_steps: 30 })
    })
}

#[test]
fn random_modules_parse_and_have_the_shapes_that_the_op_table_infers() {
    for (seed, size) in sizes() {
        let text = random_module(seed, size).text;
        let module = match hlo_text::parse_module(&text) {
            Ok(parsed) => parsed.module,
            Err(diags) => panic!("seed {seed}: {}", hlo_text::render(&diags, "random", &text, false)),
        };
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                let name = module.inst_name(inst);
                let shape = match hlo_ir::infer::infer_inst(&module, inst) {
                    Ok(Inferred::Shape(shape)) => shape,
                    Ok(Inferred::Operand(k)) => module.shape(module.inst(inst).operands[k]).clone(),
                    Ok(Inferred::Stated) => continue,
                    Err(error) => panic!("seed {seed}, {name}: {error}\n{text}"),
                };
                assert!(agrees(&shape, module.shape(inst)), "seed {seed}, {name}: {shape:?}\n{text}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_module_and_fewer_steps_a_prefix() {
    let size = Size { replica_count: 2, num_partitions: 2, n_steps: 20 };
    let whole = random_module(7, size);
    assert_eq!(whole, random_module(7, size));
    assert_ne!(whole, random_module(8, size));
    let part = random_module(7, Size { n_steps: 10, ..size });
    let entry = |text: &str| text[text.find("ENTRY").expect("an entry")..].to_string();
    let (whole, part) = (entry(&whole.text), entry(&part.text));
    let body: Vec<&str> = part.lines().collect();
    assert!(whole.lines().zip(&body[..body.len() - 2]).all(|(a, &b)| a == b));
}
