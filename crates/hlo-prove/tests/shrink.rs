//! Smaller modules that are the same programs: valid, as provable as the larger ones, and with the same differences.

use hlo_eval::{EvalOptions, draw, run};
use hlo_ir::{Module, Opcode};
use hlo_prove::{Options, Proof, prove, shrink};

/// A step of two devices: a projection by heads, its gradient summed over devices, a decayed update.
const STEP: &str = "
HloModule step, num_partitions=2

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (w: f32[64,128], x: f32[32,64], ids: s32[32]) -> (f32[64,128], f32[32,4,32]) {
  %w = f32[64,128] parameter(0), sharding={replicated}
  %x = f32[32,64] parameter(1)
  %ids = s32[32] parameter(2)
  %y = f32[32,128] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %heads = f32[32,4,32] reshape(%y)
  %local = f32[64,128] dot(%x, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  UPDATE
  %ones = s32[32] iota(), iota_dimension=0
  %mask = pred[32] compare(%ones, %ids), direction=LT
  %wide = pred[32,4,32] broadcast(%mask), dimensions={0}
  %zero = f32[] constant(0)
  %zeros = f32[32,4,32] broadcast(%zero), dimensions={}
  %masked = f32[32,4,32] select(%wide, %heads, %zeros)
  ROOT %out = (f32[64,128], f32[32,4,32]) tuple(%new, %masked)
}
";

const WHOLE: &str = "%grad = f32[64,128] all-reduce(%local), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=%sum
  %rate = f32[] constant(0.9)
  %rates = f32[64,128] broadcast(%rate), dimensions={}
  %kept = f32[64,128] multiply(%rates, %w)
  %new = f32[64,128] subtract(%kept, %grad)";

const SHARDED: &str = "%id = u32[] partition-id()
  %number = s32[] convert(%id)
  %size = s32[] constant(32)
  %start = s32[] multiply(%number, %size)
  %none = s32[] constant(0)
  %w.s = f32[32,128] dynamic-slice(%w, %start, %none), dynamic_slice_sizes={32,128}
  %grad = f32[32,128] reduce-scatter(%local), replica_groups={GROUP}, channel_id=1, use_global_device_ids=true, dimensions={0}, to_apply=%sum
  %rate = f32[] constant(RATE)
  %rates = f32[32,128] broadcast(%rate), dimensions={}
  %kept = f32[32,128] multiply(%rates, %w.s)
  %new.s = f32[32,128] subtract(MINUEND)
  %new = f32[64,128] all-gather(%new.s), replica_groups={{0,1}}, channel_id=2, use_global_device_ids=true, dimensions={0}";

fn module(text: &str) -> Module {
    let parsed = hlo_text::parse_module(text);
    parsed.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, "text", text, false))).module
}

fn whole() -> Module {
    module(&STEP.replace("UPDATE", WHOLE))
}

fn sharded(group: &str, rate: &str, minuend: &str) -> Module {
    let update = SHARDED.replace("GROUP", group).replace("RATE", rate).replace("MINUEND", minuend);
    module(&STEP.replace("UPDATE", &update))
}

fn proved(before: &Module, after: &Module) -> Proof {
    prove(before, after, &Options::default()).expect("a pair")
}

fn dims_of(module: &Module, opcode: Opcode) -> Vec<Vec<i64>> {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let found = insts.filter(|&&inst| module.inst(inst).opcode == opcode);
    found.filter_map(|&inst| module.shape(inst).as_array()).map(|array| array.dims.to_vec()).collect()
}

/// Whether the outputs are near each other on drawn inputs.
fn agree(before: &Module, after: &Module) -> bool {
    let options = draw::DrawOptions { seed: 3, draws: Vec::new(), same: draw::Same::All };
    let inputs = draw::draw_inputs(before, None, &options).expect("inputs");
    let [a, b] = [before, after].map(|module| run(module, &inputs, &EvalOptions::default()).expect("a run"));
    let mut rows = a.leaves.iter().flatten().zip(b.leaves.iter().flatten());
    rows.all(|(a, b)| {
        let (a, b) = (a.elems::<f32>().expect("floats"), b.elems::<f32>().expect("floats"));
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * (1.0 + a.abs()))
    })
}

