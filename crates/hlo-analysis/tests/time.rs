//! Predicted times of small modules, each beside the sum that it must be.

use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::{ModuleTime, Updates, instruction_cost, predict, predict_as_ordered};
use hlo_ir::cost::Costs;
use hlo_ir::{DType, InstId, Module};
use hlo_mesh::{Exchange, KernelWork, Machine, Unit};

fn parsed(text: &str) -> Module {
    match hlo_text::parse_module(text) {
        Ok(parsed) => parsed.module,
        Err(errors) => panic!("{}", hlo_text::render(&errors, "m.hlo", text, false)),
    }
}

fn machine() -> Machine {
    Machine::unnamed().expect("the default machine")
}

fn time(module: &Module) -> ModuleTime {
    let frequencies = Frequencies::compute(module, FrequencyOptions::default());
    predict(module, &frequencies, &machine()).expect("a time")
}

/// Seconds of a kernel that moves `bytes` and does little.
fn kernel_s(bytes: f64) -> f64 {
    machine().kernel_s(KernelWork { bytes, arithmetic_s: 0.0 })
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "expected {expected:e}, found {found:e}");
}

fn named(module: &Module, name: &str) -> InstId {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let mut insts = insts.copied();
    insts.find(|&inst| module.inst_name(inst) == name).expect("the instruction")
}

#[test]
fn elementwise_instructions_are_one_kernel() {
    let module = parsed(
        "HloModule m\nENTRY e {\n  x = f32[1024] parameter(0)\n  y = f32[1024] parameter(1)\n  m = f32[1024] multiply(x, y)\n  \
         ROOT a = f32[1024] add(m, y)\n}\n",
    );
    let found = time(&module);
    assert_near(found.critical_path_s, kernel_s(3.0 * 4096.0));
    assert_eq!((found.compute_s, found.communication_s), (found.critical_path_s, 0.0));
    assert!(!found.is_partial);
}

#[test]
fn a_slice_reads_its_part_alone() {
    let module = parsed(
        "HloModule m\nENTRY e {\n  x = f32[1000,1024] parameter(0)\n  s = f32[10,1024] slice(x), slice={[5:15], [0:1024]}\n  \
         ROOT n = f32[10,1024] negate(s)\n}\n",
    );
    assert_near(time(&module).critical_path_s, kernel_s(2.0 * 10.0 * 4096.0));
}

#[test]
fn an_embedding_reads_the_rows_that_it_looks_up() {
    let module = parsed(
        "HloModule m\nENTRY e {\n  table = f32[50000,128] parameter(0)\n  ids = s32[64,1] parameter(1)\n  \
         ROOT g = f32[64,128] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
         index_vector_dim=1, slice_sizes={1,128}\n}\n",
    );
    assert_near(time(&module).critical_path_s, kernel_s(2.0 * 64.0 * 512.0 + 64.0 * 4.0));
}

#[test]
fn an_update_in_place_writes_its_part_alone() {
    let module = parsed(
        "HloModule m\nENTRY e {\n  x = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  i = s32[] parameter(2)\n  \
         zero = s32[] constant(0)\n  ROOT d = f32[1000,1024] dynamic-update-slice(x, u, i, zero)\n}\n",
    );
    let (costs, update) = (Costs::new(&module), named(&module, "d"));
    let in_place = instruction_cost(&costs, update, Updates::InPlace);
    assert_eq!((in_place.bytes_read, in_place.bytes_written), (4096.0 + 8.0, 4096.0));
    // A kernel that writes the whole array reads what the update does not cover.
    let anew = instruction_cost(&costs, update, Updates::Rewrite);
    assert_eq!((anew.bytes_read, anew.bytes_written), (999.0 * 4096.0 + 4096.0 + 8.0, 1000.0 * 4096.0));
}

#[test]
fn a_product_counts_on_the_matrix_unit_in_its_operands_type() {
    let module = parsed(
        "HloModule m\nENTRY e {\n  a = bf16[512,256] parameter(0)\n  b = bf16[256,128] parameter(1)\n  \
         ROOT d = f32[512,128] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n",
    );
    let cost = instruction_cost(&Costs::new(&module), named(&module, "d"), Updates::InPlace);
    let [arithmetic] = cost.arithmetic.as_slice() else { panic!("{cost:?}") };
    assert_eq!((arithmetic.unit, arithmetic.dtype), (Unit::Matrix, DType::BF16));
    assert_eq!(arithmetic.flops, 2.0 * 512.0 * 256.0 * 128.0);
}

