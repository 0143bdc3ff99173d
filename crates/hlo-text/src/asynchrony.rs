//! Generic async ops and their sugar: `X-start`, `X-update` and `X-done` for any opcode X.
//!
//! The sugar stands for a computation that holds one X of its parameters; it is made here and never printed. What a
//! chain calls is kept at its start only, as XLA prints it.

use crate::error::{EXPECTED, Fallible};
use crate::instruction::{OfStart, OpWord, Verb};
use crate::parser::Parser;
use cranelift_entity::EntityRef;
use hlo_ir::attrs::{AsyncAttrs, Attrs, ParameterAttrs, QuotedText};
use hlo_ir::module::Operands;
use hlo_ir::{CompId, InstId, Instruction, Opcode, Shape, ShapeId};

impl Parser<'_> {
    /// Resolves sugar: gives `inst` the opcode and the attributes that the operation's word means, and what it calls.
    #[inline(never)]
    pub(crate) fn resolve_async(
        &mut self,
        op: &OpWord<'_>,
        inst: &mut Instruction,
        stated: Option<ShapeId>,
        own: OfStart,
    ) -> Fallible<Option<CompId>> {
        let (opcode, of) = match op.verb {
            Verb::Plain(opcode) => match AsyncAttrs::of(&inst.attrs) {
                Some(attrs) if opcode == Opcode::AsyncStart => {
                    self.async_result(op, stated)?;
                    if let Some(calls) = attrs.calls {
                        let thread = attrs.async_execution_thread.as_ref().map(|thread| thread.0.clone());
                        self.set_thread(calls, thread.filter(|thread| thread != "main"));
                    }
                    return Ok(attrs.calls);
                }
                Some(attrs) if !attrs.output_to_operand_aliasing.is_empty() && opcode == Opcode::AsyncDone => {
                    return Err(
                        op.failure(EXPECTED, "expected `output_to_operand_aliasing` at its start, found it here")
                    );
                }
                Some(_) => (opcode, None),
                None => return Ok(None),
            },
            Verb::RestOf(opcode, of) => (opcode, Some(of)),
            Verb::StartOf(of) => {
                let result = self.async_result(op, stated)?;
                let attrs = std::mem::replace(&mut inst.attrs, Attrs::Plain);
                let calls = self.wrap(inst.parent, op, of, attrs, &inst.operands, result, own.thread.clone());
                inst.opcode = Opcode::AsyncStart;
                inst.attrs = AsyncAttrs {
                    async_execution_thread: own.thread,
                    output_to_operand_aliasing: own.aliases,
                    calls: Some(calls),
                }
                .into();
                return Ok(Some(calls));
            }
        };
        inst.opcode = opcode;
        let mut aliases = Vec::new();
        if let Attrs::Async(attrs) = &mut inst.attrs
            && opcode == Opcode::AsyncUpdate
        {
            aliases = std::mem::take(&mut attrs.output_to_operand_aliasing);
        }
        inst.attrs = AsyncAttrs { output_to_operand_aliasing: aliases, ..AsyncAttrs::default() }.into();
        let calls = self.rest(op, of, &inst.operands)?;
        if let Some(calls) = calls {
            self.bind_more(calls, op, inst, stated);
        }
        Ok(calls)
    }

    /// Gives the computation that `X-start` stands for what an update or done binds late: parameters, and the shape of the result.
    fn bind_more(&mut self, calls: CompId, op: &OpWord<'_>, inst: &Instruction, stated: Option<ShapeId>) {
        let Some(root) = self.module.comp(calls).root.expand() else { return };
        let binds = inst.operands.len() > 1 || self.is_unbound(root);
        if !binds || !self.wrapped.iter().any(|&(comp, _)| comp == calls) {
            return;
        }
        for &operand in inst.operands.iter().skip(1) {
            let number = self.module.comp(calls).params.len() as i64;
            let attrs = ParameterAttrs { number, ..ParameterAttrs::default() }.into();
            let shape = self.module.inst(operand).shape;
            let param = self.add_wrapped(calls, op, Opcode::Parameter, shape, Operands::new(), attrs);
            // The root stays the last one.
            self.module.comp_mut(calls).insts.retain(|&inst| inst != root);
            self.module.comp_mut(calls).insts.push(root);
            self.module.inst_mut(root).operands.push(param);
        }
        let result = if inst.opcode == Opcode::AsyncDone {
            stated
        } else {
            let parts = stated.and_then(|stated| self.module.shapes.get(stated).as_tuple());
            parts.and_then(|parts| parts.get(1).cloned()).map(|result| self.module.shapes.intern(result))
        };
        if let Some(result) = result.filter(|_| self.is_unbound(root)) {
            self.module.inst_mut(root).shape = result;
        }
    }

    /// Whether the shape of a result has no part yet that a start would state.
    fn is_unbound(&self, root: InstId) -> bool {
        matches!(self.module.shape(root), Shape::Tuple(parts) if parts.is_empty())
    }

    /// The start says on which thread its computation runs, and all that is called there, whatever those say of themselves, as in XLA.
    fn set_thread(&mut self, calls: CompId, thread: Option<String>) {
        for comp in self.module.callees_first(&[calls]) {
            self.module.comp_mut(comp).execution_thread.clone_from(&thread);
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
    fn rest(&self, op: &OpWord<'_>, of: Option<Opcode>, operands: &Operands) -> Fallible<Option<CompId>> {
        let calls = operands.first().and_then(|id| self.async_calls.get(id)).copied();
        let Some(calls) = calls else {
            // After an error the start may be a stand-in.
            if !self.diags.is_empty() {
                return Ok(None);
            }
            return Err(op.failure(EXPECTED, "expected its async start or update as operand, found another op"));
        };
        let wrapped = self.module.comp(calls).root.expand().map(|root| self.module.inst(root).opcode);
        match (wrapped, of) {
            (Some(wrapped), Some(of)) if wrapped != of => {
                let message = format_args!("expected an async pair of `{of}`, found one of `{wrapped}`");
                Err(op.failure(EXPECTED, message))
            }
            _ => Ok(Some(calls)),
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
        let mut params = Operands::new();
        for (number, &operand) in operands.iter().enumerate() {
            let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() }.into();
            let shape = self.module.inst(operand).shape;
            params.push(self.add_wrapped(comp, op, Opcode::Parameter, shape, Operands::new(), attrs));
        }
        let shape = self.module.shapes.intern(result.unwrap_or(Shape::Tuple(Vec::new())));
        let root = self.add_wrapped(comp, op, of, shape, params, attrs);
        self.module.comp_mut(comp).root = Some(root).into();
        self.set_thread(comp, thread.map(|thread| thread.0));
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
