//! Where shardings go: the worked examples of Shardy's rules, and real programs, which compute the same before and after.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::report::PassReport;
use hlo_pass::{Changed, PassCx};

fn parse(text: &str) -> Module {
    let parsed =
        hlo_text::parse_module(text).unwrap_or_else(|d| panic!("{}", hlo_text::render(&d, "text", text, false)));
    hlo_ir::verify::verify(&parsed.module).unwrap_or_else(|diags| panic!("{diags:?}"));
    parsed.module
}

/// The module after the pass, and what the pass says.
fn propagated(text: &str, options: &[(&str, &str)]) -> (Module, PassReport) {
    let info = hlo_partition::PASSES.iter().find(|info| info.name == "propagate-shardings").expect("the pass");
    let given: Vec<_> = options
        .iter()
        .map(|(name, value)| (name.to_string(), hlo_pass::pipeline::OptionValue::Text(value.to_string())))
        .collect();
    let options = Options::check(info.name, info.options, &given).expect("options");
    let pass = (info.build)(&options).expect("a pass");
    let mut module = parse(text);
    let mut report = PassReport::new(info.name);
    let mut cx = PassCx { analyses: &mut Analyses::default(), report: &mut report, measures_peaks: false };
    let changed = pass.run(&mut module, &mut cx).unwrap_or_else(|e| panic!("{:?}", e.diagnostic));
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{diags:?}\n{}", printed(&module)));
    assert_eq!(changed == Changed::No, printed(&module) == printed(&parse(text)), "whether it changed");
    (module, report)
}

fn printed(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// The `sharding=` of an instruction.
fn sharding(module: &Module, name: &str) -> String {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let inst = insts.copied().find(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no %{name}"));
    let text = printed(module);
    let line =
        text.lines().find(|line| line.trim_start().trim_start_matches("ROOT ").starts_with(&format!("%{name} =")));
    let line = line.unwrap_or_else(|| panic!("no line of %{name}"));
    assert!(module.sharding(inst).is_some(), "{line}");
    let (_, rest) = line.split_once("sharding=").unwrap_or_else(|| panic!("{line}"));
    rest.split("}, ").next().unwrap_or(rest).trim_end_matches('}').to_string() + "}"
}

const MESH: &str = r#"frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=2, "c"=2]>}}"#;

fn sdy(text: &str) -> String {
    format!("frontend_attributes={{xla.sdy.sharding=\"#sdy.sharding<@mesh, {}>\"}}", text.replace('"', "\\\""))
}

#[test]
fn a_dot_takes_the_cut_of_the_larger_operand() {
    let text = |rows: i64| {
        format!(
            "HloModule m, {MESH}\n\nENTRY %e (x: f32[{rows},4], w: f32[4,16]) -> f32[{rows},16] {{
  %x = f32[{rows},4]{{1,0}} parameter(0), {}
  %w = f32[4,16]{{1,0}} parameter(1), {}
  ROOT %y = f32[{rows},16]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}\n",
            sdy(r#"[{"a","b"}, {}]"#),
            sdy(r#"[{}, {"a","c"}]"#)
        )
    };
    let (module, _) = propagated(&text(8), &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), "{devices=[1,4,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}");
    let (module, _) = propagated(&text(64), &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), "{devices=[4,1,2]<=[8] last_tile_dim_replicate}");
}

#[test]
fn the_first_of_equal_operands_wins_and_the_one_with_more_shards_before() {
    let text = |columns: &str| {
        format!(
            "HloModule m, {MESH}\n\nENTRY %e (x: f32[8,8], w: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %w = f32[8,8]{{1,0}} parameter(1), {}
  ROOT %y = f32[8,8]{{1,0}} add(%x, %w)
}}\n",
            sdy(r#"[{"a"}, {}]"#),
            sdy(columns)
        )
    };
    let (module, _) = propagated(&text(r#"[{}, {"a"}]"#), &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), "{devices=[2,1,4]<=[8] last_tile_dim_replicate}");
    let (module, _) = propagated(&text(r#"[{}, {"a", "b"}]"#), &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), "{devices=[1,4,2]<=[8] last_tile_dim_replicate}");
}

#[test]
fn more_urgent_annotations_spread_first() {
    let text = format!(
        "HloModule m, {MESH}\n\nENTRY %e (x: f32[8,8], w: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %w = f32[8,8]{{1,0}} parameter(1), {}
  ROOT %y = f32[8,8]{{1,0}} add(%x, %w)
}}\n",
        sdy(r#"[{"a"}p1, {}]"#),
        sdy(r#"[{}, {"a"}]"#)
    );
    let (module, _) = propagated(&text, &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), "{devices=[1,2,4]<=[8] last_tile_dim_replicate}");
    assert_eq!(sharding(&module, "x"), "{devices=[2,1,4]<=[8] last_tile_dim_replicate}");
}

/// Real global programs, with how their inputs are drawn.
fn programs() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/global");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("samples")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains(".unopt"))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).expect("a sample")))
        .collect()
}

#[test]
fn real_programs_compute_the_same_and_have_a_sharding_everywhere() {
    use hlo_eval::draw::DrawOptions;
    use hlo_eval::global::GlobalProgram;
    let all = programs();
    assert_eq!(all.len(), 20);
    for (name, text) in all {
        for order in ["shardy", "gspmd", "best"] {
            let before = parse(&text);
            let (after, _) = propagated(&text, &[("order", order)]);
            for comp in hlo_analysis::code::code_computations(&after) {
                for &inst in &after.comp(comp).insts {
                    assert!(after.sharding(inst).is_some(), "{name}: %{}", after.inst_name(inst));
                }
            }
            let again = propagated(&printed(&after), &[("order", order)]).0;
            assert_eq!(printed(&again), printed(&after), "{name}: a second run");
            let program = GlobalProgram::of(&before).expect("a global program");
            let inputs = program.draw(&DrawOptions::default()).expect("inputs");
            let expected = program.run(&inputs, &Default::default()).expect("a run");
            let after = parse(&printed(&after));
            let found = GlobalProgram::on(&after, program.n_devices()).expect("a global program");
            let found =
                found.run(&inputs, &Default::default()).unwrap_or_else(|e| panic!("{name}: {e}\n{}", printed(&after)));
            assert!(expected.of_devices().leaves == found.of_devices().leaves, "{name} {order}");
        }
    }
}
