//! The page of `--report html`: its figures are those of the other commands, it needs nothing from elsewhere, names cannot break
//! it, and its size is bounded.

use crate::cli::{Outcome, folder, run, run_with_stdin, sample};
use hlo_tests::large_step::{Kind, large_step};
use serde_json::Value;
use std::path::Path;

/// The page of a run, and its data.
fn page(args: &[&str], stdin: &str, file: &Path) -> (String, Value) {
    let out = run_with_stdin(
        &[&["-q", "--report", "html", "--report-file", file.to_str().expect("a path")], args].concat(),
        stdin,
    );
    assert_eq!(out.code, 0, "{args:?}: {}", out.stderr);
    assert_eq!(out.stderr, "");
    let page = std::fs::read_to_string(file).expect("a page");
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("data");
    let (data, _) = data.split_once("</script>").expect("the end of the data");
    let data = serde_json::from_str(data).expect("JSON");
    (page, data)
}

fn json(args: &[&str]) -> Value {
    let Outcome { code, stdout, stderr } = run(args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

/// The values of the cells of a row of the table of figures, before and after.
fn figure(page: &str, name: &str) -> [f64; 2] {
    let (_, row) = page.split_once(&format!("<tr data-figure=\"{name}\">")).expect("a row");
    let row = row.split("</tr>").next().unwrap_or_default();
    let values: Vec<f64> = row
        .split("data-value=\"")
        .skip(1)
        .map(|cell| cell.split('"').next().and_then(|value| value.parse().ok()).expect("a number"))
        .collect();
    values.try_into().expect("two values")
}

#[test]
fn every_figure_is_that_of_the_report_and_of_the_analyses() {
    let folder = folder("html");
    let (file, report, after) = (folder.join("page.html"), folder.join("report.json"), folder.join("after.hlo"));
    let (report, after) = (report.to_str().expect("a path"), after.to_str().expect("a path"));
    let before = sample("programs/mlp_sgd_wide.hlo");
    let args = ["--preset", "data-parallel", before.as_str()];
    let (page, data) = page(&args, "", &file);
    assert_eq!(run(&[&["-q", "-o", after, "--report-file", report], args.as_slice()].concat()).code, 0);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).expect("a report")).expect("JSON");
    let module = &report["modules"][0];
    assert_eq!(data[0]["totals"], module["totals"]);
    for (side, when, hlo) in [(0, "before", before.as_str()), (1, "after", after)] {
        let (time, memory) = (
            json(&["analyze", "time", "--format", "json", hlo]),
            json(&["analyze", "memory", "--format", "json", hlo]),
        );
        let (drawn, curve) = (&data[0]["timeline"][side], &data[0]["memory"][side]);
        assert_eq!(drawn["title"], when);
        for name in ["critical_path_s", "compute_s", "communication_s"] {
            assert_eq!(drawn[name], time[name], "{when} {name}");
            let (shown, expected) = (figure(&page, name)[side], time[name].as_f64().expect("seconds"));
            // serde_json may read a number one bit beside it.
            assert!((shown - expected).abs() <= f64::EPSILON * expected, "{when} {name}: {shown} {expected}");
        }
        for name in ["peak_bytes", "argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "constant_bytes"] {
            assert_eq!(figure(&page, name)[side], memory[name].as_f64().expect("bytes"), "{when} {name}");
        }
        assert_eq!(figure(&page, "sent_bytes")[side], module["totals"][when]["sent_bytes"]);
        let points = curve["points"].as_array().expect("points");
        let highest = points.iter().map(|point| &point[1]).max_by_key(|bytes| bytes.as_u64()).expect("a point");
        assert_eq!((highest, &curve["peak_bytes"]), (&memory["peak_bytes"], &memory["peak_bytes"]));
        // The last span ends with the critical path, of which four digits after the point are told.
        let spans = drawn["lanes"].as_array().expect("lanes").iter().flat_map(|lane| lane["spans"].as_array());
        let end = |span: &Value| span[0].as_f64().unwrap_or(0.0) + span[1].as_f64().unwrap_or(0.0);
        let end_us = spans.flatten().map(end).fold(0.0, f64::max);
        assert!((end_us - time["critical_path_s"].as_f64().expect("seconds") * 1e6).abs() < 2e-4, "{when}: {end_us}");
    }
    // The tiles show what the summary prints.
    let summary = run(&[&["--report", "text"], args.as_slice()].concat()).stderr;
    for shown in ["639.6 µs", "264.3 MiB", "224.0 MiB", "−1.6 %", "updates in shards: sink-all-reduce moved 1"] {
        assert!(summary.contains(shown) && page.contains(shown), "{shown}: {summary}");
    }
    assert!(page.contains("Instructions: ") && page.contains("<div class=\"gained\">+"), "what differs");
    // Each decision and each change of a collective has a row.
    let decisions = module["reports"].as_array().expect("passes").iter().flat_map(|pass| pass["decisions"].as_array());
    for decision in decisions.flatten() {
        let subject = format!("<code>{}</code>", decision["subject"].as_str().expect("a subject"));
        assert!(page.contains(&subject), "{subject}");
        for change in decision["collectives"].as_array().into_iter().flatten() {
            let name = format!("<code>%{}</code>", change["instruction"].as_str().expect("a name"));
            assert!(page.contains(&name), "{name}");
        }
    }
}

