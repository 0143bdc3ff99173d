//! What `order=gspmd` does as XLA's propagation does it; each expectation is what XLA (jaxlib 0.10.2) makes of the program.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::pipeline::OptionValue;
use hlo_pass::report::PassReport;
use hlo_pass::{PassCx, Target};

fn propagated(text: &str) -> String {
    let parsed = hlo_text::parse_module(text);
    let mut module: Module = parsed.unwrap_or_else(|d| panic!("{}", hlo_text::render(&d, "text", text, false))).module;
    let info = hlo_partition::PASSES.iter().find(|info| info.name == "propagate-shardings").expect("the pass");
    let order = [("order".to_string(), OptionValue::Text("gspmd".into()))];
    let pass = (info.build)(&Options::check(info.name, info.options, &order).expect("options")).expect("a pass");
    let mut report = PassReport::new(info.name);
    let mut analyses = Analyses::default();
    let target = Target::unnamed().expect("a target");
    let mut cx = PassCx::new(&mut analyses, &mut report, &target);
    pass.run(&mut module, &mut cx).unwrap_or_else(|error| panic!("{:?}", error.diagnostic));
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{diags:?}"));
    print_module(&module, &PrintOptions::default())
}

fn says(text: &str, name: &str, sharding: &str) {
    let mut lines = text.lines().map(|line| line.trim_start().trim_start_matches("ROOT ").trim_start_matches('%'));
    let line = lines.find(|line| line.starts_with(&format!("{name} ="))).unwrap_or_else(|| panic!("no %{name}"));
    assert!(line.contains(&format!("sharding={sharding}")), "expected {sharding}, found {line}");
}

const ROWS: &str = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}";

#[test]
fn nothing_goes_through_a_transform() {
    let text = propagated(&format!(
        "HloModule m, num_partitions=8

ENTRY e {{
  x = c64[8,4] parameter(0), sharding={ROWS}
  f = c64[8,4] fft(x), fft_type=FFT, fft_length={{4}}
  ROOT r = f32[8,4] real(f), sharding={ROWS}
}}\n"
    ));
    says(&text, "f", "{replicated}");
    says(&text, "r", ROWS);
}

#[test]
fn rows_that_indices_count_are_cut_as_the_operand_is() {
    let text = propagated(&format!(
        "HloModule m, num_partitions=8

ENTRY e {{
  x = f32[8,16] parameter(0), sharding={ROWS}
  found = s32[8,4,1] parameter(1)
  counted = s32[8] iota(), iota_dimension=0
  rows = s32[8,4,1] broadcast(counted), dimensions={{0}}
  indices = s32[8,4,2] concatenate(rows, found), dimensions={{2}}
  ROOT g = f32[8,4] gather(x, indices), offset_dims={{}}, collapsed_slice_dims={{0,1}}, start_index_map={{0,1}}, \
         index_vector_dim=2, slice_sizes={{1,1}}
}}\n"
    ));
    says(&text, "g", ROWS);
    says(&text, "indices", "{devices=[4,1,1,2]<=[8] last_tile_dim_replicate}");
    says(&text, "found", "{devices=[4,1,1,2]<=[8] last_tile_dim_replicate}");
}

#[test]
fn lists_of_devices_have_an_order_in_common() {
    // XLA sorts devices that hold the same: both lists are of the mesh 2 x 2 over the devices 2, 0, 3, 1.
    let text = propagated(
        "HloModule m, num_partitions=4

ENTRY e {
  x = f32[8,4] parameter(0), sharding={devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}
  y = f32[8,4] parameter(1), sharding={devices=[1,2,2]2,3,0,1 last_tile_dim_replicate}
  ROOT z = f32[8,4] add(x, y)
}\n",
    );
    says(&text, "z", "{devices=[2,2]2,0,3,1}");
}

#[test]
fn loops_that_count_from_the_same_zero_need_not_be_in_one_region() {
    let region = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}";
    let text = propagated(&format!(
        "HloModule m, num_partitions=8

cond {{
  t = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}

body {{
  t = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  v = f32[4,4] get-tuple-element(t), index=1
  w = f32[4,4] sine(v)
  ROOT r = (s32[], f32[4,4]) tuple(j, w)
}}

ENTRY e {{
  x = f32[8,4] parameter(0), sharding={{devices=[2,1,4]<=[8] last_tile_dim_replicate}}
  y = f32[4,4] parameter(1), sharding={ROWS}
  zero = s32[] constant(0)
  cut = f32[8,4] custom-call(x), custom_call_target=\"Sharding\", sharding={{devices=[2,1,4]<=[8] last_tile_dim_replicate}}
  local = f32[4,4] custom-call(cut), custom_call_target=\"SPMDFullToShardShape\", sharding={region}
  inner = (s32[], f32[4,4]) tuple(zero, local)
  looped = (s32[], f32[4,4]) while(inner), condition=cond, body=body
  given = f32[4,4] get-tuple-element(looped), index=1
  marked = f32[4,4] custom-call(given), custom_call_target=\"Sharding\", sharding={region}
  whole = f32[8,4] custom-call(marked), custom_call_target=\"SPMDShardToFullShape\", sharding={{devices=[2,1,4]<=[8] last_tile_dim_replicate}}
  outer = (s32[], f32[4,4]) tuple(zero, y)
  other = (s32[], f32[4,4]) while(outer), condition=cond, body=body
  z = f32[4,4] get-tuple-element(other), index=1
  ROOT r = (f32[8,4], f32[4,4]) tuple(whole, z)
}}\n"
    ));
    says(&text, "z", ROWS);
    says(&text, "given", region);
}
