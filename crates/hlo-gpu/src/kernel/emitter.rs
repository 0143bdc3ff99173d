//! The text of a kernel while it is written: nested scopes, index arithmetic, and the values that are already computed.
//!
//! A value is asked for by instruction and index. Its code goes into the outermost scope where all that it depends on
//! is known, and it is remembered there. So nothing is computed twice at one index, and nothing that stays the same is
//! computed inside a loop. Code inside a branch stays there: its indices may be out of range elsewhere.

use std::collections::{HashMap, HashSet};
use std::fmt;

use hlo_analysis::values::{CallSite, arguments};
use hlo_ir::{ArrayShape, CompId, InstId, Literal, Module};
use smallvec::SmallVec;

use super::dtype::{CType, stored_literals};
use super::row_walk::RowWalk;
use super::team::Team;
use crate::GpuError;

/// One component of an index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Atom {
    /// A number.
    Const(i64),
    /// A variable of the kernel and the depth of its scope.
    Var(u32, u32),
}

impl Atom {
    fn depth(self) -> usize {
        match self {
            Atom::Const(_) => 0,
            Atom::Var(_, depth) => depth as usize,
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Const(value) if *value < 0 => write!(f, "({value})"),
            Atom::Const(value) => write!(f, "{value}"),
            Atom::Var(name, _) => write!(f, "i{name}"),
        }
    }
}

/// A logical index, one atom for each dim.
pub(super) type Index = SmallVec<[Atom; 4]>;

/// An expression without effects (a variable or a literal) and the depth of the scope that declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub text: String,
    pub depth: usize,
}

impl Value {
    pub(super) fn literal(text: String) -> Value {
        Value { text, depth: 0 }
    }
}

/// One execution of a computation within the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FrameId(usize);

/// One element of one leaf of an instruction's result, in one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'i> {
    pub frame: FrameId,
    pub inst: InstId,
    pub leaf: usize,
    pub index: &'i [Atom],
}

/// The value of an element, once its code is written.
pub(super) type Emitted = Result<Value, GpuError>;

/// What a value of a frame that is not computed in it stands for.
#[derive(Clone, Debug)]
pub(super) enum Binding {
    /// The kernel's arguments from this one on, one for each leaf.
    Arguments(usize),
    /// A value of another frame.
    Outer(FrameId, InstId),
    /// A scalar.
    Scalar(Value),
}

#[derive(Clone, Debug)]
struct Frame {
    bindings: HashMap<InstId, Binding>,
    depth: usize,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    frame: FrameId,
    inst: InstId,
    leaf: usize,
    index: Index,
}

/// What a scope's code is executed under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScopeKind {
    /// As often as its parent or more often, with the same values of outer variables.
    Loop,
    /// A loop whose rounds are dealt out to the threads of a team.
    Divided,
    /// Perhaps not at all.
    Branch,
}

#[derive(Debug)]
struct Scope {
    kind: ScopeKind,
    header: String,
    text: String,
    values: HashMap<Key, Value>,
    atoms: HashMap<String, Atom>,
}

impl Scope {
    fn new(kind: ScopeKind, header: String) -> Scope {
        Scope { kind, header, text: String::new(), values: HashMap::new(), atoms: HashMap::new() }
    }
}

/// One pointer of the kernel.
#[derive(Clone, Debug)]
pub(super) struct Argument {
    pub shape: ArrayShape,
    pub ctype: CType,
}

/// An index whose position in an array's memory is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Linear {
    /// Sizes and atoms of dims of more than one element, the fastest first.
    dims: SmallVec<[(i64, Atom); 4]>,
}

/// Values of an argument that a thread has already loaded: those at the elements that it writes.
#[derive(Clone, Debug)]
pub(super) struct Preloaded {
    pub argument: usize,
    pub linear: Atom,
    pub text: String,
}

/// How a kernel of rows reads its operands.
#[derive(Clone, Debug, Default)]
pub(super) struct RowsRead {
    /// Those that are loaded in packs, the same ones of a row by the same thread each time.
    pub in_packs: Vec<usize>,
    /// Those of which any other element is read too.
    pub elsewhere: HashSet<usize>,
    /// Results that are written in the same packs, after all that is read of the row but what lies there.
    pub written: Vec<usize>,
}

/// Elements of the largest constant that stands in a kernel's text.
const MAX_CONSTANT_ELEMS: usize = 1 << 14;

