//! Layouts of named dims: the worked examples of the Mesh-TensorFlow paper with their numbers, what is refused, and that the program
//! of each device gives what the global program gives.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_pass::options::Options;
use hlo_pass::report::PassReport;
use hlo_pass::{PassCx, PassError, Target};

/// Two layers, forward and backward: `b = 64`, `io = 256`, `h = 1024`.
const TWO_LAYERS: &str = include_str!("../../../ir-samples/passes/assign-mesh-layout/two-layers.hlo");

/// The input and the output have a dim of one name, which no op ties.
const NAMES: &str = "batch = %x:0\nio = %x:1, %v:1\nhidden = %w:1";

fn parse(text: &str) -> Module {
    let parsed =
        hlo_text::parse_module(text).unwrap_or_else(|d| panic!("{}", hlo_text::render(&d, "text", text, false)));
    hlo_ir::verify::verify(&parsed.module).unwrap_or_else(|diags| panic!("{diags:?}"));
    parsed.module
}

fn run(module: &mut Module, pass: &str, options: &[(&str, &str)]) -> Result<PassReport, PassError> {
    let info = hlo_partition::PASSES.iter().find(|info| info.name == pass).expect("the pass");
    let given: Vec<_> = options
        .iter()
        .map(|(name, value)| (name.to_string(), hlo_pass::pipeline::OptionValue::Text(value.to_string())))
        .collect();
    let options = Options::check(info.name, info.options, &given).expect("options");
    let pass = (info.build)(&options).expect("a pass");
    let mut report = PassReport::new(info.name);
    let mut analyses = Analyses::default();
    let target = Target::unnamed().expect("a target");
    let mut cx = PassCx::new(&mut analyses, &mut report, &target);
    pass.run(module, &mut cx)?;
    hlo_ir::verify::verify(module).unwrap_or_else(|diags| panic!("{diags:?}"));
    Ok(report)
}

/// The program of each device, by the paper's rule, and what the layout says.
fn laid_out(text: &str, names: &str, mesh: &str, layout: &str) -> Result<(Module, PassReport), String> {
    let mut module = parse(text);
    let options = [("names", names), ("mesh", mesh), ("layout", layout), ("compute", "as-cut")];
    let report = run(&mut module, "assign-mesh-layout", &options).map_err(|error| error.diagnostic.message.clone())?;
    run(&mut module, "spmd-partition", &[("compute", "as-cut")]).map_err(|error| error.diagnostic.message.clone())?;
    Ok((module, report))
}

/// What is said of a layout that is refused.
fn refused(text: &str, names: &str, mesh: &str, layout: &str) -> String {
    match laid_out(text, names, mesh, layout) {
        Ok(_) => panic!("expected an error about names `{names}` and layout `{layout}`"),
        Err(message) => message,
    }
}

/// Elements that a device puts into collectives, by opcode.
fn exchanged(module: &Module) -> Vec<(String, i64)> {
    let mut out: Vec<(String, i64)> = Vec::new();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        if module.inst(inst).opcode.row().collective.is_none() {
            continue;
        }
        let op = module.inst(inst).opcode.name().to_string();
        let elems: i64 = module
            .inst(inst)
            .operands
            .iter()
            .filter_map(|&operand| module.shape(operand).as_array())
            .map(|array| array.dims.iter().product::<i64>())
            .sum();
        match out.iter_mut().find(|(known, _)| *known == op) {
            Some((_, sum)) => *sum += elems,
            None => out.push((op, elems)),
        }
    }
    out
}

/// Elements of a tile of an instruction.
fn tile_elems(module: &Module, name: &str) -> i64 {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let inst = insts.copied().find(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no %{name}"));
    module.shape(inst).as_array().expect("an array").dims.iter().product()
}

#[test]
fn two_layers_have_the_papers_costs() {
    let (b, io, h) = (64, 256, 1024);
    let share = |n: i64, of: i64| n as f64 / of as f64;
    // (mesh, layout, values all-reduced per device, memory of x, h and w, communication by computation)
    let cases = [
        ("all:8", "", 0, 344_064, 0.0),
        ("all:8", "batch:all", 524_288, 272_384, share(8, b)),
        ("all:8", "hidden:all", 32_768, 57_344, share(8, h)),
        ("rows:4,cols:2", "batch:rows;hidden:cols", 270_336, 143_360, share(2, h) + share(4, b)),
        // Every product reduces out one dim that is cut: h over planes (b/r * h/c), y and dx over cols (b/r * io/p each), dh over
        // planes, dw and dv over rows (io/p * h/c each). Memory: each matrix is cut along two of the three axes.
        (
            "rows:2,cols:2,planes:2",
            "batch:rows;hidden:cols;io:planes",
            2 * (b / 2 * h / 2) + 2 * (b / 2 * io / 2) + 2 * (io / 2 * h / 2),
            (b / 2 * io / 2) + (b / 2 * h / 2) + (io / 2 * h / 2),
            share(2, h) + share(2, io) + share(2, b),
        ),
    ];
    for (mesh, layout, reduced, memory, ratio) in cases {
        let (module, _) = laid_out(TWO_LAYERS, NAMES, mesh, layout).unwrap_or_else(|e| panic!("{layout}: {e}"));
        let expected = if reduced == 0 { vec![] } else { vec![("all-reduce".to_string(), reduced)] };
        assert_eq!(exchanged(&module), expected, "{layout}");
        let held: i64 = ["x", "h", "w"].iter().map(|name| tile_elems(&module, name)).sum();
        assert_eq!(held, memory, "{layout}");
        // The multiplications of the two forward products, in tiles: of the empty layout nothing is cut.
        let n_cut = if layout.is_empty() { 1 } else { 8 };
        assert_eq!(share(reduced, 2 * b * io * h / n_cut), ratio, "{layout}");
    }
}

#[test]
fn illegal_layouts_name_tensor_dims_and_axis() {
    let told = |layout: &str| refused(TWO_LAYERS, NAMES, "all:8", layout);
    let both = told("batch:all;hidden:all");
    for part in ["tensor %h f32[64,1024]", "dim 0 (`batch`)", "dim 1 (`hidden`)", "axis `all`"] {
        assert!(both.contains(part), "{both}");
    }
    let seven = refused(TWO_LAYERS, NAMES, "all:7", "batch:all");
    assert!(seven.contains("expected a size that axis `all` of 7 divides, found 64"), "{seven}");
    assert!(told("batc:all").contains("expected the name of a dim (such as batch, io, hidden), found `batc`"));
    assert!(told("batch:rows").contains("expected an axis of the mesh (all), found `rows`"));
}

#[test]
fn a_dim_that_a_tensor_has_twice_stays_whole() {
    let text = "HloModule gram\n\nENTRY %e (x: f32[8,4]) -> f32[8,8] {
  %x = f32[8,4]{1,0} parameter(0)
  ROOT %g = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}\n";
    let (module, _) = laid_out(text, "n = %x:0; d = %x:1", "all:2", "d:all").expect("the dim that is reduced out");
    assert_eq!(exchanged(&module), [("all-reduce".to_string(), 64)]);
    let error = refused(text, "n = %x:0", "all:2", "n:all");
    assert!(error.contains("tensor %g f32[8,8]: dims 0 and 1 are both `n` (%g:0, by %g %x:0, by %g %g:1)"), "{error}");
}

