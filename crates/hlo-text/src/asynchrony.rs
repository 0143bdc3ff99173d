//! Generic async ops and their sugar: `X-start`, `X-update` and `X-done` for any opcode X.
//!
//! The sugar stands for a computation that holds one X of its parameters; it is made here and never printed. What a
//! chain calls is kept at its start only, as XLA prints it.

use crate::error::{EXPECTED, Fallible};
use crate::instruction::{OpWord, Verb};
use crate::parser::Parser;
use cranelift_entity::EntityRef;
use hlo_ir::attrs::{AsyncAttrs, Attrs, ParameterAttrs, QuotedText};
use hlo_ir::module::Operands;
use hlo_ir::{CompId, InstId, Instruction, Opcode, Shape, ShapeId};

/// Opcode, attributes, and what an async op calls.
type Resolved = (Opcode, Attrs, Option<CompId>);

impl Parser<'_> {
    /// What an operation's word and attributes mean once sugar is resolved.
    #[inline]
    pub(crate) fn resolve_async(
        &mut self,
        user: CompId,
        op: &OpWord<'_>,
        attrs: Attrs,
        operands: &Operands,
        stated: Option<ShapeId>,
        thread: Option<QuotedText>,
    ) -> Fallible<Resolved> {
        match op.verb {
            Verb::Plain(opcode) => match &attrs {
                Attrs::Async(own) if opcode == Opcode::AsyncStart => {
                    let calls = own.calls;
                    self.async_result(op, stated)?;
                    Ok((opcode, attrs, calls))
                }
                Attrs::Async(_) => self.rest(op, opcode, None, operands),
                _ => Ok((opcode, attrs, None)),
            },
            Verb::RestOf(opcode, of) => self.rest(op, opcode, Some(of), operands),
            Verb::StartOf(of) => {
                let result = self.async_result(op, stated)?;
                let calls = self.wrap(user, op, of, attrs, operands, result, thread.clone());
                let attrs = AsyncAttrs { async_execution_thread: thread, calls: Some(calls) };
                Ok((Opcode::AsyncStart, attrs.into(), Some(calls)))
            }
        }
    }

    /// The result in the shape `((operands…), result, …)` of an async start.
    fn async_result(&self, op: &OpWord<'_>, stated: Option<ShapeId>) -> Fallible<Option<Shape>> {
        let Some(stated) = stated else { return Ok(None) };
        let elements = self.module.shapes.get(stated).as_tuple().unwrap_or(&[]);
        match elements {
            [Shape::Tuple(_), result, ..] => Ok(Some(result.clone())),
            _ => Err(op.failure(EXPECTED, "expected a shape `((operands…), result, …)`, found another")),
        }
    }

    /// An update or a done, which calls what its start calls.
    fn rest(&self, op: &OpWord<'_>, opcode: Opcode, of: Option<Opcode>, operands: &Operands) -> Fallible<Resolved> {
        let calls = operands.first().and_then(|id| self.async_calls.get(id)).copied();
        let attrs = AsyncAttrs::default().into();
        let Some(calls) = calls else {
            // After an error the start may be a stand-in.
            if !self.diags.is_empty() {
                return Ok((opcode, attrs, None));
            }
            return Err(op.failure(EXPECTED, "expected its async start or update as operand, found another op"));
        };
        let wrapped = self.module.comp(calls).root.expand().map(|root| self.module.inst(root).opcode);
        match (wrapped, of) {
            (Some(wrapped), Some(of)) if wrapped != of => {
                let message = format_args!("expected an async pair of `{of}`, found one of `{wrapped}`");
                Err(op.failure(EXPECTED, message))
            }
            _ => Ok((opcode, attrs, Some(calls))),
        }
    }

    /// Makes the computation that `X-start` stands for: parameters like the operands, and one X as root.
    #[allow(clippy::too_many_arguments)] // one computation is made of this much
    fn wrap(
        &mut self,
        user: CompId,
        op: &OpWord<'_>,
        of: Opcode,
        attrs: Attrs,
        operands: &Operands,
        result: Option<Shape>,
        thread: Option<QuotedText>,
    ) -> CompId {
        let comp = self.add_unnamed_comp(&format!("wrapped_{}", of.name()), user);
        self.sources.comps[comp] = op.start as u32;
        self.module.comp_mut(comp).execution_thread = thread.map(|t| t.0);
        let mut params = Operands::new();
        for (number, &operand) in operands.iter().enumerate() {
            let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() }.into();
            let shape = self.module.inst(operand).shape;
            params.push(self.add_wrapped(comp, op, Opcode::Parameter, shape, Operands::new(), attrs));
        }
        let shape = self.module.shapes.intern(result.unwrap_or(Shape::Tuple(Vec::new())));
        let root = self.add_wrapped(comp, op, of, shape, params, attrs);
        self.module.comp_mut(comp).root = Some(root).into();
        comp
    }

    fn add_wrapped(
        &mut self,
        comp: CompId,
        op: &OpWord<'_>,
        opcode: Opcode,
        shape: ShapeId,
        operands: Operands,
        attrs: Attrs,
    ) -> InstId {
        let id = InstId::new(self.module.n_inst_slots());
        let name = self.fresh_inst_name(&format!("{}.wrapped", opcode.name()), id);
        let inst = Instruction { opcode, shape, name, parent: comp, operands, attrs, marks: None };
        let id = self.module.add_instruction(inst);
        self.sources.insts[id] = op.start as u32;
        id
    }
}
