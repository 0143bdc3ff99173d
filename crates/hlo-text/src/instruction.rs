//! One instruction: `[ROOT] name = shape opcode(operands), attributes`.

use crate::error::{DUPLICATE, EXPECTED, Fallible, LIMIT, LITERAL, MAX_DEPTH, UNKNOWN, failure};
use crate::marks::{check_required, unknown_key};
use crate::parser::Parser;
use crate::shape::is_next as shape_is_next;
use cranelift_entity::EntityRef;
use cranelift_entity::packed_option::ReservedValue;
use hlo_ir::attrs::{
    AttrFormat, Attrs, CompareAttrs, FieldMut, Marks, OperandAlias, ParameterAttrs, QuotedText, TupleIndexAttrs,
};
use hlo_ir::diag::Diagnostic;
use hlo_ir::literal::{ConstantValue, parse_literal};
use hlo_ir::module::Operands;
use hlo_ir::names::{Name, is_reserved, is_type_name};
use hlo_ir::op::Arity;
use hlo_ir::{CompId, DType, InstId, Instruction, Opcode, Shape, ShapeId};
use std::sync::Arc;

/// An instruction's name as written, and where it stands; nested operands have none.
type Label<'t> = Option<(&'t str, usize)>;

/// The word before the parentheses.
#[derive(Clone, Copy)]
pub(crate) struct OpWord<'t> {
    /// The word as written.
    pub(crate) text: &'t str,
    /// Where it stands.
    pub(crate) start: usize,
    /// What it means.
    pub(crate) verb: Verb,
}

/// What the attributes of sugar say of the start, and not of the op that it wraps.
#[derive(Default)]
pub(crate) struct OfStart {
    /// Where it runs.
    pub(crate) thread: Option<QuotedText>,
    /// Which parts of its result share memory with operands.
    pub(crate) aliases: Vec<OperandAlias>,
}

/// What the word before the parentheses means.
#[derive(Clone, Copy)]
pub(crate) enum Verb {
    /// An opcode of the table.
    Plain(Opcode),
    /// `X-start`: a generic async-start of a computation that holds one X.
    StartOf(Opcode),
    /// `X-update` and `X-done` of such a pair.
    RestOf(Opcode, Opcode),
}

impl Verb {
    /// Whose attributes stand in the text.
    pub(crate) fn attrs_of(self) -> Opcode {
        match self {
            Verb::Plain(op) | Verb::StartOf(op) => op,
            Verb::RestOf(op, _) => op,
        }
    }
}

impl OpWord<'_> {
    /// A failure at the word; the message begins with it.
    #[cold]
    pub(crate) fn failure(&self, rule: &'static str, message: impl std::fmt::Display) -> Box<Diagnostic> {
        failure(rule, self.start, self.start + self.text.len(), format!("`{}`: {message}", self.text))
    }
}

impl<'t> Parser<'t> {
    /// Takes one instruction of `comp` after its name and `=`.
    pub(crate) fn instruction(&mut self, comp: CompId, label: Label<'t>, depth: usize) -> Fallible<InstId> {
        if let Some((text, start)) = label
            && is_type_name(text)
        {
            let message = format!("`{text}`: expected the name of an instruction, found that of a type");
            let error = failure(EXPECTED, start, start + text.len(), message);
            return Err(error.with_help(format!("XLA takes no such name; `{text}_` would do")).into());
        }
        let stated = if shape_is_next(&mut self.cur) { Some(self.shape()?) } else { None };
        self.operation(comp, label, stated, depth)
    }

