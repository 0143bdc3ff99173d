//! One computation: its head, its instructions, and what to do after a broken one.

use crate::cursor::is_name_byte;
use crate::error::{DUPLICATE, EXPECTED, Fallible, LIMIT, MAX_INLINE, MISSING, failure};
use crate::parser::Parser;
use cranelift_entity::EntityRef;
use hlo_ir::attrs::{Attrs, ParameterAttrs};
use hlo_ir::diag::Diagnostic;
use hlo_ir::module::Operands;
use hlo_ir::{CompId, InstId, Instruction, Opcode, Shape, ShapeId, TextForm};

/// The head of a computation.
struct Head {
    comp: CompId,
    /// Result shape of the signature, and where it stands.
    result: Option<(ShapeId, usize)>,
}

/// Where a parse can go on after an error.
enum Resume {
    Instruction,
    End,
}

impl<'t> Parser<'t> {
    /// Takes one computation with its head and body. Errors in instructions are reported here; an error in the head is
    /// given to the caller.
    pub(crate) fn computation(&mut self) -> Fallible<()> {
        let head = self.head()?;
        self.n_params = 0;
        self.open.clear();
        self.open.push(head.comp);
        let mut root = None;
        loop {
            match self.cur.peek() {
                Some(b'}') => break,
                None => {
                    let error = self.cur.expected("an instruction or `}` that ends the computation");
                    return Err(error);
                }
                Some(_) => {}
            }
            if let Err(error) = self.line(head.comp, &mut root) {
                if !self.report(*error) {
                    return Ok(());
                }
                match self.resume() {
                    Resume::Instruction => {}
                    Resume::End => break,
                }
            }
        }
        let end = self.cur.pos;
        if self.cur.eat(b'}') && self.cur.eat(b',') {
            crate::values::keyed(&mut self.cur, "execution_thread")?;
            let thread = self.cur.string("a quoted thread name")?.into_owned();
            self.module.comp_mut(head.comp).execution_thread = (thread != "main").then_some(thread);
        }
        self.finish(head.comp, head.result, root, end)
    }

    /// Takes `{ … }` in the place of a computation's name. What stands inside sees no name of the computations around it.
    #[cold]
    pub(crate) fn inline_computation(&mut self) -> Fallible<CompId> {
        let start = self.cur.pos;
        if self.open.len() > MAX_INLINE {
            let message = format!("expected at most {MAX_INLINE} computations inside of one another, found more");
            return Err(failure(LIMIT, start, start + 1, message));
        }
        self.cur.expect(b'{', "before the instructions")?;
        let user = self.open.last().copied().unwrap_or(CompId::from_u32(0));
        let comp = self.add_unnamed_comp("_", user);
        self.sources.comps[comp] = start as u32;
        let (n_params, n_shadowed) = (std::mem::take(&mut self.n_params), self.n_shadowed());
        let is_single = std::mem::take(&mut self.is_single);
        self.open.push(comp);
        let body = self.inline_body(comp);
        self.open.pop();
        self.unshadow(n_shadowed);
        (self.n_params, self.is_single) = (n_params, is_single);
        body.map(|()| comp)
    }

    fn inline_body(&mut self, comp: CompId) -> Fallible<()> {
        let mut root = None;
        while self.cur.peek() != Some(b'}') {
            self.line(comp, &mut root)?;
        }
        let end = self.cur.pos;
        self.cur.pos += 1;
        self.finish(comp, None, root, end)
    }

