//! A team's walk over the elements of a row, for reductions and for results alike.
//!
//! Each thread takes packs of neighbours, the same ones in each walk. Operands that have the row are loaded pack by pack; where a
//! row's packs fit into the registers of its threads, they are loaded once, before the first walk. Else a thread loads some packs
//! before it uses the first of them: a result may lie where an operand lies, so that the compiler keeps loads behind stores.
//!
//! Packs begin at multiples of their size in memory. A row that is no whole number of packs shares its first and its last one
//! with its neighbours, and takes part of these.
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
/// Packs of a row from which on a row that is no whole number of them is taken in packs.
const MIN_UNEVEN_PACKS: i64 = 32;
/// Registers that packs take which are loaded before the first is used, and how many packs of an array these are at most.
const REGISTERS_AHEAD: i64 = 32;
const MAX_AHEAD: i64 = 4;

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
    /// Where a row is no whole number of packs: elements between the beginning of its first pack and its own first.
    shift: Option<Atom>,
    /// Elements of a pack.
    n_elems: i64,
    /// Operands that are loaded in packs: number, and type in memory.
    loaded: Vec<(usize, &'static str)>,
    /// Registers that a pack of each of them takes together.
    registers_of_pack: i64,
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
    first: Atom,
    /// What the packs of operands are called.
    names: Vec<String>,
    /// The number of the thread's pack, where rounds are unrolled.
    round: Atom,
    /// Where a row is no whole number of packs: the first element that is the row's, and the one after the last.
    bounds: Option<(Atom, Atom)>,
}

impl RowWalk {
    /// A walk over rows of arrays of `dims`, of which the first `n_kept` number the rows; before the loop over rows. `written` are
    /// the numbers of results of whole rows, with their types; for each of `n_sums` a thread has a register for each of its elements.
    pub(super) fn new(
        e: &mut Emitter<'_>,
        team: Team,
        (dims, n_kept): (&[i64], usize),
        written: &[(usize, CType)],
        n_sums: i64,
    ) -> RowWalk {
        let all = e.arguments.iter().enumerate().filter(|(_, argument)| has_rows(&argument.shape, dims));
        let loaded: Vec<(usize, CType)> = all.map(|(i, argument)| (i, argument.ctype)).collect();
        let n_columns: i64 = dims[n_kept..].iter().product();
        let size = |(_, ctype): &(usize, CType)| ctype.size_bytes() as i64;
        let widest = loaded.iter().chain(written).map(size).max().unwrap_or(16).clamp(1, 16);
        let is_in_packs = n_columns % (16 / widest) == 0 || n_columns >= MIN_UNEVEN_PACKS * (16 / widest);
        let n_elems = if is_in_packs { 16 / widest } else { 1 };
        let registers = |n: i64| -> i64 { loaded.iter().map(|argument| (n * size(argument) + 3) / 4).sum() };
        let registers_of_pack = registers(n_elems);
        let of_row = registers(packs_of_thread(n_columns, n_elems, team) * n_elems);
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
        let of_sums = n_sums * packs_of_thread(n_columns, n_elems, team) * n_elems;
        let is_kept = !loaded.is_empty() && of_row <= room.min(MAX_REGISTERS) - of_sums;
        let (kept, start) = (SmallVec::from_elem(Atom::Const(0), n_kept), Atom::Const(0));
        let dims = SmallVec::from_slice(dims);
        RowWalk { team, dims, kept, start, shift: None, n_elems, loaded, registers_of_pack, is_kept, is_aligned }
    }

    /// The walk over the row with this number, and its index.
    pub(super) fn over(&self, e: &mut Emitter<'_>, row: Atom) -> RowWalk {
        let n_kept = self.kept.len();
        let order: SmallVec<[usize; 4]> = (0..n_kept).rev().collect();
        let kept = e.index_at(row, &self.dims[..n_kept], &order);
        let start = e.affine(row, self.n_columns(), 0);
        let is_even = self.n_columns() % self.n_elems == 0;
        let depth = e.depth();
        let shift = (!is_even).then(|| e.bind(format!("{start} % {}", self.n_elems), depth));
        RowWalk { kept, start, shift, ..self.clone() }
    }