    /// Takes `opcode(operands), attributes` and adds the instruction; nested operands have no attributes.
    fn operation(&mut self, comp: CompId, label: Label<'t>, stated: Option<ShapeId>, depth: usize) -> Fallible<InstId> {
        let mut op = self.op_word()?;
        if let Some(of) = self.wrapped_by_own_start(&op, stated) {
            op.verb = Verb::StartOf(of);
        }
        self.cur.expect(b'(', "after the opcode")?;
        let row = op.verb.attrs_of().row();
        // The fields are filled in one place long before the module copies them; the last one, the name, goes to the copy.
        // Fields that are written just before would hold up the copy for as long as a tenth of a parse.
        let mut inst = Instruction {
            opcode: row.opcode,
            shape: stated.unwrap_or(ShapeId::reserved_value()),
            name: Name::reserved_value(),
            parent: comp,
            operands: Operands::new(),
            attrs: Attrs::Plain,
            marks: None,
        };
        inst.attrs = match row.format {
            AttrFormat::Parameter => {
                let number = self.cur.count("a parameter number")?;
                self.n_params += 1;
                Attrs::Parameter(Box::new(ParameterAttrs { number, ..ParameterAttrs::default() }))
            }
            AttrFormat::Constant => Attrs::Constant(Box::new(self.constant(stated)?)),
            format => {
                self.operands(comp, &mut inst.operands, depth)?;
                Attrs::default_of(format).unwrap_or(Attrs::Plain)
            }
        };
        self.cur.expect_close(b')', "after the operands")?;
        // The rest of an asynchronous chain may bind more operands.
        let may_bind_more = matches!(op.verb, Verb::StartOf(_)) && row.arity.is_above(inst.operands.len());
        if !row.arity.accepts(inst.operands.len()) && !may_bind_more {
            return Err(wrong_arity(&op, row.arity, inst.operands.len()));
        }
        let mut seen = first_seen(row.format);
        let of_start = if label.is_some() || depth == 0 {
            self.attributes(comp, &op, &mut inst.attrs, &mut seen, &mut inst.marks)?
        } else {
            OfStart::default()
        };
        self.fill_default(&op, &inst.operands, &mut inst.attrs, &mut seen);
        check_required(row.format, seen, op.text, op.start)?;
        self.check_operands(&op, &inst.operands)?;
        if let Some(of) = self.wrapped_by_own_done(&op, &inst.operands) {
            op.verb = Verb::RestOf(Opcode::AsyncDone, of);
        }
        let calls = match op.verb {
            Verb::Plain(_) if row.format != AttrFormat::Async => None,
            _ => self.resolve_async(&op, &mut inst, stated, of_start)?,
        };
        if stated.is_none() {
            inst.shape = self.inferred_shape(&inst, &op)?;
        }
        let (name, place) = self.name_next(comp, label, inst.opcode, op.start)?;
        let id = self.module.add_instruction(inst);
        self.module.inst_mut(id).name = name;
        self.sources.insts[id] = place as u32;
        if let Some(calls) = calls {
            self.async_calls.insert(id, calls);
        }
        Ok(id)
    }

    /// Name and place of the instruction that will be added next.
    #[inline]
    fn name_next(
        &mut self,
        comp: CompId,
        label: Label<'t>,
        opcode: Opcode,
        op_start: usize,
    ) -> Fallible<(Name, usize)> {
        let id = InstId::new(self.module.n_inst_slots());
        match label {
            Some((text, start)) => Ok((self.define_inst(comp, text, start, id)?, start)),
            None => Ok((self.fresh_inst_name(&format!("{}.anon", opcode.name()), id), op_start)),
        }
    }

    /// Takes the opcode or the sugar for one.
    #[inline]
    fn op_word(&mut self) -> Fallible<OpWord<'t>> {
        let text = self.cur.word("an opcode")?;
        let start = self.cur.pos - text.len();
        if let Some(op) = self.opcodes.find(text) {
            return Ok(OpWord { text, start, verb: Verb::Plain(op) });
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
        match sugar {
            Some(verb) => Ok(OpWord { text, start, verb }),
            None => Err(unknown_opcode(text, start)),
        }
    }

