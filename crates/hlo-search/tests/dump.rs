//! The problem as JSON beside a reader that knows nothing of the search: what is claimed is added up again.

use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::time::Machine;
use hlo_search::{Asked, SearchOptions, Searched, plan_parallel};
use serde::Deserialize;

#[derive(Deserialize)]
struct Dump {
    mesh: Vec<i64>,
    unit: String,
    bound: i64,
    cost: i64,
    variables: Vec<Variable>,
    pairs: Vec<(usize, usize, usize)>,
    tables: Vec<Vec<Vec<Option<i64>>>>,
    assignment: Vec<usize>,
}

#[derive(Deserialize)]
struct Variable {
    decides: String,
    states: Vec<String>,
    costs: Vec<Option<i64>>,
}

/// What the assignment costs.
fn cost(dump: &Dump) -> i64 {
    let state = |variable: usize| dump.assignment[variable];
    let own =
        dump.variables.iter().enumerate().map(|(k, variable)| variable.costs[state(k)].expect("an allowed state"));
    let between =
        dump.pairs.iter().map(|&(a, b, table)| dump.tables[table][state(a)][state(b)].expect("an allowed pair"));
    own.sum::<i64>() + between.sum::<i64>()
}

/// A bound that needs no search: the least of each list and of each table.
fn least_of_each(dump: &Dump) -> i64 {
    let own = dump.variables.iter().map(|variable| variable.costs.iter().flatten().min().expect("an allowed state"));
    let of_tables: Vec<i64> =
        dump.tables.iter().map(|rows| *rows.iter().flatten().flatten().min().expect("an allowed pair")).collect();
    own.sum::<i64>() + dump.pairs.iter().map(|&(_, _, table)| of_tables[table]).sum::<i64>()
}

fn options(cluster: &str, mesh: &[i64]) -> SearchOptions {
    let machine = Machine::from_args(cluster, "h200").expect("a machine");
    SearchOptions {
        machine,
        n_devices: mesh.iter().product(),
        effort: 100_000_000,
        gap: 0.0,
        most_axes: 3,
        meshes: vec![mesh.to_vec()],
        memory_limit: None,
        even: hlo_search::Evenness::None,
        plan: "best".into(),
        pins: String::new(),
        draw: None,
        why: Vec::new(),
        dumps_problem: true,
    }
}

const LAYERS: &str = "\
HloModule layers, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}
ENTRY %step {
  %w1 = f32[512,2048] parameter(0)
  %w2 = f32[2048,512] parameter(1)
  %x = f32[96,512] parameter(2)
  %h = f32[96,2048] dot(%x, %w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %a = f32[96,2048] tanh(%h)
  %y = f32[96,512] dot(%a, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %dw2 = f32[2048,512] dot(%a, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %da = f32[96,2048] dot(%y, %w2), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %dh = f32[96,2048] multiply(%da, %a)
  %dw1 = f32[512,2048] dot(%x, %dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %n1 = f32[512,2048] subtract(%w1, %dw1)
  %n2 = f32[2048,512] subtract(%w2, %dw2)
  %zero = f32[] constant(0)
  %loss = f32[] reduce(%y, %zero), dimensions={0,1}, to_apply=%sum
  ROOT %out = (f32[512,2048], f32[2048,512], f32[]) tuple(%n1, %n2, %loss)
}
";

#[test]
fn what_a_dump_claims_adds_up() {
    let module = hlo_text::parse_bytes(LAYERS.as_bytes()).expect("a module").module;
    for (cluster, mesh) in
        [("", &[6][..]), ("", &[2, 2]), ("[(node,2,12.5,2),(gpu,6,50,2)]", &[2, 6]), ("", &[2, 3, 2])]
    {
        let options = options(cluster, mesh);
        let asked = Asked { options: &options, given: None, is_over: &|| false, progress: &|_| {} };
        let Ok(Searched::Plan(plan)) = plan_parallel(&module, &asked, FrequencyOptions::default()) else {
            panic!("expected a plan");
        };
        let dump: Dump = serde_json::from_str(&plan.problem.expect("a dump")).expect("JSON as described");
        assert_eq!((dump.mesh.as_slice(), dump.unit.as_str()), (mesh, "picoseconds"));
        for variable in &dump.variables {
            assert_eq!(variable.states.len(), variable.costs.len(), "{}", variable.decides);
        }
        assert_eq!(cost(&dump), dump.cost, "{mesh:?}");
        assert_eq!((plan.report.step_s * 1e12).round() as i64, dump.cost);
        assert!(least_of_each(&dump) <= dump.bound && dump.bound <= dump.cost, "{mesh:?}");
    }
}
