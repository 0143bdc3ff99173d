//! The state of one parse: the module being built, the names in scope, and the errors so far.

use crate::cursor::Cursor;
use crate::error::{DUPLICATE, EXPECTED, Fallible, MAX_DIAGNOSTICS, UNKNOWN, failure};
use crate::opcodes::OpcodeTable;
use crate::shape::ShapeCache;
use cranelift_entity::EntityRef;
use hashbrown::HashMap;
use hlo_ir::diag::{Diagnostic, SourceMap};
use hlo_ir::names::Name;
use hlo_ir::{CompId, InstId, Module, ShapeId};

/// What a name means as an instruction: the last computation that defined it, and the instruction.
#[derive(Clone, Copy)]
struct Binding {
    comp: u32,
    inst: u32,
}

const UNBOUND: u32 = u32::MAX;
/// Computation of a binding that keeps its name from being used again.
const TAKEN: u32 = u32::MAX - 1;

/// One parse.
pub(crate) struct Parser<'t> {
    /// Where we read.
    pub(crate) cur: Cursor<'t>,
    /// What we build.
    pub(crate) module: Module,
    /// Where things stand.
    pub(crate) sources: SourceMap,
    /// What went wrong.
    pub(crate) diags: Vec<Diagnostic>,
    /// Opcodes by name.
    pub(crate) opcodes: &'static OpcodeTable,
    /// Computations that async sugar made, each with the computation that needs it.
    pub(crate) wrapped: Vec<(CompId, CompId)>,
    /// The names of [`Parser::wrapped`].
    wrapped_names: HashMap<Name, CompId>,
    /// The text is one instruction, whose unknown operands are parameters.
    pub(crate) is_single: bool,
    /// Parameters of the computation that is being read.
    pub(crate) n_params: usize,
    /// The computations that are being read, the innermost last; several where one is written inside of another.
    pub(crate) open: Vec<CompId>,
    /// What names meant in an open computation before one inside of it took them.
    shadowed: Vec<(Name, Binding)>,
    /// What each part of a generic async chain calls.
    pub(crate) async_calls: HashMap<InstId, CompId>,
    /// What `name#i` stands for: the elements of tuples, by tuple and index.
    pub(crate) elements: HashMap<(InstId, i64), InstId>,
    shapes: ShapeCache,
    /// By [`Name`] index.
    insts: Vec<Binding>,
    /// By [`Name`] index.
    comps: Vec<u32>,
}