const LOOP: &str = "HloModule m\n\
body {\n  p = (s32[], f32[4096]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
x = f32[4096] get-tuple-element(p), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  \
y = f32[4096] multiply(x, x)\n  ROOT t = (s32[], f32[4096]) tuple(j, y)\n}\n\
cond {\n  p = (s32[], f32[4096]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  n = s32[] constant(12)\n  \
ROOT c = pred[] compare(i, n), direction=LT\n}\n\
ENTRY e {\n  x = f32[4096] parameter(0)\n  zero = s32[] constant(0)\n  t = (s32[], f32[4096]) tuple(zero, x)\n  \
w = (s32[], f32[4096]) while(t), condition=cond, body=body\n  ROOT r = f32[4096] get-tuple-element(w), index=1\n}\n";

#[test]
fn a_loop_takes_its_rounds_and_one_more_condition() {
    let module = parsed(LOOP);
    let one_round = |n: &str| parsed(&LOOP.replace("constant(12)", &format!("constant({n})")));
    let [none, one, twelve] = ["0", "1", "12"].map(|n| time(&one_round(n)).critical_path_s);
    assert_near(twelve - none, 12.0 * (one - none));
    assert!(none >= machine().launch_s() && one > none + machine().launch_s());
    assert_near(time(&module).critical_path_s, twelve);
}

#[test]
fn a_branch_counts_by_how_often_it_is_taken() {
    let module = parsed(
        "HloModule m\nlong {\n  p = f32[1048576] parameter(0)\n  ROOT n = f32[1048576] negate(p)\n}\n\
         short {\n  ROOT p = f32[1048576] parameter(0)\n}\n\
         ENTRY e {\n  c = pred[] parameter(0)\n  x = f32[1048576] parameter(1)\n  \
         ROOT r = f32[1048576] conditional(c, x, x), true_computation=long, false_computation=short\n}\n",
    );
    assert_near(time(&module).critical_path_s, kernel_s(8.0 * 1048576.0) / 2.0);
}

/// A sum over eight devices of what a kernel makes, beside work that does not need it.
fn summed(collective: &str) -> Module {
    parsed(&format!(
        "HloModule m, replica_count=8\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}}\n\
         ENTRY e {{\n  x = f32[262144] parameter(0)\n  w = f32[4096,4096] parameter(1)\n  g = f32[262144] negate(x)\n  {collective}\n  \
         d = f32[4096,4096] dot(w, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         ROOT t = (f32[262144], f32[4096,4096]) tuple(s, d)\n}}\n"
    ))
}

#[test]
fn a_collective_hides_behind_a_product() {
    let groups = "replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=add";
    let module = summed(&format!("s = f32[262144] all-reduce(g), {groups}"));
    let network = machine().network(8).expect("links");
    let all = [(0..8).collect::<Vec<u32>>()];
    let sum_s = network.exchange(Exchange::AllReduce, &all, &[]).seconds(1048576.0);
    let found = time(&module);
    assert_near(found.communication_s, sum_s);
    assert_near(found.critical_path_s, found.compute_s);
    assert!(found.compute_s > sum_s, "the product is longer than the sum");
    // The asynchronous form takes as long.
    let begun = format!("b = f32[262144] all-reduce-start(g), {groups}\n  s = f32[262144] all-reduce-done(b)");
    assert_eq!(time(&summed(&begun)), found);
    // Groups of one device exchange nothing.
    let alone = "s = f32[262144] all-reduce(g), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=add";
    assert_eq!(time(&summed(alone)).communication_s, 0.0);
}

#[test]
fn a_call_counts_in_its_callers_place_and_as_often_as_it_is_made() {
    let of = |calls: &str| {
        parsed(&format!(
            "HloModule m\nf {{\n  p = f32[1048576] parameter(0)\n  r = f32[1048576] reverse(p), dimensions={{0}}\n  \
             ROOT q = f32[1048576] reverse(r), dimensions={{0}}\n}}\nENTRY e {{\n  x = f32[1048576] parameter(0)\n  {calls}\n}}\n"
        ))
    };
    let once = time(&of("ROOT a = f32[1048576] call(x), to_apply=f"));
    let twice = time(&of("a = f32[1048576] call(x), to_apply=f\n  ROOT b = f32[1048576] call(a), to_apply=f"));
    assert!(once.critical_path_s >= kernel_s(8.0 * 1048576.0) * (1.0 - 1e-9));
    assert_near(twice.critical_path_s, 2.0 * once.critical_path_s);
}

#[test]
fn what_is_not_known_is_said() {
    let on = |n_devices: usize| {
        parsed(&format!(
            "HloModule m, num_partitions={n_devices}\nENTRY e {{\n  x = f32[16] parameter(0)\n  \
             ROOT c = f32[16] custom-call(x), custom_call_target=\"secret\"\n}}\n"
        ))
    };
    assert!(time(&on(1)).is_partial);
    let eight = Machine::parse("[(gpu,8)]", 1).expect("a machine");
    let on_eight = |module: &Module| {
        let frequencies = Frequencies::compute(module, FrequencyOptions::default());
        predict(module, &frequencies, &eight)
    };
    assert!(on_eight(&on(2)).is_err_and(|error| error.to_string().contains('8')));
    // A device alone exchanges nothing: it is one of any machine.
    assert_eq!(on_eight(&on(1)).map(|time| time.critical_path_s), Ok(time(&on(1)).critical_path_s));
}

/// Loops of two billion trips, `depth` within each other; the outermost runs `outermost` times.
fn nested_loops(depth: usize, outermost: &str) -> Module {
    let mut text = String::from("HloModule m\n");
    for level in 0..depth {
        let trips = if level + 1 == depth { outermost } else { "2147483647" };
        let inner = match level.checked_sub(1) {
            None => "x = (s32[], s32[]) tuple(i, i)".to_string(),
            Some(inner) => format!(
                "zero = s32[] constant(0)\n  z = (s32[], s32[]) tuple(zero, zero)\n  \
                 x = (s32[], s32[]) while(z), condition=c{inner}, body=b{inner}"
            ),
        };
        text += &format!(
            "c{level} {{\n  p = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
             n = s32[] constant({trips})\n  ROOT d = pred[] compare(i, n), direction=LT\n}}\n\
             b{level} {{\n  p = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  {inner}\n  \
             one = s32[] constant(1)\n  j = s32[] add(i, one)\n  y = s32[] get-tuple-element(x), index=1\n  \
             ROOT t = (s32[], s32[]) tuple(j, y)\n}}\n"
        );
    }
    let last = depth - 1;
    text += &format!(
        "ENTRY e {{\n  zero = s32[] constant(0)\n  z = (s32[], s32[]) tuple(zero, zero)\n  \
         ROOT w = (s32[], s32[]) while(z), condition=c{last}, body=b{last}\n}}\n"
    );
    parsed(&text)
}

