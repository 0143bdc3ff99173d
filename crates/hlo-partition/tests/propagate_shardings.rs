//! Where shardings go: the worked examples of Shardy's rules, and real programs, which compute the same before and after.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::report::PassReport;
use hlo_pass::{Changed, PassCx, Target};

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
    let mut analyses = Analyses::default();
    let target = Target::unnamed().expect("a target");
    let mut cx = PassCx::new(&mut analyses, &mut report, &target);
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

/// The instruction's text.
fn line(module: &Module, name: &str) -> String {
    let text = printed(module);
    let found =
        text.lines().find(|line| line.trim_start().trim_start_matches("ROOT ").starts_with(&format!("%{name} =")));
    found.unwrap_or_else(|| panic!("no %{name} in\n{text}")).to_string()
}

const ROWS: &str = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}";
const COLUMNS: &str = "{devices=[1,2,4]<=[8] last_tile_dim_replicate}";

#[test]
fn what_a_loop_carries_is_cut_alike_at_all_ends() {
    // The loop enters with rows cut and its body turns them into columns: the carried value keeps one sharding.
    let text = format!(
        "HloModule m, {MESH}

%body (s: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {{
  %s = (s32[], f32[8,8]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %v = f32[8,8]{{1,0}} get-tuple-element(%s), index=1
  %t = f32[8,8]{{1,0}} transpose(%v), dimensions={{1,0}}, sharding={COLUMNS}
  ROOT %out = (s32[], f32[8,8]{{1,0}}) tuple(%next, %t)
}}

%more (c: (s32[], f32[8,8])) -> pred[] {{
  %c = (s32[], f32[8,8]{{1,0}}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %limit = s32[] constant(3)
  ROOT %less = pred[] compare(%j, %limit), direction=LT
}}

ENTRY %e (x: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %zero = s32[] constant(0)
  %init = (s32[], f32[8,8]{{1,0}}) tuple(%zero, %x)
  %w = (s32[], f32[8,8]{{1,0}}) while(%init), condition=%more, body=%body
  ROOT %y = f32[8,8]{{1,0}} get-tuple-element(%w), index=1
}}\n",
        sdy(r#"[{"a"}, {}]"#)
    );
    let (module, report) = propagated(&text, &[("order", "shardy")]);
    let both = format!("{{{{replicated}}, {ROWS}}}");
    for name in ["init", "w", "s", "c", "out"] {
        assert!(line(&module, name).contains(&format!("sharding={both}")), "{}", line(&module, name));
    }
    assert_eq!((sharding(&module, "y"), sharding(&module, "t")), (ROWS.into(), COLUMNS.into()));
    assert_eq!(report.stats["propagate-shardings.copies"], 1);
    assert!(line(&module, "out").contains("tuple(%next, %t.1)"), "{}", line(&module, "out"));
    assert!(line(&module, "t.1").contains("copy(%t), sharding=") && sharding(&module, "t.1") == ROWS);
}

#[test]
fn a_call_from_two_places_is_copied_where_it_is_cut_in_two_ways() {
    let text = format!(
        "HloModule m, {MESH}

%f (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  ROOT %q = f32[8,8]{{1,0}} tanh(%p)
}}

ENTRY %e (x: f32[8,8], y: f32[8,8]) -> (f32[8,8], f32[8,8]) {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %y = f32[8,8]{{1,0}} parameter(1), {}
  %fx = f32[8,8]{{1,0}} call(%x), to_apply=%f
  %fy = f32[8,8]{{1,0}} call(%y), to_apply=%f
  ROOT %r = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(%fx, %fy)
}}\n",
        sdy(r#"[{"a"}, {}]"#),
        sdy(r#"[{}, {"a"}]"#)
    );
    let (module, _) = propagated(&text, &[("order", "shardy")]);
    assert_eq!((sharding(&module, "fx"), sharding(&module, "fy")), (ROWS.into(), COLUMNS.into()));
    assert_eq!(module.computations().len(), 3);
    let (module, _) = propagated(&text.replace(r#"[{}, {\"a\"}]"#, r#"[{\"a\"}, {}]"#), &[("order", "shardy")]);
    assert_eq!(module.computations().len(), 2, "one computation where both are cut alike");
}

#[test]
fn results_without_an_annotation_take_the_cut_of_the_parameter_whose_memory_they_take() {
    let text = |header: &str| {
        format!(
            "HloModule m, {header}{MESH}

ENTRY %e (x: f32[8,8], y: f32[8,8]) -> (f32[8,8]) {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %y = f32[8,8]{{1,0}} parameter(1), {}
  %t = f32[8,8]{{1,0}} add(%x, %y)
  ROOT %r = (f32[8,8]{{1,0}}) tuple(%t)
}}\n",
            sdy(r#"[{}, {"a"}]"#),
            sdy(r#"[{"a","b"}, {}]"#)
        )
    };
    let (module, _) = propagated(&text(""), &[("order", "shardy")]);
    assert_eq!(sharding(&module, "t"), "{devices=[4,1,2]<=[8] last_tile_dim_replicate}");
    let aliased = text("input_output_alias={ {0}: (0, {}, may-alias) }, ");
    for text in [aliased, text("buffer_donor={ (0, {}) }, ")] {
        let (module, _) = propagated(&text, &[("order", "shardy")]);
        assert!(line(&module, "r").contains(&format!("sharding={{{COLUMNS}}}")), "{}", line(&module, "r"));
    }
}

#[test]
fn closed_parameters_and_results_stay_whole() {
    let text = format!(
        "HloModule m, {MESH}

ENTRY %e (x: f32[8,8], y: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %y = f32[8,8]{{1,0}} parameter(1)
  %t = f32[8,8]{{1,0}} add(%x, %y)
  %r = (f32[8,8]{{1,0}}) tuple(%t)
  ROOT %g = f32[8,8]{{1,0}} get-tuple-element(%r), index=0
}}\n",
        sdy(r#"[{"a"}, {}]"#)
    );
    let (module, _) = propagated(&text, &[("order", "shardy")]);
    assert_eq!((sharding(&module, "y"), sharding(&module, "g")), (ROWS.into(), ROWS.into()));
    let (module, _) = propagated(&text, &[("order", "shardy"), ("open-params", "[true,false]")]);
    assert_eq!((sharding(&module, "y"), sharding(&module, "t")), ("{replicated}".into(), ROWS.into()));
    let (module, _) = propagated(&text, &[("order", "shardy"), ("open-results", "false")]);
    let root = module.comp(module.entry().expect("an entry")).root.expand().expect("a root");
    assert_eq!(module.sharding(root).map(|s| *s == hlo_ir::sharding::Sharding::replicated()), Some(true));
    assert_eq!(sharding(&module, "t"), ROWS);
}

#[test]
fn groups_and_barriers_of_shardy_are_obeyed_and_removed() {
    let text = format!(
        "HloModule m, {MESH}

ENTRY %e (x: f32[8,8], y: f32[8,8], z: f32[8,8]) -> (f32[8,8], f32[8,8], f32[8,8]) {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  %y = f32[8,8]{{1,0}} parameter(1)
  %z = f32[8,8]{{1,0}} parameter(2)
  %gx = () custom-call(%x), custom_call_target=\"xla.sdy.ShardingGroup\", custom_call_has_side_effect=true, frontend_attributes={{xla.sdy.sharding_group_id=\"7 : i64\"}}
  %gy = () custom-call(%y), custom_call_target=\"xla.sdy.ShardingGroup\", custom_call_has_side_effect=true, frontend_attributes={{xla.sdy.sharding_group_id=\"7 : i64\"}}
  %b = f32[8,8]{{1,0}} custom-call(%x), custom_call_target=\"xla.sdy.PropagationBarrier\", frontend_attributes={{xla.sdy.allowed_direction=\"2 : i32\"}}
  %u = f32[8,8]{{1,0}} add(%b, %z)
  ROOT %r = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(%x, %y, %u)
}}\n",
        sdy(r#"[{"a"}, {?}]"#)
    );
    let (module, _) = propagated(&text, &[("order", "shardy")]);
    assert_eq!(sharding(&module, "y"), ROWS, "a member of the group");
    assert_eq!(sharding(&module, "u"), "{replicated}", "the barrier lets nothing through forward");
    assert!(line(&module, "b").contains("copy(%x)") && !printed(&module).contains("xla.sdy.ShardingGroup"));
}

#[test]
fn members_of_gspmds_groups_are_alike_and_those_of_shard_as_equal() {
    let text = |mark: &str| {
        format!(
            "HloModule m, num_partitions=8

ENTRY %e (x: f32[8,8], y: f32[8,8]) -> (f32[8,8], f32[8,8]) {{
  %x = f32[8,8]{{1,0}} parameter(0), sharding={ROWS}
  %y = f32[8,8]{{1,0}} parameter(1), sharding={COLUMNS}
  %u = f32[8,8]{{1,0}} tanh(%x)
  %v = f32[8,8]{{1,0}} tanh(%y)
  %gu = f32[8,8]{{1,0}} custom-call(%u), custom_call_target=\"Sharding\", sharding={{replicated {mark} 3}}, backend_config=\"unspecified_dims=[0,1]\"
  %gv = f32[8,8]{{1,0}} custom-call(%v), custom_call_target=\"Sharding\", sharding={{replicated {mark} 3}}, backend_config=\"unspecified_dims=[0,1]\"
  ROOT %r = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}) tuple(%gu, %gv)
}}\n"
        )
    };
    let (module, _) = propagated(&text("shard_as"), &[("order", "shardy")]);
    assert_eq!((sharding(&module, "gu"), sharding(&module, "gv")), (ROWS.into(), ROWS.into()));
    let (module, _) = propagated(&text("shard_like"), &[("order", "shardy")]);
    assert_eq!((sharding(&module, "gu"), sharding(&module, "gv")), (ROWS.into(), COLUMNS.into()));
}

#[test]
fn an_annotation_that_another_one_overrules_is_told() {
    let text = format!(
        "HloModule m, {MESH}

%f (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0), sharding={COLUMNS}
  ROOT %q = f32[8,8]{{1,0}} tanh(%p)
}}

ENTRY %e (x: f32[8,8]) -> f32[8,8] {{
  %x = f32[8,8]{{1,0}} parameter(0), {}
  ROOT %fx = f32[8,8]{{1,0}} call(%x), to_apply=%f
}}\n",
        sdy(r#"[{"a"}, {}]"#)
    );
    let (module, report) = propagated(&text, &[("order", "shardy"), ("why", "q")]);
    assert_eq!(sharding(&module, "p"), ROWS);
    let told: Vec<String> =
        report.decisions.iter().map(|d| format!("{} {} {}", d.subject, d.action, d.reason)).collect();
    assert!(told.iter().any(|t| t == "%p f32[8,8] annotation-lost leaf 0 has the sharding that %x says"), "{told:?}");
    assert!(told.iter().any(|t| t == "%x f32[8,8] annotated %x says how it is cut"), "{told:?}");
}