    /// Takes `[ENTRY] name [(params) -> shape] {` and makes the computation.
    fn head(&mut self) -> Fallible<Head> {
        let first = self.cur.pos;
        let is_entry = {
            let mut ahead = self.cur;
            ahead.eat_word("ENTRY") && ahead.name("").is_ok()
        };
        if is_entry {
            self.cur.eat_word("ENTRY");
        }
        let (text, start) = self.cur.own_name("the name of a computation or the end of the file")?;
        if self.module.n_comp_slots() == 0 && self.cur.bytes().get(start) != Some(&b'%') {
            self.module.form = TextForm::Short;
        }
        let (comp, duplicate) = self.define_comp(text, start);
        if let Some(error) = duplicate {
            self.report(*error);
        }
        if is_entry {
            if self.module.entry().is_some() {
                let error =
                    failure(DUPLICATE, first, first + 5, "expected one `ENTRY` computation, found a second one");
                self.report(*error);
            }
            self.module.set_entry(comp);
        }
        let mut result = None;
        if self.cur.peek() == Some(b'(') {
            self.list((b'(', b')'), "of the parameters", &mut |p| {
                p.cur.any_name("the name of a parameter")?;
                // XLA prints the colon and asks for none.
                let _ = p.cur.eat(b':');
                p.shape().map(drop)
            })?;
            self.cur.expect_str("->", "after the parameters")?;
            self.cur.skip_blanks();
            let at = self.cur.pos;
            result = Some((self.shape()?, at));
        }
        self.cur.expect(b'{', "before the instructions")?;
        Ok(Head { comp, result })
    }

    /// Takes `[ROOT] name = …` and one instruction after it.
    fn line(&mut self, comp: CompId, root: &mut Option<InstId>) -> Fallible<()> {
        let is_root = self.cur.peek() == Some(b'R') && {
            let mut ahead = self.cur;
            ahead.eat_word("ROOT") && matches!(ahead.peek(), Some(b) if b == b'%' || is_name_byte(b))
        };
        if is_root {
            self.cur.pos += 4;
        }
        let (text, start) = self.cur.own_name("an instruction: `name = shape opcode(operands)`")?;
        let parsed = match self.cur.expect(b'=', "after the instruction's name") {
            Ok(()) => self.instruction(comp, Some((text, start)), 0),
            Err(error) => Err(error),
        };
        let id = match parsed {
            Ok(id) => id,
            Err(error) => {
                self.stand_in(comp, text, start);
                return Err(error);
            }
        };
        if is_root && root.replace(id).is_some() {
            let message = format!("`{text}`: expected one `ROOT` in the computation, found a second one");
            return Err(failure(DUPLICATE, start, start + text.len(), message));
        }
        Ok(())
    }

    /// Defines the name of a broken instruction, so that its uses are no errors. The module will not be given out.
    #[cold]
    fn stand_in(&mut self, comp: CompId, text: &str, start: usize) {
        let id = InstId::new(self.module.n_inst_slots());
        if let Ok(name) = self.define_inst(comp, text, start, id) {
            let shape = self.module.shapes.intern(Shape::Token);
            let (opcode, operands, attrs) = (Opcode::AfterAll, Operands::new(), Attrs::Plain);
            let id = self.module.add_instruction(Instruction {
                opcode,
                shape,
                name,
                parent: comp,
                operands,
                attrs,
                marks: None,
            });
            self.sources.insts[id] = start as u32;
        }
    }

    /// Moves to the next line that begins an instruction, or to what ends the computation.
    #[cold]
    fn resume(&mut self) -> Resume {
        // The error was perhaps seen only at the start of the next line.
        let read = self.cur.bytes().get(..self.cur.pos).unwrap_or(&[]);
        self.cur.pos = read.trim_ascii_end().len();
        loop {
            let rest = self.cur.bytes().get(self.cur.pos..).unwrap_or(&[]);
            let Some(newline) = rest.iter().position(|&b| b == b'\n' || b == b'\r') else {
                self.cur.pos = self.cur.bytes().len();
                return Resume::End;
            };
            self.cur.pos += newline + 1;
            let mut ahead = self.cur;
            match ahead.peek() {
                None => return Resume::End,
                Some(b'}') => {
                    // A brace at the start of a line closes the computation; others close what was broken.
                    if ahead.pos == self.cur.pos {
                        return Resume::End;
                    }
                }
                Some(_) => {
                    let _ = ahead.eat_word("ROOT");
                    if ahead.name("").is_ok() {
                        if ahead.eat(b'=') {
                            return Resume::Instruction;
                        }
                        // A word at the start of a line that defines nothing is the head of a computation.
                        if self.cur.raw().is_some_and(|b| b == b'%' || is_name_byte(b)) && self.is_head() {
                            return Resume::End;
                        }
                    }
                }
            }
        }
    }