#[test]
fn a_loop_that_never_runs_takes_nothing_even_of_what_never_ends() {
    assert_eq!(time(&nested_loops(40, "1")).critical_path_s, f64::INFINITY);
    let never = time(&nested_loops(40, "0"));
    assert!(never.critical_path_s < 1e-3, "{never:?}");
}

/// `work` as a computation, called on four devices with the `f32[1048576]` that is `made` of the parameter `p`.
fn called_or_begun(made: &str, work: &str, is_begun: bool) -> Module {
    let call = match is_begun {
        true => {
            "s = ((f32[1048576]), f32[1048576], u32[]) async-start(x), calls=w\n  ROOT d = f32[1048576] async-done(s)"
        }
        false => "ROOT d = f32[1048576] call(x), to_apply=w",
    };
    parsed(&format!(
        "HloModule m, replica_count=4\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}}\n\
         c {{\n  p = (s32[], f32[1048576]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  n = s32[] constant(9)\n  \
         ROOT c = pred[] compare(i, n), direction=LT\n}}\n\
         b {{\n  p = (s32[], f32[1048576]) parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n  \
         y = f32[1048576] get-tuple-element(p), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  \
         z = f32[1048576] negate(y)\n  ROOT t = (s32[], f32[1048576]) tuple(j, z)\n}}\n\
         w {{\n  a = f32[1048576] parameter(0)\n  {work}\n}}\n\
         ENTRY e {{\n  p = f32[1048576] parameter(0)\n  x = f32[1048576] {made}\n  {call}\n}}\n"
    ))
}

