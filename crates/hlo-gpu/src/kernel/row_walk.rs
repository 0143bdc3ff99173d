//! A team's walk over the elements of a row, for reductions and for results alike.
//!
//! Each thread takes packs of neighbours, the same ones in each walk. Operands that have the row are loaded pack by pack; where a
//! row's packs fit into the registers of its threads, they are loaded once, before the first walk.
// circle: the emitter holds the row that its team has in hand, and the walk over it is written by the emitter

use hlo_ir::ArrayShape;
use smallvec::SmallVec;

use super::dtype::CType;
use super::emitter::{Atom, Emitter, Index, Preloaded, ScopeKind};
use super::group::either_way;
use super::team::{Team, UNROLLED};
use crate::GpuError;

/// Registers of 4 bytes that the packs of one thread may take.
const MAX_REGISTERS: i64 = 72;
/// Registers of a processor, which the threads of a block share, and those of a thread that hold other things than packs.
const REGISTERS_OF_PROCESSOR: i64 = 1 << 16;
const OTHER_REGISTERS: i64 = 32;

/// The row that a team has in hand.
#[derive(Clone, Debug)]
pub(super) struct RowWalk {
    team: Team,
    /// Dims of the arrays that have the row; the first ones, as many as `kept`, number the rows.
    dims: SmallVec<[i64; 4]>,
    /// The row's index.
    pub kept: Index,
    /// Position of its first element in a row-major array.
    start: Atom,
    /// Elements of a pack.
    n_elems: i64,
    /// Operands that are loaded in packs: number, and type in memory.
    loaded: Vec<(usize, &'static str)>,
    /// Whether their packs are in registers already.
    is_kept: bool,
    /// A condition of the kernel: all operands and results lie at multiples of a pack.
    is_aligned: String,
}

/// Writes what is done with one element, given its number in its pack and its index in an array that has the row.
pub(super) type ElementBody<'b> = &'b mut dyn FnMut(&mut Emitter<'_>, Atom, &[Atom]) -> Result<(), GpuError>;

/// A pack of a row.
pub(super) struct PackAt<'w> {
    walk: &'w RowWalk,
    /// Where in the row it begins.
    pub first: Atom,
    /// What the packs of operands are called.
    names: Vec<String>,
}

impl RowWalk {
    /// A walk over rows of arrays of `dims`, of which the first `n_kept` number the rows; before the loop over rows. `written` are
    /// the numbers of results of whole rows, with their types.
    pub(super) fn new(
        e: &mut Emitter<'_>,
        team: Team,
        (dims, n_kept): (&[i64], usize),
        written: &[(usize, CType)],
    ) -> RowWalk {
        let all = e.arguments.iter().enumerate().filter(|(_, argument)| has_rows(&argument.shape, dims));
        let loaded: Vec<(usize, CType)> = all.map(|(i, argument)| (i, argument.ctype)).collect();
        let n_columns: i64 = dims[n_kept..].iter().product();
        let size = |(_, ctype): &(usize, CType)| ctype.size_bytes() as i64;
        let widest = loaded.iter().chain(written).map(size).max().unwrap_or(16).clamp(1, 16);
        let n_elems = if n_columns % (16 / widest) == 0 { 16 / widest } else { 1 };
        let of_thread = (n_columns / n_elems + team.n_parts() - 1) / team.n_parts() * n_elems;
        let registers: i64 = loaded.iter().map(|argument| (of_thread * size(argument) + 3) / 4).sum();
        let pointers = loaded.iter().map(|(i, ctype)| (format!("p{i}"), ctype.stored));
        let pointers = pointers.chain(written.iter().map(|(i, ctype)| (format!("r{i}"), ctype.stored)));
        let tests: Vec<String> =
            pointers.map(|(pointer, stored)| format!("hlo::is_aligned<{stored}, {n_elems}>({pointer})")).collect();
        let is_aligned = match tests.is_empty() {
            true => "true".to_string(),
            // A buffer that is part of another may lie anywhere.
            false => e.constant("bool", &tests.join(" && ")).text,
        };
        let loaded: Vec<(usize, &'static str)> = loaded.into_iter().map(|(i, ctype)| (i, ctype.stored)).collect();
        let room = REGISTERS_OF_PROCESSOR / i64::from(team.block()) - OTHER_REGISTERS;
        let is_kept = !loaded.is_empty() && registers <= room.min(MAX_REGISTERS);
        let (kept, start) = (SmallVec::from_elem(Atom::Const(0), n_kept), Atom::Const(0));
        RowWalk { team, dims: SmallVec::from_slice(dims), kept, start, n_elems, loaded, is_kept, is_aligned }
    }

    /// The walk over the row with this number, and its index.
    pub(super) fn over(&self, e: &mut Emitter<'_>, row: Atom) -> RowWalk {
        let n_kept = self.kept.len();
        let order: SmallVec<[usize; 4]> = (0..n_kept).rev().collect();
        let kept = e.index_at(row, &self.dims[..n_kept], &order);
        let start = e.affine(row, self.n_columns(), 0);
        RowWalk { kept, start, ..self.clone() }
    }

    /// The operands that are loaded in packs.
    pub(super) fn operands(&self) -> impl Iterator<Item = usize> + '_ {
        self.loaded.iter().map(|(operand, _)| *operand)
    }

