//! The whole text: header, tables, computations, entry.

use crate::error::{EXPECTED, Fallible, LIMIT, MISSING, failure};
use crate::parser::Parser;
use hlo_ir::diag::{Diagnostic, SourceMap};
use hlo_ir::{CompId, Module};

/// A module and where its parts stand in the text.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The module; every name is resolved, every computation has a root, there is an entry.
    pub module: Module,
    /// Byte offsets of computations and instructions.
    pub sources: SourceMap,
}

/// Parses HLO text of either form.
///
/// # Errors
/// Up to 20 diagnostics, in the order of the text; after one the parse goes on at the next instruction.
pub fn parse_module(text: &str) -> Result<Parsed, Vec<Diagnostic>> {
    if text.len() >= u32::MAX as usize {
        return Err(vec![*failure(LIMIT, 0, 0, "expected a text below 4 GiB, found a larger one")]);
    }
    let mut parser = Parser::new(text);
    // A line is an instruction, and none is much shorter than 40 bytes.
    let n_insts = count_lines(text).min(text.len() / 40);
    parser.module.reserve(n_insts);
    parser.sources.insts.resize(n_insts);
    parser.whole();
    if parser.diags.is_empty() {
        Ok(Parsed { module: parser.module, sources: parser.sources })
    } else {
        Err(parser.diags)
    }
}

/// Number of line feeds; chunks that fit a byte's count become vector code.
fn count_lines(text: &str) -> usize {
    let in_chunk = |chunk: &[u8]| usize::from(chunk.iter().map(|&b| u8::from(b == b'\n')).sum::<u8>());
    text.as_bytes().chunks(255).map(in_chunk).sum()
}

/// Parses HLO text that may not be UTF-8.
///
/// # Errors
/// As [`parse_module`]; bytes that are not UTF-8 are an error with their place.
pub fn parse_bytes(bytes: &[u8]) -> Result<Parsed, Vec<Diagnostic>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_module(text),
        Err(error) => {
            let at = error.valid_up_to();
            Err(vec![*failure(EXPECTED, at, at + 1, "expected UTF-8 text, found bytes that are not")])
        }
    }
}

impl Parser<'_> {
    fn whole(&mut self) {
        // A byte-order mark is no part of the text.
        if self.cur.text().starts_with('\u{feff}') {
            self.cur.pos = 3;
        }
        if self.cur.eat_word("HloModule")
            && let Err(error) = self.header()
            && !(self.report(*error) && self.resume_at_head())
        {
            return;
        }
        if self.is_one_instruction() {
            if let Err(error) = self.one_instruction() {
                self.report(*error);
            }
            return;
        }
        while self.cur.peek().is_some() {
            let step = match self.table() {
                Ok(false) => self.computation(),
                Ok(true) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = step
                && !(self.report(*error) && self.resume_at_head())
            {
                return;
            }
            if self.diags.len() >= crate::error::MAX_DIAGNOSTICS {
                return;
            }
        }
        self.settle();
    }

    /// Whether the text is one instruction without module and computation around it.
    fn is_one_instruction(&self) -> bool {
        let mut ahead = self.cur;
        if !self.module.name.is_empty() || !self.diags.is_empty() {
            return false;
        }
        let _ = ahead.eat_word("ROOT");
        let mut behind_name = ahead;
        let has_name = behind_name.name("").is_ok() && behind_name.eat(b'=');
        has_name || crate::shape::is_next(&mut ahead)
    }

    /// Takes `[[ROOT] name =] shape opcode(shape operand, …)`; operands become parameters, as in XLA.
    fn one_instruction(&mut self) -> Fallible<()> {
        self.is_single = true;
        self.module.name = "_".into();
        self.module.form = hlo_ir::TextForm::Short;
        self.module.header.is_scheduled = true;
        let (comp, _) = self.define_comp("_", self.cur.pos);
        self.module.set_entry(comp);
        self.open.push(comp);
        let _ = self.cur.eat_word("ROOT");
        let mut ahead = self.cur;
        let has_name = ahead.name("").is_ok() && ahead.eat(b'=');
        let label = if has_name {
            let label = self.cur.own_name("the name of the instruction")?;
            self.cur = ahead;
            label
        } else {
            ("_", self.cur.pos)
        };
        let root = self.instruction(comp, Some(label), 0)?;
        match self.cur.peek() {
            None => {
                self.finish(comp, None, Some(root), self.cur.pos)?;
                self.put_unnamed_first();
                Ok(())
            }
            Some(_) => Err(self.cur.expected("the end of the file after a single instruction")),
        }
    }

    /// Chooses the entry and puts the computations of async sugar before their users.
    fn settle(&mut self) {
        // XLA takes the last computation if none is marked.
        let last = self.module.computations().iter().rev().copied().find(|c| !self.wrapped.iter().any(|w| w.0 == *c));
        match (self.module.entry(), last) {
            (Some(_), _) => {}
            (None, Some(last)) => self.module.set_entry(last),
            (None, None) if self.diags.is_empty() => {
                let end = self.cur.text().trim_ascii_end().len();
                let error = failure(MISSING, end, end, "expected a computation, found the end of the file")
                    .with_help("a module is `HloModule name` and computations: `ENTRY main { … }`");
                self.report(error);
            }
            (None, None) => {}
        }
        if self.module.name.is_empty()
            && let Some(entry) = self.module.entry()
        {
            self.module.name = format!("module_{}", self.module.comp_name(entry));
        }
        if self.diags.is_empty() {
            self.module.bind_async_operands();
        }
        self.put_unnamed_first();
    }

    /// Puts computations that the text does not name before the ones that use them.
    fn put_unnamed_first(&mut self) {
        if self.wrapped.is_empty() {
            return;
        }
        let is_wrapped = |c: CompId| self.wrapped.binary_search_by_key(&c, |w| w.0).is_ok();
        let mut order: Vec<CompId> = Vec::with_capacity(self.module.computations().len());
        let mut of_user = self.wrapped.clone();
        of_user.sort_by_key(|w| (w.1, w.0));
        for &comp in self.module.computations().iter().filter(|&&c| !is_wrapped(c)) {
            put_after_its_own(comp, &of_user, &mut order);
        }
        self.module.set_computation_order(order);
    }
}

/// Appends `comp` after the unnamed computations that it uses, which may use others; no deeper than they are written inside of one
/// another. `of_user`: each with its user, in the order of users.
fn put_after_its_own(comp: CompId, of_user: &[(CompId, CompId)], order: &mut Vec<CompId>) {
    let first = of_user.partition_point(|w| w.1 < comp);
    for &(own, _) in of_user.iter().skip(first).take_while(|w| w.1 == comp) {
        put_after_its_own(own, of_user, order);
    }
    order.push(comp);
}
