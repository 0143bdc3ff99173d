//! Training steps of any size, to time passes on: a chain of layers whose weights are updated by Adam, on eight devices.

use std::fmt::Write;

/// What surrounds the updates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One step.
    Step,
    /// One step; gradients are scaled by the norm of all of them.
    Clipped,
    /// A loop of steps that carries all state.
    Loop,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Step, Kind::Clipped, Kind::Loop];

    /// Instructions for each weight.
    fn n_per_weight(self) -> usize {
        match self {
            Kind::Step => 29,
            Kind::Clipped => 34,
            Kind::Loop => 32,
        }
    }
}

/// The dims of all weights.
const SHAPE: &str = "f32[64,32]{1,0}";

/// HLO text of a step with about `n_instructions`.
pub fn large_step(kind: Kind, n_instructions: usize) -> String {
    let n_weights = (n_instructions / kind.n_per_weight()).max(1);
    let mut text = format!("HloModule large_step, num_partitions=8\n\n{ADD}");
    match kind {
        Kind::Step | Kind::Clipped => {
            text += "ENTRY %main {\n";
            for i in 0..n_weights {
                for (k, name) in ["w", "m", "v"].into_iter().enumerate() {
                    let number = 3 * i + k;
                    let _ = writeln!(text, "  %{name}.{i} = {SHAPE} parameter({number}), sharding={{replicated}}");
                }
            }
            let _ = writeln!(text, "  %x = {SHAPE} parameter({})", 3 * n_weights);
            updates(&mut text, kind, n_weights);
            let _ = writeln!(text, "  ROOT %out = ({}) tuple({})\n}}", shapes(n_weights), new_state(n_weights));
        }
        Kind::Loop => training_loop(&mut text, n_weights),
    }
    text
}

const ADD: &str = "\
%add {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %o = f32[] add(%a, %b)
}

";

fn shapes(n_weights: usize) -> String {
    vec![SHAPE; 3 * n_weights].join(", ")
}

fn new_state(n_weights: usize) -> String {
    let names = (0..n_weights).map(|i| format!("%w_new.{i}, %m_new.{i}, %v_new.{i}"));
    names.collect::<Vec<_>>().join(", ")
}

fn training_loop(text: &mut String, n_weights: usize) {
    let (n, carried) = (3 * n_weights, format!("(s32[], {SHAPE}, {})", shapes(n_weights)));
    let _ = writeln!(text, "%body {{\n  %p = {carried} parameter(0)");
    let _ = writeln!(text, "  %i = s32[] get-tuple-element(%p), index=0");
    let _ = writeln!(text, "  %x = {SHAPE} get-tuple-element(%p), index=1");
    for i in 0..n_weights {
        for (k, name) in ["w", "m", "v"].into_iter().enumerate() {
            let _ = writeln!(text, "  %{name}.{i} = {SHAPE} get-tuple-element(%p), index={}", 2 + 3 * i + k);
        }
    }
    updates(text, Kind::Loop, n_weights);
    let _ = writeln!(text, "  %one_more = s32[] constant(1)\n  %next = s32[] add(%i, %one_more)");
    let _ = writeln!(text, "  ROOT %out = {carried} tuple(%next, %x, {})\n}}\n", new_state(n_weights));
    let _ = writeln!(text, "%condition {{\n  %q = {carried} parameter(0)");
    text.push_str("  %j = s32[] get-tuple-element(%q), index=0\n  %n = s32[] constant(100)\n");
    text.push_str("  ROOT %less = pred[] compare(%j, %n), direction=LT\n}\n\n");
    text.push_str("ENTRY %main {\n");
    for k in 0..n {
        let _ = writeln!(text, "  %state.{k} = {SHAPE} parameter({k}), sharding={{replicated}}");
    }
    let state: Vec<String> = (0..n).map(|k| format!("%state.{k}")).collect();
    let _ = writeln!(text, "  %x0 = {SHAPE} parameter({n})\n  %zero.s32 = s32[] constant(0)");
    let _ = writeln!(text, "  %init = {carried} tuple(%zero.s32, %x0, {})", state.join(", "));
    let _ = writeln!(text, "  ROOT %trained = {carried} while(%init), condition=%condition, body=%body\n}}");
}

