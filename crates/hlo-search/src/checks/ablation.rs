//! What is left of a search that is kept from a part of it.

use crate::ablation::Part;
use crate::network::{Decides, Evenness};
use crate::pins::Pins;
use crate::plan::ChosenPlan;
use crate::plans::AxisUse;
use crate::program::Program;
use crate::roles::Roles;
use crate::search::SearchLimits;
use crate::search_within::search_within;
use crate::solver::{Cost, INFINITE};
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_ir::Module;
use hlo_mesh::Machine;

/// A perceptron of two layers with its gradients and its update; the weights are large beside the batch.
const STEP: &str = "
HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY %main {
  %w = f32[2048,4096] parameter(0)
  %v = f32[4096,2048] parameter(1)
  %x = f32[16,2048] parameter(2)
  %zero = f32[] constant(0)
  %zeros = f32[16,4096] broadcast(%zero), dimensions={}
  %h = f32[16,4096] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %a = f32[16,4096] maximum(%h, %zeros)
  %y = f32[16,2048] dot(%a, %v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %e = f32[16,2048] tanh(%y)
  %dv = f32[4096,2048] dot(%a, %e), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %da = f32[16,4096] dot(%e, %v), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %above = pred[16,4096] compare(%h, %zeros), direction=GT
  %dh = f32[16,4096] select(%above, %da, %zeros)
  %dw = f32[2048,4096] dot(%x, %dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %rate = f32[] constant(0.5)
  %rates = f32[2048,4096] broadcast(%rate), dimensions={}
  %rates.1 = f32[4096,2048] broadcast(%rate), dimensions={}
  %steps = f32[2048,4096] multiply(%dw, %rates)
  %steps.1 = f32[4096,2048] multiply(%dv, %rates.1)
  %w.1 = f32[2048,4096] subtract(%w, %steps)
  %v.1 = f32[4096,2048] subtract(%v, %steps.1)
  ROOT %out = (f32[2048,4096], f32[4096,2048]) tuple(%w.1, %v.1)
}
";

/// What is asked of a plan.
struct Seen {
    cost: Cost,
    /// Whether an axis cuts a weight or its update.
    cuts_params: bool,
    /// Whether an axis cuts what a forward product reduces.
    cuts_reduced: bool,
    /// Whether an axis cuts the columns of the first layer's gradient.
    cuts_columns: bool,
}

fn see(module: &Module, parts: &[Part]) -> Seen {
    let machine = Machine::parse("h100:[(gpu,4,20,1)]", 1).expect("a machine");
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    let program = Program::read(module, &frequencies).expect("a program");
    let links = machine.network(4).expect("links");
    let limits = SearchLimits {
        even: Evenness::None,
        effort: 1 << 32,
        wanted_gap: 0.0,
        memory_limit: None,
        meshes: crate::mesh::factorizations(4, 2),
        pins: Pins::default(),
        only: None,
        without: parts.to_vec(),
        given: None,
        start: None,
        to_beat: INFINITE,
        is_over: &|| false,
        progress: &|_| {},
    };
    let found = search_within(&program, &machine, &links, &limits).unwrap_or_else(|_| panic!("a plan"));
    assert!(found.is_exact);
    let plan = ChosenPlan { network: &found.network, assignment: &found.assignment };
    let roles = Roles::find(&program);
    let name = |inst| module.inst_name(inst);
    let mut seen = Seen { cost: found.cost, cuts_params: false, cuts_reduced: false, cuts_columns: false };
    for decides in found.network.decides.values() {
        match *decides {
            Decides::Kept(value) if roles.of_param[value].is_some() && program.replaced.contains(&Some(value)) => {
                let state = plan.kept(value).expect("a state");
                seen.cuts_params |= state.cut(&found.network.mesh) != 0;
            }
            Decides::Plan(op) => {
                let uses = &plan.plan(op).expect("a plan").uses;
                let batch = roles.batch_factor(&program.ops[op]);
                let cuts = |factor: &AxisUse| matches!(factor, AxisUse::Cuts(f) if Some(*f) != batch);
                let is_forward = ["h", "y"].contains(&name(program.ops[op].inst));
                let gives_sums = plan.plan(op).is_some_and(|p| p.results[0].partial(&found.network.mesh) != 0);
                seen.cuts_reduced |= is_forward && gives_sums;
                seen.cuts_columns |= name(program.ops[op].inst) == "dh" && uses.iter().any(cuts);
            }
            Decides::Kept(_) | Decides::Way(_) | Decides::AtRegion(..) => {}
        }
    }
    seen
}

#[test]
fn what_is_left_out_is_in_no_plan_and_never_makes_one_cheaper() {
    let module = hlo_text::parse_module(STEP).unwrap_or_else(|e| panic!("{e:?}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}"));
    let whole = see(&module, &[]);
    assert!(whole.cuts_params && whole.cuts_columns, "weights are large here: they are cut");
    for part in Part::ALL {
        let rest = see(&module, &[part]);
        assert!(rest.cost >= whole.cost, "{}", part.word());
        match part {
            Part::ParameterCuts => assert!(!rest.cuts_params && rest.cost > whole.cost),
            Part::ReductionCuts => assert!(!rest.cuts_reduced && rest.cost > whole.cost),
            Part::AttributeCuts => assert!(!rest.cuts_columns),
            // What a product gives that `maximum` takes is no sum; what `tanh` takes is one of another product.
            Part::Joint => assert!(!rest.cuts_reduced && rest.cost > whole.cost),
        }
    }
    let least = see(&module, &[Part::ParameterCuts, Part::AttributeCuts, Part::ReductionCuts]);
    assert!(!least.cuts_params && !least.cuts_reduced && !least.cuts_columns, "the batch is what is left");
}
