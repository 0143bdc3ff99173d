//! One instruction: `[ROOT] name = shape opcode(operands), attributes`.

use crate::error::{EXPECTED, Fallible, LIMIT, LITERAL, MAX_DEPTH, SHAPE, UNKNOWN, failure};
use crate::marks::{check_required, unknown_key};
use crate::parser::Parser;
use crate::shape::is_next as shape_is_next;
use cranelift_entity::EntityRef;
use hlo_ir::attrs::{AsyncAttrs, AttrFormat, Attrs, Marks, ParameterAttrs, QuotedText};
use hlo_ir::infer::{OpView, infer_result};
use hlo_ir::literal::{ConstantValue, parse_literal};
use hlo_ir::module::Operands;
use hlo_ir::op::Arity;
use hlo_ir::{CompId, InstId, Instruction, Opcode, Shape, ShapeId};

/// An instruction's name as written, and where it stands; nested operands have none.
type Label<'t> = Option<(&'t str, usize)>;

/// What the word before the parentheses means.
#[derive(Clone, Copy)]
enum Verb {
    /// An opcode of the table.
    Plain(Opcode),
    /// `X-start`: a generic async-start of a computation that holds one X.
    StartOf(Opcode),
    /// `X-update` and `X-done` of such a pair.
    RestOf(Opcode, Opcode),
}

impl Verb {
    /// Whose attributes stand in the text.
    fn attrs_of(self) -> Opcode {
        match self {
            Verb::Plain(op) | Verb::StartOf(op) => op,
            Verb::RestOf(op, _) => op,
        }
    }
}

impl<'t> Parser<'t> {
    /// Takes one instruction of `comp` after its name and `=`.
    pub(crate) fn instruction(&mut self, comp: CompId, label: Label<'t>, depth: usize) -> Fallible<InstId> {
        let stated = if shape_is_next(&mut self.cur) { Some(self.shape()?) } else { None };
        self.operation(comp, label, stated, depth)
    }

    /// Takes `opcode(operands), attributes` and adds the instruction.
    fn operation(&mut self, comp: CompId, label: Label<'t>, stated: Option<ShapeId>, depth: usize) -> Fallible<InstId> {
        let op_text = self.cur.word("an opcode")?;
        let op_start = self.cur.pos - op_text.len();
        let verb = self.verb(op_text, op_start)?;
        let opcode = verb.attrs_of();
        let row = opcode.row();
        self.cur.expect(b'(', "after the opcode")?;

        let mut operands = Operands::new();
        let mut attrs = match row.format {
            AttrFormat::Parameter => {
                let number = self.cur.count("a parameter number")?;
                Attrs::Parameter(Box::new(ParameterAttrs { number, ..ParameterAttrs::default() }))
            }
            AttrFormat::Constant => Attrs::Constant(Box::new(self.constant(stated)?)),
            format => {
                self.operands(comp, &mut operands, depth)?;
                Attrs::default_of(format).unwrap_or(Attrs::Plain)
            }
        };
        self.cur.expect_close(b')', "after the operands")?;
        if !row.arity.accepts(operands.len()) {
            return Err(wrong_arity(op_text, op_start, row.arity, operands.len()));
        }
        let mut marks = None;
        let thread = self.attributes(comp, op_text, op_start, verb, &mut attrs, &mut marks)?;

        // What an async chain calls stands at its start only, as XLA prints it.
        let (opcode, attrs, calls) = match verb {
            Verb::Plain(op @ (Opcode::AsyncUpdate | Opcode::AsyncDone)) => {
                let calls = self.async_rest(None, &operands, op_text, op_start)?;
                (op, AsyncAttrs::default().into(), Some(calls))
            }
            Verb::Plain(op) => {
                let calls = if let Attrs::Async(attrs) = &attrs { attrs.calls } else { None };
                (op, attrs, calls)
            }
            Verb::RestOf(op, of) => {
                let calls = self.async_rest(Some(of), &operands, op_text, op_start)?;
                (op, AsyncAttrs::default().into(), Some(calls))
            }
            Verb::StartOf(op) => {
                let calls = self.wrap(comp, op, attrs, &operands, stated, op_start, thread.clone())?;
                let attrs = AsyncAttrs { async_execution_thread: thread, calls: Some(calls) };
                (Opcode::AsyncStart, attrs.into(), Some(calls))
            }
        };
        let shape = match stated {
            Some(shape) => shape,
            None => self.inferred_shape(opcode, &operands, &attrs, op_text, op_start)?,
        };
        let name = hlo_ir::names::Name::new(0);
        let inst = Instruction { opcode, shape, name, parent: comp, operands, attrs, marks };
        let id = self.add(comp, label, op_start, inst)?;
        if let Some(calls) = calls {
            self.async_calls.insert(id, calls);
        }
        Ok(id)
    }

