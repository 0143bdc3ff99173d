//! One Adam update of a weight is one launch: it alone reads both moments, and writes the weight and both moments. The
//! small updates of a step share one.

use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::{BufferId, Place, Plan, Work};
use std::collections::BTreeSet;

fn plan_of(file: &str) -> Plan {
    let path = format!("{}/../../ir-samples/programs/{file}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("a sample");
    let mut module = hlo_text::parse_bytes(&bytes).expect("a module").module;
    let calls = hlo_pass::pipeline::parse_pipeline("propagate-layouts,fuse").expect("a pipeline");
    let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).expect("passes");
    let options = hlo_pass::runner::RunOptions { check: true, ..Default::default() };
    hlo_pass::runner::run_pipeline(&mut module, &mut hlo_analysis::Analyses::default(), &passes, options)
        .unwrap_or_else(|e| panic!("{file}: {:?}", e.diagnostics));
    lower(&module, &mut CudaKernels::default(), &LowerOptions::default()).expect("a plan")
}

/// The steps that have a buffer among their arguments.
fn steps_with(plan: &Plan, buffer: BufferId) -> Vec<usize> {
    let has = |work: &Work| match work {
        Work::Launch { arguments, .. } => arguments.contains(&buffer),
        Work::Copy { from, to } => *from == buffer || *to == buffer,
        Work::Gemm(gemm) => [gemm.lhs.buffer, gemm.rhs.buffer, gemm.output.buffer].contains(&buffer),
        Work::Collective(call) => call.calls.iter().any(|(from, to)| *from == buffer || *to == buffer),
        Work::Fill { to, .. } => *to == buffer,
        Work::While { .. } | Work::Conditional { .. } => panic!("a step without loops and branches"),
    };
    (0..plan.steps.len()).filter(|&step| has(&plan.steps[step].work)).collect()
}

/// The launches that update a step's weights: the state is weights, the count, first and second moments.
fn n_update_launches(file: &str, n_weights: usize) -> usize {
    let plan = plan_of(file);
    let mut launches = BTreeSet::new();
    for weight in 0..n_weights {
        let (first, second) = (n_weights + 1 + weight, 2 * n_weights + 1 + weight);
        let writers: Vec<Vec<usize>> =
            [weight, first, second].iter().map(|&leaf| steps_with(&plan, plan.outputs[leaf])).collect();
        let &[update] = writers[0].as_slice() else { panic!("{file}, weight {weight}: {writers:?}") };
        assert!(writers.iter().all(|steps| steps.as_slice() == [update]), "{file}, weight {weight}: {writers:?}");
        let Work::Launch { arguments, .. } = &plan.steps[update].work else { panic!("{file}: no launch") };
        assert!(arguments.contains(&plan.parameters[weight]), "{file}, weight {weight}");
        for moment in [first, second] {
            assert_eq!(steps_with(&plan, plan.parameters[moment]), [update], "{file}, moment {moment}");
        }
        launches.insert(update);
    }
    launches.len()
}

#[test]
fn an_adam_update_is_one_launch_and_small_ones_share_it() {
    // Two matrices are large; a matrix of ten columns and three biases share a launch.
    assert_eq!(n_update_launches("mlp_adam.spmd_gspmd.hlo", 6), 3);
    // Only the embedding is large.
    assert_eq!(n_update_launches("gpt2l_adam.spmd_gspmd.hlo", 24), 2);
}

#[test]
fn an_output_goes_where_the_header_aliases_it_and_else_where_it_can() {
    let place = |header: &str| {
        let text = format!(
            "HloModule m, {header}\nENTRY main {{\n  a = f32[64]{{0}} parameter(0)\n  b = f32[64]{{0}} parameter(1)\n  \
             ROOT s = f32[64]{{0}} add(a, b)\n}}\n"
        );
        let module = hlo_text::parse_module(&text).expect("a module").module;
        let plan = lower(&module, &mut CudaKernels::default(), &LowerOptions::default()).expect("a plan");
        plan.buffers[plan.outputs[0]].place
    };
    assert_eq!(place("is_scheduled=true"), Place::Output(0));
    assert_eq!(place("buffer_donor={ (0, {}) }"), Place::Parameter(0));
    assert_eq!(place("buffer_donor={ (1, {}) }"), Place::Parameter(1));
    assert_eq!(place("input_output_alias={ {}: (1, {}, may-alias) }, buffer_donor={ (0, {}) }"), Place::Parameter(1));
    assert_eq!(place("input_output_alias={ {}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }"), Place::Parameter(0));
}