impl<'t> Parser<'t> {
    /// A parse of `text` that has not begun.
    pub(crate) fn new(text: &'t str) -> Parser<'t> {
        Parser {
            cur: Cursor::new(text),
            module: Module::default(),
            sources: SourceMap::default(),
            diags: Vec::new(),
            opcodes: OpcodeTable::get(),
            wrapped: Vec::new(),
            wrapped_names: HashMap::new(),
            is_single: false,
            n_params: 0,
            open: Vec::new(),
            shadowed: Vec::new(),
            async_calls: HashMap::new(),
            elements: HashMap::new(),
            shapes: ShapeCache::default(),
            insts: Vec::new(),
            comps: Vec::new(),
        }
    }

    /// Keeps an error; false once there are so many that the parse should end.
    pub(crate) fn report(&mut self, error: Diagnostic) -> bool {
        if self.diags.len() < MAX_DIAGNOSTICS {
            self.diags.push(error);
        }
        self.diags.len() < MAX_DIAGNOSTICS
    }

    /// Takes a shape.
    #[inline]
    pub(crate) fn shape(&mut self) -> Fallible<ShapeId> {
        self.shapes.shape(&mut self.cur, &mut self.module.shapes)
    }

    /// As [`Cursor::list`], for items that need the whole parser.
    pub(crate) fn list(
        &mut self,
        (open, close): (u8, u8),
        place: &str,
        item: &mut impl FnMut(&mut Parser<'t>) -> Fallible<()>,
    ) -> Fallible<()> {
        self.cur.expect(open, place)?;
        while !self.cur.eat(close) {
            item(self)?;
            if !self.cur.eat(b',') {
                return self.cur.expect_close(close, place);
            }
        }
        Ok(())
    }

    /// The instruction of `comp` that `name` means.
    #[inline]
    pub(crate) fn find_inst(&self, comp: CompId, name: Name) -> Option<InstId> {
        let binding = self.insts.get(name.index())?;
        (binding.comp == comp.as_u32()).then(|| InstId::from_u32(binding.inst))
    }

    /// Takes the name of an instruction of `comp` that was defined before.
    #[inline]
    pub(crate) fn inst_ref(&mut self, comp: CompId) -> Fallible<InstId> {
        let (text, start) = self.cur.own_name("the name of an instruction")?;
        let found = self.module.names.find(text).and_then(|name| self.find_inst(comp, name));
        found.ok_or_else(|| self.unknown_inst(text, start))
    }

    /// An error about a name that no instruction before has.
    #[cold]
    pub(crate) fn unknown_inst(&self, text: &str, start: usize) -> Box<Diagnostic> {
        let shown = text.get(..text.len().min(80)).unwrap_or(text);
        let message =
            format!("`{shown}`: expected an instruction defined before in this computation, found none of that name");
        failure(UNKNOWN, start, self.cur.pos, message)
    }

    /// Binds `text` to the instruction that comes next in `comp`, and gives the module-wide unique name it will have.
    ///
    /// # Errors
    /// The computation has an instruction of that name.
    #[inline]
    pub(crate) fn define_inst(&mut self, comp: CompId, text: &str, start: usize, inst: InstId) -> Fallible<Name> {
        let name = self.module.names.intern(text);
        let Some(binding) = slot(&mut self.insts, name.index(), Binding { comp: UNBOUND, inst: UNBOUND }) else {
            return Err(failure(EXPECTED, start, start, "expected fewer names, found too many"));
        };
        let old = std::mem::replace(binding, Binding { comp: comp.as_u32(), inst: inst.as_u32() });
        if old.comp == UNBOUND {
            return Ok(name);
        }
        if old.comp == comp.as_u32() {
            *binding = old;
            let place = self.sources.insts.get(InstId::from_u32(old.inst)).copied().unwrap_or(0);
            let message =
                format!("`{text}`: expected a new name in this computation, found one that is defined before");
            let help = format!("the first definition is at line {}", self.line_of(place as usize));
            return Err(failure(DUPLICATE, start, start + text.len(), message).with_help(help).into());
        }
        if self.open.len() > 1 && self.open.iter().any(|open| open.as_u32() == old.comp) {
            self.shadowed.push((name, old));
        }
        // Another computation has an instruction of that name: ours gets a fresh one, as in XLA.
        Ok(self.fresh_inst_name(text, inst))
    }

    /// Gives names back the meaning that they had in the enclosing computations when `n_before` of them were shadowed.
    pub(crate) fn unshadow(&mut self, n_before: usize) {
        while self.shadowed.len() > n_before {
            if let Some((name, old)) = self.shadowed.pop()
                && let Some(binding) = self.insts.get_mut(name.index())
            {
                *binding = old;
            }
        }
    }

    /// How many names are shadowed.
    pub(crate) fn n_shadowed(&self) -> usize {
        self.shadowed.len()
    }

    /// A new name for an instruction that the text does not name so: no later text may take it, and none means it.
    pub(crate) fn fresh_inst_name(&mut self, stem: &str, inst: InstId) -> Name {
        let fresh = self.module.names.fresh(stem);
        if let Some(binding) = slot(&mut self.insts, fresh.index(), Binding { comp: UNBOUND, inst: UNBOUND }) {
            *binding = Binding { comp: TAKEN, inst: inst.as_u32() };
        }
        fresh
    }

    /// Adds a computation that the text does not name; nothing in the text means it.
    pub(crate) fn add_unnamed_comp(&mut self, stem: &str, user: CompId) -> CompId {
        let name = self.module.names.fresh(stem);
        let comp = self.module.add_computation(name);
        self.wrapped.push((comp, user));
        self.wrapped_names.insert(name, comp);
        comp
    }

    /// Takes the name of a computation that was defined before, or a computation without name: `{ … }`.
    pub(crate) fn computation_ref(&mut self) -> Fallible<CompId> {
        if self.cur.peek() == Some(b'{') {
            return self.inline_computation();
        }
        let (text, start) = self.cur.own_name("the name of a computation")?;
        let found = self.module.names.find(text).and_then(|n| self.comps.get(n.index())).copied();
        match found {
            Some(comp) if comp != UNBOUND => Ok(CompId::from_u32(comp)),
            _ => {
                let shown = text.get(..text.len().min(80)).unwrap_or(text);
                let message =
                    format!("`{shown}`: expected a computation defined before this one, found none of that name");
                Err(failure(UNKNOWN, start, self.cur.pos, message))
            }
        }
    }

    /// Adds a computation of this name.
    ///
    /// # Errors
    /// There is one already; then `Ok` still gives a computation to go on with.
    pub(crate) fn define_comp(&mut self, text: &str, start: usize) -> (CompId, Option<Box<Diagnostic>>) {
        let name = self.module.names.intern(text);
        if let Some(unnamed) = self.wrapped_names.remove(&name) {
            // The name belongs to whom the text gives it.
            let other = self.module.names.fresh(text);
            self.module.comp_mut(unnamed).name = other;
            self.wrapped_names.insert(other, unnamed);
        }
        let comp = self.module.add_computation(name);
        self.sources.comps[comp] = start as u32;
        let mut error = None;
        if let Some(place) = slot(&mut self.comps, name.index(), UNBOUND) {
            if *place != UNBOUND {
                let first = self.sources.comps[CompId::from_u32(*place)] as usize;
                let message = format!("`{text}`: expected a new name, found that of a computation defined before");
                let help = format!("the first definition is at line {}", self.line_of(first));
                error = Some(failure(DUPLICATE, start, self.cur.pos, message).with_help(help).into());
            } else {
                *place = comp.as_u32();
            }
        }
        (comp, error)
    }

    /// The line number of a byte offset; only for messages.
    fn line_of(&self, offset: usize) -> usize {
        let before = self.cur.bytes().get(..offset).unwrap_or(&[]);
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }
}

/// The slot at `index`, made if the table is too short.
#[inline]
fn slot<T: Copy>(table: &mut Vec<T>, index: usize, empty: T) -> Option<&mut T> {
    if index >= table.len() {
        table.resize((index + 1).next_multiple_of(1024), empty);
    }
    table.get_mut(index)
}