    /// Names the instruction, adds it and notes its place.
    fn add(&mut self, comp: CompId, label: Label<'t>, op_start: usize, mut inst: Instruction) -> Fallible<InstId> {
        let id = InstId::new(self.module.n_inst_slots());
        let place = match label {
            Some((text, start)) => {
                inst.name = self.define_inst(comp, text, start, id)?;
                start
            }
            None => {
                inst.name = self.fresh_inst_name(&format!("{}.anon", inst.opcode.name()), id);
                op_start
            }
        };
        let id = self.module.add_instruction(inst);
        self.sources.insts[id] = place as u32;
        Ok(id)
    }

    /// What an opcode's text means.
    #[inline]
    fn verb(&self, text: &str, start: usize) -> Fallible<Verb> {
        if let Some(op) = self.opcodes.find(text) {
            return Ok(Verb::Plain(op));
        }
        let sugar = text.rsplit_once('-').and_then(|(base, part)| {
            let base = self.opcodes.find(base)?;
            let has_operands = !matches!(base.row().format, AttrFormat::Parameter | AttrFormat::Constant);
            match part {
                "start" if has_operands => Some(Verb::StartOf(base)),
                "update" if has_operands => Some(Verb::RestOf(Opcode::AsyncUpdate, base)),
                "done" if has_operands => Some(Verb::RestOf(Opcode::AsyncDone, base)),
                _ => None,
            }
        });
        sugar.ok_or_else(|| {
            let shown = text.get(..text.len().min(60)).unwrap_or(text);
            let error = failure(UNKNOWN, start, start + text.len(), format!("expected an opcode, found `{shown}`"));
            match nearest_opcode(text) {
                Some(near) => error.with_help(format!("the nearest opcode is `{near}`")).into(),
                None => error,
            }
        })
    }

    /// Takes operands up to the closing parenthesis, which stays.
    #[inline]
    fn operands(&mut self, comp: CompId, operands: &mut Operands, depth: usize) -> Fallible<()> {
        while !matches!(self.cur.peek(), Some(b')') | None) {
            let operand = self.operand(comp, depth)?;
            operands.push(operand);
            if !self.cur.eat(b',') {
                break;
            }
        }
        Ok(())
    }

    /// Takes `name`, `shape name` or a nested `[shape] opcode(…)`.
    #[inline]
    fn operand(&mut self, comp: CompId, depth: usize) -> Fallible<InstId> {
        if self.cur.peek() == Some(b'%') {
            return self.inst_ref(comp);
        }
        let stated = if shape_is_next(&mut self.cur) { Some((self.cur.pos, self.shape()?)) } else { None };
        if self.cur.peek() != Some(b'%') {
            let mut ahead = self.cur;
            let _ = ahead.word("a name or an opcode");
            if ahead.pos > self.cur.pos && ahead.peek() == Some(b'(') {
                if depth >= MAX_DEPTH {
                    let message = format!("expected at most {MAX_DEPTH} levels of nested operands, found more");
                    return Err(failure(LIMIT, self.cur.pos, ahead.pos, message));
                }
                return self.operation(comp, None, stated.map(|s| s.1), depth + 1);
            }
        }
        let operand = self.inst_ref(comp)?;
        if let Some((start, shape)) = stated {
            let defined = self.module.inst(operand).shape;
            if self.module.shapes.bare(shape) != self.module.shapes.bare(defined) && self.diags.is_empty() {
                let name = self.module.inst_name(operand);
                let message = format!("`{name}`: expected the shape of its definition, found another shape at its use");
                return Err(failure(EXPECTED, start, self.cur.pos, message));
            }
        }
        Ok(operand)
    }