    fn n_columns(&self) -> i64 {
        self.dims[self.kept.len()..].iter().product()
    }

    /// Whether a reduction of an array of these dims to the element at `index` is over this row.
    pub(super) fn is_over(&self, shape: &ArrayShape, index: &[Atom]) -> bool {
        shape.dims[..] == self.dims[..] && index == self.kept.as_slice()
    }

    /// Loads what fits into registers.
    pub(super) fn load(&self, e: &mut Emitter<'_>) -> Result<(), GpuError> {
        if !self.is_kept {
            return Ok(());
        }
        let of_thread = self.packs_of_thread();
        for (i, stored) in &self.loaded {
            e.line(format!("hlo::Pack<{stored}, {}> q{i}[{of_thread}];", self.n_elems));
        }
        self.each_kept_pack(e, &mut |e, round, first| self.write_loads(e, first, &|i| format!("q{i}[{round}]")))
    }

    fn packs_of_thread(&self) -> i64 {
        let n_packs = self.n_columns() / self.n_elems;
        (n_packs + self.team.n_parts() - 1) / self.team.n_parts()
    }

    fn write_loads(&self, e: &mut Emitter<'_>, first: Atom, name: &dyn Fn(usize) -> String) -> Result<(), GpuError> {
        let position = e.sum(self.start, first);
        either_way(e, &self.is_aligned, &|how| {
            self.loaded.iter().map(|(i, _)| format!("hlo::load_{how}({}, p{i} + {position});", name(*i))).collect()
        });
        Ok(())
    }