#[test]
fn what_is_begun_takes_as_long_as_a_call() {
    let sum = "all-reduce(a), replica_groups={{0,1,2,3}}, to_apply=add";
    let works = [
        "ROOT n = f32[1048576] negate(a)".to_string(),
        format!("ROOT r = f32[1048576] {sum}"),
        format!(
            "x = f32[1048576] custom-call(a), custom_call_target=\"slow\"\n  r = f32[1048576] {}\n  ROOT q = f32[1048576] {}",
            sum.replace("(a)", "(x)"),
            sum.replace("(a)", "(r)")
        ),
        "zero = s32[] constant(0)\n  t = (s32[], f32[1048576]) tuple(zero, a)\n  \
         l = (s32[], f32[1048576]) while(t), condition=c, body=b\n  ROOT r = f32[1048576] get-tuple-element(l), index=1"
            .to_string(),
    ];
    for work in &works {
        let [called, begun] = [false, true].map(|is_begun| time(&called_or_begun("bitcast(p)", work, is_begun)));
        assert_eq!(begun, called, "{work}");
        assert!(called.critical_path_s > 0.0 && called.is_partial == work.contains("custom-call"));
    }
}

#[test]
fn what_is_begun_waits_for_what_it_is_given() {
    let sum = "ROOT r = f32[1048576] all-reduce(a), replica_groups={{0,1,2,3}}, to_apply=add";
    let [called, begun] = [false, true].map(|is_begun| time(&called_or_begun("sine(p)", sum, is_begun)));
    assert_eq!(begun, called);
    assert_near(begun.critical_path_s, begun.compute_s + begun.communication_s);
}

#[test]
fn a_copy_that_is_begun_runs_beside_kernels() {
    let module = |space: &str| {
        parsed(&format!(
            "HloModule m\nENTRY e {{\n  p = f32[1048576]{{0}} parameter(0)\n  q = f32[1048576]{{0}} parameter(1)\n  \
             s = (f32[1048576]{{0{space}}}, f32[1048576]{{0}}, u32[]) copy-start(p)\n  n = f32[1048576]{{0}} negate(q)\n  \
             d = f32[1048576]{{0{space}}} copy-done(s)\n  \
             ROOT t = (f32[1048576]{{0{space}}}, f32[1048576]{{0}}) tuple(d, n)\n}}\n"
        ))
    };
    let found = time(&module(""));
    assert_near(found.critical_path_s, kernel_s(8.0 * 1048576.0));
    assert_near(found.compute_s, kernel_s(8.0 * 1048576.0));
    // The way to the host is PCIe, and slower.
    let to_host = time(&module(":S(5)"));
    assert_near(to_host.critical_path_s, machine().host_copy_s(4.0 * 1048576.0));
    assert_near(to_host.compute_s, found.compute_s);
    assert!(!found.is_partial && !to_host.is_partial);
}

/// Bytes of the array that the tests of updates update, and of the row that they write.
const ARRAY: f64 = 1000.0 * 4096.0;
const ROW: f64 = 4096.0;

/// A module that takes an array, a row and an index, with this entry.
fn updating(header: &str, entry: &str) -> Module {
    parsed(&format!(
        "HloModule m{header}\nENTRY e {{\n  p = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  \
         i = s32[] parameter(2)\n  z = s32[] constant(0)\n  {entry}\n}}\n"
    ))
}

const ALIAS: &str = ", input_output_alias={ {}: (0, {}, may-alias) }";
const DUS: &str = "f32[1000,1024] dynamic-update-slice";

/// Seconds of a kernel that writes a row in place, and of one that writes the whole array anew.
fn update_s() -> (f64, f64) {
    (kernel_s(2.0 * ROW + 8.0), kernel_s(2.0 * ARRAY + 8.0))
}

#[test]
fn an_update_is_in_place_where_the_array_may_be_written_over() {
    let (in_place, anew) = update_s();
    let entry = format!("ROOT w = {DUS}(p, u, i, z)");
    // A parameter is the caller's, unless it is aliased with the result or donated.
    assert_near(time(&updating("", &entry)).critical_path_s, anew);
    assert_near(time(&updating(ALIAS, &entry)).critical_path_s, in_place);
    let donor = ", buffer_donor={ (0, {}) }";
    assert_near(time(&updating(donor, &entry)).critical_path_s, in_place);
    // What the module has made itself is its own, unless it is read later.
    let work = |operand: &str| format!("f32[1000,1024] custom-call({operand}), custom_call_target=\"work\"");
    let made = format!("r = {}\n  w = {DUS}(r, u, i, z)", work("p"));
    let once = format!("{made}\n  ROOT q = {}", work("w"));
    let works = 2.0 * kernel_s(2.0 * ARRAY);
    assert_near(time(&updating("", &once)).critical_path_s, works + in_place);
    let kept = format!("{made}\n  ROOT t = (f32[1000,1024], f32[1000,1024]) tuple(r, w)");
    assert_near(time(&updating("", &kept)).critical_path_s, kernel_s(2.0 * ARRAY) + anew);
}

