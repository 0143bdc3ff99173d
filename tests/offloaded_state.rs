//! `offload-state` keeps what random training steps compute, bit for bit, whatever the order of their text, and takes less memory.

use crate::lockstep::{keeps_every_bit, small_integers};
use hlo_tests::random_module::Rng;
use std::fmt::Write;

/// Steps when the environment does not say how many.
const N_CASES: u64 = 300;

/// A step whose lines stand in a random order that has operands before users.
struct RandomStep {
    text: String,
    n_devices: usize,
    params: Vec<Vec<i64>>,
}

/// Lines to be put in order: what each defines, and what it reads.
#[derive(Default)]
struct Lines(Vec<(String, Vec<String>, String)>);

impl Lines {
    /// `name = shape op(operands)attributes`; the name.
    fn add(&mut self, name: &str, shape: &str, op: &str, operands: &[&str], attributes: &str) -> String {
        let listed: Vec<String> = operands.iter().map(|operand| format!("%{operand}")).collect();
        let text = format!("  %{name} = {shape} {op}({}){attributes}", listed.join(", "));
        self.0.push((name.into(), operands.iter().map(ToString::to_string).collect(), text));
        name.into()
    }

    /// The lines, of those that can come next one by chance after the other.
    fn shuffled(mut self, rng: &mut Rng) -> String {
        let (mut out, mut known): (String, Vec<String>) = Default::default();
        while !self.0.is_empty() {
            let can_come =
                |(_, reads, _): &(String, Vec<String>, String)| reads.iter().all(|read| known.contains(read));
            let ready: Vec<usize> = (0..self.0.len()).filter(|&at| can_come(&self.0[at])).collect();
            let (name, _, line) = self.0.remove(ready[rng.below(ready.len())]);
            writeln!(out, "{line}").expect("a string");
            known.push(name);
        }
        out
    }
}