    /// Takes `, key=value` as often as it comes; gives the thread of async sugar.
    #[inline]
    fn attributes(
        &mut self,
        comp: CompId,
        op_text: &str,
        op_start: usize,
        verb: Verb,
        attrs: &mut Attrs,
        marks: &mut Option<Box<Marks>>,
    ) -> Fallible<Option<QuotedText>> {
        let format = attrs.format();
        let mut thread = None;
        // The number of a parameter is no attribute of the text.
        let mut seen = u64::from(format == AttrFormat::Parameter);
        while self.cur.eat(b',') {
            let key = self.cur.word("an attribute")?;
            let start = self.cur.pos - key.len();
            self.cur.expect(b'=', "after the attribute's name")?;
            if self.field(attrs, key, start, &mut seen)? || self.mark(comp, key, start, marks)? {
                continue;
            }
            if matches!(verb, Verb::StartOf(_)) && key == "async_execution_thread" && thread.is_none() {
                thread = Some(QuotedText(self.cur.string("a quoted thread name")?.into_owned()));
                continue;
            }
            if format == AttrFormat::Combining && key == "mode" {
                // The group mode by name; XLA reads it and goes by channel and ids all the same.
                self.cur.word("a group mode")?;
                continue;
            }
            let what = format!("an attribute of `{op_text}`");
            let also = " and sharding, metadata, frontend_attributes, backend_config, control-predecessors, statistics, origin, result_accuracy";
            return Err(unknown_key(&what, key, start, format, also));
        }
        check_required(format, seen, op_text, op_start)?;
        Ok(thread)
    }

    /// The attributes of a generic async update or done: none of their own; they go with what the start calls.
    fn async_rest(&mut self, of: Option<Opcode>, operands: &Operands, text: &str, start: usize) -> Fallible<CompId> {
        let calls = operands.first().and_then(|id| self.async_calls.get(id)).copied();
        let Some(calls) = calls else {
            let message = format!("`{text}`: expected its async start or update as operand, found another op");
            return Err(failure(EXPECTED, start, start + text.len(), message));
        };
        let wrapped = self.module.comp(calls).root.expand().map(|root| self.module.inst(root).opcode);
        if let (Some(wrapped), Some(of)) = (wrapped, of)
            && wrapped != of
        {
            let message = format!("`{text}`: expected an async pair of `{of}`, found one of `{wrapped}`");
            return Err(failure(EXPECTED, start, start + text.len(), message));
        }
        Ok(calls)
    }

    /// Makes the computation that `X-start` stands for: parameters like the operands, and one X as root.
    #[allow(clippy::too_many_arguments)]
    fn wrap(
        &mut self,
        user: CompId,
        op: Opcode,
        attrs: Attrs,
        operands: &Operands,
        stated: Option<ShapeId>,
        op_start: usize,
        thread: Option<QuotedText>,
    ) -> Fallible<CompId> {
        let result = stated.and_then(|s| self.module.shapes.get(s).as_tuple()?.get(1).cloned());
        let Some(result) = result else {
            let message = format!("`{op}-start`: expected the shape `((operands…), result, …)`, found another or none");
            return Err(failure(EXPECTED, op_start, op_start + op.name().len(), message));
        };
        let shape = self.module.shapes.intern(result);
        let name = self.module.names.fresh(&format!("wrapped_{}", op.name()));
        let comp = self.module.add_computation(name);
        self.sources.comps[comp] = op_start as u32;
        self.wrapped.push((comp, user));
        self.module.comp_mut(comp).execution_thread = thread.map(|t| t.0);
        let mut params = Operands::new();
        for (number, &operand) in operands.iter().enumerate() {
            let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
            let shape = self.module.inst(operand).shape;
            params.push(self.add_wrapped(
                comp,
                Opcode::Parameter,
                "param",
                shape,
                Operands::new(),
                attrs.into(),
                op_start,
            ));
        }
        let root = self.add_wrapped(comp, op, op.name(), shape, params, attrs, op_start);
        self.module.comp_mut(comp).root = Some(root).into();
        Ok(comp)
    }

