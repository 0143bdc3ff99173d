//! MindSpore's strategies: the worked examples, what is refused, and searches whose files are read again.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::report::{Artifact, PassReport};
use hlo_pass::{PassCx, Target};

fn parse(text: &str) -> Module {
    let parsed =
        hlo_text::parse_module(text).unwrap_or_else(|d| panic!("{}", hlo_text::render(&d, "text", text, false)));
    hlo_ir::verify::verify(&parsed.module).unwrap_or_else(|diags| panic!("{diags:?}"));
    parsed.module
}

/// The module after a pass and what the pass says; or its error.
fn run(module: &Module, name: &str, options: &[(&str, &str)]) -> Result<(Module, PassReport), String> {
    let info = hlo_partition::PASSES.iter().find(|info| info.name == name).expect("the pass");
    let given: Vec<_> = options
        .iter()
        .map(|(name, value)| (name.to_string(), hlo_pass::pipeline::OptionValue::Text(value.to_string())))
        .collect();
    let options = Options::check(info.name, info.options, &given).expect("options");
    let pass = (info.build)(&options).map_err(|error| error.to_string())?;
    let mut module = module.clone();
    let mut report = PassReport::new(info.name);
    let mut analyses = Analyses::default();
    let target = Target::unnamed().expect("a target");
    let mut cx = PassCx::new(&mut analyses, &mut report, &target);
    pass.run(&mut module, &mut cx).map_err(|error| error.diagnostic.message)?;
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{diags:?}"));
    Ok((module, report))
}

fn printed(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// A product `[i,k] x [k,j]`.
fn product(i: i64, k: i64, j: i64) -> Module {
    parse(&format!(
        "HloModule m\n\nENTRY %e (x: f32[{i},{k}], w: f32[{k},{j}]) -> f32[{i},{j}] {{
  %x = f32[{i},{k}]{{1,0}} parameter(0)
  %w = f32[{k},{j}]{{1,0}} parameter(1)
  ROOT %y = f32[{i},{j}]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}\n"
    ))
}

fn strategy(text: &str) -> String {
    format!("devices = 8\noperator = [{{name = \"%y\", {text}}}]")
}

/// The shardings of x, w and y.
fn shardings(module: &Module) -> [String; 3] {
    let text = printed(module);
    ["%x =", "%w =", "ROOT %y ="].map(|name| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).expect("a line");
        line.split_once("sharding=").expect("a sharding").1.to_string()
    })
}

#[test]
fn device_matrix_and_tensor_maps_are_those_of_the_documents() {
    let module = product(8, 4, 16);
    // Matrix [2,1,4]: X [2,1], W [1,0], Y [2,0].
    let (cut, _) =
        run(&module, "apply-strategies", &[("file", &strategy("strategy = [[2, 1], [1, 4]]"))]).expect("legal");
    assert_eq!(
        shardings(&cut),
        [
            "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
            "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            "{devices=[2,4]<=[8]}"
        ]
    );
    // Devices left over are the last entry: matrix [2,1,2,2], X [3,2], W [2,1], Y [3,1].
    let last = strategy("strategy = [[2, 1], [1, 2]]");
    let (cut, _) = run(&module, "apply-strategies", &[("file", &last)]).expect("legal");
    let said = strategy("device-matrix = [2, 1, 2, 2], tensor-map = [[3, 2], [2, 1]]");
    let (same, _) = run(&module, "apply-strategies", &[("file", &said)]).expect("legal");
    assert_eq!(printed(&cut), printed(&same));
    assert_eq!(shardings(&cut)[2], "{devices=[2,2,2]<=[8] last_tile_dim_replicate}");
    // Of data sets the first one.
    let first = strategy("strategy = [[2, 1], [1, 2]], left-over = \"first\"");
    let (cut, _) = run(&module, "apply-strategies", &[("file", &first)]).expect("legal");
    assert_eq!(shardings(&cut)[2], "{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dim_replicate}");
}

#[test]
fn what_is_not_legal_is_refused_with_its_place() {
    let module = product(6, 4, 16);
    let refused =
        |text: &str| run(&module, "apply-strategies", &[("file", &strategy(text))]).map(|_| ()).expect_err("a refusal");
    let cases = [
        (
            "strategy = [[4, 1], [1, 1]]",
            "operator `%y`, input 0, dim 0 of size 6: expected a cut that divides the size, found 4",
        ),
        (
            "strategy = [[2, 2], [1, 2]]",
            "operator `%y`, input 1, dim 0 of size 4: expected cut 2, as of input 0, dim 1, found 1",
        ),
        (
            "strategy = [[3, 1], [1, 1]]",
            "operator `%y`: expected cuts whose product divides 8 devices, found 3 x 1 x 1",
        ),
        ("strategy = [[2, 1]]", "operator `%y`: expected cuts of 2 tensors with dims, found 1"),
        ("strategy = [[2], [1, 1]]", "operator `%y`, input 0: expected 2 cuts, found 1"),
        (
            "device-matrix = [2, 4], tensor-map = [[1, -1], [-1, 1]]",
            "operator `%y`: expected each entry of the matrix to cut one dim, found 1 twice",
        ),
        (
            "device-matrix = [2, 2], tensor-map = [[1], [0]]",
            "operator `%y`: expected a device matrix of 8 devices, found [2, 2]",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected);
    }
    let other = "devices = 8\noperator = [{name = \"%z\", strategy = [[2, 1], [1, 4]]}]";
    let text = run(&module, "apply-strategies", &[("file", other)]).map(|_| ()).expect_err("a refusal");
    assert_eq!(
        text,
        "strategies: expected the name of an operator (an instruction with `%`; what gives a scalar or \
         only calls, and what is made of constants, is none), found `%z`"
    );
}

