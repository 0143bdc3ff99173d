//! Modules as HLO text, in XLA's long or short form.
//!
//! Attributes are data: the printer walks [`Attrs::for_each_field`](crate::attrs::Attrs::for_each_field) and knows one
//! rule per *type* of value ([`values`]), none per opcode. Each distinct shape is turned into text once.
//!
//! [`FormChoice::Auto`] prints a module as it stands, in the form and the orders of the text that it was read from; the
//! other two first bring it into XLA's normal form ([`canonical`]).
//!
//! The forms differ in little. The long one puts `%` before names, gives each computation a signature and counts
//! operands with `/*index=5*/`; the short one does not.

mod async_sugar;
mod canonical;
mod header;
mod order;
mod shapes;
mod shardings;
mod strings;
mod tables;
#[cfg(test)]
mod tests;
mod values;

use crate::attrs::{AsyncAttrs, FieldRef, Marks, ParameterAttrs};
use crate::float::decimal::write_i64;
use crate::module::{CompId, InstId, Module, TextForm};
use crate::names::{Name, is_reserved};
use crate::op::Opcode;
pub use canonical::canonical;
pub(crate) use canonical::normal_accuracy;
use shapes::ShapeTexts;
pub use strings::{is_bare_dict, write_quoted};

/// Which form to print.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FormChoice {
    /// The form of the text that the module was read from.
    #[default]
    Auto,
    /// `%name` and signatures; everything in XLA's normal form.
    Long,
    /// Bare names, no signatures, no debug info; everything in XLA's normal form.
    Short,
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PrintOptions {
    /// Which form.
    pub form: FormChoice,
    /// Replica groups over the axes of a mesh are printed as lists of ids; XLA's way to StableHLO confuses two meshes
    /// in one module.
    pub expand_mesh_groups: bool,
}

/// The module as text.
pub fn print_module(module: &Module, options: &PrintOptions) -> String {
    // Real HLO has 60 to 110 bytes for an instruction.
    let mut out = String::with_capacity(1024 + module.n_instructions() * 112);
    write_module(module, options, &mut out);
    out
}

/// Appends the module's text to `out`.
pub fn write_module(module: &Module, options: &PrintOptions, out: &mut String) {
    match options.form {
        FormChoice::Auto => write_as_it_is(module, options, out),
        FormChoice::Long => write_as_it_is(&canonical(module, TextForm::Long), options, out),
        FormChoice::Short => write_as_it_is(&canonical(module, TextForm::Short), options, out),
    }
}

fn write_as_it_is(module: &Module, options: &PrintOptions, out: &mut String) {
    let mut printer = Printer::new(module, module.form, options.expand_mesh_groups, std::mem::take(out));
    printer.header();
    let folded = async_sugar::folded_computations(module);
    for &comp in module.computations() {
        if !folded.contains(comp) {
            printer.computation(comp);
        }
    }
    *out = printer.out;
}

/// One instruction on one line, without indentation and line end, in the module's own form.
pub fn print_instruction(module: &Module, inst: InstId) -> String {
    let mut printer = Printer::new(module, module.form, false, String::new());
    let is_root = module.comp(module.inst(inst).parent).root.expand() == Some(inst);
    printer.instruction(inst, is_root);
    printer.out
}

/// The state of one print.
struct Printer<'m> {
    module: &'m Module,
    /// Long form: `%`, signatures, operand counts.
    is_long: bool,
    expand_mesh_groups: bool,
    shapes: ShapeTexts,
    out: String,
}

impl<'m> Printer<'m> {
    fn new(module: &'m Module, form: TextForm, expand_mesh_groups: bool, out: String) -> Printer<'m> {
        let shapes = ShapeTexts::default();
        Printer { module, is_long: form == TextForm::Long, expand_mesh_groups, shapes, out }
    }

    fn computation(&mut self, id: CompId) {
        let comp = self.module.comp(id);
        if self.module.entry() == Some(id) {
            self.out.push_str("ENTRY ");
        }
        self.comp_name(id);
        if self.is_long {
            self.signature(id);
        }
        self.out.push_str(" {\n");
        let root = comp.root.expand();
        for &inst in &comp.insts {
            self.out.push_str("  ");
            self.instruction(inst, root == Some(inst));
            self.out.push('\n');
        }
        self.out.push('}');
        if let Some(thread) = &comp.execution_thread {
            self.out.push_str(", execution_thread=");
            write_quoted(thread, &mut self.out);
        }
        self.out.push_str("\n\n");
    }

    /// Appends ` (name: shape, …) -> shape`, shapes without layouts.
    fn signature(&mut self, id: CompId) {
        let module = self.module;
        let comp = module.comp(id);
        self.out.push_str(" (");
        for (i, &param) in comp.params.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.out.push_str(module.inst_name(param));
            self.out.push_str(": ");
            self.shapes.write(module, module.shapes.bare(module.inst(param).shape), &mut self.out);
        }
        self.out.push_str(") -> ");
        match module.result_shape(id) {
            Some(shape) => self.shapes.write(module, module.shapes.bare(shape), &mut self.out),
            None => self.out.push_str("()"),
        }
    }

