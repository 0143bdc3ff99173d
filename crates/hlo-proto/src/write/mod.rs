//! A module to the bytes of its HloModuleProto.

mod groups;
mod header;
mod instruction;
mod literal;
mod payload;
pub(crate) mod shape;
mod sharding;
mod value;

use crate::kept::{Kept, KeptField, restore};
use crate::table::{hlo_computation, hlo_module};
use crate::writer::Writer;
use cranelift_entity::SecondaryMap;
use hashbrown::HashMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::{CompId, InstId, Module};
pub(crate) use literal::write_literal;
use shape::ShapeBytes;
use std::borrow::Cow;

/// The bytes of a module, and what became of the fields that it cannot hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// An HloModuleProto.
    pub bytes: Vec<u8>,
    /// Kept fields that are in the bytes.
    pub n_restored: usize,
    /// Kept fields whose instruction or message is no more, or is another now.
    pub n_dropped: usize,
}

/// The state of one writing.
struct ModuleWriter<'m> {
    module: &'m Module,
    kept: &'m Kept,
    shapes: ShapeBytes,
    /// The id of each computation.
    comps: SecondaryMap<CompId, u32>,
    /// The id of each instruction.
    insts: SecondaryMap<InstId, u32>,
    /// What each part of a chain of asynchronous instructions calls.
    async_calls: HashMap<InstId, CompId>,
    /// Computations that fusions call.
    is_fused: SecondaryMap<CompId, bool>,
    /// Whether groups named by the axes of a mesh become lists, and names get numbers.
    is_for_old_readers: bool,
    n_restored: usize,
}

/// Writes a module, with the fields that were kept when it was read.
pub(crate) fn write_module(module: &Module, kept: &Kept, is_for_old_readers: bool) -> Written {
    let order = callees_first(module);
    let mut writer = ModuleWriter {
        module,
        kept,
        shapes: ShapeBytes::default(),
        comps: SecondaryMap::with_capacity(module.n_comp_slots()),
        insts: SecondaryMap::with_capacity(module.n_inst_slots()),
        async_calls: HashMap::new(),
        is_fused: SecondaryMap::new(),
        is_for_old_readers,
        n_restored: 0,
    };
    // Readers of 2025 and before map the ids of computations and instructions in one table and hold them in 32 bits; later ones take the
    // low half, which must differ within a computation. One sequence for all suits both.
    let mut ids = 1..;
    let mut next_id = || ids.next().unwrap_or(u32::MAX);
    order.iter().for_each(|&comp| writer.comps[comp] = next_id());
    for &comp in &order {
        for &id in &module.comp(comp).insts {
            writer.insts[id] = next_id();
            if let Attrs::Fusion(attrs) = &module.inst(id).attrs
                && let Some(calls) = attrs.calls
            {
                writer.is_fused[calls] = true;
            }
        }
    }
    let mut w = Writer::default();
    writer.whole(&mut w, &order);
    let bytes = match kept.module.is_empty() {
        true => w.out,
        false => {
            let mut all = Vec::with_capacity(w.out.len() + 1024);
            writer.n_restored += restore(&w.out, &kept.module, &mut all);
            all
        }
    };
    let n_restored = writer.n_restored;
    Written { bytes, n_restored, n_dropped: kept.n_fields().saturating_sub(n_restored) }
}

/// All computations, those that are called before their callers.
fn callees_first(module: &Module) -> Vec<CompId> {
    let all = module.computations();
    let mut is_done: SecondaryMap<CompId, bool> = SecondaryMap::new();
    let is_ordered = all.iter().all(|&comp| {
        let calls = |&id: &InstId| {
            let mut is_fine = true;
            module.inst(id).attrs.for_each_comp(&mut |callee| is_fine &= is_done[callee]);
            is_fine
        };
        let is_fine = module.comp(comp).insts.iter().all(calls);
        is_done[comp] = true;
        is_fine
    });
    if is_ordered { all.to_vec() } else { module.callees_first(all) }
}

impl ModuleWriter<'_> {
    /// Appends the computations.
    fn computations(&mut self, w: &mut Writer, order: &[CompId]) {
        for &comp in order {
            let kept = self.kept.comps.get(&comp).filter(|(name, _)| **name == *self.module.comp_name(comp));
            w.message(hlo_module::computations, |w| match kept {
                None => self.computation(w, comp),
                Some((_, fields)) => self.restored(w, fields, |own, w| own.computation(w, comp)),
            });
        }
    }

    fn computation(&mut self, w: &mut Writer, comp: CompId) {
        use hlo_computation as c;
        let module = self.module;
        let computation = module.comp(comp);
        w.bytes(c::name, self.comp_name(comp).as_bytes());
        for &id in &computation.insts {
            let kept = self
                .kept
                .insts
                .get(&id)
                .filter(|kept| kept.opcode == module.inst(id).opcode && *kept.name == *module.inst_name(id));
            w.message(c::instructions, |w| match kept {
                None => self.instruction(w, id),
                Some(kept) => self.restored(w, &kept.fields, |own, w| own.instruction(w, id)),
            });
        }
        let params: Vec<_> = computation.params.iter().map(|&id| module.inst(id).shape).collect();
        if let Some(root) = computation.root.expand() {
            let names = self.param_names(comp);
            let result = module.inst(root).shape;
            let names = names.iter().map(String::as_str);
            w.message(c::program_shape, |w| self.shapes.write_program(w, (&params, result), names, &module.shapes));
            w.int(c::id, self.comp_id(comp));
            w.int(c::root_id, self.id_of(root));
        }
        w.bool(c::is_fusion_computation, self.is_fused[comp]);
        w.text(c::execution_thread, computation.execution_thread.as_deref().unwrap_or("main"));
    }

    /// Appends what `write` does, with kept fields in their places.
    fn restored(&mut self, w: &mut Writer, fields: &[KeptField], write: impl FnOnce(&mut Self, &mut Writer)) {
        let mut own = Writer::default();
        write(self, &mut own);
        self.n_restored += restore(&own.out, fields, &mut w.out);
    }

    /// The id of a computation.
    fn comp_id(&self, comp: CompId) -> i64 {
        i64::from(self.comps[comp])
    }

    /// The id of an instruction.
    #[inline]
    fn id_of(&self, id: InstId) -> i64 {
        i64::from(self.insts[id])
    }

    /// The name of a computation in the proto.
    fn comp_name(&self, comp: CompId) -> Cow<'_, str> {
        self.name_with_number(self.module.comp_name(comp), self.comps[comp])
    }

    /// The names of a computation's parameters in the proto.
    fn param_names(&self, comp: CompId) -> Vec<String> {
        self.module.comp(comp).params.iter().map(|&id| self.inst_name(id).into_owned()).collect()
    }

    /// The name of an instruction in the proto.
    fn inst_name(&self, id: InstId) -> Cow<'_, str> {
        self.name_with_number(self.module.inst_name(id), self.insts[id])
    }

    /// The name with a number behind a period, as XLA's builders give names: they end the process on a computation or, before
    /// September 2025, an instruction without one.
    fn name_with_number<'a>(&self, name: &'a str, id: u32) -> Cow<'a, str> {
        if name.contains('.') || !self.is_for_old_readers {
            return name.into();
        }
        let mut numbered = format!("{name}.{id}");
        while self.module.names.find(&numbered).is_some() {
            let stem = numbered.len() - format!(".{id}").len();
            numbered.insert(stem, '_');
        }
        numbered.into()
    }
}