#[test]
fn a_page_needs_no_network_and_no_other_file() {
    let (page, _) = page(
        &["--preset", "data-parallel", &sample("programs/mlp_sgd.opt_meta.hlo")],
        "",
        &folder("html-alone").join("p.html"),
    );
    for foreign in ["http:", "https:", " src=", "url(", "@import", "<link", "<img", "fetch(", "innerHTML", "eval("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("default-src 'none'"), "the browser is told as well");
    for section in ["summary", "timeline", "memory", "collectives", "weights", "changes"] {
        assert!(page.contains(&format!("<section id=\"m0-{section}\">")), "{section}");
    }
    for tag in ["section", "table", "article", "div", "details", "dl", "tr", "td", "code", "span"] {
        let (open, closed) = (
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count(),
            page.matches(&format!("</{tag}>")).count(),
        );
        assert_eq!(open, closed, "{tag}");
    }
}

#[test]
fn names_cannot_break_a_page() {
    let hostile = "</script><script>alert(1)</script><!--<b>\u{2028}&amp;{{data}}";
    let text = format!(
        "HloModule m, num_partitions=2\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}}\n\n\
         ENTRY e {{\n  x = f32[1024]{{0}} parameter(0), sharding={{devices=[2]<=[2]}}\n  ROOT r = f32[1024]{{0}} all-reduce(x), \
         replica_groups={{{{0,1}}}}, channel_id=1, use_global_device_ids=true, to_apply=add, \
         metadata={{op_name=\"{hostile}\" source_file=\"{hostile}\" source_line=7}}\n}}\n"
    );
    let (page, _) = page(&["--pass", "dce", "-"], &text, &folder("html-hostile").join("p.html"));
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2), "data and script");
    assert!(!page.contains("<!--") && !page.contains("<b>"));
    assert!(
        page.contains("&lt;/script&gt;&lt;script&gt;alert(1)") && page.contains("&amp;amp;{{data}}:7"),
        "as text it is there"
    );
}

#[test]
fn a_page_without_a_file_or_of_a_plan_is_refused() {
    let wide = sample("programs/mlp_sgd_wide.hlo");
    for (args, expected) in [
        (["--report", "html", "--pass", "dce"].as_slice(), "expected --report-file FILE"),
        (&["--report", "html", "--report-file", "p.html", "--emit", "plan"], "expected --emit hlo"),
        (&["--report", "html", "--report-file", "p.html", "--verify-only"], "found --verify-only"),
    ] {
        let out = run(&[args, &[&wide]].concat());
        assert!(out.code == 2 && out.stderr.contains(expected), "{args:?}: {}", out.stderr);
    }
    // Other commands have no page.
    assert_eq!(run(&["analyze", "time", "--format", "html", &wide]).code, 2);
}

#[test]
fn a_module_that_no_pass_changed_has_one_timeline() {
    let (page, data) = page(&[&sample("programs/mlp_sgd_wide.hlo")], "", &folder("html-same").join("p.html"));
    assert_eq!(data[0]["timeline"].as_array().map(Vec::len), Some(1));
    assert!(page.contains("left as it is") && page.contains("No pass decided"), "no pass ran");
}

#[test]
fn the_page_of_a_large_module_is_bounded() {
    let text = large_step(Kind::Clipped, 60_000);
    let (page, data) =
        page(&["--pass", "shard-weight-update{min-bytes=0}", "-"], &text, &folder("html-large").join("p.html"));
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
    for side in data[0]["timeline"].as_array().expect("two sides") {
        let lanes = side["lanes"].as_array().expect("lanes");
        let n: usize = lanes.iter().map(|lane| lane["spans"].as_array().map_or(0, Vec::len)).sum();
        assert!((2..=12_000).contains(&n), "{n}");
    }
    for side in data[0]["memory"].as_array().expect("two sides") {
        assert!(side["points"].as_array().is_some_and(|points| points.len() <= 2_000));
    }
    assert!(page.contains(" more, of "), "what is left out is counted");
}
