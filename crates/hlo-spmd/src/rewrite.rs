//! One computation under change.
//!
//! A pass appends new instructions and says which uses they take over. [`Rewrite::finish`] then redirects those uses in one walk,
//! removes what nothing needs any more, and puts operands before users again.

use crate::append::Appender;
use crate::collective::array;
use crate::scaling::{Scaling, Splat};
use cranelift_entity::EntitySet;
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::names::FixedHash;
use hlo_ir::{ArrayShape, CompId, InstId, Literal, Module, Opcode, Scalar, Shape};
use indexmap::IndexMap;

/// An instruction that depends on itself after a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DependsOnItself(pub InstId);

/// A change of one computation, from [`Rewrite::new`] to [`Rewrite::finish`].
pub struct Rewrite {
    comp: CompId,
    was_live: EntitySet<InstId>,
    n_slots_before: usize,
    redirected: IndexMap<InstId, InstId, FixedHash>,
}

impl Rewrite {
    /// Starts to change `comp`.
    pub fn new(module: &Module, comp: CompId) -> Rewrite {
        let (was_live, n_slots_before) = (module.live(comp), module.n_inst_slots());
        Rewrite { comp, was_live, n_slots_before, redirected: IndexMap::default() }
    }

    /// The instructions whose value was needed before the change, in text order. What was dead is left: nobody would see a change.
    pub fn live_insts(&self, module: &Module) -> Vec<InstId> {
        let insts = module.comp(self.comp).insts.iter().copied();
        insts.filter(|&inst| self.was_live.contains(inst)).collect()
    }

    /// All uses of `old` will take `new`, which must not be computed from `old`.
    pub fn redirect(&mut self, old: InstId, new: InstId) {
        self.redirected.insert(old, new);
    }

    /// Uses of the tuple `old` will take these elements: reads of one element that element, others (`users` has them all) a tuple.
    pub fn redirect_tuple(&mut self, module: &mut Module, users: &[InstId], old: InstId, elements: &[InstId]) {
        let mut is_read_whole = module.comp(self.comp).root.expand() == Some(old);
        for &user in users {
            let Some(read) = TupleIndexAttrs::of(&module.inst(user).attrs) else {
                is_read_whole = true;
                continue;
            };
            if let Some(&element) = usize::try_from(read.index).ok().and_then(|i| elements.get(i)) {
                self.redirect(user, element);
            }
        }
        if is_read_whole {
            let (hint, shape) = (module.inst_name(old).to_string(), module.shape(old).clone());
            let tuple = self.add(module, old, (&hint, Opcode::Tuple), shape, elements, Attrs::Plain);
            self.redirect(old, tuple);
        }
    }

    /// What a use of `inst` will take.
    pub fn resolve(&self, mut inst: InstId) -> InstId {
        while let Some(&new) = self.redirected.get(&inst) {
            inst = new;
        }
        inst
    }

    /// Appends instructions with the metadata of `source`.
    pub fn at(&self, source: InstId) -> Appender {
        Appender::standing_for(self.comp, source)
    }

    /// Appends an instruction with the metadata of `source`.
    pub fn add(
        &self,
        module: &mut Module,
        source: InstId,
        (hint, opcode): (&str, Opcode),
        shape: Shape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        self.at(source).add_any(module, (hint, opcode), shape, operands, attrs)
    }

    /// `value` with the layout of `shape`: itself, or a copy.
    pub fn with_shape_of(&self, module: &mut Module, value: InstId, model: InstId) -> InstId {
        if module.inst(value).shape == module.inst(model).shape {
            return value;
        }
        let (hint, shape) = (format!("{}.copy", module.inst_name(value)), module.shape(model).clone());
        self.add(module, model, (&hint, Opcode::Copy), shape, &[value], Attrs::Plain)
    }

    /// A constant repeated over `shape`.
    pub fn splat(&self, module: &mut Module, hint: &str, value: Scalar, shape: &ArrayShape) -> InstId {
        let mut builder = Builder::new(module, self.comp);
        let scalar = builder.constant(hint, Literal::scalar(shape.dtype, value));
        if shape.rank() == 0 {
            return scalar;
        }
        builder.broadcast_scalar(&format!("{hint}s"), scalar, shape.clone())
    }

    /// A scalar repeated over `shape`.
    pub fn repeat(&self, module: &mut Module, hint: &str, splat: Splat, shape: &ArrayShape) -> InstId {
        match splat {
            Splat::Value(value) => self.splat(module, hint, value, shape),
            Splat::Scalar(scalar) if shape.rank() == 0 => scalar,
            Splat::Scalar(scalar) => {
                Builder::new(module, self.comp).broadcast_scalar(&format!("{hint}s"), scalar, shape.clone())
            }
        }
    }

    /// `value` scaled as `scaling` says; found where `source` was found.
    pub fn scale(&self, module: &mut Module, source: InstId, value: InstId, scaling: &Scaling) -> InstId {
        let Some(shape) = array(module, value).cloned() else { return value };
        let scale = self.repeat(module, "scale", scaling.splat, &shape);
        let operands = if scaling.scale_idx == 0 { [scale, value] } else { [value, scale] };
        let hint = module.inst_name(source).to_string();
        self.add(module, source, (&hint, scaling.opcode), Shape::Array(shape), &operands, Attrs::Plain)
    }

    /// Redirects the uses, drops what nothing needs any more and puts operands before users again.
    ///
    /// # Errors
    /// An instruction that depends on itself: a defect of the pass, reported and not hidden.
    pub fn finish(self, module: &mut Module) -> Result<(), DependsOnItself> {
        for inst in module.comp(self.comp).insts.clone() {
            module.map_operands(inst, |operand| self.resolve(operand));
        }
        if let Some(root) = module.comp(self.comp).root.expand() {
            module.comp_mut(self.comp).root = Some(self.resolve(root)).into();
        }
        module.remove_newly_dead(self.comp, &self.was_live, self.n_slots_before);
        module.restore_order(self.comp).map_err(DependsOnItself)
    }
}