    /// The operands that are loaded in packs.
    pub(super) fn operands(&self) -> impl Iterator<Item = usize> + '_ {
        self.loaded.iter().map(|(operand, _)| *operand)
    }

    fn n_columns(&self) -> i64 {
        self.dims[self.kept.len()..].iter().product()
    }

    /// Whether there is one row alone.
    pub(super) fn is_only_row(&self) -> bool {
        self.dims[..self.kept.len()].iter().all(|&n| n == 1)
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
        self.each_round(e, (None, of_thread), &mut |e, round, first| {
            let names = self.loaded.iter().map(|(i, _)| format!("q{i}[{round}]")).collect();
            self.pack_at(e, first, names).load(e);
            Ok(())
        })
    }

    /// The pack at `first`; what the packs of operands are called.
    fn pack_at(&self, e: &mut Emitter<'_>, first: Atom, names: Vec<String>) -> PackAt<'_> {
        let (n, n_columns, depth) = (self.n_elems, self.n_columns(), e.depth());
        let bounds = self.shift.map(|_| {
            let low = e.bind(format!("{first} < 0 ? -{first} : 0"), depth);
            (low, e.bind(format!("{n_columns} - {first} < {n} ? {n_columns} - {first} : {n}"), depth))
        });
        PackAt { walk: self, first, names, round: Atom::Const(0), bounds }
    }

    /// Rounds in which a thread goes through packs, the row's first ones or those from `base` on: the number of the round and where
    /// in the row its pack begins.
    fn each_round(
        &self,
        e: &mut Emitter<'_>,
        (base, n_rounds): (Option<Atom>, i64),
        body: &mut dyn FnMut(&mut Emitter<'_>, Atom, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let (n_parts, n_columns) = (self.team.n_parts(), self.n_columns());
        let round = e.loop_variable();
        let header = format!("#pragma unroll\nfor (idx {round} = 0; {round} < {n_rounds}; ++{round})");
        e.scope(ScopeKind::Divided, header, |e| {
            let depth = e.depth();
            let first = match base {
                Some(base) => format!("{base} + {round} * {}", n_parts * self.n_elems),
                None => self.beginning(&format!("({round} * {n_parts} + (idx){})", self.team.part())),
            };
            let first = e.bind(first, depth);
            if n_columns % (n_rounds * n_parts * self.n_elems) == 0 {
                return body(e, round, first);
            }
            // No `Branch`: what is the same along the row is computed before the loop, by the whole team.
            e.scope(ScopeKind::Divided, format!("if ({first} < {n_columns})"), |e| body(e, round, first))
        })
    }

    /// Where in the row the pack with this number begins.
    fn beginning(&self, pack: &str) -> String {
        let shift = self.shift.map_or(String::new(), |shift| format!(" - {shift}"));
        format!("{pack} * {}{shift}", self.n_elems)
    }

    /// Goes over the row's packs in rounds that the compiler unrolls, so that a thread may have variables for each of its elements.
    pub(super) fn each_pack_unrolled(
        &self,
        e: &mut Emitter<'_>,
        body: &mut dyn FnMut(&mut Emitter<'_>, &PackAt<'_>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        self.each_round(e, (None, self.packs_of_thread()), &mut |e, round, first| {
            let names: Vec<String> = match self.is_kept {
                true => self.loaded.iter().map(|(i, _)| format!("q{i}[{round}]")).collect(),
                false => self.loaded.iter().map(|_| e.fresh("q")).collect(),
            };
            if !self.is_kept {
                for ((_, stored), name) in self.loaded.iter().zip(&names) {
                    e.line(format!("hlo::Pack<{stored}, {}> {name};", self.n_elems));
                }
            }
            let pack = PackAt { round, ..self.pack_at(e, first, names) };
            if !self.is_kept {
                pack.load(e);
            }
            body(e, &pack)
        })
    }

    /// Goes over the elements of a thread, by their number among these and their column.
    pub(super) fn each_pack_place(
        &self,
        e: &mut Emitter<'_>,
        body: &mut dyn FnMut(&mut Emitter<'_>, &str, &str),
    ) -> Result<(), GpuError> {
        self.each_round(e, (None, self.packs_of_thread()), &mut |e, round, first| {
            let n_elems = self.n_elems;
            let header = format!("#pragma unroll\nfor (int k = 0; k < {n_elems}; ++k)");
            e.scope(ScopeKind::Divided, header, |e| {
                body(e, &format!("{round} * {n_elems} + k"), &format!("{first} + k"));
                Ok(())
            })
        })
    }

    /// Packs that a thread takes of a row at most.
    pub(super) fn packs_of_thread(&self) -> i64 {
        packs_of_thread(self.n_columns(), self.n_elems, self.team)
    }

    /// Goes over the row's packs.
    pub(super) fn each_pack(
        &self,
        e: &mut Emitter<'_>,
        body: &mut dyn FnMut(&mut Emitter<'_>, &PackAt<'_>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let (n_columns, n_elems, stride) = (self.n_columns(), self.n_elems, self.team.n_parts() * self.n_elems);
        if self.is_kept {
            let of_thread = self.packs_of_thread();
            return self.each_round(e, (None, of_thread), &mut |e, round, first| {
                let names = self.loaded.iter().map(|(i, _)| format!("q{i}[{round}]")).collect();
                let pack = self.pack_at(e, first, names);
                body(e, &pack)
            });
        }
        let (base, beginning) = (e.loop_variable(), self.beginning(&format!("(idx){}", self.team.part())));
        if self.loaded.is_empty() {
            let header =
                format!("{UNROLLED}\nfor (idx {base} = {beginning}; {base} < {n_columns}; {base} += {stride})");
            return e.scope(ScopeKind::Divided, header, |e| {
                let pack = self.pack_at(e, base, Vec::new());
                body(e, &pack)
            });
        }
        let n_ahead = (REGISTERS_AHEAD / self.registers_of_pack.max(1)).clamp(1, MAX_AHEAD);
        let header = format!("for (idx {base} = {beginning}; {base} < {n_columns}; {base} += {})", n_ahead * stride);
        e.scope(ScopeKind::Divided, header, |e| {
            let arrays: Vec<String> = self.loaded.iter().map(|_| e.fresh("q")).collect();
            for ((_, stored), array) in self.loaded.iter().zip(&arrays) {
                e.line(format!("hlo::Pack<{stored}, {n_elems}> {array}[{n_ahead}];"));
            }
            let names = |round: Atom| arrays.iter().map(|array| format!("{array}[{round}]")).collect();
            self.each_round(e, (Some(base), n_ahead), &mut |e, round, first| {
                self.pack_at(e, first, names(round)).load(e);
                Ok(())
            })?;
            self.each_round(e, (Some(base), n_ahead), &mut |e, round, first| {
                let pack = self.pack_at(e, first, names(round));
                body(e, &pack)
            })
        })
    }

    /// Goes over the row's elements.
    pub(super) fn each_element(&self, e: &mut Emitter<'_>, body: ElementBody<'_>) -> Result<(), GpuError> {
        self.each_pack(e, &mut |e, pack| pack.each_element(e, body))
    }

    /// Elements of a pack.
    pub(super) fn n_elems(&self) -> i64 {
        self.n_elems
    }
}

impl PackAt<'_> {
    /// The number of the pack's element `k` among the thread's, where rounds are unrolled.
    pub(super) fn element_of_thread(&self, k: Atom) -> String {
        format!("{} * {} + {k}", self.round, self.walk.n_elems)
    }

    /// Writes accesses of the whole pack, or of its elements one by one.
    fn access(&self, e: &mut Emitter<'_>, what: &str, arrays: &[(String, String)]) {
        let walk = self.walk;
        let position = e.sum(walk.start, self.first);
        let (condition, elems) = match self.bounds {
            None => (walk.is_aligned.clone(), format!("{what}_elems(")),
            Some((low, high)) => {
                let is_whole = format!("{low} == 0 && {high} == {}", walk.n_elems);
                (format!("{} && {is_whole}", walk.is_aligned), format!("{what}_part("))
            }
        };
        let bounds = self.bounds.map_or(String::new(), |(low, high)| format!(", {low}, {high}"));
        either_way(e, &condition, &|how| {
            let (function, bounds) =
                if how == "pack" { (format!("{what}_pack("), "") } else { (elems.clone(), &*bounds) };
            let call = |(pack, pointer): &(String, String)| match what {
                "load" => format!("hlo::{function}{pack}, {pointer} + {position}{bounds});"),
                _ => format!("hlo::{function}{pointer} + {position}, {pack}{bounds});"),
            };
            arrays.iter().map(call).collect()
        });
    }

    /// Loads the operands' packs.
    fn load(&self, e: &mut Emitter<'_>) {
        let operands = self.walk.loaded.iter().zip(&self.names);
        let arrays: Vec<(String, String)> = operands.map(|((i, _), name)| (name.clone(), format!("p{i}"))).collect();
        self.access(e, "load", &arrays);
    }

    /// Writes packs of results, by number, where `condition` holds.
    pub(super) fn store(&self, e: &mut Emitter<'_>, packs: &[(usize, String)], condition: Option<&str>) {
        if let Some(condition) = condition {
            e.line(format!("if ({condition}) {{"));
        }
        let arrays: Vec<(String, String)> = packs.iter().map(|(i, name)| (name.clone(), format!("r{i}"))).collect();
        self.access(e, "store", &arrays);
        if condition.is_some() {
            e.line("}");
        }
    }

    /// Goes over the pack's elements.
    pub(super) fn each_element(&self, e: &mut Emitter<'_>, body: ElementBody<'_>) -> Result<(), GpuError> {
        let walk = self.walk;
        let k = e.loop_variable();
        let header = format!("#pragma unroll\nfor (idx {k} = 0; {k} < {}; ++{k})", walk.n_elems);
        e.scope(ScopeKind::Divided, header, |e| match self.bounds {
            None => self.element(e, k, body),
            Some((low, high)) => {
                let is_own = format!("if ({k} >= {low} && {k} < {high})");
                // A number of its own: what is computed of it is computed in here, where the element is the row's.
                e.scope(ScopeKind::Divided, is_own, |e| {
                    let depth = e.depth();
                    let k = e.bind(k.to_string(), depth);
                    self.element(e, k, body)
                })
            }
        })
    }

    fn element(&self, e: &mut Emitter<'_>, k: Atom, body: ElementBody<'_>) -> Result<(), GpuError> {
        let walk = self.walk;
        let column = e.sum(self.first, k);
        let columns = &walk.dims[walk.kept.len()..];
        let order: SmallVec<[usize; 4]> = (0..columns.len()).rev().collect();
        let tail = e.index_at(column, columns, &order);
        let index: Index = walk.kept.iter().chain(&tail).copied().collect();
        let position = e.sum(walk.start, column);
        let order: SmallVec<[usize; 4]> = (0..walk.dims.len()).rev().collect();
        e.know_position(&index, &walk.dims, &order, position);
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
    }
}

/// Packs that a thread takes of a row at most. One that is no whole number of packs may begin and end within one.
fn packs_of_thread(n_columns: i64, n_elems: i64, team: Team) -> i64 {
    let n_packs = if n_columns % n_elems == 0 { n_columns / n_elems } else { (n_columns + 2 * n_elems - 2) / n_elems };
    (n_packs + team.n_parts() - 1) / team.n_parts()
}

/// Whether an array has whole rows, one after the other.
pub(super) fn has_rows(shape: &ArrayShape, dims: &[i64]) -> bool {
    shape.dims[..] == *dims && shape.is_row_major()
}
