//! Kernels compiled for the host compute what the evaluator computes: all single-device op samples, and modules that
//! are large enough for teams of threads and packs. Everything is compiled as one program.
//!
//! The lowering here is as plain as can be: every instruction of ENTRY is one launch, every value has its own memory.

mod columns;
mod convolution_sums;
mod convolutions;
mod rows;
mod scatters;
mod sorts;
mod types;

use hlo_eval::draw::{Draw, DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_gpu::kernel::{EmitOptions, emit};
use hlo_gpu::lower::kernels::EmittedKernel;
use hlo_gpu::plan::Kernel;
use hlo_ir::attrs::Attrs;
use hlo_ir::{ArrayShape, ConstantValue, DType, InstId, Literal, Module, Opcode, Scalar, Shape};
use hlo_run::{Block, Library};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

struct Case {
    name: String,
    module: Module,
    draws: Vec<Draw>,
}

fn header<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    lines.filter_map(|line| line.trim().split_once(':')).find(|(k, _)| *k == key).map(|(_, value)| value.trim())
}

fn case(name: &str, text: &str) -> Case {
    let parsed = hlo_text::parse_module(text).unwrap_or_else(|d| panic!("{name}: {:?}", d[0]));
    let draws = header(text, "draw").map(|words| Draw::parse_list(words).expect("draw words")).unwrap_or_default();
    Case { name: name.to_string(), module: parsed.module, draws }
}

/// Passes a pipeline over a case's module, with all checks of the runner on.
fn passed(mut case: Case, pipeline: &str) -> Case {
    let calls = hlo_pass::pipeline::parse_pipeline(pipeline).expect("a pipeline");
    let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).expect("known passes");
    let options = hlo_pass::runner::RunOptions { check: true, ..Default::default() };
    let mut analyses = hlo_analysis::Analyses::default();
    hlo_pass::runner::run_pipeline(&mut case.module, &mut analyses, &passes, options).expect("a fusion");
    case
}

fn op_samples() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/ops");
    let entries = std::fs::read_dir(folder).expect("a folder of samples");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "hlo"));
    paths.sort();
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        case(&path.file_stem().expect("a file name").to_string_lossy(), &text)
    };
    paths.into_iter().map(read).collect()
}

/// What is done for one instruction; numbers are those of leaves.
enum Step {
    Parameter(usize),
    Fill(Literal),
    Launch { kernel: Kernel, operands: Vec<usize>, shared: Vec<(usize, usize)> },
}

struct Lowered {
    /// What makes the leaves from the given one on.
    steps: Vec<(usize, Step)>,
    shapes: Vec<ArrayShape>,
    /// `None` where the value depends on an instruction that is refused.
    outputs: Vec<Option<usize>>,
    refused: Vec<String>,
}

fn array_leaves(shape: &Shape) -> Vec<ArrayShape> {
    let mut leaves = Vec::new();
    shape.for_each_leaf(&mut |_, leaf| leaves.extend(leaf.as_array().cloned()));
    leaves
}

/// What a value depends on that is refused leaves it out; the rest is lowered.
fn lower(module: &Module, options: &EmitOptions) -> Lowered {
    let comp = module.comp(module.entry().expect("an entry"));
    let mut lowered = Lowered { steps: Vec::new(), shapes: Vec::new(), outputs: Vec::new(), refused: Vec::new() };
    let mut leaves_of: HashMap<InstId, Vec<Option<usize>>> = HashMap::new();
    let mut n_parameter_leaves = 0;
    for (number, &param) in comp.params.iter().enumerate() {
        assert_eq!(module.inst(param).opcode, Opcode::Parameter, "parameter {number}");
        let leaves = array_leaves(module.shape(param))
            .into_iter()
            .map(|shape| {
                lowered.steps.push((lowered.shapes.len(), Step::Parameter(n_parameter_leaves)));
                n_parameter_leaves += 1;
                lowered.shapes.push(shape);
                Some(lowered.shapes.len() - 1)
            })
            .collect();
        leaves_of.insert(param, leaves);
    }
    for &inst in &comp.insts {
        let node = module.inst(inst);
        if leaves_of.contains_key(&inst) {
            continue;
        }
        let operands: Vec<Option<usize>> =
            node.operands.iter().flat_map(|operand| leaves_of[operand].clone()).collect();
        let leaves = if node.opcode == Opcode::Tuple {
            operands
        } else if let (Opcode::GetTupleElement, Attrs::TupleIndex(attrs)) = (node.opcode, &node.attrs) {
            let parts = module.shape(node.operands[0]).as_tuple().expect("a tuple");
            let first: usize = parts[..attrs.index as usize].iter().map(|part| array_leaves(part).len()).sum();
            operands[first..first + array_leaves(module.shape(inst)).len()].to_vec()
        } else if node.opcode == Opcode::AfterAll {
            Vec::new()
        } else {
            let shapes = array_leaves(module.shape(inst));
            match lower_one(module, inst, operands, options) {
                Ok(step) => {
                    let first = lowered.shapes.len();
                    lowered.steps.push((first, step));
                    lowered.shapes.extend(shapes);
                    (first..lowered.shapes.len()).map(Some).collect()
                }
                Err(reason) => {
                    lowered.refused.extend(reason);
                    vec![None; shapes.len()]
                }
            }
        };
        leaves_of.insert(inst, leaves);
    }
    lowered.outputs = leaves_of[&comp.root.expand().expect("a root")].clone();
    lowered
}