/// A chain of products whose weights are updated from sums of their gradients, with one or two moments for each. Elements are integers in f32, kept
/// small by remainders: all results are exact.
fn random_step(seed: u64) -> RandomStep {
    let mut rng = Rng::new(seed ^ 0x0ff1_0ad5);
    let n_devices = [1, 2, 3, 4][rng.below(4)];
    let n_layers = 1 + rng.below(4);
    let rows = 2 + rng.below(5) as i64;
    let widths: Vec<i64> = (0..=n_layers).map(|_| 1 + rng.below(6) as i64).collect();
    let n_moments: Vec<usize> = (0..n_layers).map(|_| rng.below(3)).collect();
    let is_clipped = rng.below(3) == 0;
    let groups: Vec<String> = (0..n_devices).map(|device| device.to_string()).collect();
    let groups = format!(", replica_groups={{{{{}}}}}, use_global_device_ids=true, to_apply=%add", groups.join(","));
    let array = |dims: &[i64]| format!("f32[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    let (mut lines, mut params, mut outputs): (Lines, Vec<Vec<i64>>, Vec<(String, String)>) = Default::default();
    let mut given = Vec::new();
    let mut param = |lines: &mut Lines, name: &str, dims: Vec<i64>| {
        given.push(format!("{name}: {}", array(&dims)));
        let text = format!("  %{name} = {} parameter({})", array(&dims), params.len());
        lines.0.push((name.into(), Vec::new(), text));
        params.push(dims);
    };
    lines.0.push(("seven".into(), Vec::new(), "  %seven = f32[] constant(7)".into()));
    let small = |lines: &mut Lines, name: &str, value: &str, dims: &[i64]| {
        let sevens = lines.add(&format!("{name}.sevens"), &array(dims), "broadcast", &["seven"], ", dimensions={}");
        lines.add(name, &array(dims), "remainder", &[value, &sevens], "")
    };
    for layer in 0..n_layers {
        let dims = vec![widths[layer], widths[layer + 1]];
        param(&mut lines, &format!("w{layer}"), dims.clone());
        (0..n_moments[layer]).for_each(|moment| param(&mut lines, &format!("m{layer}.{moment}"), dims.clone()));
    }
    param(&mut lines, "x0", vec![rows, widths[0]]);
    for layer in 0..n_layers {
        let dims = [rows, widths[layer + 1]];
        let (x, w) = (format!("x{layer}"), format!("w{layer}"));
        let attributes = ", lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        lines.add(&format!("y{layer}"), &array(&dims), "dot", &[&x, &w], attributes);
        small(&mut lines, &format!("x{}", layer + 1), &format!("y{layer}"), &dims);
    }
    let mut upstream = format!("x{n_layers}");
    let mut norm: Option<String> = None;
    for layer in (0..n_layers).rev() {
        let dims = [widths[layer], widths[layer + 1]];
        let (x, w, g) = (format!("x{layer}"), format!("w{layer}"), format!("g{layer}"));
        let attributes = ", lhs_contracting_dims={0}, rhs_contracting_dims={0}";
        lines.add(&format!("{g}.own"), &array(&dims), "dot", &[&x, &upstream], attributes);
        let channel = format!(", channel_id={}{groups}", layer + 1);
        lines.add(&format!("{g}.sum"), &array(&dims), "all-reduce", &[&format!("{g}.own")], &channel);
        small(&mut lines, &g, &format!("{g}.sum"), &dims);
        let before = array(&[rows, widths[layer]]);
        let attributes = ", lhs_contracting_dims={1}, rhs_contracting_dims={1}";
        lines.add(&format!("dy{layer}"), &before, "dot", &[&upstream, &w], attributes);
        upstream = small(&mut lines, &format!("dx{layer}"), &format!("dy{layer}"), &[rows, widths[layer]]);
        if is_clipped {
            lines.0.push((format!("zero{layer}"), Vec::new(), format!("  %zero{layer} = f32[] constant(0)")));
            let operands = [g.as_str(), &format!("zero{layer}")];
            let own =
                lines.add(&format!("n{layer}"), "f32[]", "reduce", &operands, ", dimensions={0,1}, to_apply=%add");
            norm = Some(match norm {
                Some(norm) => lines.add(&format!("norm{layer}"), "f32[]", "add", &[&norm, &own], ""),
                None => own,
            });
        }
    }
    for layer in 0..n_layers {
        let dims = [widths[layer], widths[layer + 1]];
        let shape = array(&dims);
        let mut gradient = format!("g{layer}");
        if let Some(norm) = &norm {
            let norms = lines.add(&format!("norms{layer}"), &shape, "broadcast", &[norm], ", dimensions={}");
            gradient = lines.add(&format!("clipped{layer}"), &shape, "add", &[&gradient, &norms], "");
        }
        let mut step = gradient.clone();
        let mut moments = Vec::new();
        for moment in 0..n_moments[layer] {
            let (old, new) = (format!("m{layer}.{moment}"), format!("m{layer}.{moment}.new"));
            lines.add(&format!("{new}.sum"), &shape, "add", &[&old, &gradient], "");
            small(&mut lines, &new, &format!("{new}.sum"), &dims);
            step = lines.add(&format!("{new}.step"), &shape, "add", &[&step, &new], "");
            moments.push(new);
        }
        lines.add(&format!("w{layer}.sum"), &shape, "subtract", &[&format!("w{layer}"), &step], "");
        outputs.push((small(&mut lines, &format!("w{layer}.new"), &format!("w{layer}.sum"), &dims), shape.clone()));
        outputs.extend(moments.into_iter().map(|moment| (moment, shape.clone())));
    }
    let aliases: Vec<String> = (0..outputs.len()).map(|at| format!("{{{at}}}: ({at}, {{}}, may-alias)")).collect();
    let results = outputs.iter().map(|(_, shape)| shape.clone()).collect::<Vec<_>>().join(", ");
    let root = outputs.iter().map(|(name, _)| format!("%{name}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "HloModule step, num_partitions={n_devices}, input_output_alias={{ {} }}\n\n\
         %add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %sum = f32[] add(%a, %b)\n}}\n\n\
         ENTRY %main ({}) -> ({results}) {{\n{}  ROOT %out = ({results}) tuple({root})\n}}\n",
        aliases.join(", "),
        given.join(", "),
        lines.shuffled(&mut rng),
    );
    RandomStep { text, n_devices, params }
}

/// The number of arrays that lie on the host.
fn check(seed: u64) -> u64 {
    let random = random_step(seed);
    let inputs = small_integers(seed, random.n_devices, &random.params, 3);
    let mut once = keeps_every_bit(seed, &random.text, &inputs, "offload-state{min-bytes=1}");
    // A limit that can be kept, and that fewer arrays may keep.
    if let Some(memory) = once.reports[0].memory.as_ref().filter(|_| seed % 2 == 1) {
        let limit = memory.peak_before_bytes.midpoint(memory.peak_after_bytes);
        let pass = format!("offload-state{{min-bytes=1,to={limit}}}");
        once = keeps_every_bit(seed, &random.text, &inputs, &pass);
        let peak_bytes = once.reports[0].memory.as_ref().map(|memory| memory.peak_after_bytes);
        assert!(peak_bytes.is_some_and(|bytes| bytes <= limit), "seed {seed}: {peak_bytes:?}, limit {limit}");
    }
    let report = &once.reports[0];
    let n_offloaded = report.stats["offload-state.state-arrays-offloaded"];
    if n_offloaded > 0 {
        let memory = report.memory.as_ref().expect("memory before and after");
        let [before, after] = [memory.peak_before_bytes, memory.peak_after_bytes];
        assert!(after < before, "seed {seed}: {before} bytes before, {after} after\n{}", random.text);
    }
    n_offloaded
}

#[test]
fn random_steps_compute_the_same_with_state_on_the_host() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or);
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_CASES));
    let n_changed = (from..from + n_cases).filter(|&seed| check(seed) > 0).count() as u64;
    println!("{n_changed} of {n_cases} steps have state on the host");
    assert!(n_changed * 4 > n_cases, "{n_changed} of {n_cases} steps have state on the host");
}