/// Writes the body of nested loops, given their variables.
pub(super) type LoopBody<'a, 'm> = &'a mut dyn FnMut(&mut Emitter<'m>, &[Atom]) -> Result<(), GpuError>;

/// A kernel being written.
pub(super) struct Emitter<'m> {
    pub module: &'m Module,
    pub arguments: Vec<Argument>,
    /// The threads that compute one element together, where that is so.
    pub team: Option<Team>,
    /// Depth of the loop over the team's elements.
    pub team_depth: usize,
    /// Whether threads wait for one another.
    pub is_cooperative: bool,
    /// The row that the team has in hand.
    pub row: Option<RowWalk>,
    /// Loads done ahead.
    pub preloaded: Vec<Preloaded>,
    /// Operands of which each thread of a team reads its own elements of a row.
    pub rows_read: RowsRead,
    /// Values that stand in shared memory, by instruction and leaf: how to read them at any index of the current tile.
    pub staged: HashMap<(FrameId, InstId), Value>,
    /// What variables held before they were rounded: a store rounds by itself, and two in one instruction.
    pub unrounded: HashMap<String, String>,
    /// Whether it is asked where elements lie, not what they are.
    looks_for_place: bool,
    /// The place that was found: an argument and the position in it.
    place: Option<(usize, Atom)>,
    scopes: Vec<Scope>,
    frames: Vec<Frame>,
    linear: HashMap<Linear, Atom>,
    n_names: u32,
    depth_of_recursion: usize,
    instruction: String,
}

/// Nested computations and chains of index maps that are followed at most; far beyond what a fusion has.
const MAX_RECURSION: usize = 400;

impl<'m> Emitter<'m> {
    /// A kernel of `inst` with these arguments.
    pub(super) fn new(module: &'m Module, inst: InstId, arguments: Vec<Argument>) -> Emitter<'m> {
        Emitter {
            module,
            arguments,
            team: None,
            team_depth: 0,
            is_cooperative: false,
            row: None,
            preloaded: Vec::new(),
            rows_read: RowsRead::default(),
            staged: HashMap::new(),
            unrounded: HashMap::new(),
            looks_for_place: false,
            place: None,
            scopes: vec![Scope::new(ScopeKind::Loop, String::new())],
            frames: Vec::new(),
            linear: HashMap::new(),
            n_names: 0,
            depth_of_recursion: 0,
            instruction: module.inst_name(inst).to_string(),
        }
    }

    /// An error that names the kernel's instruction, and the one inside that is not supported.
    pub(super) fn unsupported(&self, inst: InstId, reason: impl fmt::Display) -> GpuError {
        let inner = self.module.inst_name(inst);
        let reason = if inner == self.instruction { reason.to_string() } else { format!("{inner}: {reason}") };
        GpuError::Unsupported { instruction: self.instruction.clone(), reason }
    }

    /// The array that `inst` has at `leaf`.
    pub(super) fn leaf_shape(&self, inst: InstId, leaf: usize) -> Result<&'m ArrayShape, GpuError> {
        array_of_leaf(self.module, inst, leaf)
            .ok_or_else(|| self.unsupported(inst, "expected an array, found a tuple or a token"))
    }