/// A constant or a launch; no reason if only an operand is missing.
fn lower_one(
    module: &Module,
    inst: InstId,
    operands: Vec<Option<usize>>,
    options: &EmitOptions,
) -> Result<Step, Option<String>> {
    if let Attrs::Constant(value) = &module.inst(inst).attrs {
        return match value.as_ref() {
            ConstantValue::Array(literal) => Ok(Step::Fill(literal.clone())),
            ConstantValue::Tuple(_) | ConstantValue::Elided => Err(Some("a constant that is no array".to_string())),
        };
    }
    let EmittedKernel { kernel, updatable } = emit(module, inst, options).map_err(|error| Some(error.to_string()))?;
    let operands = operands.into_iter().collect::<Option<Vec<usize>>>().ok_or(None)?;
    Ok(Step::Launch { kernel, operands, shared: updatable })
}

/// Runs the steps. With `in_place`, results take the memory of operands wherever they may.
fn execute(lowered: &Lowered, library: &Library, inputs: &[Literal], in_place: bool) -> Vec<Option<Literal>> {
    let mut memory: Vec<Block> =
        lowered.shapes.iter().map(|shape| Block::from_bytes(&vec![0xa5; shape.memory_bytes() as usize])).collect();
    for (first, step) in &lowered.steps {
        match step {
            Step::Parameter(leaf) => {
                memory[*first] =
                    Block::from_array(&inputs[*leaf], &lowered.shapes[*first]).expect("an input that fits");
            }
            Step::Fill(literal) => {
                memory[*first] = Block::from_array(literal, &lowered.shapes[*first]).expect("a constant that fits");
            }
            Step::Launch { kernel, operands, shared } => {
                let n_results = kernel.arguments.len() - operands.len();
                let mut of_result: Vec<Option<usize>> = vec![None; n_results];
                for &(operand, result) in shared {
                    if in_place && of_result[result].is_none() && !of_result.contains(&Some(operand)) {
                        of_result[result] = Some(operand);
                        memory[first + result] = Block::from_bytes(memory[operands[operand]].bytes());
                    }
                }
                let mut pointers = Vec::new();
                for (i, &operand) in operands.iter().enumerate() {
                    let taken = of_result.iter().position(|&o| o == Some(i));
                    pointers.push(memory[taken.map_or(operand, |result| first + result)].pointer(0));
                }
                for result in 0..n_results {
                    pointers.push(memory[first + result].pointer(0));
                }
                library.launch(kernel, &pointers).expect("a launch");
            }
        }
    }
    let array = |leaf: usize| memory[leaf].array(&lowered.shapes[leaf]).expect("an array");
    lowered.outputs.iter().map(|leaf| leaf.map(array)).collect()
}

/// Relative to the largest element.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 | DType::F16 => 2e-2,
        _ => 2e-5,
    }
}

fn check_equal(what: &str, found: &Literal, expected: &Literal) {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()), "{what}");
    if !expected.dtype().is_float() && !expected.dtype().is_complex() {
        assert_eq!(found, expected, "{what}");
        return;
    }
    let floats = |literal: &Literal| -> Vec<f64> {
        let parts = |i| match literal.get(i) {
            Some(Scalar::Float(x)) => vec![x],
            Some(Scalar::Complex(re, im)) => vec![re, im],
            other => panic!("{what}: {other:?}"),
        };
        (0..literal.n_elems()).flat_map(parts).collect()
    };
    let (found, expected_floats) = (floats(found), floats(expected));
    let largest = expected_floats.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
    for (i, (&f, &e)) in found.iter().zip(&expected_floats).enumerate() {
        let is_same = f == e || f.is_nan() && e.is_nan() || (f - e).abs() <= tolerance(expected.dtype()) * largest;
        assert!(is_same, "{what}, element {i}: expected {e:e}, found {f:e} (largest {largest:e})");
    }
}