#[test]
fn a_smaller_pair_is_the_same_program_with_fewer_elements() {
    let (before, after) = (whole(), sharded("{0,1}", "0.9", "%kept, %grad"));
    assert!(proved(&before, &after).is_proved());
    let small = shrink(&before, &[&after]).expect("a smaller pair");
    let [small_after] = small.after.as_slice() else { panic!("expected one module") };
    // The dim that iota counts beside inputs keeps its 32 positions; 64 rows are 2 shards of 2, 4 heads of 32 are 2 of 2.
    assert_eq!(dims_of(&small.before, Opcode::Parameter)[2..], [vec![4, 4], vec![32, 4], vec![32]]);
    assert_eq!(dims_of(&small.before, Opcode::Reshape), [[32, 2, 2]]);
    assert_eq!(dims_of(small_after, Opcode::DynamicSlice), [[2, 4]]);
    assert!(proved(&small.before, small_after).is_proved());
    assert!(agree(&small.before, small_after));
    let wide = small.widened().expect("a pair in f64");
    assert!(proved(&wide.before, &wide.after[0]).is_proved());
}

#[test]
fn what_differs_for_certain_differs_in_the_smaller_pair() {
    let before = whole();
    let cases = [
        ("{1,0}", "0.9", "%kept, %grad", "another order of the group"),
        ("{0,1}", "0.8", "%kept, %grad", "another constant"),
        ("{0,1}", "0.9", "%grad, %kept", "operands exchanged"),
    ];
    for (group, rate, minuend, what) in cases {
        let after = sharded(group, rate, minuend);
        let proof = proved(&before, &after);
        assert!(proof.outputs[0].parts_in_leaves && !proof.outputs[1].parts_in_leaves, "{what}");
        let small = shrink(&before, &[&after]).expect("a smaller pair");
        let small_proof = proved(&small.before, &small.after[0]);
        assert_eq!((small_proof.n_proved(), small_proof.outputs[0].parts_in_leaves), (1, true), "{what}");
        assert!(!agree(&small.before, &small.after[0]), "{what}");
    }
}

#[test]
fn a_constant_that_belongs_to_a_size_is_no_certain_difference() {
    let text = "HloModule m, num_partitions=2\n\n%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  \
                %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\nENTRY %main {\n  %x = f32[] parameter(0)\n  \
                %zero = f32[] constant(0)\n  %all = f32[1024] broadcast(%x), dimensions={}\n  \
                %total = f32[] reduce(%all, %zero), dimensions={0}, to_apply=%sum\n  %part = f32[] constant(0.0009765625)\n  \
                %mean = f32[] multiply(%total, %part)\n  ROOT %r = (f32[]) tuple(OUT)\n}\n";
    let (mean, itself) = (module(&text.replace("OUT", "%mean")), module(&text.replace("OUT", "%x")));
    let proof = proved(&mean, &itself);
    assert!(!proof.is_proved() && !proof.outputs[0].parts_in_leaves);
    // The mean of fewer copies by the same constant is no mean: the smaller pair is not equal, though the larger is.
    let small = shrink(&mean, &[&itself]).expect("a smaller pair");
    assert!(agree(&mean, &itself) && !agree(&small.before, &small.after[0]));
}

#[test]
fn what_a_loop_counts_and_what_is_looked_up_keeps_its_size() {
    let text = "HloModule m, num_partitions=2\n\n%body (p: (s32[], f32[16,64])) -> (s32[], f32[16,64]) {\n  \
                %p = (s32[], f32[16,64]) parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  \
                %x = f32[16,64] get-tuple-element(%p), index=1\n  %one = s32[] constant(1)\n  %none = s32[] constant(0)\n  \
                %row = f32[1,64] dynamic-slice(%x, %i, %none), dynamic_slice_sizes={1,64}\n  \
                %two = f32[1,64] add(%row, %row)\n  \
                %y = f32[16,64] dynamic-update-slice(%x, %two, %i, %none)\n  %j = s32[] add(%i, %one)\n  \
                ROOT %t = (s32[], f32[16,64]) tuple(%j, %y)\n}\n\n\
                %less (p: (s32[], f32[16,64])) -> pred[] {\n  %p = (s32[], f32[16,64]) parameter(0)\n  \
                %i = s32[] get-tuple-element(%p), index=0\n  %n = s32[] constant(16)\n  \
                ROOT %c = pred[] compare(%i, %n), direction=LT\n}\n\nENTRY %main {\n  %x = f32[16,64] parameter(0)\n  \
                %zero = s32[] constant(0)\n  %start = (s32[], f32[16,64]) tuple(%zero, %x)\n  \
                %w = (s32[], f32[16,64]) while(%start), condition=%less, body=%body\n  \
                %y = f32[16,64] get-tuple-element(%w), index=1\n  ROOT %r = (f32[16,64]) tuple(%y)\n}\n";
    let before = module(text);
    let small = shrink(&before, &[&before]).expect("a smaller pair");
    assert_eq!(dims_of(&small.before, Opcode::DynamicUpdateSlice), [[16, 2]]);
    assert!(proved(&small.before, &small.after[0]).is_proved());
}
