//! The shape rules of ops on samples of many instructions: those with a mark break the constraint that it names, all others
//! none.

use hlo_ir::diag::Entity;
use hlo_text::parse_module;
use std::path::Path;

/// The constraint that a mark names (`result` where only the result's shape is another one), and what the message says.
fn mark(line: &str) -> Option<(&str, &str)> {
    let (_, mark) = line.split_once("// error: ")?;
    Some(mark.split_once(", ").unwrap_or((mark, "")))
}

#[test]
fn marked_instructions_break_their_constraint_and_all_others_none() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/invalid/shapes");
    let (mut failures, mut n_marks) = (Vec::new(), 0);
    for entry in std::fs::read_dir(folder).expect("a folder of samples") {
        let path = entry.expect("a readable folder").path();
        let text = std::fs::read_to_string(&path).expect("a readable sample");
        let parsed = parse_module(&text).unwrap_or_else(|d| panic!("{}: {}", path.display(), d[0].message));
        let mut messages: Vec<Vec<String>> = vec![Vec::new(); text.lines().count()];
        for diagnostic in hlo_ir::verify::verify(&parsed.module).err().unwrap_or_default() {
            let Entity::Inst(inst) = diagnostic.entity else { panic!("{}: {}", path.display(), diagnostic.message) };
            let line = text[..parsed.sources.insts[inst] as usize].matches('\n').count();
            messages[line].push(diagnostic.message);
        }
        for (number, (line, found)) in text.lines().zip(&messages).enumerate() {
            let is_right = match (mark(line), found.as_slice()) {
                (None, []) => true,
                (Some(("result", words)), [message]) => !message.ends_with(')') && message.contains(words),
                (Some((constraint, words)), [message]) => {
                    message.ends_with(&format!(" ({constraint})")) && message.contains(words)
                }
                (None | Some(_), _) => false,
            };
            n_marks += usize::from(mark(line).is_some());
            if !is_right {
                failures.push(format!("{}:{}: {line}\n    found {found:?}", path.display(), number + 1));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(n_marks > 50, "only {n_marks} marks");
}