fn sanitizers() -> Option<String> {
    std::env::var("HLO_GPU_SANITIZE").ok().filter(|list| !list.is_empty())
}

/// A reason without the instruction's name.
fn short(reason: &str) -> &str {
    reason.rsplit(": ").next().unwrap_or(reason)
}

/// Compares all cases in all forms of their kernels; the reasons why a part of a case cannot be lowered, and which cases
/// have no other parts.
fn check_all(cases: &[Case]) -> BTreeMap<String, Vec<String>> {
    check_all_as(cases, EmitOptions::default())
}

/// The same of kernels that are written so, beside those of one thread for each element.
fn check_all_as(cases: &[Case], best: EmitOptions) -> BTreeMap<String, Vec<String>> {
    let forms = [best, EmitOptions { is_elemental_only: true, ..EmitOptions::default() }];
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut lowered = Vec::new();
    for case in cases {
        let forms = forms.clone().map(|options| lower(&case.module, &options));
        let mut reasons: Vec<&str> = forms[0].refused.iter().map(|reason| short(reason)).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let is_whole = forms[0].outputs.iter().all(Option::is_none);
        for reason in reasons {
            let name = if is_whole { case.name.clone() } else { format!("{} (in part)", case.name) };
            refused.entry(reason.to_string()).or_default().push(name);
        }
        if !is_whole {
            lowered.push((case, forms));
        }
    }
    let kernels = lowered
        .iter()
        .flat_map(|(_, forms)| forms.iter().flat_map(|form| &form.steps))
        .filter_map(|(_, step)| if let Step::Launch { kernel, .. } = step { Some(kernel) } else { None });
    let library = Library::with_sanitizers(kernels, sanitizers().as_deref()).expect("kernels that compile");
    let mut failures = Vec::new();
    for (case, forms) in &lowered {
        let options = DrawOptions { seed: 7, draws: case.draws.clone(), ..DrawOptions::default() };
        let inputs = draw_inputs(&case.module, None, &options).expect("inputs");
        let expected =
            run(&case.module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let inputs: Vec<Literal> = inputs.leaves.iter().map(|row| row[0].as_ref().clone()).collect();
        for (form, in_place, what) in [(0, false, "best form"), (0, true, "in place"), (1, false, "elemental")] {
            let found = execute(&forms[form], &library, &inputs, in_place);
            for (leaf, (found, expected)) in found.iter().zip(&expected.leaves).enumerate() {
                let Some(found) = found else { continue };
                let what = format!("{} ({what}), leaf {leaf}", case.name);
                if let Err(panic) = std::panic::catch_unwind(|| check_equal(&what, found, &expected[0])) {
                    failures.push(panic.downcast_ref::<String>().cloned().unwrap_or(what));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} wrong results:\n{}", failures.len(), failures.join("\n"));
    refused
}

const REDUCERS: &str = "
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%max (ma: f32[], mb: f32[]) -> f32[] {
  %ma = f32[] parameter(0)
  %mb = f32[] parameter(1)
  ROOT %ms = f32[] maximum(%ma, %mb)
}

%addb (ba: bf16[], bb: bf16[]) -> bf16[] {
  %ba = bf16[] parameter(0)
  %bb = bf16[] parameter(1)
  ROOT %bs = bf16[] add(%ba, %bb)
}

%maxi (ia: s32[], ib: s32[]) -> s32[] {
  %ia = s32[] parameter(0)
  %ib = s32[] parameter(1)
  ROOT %is = s32[] maximum(%ia, %ib)
}
";

/// Modules whose kernels take every form that needs many elements: name and ENTRY with what it calls.
const LARGE: &[(&str, &str)] = &[
    ("rows", "ENTRY %main (x: f32[300,700], i: s32[40,129], b: bf16[9,64,130]) -> (f32[300], f32[300], s32[40], bf16[9,64]) {
  %x = f32[300,700]{1,0} parameter(0)
  %i = s32[40,129]{1,0} parameter(1)
  %b = bf16[9,64,130]{2,1,0} parameter(2)
  %zero = f32[] constant(0)
  %low = f32[] constant(-inf)
  %lowi = s32[] constant(-2147483648)
  %zerob = bf16[] constant(0)
  %sum = f32[300]{0} reduce(%x, %zero), dimensions={1}, to_apply=%add
  %top = f32[300]{0} reduce(%x, %low), dimensions={1}, to_apply=%max
  %topi = s32[40]{0} reduce(%i, %lowi), dimensions={1}, to_apply=%maxi
  %sumb = bf16[9,64]{1,0} reduce(%b, %zerob), dimensions={2}, to_apply=%addb
  ROOT %out = (f32[300]{0}, f32[300]{0}, s32[40]{0}, bf16[9,64]{1,0}) tuple(%sum, %top, %topi, %sumb)
}"),
    ("columns", "ENTRY %main (x: f32[700,100], y: f32[40,3,50]) -> (f32[100], f32[700], f32[3], f32[]) {
  %x = f32[700,100]{1,0} parameter(0)
  %y = f32[40,3,50]{2,1,0} parameter(1)
  %zero = f32[] constant(0)
  %c = f32[100]{0} reduce(%x, %zero), dimensions={0}, to_apply=%add
  %t = f32[700,100]{0,1} copy(%x)
  %r = f32[700]{0} reduce(%t, %zero), dimensions={1}, to_apply=%add
  %m = f32[3]{0} reduce(%y, %zero), dimensions={0,2}, to_apply=%add
  %w = f32[] reduce(%x, %zero), dimensions={0,1}, to_apply=%add
  ROOT %out = (f32[100]{0}, f32[700]{0}, f32[3]{0}, f32[]) tuple(%c, %r, %m, %w)
}"),
    ("started", "ENTRY %main (x: f32[70,90], s: f32[]) -> (f32[70], f32[]) {
  %x = f32[70,90]{1,0} parameter(0)
  %s = f32[] parameter(1)
  %one = f32[] constant(1)
  %a = f32[70]{0} reduce(%x, %s), dimensions={1}, to_apply=%add
  %b = f32[] reduce(%x, %one), dimensions={0,1}, to_apply=%add
  ROOT %out = (f32[70]{0}, f32[]) tuple(%a, %b)
}"),
    ("normalizer", "%fused (fx: f32[130,257]) -> (f32[130], f32[130]) {
  %fx = f32[130,257]{1,0} parameter(0)
  %low = f32[] constant(-inf)
  %zero = f32[] constant(0)
  %top = f32[130]{0} reduce(%fx, %low), dimensions={1}, to_apply=%max
  %wide = f32[130,257]{1,0} broadcast(%top), dimensions={0}
  %d = f32[130,257]{1,0} subtract(%fx, %wide)
  %e = f32[130,257]{1,0} exponential(%d)
  %sum = f32[130]{0} reduce(%e, %zero), dimensions={1}, to_apply=%add
  %l = f32[130]{0} log(%sum)
  ROOT %t = (f32[130]{0}, f32[130]{0}) tuple(%l, %top)
}

ENTRY %main (x: f32[130,257]) -> (f32[130], f32[130]) {
  %x = f32[130,257]{1,0} parameter(0)
  ROOT %f = (f32[130]{0}, f32[130]{0}) fusion(%x), kind=kInput, calls=%fused
}"),
    ("adam", "%fused (g: bf16[96,64], w: f32[96,64], m: f32[96,64], v: f32[96,64], lr: f32[], h: f32[6144], q: f32[5,7]) -> (f32[96,64], f32[96,64], f32[96,64], bf16[96,64], f32[6144], f32[5,7]) {
  %g = bf16[96,64]{1,0} parameter(0)
  %w = f32[96,64]{1,0} parameter(1)
  %m = f32[96,64]{1,0} parameter(2)
  %v = f32[96,64]{1,0} parameter(3)
  %lr = f32[] parameter(4)
  %h = f32[6144]{0} parameter(5)
  %q = f32[5,7]{1,0} parameter(6)
  %gw = f32[96,64]{1,0} convert(%g)
  %b1 = f32[] constant(0.9)
  %b1w = f32[96,64]{1,0} broadcast(%b1), dimensions={}
  %m1 = f32[96,64]{1,0} multiply(%m, %b1w)
  %m2 = f32[96,64]{1,0} add(%m1, %gw)
  %g2 = f32[96,64]{1,0} multiply(%gw, %gw)
  %v2 = f32[96,64]{1,0} add(%v, %g2)
  %root = f32[96,64]{1,0} sqrt(%v2)
  %eps = f32[] constant(1e-3)
  %epsw = f32[96,64]{1,0} broadcast(%eps), dimensions={}
  %den = f32[96,64]{1,0} add(%root, %epsw)
  %step = f32[96,64]{1,0} divide(%m2, %den)
  %lrw = f32[96,64]{1,0} broadcast(%lr), dimensions={}
  %s = f32[96,64]{1,0} multiply(%step, %lrw)
  %w2 = f32[96,64]{1,0} subtract(%w, %s)
  %wb = bf16[96,64]{1,0} convert(%w2)
  %flat = f32[6144]{0} reshape(%w2)
  %h2 = f32[6144]{0} add(%h, %flat)
  %q2 = f32[5,7]{1,0} negate(%q)
  ROOT %t = (f32[96,64]{1,0}, f32[96,64]{1,0}, f32[96,64]{1,0}, bf16[96,64]{1,0}, f32[6144]{0}, f32[5,7]{1,0}) tuple(%w2, %m2, %v2, %wb, %h2, %q2)
}

ENTRY %main (g: bf16[96,64], w: f32[96,64], m: f32[96,64], v: f32[96,64], lr: f32[], h: f32[6144], q: f32[5,7]) -> (f32[96,64], f32[96,64], f32[96,64], bf16[96,64], f32[6144], f32[5,7]) {
  %g.1 = bf16[96,64]{1,0} parameter(0)
  %w.1 = f32[96,64]{1,0} parameter(1)
  %m.1 = f32[96,64]{1,0} parameter(2)
  %v.1 = f32[96,64]{1,0} parameter(3)
  %v.abs = f32[96,64]{1,0} abs(%v.1)
  %lr.1 = f32[] parameter(4)
  %h.1 = f32[6144]{0} parameter(5)
  %q.1 = f32[5,7]{1,0} parameter(6)
  ROOT %f = (f32[96,64]{1,0}, f32[96,64]{1,0}, f32[96,64]{1,0}, bf16[96,64]{1,0}, f32[6144]{0}, f32[5,7]{1,0}) fusion(%g.1, %w.1, %m.1, %v.abs, %lr.1, %h.1, %q.1), kind=kLoop, calls=%fused
}"),
    ("transposes", "ENTRY %main (x: f32[65,130], y: bf16[33,5,70]) -> (f32[65,130], f32[130,65], bf16[70,5,33], bf16[33,70,5]) {
  %x = f32[65,130]{1,0} parameter(0)
  %y = bf16[33,5,70]{2,1,0} parameter(1)
  %c = f32[65,130]{0,1} copy(%x)
  %t = f32[130,65]{1,0} transpose(%x), dimensions={1,0}
  %u = bf16[70,5,33]{2,1,0} transpose(%y), dimensions={2,1,0}
  %v = bf16[33,70,5]{2,1,0} transpose(%y), dimensions={0,2,1}
  ROOT %out = (f32[65,130]{0,1}, f32[130,65]{1,0}, bf16[70,5,33]{2,1,0}, bf16[33,70,5]{2,1,0}) tuple(%c, %t, %u, %v)
}"),
    ("embedding", "ENTRY %main (table: f32[211,96], ids: s32[64], grads: f32[64,96], spots: s32[300,2], bumps: f32[300]) -> (f32[64,96], f32[211,96], f32[211,96]) {
  %table = f32[211,96]{1,0} parameter(0)
  %ids = s32[64]{0} parameter(1)
  %grads = f32[64,96]{1,0} parameter(2)
  %spots = s32[300,2]{1,0} parameter(3)
  %bumps = f32[300]{0} parameter(4)
  %rows = f32[64,96]{1,0} gather(%table, %ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,96}
  %s = f32[211,96]{1,0} scatter(%table, %ids, %grads), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add
  %p = f32[211,96]{1,0} scatter(%table, %spots, %bumps), update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=%max
  ROOT %out = (f32[64,96]{1,0}, f32[211,96]{1,0}, f32[211,96]{1,0}) tuple(%rows, %s, %p)
}"),
    ("convolutions", "ENTRY %main (x: f32[2,17,16,63], w: f32[3,3,63,66], g: f32[2,9,8,66], d: f32[3,3,8,64], b: bf16[2,20,11,13], v: bf16[16,20,3,3], y: f32[8,17,15,16], q: f32[3,3,16,8]) -> (f32[2,9,8,66], f32[3,3,63,66], f32[2,17,16,63], f32[2,15,14,64], f32[4,14,13,8], bf16[2,16,9,6]) {
  %x = f32[2,17,16,63]{3,2,1,0} parameter(0)
  %w = f32[3,3,63,66]{3,2,1,0} parameter(1)
  %g = f32[2,9,8,66]{3,2,1,0} parameter(2)
  %d = f32[3,3,8,64]{3,2,1,0} parameter(3)
  %b = bf16[2,20,11,13]{3,2,1,0} parameter(4)
  %v = bf16[16,20,3,3]{3,2,1,0} parameter(5)
  %y = f32[8,17,15,16]{3,2,1,0} parameter(6)
  %q = f32[3,3,16,8]{3,2,1,0} parameter(7)
  %forward = f32[2,9,8,66]{3,2,1,0} convolution(%x, %w), window={size=3x3 stride=2x2 pad=1_1x1_0}, dim_labels=b01f_01io->b01f
  %to_weights = f32[3,3,63,66]{3,2,1,0} convolution(%x, %g), window={size=9x8 pad=1_1x1_0 rhs_dilate=2x2}, dim_labels=f01b_i01o->01bf
  %to_input = f32[2,17,16,63]{3,2,1,0} convolution(%g, %w), window={size=3x3 pad=1_1x1_2 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f
  %s = f32[2,17,16,16]{3,2,1,0} slice(%x), slice={[0:2], [0:17], [0:16], [0:16]}
  %grouped = f32[2,15,14,64]{3,2,1,0} convolution(%s, %d), window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=2
  %p = f32[8,16,15,16]{3,2,1,0} slice(%y), slice={[0:8], [0:16], [0:15], [0:16]}
  %batched = f32[4,14,13,8]{3,2,1,0} convolution(%p, %q), window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2
  %small = bf16[2,16,9,6]{3,2,1,0} convolution(%b, %v), window={size=3x3 stride=1x2 pad=0_0x0_1}, dim_labels=bf01_oi01->bf01
  ROOT %out = (f32[2,9,8,66]{3,2,1,0}, f32[3,3,63,66]{3,2,1,0}, f32[2,17,16,63]{3,2,1,0}, f32[2,15,14,64]{3,2,1,0}, f32[4,14,13,8]{3,2,1,0}, bf16[2,16,9,6]{3,2,1,0}) tuple(%forward, %to_weights, %to_input, %grouped, %batched, %small)
}"),
];

/// What single-device samples have that no kernel is written for.
const REFUSED: &str = "\
Fourier transforms are not written as kernels\n\
\x20   fft\n\
a scan is not written as a kernel\n\
\x20   scan\n\
expected a result of arrays, found a token or none\n\
\x20   infeed, outfeed, recv-done, recv, send-done, send\n\
expected a synchronous operation in a kernel\n\
\x20   call.async, copy-done, copy-start, custom-call.async, fusion.async\n\
expected a top-k as the sort that expand-operations makes of it\n\
\x20   topk\n\
expected batch norms as the operations that they consist of\n\
\x20   batch-norm-grad, batch-norm-inference, batch-norm-training\n\
expected dense operands whose ranks fit the dim labels\n\
\x20   convolution.kind (in part)\n\
expected static dims and a layout without tiles\n\
\x20   dynamic-reshape, set-dimension-size\n\
expected straight code in a kernel, found control flow\n\
\x20   conditional, while\n\
matrix factorizations are not written as kernels\n\
\x20   cholesky, triangular-solve\n\
no hidden state of random numbers is kept; draw them by rng-bit-generator, which expand-operations writes as arithmetic\n\
\x20   rng-bit-generator.default, rng-bit-generator, rng-bit-generator.philox, rng-get-and-update-state, \
        rng\n\
only the callee knows what a custom call does\n\
\x20   custom-call, custom-call.placement\n\
products of ragged or scaled blocks are not written as kernels\n\
\x20   ragged-dot, scaled-dot\n\
stochastic rounding is not written as a kernel\n\
\x20   stochastic-convert";

#[test]
fn op_samples_agree_with_the_evaluator() {
    let mut cases = op_samples();
    let n_samples = cases.len();
    cases.retain(|case| case.module.n_devices() == 1);
    // Every order of adding small floats rounds elsewhere; sums of ones and zeros are exact in all of them.
    let sums = cases.iter_mut().find(|case| case.name == "reduce.small-floats").expect("a sample of sums");
    // Of 8-bit floats not even these are: `sums_of_small_floats_are_rounded_once` has them.
    sums.draws = vec![Draw::Below(2), Draw::Below(2), Draw::Constant(0.0), Draw::Below(2)];
    // Those of several devices are collectives, which a plan runs.
    assert!(cases.len() > 120 && cases.len() + 60 > n_samples, "{} of {n_samples}", cases.len());
    let refused = check_all(&cases);
    let text: Vec<String> =
        refused.iter().map(|(reason, names)| format!("{reason}\n    {}", names.join(", "))).collect();
    assert_eq!(text.join("\n"), REFUSED);
}

#[test]
fn large_arrays_agree_with_the_evaluator() {
    let cases: Vec<Case> =
        LARGE.iter().map(|(name, text)| case(name, &format!("HloModule {name}\n{REDUCERS}\n{text}"))).collect();
    assert_eq!(check_all(&cases), BTreeMap::new());
    // All reductions of these are dealt out to threads that wait for one another, the whole sum among them.
    // So are convolutions.
    for name in ["rows", "columns", "normalizer", "convolutions"] {
        let case = cases.iter().find(|case| case.name == name).expect("a case");
        for (_, step) in lower(&case.module, &EmitOptions::default()).steps {
            if let Step::Launch { kernel, .. } = step
                && !kernel.name.starts_with("slice")
            {
                assert!(kernel.is_cooperative, "{name}: {}", kernel.source);
            }
        }
    }
}

/// The better of two (value, index) pairs as JAX prints it.
fn jax_reducer(value: &str, index: &str, better: &str) -> String {
    format!(
        "%better (x: {value}[], i: {index}[], y: {value}[], j: {index}[]) -> ({value}[], {index}[]) {{
  %x = {value}[] parameter(0)
  %y = {value}[] parameter(2)
  %gt = pred[] compare(%x, %y), direction={better}
  %ne = pred[] compare(%x, %x), direction=NE
  %or = pred[] or(%gt, %ne)
  %kept = {value}[] select(%or, %x, %y)
  %eq = pred[] compare(%x, %y), direction=EQ
  %i = {index}[] parameter(1)
  %j = {index}[] parameter(3)
  %lt = pred[] compare(%i, %j), direction=LT
  %and = pred[] and(%eq, %lt)
  %tie = pred[] or(%or, %and)
  %at = {index}[] select(%tie, %i, %j)
  ROOT %t = ({value}[], {index}[]) tuple(%kept, %at)
}}"
    )
}

/// The same for values without NaN, otherwise written: of equal values the first is kept.
fn plain_reducer(value: &str, index: &str, better: &str) -> String {
    format!(
        "%better (x: {value}[], i: {index}[], y: {value}[], j: {index}[]) -> ({value}[], {index}[]) {{
  %x = {value}[] parameter(0)
  %i = {index}[] parameter(1)
  %y = {value}[] parameter(2)
  %j = {index}[] parameter(3)
  %ge = pred[] compare(%y, %x), direction={better}
  %kept = {value}[] select(%ge, %y, %x)
  %eq = pred[] compare(%y, %x), direction=EQ
  %low = {index}[] minimum(%j, %i)
  %other = {index}[] select(%ge, %j, %i)
  %at = {index}[] select(%eq, %low, %other)
  ROOT %t = ({value}[], {index}[]) tuple(%kept, %at)
}}"
    )
}

/// A reduction of `dims` whose values are few, so that there are ties: infinities and NaNs, zeros of both signs. The bits of
/// the values are given too.
fn extremum(reducer: &str, (value, index): (&str, &str), dims: &str, along: usize, init: (&str, &str)) -> String {
    let is_float = value.contains('f');
    let sizes: Vec<&str> = dims.split(',').collect();
    let kept: Vec<&str> = (0..sizes.len()).filter(|&dim| dim != along).map(|dim| sizes[dim]).collect();
    let kept = kept.join(",");
    let top = match value {
        "f32" => format!("%top = s32[{kept}] bitcast-convert(%value)"),
        "bf16" | "f16" => format!("%top = u16[{kept}] bitcast-convert(%value)"),
        "f64" => format!("%top = s64[{kept}] bitcast-convert(%value)"),
        _ => format!("%top = {value}[{kept}] copy(%value)"),
    };
    let of_bits = match value {
        "f32" => "s32",
        "bf16" | "f16" => "u16",
        "f64" => "s64",
        other => other,
    };
    let x = if is_float { "divide(%n, %d)" } else { "copy(%n)" };
    format!(
        "HloModule extremum
// draw: int7 int5
{reducer}

ENTRY %main (a: s32[{dims}], b: s32[{dims}]) -> ({of_bits}[{kept}], {index}[{kept}]) {{
  %a = s32[{dims}] parameter(0)
  %b = s32[{dims}] parameter(1)
  %three = s32[] constant(3)
  %threes = s32[{dims}] broadcast(%three), dimensions={{}}
  %m = s32[{dims}] subtract(%a, %threes)
  %n = {value}[{dims}] convert(%m)
  %d = {value}[{dims}] convert(%b)
  %f = {value}[{dims}] {x}
  %i = {index}[{dims}] iota(), iota_dimension={along}
  %v0 = {value}[] constant({})
  %i0 = {index}[] constant({})
  %r = ({value}[{kept}], {index}[{kept}]) reduce(%f, %i, %v0, %i0), dimensions={{{along}}}, to_apply=%better
  %value = {value}[{kept}] get-tuple-element(%r), index=0
  %at = {index}[{kept}] get-tuple-element(%r), index=1
  {top}
  ROOT %out = ({of_bits}[{kept}], {index}[{kept}]) tuple(%top, %at)
}}",
        init.0, init.1
    )
}

#[test]
fn extrema_with_indices_agree_with_the_evaluator_to_the_bit() {
    let texts = [
        extremum(&jax_reducer("f32", "s32", "GT"), ("f32", "s32"), "70,1001", 1, ("-inf", "0")),
        extremum(&jax_reducer("f32", "s32", "LT"), ("f32", "s32"), "3,5003", 1, ("inf", "0")),
        extremum(&jax_reducer("f32", "s64", "GT"), ("f32", "s64"), "601,41", 0, ("-inf", "0")),
        extremum(&jax_reducer("bf16", "u32", "GT"), ("bf16", "u32"), "5,33,77", 1, ("-inf", "0")),
        extremum(&jax_reducer("f16", "u16", "LT"), ("f16", "u16"), "9,130", 1, ("inf", "0")),
        extremum(&jax_reducer("f64", "u64", "GT"), ("f64", "u64"), "4,1031", 1, ("-inf", "0")),
        extremum(&jax_reducer("s32", "s16", "GT"), ("s32", "s16"), "6,1500", 1, ("-2147483648", "0")),
        extremum(&jax_reducer("s8", "u8", "LT"), ("s8", "u8"), "50,255", 1, ("127", "0")),
        extremum(&jax_reducer("u16", "s8", "GT"), ("u16", "s8"), "50,127", 1, ("0", "0")),
        // Initial values that are not neutral, and of which the index is none of an element.
        extremum(&jax_reducer("f32", "s32", "GT"), ("f32", "s32"), "40,333", 1, ("1.5", "-7")),
        extremum(&jax_reducer("f32", "s32", "GT"), ("f32", "s32"), "40,333", 1, ("nan", "9000")),
        extremum(&jax_reducer("f32", "s32", "LT"), ("f32", "s32"), "2,3,2049", 2, ("-0", "5")),
        // Of integers these are the same; of floats NaNs are lost, so that the order makes a difference.
        extremum(&plain_reducer("s32", "s32", "GE"), ("s32", "s32"), "40,333", 1, ("0", "0")),
        extremum(&plain_reducer("f32", "s32", "GE"), ("f32", "s32"), "40,333", 1, ("0", "0")),
    ];
    let mut cases: Vec<Case> = texts.iter().map(|text| case("extremum", text)).collect();
    for (number, case) in cases.iter_mut().enumerate() {
        case.name = format!("extremum {number}");
        case.draws = Draw::parse_list("int7 int5").expect("draws");
    }
    let reductions = |case: &Case| {
        let steps = lower(&case.module, &EmitOptions::default()).steps;
        let kernel = |(_, step)| if let Step::Launch { kernel, .. } = step { Some(kernel) } else { None };
        steps.into_iter().filter_map(kernel).find(|kernel| kernel.name.starts_with("reduce")).expect("a reduction")
    };
    let is_split: Vec<bool> = cases.iter().map(|case| reductions(case).is_cooperative).collect();
    assert_eq!(is_split, (0..14).map(|number| number != 13).collect::<Vec<bool>>());
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// Conversions to bf16 and f16 of numbers of all magnitudes, subnormal ones and infinities too, to the bit; and bf16 arithmetic
/// whose results are stored, or used and stored. What bits a NaN has is left open.
#[test]
fn small_floats_are_rounded_as_in_the_evaluator() {
    let bits = |of: &str| {
        format!(
            "  %{of}bits = u16[65536] bitcast-convert(%{of})
  %{of}nan = pred[65536] compare(%{of}, %{of}), direction=NE
  %{of}out = u16[65536] select(%{of}nan, %marks, %{of}bits)
"
        )
    };
    let text = format!(
        "HloModule rounding
ENTRY %main (k: u32[]) -> (u16[65536], u16[65536], u16[65536], u16[65536]) {{
  %k = u32[] parameter(0)
  %i = u32[65536] iota(), iota_dimension=0
  %step = u32[] constant(65521)
  %steps = u32[65536] broadcast(%step), dimensions={{}}
  %all = u32[65536] multiply(%i, %steps)
  %x = f32[65536] bitcast-convert(%all)
  %mark = u16[] constant(77)
  %marks = u16[65536] broadcast(%mark), dimensions={{}}
  %b = bf16[65536] convert(%x)
  %h = f16[65536] convert(%x)
  %r = bf16[65536] reverse(%b), dimensions={{0}}
  %q = bf16[65536] divide(%b, %r)
  %n = bf16[65536] negate(%q)
  %m = bf16[65536] maximum(%n, %b)
  %p = bf16[65536] multiply(%m, %r)
{}{}{}{}
  ROOT %out = (u16[65536], u16[65536], u16[65536], u16[65536]) tuple(%bout, %hout, %qout, %pout)
}}",
        bits("b"),
        bits("h"),
        bits("q"),
        bits("p"),
    );
    assert_eq!(check_all(&[case("rounding", &text)]), BTreeMap::new());
}