#[test]
fn two_updates_of_one_array_write_it_anew_once() {
    let (in_place, anew) = update_s();
    // Both stand in kernels of their own: their parts are of different dims.
    let alias = ", input_output_alias={ {0}: (0, {}, may-alias) }";
    let entry = format!(
        "w = {DUS}(p, u, i, z)\n  x = f32[1000,1024] sort(w), dimensions={{1}}, to_apply=less\n  v = {DUS}(p, u, z, z)\n  \
         ROOT t = (f32[1000,1024], f32[1000,1024]) tuple(x, v)"
    );
    let with_less = |module: &str| {
        module.replace("ENTRY", "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT l = pred[] compare(a, b), direction=LT\n}\nENTRY")
    };
    let text = format!(
        "HloModule m{alias}\nENTRY e {{\n  p = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  \
         i = s32[] parameter(2)\n  z = s32[] constant(0)\n  {entry}\n}}\n"
    );
    let both = time(&parsed(&with_less(&text))).compute_s;
    let sorted =
        with_less(&text.replace(&format!("v = {DUS}(p, u, z, z)"), "v = f32[1000,1024] reverse(p), dimensions={0}"));
    let one = time(&parsed(&sorted)).compute_s;
    assert!((both - one - (in_place - kernel_s(2.0 * ARRAY))).abs() < 1e-12, "{both:e} {one:e}");
    assert!(both > anew + in_place);
}

#[test]
fn a_parameter_that_is_a_result_is_copied_unless_it_is_aliased() {
    let entry = "n = f32[1,1024] negate(u)\n  ROOT t = (f32[1000,1024], f32[1,1024]) tuple(p, n)";
    let small = kernel_s(2.0 * ROW);
    assert_near(time(&updating("", entry)).critical_path_s, small + kernel_s(2.0 * ARRAY));
    let alias = ", input_output_alias={ {0}: (0, {}, may-alias) }";
    assert_near(time(&updating(alias, entry)).critical_path_s, small);
}

#[test]
fn a_loop_copies_what_is_not_its_own_once_and_updates_in_place() {
    let text = |header: &str, trips: usize| {
        let state = "(s32[], f32[1000,1024], f32[1,1024])";
        format!(
            "HloModule m{header}\nc {{\n  t = {state} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  \
             n = s32[] constant({trips})\n  ROOT d = pred[] compare(i, n), direction=LT\n}}\n\
             b {{\n  t = {state} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  \
             p = f32[1000,1024] get-tuple-element(t), index=1\n  u = f32[1,1024] get-tuple-element(t), index=2\n  \
             z = s32[] constant(0)\n  o = s32[] constant(1)\n  j = s32[] add(i, o)\n  w = {DUS}(p, u, i, z)\n  \
             ROOT r = {state} tuple(j, w, u)\n}}\n\
             ENTRY e {{\n  p = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  z = s32[] constant(0)\n  \
             t = {state} tuple(z, p, u)\n  w = {state} while(t), condition=c, body=b\n  \
             ROOT r = f32[1000,1024] get-tuple-element(w), index=1\n}}\n"
        )
    };
    let of = |header: &str, trips: usize| time(&parsed(&text(header, trips))).critical_path_s;
    let round = of(ALIAS, 2) - of(ALIAS, 1);
    assert!(round < 4.0 * kernel_s(3.0 * ROW), "{round:e}");
    assert_near(of("", 2) - of("", 1), round);
    assert_near(of("", 1) - of(ALIAS, 1), kernel_s(2.0 * ARRAY));
}

