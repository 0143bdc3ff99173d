//! `hlo-opt reduce`: the smallest module that a command still succeeds on.

pub(crate) mod arguments;
mod command;
mod edits;
mod shrink;

use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::progress::Progress;
use crate::{Failure, exit, output};
use arguments::ReduceArgs;
use command::{Answer, Question};
use shrink::{Search, text};

/// Reduces; the file of `-o` is written whenever a smaller module is found.
///
/// # Errors
/// Wrong usage, an invalid module, a command that does not succeed on the input or cannot be run, or a file that cannot be written.
pub(crate) fn run(args: &ReduceArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    args.output.as_deref().map_or(Ok(()), output::check_target)?;
    output::expect_no_input("-o", args.output.as_ref(), &[&args.file])?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::AnySilently, console)?;
    let module = loaded.module;
    let question = Question::new(&args.condition, args.timeout)?;
    progress.now("running the command on the input");
    let why = match question.ask(&text(&module))? {
        Answer::Yes => None,
        Answer::No(Some(code)) => Some(format!("it ends with {code}")),
        Answer::No(None) => Some("it is ended by a signal".into()),
        Answer::TimedOut => Some(format!("it takes longer than {} s (--timeout)", args.timeout.as_secs_f64())),
    };
    if let Some(why) = why {
        let name = &source.name;
        return Err(Failure::File(format!("--while: expected a command that succeeds on `{name}`, but {why}")));
    }
    let (n_before, mut n_asked) = (module.n_instructions(), 1);
    let mut smallest = (n_before, module.computations().len());
    let mut condition = |candidate: &hlo_ir::Module, text: &str| -> Result<bool, Failure> {
        n_asked += 1;
        let (n, n_now) = (candidate.n_instructions(), smallest.0);
        progress.now(&format!("{n_now} of {n_before} instructions; call {n_asked}: {n}"));
        let is_kept = question.ask(text)? == Answer::Yes;
        if is_kept {
            smallest = (n, candidate.computations().len());
            args.output.as_deref().map_or(Ok(()), |path| output::write_whole(path, text.as_bytes()))?;
        }
        Ok(is_kept)
    };
    // The call on the input counts.
    let search = Search::new(module, args.max_evaluations.saturating_sub(1), &mut condition);
    let (found, n_evaluations, is_spent) = search.run()?;
    drop(progress);
    let (n, n_calls) = (found.n_instructions(), n_evaluations + 1);
    let rest = if is_spent { "; --max-evaluations ends it here" } else { "" };
    console.say(&format!("{n_before} instructions reduced to {n} in {n_calls} calls of the command{rest}\n"));
    match &args.output {
        Some(path) => output::write_whole(path, text(&found).as_bytes())?,
        None => console.print(text(&found).as_bytes())?,
    }
    Ok(exit::OK)
}
