//! Attributes and called computations as text, so that equal ones are equal words whatever module they stand in.

use crate::functions::effect_of;
use crate::term::{Terms, WordId};
use hashbrown::HashMap;
use hlo_ir::attrs::{Attrs, FieldRef, is_default};
use hlo_ir::{CompId, InstId, Module, Shape, ShapeId};
use std::fmt::Write;

/// What was written of the computations of one module.
#[derive(Default)]
pub(crate) struct ModuleWords {
    comps: HashMap<CompId, WordId>,
}

/// Attributes that say nothing of the result.
const SILENT: &[&str] = &["channel_id", "sharding", "is_composite", "output_to_operand_aliasing"];

impl ModuleWords {
    /// An instruction's attributes; opaque words of a back end are among them.
    pub(crate) fn attributes(&mut self, terms: &mut Terms, module: &Module, inst: InstId) -> String {
        let mut out = String::new();
        let instruction = module.inst(inst);
        let is_transfer = matches!(instruction.attrs, Attrs::Transfer(_));
        let mut comps = Vec::new();
        let first = instruction.operands.first();
        let operand = first.and_then(|&operand| module.shape(operand).as_array()).map(|array| array.dtype);
        instruction.attrs.for_each_field(&mut |key, _, field| {
            // The other end of a transfer names its channel too.
            let is_silent = SILENT.contains(&key) && (key != "channel_id" || !is_transfer);
            if is_default(key, field, operand) || is_silent {
                return;
            }
            let _ = match field {
                FieldRef::Comp(Some(comp)) => {
                    comps.push(*comp);
                    write!(out, " {key}=@{}", comps.len())
                }
                FieldRef::Comps(list) => {
                    comps.extend_from_slice(list);
                    write!(out, " {key}=@@{}", list.len())
                }
                FieldRef::Shape(shape) => write!(out, " {key}={:?}", shape.map(|s| with_layouts(module, s))),
                FieldRef::Shapes(shapes) => {
                    let shapes: Option<Vec<Shape>> =
                        shapes.as_ref().map(|list| list.iter().map(|&s| with_layouts(module, s)).collect());
                    write!(out, " {key}={shapes:?}")
                }
                other => write!(out, " {key}={other:?}"),
            };
        });
        for comp in comps {
            let word = self.computation(terms, module, comp);
            let _ = write!(out, " [{}]", word.0);
        }
        let accuracy = instruction.marks.as_ref().map_or("", |m| m.result_accuracy.0.as_str());
        if !accuracy.is_empty() {
            let _ = write!(out, " accuracy={accuracy}");
        }
        let config = instruction.marks.as_ref().and_then(|m| m.backend_config.as_ref());
        let is_effect = effect_of(module, inst).is_some();
        if is_effect && let Some(sharding) = instruction.marks.as_ref().and_then(|marks| marks.sharding.as_ref()) {
            let _ = write!(out, " on={sharding:?}");
        }
        if is_effect || instruction.opcode == hlo_ir::Opcode::CustomCall {
            let _ = write!(out, " config={config:?}");
            // The back end that knows the target may read them; annotations are not among the calls.
            let free = instruction.marks.as_ref().map_or(&[][..], |m| &m.frontend_attributes);
            let _ = write!(out, " frontend={free:?}");
        }
        out
    }

    /// A computation, with its instructions numbered: equal computations of all modules are one word.
    fn computation(&mut self, terms: &mut Terms, module: &Module, comp: CompId) -> WordId {
        if let Some(&word) = self.comps.get(&comp) {
            return word;
        }
        let mut numbers: HashMap<InstId, usize> = HashMap::new();
        let mut text = String::new();
        let computation = module.comp(comp);
        for (k, &inst) in computation.insts.iter().enumerate() {
            numbers.insert(inst, k);
            let instruction = module.inst(inst);
            let shape = module.shape(inst).without_layout();
            let attributes = self.attributes(terms, module, inst);
            let constant = instruction.attrs.as_constant();
            let operands: Vec<Option<&usize>> = instruction.operands.iter().map(|o| numbers.get(o)).collect();
            let _ = write!(text, "{} {shape:?} {operands:?}{attributes} {constant:?}", instruction.opcode);
            let control = instruction.marks.as_ref().map_or(&[][..], |marks| &marks.control_predecessors);
            if !control.is_empty() {
                let control: Vec<Option<&usize>> = control.iter().map(|before| numbers.get(before)).collect();
                let _ = write!(text, " after={control:?}");
            }
            text.push(';');
        }
        let root = computation.root.expand().and_then(|root| numbers.get(&root).copied());
        let _ = write!(text, "{root:?}");
        let word = terms.word(&text);
        self.comps.insert(comp, word);
        word
    }
}

/// A shape with the layouts that it has where it states none.
fn with_layouts(module: &Module, shape: ShapeId) -> Shape {
    let mut shape = module.shapes.get(shape).clone();
    shape.fill_layouts();
    shape
}