    fn instruction(&mut self, id: InstId, is_root: bool) {
        let module = self.module;
        let inst = module.inst(id);
        if is_root {
            self.out.push_str("ROOT ");
        }
        self.inst_name(id);
        self.out.push_str(" = ");
        self.shapes.write(module, inst.shape, &mut self.out);
        self.out.push(' ');
        let wrapped = async_sugar::wrapped_op(module, id);
        match wrapped {
            Some(op) => {
                self.out.push_str(module.inst(op).opcode.name());
                self.out.push_str(async_sugar::suffix(inst.opcode));
            }
            None => self.out.push_str(inst.opcode.name()),
        }
        self.out.push('(');
        if let Some(value) = inst.attrs.as_constant() {
            value.write_text(&mut self.out);
        } else if let Some(attrs) = ParameterAttrs::of(&inst.attrs) {
            write_i64(attrs.number, &mut self.out);
        } else {
            self.operands(&inst.operands);
        }
        self.out.push(')');
        self.attributes(id);
        if let (Opcode::AsyncStart, Some(op)) = (inst.opcode, wrapped) {
            self.attributes(op);
            if let Some(own) = AsyncAttrs::of(&inst.attrs)
                && !own.output_to_operand_aliasing.is_empty()
            {
                self.out.push_str(", output_to_operand_aliasing=");
                self.value(FieldRef::OutputAliases(&own.output_to_operand_aliasing));
            }
        }
        if let Some(marks) = &inst.marks {
            self.marks(marks);
        }
    }

    fn operands(&mut self, operands: &[InstId]) {
        for (i, &operand) in operands.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
                if i % 5 == 0 && self.is_long {
                    write_index_comment(i, &mut self.out);
                }
            }
            self.inst_name(operand);
        }
    }

    fn marks(&mut self, marks: &Marks) {
        if let Some(sharding) = &marks.sharding {
            self.out.push_str(", sharding=");
            shardings::write_sharding(sharding, &mut self.out);
        }
        if !marks.frontend_attributes.is_empty() {
            self.out.push_str(", frontend_attributes=");
            strings::write_dict(&marks.frontend_attributes, &mut self.out);
        }
        if !marks.control_predecessors.is_empty() {
            self.out.push_str(", control-predecessors={");
            for (i, &inst) in marks.control_predecessors.iter().enumerate() {
                self.separator(i, ", ");
                self.inst_name(inst);
            }
            self.out.push('}');
        }
        self.raw_mark("statistics", &marks.statistics.0);
        self.raw_mark("result_accuracy", &marks.result_accuracy.0);
        self.raw_mark("origin", &marks.origin.0);
        if let Some(metadata) = &marks.metadata {
            let mut n_printed = 0;
            metadata.for_each_field(|key, _, field| {
                if field.is_unset() {
                    return;
                }
                self.out.push_str(if n_printed == 0 { ", metadata={" } else { " " });
                n_printed += 1;
                self.out.push_str(key);
                self.out.push('=');
                self.value(field);
            });
            if n_printed > 0 {
                self.out.push('}');
            }
        }
        if let Some(config) = marks.backend_config.as_deref().filter(|c| !c.is_empty()) {
            self.out.push_str(", backend_config=");
            strings::write_text_or_dict(config, &mut self.out);
        }
    }

    fn raw_mark(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.out.push_str(", ");
            self.out.push_str(key);
            self.out.push('=');
            self.out.push_str(text);
        }
    }

    fn inst_name(&mut self, inst: InstId) {
        self.name(self.module.inst(inst).name);
    }

    fn comp_name(&mut self, comp: CompId) {
        self.name(self.module.comp(comp).name);
    }

    /// Appends a name; one that would read as a type or a keyword keeps its `%` in the short form too.
    fn name(&mut self, name: Name) {
        let text = self.module.names.get(name);
        if self.is_long || is_reserved(text) {
            self.out.push('%');
        }
        self.out.push_str(text);
    }

    /// Appends `separator` before every item but the first.
    fn separator(&mut self, index: usize, separator: &str) {
        if index > 0 {
            self.out.push_str(separator);
        }
    }
}

/// Appends `/*index=5*/`, XLA's comment before every fifth element of a long list.
fn write_index_comment(index: usize, out: &mut String) {
    out.push_str("/*index=");
    write_i64(index as i64, out);
    out.push_str("*/");
}
