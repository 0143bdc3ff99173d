//! `pipeline-loop-collectives` keeps what random loops over layers compute, bit for bit on every device.

use crate::lockstep::{keeps_every_bit, small_integers};
use hlo_tests::random_module::Rng;
use std::fmt::Write;

/// Loops when the environment does not say how many.
const N_CASES: u64 = 300;

/// A loop over layers: what is gathered, by which index, and what the loop hands on.
struct RandomLoop {
    text: String,
    n_devices: usize,
    /// The dims of the parameters: activations, shards, scales.
    params: [Vec<i64>; 3],
}

/// A loop of `trips` over stacked shards. Elements are integers in f32: sums and products are exact.
fn random_loop(seed: u64) -> RandomLoop {
    let mut rng = Rng::new(seed ^ 0x5eed_0f10);
    let n_devices = [2, 3, 4][rng.below(3)];
    let layers = 1 + rng.below(4) as i64;
    let trips = rng.below(5) as i64;
    let (rows, part) = (1 + rng.below(3) as i64, 1 + rng.below(3) as i64);
    let width = part * n_devices as i64;
    let groups: Vec<String> = (0..n_devices).map(|device| device.to_string()).collect();
    let groups = format!("replica_groups={{{{{}}}}}, use_global_device_ids=true", groups.join(","));
    let state = format!("(s32[], f32[{rows},{width}], f32[{layers},{part},{width}], f32[{layers},{part}], s32[])");
    let mut body = String::new();
    let mut add = |line: String| writeln!(body, "  {line}").expect("a string");
    add(format!("%state = {state} parameter(0)"));
    add("%i = s32[] get-tuple-element(%state), index=0".into());
    add("%other = s32[] get-tuple-element(%state), index=4".into());
    for (name, value) in [("one", 1), ("zero", 0), ("last", layers - 1), ("two", 2)] {
        add(format!("%{name} = s32[] constant({value})"));
    }
    let step = ["%i1 = s32[] add(%i, %one)", "%i1 = s32[] add(%one, %i)"][rng.below(2)];
    add(step.into());
    let index = [
        "%at = s32[] add(%i, %zero)",
        "%at = s32[] subtract(%last, %i)",
        "%at = s32[] multiply(%i, %two)",
        "%at = s32[] add(%i, %other)",
    ];
    add(index[rng.below(4)].into());
    add(format!("%x = f32[{rows},{width}] get-tuple-element(%state), index=1"));
    add(format!("%shards = f32[{layers},{part},{width}] get-tuple-element(%state), index=2"));
    add(format!("%scales = f32[{layers},{part}] get-tuple-element(%state), index=3"));
    add(format!(
        "%shard = f32[1,{part},{width}] dynamic-slice(%shards, %at, %zero, %zero), dynamic_slice_sizes={{1,{part},{width}}}"
    ));
    // The shard by itself, added to itself, or with what the iteration computed.
    let of = match rng.below(4) {
        0 => {
            add(format!("%row = f32[1,{width}] slice(%x), slice={{[0:1], [0:{width}]}}"));
            add(format!("%flat = f32[{width}] reshape(%row)"));
            add(format!("%wide = f32[1,{part},{width}] broadcast(%flat), dimensions={{2}}"));
            add(format!("%mixed = f32[1,{part},{width}] add(%shard, %wide)"));
            "mixed"
        }
        1 => {
            add(format!("%doubled = f32[1,{part},{width}] add(%shard, %shard)"));
            "doubled"
        }
        _ => "shard",
    };
    add(format!("%layer = f32[{part},{width}] reshape(%{of})"));
    let turned = rng.below(2) == 0;
    if turned {
        add(format!("%turned = f32[{width},{part}] transpose(%layer), dimensions={{1,0}}"));
        add(format!("%gathered = f32[{width},{width}] all-gather(%turned), dimensions={{1}}, channel_id=1, {groups}"));
    } else {
        add(format!("%gathered = f32[{width},{width}] all-gather(%layer), dimensions={{0}}, channel_id=1, {groups}"));
    }
    add(format!("%scale = f32[1,{part}] dynamic-slice(%scales, %at, %zero), dynamic_slice_sizes={{1,{part}}}"));
    add(format!("%all = f32[1,{width}] all-gather(%scale), dimensions={{1}}, channel_id=2, {groups}"));
    add(format!("%all.1 = f32[{width}] reshape(%all)"));
    add(format!("%all.2 = f32[{rows},{width}] broadcast(%all.1), dimensions={{1}}"));
    add(format!("%y = f32[{rows},{width}] dot(%x, %gathered), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"));
    add(format!("%sum = f32[{rows},{width}] add(%y, %all.2)"));
    add("%three = f32[] constant(3)".into());
    add(format!("%threes = f32[{rows},{width}] broadcast(%three), dimensions={{}}"));
    add(format!("%x1 = f32[{rows},{width}] remainder(%sum, %threes)"));
    // Shards that are handed on as they are, or changed.
    let shards = match rng.below(4) {
        0 => {
            add(format!("%changed = f32[{layers},{part},{width}] add(%shards, %shards)"));
            "changed"
        }
        _ => "shards",
    };
    let other =
        ["%other1 = s32[] add(%other, %one)", "%other1 = s32[] add(%other, %i)", "%other1 = s32[] add(%other, %zero)"];
    add(other[rng.below(3)].into());
    add(format!("ROOT %next = {state} tuple(%i1, %x1, %{shards}, %scales, %other1)"));
    // What the loop begins with is given, or computed: then the first gather waits for it.
    let given = ["copy(%x)", "add(%x, %x)"][rng.below(2)];
    let text = format!(
        "HloModule loop, num_partitions={n_devices}\n\n%body (state: {state}) -> {state} {{\n{body}}}\n\n\
         %condition (seen: {state}) -> pred[] {{\n  %seen = {state} parameter(0)\n  %so_far = s32[] get-tuple-element(%seen), index=0\n  \
         %trips = s32[] constant({trips})\n  ROOT %more = pred[] compare(%so_far, %trips), direction=LT\n}}\n\n\
         ENTRY %main (x: f32[{rows},{width}], w0: f32[{layers},{part},{width}], b0: f32[{layers},{part}]) -> (f32[{rows},{width}], s32[]) {{\n  \
         %x = f32[{rows},{width}] parameter(0)\n  %x0 = f32[{rows},{width}] {given}\n  %w0 = f32[{layers},{part},{width}] parameter(1)\n  %b0 = f32[{layers},{part}] parameter(2)\n  \
         %begin.0 = s32[] constant(0)\n  %begin = {state} tuple(%begin.0, %x0, %w0, %b0, %begin.0)\n  \
         %end = {state} while(%begin), condition=%condition, body=%body\n  \
         %result = f32[{rows},{width}] get-tuple-element(%end), index=1\n  %count = s32[] get-tuple-element(%end), index=4\n  \
         ROOT %results = (f32[{rows},{width}], s32[]) tuple(%result, %count)\n}}\n"
    );
    RandomLoop { text, n_devices, params: [vec![rows, width], vec![layers, part, width], vec![layers, part]] }
}