#[test]
fn names_are_held_against_the_module() {
    let told = |names: &str| refused(TWO_LAYERS, names, "all:8", "");
    let two = told("a = %x:0\nb = %y:0");
    assert!(
        two.contains("names, line 2: expected one name for one dim, found `a` at %x:0 (line 1) and `b` at %y:0"),
        "{two}"
    );
    assert!(two.contains("ops tie these two: %x:0, by %h %h:0, by %y %y:0"), "{two}");
    let sizes = told("a = %x:0\na = %x:1");
    assert!(sizes.contains("`a`: expected one size, found 64 at %x:0 (line 1) and 256 at %x:1"), "{sizes}");
    assert!(told("a = %z:0").contains("expected an instruction, found no %z"));
    assert!(told("a = %x:2").contains("expected a dim of %x f32[64,256], which has 2, found dim 2"));
    assert!(told("a = %out:0").contains("expected a leaf of the tuple %out"));
    assert!(told("a = %x:0/1").contains("expected a part below 1 of dim 0"));
}

#[test]
fn a_reshape_makes_a_dim_of_parts() {
    let text = "HloModule heads\n\nENTRY %e (x: f32[6,32]) -> f32[6,32] {
  %x = f32[6,32]{1,0} parameter(0)
  %heads = f32[6,4,8]{2,1,0} reshape(%x)
  %t = f32[6,4,8]{2,1,0} tanh(%heads)
  ROOT %y = f32[6,32]{1,0} reshape(%t)
}\n";
    // The major part keeps the name: cutting it needs no exchange.
    let (module, _) = laid_out(text, "heads = %x:1", "all:4", "heads:all").expect("heads");
    assert_eq!((exchanged(&module), tile_elems(&module, "t")), (vec![], 6 * 8));
    // The minor part is whole where it is behind another one: a slice there, an all-gather back.
    let (module, _) = laid_out(text, "k = %x:1/1", "all:4", "k:all").expect("the minor part");
    assert_eq!((exchanged(&module), tile_elems(&module, "t")), (vec![("all-gather".to_string(), 48)], 6 * 4 * 2));
}

#[test]
fn the_automatic_layout_is_the_papers_example() {
    let text = "HloModule product\n\nENTRY %e (x: f32[10,5], w: f32[5,20]) -> f32[10,20] {
  %x = f32[10,5]{1,0} parameter(0)
  %w = f32[5,20]{1,0} parameter(1)
  ROOT %y = f32[10,20]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}\n";
    let (module, report) = laid_out(text, "a = %x:0; b = %x:1; c = %w:1", "m1:4,m2:2", "auto").expect("a layout");
    let found = report.decisions.iter().find(|decision| decision.action == "found").expect("what was found");
    assert!(found.subject.contains("c:m1") && found.subject.contains("a:m2"), "{found:?}");
    assert!(found.reason.contains("300 bytes live") && found.reason.contains("proved best"), "{found:?}");
    for name in ["x", "w", "y"] {
        assert_eq!(tile_elems(&module, name), 25, "%{name}");
    }
}

#[test]
fn classes_say_where_they_are_and_what_reduces_them() {
    let dims = hlo_partition::find_dims(&parse(TWO_LAYERS), "batch = %x:0").expect("dims");
    let told: Vec<_> = dims.iter().map(|dim| (dim.name.as_str(), dim.size, dim.n_values, dim.params.len())).collect();
    // x, dy, h, y, dh, dx have the batch; w, v, h, dh, dw, dv hidden units; and of the inner dims nothing ties x, w, dx, dw to v, dy, y, dv.
    assert_eq!(told, [("batch", 64, 6, 2), ("x_1", 256, 4, 2), ("w_1", 1024, 6, 2), ("v_1", 256, 4, 2)]);
    let reduced: Vec<String> = dims.iter().map(|dim| dim.reduced_by.join(" ")).collect();
    assert_eq!(reduced, ["dv dw", "h", "y dx", "dh"]);
}