    #[allow(clippy::too_many_arguments)]
    fn add_wrapped(
        &mut self,
        comp: CompId,
        opcode: Opcode,
        stem: &str,
        shape: ShapeId,
        operands: Operands,
        attrs: Attrs,
        place: usize,
    ) -> InstId {
        let name = self.fresh_inst_name(&format!("{stem}.wrapped"), InstId::new(self.module.n_inst_slots()));
        let id = self.module.add_instruction(Instruction {
            opcode,
            shape,
            name,
            parent: comp,
            operands,
            attrs,
            marks: None,
        });
        self.sources.insts[id] = place as u32;
        id
    }

    /// Takes the value between the parentheses of a constant.
    fn constant(&mut self, stated: Option<ShapeId>) -> Fallible<ConstantValue> {
        let Some(shape) = stated else {
            let at = self.cur.pos;
            return Err(failure(EXPECTED, at, at, "`constant`: expected a shape before the opcode, found none"));
        };
        constant_value(&mut self.cur, self.module.shapes.get(shape), 0)
    }

    /// The shape of an instruction that states none.
    #[cold]
    fn inferred_shape(
        &mut self,
        opcode: Opcode,
        operands: &Operands,
        attrs: &Attrs,
        text: &str,
        start: usize,
    ) -> Fallible<ShapeId> {
        let shapes: Vec<&Shape> = operands.iter().map(|&id| self.module.shape(id)).collect();
        let view = OpView { opcode, operands: &shapes, attrs, stated: None };
        match infer_result(&self.module, &view) {
            Ok(shape) => Ok(self.module.shapes.intern(shape)),
            Err(error) => {
                let message = format!("`{text}`: expected {}, found {}", error.expected, error.found);
                Err(failure(SHAPE, start, start + text.len(), message)
                    .with_help(format!("write the result's shape before `{text}` to say what it is"))
                    .into())
            }
        }
    }
}

/// Takes a literal of `shape`.
pub(crate) fn constant_value(
    cur: &mut crate::cursor::Cursor<'_>,
    shape: &Shape,
    depth: usize,
) -> Fallible<ConstantValue> {
    match shape {
        Shape::Array(array) => {
            let (mut pos, start) = (cur.pos, cur.pos);
            let value = parse_literal(cur.bytes(), &mut pos, array.dtype, &array.dims);
            cur.pos = pos;
            value.map_err(|error| {
                let at = error.offset.max(start);
                cur.pos = at;
                failure(LITERAL, at, at + 1, error.to_string())
            })
        }
        Shape::Tuple(elements) => {
            if cur.peek() == Some(b'{') {
                let start = cur.pos;
                cur.pos += 1;
                if cur.eat_str("...") && cur.eat(b'}') {
                    return Ok(ConstantValue::Elided);
                }
                cur.pos = start;
            }
            if depth > MAX_DEPTH {
                let message = format!("expected at most {MAX_DEPTH} levels of tuples, found more");
                return Err(failure(LIMIT, cur.pos, cur.pos + 1, message));
            }
            cur.expect(b'(', "of the tuple literal")?;
            let mut values = Vec::with_capacity(elements.len());
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    cur.expect(b',', "between the tuple's values")?;
                }
                values.push(constant_value(cur, element, depth + 1)?);
            }
            cur.expect(b')', "after the tuple literal")?;
            Ok(ConstantValue::Tuple(values))
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            Err(cur.expected("a constant of an array or tuple shape, as only those have literals"))
        }
    }
}

#[cold]
fn wrong_arity(text: &str, start: usize, arity: Arity, found: usize) -> Box<hlo_ir::diag::Diagnostic> {
    let (word, n) = match arity {
        Arity::Exactly(n) => ("exactly", n),
        Arity::AtLeast(n) => ("at least", n),
    };
    let noun = if n == 1 { "operand" } else { "operands" };
    failure(EXPECTED, start, start + text.len(), format!("`{text}`: expected {word} {n} {noun}, found {found}"))
}

/// The opcode whose name has the smallest edit distance, if it is near.
fn nearest_opcode(text: &str) -> Option<&'static str> {
    if text.len() > 40 {
        return None;
    }
    let limit = (text.len() / 3).max(1);
    let near = Opcode::ALL.iter().map(|op| (edit_distance(text.as_bytes(), op.name().as_bytes()), op.name()));
    near.min().filter(|&(distance, _)| distance <= limit).map(|(_, name)| name)
}

fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (&y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let best = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, best);
            left = best;
        }
    }
    row.last().copied().unwrap_or(0)
}
