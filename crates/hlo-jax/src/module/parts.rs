//! Computations and instructions: an id each, and the module that it belongs to.

use super::instruction_text::InstructionText;
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::print::print_instruction;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_opt::library::OpenModule;
use hlo_opt::source_place::source_place;
use pyo3::prelude::*;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A computation of a module.
#[pyclass(frozen, eq, hash, module = "hlo_opt")]
pub(super) struct Computation {
    pub(super) open: Arc<OpenModule>,
    pub(super) comp: CompId,
}

/// An instruction of a module.
#[pyclass(frozen, eq, hash, module = "hlo_opt")]
pub(super) struct Instruction {
    open: Arc<OpenModule>,
    inst: InstId,
}

impl PartialEq for Computation {
    fn eq(&self, other: &Computation) -> bool {
        Arc::ptr_eq(&self.open, &other.open) && self.comp == other.comp
    }
}

impl Hash for Computation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.comp.hash(state);
    }
}

impl PartialEq for Instruction {
    fn eq(&self, other: &Instruction) -> bool {
        Arc::ptr_eq(&self.open, &other.open) && self.inst == other.inst
    }
}

impl Hash for Instruction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inst.hash(state);
    }
}

#[pymethods]
impl Computation {
    /// Its name, without `%`.
    #[getter]
    fn name(&self) -> &str {
        self.open.module().comp_name(self.comp)
    }

    /// Whether the module begins here.
    #[getter]
    fn is_entry(&self) -> bool {
        self.open.module().entry() == Some(self.comp)
    }

    /// Its instructions in text order, operands before users.
    #[getter]
    fn instructions(&self) -> Vec<Instruction> {
        let insts = &self.open.module().comp(self.comp).insts;
        insts.iter().map(|&inst| Instruction { open: self.open.clone(), inst }).collect()
    }

    /// The instruction whose value it returns.
    #[getter]
    fn root(&self) -> Option<Instruction> {
        let root = self.open.module().comp(self.comp).root.expand();
        root.map(|inst| Instruction { open: self.open.clone(), inst })
    }

    fn __repr__(&self) -> String {
        let entry = if self.is_entry() { "ENTRY " } else { "" };
        format!("<Computation {entry}%{}: {} instructions>", self.name(), self.instructions().len())
    }
}

impl Instruction {
    fn module(&self) -> &Module {
        self.open.module()
    }
}

#[pymethods]
impl Instruction {
    /// Its name, without `%`.
    #[getter]
    fn name(&self) -> &str {
        self.module().inst_name(self.inst)
    }

    /// What it does, as `all-reduce`.
    #[getter]
    fn opcode(&self) -> &'static str {
        self.module().inst(self.inst).opcode.name()
    }

    /// The name of its computation.
    #[getter]
    fn computation(&self) -> &str {
        self.module().comp_name(self.module().inst(self.inst).parent)
    }

    /// Whether its value is what its computation returns.
    #[getter]
    fn is_root(&self) -> bool {
        self.module().comp(self.module().inst(self.inst).parent).root.expand() == Some(self.inst)
    }

    /// The shape of its value as HLO text, with layouts: `f32[2,3]{1,0}`.
    #[getter]
    fn shape(&self) -> String {
        InstructionText::of(&self.text()).shape.to_string()
    }

    /// The element type and dims of each array of its value, tuples flattened.
    #[getter]
    fn leaves(&self) -> Vec<(&'static str, Vec<i64>)> {
        let mut leaves = Vec::new();
        self.module().shape(self.inst).for_each_leaf(&mut |_, shape| match shape {
            Shape::Array(array) | Shape::Buffer(array) => leaves.push((array.dtype.name(), array.dims.to_vec())),
            Shape::Token | Shape::Opaque | Shape::Tuple(_) => {}
        });
        leaves
    }

    /// Bytes of its value in memory.
    #[getter]
    fn bytes(&self) -> u64 {
        self.module().shape(self.inst).memory_bytes()
    }

    /// The names of its operands.
    #[getter]
    fn operands(&self) -> Vec<&str> {
        self.module().inst(self.inst).operands.iter().map(|&operand| self.module().inst_name(operand)).collect()
    }

    /// The names of the computations that it calls.
    #[getter]
    fn calls(&self) -> Vec<&str> {
        self.module().called(self.inst).iter().map(|&comp| self.module().comp_name(comp)).collect()
    }

    /// The number of a parameter.
    #[getter]
    fn parameter_number(&self) -> Option<i64> {
        ParameterAttrs::of(&self.module().inst(self.inst).attrs).map(|attrs| attrs.number)
    }

    /// The value of a constant, as text.
    #[getter]
    fn literal(&self) -> Option<String> {
        let is_constant = self.module().inst(self.inst).opcode == Opcode::Constant;
        is_constant.then(|| InstructionText::of(&self.text()).in_parentheses.to_string())
    }

    /// Everything behind the operands, as texts by name.
    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = self.text();
        let attributes = pyo3::types::PyDict::new(py);
        for (name, value) in InstructionText::of(&text).attributes {
            attributes.set_item(name, value)?;
        }
        Ok(attributes.into_any())
    }

    /// The name path of the framework.
    #[getter]
    fn op_name(&self) -> Option<&str> {
        self.module().inst(self.inst).marks.as_ref()?.op_name()
    }

    /// The file of the program that it comes from.
    #[getter]
    fn source_file(&self) -> Option<&str> {
        source_place(self.module(), self.inst).map(|place| place.file)
    }

    /// The line in that file.
    #[getter]
    fn source_line(&self) -> Option<i64> {
        source_place(self.module(), self.inst)?.line
    }

    /// The instruction on one line of HLO.
    #[getter]
    fn text(&self) -> String {
        print_instruction(self.module(), self.inst)
    }

    fn __repr__(&self) -> String {
        format!("<Instruction {}>", self.text())
    }
}