    /// The shape of an operand that is an array.
    pub(super) fn operand_shape(&self, inst: InstId, operand: usize) -> Result<&'m ArrayShape, GpuError> {
        self.leaf_shape(self.operand(inst, operand)?, 0)
    }

    /// An operand's instruction.
    pub(super) fn operand(&self, inst: InstId, operand: usize) -> Result<InstId, GpuError> {
        let found = self.module.inst(inst).operands.get(operand).copied();
        found.ok_or_else(|| self.unsupported(inst, format!("expected an operand {operand}, found none")))
    }

    /// A frame whose code may stand as far out as the current scope.
    pub(super) fn add_frame(&mut self, bindings: HashMap<InstId, Binding>) -> FrameId {
        self.frames.push(Frame { bindings, depth: self.depth() });
        FrameId(self.frames.len() - 1)
    }

    /// A frame of a computation that only reads values of `outer`, whose code may stand as far out as that of `outer`.
    pub(super) fn add_call(&mut self, outer: FrameId, bindings: HashMap<InstId, Binding>) -> FrameId {
        let depth = self.frames[outer.0].depth;
        self.frames.push(Frame { bindings, depth });
        FrameId(self.frames.len() - 1)
    }

    /// The innermost scope's depth.
    pub(super) fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    /// Whether all threads of a team execute the current scope together. Outside the loop over the team's elements all
    /// threads of the block do: what does not depend on the element (a sum of everything) is computed there.
    pub(super) fn meets(&self, team: Team) -> bool {
        self.scopes.iter().skip(self.team_depth).all(|scope| match scope.kind {
            ScopeKind::Loop => true,
            ScopeKind::Divided => false,
            ScopeKind::Branch => team.may_meet_in_branches(),
        })
    }

    /// Writes one line into the current scope.
    pub(super) fn line(&mut self, line: impl fmt::Display) {
        let depth = self.depth();
        self.line_at(depth, line);
    }

    fn line_at(&mut self, depth: usize, line: impl fmt::Display) {
        let text = &mut self.scopes[depth].text;
        for part in line.to_string().lines() {
            (0..=depth).for_each(|_| text.push_str("    "));
            text.push_str(part);
            text.push('\n');
        }
    }

    /// A new name of a variable, unique in the kernel.
    pub(super) fn fresh(&mut self, prefix: &str) -> String {
        self.n_names += 1;
        format!("{prefix}{}", self.n_names)
    }

    /// Runs `body` with the text inside `header {` … `}`.
    pub(super) fn scope<T>(
        &mut self,
        kind: ScopeKind,
        header: String,
        body: impl FnOnce(&mut Self) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        let depth = self.scopes.len();
        self.scopes.push(Scope::new(kind, header));
        let result = body(self);
        self.scopes.truncate(depth + 1);
        if let Some(scope) = self.scopes.pop() {
            self.line(format!("{} {{", scope.header));
            let parent = depth - 1;
            self.scopes[parent].text.push_str(&scope.text);
            self.line("}");
        }
        result
    }

    /// What `body` writes, in a branch of its own that is not written.
    pub(super) fn captured(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<(), GpuError>,
    ) -> Result<String, GpuError> {
        let depth = self.scopes.len();
        self.scopes.push(Scope::new(ScopeKind::Branch, String::new()));
        let result = body(self);
        self.scopes.truncate(depth + 1);
        let text = self.scopes.pop().map(|scope| scope.text).unwrap_or_default();
        result.map(|()| text)
    }

    /// The text of the current scope so far.
    pub(super) fn text(&self) -> &str {
        self.scopes.last().map_or("", |scope| &scope.text)
    }

    /// Writes text that is as it is to be.
    pub(super) fn raw(&mut self, text: &str) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.text.push_str(text);
        }
    }

    /// The text of the outermost scope.
    pub(super) fn into_text(self) -> String {
        self.scopes.into_iter().next().map(|scope| scope.text).unwrap_or_default()
    }

    /// A new loop variable of the scope that is opened next.
    pub(super) fn loop_variable(&mut self) -> Atom {
        self.n_names += 1;
        Atom::Var(self.n_names, self.scopes.len() as u32)
    }

    /// A `for` from 0 below `n`; no loop if it has one round.
    pub(super) fn count(
        &mut self,
        n: i64,
        body: impl FnOnce(&mut Self, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        if n == 1 {
            return body(self, Atom::Const(0));
        }
        let i = self.loop_variable();
        self.scope(ScopeKind::Loop, format!("for (idx {i} = 0; {i} < {n}; ++{i})"), |e| body(e, i))
    }

    /// Nested [`Emitter::count`]s, the last of `sizes` innermost.
    pub(super) fn count_all(&mut self, sizes: &[i64], body: LoopBody<'_, 'm>) -> Result<(), GpuError> {
        self.count_rest(sizes, &mut Vec::new(), body)
    }

    fn count_rest(&mut self, sizes: &[i64], done: &mut Vec<Atom>, body: LoopBody<'_, 'm>) -> Result<(), GpuError> {
        let Some((&first, rest)) = sizes.split_first() else { return body(self, done) };
        self.count(first, |e, i| {
            done.push(i);
            let result = e.count_rest(rest, done, body);
            done.pop();
            result
        })
    }

    /// An `if`.
    pub(super) fn branch(
        &mut self,
        condition: &str,
        body: impl FnOnce(&mut Self) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        self.scope(ScopeKind::Branch, format!("if ({condition})"), body)
    }

    /// A variable of the current scope that may be assigned to.
    pub(super) fn variable(&mut self, held: &str, init: &str) -> Value {
        let name = self.fresh("a");
        self.line(format!("{held} {name} = {init};"));
        Value { text: name, depth: self.depth() }
    }

    /// `text` as a constant of the current scope.
    pub(super) fn constant(&mut self, held: &str, text: &str) -> Value {
        let name = self.fresh("v");
        self.line(format!("const {held} {name} = {text};"));
        Value { text: name, depth: self.depth() }
    }

    /// An index expression of atoms and of values no deeper than `depth`, as an atom.
    pub(super) fn bind(&mut self, expression: String, depth: usize) -> Atom {
        if let Some(&atom) = self.scopes[..=depth].iter().find_map(|scope| scope.atoms.get(&expression)) {
            return atom;
        }
        self.n_names += 1;
        let atom = Atom::Var(self.n_names, depth as u32);
        self.line_at(depth, format!("const idx {atom} = {expression};"));
        self.scopes[depth].atoms.insert(expression, atom);
        atom
    }

    /// `a × scale + offset`.
    pub(super) fn affine(&mut self, a: Atom, scale: i64, offset: i64) -> Atom {
        match (a, scale, offset) {
            (Atom::Const(a), _, _) => Atom::Const(a * scale + offset),
            (_, 0, _) => Atom::Const(offset),
            (_, 1, 0) => a,
            (_, 1, _) => self.bind(format!("{a} + {}", Atom::Const(offset)), a.depth()),
            (_, _, 0) => self.bind(format!("{a} * {}", Atom::Const(scale)), a.depth()),
            _ => self.bind(format!("{a} * {} + {}", Atom::Const(scale), Atom::Const(offset)), a.depth()),
        }
    }

    /// `a + b`.
    pub(super) fn sum(&mut self, a: Atom, b: Atom) -> Atom {
        match (a, b) {
            (a, Atom::Const(n)) | (Atom::Const(n), a) => self.affine(a, 1, n),
            _ => self.bind(format!("{a} + {b}"), a.depth().max(b.depth())),
        }
    }

    /// `a - b`.
    pub(super) fn difference(&mut self, a: Atom, b: Atom) -> Atom {
        match (a, b) {
            (a, Atom::Const(n)) => self.affine(a, 1, -n),
            _ => self.bind(format!("{a} - {b}"), a.depth().max(b.depth())),
        }
    }

    /// `a / n` and `a % n` of an atom that is not negative.
    pub(super) fn divide(&mut self, a: Atom, n: i64) -> (Atom, Atom) {
        match a {
            Atom::Const(a) => (Atom::Const(a / n.max(1)), Atom::Const(a % n.max(1))),
            a if n <= 1 => (a, Atom::Const(0)),
            a => (self.bind(format!("{a} / {n}"), a.depth()), self.bind(format!("{a} % {n}"), a.depth())),
        }
    }

    /// The index of the element at position `linear` of an array of `shape`'s dims that lies in memory in the order of
    /// `order` (fastest first).
    pub(super) fn index_at(&mut self, linear: Atom, dims: &[i64], order: &[usize]) -> Index {
        let mut index: Index = SmallVec::from_elem(Atom::Const(0), dims.len());
        let wide: SmallVec<[usize; 4]> = order.iter().copied().filter(|&dim| dims[dim] != 1).collect();
        let mut rest = linear;
        let mut dims_found = SmallVec::new();
        for (i, &dim) in wide.iter().enumerate() {
            if i + 1 == wide.len() {
                index[dim] = rest;
            } else {
                (rest, index[dim]) = self.divide(rest, dims[dim]);
            }
            dims_found.push((dims[dim], index[dim]));
        }
        if !wide.is_empty() {
            self.linear.insert(Linear { dims: dims_found }, linear);
        }
        index
    }

    /// The position of the element at `index` of an array of `dims` that lies in memory in the order of `order`.
    pub(super) fn position(&mut self, index: &[Atom], dims: &[i64], order: &[usize]) -> Atom {
        let wide = order.iter().filter(|&&dim| dims[dim] != 1);
        let key = Linear { dims: wide.map(|&dim| (dims[dim], index[dim])).collect() };
        if let Some(&atom) = self.linear.get(&key) {
            return atom;
        }
        let (mut terms, mut constant, mut stride, mut depth) = (Vec::new(), 0, 1i64, 0);
        for &(size, atom) in &key.dims {
            match atom {
                Atom::Const(n) => constant += n * stride,
                atom if stride == 1 => terms.push(atom.to_string()),
                atom => terms.push(format!("{atom} * {stride}")),
            }
            depth = depth.max(atom.depth());
            stride = stride.saturating_mul(size);
        }
        let found = match terms.as_slice() {
            [] => return Atom::Const(constant),
            [_] if constant == 0 && depth > 0 && key.dims.first().is_some_and(|d| d.1.to_string() == terms[0]) => {
                key.dims[0].1
            }
            _ => {
                if constant != 0 {
                    terms.push(Atom::Const(constant).to_string());
                }
                self.bind(terms.join(" + "), depth)
            }
        };
        self.linear.insert(key, found);
        found
    }

    /// Says where in memory the element at `index` of an array of these dims lies, of which `order` has the fastest first.
    pub(super) fn know_position(&mut self, index: &[Atom], dims: &[i64], order: &[usize], position: Atom) {
        let wide = order.iter().filter(|&&dim| dims[dim] != 1);
        self.linear.insert(Linear { dims: wide.map(|&dim| (dims[dim], index[dim])).collect() }, position);
    }

    /// The position of the element at `index`, if it is known without arithmetic.
    pub(super) fn known_position(&self, index: &[Atom], dims: &[i64], order: &[usize]) -> Option<Atom> {
        let wide = order.iter().filter(|&&dim| dims[dim] != 1);
        self.linear.get(&Linear { dims: wide.map(|&dim| (dims[dim], index[dim])).collect() }).copied()
    }

    /// The value of `inst` at `leaf` and `index`, computed where it was not yet.
    pub(super) fn value(
        &mut self,
        frame: FrameId,
        inst: InstId,
        leaf: usize,
        index: &[Atom],
    ) -> Result<Value, GpuError> {
        if self.looks_for_place {
            return self.computed(frame, inst, leaf, index);
        }
        let key = Key { frame, inst, leaf, index: Index::from_slice(index) };
        if let Some(value) = self.scopes.iter().find_map(|scope| scope.values.get(&key)) {
            return Ok(value.clone());
        }
        if self.depth_of_recursion > MAX_RECURSION {
            return Err(self.unsupported(inst, format!("expected a chain of at most {MAX_RECURSION} index maps")));
        }
        let depth = self.home(frame, index);
        let inner = self.scopes.split_off(depth + 1);
        self.depth_of_recursion += 1;
        let result = self.computed(frame, inst, leaf, index);
        self.depth_of_recursion -= 1;
        self.scopes.extend(inner);
        let value = result?;
        self.scopes[depth].values.insert(key, value.clone());
        Ok(value)
    }

    /// The argument, and the position in it, of an element that moves there by reshapes, transposes and reversals alone.
    pub(super) fn place(
        &mut self,
        frame: FrameId,
        inst: InstId,
        index: &[Atom],
    ) -> Result<Option<(usize, Atom)>, GpuError> {
        self.looks_for_place = true;
        let found = self.value(frame, inst, 0, index);
        self.looks_for_place = false;
        let place = self.place.take();
        found.map(|_| place)
    }

    /// Remembers the value of another leaf that was computed on the way.
    pub(super) fn remember(&mut self, frame: FrameId, inst: InstId, leaf: usize, index: &[Atom], value: Value) {
        let key = Key { frame, inst, leaf, index: Index::from_slice(index) };
        let depth = self.depth();
        self.scopes[depth].values.insert(key, value);
    }

    /// The outermost scope in which a value of `frame` at `index` can be computed.
    fn home(&self, frame: FrameId, index: &[Atom]) -> usize {
        let branch = self.scopes.iter().rposition(|scope| scope.kind == ScopeKind::Branch).unwrap_or(0);
        let atoms = index.iter().map(|atom| atom.depth()).max().unwrap_or(0);
        // The index of an only row depends on no variable, but what is loaded of it does.
        let row = if self.row.as_ref().is_some_and(RowWalk::is_only_row) { self.team_depth } else { 0 };
        self.frames[frame.0].depth.max(branch).max(atoms).max(row).min(self.depth())
    }

    fn computed(&mut self, frame: FrameId, inst: InstId, leaf: usize, index: &[Atom]) -> Result<Value, GpuError> {
        match self.frames[frame.0].bindings.get(&inst).cloned() {
            Some(Binding::Arguments(first)) => self.load(first + leaf, index),
            Some(Binding::Outer(outer, inst)) => self.value(outer, inst, leaf, index),
            Some(Binding::Scalar(value)) => Ok(value),
            None => {
                if let Some(staged) = self.staged.get(&(frame, inst)) {
                    return Ok(staged.clone());
                }
                super::table::emit_value(self, Element { frame, inst, leaf, index })
            }
        }
    }

    fn load(&mut self, argument: usize, index: &[Atom]) -> Result<Value, GpuError> {
        let Argument { shape, ctype } = self.arguments[argument].clone();
        let position = self.position(index, &shape.dims, &shape.physical_order());
        if self.looks_for_place {
            self.place = Some((argument, position));
            return Ok(Value::literal(String::new()));
        }
        let ahead = self.preloaded.iter().find(|p| p.argument == argument && p.linear == position);
        let element = match ahead {
            Some(ahead) => ahead.text.clone(),
            None => {
                self.rows_read.elsewhere.insert(argument);
                format!("p{argument}[{position}]")
            }
        };
        Ok(self.constant(ctype.held, &ctype.loaded(&element)))
    }

    /// An element of a constant array, which is written into the kernel.
    pub(super) fn constant_element(
        &mut self,
        inst: InstId,
        literal: &Literal,
        index: &[Atom],
    ) -> Result<Value, GpuError> {
        let ctype = CType::of(literal.dtype());
        if let (true, Some(first)) = (literal.is_splat(), literal.get(0)) {
            return Ok(Value::literal(ctype.literal(first)));
        }
        if literal.n_elems() > MAX_CONSTANT_ELEMS {
            let reason = format!(
                "expected a constant of at most {MAX_CONSTANT_ELEMS} elements inside a kernel, found {}",
                literal.n_elems()
            );
            return Err(self.unsupported(inst, reason));
        }
        let order: SmallVec<[usize; 4]> = (0..literal.dims().len()).rev().collect();
        let position = self.position(index, literal.dims(), &order);
        let table = format!("c{}", inst.as_u32());
        let declared = format!("constant {table}");
        if !self.scopes[0].atoms.contains_key(&declared) {
            let elems = stored_literals(ctype, literal).join(", ");
            self.line_at(0, format!("static const {} {table}[{}] = {{{elems}}};", ctype.stored, literal.n_elems()));
            self.scopes[0].atoms.insert(declared, Atom::Const(0));
        }
        Ok(self.constant(ctype.held, &ctype.loaded(&format!("{table}[{position}]"))))
    }

    /// A frame of `comp`, whose parameters are scalars; the values of its result.
    pub(super) fn apply(&mut self, comp: CompId, scalars: &[Value]) -> Result<Vec<Value>, GpuError> {
        let computation = self.module.comp(comp);
        let bindings = computation.params.iter().copied().zip(scalars.iter().cloned().map(Binding::Scalar)).collect();
        let frame = self.add_frame(bindings);
        let Some(root) = computation.root.expand() else { return Ok(Vec::new()) };
        let n_leaves = self.module.shape(root).n_leaves();
        (0..n_leaves).map(|leaf| self.value(frame, root, leaf, &[])).collect()
    }

    /// The frame of a computation that `inst` of `frame` calls with its operands; called once for each caller's frame.
    pub(super) fn callee(&mut self, frame: FrameId, inst: InstId, comp: CompId) -> FrameId {
        let arguments = arguments(self.module, CallSite { inst, slot: 0 }, comp);
        let bindings: HashMap<InstId, Binding> =
            arguments.map(|(param, operand)| (param, Binding::Outer(frame, operand))).collect();
        // Equal calls share a frame, or their values would be computed once for each leaf and index asked for.
        let same = self.frames.iter().position(|known| {
            known.bindings.len() == bindings.len()
                && bindings.iter().all(|(param, binding)| match (binding, known.bindings.get(param)) {
                    (Binding::Outer(f, i), Some(Binding::Outer(g, j))) => f == g && i == j,
                    _ => false,
                })
        });
        match same {
            Some(found) if !bindings.is_empty() => FrameId(found),
            _ => self.add_call(frame, bindings),
        }
    }
}

/// The array that an instruction has at a flat leaf.
pub(super) fn array_of_leaf(module: &Module, inst: InstId, leaf: usize) -> Option<&ArrayShape> {
    module.shapes.leaf(module.inst(inst).shape, leaf)?.as_array()
}
