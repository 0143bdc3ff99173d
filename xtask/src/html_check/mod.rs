//! `cargo xtask html-check`: the page of `--report html` in a headless browser, light and dark, wide and narrow.
//!
//! A script that is added to a copy of the page looks at the layout, the contrast of all text and what zoom, keys and sorting do
//! (`probe.js`), and writes what is wrong into the document, which the browser prints. Pictures are kept beside the pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;

/// Added to a copy of the page.
const PROBE: &str = include_str!("probe.js");

/// What browsers are called.
const BROWSERS: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

/// Widths of windows, in pixels.
const WIDTHS: [u32; 2] = [1400, 700];

/// The largest page that is well, in bytes.
const MOST_BYTES: u64 = 5 << 20;

/// Each theme's name and its number in the browser's settings.
const THEMES: [(&str, u32); 2] = [("dark", 0), ("light", 1)];

/// Programs that are looked at if none is named, and the arguments that each is run with.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("mlp_sgd_wide.hlo", &["--preset", "data-parallel"]),
    ("gpt2l_adamw_fori.hlo", &["--preset", "data-parallel"]),
    ("gpt2l_adam.hlo", &["--preset", "sharded-state", "-o"]),
    ("mlp_sgd_wide.hlo", &["--pass", "dce"]),
];

struct Options {
    files: Vec<PathBuf>,
    tool: Option<PathBuf>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { files: Vec::new(), tool: None };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--hlo-opt" => options.tool = Some(arguments.value(&flag)?.into()),
                Word::Plain(file) => options.files.push(file.into()),
                Word::Flag(word) => return Err(unknown("html-check", &word)),
            }
        }
        Ok(options)
    }
}

/// Runs the check: false if a page fails it.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let browser =
        find_browser().ok_or_else(|| format!("html-check needs a browser: one of {} in PATH", BROWSERS.join(", ")))?;
    let tool = options.tool.map_or_else(workspace::build_tool, Ok)?;
    let folder = workspace::target_dir().join("html-check");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let preset: &[&str] = PROGRAMS[0].1;
    let jobs: Vec<(PathBuf, &[&str])> = if options.files.is_empty() {
        let programs = workspace::root().join("ir-samples/programs");
        PROGRAMS.iter().map(|(name, args)| (programs.join(name), *args)).collect()
    } else {
        options.files.into_iter().map(|file| (file, preset)).collect()
    };
    let (mut n_passed, mut n_failed) = (0, 0);
    for (number, (file, args)) in jobs.iter().enumerate() {
        let name = file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let page = folder.join(format!("{number}.{name}.html"));
        make_page(&tool, file, args, &page)?;
        for fault in faults_of(&browser, &page)? {
            match fault {
                Some(fault) => {
                    println!("{fault}");
                    n_failed += 1;
                }
                None => n_passed += 1,
            }
        }
    }
    println!("{n_passed} passed, {n_failed} failed; pictures are in {}", folder.display());
    Ok(n_failed == 0)
}

fn find_browser() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let files = BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}

fn make_page(tool: &Path, file: &Path, args: &[&str], page: &Path) -> Result<(), String> {
    let output = page.with_extension("out");
    let mut command = Command::new(tool);
    command.args(args).args((args.last() == Some(&"-o")).then_some(&output));
    command.args(["-q", "--report", "html", "--report-file"]).arg(page).arg(file).stdout(Stdio::null());
    let status = command.status().map_err(|e| format!("{}: {e}", tool.display()))?;
    if !status.success() {
        return Err(format!("{}: {status} for {}", tool.display(), file.display()));
    }
    let n_bytes = fs::metadata(page).map_err(|e| format!("{}: {e}", page.display()))?.len();
    println!("{}: {:.2} MB", page.display(), n_bytes as f64 / 1e6);
    if n_bytes > MOST_BYTES {
        return Err(format!("{}: expected at most {MOST_BYTES} bytes, found {n_bytes}", page.display()));
    }
    Ok(())
}

/// For each theme and width what is wrong, if anything is.
fn faults_of(browser: &Path, page: &Path) -> Result<Vec<Option<String>>, String> {
    let text = fs::read_to_string(page).map_err(|e| format!("{}: {e}", page.display()))?;
    let probed = page.with_extension("probed.html");
    let with_probe = text.replace("</body>", &format!("<script>\n{PROBE}</script>\n</body>"));
    fs::write(&probed, with_probe).map_err(|e| format!("{}: {e}", probed.display()))?;
    let mut outcomes = Vec::new();
    for (theme, number) in THEMES {
        for width in WIDTHS {
            let setting = format!("--blink-settings=preferredColorScheme={number}");
            let document = browse(browser, &[&setting, &window(width, 900), "--dump-dom"], &probed, theme)?;
            let said = document.rsplit_once("<pre id=\"probe\">").and_then(|(_, rest)| rest.split_once("</pre>"));
            let (said, _) = said.ok_or_else(|| format!("{}: the script did not end", probed.display()))?;
            let (height, faults) = said.split_once('\n').unwrap_or((said, ""));
            let picture = page.with_extension(format!("{theme}.{width}.png"));
            // The window itself takes the page's height, so that all of it is in the picture.
            let height = height.trim().parse().unwrap_or(2000).min(12_000);
            let shot = format!("--screenshot={}", picture.display());
            browse(browser, &[&setting, &window(width, height), &shot], page, theme)?;
            let what = format!("{} {theme} {width}", page.display());
            let faults = faults.trim();
            outcomes.push((!faults.is_empty()).then(|| format!("{what}:\n{faults}")));
        }
    }
    Ok(outcomes)
}

fn window(width: u32, height: u32) -> String {
    format!("--window-size={width},{height}")
}

/// Opens a page and gives what the browser prints.
fn browse(browser: &Path, flags: &[&str], page: &Path, theme: &str) -> Result<String, String> {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"])
        .args(flags)
        .arg(format!("file://{}#{theme}", page.display()))
        .output()
        .map_err(|e| format!("{}: {e}", browser.display()))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}: {told}", browser.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