#[test]
fn an_update_of_what_a_kernel_makes_writes_it_whole() {
    // The zeros are made by the kernel that updates them; nothing is read of them.
    let entry = format!(
        "k = f32[] constant(0)\n  b = f32[1000,1024] broadcast(k), dimensions={{}}\n  ROOT w = {DUS}(b, u, i, z)"
    );
    let found = time(&updating("", &entry)).critical_path_s;
    assert!((found - kernel_s(ARRAY + ROW)).abs() < 1e-10, "{found:e}");
    // A fusion counts as its instructions do.
    let fused = |header: &str| {
        parsed(&format!(
            "HloModule m{header}\nf {{\n  p = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  \
             i = s32[] parameter(2)\n  z = s32[] constant(0)\n  n = f32[1,1024] negate(u)\n  ROOT w = {DUS}(p, n, i, z)\n}}\n\
             ENTRY e {{\n  p = f32[1000,1024] parameter(0)\n  u = f32[1,1024] parameter(1)\n  i = s32[] parameter(2)\n  \
             ROOT w = f32[1000,1024] fusion(p, u, i), kind=kLoop, calls=f\n}}\n"
        ))
    };
    let (own, others) = (time(&fused(ALIAS)).critical_path_s, time(&fused("")).critical_path_s);
    assert!(own < 1.1 * kernel_s(2.0 * ROW) && others > kernel_s(2.0 * ARRAY) * 0.99, "{own:e} {others:e}");
}

/// A sum and a kernel that does not need it, in this order of the text.
fn summing(lines: &str) -> Module {
    parsed(&format!(
        "HloModule m, num_partitions=4\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\
         ENTRY e {{\n  p = f32[1048576] parameter(0)\n  q = f32[1048576] parameter(1)\n{lines}  ROOT t = (f32[1048576], f32[1048576]) tuple(s, n)\n}}\n"
    ))
}

#[test]
fn in_the_order_of_the_text_a_collective_hides_behind_what_stands_between_its_halves() {
    let groups = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add";
    let whole = summing(&format!("  s = f32[1048576] all-reduce(p), {groups}\n  n = f32[1048576] negate(q)\n"));
    let begin = format!("  b = f32[1048576] all-reduce-start(p), {groups}\n");
    let (end, kernel) = ("  s = f32[1048576] all-reduce-done(b)\n", "  n = f32[1048576] negate(q)\n");
    let between = summing(&format!("{begin}{kernel}{end}"));
    let behind = summing(&format!("{begin}{end}{kernel}"));
    let free = time(&whole);
    let ordered = |module: &Module| {
        let frequencies = Frequencies::compute(module, FrequencyOptions::default());
        predict_as_ordered(module, &frequencies, &machine()).expect("a machine of any size").critical_path_s
    };
    // Whatever the order, a list scheduler hides the kernel.
    assert_near(free.critical_path_s, free.communication_s.max(free.compute_s));
    assert_near(ordered(&between), free.critical_path_s);
    let one_after_the_other = free.communication_s + free.compute_s;
    assert_near(ordered(&whole), one_after_the_other);
    assert_near(ordered(&behind), one_after_the_other);
}

/// Two sorts that were measured on an H100, and a merge, which is much less work than a sort.
#[test]
fn sorts_take_about_as_long_as_on_a_card() {
    let h100 = Machine::parse("h100:switch", 1).expect("a machine");
    let sort = |shape: &str, dim: i64, marks: &str| {
        let module = parsed(&format!(
            "HloModule m\nlt {{ a = f32[] parameter(0) b = f32[] parameter(1) c = s32[] parameter(2) d = s32[] parameter(3) \
             ROOT s = pred[] compare(a, b), direction=LT }}\nENTRY e {{\n  x = f32{shape} parameter(0)\n  i = s32{shape} parameter(1)\n  \
             ROOT r = (f32{shape}, s32{shape}) sort(x, i), dimensions={{{dim}}}, to_apply=lt{marks}\n}}\n"
        ));
        let frequencies = Frequencies::compute(&module, FrequencyOptions::default());
        predict(&module, &frequencies, &h100).expect("a time").critical_path_s
    };
    let is_about = |found: f64, measured: f64| (0.7..1.4).contains(&(found / measured));
    let (long, rows) = (sort("[4194304]", 0, ""), sort("[1024,2048]", 1, ""));
    assert!(is_about(long, 245e-6) && is_about(rows, 125e-6), "{long:e} {rows:e}");
    let merge = sort("[4194304]", 0, ", frontend_attributes={hlo_opt.sorted=\"halves\"}");
    assert!(merge < long / 4.0, "{merge:e} of {long:e}");
}