    /// The X that `X-start` wraps where that is an opcode of its own and the shape is that of a generic async-start, `((operands…), …)`:
    /// XLA's compiler for GPUs writes so since jaxlib 0.12. With several operands an `all-gather-start` has such a shape itself.
    #[inline]
    fn wrapped_by_own_start(&self, op: &OpWord<'_>, stated: Option<ShapeId>) -> Option<Opcode> {
        let Verb::Plain(Opcode::AllReduceStart | Opcode::AllGatherStart | Opcode::CollectivePermuteStart) = op.verb
        else {
            return None;
        };
        let [Shape::Tuple(operands), ..] = self.module.shapes.get(stated?).as_tuple()? else { return None };
        let of = self.opcodes.find(op.text.strip_suffix("-start")?)?;
        (of == Opcode::AllReduce || operands.len() == 1).then_some(of)
    }

    /// The X of an `X-done` that ends what [`Parser::wrapped_by_own_start`] begins.
    #[inline]
    fn wrapped_by_own_done(&self, op: &OpWord<'_>, operands: &Operands) -> Option<Opcode> {
        let Verb::Plain(Opcode::AllReduceDone | Opcode::AllGatherDone | Opcode::CollectivePermuteDone) = op.verb else {
            return None;
        };
        self.async_calls.contains_key(operands.first()?).then(|| self.opcodes.find(op.text.strip_suffix("-done")?))?
    }

    /// Takes operands up to the closing parenthesis, which stays.
    #[inline]
    fn operands(&mut self, comp: CompId, operands: &mut Operands, depth: usize) -> Fallible<()> {
        loop {
            // XLA asks for no particular number of commas.
            while self.cur.eat(b',') {}
            if matches!(self.cur.peek(), Some(b')') | None) {
                return Ok(());
            }
            let operand = self.operand(comp, operands.len(), depth)?;
            operands.push(operand);
            if self.cur.peek() != Some(b',') {
                return Ok(());
            }
        }
    }