    /// Whether the line here ends in `{`, as the head of a computation does.
    fn is_head(&self) -> bool {
        let rest = self.cur.bytes().get(self.cur.pos..).unwrap_or(&[]);
        let line = rest.split(|&b| b == b'\n' || b == b'\r').next().unwrap_or(&[]);
        line.trim_ascii_end().ends_with(b"{")
    }

    /// After an error in a head: moves to the next line that looks like a head. False at the end of the file.
    #[cold]
    pub(crate) fn resume_at_head(&mut self) -> bool {
        loop {
            let rest = self.cur.bytes().get(self.cur.pos..).unwrap_or(&[]);
            let Some(newline) = rest.iter().position(|&b| b == b'\n' || b == b'\r') else { return false };
            self.cur.pos += newline + 1;
            if self.cur.raw().is_some_and(|b| b == b'%' || is_name_byte(b)) && self.is_head() {
                return true;
            }
        }
    }

    /// Chooses the root, numbers the parameters and checks the signature.
    pub(crate) fn finish(
        &mut self,
        comp: CompId,
        result: Option<(ShapeId, usize)>,
        root: Option<InstId>,
        end: usize,
    ) -> Fallible<()> {
        let Some(root) = root.or(self.module.comp(comp).insts.last().copied()) else {
            let name = self.module.comp_name(comp);
            let message = format!("`{name}`: expected at least one instruction, found none");
            return Err(failure(MISSING, end, end + 1, message));
        };
        self.module.comp_mut(comp).root = Some(root).into();
        if !self.diags.is_empty() {
            return Ok(());
        }
        // Parameters in order are listed already.
        if self.module.comp(comp).params.len() != self.n_params
            && let Err(number) = self.module.renumber_params(comp)
        {
            return Err(self.bad_parameter(comp, number));
        }
        if let Some((shape, at)) = result {
            let found = self.module.inst(root).shape;
            if self.module.shapes.bare(found) != self.module.shapes.bare(shape) {
                let message = format!(
                    "`{}`: expected the signature to state the shape of its root `{}`, found another shape",
                    self.module.comp_name(comp),
                    self.module.inst_name(root)
                );
                return Err(failure(EXPECTED, at, at + 1, message));
            }
        }
        Ok(())
    }

    #[cold]
    fn bad_parameter(&self, comp: CompId, number: i64) -> Box<Diagnostic> {
        let name = self.module.comp_name(comp);
        let mut same = self
            .module
            .comp(comp)
            .insts
            .iter()
            .filter(|&&id| matches!(&self.module.inst(id).attrs, Attrs::Parameter(p) if p.number == number));
        let _first = same.next();
        let (rule, place, message) = match same.next() {
            Some(&second) => {
                let message = format!("`{name}`: expected each parameter number once, found parameter({number}) twice");
                (DUPLICATE, self.sources.insts[second], message)
            }
            None => {
                // The first parameter beyond the gap shows it best.
                let parameter = |id: &InstId| ParameterAttrs::of(&self.module.inst(*id).attrs);
                let next =
                    self.module.comp(comp).insts.iter().find(|&id| parameter(id).is_some_and(|p| p.number > number));
                let place = next.map_or(self.sources.comps[comp], |&id| self.sources.insts[id]);
                let message = format!("`{name}`: expected parameter numbers 0, 1, 2, …, found no parameter({number})");
                (MISSING, place, message)
            }
        };
        failure(rule, place as usize, place as usize + 1, message)
    }
}