/// Layers, gradients and updates: from `%w…`, `%m…`, `%v…` and the data `%x` to `%w_new…`, `%m_new…`, `%v_new…`.
fn updates(text: &mut String, kind: Kind, n_weights: usize) {
    let constants = [("half", 0.5), ("beta", 0.9), ("beta2", 0.999), ("rest", 0.1), ("rest2", 0.001)];
    for (name, value) in constants.into_iter().chain([("rate", 0.01), ("tiny", 1e-8), ("zero", 0.0), ("one", 1.0)]) {
        let _ = writeln!(text, "  %{name} = f32[] constant({value})");
    }
    // Forward and backward: the data go through all layers and come back.
    let mut data = "x".to_string();
    for i in 0..n_weights {
        for line in [format!("%y.{i} = {SHAPE} multiply(%{data}, %w.{i})"), format!("%h.{i} = {SHAPE} tanh(%y.{i})")] {
            let _ = writeln!(text, "  {line}");
        }
        data = format!("h.{i}");
    }
    for i in (0..n_weights).rev() {
        for line in [
            format!("%d.{i} = {SHAPE} multiply(%{data}, %h.{i})"),
            format!("%local.{i} = {SHAPE} multiply(%d.{i}, %y.{i})"),
            format!(
                "%g.{i} = {SHAPE} all-reduce(%local.{i}), channel_id={}, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, \
                 use_global_device_ids=true, to_apply=%add",
                i + 1
            ),
        ] {
            let _ = writeln!(text, "  {line}");
        }
        data = format!("d.{i}");
    }
    if kind == Kind::Clipped {
        norm(text, n_weights);
    }
    (0..n_weights).for_each(|i| adam(text, kind, i));
}

/// `%scale`: one over the norm of all gradients, or one where they are small.
fn norm(text: &mut String, n_weights: usize) {
    let mut sum = "zero".to_string();
    for i in 0..n_weights {
        for line in [
            format!("%square.{i} = {SHAPE} multiply(%g.{i}, %g.{i})"),
            format!("%sum.{i} = f32[] reduce(%square.{i}, %zero), dimensions={{0,1}}, to_apply=%add"),
            format!("%norm.{i} = f32[] add(%{sum}, %sum.{i})"),
        ] {
            let _ = writeln!(text, "  {line}");
        }
        sum = format!("norm.{i}");
    }
    let _ = writeln!(text, "  %root = f32[] sqrt(%{sum})\n  %most = f32[] maximum(%root, %one)");
    text.push_str("  %scale = f32[] divide(%one, %most)\n");
}

fn adam(text: &mut String, kind: Kind, i: usize) {
    let mut line = |name: &str, op: String| {
        let _ = writeln!(text, "  %{name}.{i} = {SHAPE} {op}");
    };
    let of = |scalar: &str| format!("broadcast(%{scalar}), dimensions={{}}");
    let gradient = match kind {
        Kind::Clipped => {
            line("scales", of("scale"));
            line("clipped", format!("multiply(%g.{i}, %scales.{i})"));
            "clipped"
        }
        Kind::Step | Kind::Loop => "g",
    };
    line("betas", of("beta"));
    line("rests", of("rest"));
    line("m_old", format!("multiply(%m.{i}, %betas.{i})"));
    line("m_more", format!("multiply(%{gradient}.{i}, %rests.{i})"));
    line("m_new", format!("add(%m_old.{i}, %m_more.{i})"));
    line("betas2", of("beta2"));
    line("rests2", of("rest2"));
    line("gg", format!("multiply(%{gradient}.{i}, %{gradient}.{i})"));
    line("v_old", format!("multiply(%v.{i}, %betas2.{i})"));
    line("v_more", format!("multiply(%gg.{i}, %rests2.{i})"));
    line("v_new", format!("add(%v_old.{i}, %v_more.{i})"));
    line("halves", of("half"));
    line("m_hat", format!("divide(%m_new.{i}, %halves.{i})"));
    line("v_hat", format!("divide(%v_new.{i}, %halves.{i})"));
    line("root", format!("sqrt(%v_hat.{i})"));
    line("tinies", of("tiny"));
    line("divisor", format!("add(%root.{i}, %tinies.{i})"));
    line("direction", format!("divide(%m_hat.{i}, %divisor.{i})"));
    line("rates", of("rate"));
    line("step", format!("multiply(%direction.{i}, %rates.{i})"));
    line("w_new", format!("subtract(%w.{i}, %step.{i})"));
}