    /// Takes operand `number`: `name`, `name#1#0`, `shape name` or a nested `[shape] opcode(…)`.
    #[inline]
    fn operand(&mut self, comp: CompId, number: usize, depth: usize) -> Fallible<InstId> {
        if self.cur.peek() == Some(b'%') {
            let named = self.inst_ref(comp)?;
            return self.element(named);
        }
        if let Some(id) = self.bare_operand(comp) {
            return Ok(id);
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
        let operand = match stated {
            Some((start, shape)) if self.is_single => match self.cur.peek() {
                Some(b',' | b')') => self.unnamed_parameter(comp, shape, number, start)?,
                _ => self.parameter_ref(comp, shape)?,
            },
            _ => self.inst_ref(comp)?,
        };
        let operand = self.element(operand)?;
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

    /// Takes `#1#0` after the name of a tuple: element 0 of element 1. Each element becomes a `get-tuple-element`, one for all uses.
    #[inline]
    fn element(&mut self, mut of: InstId) -> Fallible<InstId> {
        while self.cur.peek() == Some(b'#') {
            of = self.next_element(of)?;
        }
        Ok(of)
    }

    #[cold]
    fn next_element(&mut self, of: InstId) -> Fallible<InstId> {
        let start = self.cur.pos;
        self.cur.pos += 1;
        let index = self.cur.count("the index of a tuple's element")?;
        if let Some(&known) = self.elements.get(&(of, index)) {
            return Ok(known);
        }
        let elements = self.module.shape(of).as_tuple().unwrap_or_default();
        let Some(shape) = usize::try_from(index).ok().and_then(|index| elements.get(index)).cloned() else {
            let (name, n) = (self.module.inst_name(of), elements.len());
            let message = format!("`{name}`: expected the index of one of its {n} elements after `#`, found {index}");
            return Err(failure(EXPECTED, start, self.cur.pos, message));
        };
        let stem = format!("{}_{index}", self.module.inst_name(of));
        let name = self.fresh_inst_name(&stem, InstId::new(self.module.n_inst_slots()));
        let element = Instruction {
            opcode: Opcode::GetTupleElement,
            shape: self.module.shapes.intern(shape),
            name,
            parent: self.module.inst(of).parent,
            operands: [of].into_iter().collect(),
            attrs: TupleIndexAttrs { index }.into(),
            marks: None,
        };
        let id = self.module.add_instruction(element);
        self.sources.insts[id] = start as u32;
        self.elements.insert((of, index), id);
        Ok(id)
    }

    /// Takes an operand that is a name and nothing else, as all are in the short form; everything else stays.
    #[inline]
    fn bare_operand(&mut self, comp: CompId) -> Option<InstId> {
        let text = self.cur.peek_name()?;
        if !matches!(self.cur.raw_at(text.len()), Some(b',' | b')')) || is_reserved(text) {
            return None;
        }
        let id = self.find_inst(comp, self.module.names.find(text)?)?;
        self.cur.pos += text.len();
        Some(id)
    }

    /// Takes the name of a parameter; one that is new becomes a parameter of `shape`.
    #[cold]
    fn parameter_ref(&mut self, comp: CompId, shape: ShapeId) -> Fallible<InstId> {
        let mut ahead = self.cur;
        let (text, start) = ahead.name("the name of a parameter")?;
        if self.module.names.find(text).is_some_and(|name| self.find_inst(comp, name).is_some()) {
            return self.inst_ref(comp);
        }
        self.cur = ahead;
        self.new_parameter(comp, shape, text, start)
    }

    /// Makes the parameter that operand `number` is of which only the shape stands, named as XLA names it.
    #[cold]
    fn unnamed_parameter(&mut self, comp: CompId, shape: ShapeId, number: usize, start: usize) -> Fallible<InstId> {
        let text = format!("_{number}");
        match self.module.names.find(&text).and_then(|name| self.find_inst(comp, name)) {
            Some(known) => Ok(known),
            None => self.new_parameter(comp, shape, &text, start),
        }
    }

    fn new_parameter(&mut self, comp: CompId, shape: ShapeId, text: &str, start: usize) -> Fallible<InstId> {
        let attrs = ParameterAttrs { number: self.module.comp(comp).params.len() as i64, ..ParameterAttrs::default() };
        let name = self.define_inst(comp, text, start, InstId::new(self.module.n_inst_slots()))?;
        let (opcode, operands) = (Opcode::Parameter, Operands::new());
        let inst = Instruction { opcode, shape, name, parent: comp, operands, attrs: attrs.into(), marks: None };
        let id = self.module.add_instruction(inst);
        self.sources.insts[id] = start as u32;
        Ok(id)
    }

    /// Takes `, key=value` as often as it comes; gives what belongs to the start of async sugar.
    #[inline]
    fn attributes(
        &mut self,
        comp: CompId,
        op: &OpWord<'_>,
        attrs: &mut Attrs,
        seen: &mut u64,
        marks: &mut Option<Arc<Marks>>,
    ) -> Fallible<OfStart> {
        let mut of_start = OfStart::default();
        while self.cur.eat(b',') {
            let key = self.cur.key("an attribute")?;
            let start = self.cur.pos - key.len() - 1;
            if self.field(attrs, key, start, seen)? || self.mark(comp, key, start, marks)? {
                continue;
            }
            let format = attrs.format();
            let is_start = matches!(op.verb, Verb::StartOf(_));
            if is_start && key == "async_execution_thread" && of_start.thread.is_none() {
                of_start.thread = Some(QuotedText(self.cur.string("a quoted thread name")?.into_owned()));
            } else if is_start && key == "output_to_operand_aliasing" && of_start.aliases.is_empty() {
                self.value(format, key, FieldMut::OutputAliases(&mut of_start.aliases))?;
            } else if format == AttrFormat::Combining && key == "mode" {
                // The group mode by name; XLA reads it and goes by channel and ids all the same.
                self.cur.word("a group mode")?;
            } else if key == "order"
                && let Attrs::Compare(compare) = attrs
            {
                self.order(compare, start)?;
            } else {
                let what = format!("an attribute of `{}`", op.text);
                return Err(unknown_key(&what, key, start, format, ALSO_KNOWN));
            }
        }
        if let Some(own) = marks {
            Arc::make_mut(own).normalize();
            marks.take_if(|own| own.is_empty());
        }
        Ok(of_start)
    }

    /// Takes `TOTAL` or `PARTIAL`, as jaxlib says it since 0.11 in the place of `type=`.
    #[cold]
    fn order(&mut self, compare: &mut CompareAttrs, start: usize) -> Fallible<()> {
        let word = self.cur.word("`TOTAL` or `PARTIAL`")?;
        if !matches!(word, "TOTAL" | "PARTIAL") {
            let message = format!("`order`: expected `TOTAL` or `PARTIAL`, found `{}`", word.get(..40).unwrap_or(word));
            return Err(failure(EXPECTED, self.cur.pos - word.len(), self.cur.pos, message));
        }
        if !compare.order.as_str().is_empty() {
            let message = "expected either `type` or `order`, given once; found both, or one twice";
            return Err(failure(DUPLICATE, start, self.cur.pos, message));
        }
        compare.order = word.into();
        Ok(())
    }

    /// Checks of operands without which the attributes have no meaning.
    #[inline]
    fn check_operands(&self, op: &OpWord<'_>, operands: &Operands) -> Fallible<()> {
        let row = op.verb.attrs_of().row();
        if row.format == AttrFormat::Conditional && self.diags.is_empty() {
            let shape = operands.first().map(|&id| self.module.shape(id));
            let array = shape.and_then(Shape::as_array);
            if !array.is_some_and(|a| a.rank() == 0 && matches!(a.dtype, DType::Pred | DType::S32)) {
                return Err(op.failure(EXPECTED, "expected `pred[]` or `s32[]` as first operand, found another shape"));
            }
        }
        Ok(())
    }

    /// Takes the value between the parentheses of a constant.
    fn constant(&mut self, stated: Option<ShapeId>) -> Fallible<ConstantValue> {
        let Some(shape) = stated else {
            let at = self.cur.pos;
            return Err(failure(EXPECTED, at, at, "`constant`: expected a shape before the opcode, found none"));
        };
        constant_value(&mut self.cur, self.module.shapes.get(shape), 0)
    }
}

/// What [`unknown_key`] lists after an opcode's own attributes.
const ALSO_KNOWN: &str = "sharding, metadata, frontend_attributes, backend_config, control-predecessors, statistics, origin, \
                          result_accuracy";

/// Attributes that the text may not give: the number of a parameter stands between the parentheses.
#[inline]
fn first_seen(format: AttrFormat) -> u64 {
    u64::from(format == AttrFormat::Parameter)
}

#[cold]
fn unknown_opcode(text: &str, start: usize) -> Box<Diagnostic> {
    let shown = text.get(..text.len().min(60)).unwrap_or(text);
    let error = failure(UNKNOWN, start, start + text.len(), format!("expected an opcode, found `{shown}`"));
    match nearest_opcode(text) {
        Some(near) => error.with_help(format!("the nearest opcode is `{near}`")).into(),
        None => error,
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
fn wrong_arity(op: &OpWord<'_>, arity: Arity, found: usize) -> Box<Diagnostic> {
    let (word, n) = match arity {
        Arity::Exactly(n) => ("exactly", n),
        Arity::AtLeast(n) => ("at least", n),
    };
    let noun = if n == 1 { "operand" } else { "operands" };
    op.failure(EXPECTED, format_args!("expected {word} {n} {noun}, found {found}"))
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