/// The number of gathers that one iteration makes for the next.
fn check(seed: u64) -> u64 {
    let random = random_loop(seed);
    let inputs = small_integers(seed, random.n_devices, &random.params, 2);
    let once = keeps_every_bit(seed, &random.text, &inputs, "pipeline-loop-collectives");
    once.reports[0].stats["pipeline-loop-collectives.gathers-pipelined"]
}

#[test]
fn random_loops_over_layers_compute_the_same() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    let found: Vec<u64> = (0..n_cases).map(check).collect();
    let of = |n: u64| found.iter().filter(|&&found| found == n).count();
    println!("of {n_cases} loops {} have nothing ahead, {} one gather, {} two", of(0), of(1), of(2));
    assert!(of(0) * 10 > found.len() && of(1) * 10 > found.len() && of(2) * 10 > found.len());
}

/// A backward loop of `trips` over layers: gradients that are summed over devices, and stored layer by layer, read, or added up.
fn random_gradients(seed: u64) -> RandomLoop {
    let mut rng = Rng::new(seed ^ 0x96ad_0f10);
    let n_devices = [2, 4][rng.below(2)];
    let layers = 1 + rng.below(4) as i64;
    let trips = rng.below(5) as i64;
    let (rows, part) = (1 + rng.below(3) as i64, 1 + rng.below(3) as i64);
    let width = part * n_devices as i64;
    let list = |devices: &[usize]| devices.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let all: Vec<usize> = (0..n_devices).collect();
    let groups = format!("replica_groups={{{{{}}}}}, use_global_device_ids=true, to_apply=%add", list(&all));
    let (front, rear) = all.split_at(n_devices / 2);
    let [front, rear] = [front, rear].map(list);
    let scatters = rng.below(2) == 0;
    let kept = if scatters { part } else { width };
    let state = format!("(s32[], f32[{rows},{width}], f32[{layers},{kept},{width}], f32[{layers},{width}], s32[])");
    let mut body = String::new();
    let mut add = |line: String| writeln!(body, "  {line}").expect("a string");
    add(format!("%state = {state} parameter(0)"));
    add("%i = s32[] get-tuple-element(%state), index=0".into());
    add("%other = s32[] get-tuple-element(%state), index=4".into());
    for (name, value) in [("one", 1), ("zero", 0), ("last", layers - 1), ("two", 2)] {
        add(format!("%{name} = s32[] constant({value})"));
    }
    add("%i1 = s32[] add(%i, %one)".into());
    add(format!("%x = f32[{rows},{width}] get-tuple-element(%state), index=1"));
    // The last place depends on what the loop computes.
    let place = rng.below(5);
    match place {
        0 => add("%at = s32[] add(%i, %zero)".into()),
        1 => add("%at = s32[] subtract(%last, %i)".into()),
        2 => add("%at = s32[] multiply(%i, %two)".into()),
        3 => add("%at = s32[] add(%i, %other)".into()),
        _ => {
            add("%first = f32[1,1] slice(%x), slice={[0:1], [0:1]}".into());
            add("%first.1 = f32[] reshape(%first)".into());
            add("%at = s32[] convert(%first.1)".into());
        }
    }
    add(format!("%g = f32[{width},{width}] dot(%x, %x), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}"));
    let scattered = format!("f32[{kept},{width}]");
    match (scatters, rng.below(2)) {
        (true, _) => add(format!("%sum = {scattered} reduce-scatter(%g), dimensions={{0}}, channel_id=1, {groups}")),
        (false, 0) => add(format!("%sum = {scattered} all-reduce(%g), channel_id=1, {groups}")),
        // In two steps, as over nodes.
        (false, _) => {
            let near = format!("replica_groups={{{{{front}}},{{{rear}}}}}, use_global_device_ids=true, to_apply=%add");
            let across: Vec<String> = (0..n_devices / 2).map(|d| format!("{{{d},{}}}", d + n_devices / 2)).collect();
            let across = format!("replica_groups={{{}}}, use_global_device_ids=true, to_apply=%add", across.join(","));
            add(format!("%near = {scattered} all-reduce(%g), channel_id=1, {near}"));
            add(format!("%sum = {scattered} all-reduce(%near), channel_id=3, {across}"));
        }
    }
    let grad = match rng.below(3) {
        0 => "sum",
        1 => {
            add(format!("%scales = f32[{kept},{width}] broadcast(%other.f), dimensions={{}}"));
            add(format!("%scaled = {scattered} multiply(%sum, %scales)"));
            "scaled"
        }
        _ => {
            add(format!("%whole = s32[{kept},{width}] convert(%sum)"));
            add(format!("%back = {scattered} convert(%whole)"));
            "back"
        }
    };
    add(format!("%grad = f32[1,{kept},{width}] reshape(%{grad})"));
    add(format!("%grads = f32[{layers},{kept},{width}] get-tuple-element(%state), index=2"));
    add(format!("%grads.1 = f32[{layers},{kept},{width}] dynamic-update-slice(%grads, %grad, %at, %zero, %zero)"));
    add("%none = f32[] constant(0)".into());
    add(format!("%b = f32[{width}] reduce(%x, %none), dimensions={{0}}, to_apply=%add"));
    add(format!("%b.sum = f32[{width}] all-reduce(%b), channel_id=2, {groups}"));
    add(format!("%biases = f32[{layers},{width}] get-tuple-element(%state), index=3"));
    if rng.below(3) == 0 {
        add(format!("%b.all = f32[{layers},{width}] broadcast(%b.sum), dimensions={{1}}"));
        add(format!("%biases.1 = f32[{layers},{width}] add(%biases, %b.all)"));
    } else {
        add(format!("%b.row = f32[1,{width}] reshape(%b.sum)"));
        add(format!("%biases.1 = f32[{layers},{width}] dynamic-update-slice(%biases, %b.row, %at, %zero)"));
    }
    // The next layer takes nothing of the sums, or some of what is stored.
    let of = match rng.below(4) {
        0 => {
            add(format!("%row = f32[1,1,{width}] slice(%grads.1), slice={{[0:1], [0:1], [0:{width}]}}"));
            add(format!("%flat = f32[{width}] reshape(%row)"));
            add(format!("%wide = f32[{rows},{width}] broadcast(%flat), dimensions={{1}}"));
            add(format!("%mixed = f32[{rows},{width}] add(%x, %wide)"));
            "mixed"
        }
        _ => "x",
    };
    add(format!("%ones = f32[{rows},{width}] broadcast(%one.f), dimensions={{}}"));
    add(format!("%more = f32[{rows},{width}] add(%{of}, %ones)"));
    add("%three = f32[] constant(3)".into());
    add(format!("%threes = f32[{rows},{width}] broadcast(%three), dimensions={{}}"));
    add(format!("%x1 = f32[{rows},{width}] remainder(%more, %threes)"));
    add(["%other1 = s32[] add(%other, %one)", "%other1 = s32[] add(%other, %zero)"][rng.below(2)].into());
    add(format!("ROOT %next = {state} tuple(%i1, %x1, %grads.1, %biases.1, %other1)"));
    let body = body.replacen("  %i1 =", "  %other.f = f32[] convert(%other)\n  %one.f = f32[] constant(1)\n  %i1 =", 1);
    let grads = format!("f32[{layers},{kept},{width}]");
    let text = format!(
        "HloModule loop, num_partitions={n_devices}\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  \
         %b.0 = f32[] parameter(1)\n  ROOT %sum.0 = f32[] add(%a, %b.0)\n}}\n\n%body (state: {state}) -> {state} {{\n{body}}}\n\n\
         %condition (seen: {state}) -> pred[] {{\n  %seen = {state} parameter(0)\n  %so_far = s32[] get-tuple-element(%seen), index=0\n  \
         %trips = s32[] constant({trips})\n  ROOT %more.0 = pred[] compare(%so_far, %trips), direction=LT\n}}\n\n\
         ENTRY %main (x0: f32[{rows},{width}], g0: {grads}, b0: f32[{layers},{width}]) -> (f32[{rows},{width}], {grads}, f32[{layers},{width}]) {{\n  \
         %x0 = f32[{rows},{width}] parameter(0)\n  %g0 = {grads} parameter(1)\n  %b0 = f32[{layers},{width}] parameter(2)\n  \
         %begin.0 = s32[] constant(0)\n  %begin = {state} tuple(%begin.0, %x0, %g0, %b0, %begin.0)\n  \
         %end = {state} while(%begin), condition=%condition, body=%body\n  \
         %result = f32[{rows},{width}] get-tuple-element(%end), index=1\n  %result.1 = {grads} get-tuple-element(%end), index=2\n  \
         %result.2 = f32[{layers},{width}] get-tuple-element(%end), index=3\n  \
         ROOT %results = (f32[{rows},{width}], {grads}, f32[{layers},{width}]) tuple(%result, %result.1, %result.2)\n}}\n"
    );
    RandomLoop { text, n_devices, params: [vec![rows, width], vec![layers, kept, width], vec![layers, width]] }
}

/// The number of sums that one iteration makes of what the one before has left. A second run finds nothing.
fn check_gradients(seed: u64) -> u64 {
    let random = random_gradients(seed);
    let inputs = small_integers(seed, random.n_devices, &random.params, 2);
    let twice = keeps_every_bit(
        seed,
        &random.text,
        &inputs,
        "pipeline-loop-collectives{collectives=all},pipeline-loop-collectives{collectives=all}",
    );
    let sums = |report: usize| twice.reports[report].stats["pipeline-loop-collectives.sums-pipelined"];
    assert_eq!(sums(1), 0, "seed {seed}: {}", random.text);
    sums(0)
}

#[test]
fn random_loops_that_sum_gradients_compute_the_same() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    let found: Vec<u64> = (0..n_cases).map(check_gradients).collect();
    let of = |n: u64| found.iter().filter(|&&found| found == n).count();
    println!("of {n_cases} loops {} have nothing later, {} one sum, {} two, {} three", of(0), of(1), of(2), of(3));
    assert!(of(0) * 10 > found.len() && of(1) * 10 > found.len() && of(2) * 10 > found.len());
}