    /// Rounds in which a thread goes through its packs: the number of the round and where the pack begins.
    fn each_kept_pack(
        &self,
        e: &mut Emitter<'_>,
        body: &mut dyn FnMut(&mut Emitter<'_>, Atom, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let (n_parts, of_thread, n_columns) = (self.team.n_parts(), self.packs_of_thread(), self.n_columns());
        let round = e.loop_variable();
        let header = format!("#pragma unroll\nfor (idx {round} = 0; {round} < {of_thread}; ++{round})");
        e.scope(ScopeKind::Divided, header, |e| {
            let depth = e.depth();
            let first = format!("({round} * {n_parts} + (idx){}) * {}", self.team.part(), self.n_elems);
            let first = e.bind(first, depth);
            if of_thread * n_parts * self.n_elems == n_columns {
                return body(e, round, first);
            }
            // No `Branch`: what is the same along the row is computed before the loop, by the whole team.
            e.scope(ScopeKind::Divided, format!("if ({first} < {n_columns})"), |e| body(e, round, first))
        })
    }

    /// Goes over the row's packs.
    pub(super) fn each_pack(
        &self,
        e: &mut Emitter<'_>,
        body: &mut dyn FnMut(&mut Emitter<'_>, &PackAt<'_>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        if self.is_kept {
            return self.each_kept_pack(e, &mut |e, round, first| {
                let names = self.loaded.iter().map(|(i, _)| format!("q{i}[{round}]")).collect();
                body(e, &PackAt { walk: self, first, names })
            });
        }
        let (n_parts, n_elems) = (self.team.n_parts(), self.n_elems);
        let first = e.loop_variable();
        let header = format!(
            "{UNROLLED}\nfor (idx {first} = (idx){} * {n_elems}; {first} < {}; {first} += {})",
            self.team.part(),
            self.n_columns(),
            n_parts * n_elems
        );
        e.scope(ScopeKind::Divided, header, |e| {
            let names: Vec<String> = self.loaded.iter().map(|_| e.fresh("q")).collect();
            for ((_, stored), name) in self.loaded.iter().zip(&names) {
                e.line(format!("hlo::Pack<{stored}, {n_elems}> {name};"));
            }
            let name = |i: usize| {
                let at = self.loaded.iter().position(|(argument, _)| *argument == i);
                at.map_or(String::new(), |at| names[at].clone())
            };
            self.write_loads(e, first, &name)?;
            body(e, &PackAt { walk: self, first, names: names.clone() })
        })
    }

    /// Goes over the row's elements.
    pub(super) fn each_element(&self, e: &mut Emitter<'_>, body: ElementBody<'_>) -> Result<(), GpuError> {
        self.each_pack(e, &mut |e, pack| pack.each_element(e, body))
    }

    /// Writes packs of results that begin at `first`, where `condition` holds.
    pub(super) fn store(&self, e: &mut Emitter<'_>, first: Atom, packs: &[(usize, String)], condition: Option<&str>) {
        let position = e.sum(self.start, first);
        if let Some(condition) = condition {
            e.line(format!("if ({condition}) {{"));
        }
        either_way(e, &self.is_aligned, &|how| {
            packs.iter().map(|(i, name)| format!("hlo::store_{how}(r{i} + {position}, {name});")).collect()
        });
        if condition.is_some() {
            e.line("}");
        }
    }

    /// Elements of a pack.
    pub(super) fn n_elems(&self) -> i64 {
        self.n_elems
    }
}

impl PackAt<'_> {
    /// Goes over the pack's elements.
    pub(super) fn each_element(&self, e: &mut Emitter<'_>, body: ElementBody<'_>) -> Result<(), GpuError> {
        let walk = self.walk;
        let k = e.loop_variable();
        let header = format!("#pragma unroll\nfor (idx {k} = 0; {k} < {}; ++{k})", walk.n_elems);
        e.scope(ScopeKind::Divided, header, |e| {
            let column = e.sum(self.first, k);
            let columns = &walk.dims[walk.kept.len()..];
            let order: SmallVec<[usize; 4]> = (0..columns.len()).rev().collect();
            let tail = e.index_at(column, columns, &order);
            let index: Index = walk.kept.iter().chain(&tail).copied().collect();
            let position = e.sum(walk.start, column);
            e.know_position(&index, &walk.dims, position);
            let n_before = e.preloaded.len();
            let ahead = walk.loaded.iter().zip(&self.names);
            e.preloaded.extend(ahead.map(|(&(argument, _), name)| Preloaded {
                argument,
                linear: position,
                text: format!("{name}.elems[{k}]"),
            }));
            let outcome = body(e, k, &index);
            e.preloaded.truncate(n_before);
            outcome
        })
    }
}

/// Whether an array has whole rows, one after the other.
pub(super) fn has_rows(shape: &ArrayShape, dims: &[i64]) -> bool {
    shape.dims[..] == *dims && shape.is_row_major()
}