#[test]
fn the_double_recursive_search_halves_as_worked_out() {
    let (cut, report) = run(&product(1024, 1024, 4096), "search-strategies", &[("devices", "8")]).expect("found");
    assert_eq!(shardings(&cut)[2], "{devices=[4,2]<=[8]}");
    let told = &report.decisions[0].reason;
    let rounds = ["class 0 at 524288", "class 2 at 262144", "class 0 at 262144"];
    assert!(told.contains("strategy [[4, 1], [1, 2]]"), "{told}");
    for (round, said) in rounds.iter().zip(told.rsplit(": ").next().unwrap_or_default().split("; ")) {
        assert!(said.starts_with(round), "expected {round}, found {said}");
    }
}

const STEP: &str = "HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %e (x: f32[16,8], w: f32[8,32], v: f32[32,4]) -> (f32[], f32[8,32], f32[32,4]) {
  %x = f32[16,8]{1,0} parameter(0)
  %w = f32[8,32]{1,0} parameter(1)
  %v = f32[32,4]{1,0} parameter(2)
  %h = f32[16,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %t = f32[16,32]{1,0} tanh(%h)
  %y = f32[16,4]{1,0} dot(%t, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %zero = f32[] constant(0)
  %square = f32[16,4]{1,0} multiply(%y, %y)
  %loss = f32[] reduce(%square, %zero), dimensions={0,1}, to_apply=%add
  %dv = f32[32,4]{1,0} dot(%t, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %dt = f32[16,32]{1,0} dot(%y, %v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %dw = f32[8,32]{1,0} dot(%x, %dt), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %wn = f32[8,32]{1,0} subtract(%w, %dw)
  %vn = f32[32,4]{1,0} subtract(%v, %dv)
  ROOT %out = (f32[], f32[8,32]{1,0}, f32[32,4]{1,0}) tuple(%loss, %wn, %vn)
}
";

#[test]
fn a_search_writes_a_file_that_gives_the_same_program() {
    let module = parse(STEP);
    for options in [
        vec![("devices", "8")],
        vec![("devices", "4"), ("order", "weight")],
        vec![("devices", "8"), ("algo", "dp")],
        vec![("devices", "2"), ("algo", "dp"), ("price", "time")],
    ] {
        let options: Vec<(&str, &str)> = options.into_iter().chain([("write", "true")]).collect();
        let (found, report) = run(&module, "search-strategies", &options).expect("found");
        let Some((_, Artifact::Text(text))) = report.files.first() else { panic!("no file") };
        let (applied, _) = run(&module, "apply-strategies", &[("file", &text.text())]).expect("its file");
        assert_eq!(printed(&found), printed(&applied), "{options:?}\n{}", text.text());
    }
}

#[test]
fn a_number_that_cannot_be_halved_is_refused_with_what_to_do() {
    let text = run(&parse(STEP), "search-strategies", &[("devices", "6")]).map(|_| ()).expect_err("a refusal");
    assert!(text.contains("expected a power of two") && text.contains("found 6; algo=dp takes any number"), "{text}");
    run(&parse(STEP), "search-strategies", &[("devices", "6"), ("algo", "dp")]).expect("found");
}

#[test]
fn a_gradient_is_summed_over_what_its_parameter_is_not_cut_on() {
    let file = "devices = 8\noperator = [{name = \"%h\", strategy = [[2, 1], [1, 4]]}]";
    let (spread, _) = run(&parse(STEP), "propagate-strategies", &[("file", file)]).expect("legal");
    let (_, report) = run(&spread, "spmd-partition", &[]).expect("partitioned");
    let sums: Vec<(&str, String)> = report
        .decisions
        .iter()
        .flat_map(|decision| {
            decision.collectives.iter().map(move |change| (decision.subject.as_str(), format!("{change:?}")))
        })
        .collect();
    let sum_of = |name: &str| sums.iter().filter(|(subject, _)| subject.starts_with(name)).count();
    assert_eq!((sum_of("%dw "), sum_of("%dv ")), (1, 1), "{sums:?}");
}
