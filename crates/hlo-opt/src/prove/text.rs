//! A proof as text and as JSON.

use super::Outcome;
use crate::Failure;
use crate::compare::output_names;
use hlo_ir::Module;
use hlo_prove::{ChangedEffect, Output, Proof, RULES, Rules, Verdict};
use serde_json::json;
use std::fmt::Write;

/// Outputs without a proof that are listed.
const MAX_ROWS: usize = 8;

/// The verdict in one line, outputs without a proof, and on demand the rules.
pub(super) fn of_proof(proof: &Proof, outcome: &Outcome, reference: &Module, explains: bool) -> String {
    let mut out = String::new();
    let (n, n_proved) = (proof.outputs.len(), proof.n_proved());
    let of_program = if proof.is_global { " of the global program" } else { "" };
    let of_devices = format!(
        "{n_proved} of {n} outputs{of_program} proved on {} device{}",
        proof.n_devices,
        plural(proof.n_devices)
    );
    let verdict = match outcome {
        Outcome::Proved => "proved",
        Outcome::Refuted(_) => "refuted",
        Outcome::Unknown(_) => "unknown",
    };
    let n_exact = proof.n_exact();
    let used = proof.outputs.iter().fold(proof.effects.modulo, |rules, output| rules | output.modulo);
    let names: Vec<&str> = used.iter().map(|rule| rule.name).collect();
    let _ = match (n_proved, n_proved - n_exact) {
        (0, _) => writeln!(out, "{verdict}: {of_devices}"),
        (_, 0) => writeln!(out, "{verdict}: {of_devices}, bit for bit"),
        (_, n_modulo) => writeln!(
            out,
            "{verdict}: {of_devices}, {n_exact} bit for bit and {n_modulo} modulo rounding ({})",
            names.join(", ")
        ),
    };
    let output_names = output_names(reference);
    // Where time ran out there is nothing to say of single outputs.
    let is_open = |output: &&Output| output.verdict == Verdict::Unknown && !proof.is_out_of_time;
    let open: Vec<&Output> = proof.outputs.iter().filter(is_open).collect();
    for output in open.iter().take(MAX_ROWS) {
        let name = output_names.get(output.leaf).map_or(String::new(), |name| format!(" ({name})"));
        let difference = output.difference.as_deref().unwrap_or("no reason is known");
        let _ = writeln!(out, "  output {}{name}: {difference}", output.leaf);
    }
    if open.len() > MAX_ROWS {
        let _ = writeln!(out, "  and {} outputs more", open.len() - MAX_ROWS);
    }
    let n_assumed = proof.outputs.iter().filter(|output| output.is_layout_assumed).count();
    if n_assumed > 0 {
        let _ = writeln!(
            out,
            "note: no annotation says how {n_assumed} of the outputs are cut; --explain states the tiles that were taken"
        );
    }
    if let Some(difference) = &proof.effects.difference {
        let _ = writeln!(out, "  effects: {difference}");
    }
    for ChangedEffect { what, n_before, n_after } in &proof.effects.changed {
        let _ =
            writeln!(out, "note: the modules have other effects: `{what}` expected {n_before} times, found {n_after}");
    }
    match outcome {
        Outcome::Proved => {}
        Outcome::Refuted(seen) => out.push_str(seen),
        Outcome::Unknown(why) => {
            let _ = writeln!(out, "note: {why}");
        }
    }
    if explains {
        for output in &proof.outputs {
            if let Some(layout) = &output.layout {
                let _ = writeln!(out, "output {} is cut by {layout}", output.leaf);
            }
        }
        explain(used, &mut out);
    }
    out
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// The rules: those of rounding that were used, and those that hold bit for bit.
fn explain(used: Rules, out: &mut String) {
    let _ = writeln!(out, "rules that hold bit for bit, of which any may have been used:");
    for rule in RULES.iter().filter(|rule| rule.is_exact) {
        let _ = writeln!(out, "  {}: {} [{}]", rule.name, rule.statement, rule.source);
    }
    if used != Rules::NONE {
        let _ = writeln!(out, "rules that hold for exact numbers, which were used:");
        for rule in used.iter() {
            let _ = writeln!(out, "  {}: {} [{}]", rule.name, rule.statement, rule.source);
        }
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Proved => "proved",
        Verdict::Unknown => "unknown",
    }
}

/// The same for programs.
///
/// # Errors
/// JSON cannot be written.
pub(super) fn json(proof: &Proof, outcome: &Outcome, reference: &Module) -> Result<String, Failure> {
    let names = output_names(reference);
    let outputs: Vec<_> = proof
        .outputs
        .iter()
        .map(|output| {
            json!({
                "output": output.leaf,
                "index": output.index,
                "name": names.get(output.leaf),
                "verdict": word(output.verdict),
                "modulo": output.modulo.iter().map(|rule| rule.name).collect::<Vec<_>>(),
                "difference": output.difference,
                "sharding": output.layout.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let effect = |e: &ChangedEffect| json!({ "effect": e.what, "before": e.n_before, "after": e.n_after });
    let effects: Vec<_> = proof.effects.changed.iter().map(effect).collect();
    let (verdict, note) = match outcome {
        Outcome::Proved => ("proved", None),
        Outcome::Refuted(seen) => ("refuted", Some(seen)),
        Outcome::Unknown(why) => ("unknown", Some(why)),
    };
    let all = json!({
        "verdict": verdict,
        "note": note,
        "devices": proof.n_devices,
        "global": proof.is_global,
        "terms": proof.n_terms,
        "proved": proof.n_proved(),
        "outputs": outputs,
        "effects": {
            "verdict": word(proof.effects.verdict),
            "modulo": proof.effects.modulo.iter().map(|rule| rule.name).collect::<Vec<_>>(),
            "difference": proof.effects.difference,
            "changed": effects,
        },
    });
    let text =
        serde_json::to_string_pretty(&all).map_err(|error| Failure::File(format!("the proof as JSON: {error}")))?;
    Ok(text + "\n")
}
