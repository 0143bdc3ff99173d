//! Costs of instructions in the samples of `analysis/cost`, each as its line says.

use hlo_ir::cost::Costs;
use hlo_text::parse_module;
use std::path::Path;

#[test]
fn marked_instructions_cost_what_their_line_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/analysis/cost/ops.hlo");
    let text = std::fs::read_to_string(path).expect("a readable sample");
    let parsed = parse_module(&text).unwrap_or_else(|d| panic!("{}", d[0].message));
    let module = &parsed.module;
    hlo_ir::verify::verify(module).unwrap_or_else(|d| panic!("{}", d[0].message));
    let costs = Costs::new(module);
    let (mut failures, mut n_marks) = (Vec::new(), 0);
    for &inst in module.computations().iter().flat_map(|&c| &module.comp(c).insts) {
        let line = text[parsed.sources.insts[inst] as usize..].lines().next().unwrap_or("");
        let Some((_, expected)) = line.split_once("  // ") else { continue };
        let cost = costs.of(inst);
        let found = format!("flops {}, reads {}, writes {}", cost.flops, cost.bytes_read, cost.bytes_written);
        n_marks += 1;
        if expected != found || cost.is_partial {
            failures.push(format!("{}: expected {expected}, found {found}", module.inst_name(inst)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(n_marks, text.matches("  // flops ").count());
}
