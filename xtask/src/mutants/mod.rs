//! `cargo xtask mutants`: small changes of the source that some test should notice, and those that none does.
//!
//! `cargo mutants --list` finds the changes; a sample of them, the same for the same seed, is put into a copy of the source
//! tree, each behind a switch (see [`switch`]). The copy is built once. Every test runs once without a mutant, and says which
//! mutants it meets; then each mutant is turned on in those tests alone, until one fails. What came out is kept in
//! `target/mutants/state-SEED`: a later call goes on there, `--again` runs the survivors that are not explained anew.
//! Documentation tests are not run.

mod sample;
mod state;
mod switch;
mod tests;
mod tree;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Mutex;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;
use sample::{Mutant, PARTS};
use state::{Ending, State};
use tests::{Test, Verdict, in_parallel, judge, lock, trace};
use tree::Tree;

/// Mutants that change nothing a caller can see, each with the reason: `key | reason`.
const EQUIVALENT: &str = include_str!("equivalent.txt");

/// Runs the sample: false if a mutant that is not explained survives.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut seed, mut count, mut jobs, mut again) = (1, 420, 2, false);
    let (mut is_quick, mut only_report) = (false, false);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)? as u64,
            Word::Flag(flag) if flag == "--count" => count = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--jobs" => jobs = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--again" => again = true,
            Word::Flag(flag) if flag == "--quick" => is_quick = true,
            Word::Flag(flag) if flag == "--report" => only_report = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("mutants", &word)),
        }
    }
    let folder = workspace::target_dir().join("mutants");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let parts = sample::list(&workspace::root(), seed)?;
    let mut state = State::open(&folder.join(format!("state-{seed}")), |key| again && !reasons().contains_key(key))?;
    if only_report {
        return Ok(report(&parts, &draw(&parts, count, &state), &state));
    }
    let mut tree = Tree::copy(&folder)?;
    let sample = switched_sample(&mut tree, &parts, count, &mut state)?;
    println!("{} mutants in one build", sample.len());
    let begin = std::time::Instant::now();
    let binaries = tree.build_tests()?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());
    let begin = std::time::Instant::now();
    let mut tests = trace(&binaries, &folder, jobs)?;
    println!("{} tests ran in {:.0} s", tests.len(), begin.elapsed().as_secs_f64());
    tests.retain(|test| !is_quick || test.is_quick());
    run_sample(&sample, &tests, jobs, is_quick, &mut state)?;
    Ok(report(&parts, &sample, &state))
}

/// The mutants of the sample, without those that are known not to compile or to have no switch.
fn draw(parts: &[Vec<Mutant>], count: usize, state: &State) -> Vec<Mutant> {
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    let is_run = |mutant: &&Mutant| state.endings.get(&mutant.key).is_none_or(|(ending, _)| ending.is_run());
    let shares = sample::shares(&sizes, count);
    parts.iter().zip(shares).flat_map(|(part, share)| part.iter().filter(is_run).take(share)).cloned().collect()
}

/// Draws until all mutants of the sample have a switch and compile.
fn switched_sample(
    tree: &mut Tree,
    parts: &[Vec<Mutant>],
    count: usize,
    state: &mut State,
) -> Result<Vec<Mutant>, String> {
    loop {
        let sample = draw(parts, count, state);
        let without = tree.switch(&sample)?;
        for &id in &without {
            state.note(&sample[id as usize].key, Ending::NoSwitch, "")?;
        }
        if !without.is_empty() {
            continue;
        }
        let wrong = tree.check()?;
        if wrong.is_empty() {
            return Ok(sample);
        }
        println!("{} mutants do not compile", wrong.len());
        for &id in &wrong {
            state.note(&sample[id as usize].key, Ending::NoBuild, "")?;
        }
    }
}

/// Runs the mutants that have no ending yet. Where only quick tests run, it is not known that a mutant survives.
fn run_sample(sample: &[Mutant], tests: &[Test], jobs: usize, is_quick: bool, state: &mut State) -> Result<(), String> {
    let open: Vec<u32> =
        (0..).zip(sample).filter(|(_, m)| !state.endings.contains_key(&m.key)).map(|(id, _)| id).collect();
    // How often each test has caught a mutant, by file.
    let catchers = Mutex::new(HashMap::<String, HashMap<String, usize>>::new());
    let state = Mutex::new(state);
    in_parallel(jobs, open.len(), |index| {
        let mutant = &sample[open[index] as usize];
        let known = lock(&catchers).get(&mutant.file).cloned().unwrap_or_default();
        let (ending, note) = match judge(open[index], tests, &known) {
            Ok(Verdict::Caught(test)) => (Ending::Caught, test),
            Ok(Verdict::TimedOut(test)) => (Ending::TimedOut, test),
            Ok(Verdict::Survived(0)) => (Ending::NotMet, String::new()),
            Ok(Verdict::Survived(n)) => (Ending::Survived, n.to_string()),
            Err(message) => {
                println!("{message}");
                return;
            }
        };
        if ending == Ending::Caught {
            *lock(&catchers).entry(mutant.file.clone()).or_default().entry(note.clone()).or_default() += 1;
        } else {
            println!("{ending:?} {} ({note})", mutant.key);
        }
        if is_quick && !ending.is_caught() {
            return;
        }
        if let Err(message) = lock(&state).note(&mutant.key, ending, &note) {
            println!("{message}");
        }
    });
    Ok(())
}

/// Why a mutant is equivalent, by its key.
fn reasons() -> BTreeMap<&'static str, &'static str> {
    EQUIVALENT.lines().filter_map(|line| line.split_once(" | ")).map(|(key, why)| (key.trim(), why)).collect()
}

/// Prints a row for each part, and what is not explained: false if there is any.
fn report(parts: &[Vec<Mutant>], sample: &[Mutant], state: &State) -> bool {
    let reasons = reasons();
    println!("| part | found | run | caught | timed out | equivalent | survived | not compiled | no switch |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut unexplained = Vec::new();
    let mut totals = [0; 8];
    for (index, part) in parts.iter().enumerate() {
        let mut row = [part.len(), 0, 0, 0, 0, 0, 0, 0];
        for mutant in sample.iter().filter(|mutant| mutant.part == index) {
            let Some((ending, _)) = state.endings.get(&mutant.key) else { continue };
            row[1] += 1;
            row[2] += usize::from(*ending == Ending::Caught);
            row[3] += usize::from(*ending == Ending::TimedOut);
            if !ending.is_caught() {
                let is_explained = reasons.contains_key(mutant.key.as_str());
                row[if is_explained { 4 } else { 5 }] += 1;
                unexplained.extend((!is_explained).then_some((mutant, ending)));
            }
        }
        for mutant in part {
            let ending = state.endings.get(&mutant.key).map(|(ending, _)| *ending);
            row[6] += usize::from(ending == Some(Ending::NoBuild));
            row[7] += usize::from(ending == Some(Ending::NoSwitch));
        }
        print_row(PARTS[index].name, &row);
        totals.iter_mut().zip(row).for_each(|(total, n)| *total += n);
    }
    print_row("together", &totals);
    for (mutant, ending) in &unexplained {
        println!("{ending:?}: {}", mutant.key);
    }
    unexplained.is_empty()
}

fn print_row(name: &str, row: &[usize]) {
    let cells: Vec<String> = row.iter().map(usize::to_string).collect();
    println!("| {name} | {} |", cells.join(" | "));
}
