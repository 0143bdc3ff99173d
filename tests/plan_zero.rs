//! `hlo-opt plan zero`: state whole or in shards, on several numbers of devices.

use crate::tool;
use hlo_tests::root;
use serde_json::Value;

fn sample(name: &str) -> String {
    root().join("../ir-samples").join(name).display().to_string()
}

fn plan(args: &[&str]) -> (u8, String, String) {
    tool::run(["plan", "zero"].iter().chain(args))
}

/// The rows of a table.
fn rows(args: &[&str]) -> Vec<Value> {
    let (code, stdout, stderr) = plan(&[args, &["--emit", "json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let table: Value = serde_json::from_str(&stdout).expect("JSON");
    table["rows"].as_array().expect("rows").clone()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

#[test]
fn each_form_takes_what_the_module_takes_that_its_passes_make() {
    let step = sample("programs/gpt2l_adam.hlo");
    let found = rows(&[&step, "--machine", "h100"]);
    let forms: Vec<&str> = found.iter().filter_map(|row| row["form"].as_str()).collect();
    assert_eq!(forms, ["replicated", "optimizer", "gradients", "parameters", "auto"]);
    let form = |name: &str| found.iter().find(|row| row["form"] == name).expect("the form");
    // Adam holds two moments beside each weight; what is cut is cut among eight.
    let (whole, moments, all) = (form("replicated"), form("optimizer"), form("parameters"));
    let held = |row: &Value| number(row, "argument_bytes");
    assert!((held(moments) / held(whole) - (1.0 + 2.0 / 8.0) / 3.0).abs() < 0.02, "{moments} {whole}");
    assert!((held(all) / held(whole) - 1.0 / 8.0).abs() < 0.02, "{all} {whole}");
    assert_eq!([whole, moments, all].map(|row| number(row, "n_shards")), [1.0, 8.0, 8.0]);
    // The same module by the command line.
    let folder = std::env::temp_dir().join(format!("hlo-opt-plan-zero-{}", std::process::id()));
    let pipeline = "inline-calls,simplify-tuples,hoist-invariants,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                    fold-all-reduce-of-all-reduce,sink-all-reduce,flatten-update,all-reduce-to-reduce-scatter,dce,\
                    hoist-conversions,shard-weight-update{state=parameters},dce";
    let out = folder.display().to_string();
    let (code, _, stderr) = tool::run(["--pass", pipeline, "--machine", "h100", &step, "-o", &out]);
    assert_eq!(code, 0, "{stderr}");
    let main = folder.join("main.hlo").display().to_string();
    let (code, stdout, stderr) = tool::run(["analyze", "memory", &main, "--format", "json"]);
    assert_eq!(code, 0, "{stderr}");
    let memory: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(memory["argument_bytes"], all["argument_bytes"], "{memory}");
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn other_numbers_of_devices_are_modelled_and_marked() {
    let step = sample("programs/mlp_adam.hlo");
    let found = rows(&[&step, "--machine", "h100", "--devices", "8,16,64,3,4"]);
    let modelled: Vec<bool> = found.iter().filter_map(|row| row["is_modelled"].as_bool()).collect();
    assert_eq!(modelled, [[false; 5], [true; 5], [true; 5], [true; 5], [true; 5]].concat());
    let sent = |n: u64| {
        let row = found.iter().find(|row| row["n_devices"] == n && row["form"] == "replicated");
        number(row.expect("the row"), "sent_bytes")
    };
    // A ring of n devices sends 2 (n − 1) / n of what is summed.
    for n in [16u64, 64, 3, 4] {
        let ratio = sent(n) / sent(8) * (7.0 / 8.0);
        assert!((ratio - (n - 1) as f64 / n as f64).abs() < 1e-9, "{n}: {ratio}");
    }
    // One best row of each number.
    for n in [8u64, 16, 64, 3, 4] {
        let best = found.iter().filter(|row| row["n_devices"] == n && row["is_best"] == true).count();
        assert_eq!(best, 1, "{n}");
    }
    let (_, text, _) = plan(&[&step, "--machine", "h100", "--devices", "8,16"]);
    assert!(text.contains("16*") && text.contains("* modelled:") && text.contains("<- fastest that fits"), "{text}");
    let (code, svg, _) = plan(&[&step, "--machine", "h100", "--devices", "8,16", "--emit", "svg"]);
    assert!(
        code == 0 && svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"),
        "{svg}"
    );
    let (code, page, _) = plan(&[&step, "--machine", "h100", "--devices", "8,16", "--emit", "html"]);
    assert!(code == 0 && page.starts_with("<!DOCTYPE html>") && page.contains(&svg), "{page}");
    let n_rows = page.matches("<tr>").count();
    assert_eq!(n_rows, 1 + 2 * 5, "a heading, and a row for each form and number of devices");
    assert!(page.contains("fastest that fits") && page.contains("* modelled:") && !page.contains("{{"), "{page}");
}

#[test]
fn a_limit_says_what_does_not_fit() {
    let step = sample("programs/gpt2l_adam.hlo");
    let found = rows(&[&step, "--machine", "h100", "--memory-limit", "9MiB"]);
    let fits: Vec<bool> = found.iter().filter_map(|row| row["fits"].as_bool()).collect();
    let peaks: Vec<f64> = found.iter().map(|row| number(row, "peak_bytes")).collect();
    assert!(fits.iter().zip(&peaks).all(|(&fits, &peak)| fits == (peak <= 9.0 * 1048576.0)), "{fits:?} {peaks:?}");
    assert!(fits.contains(&true) && fits.contains(&false), "{peaks:?}: this shows nothing");
    assert!(found.iter().all(|row| row["is_best"] != true || row["fits"] == true));
}

#[test]
fn a_step_whose_shapes_name_the_devices_has_its_own_number_alone() {
    let step = sample("programs/mlp_adam_pjit2d.hlo");
    let (code, stdout, stderr) = plan(&[&step, "--machine", "h100", "--devices", "8,16"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("other numbers of devices are left out: `%"), "{stdout}");
    let (code, _, stderr) = plan(&[&step, "--machine", "h100", "--devices", "16"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("error[zero]"), "{stderr}");
    let (code, _, stderr) = plan(&[&step, "--devices", "1"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--devices: expected 2 to 4096, found 1"), "{stderr}");
}

#[test]
fn a_preset_keeps_a_memory_limit_or_says_what_there_is() {
    let step = sample("programs/gpt2l_adam.hlo");
    let folder = std::env::temp_dir().join(format!("hlo-opt-preset-limit-{}", std::process::id()));
    let out = folder.display().to_string();
    // Whole state takes 12 MiB, state in shards less than 9.
    let preset = "sharded-state{objective=time}";
    let (code, _, stderr) =
        tool::run(["--preset", preset, "--memory-limit", "9MiB", "--machine", "h100", &step, "-o", &out]);
    assert_eq!(code, 0, "{stderr}");
    let main = folder.join("main.hlo").display().to_string();
    let (code, stdout, stderr) = tool::run(["analyze", "memory", &main, "--format", "json"]);
    assert_eq!(code, 0, "{stderr}");
    let memory: Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(number(&memory, "peak_bytes") <= 9.0 * 1048576.0, "{memory}");
    std::fs::remove_dir_all(folder).expect("the folder");
    let (code, _, stderr) =
        tool::run(["--preset", "data-parallel", "--memory-limit", "9MiB", "--machine", "h100", &step]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("expected a program that takes at most 9437184 bytes at its peak, found"), "{stderr}");
}

#[test]
fn a_global_step_is_partitioned_first() {
    let of_device = rows(&[&sample("programs/mlp_adam.hlo"), "--machine", "h100"]);
    let (code, stdout, stderr) = plan(&[&sample("programs/mlp_adam.unopt.hlo"), "--machine", "h100", "--emit", "json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("note: a global program"), "{stderr}");
    let table: Value = serde_json::from_str(&stdout).expect("JSON");
    let global = table["rows"].as_array().expect("rows");
    let held = |rows: &[Value], form: &str| {
        number(rows.iter().find(|row| row["form"] == form).expect("the form"), "argument_bytes")
    };
    // Both hold the same state, whole and in shards; XLA's dump keeps a parameter less.
    for form in ["replicated", "parameters"] {
        let ratio = held(global, form) / held(&of_device, form);
        assert!((0.95..1.05).contains(&ratio), "{form}: {ratio}");
    }
}
