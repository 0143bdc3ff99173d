//! Sums of columns by teams of threads that have a row each.
//!
//! A thread has the same columns of each row, and a variable for the sum of each. A block has the rows of one part. Where each of its warps
//! has a row, these add up their sums in shared memory, in the order of their numbers.

use hlo_analysis::fusion::{ColumnSum, may_be_of_rows};
use hlo_ir::{InstId, Module};

use super::dtype::CType;
use super::emitter::{Argument, Atom, Emitter, FrameId, ScopeKind, Value};
use super::reduction::Reduced;
use super::row_walk::{PackAt, RowWalk, has_rows};
use super::team::Team;
use crate::GpuError;

/// Warps of a block, where each has a row.
const N_WARPS: i64 = 8;

/// The sums of columns of a kernel of rows: results, reductions, and what these are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowSums {
    sums: Vec<(usize, InstId, ColumnSum)>,
}

/// One sum, with its variables.
pub(super) struct KeptSum {
    result: usize,
    inst: InstId,
    source: InstId,
    reduced: Reduced,
    /// The value that changes nothing, and the array of a thread's sums.
    init: Value,
    array: String,
}

impl RowSums {
    /// Sums of rows of `dims` with so many columns; `None` if they are of other rows or parts.
    pub(super) fn new(
        module: &Module,
        sums: Vec<(usize, InstId, ColumnSum)>,
        dims: &[i64],
        n_columns: i64,
    ) -> Option<RowSums> {
        let &(_, _, first) = sums.first()?;
        let fits = |(_, _, sum): &(usize, InstId, ColumnSum)| {
            let is_row = module.shape(sum.source).as_array().is_some_and(|source| has_rows(source, dims));
            is_row && may_be_of_rows(module, sum) && sum.is_alike(&first) && sum.n_columns == n_columns
        };
        sums.iter().all(fits).then_some(RowSums { sums })
    }

    /// Parts that there are results for.
    pub(super) fn n_parts(&self) -> i64 {
        self.sums[0].2.n_parts
    }

    /// Rows of a part.
    pub(super) fn n_rows(&self) -> i64 {
        self.sums[0].2.n_rows
    }

    /// Sums that there are.
    pub(super) fn n_sums(&self) -> i64 {
        self.sums.len() as i64
    }

    /// Declares the variables of a part's sums.
    pub(super) fn start(&self, e: &mut Emitter<'_>, frame: FrameId, walk: &RowWalk) -> Result<Vec<KeptSum>, GpuError> {
        let mut kept = Vec::new();
        for &(result, inst, sum) in &self.sums {
            let comp = e.module.called(inst).first().copied();
            let reduced = Reduced::new(e, frame, inst, comp)?;
            let (Some(init), Some(ctype)) = (reduced.inits.first().cloned(), reduced.combiner.ctypes.first()) else {
                return Err(e.unsupported(inst, "expected an array to reduce"));
            };
            let (array, held, n) = (e.fresh("a"), ctype.held, walk.packs_of_thread() * walk.n_elems());
            e.line(format!("{held} {array}[{n}];"));
            e.line(format!("#pragma unroll\nfor (int i = 0; i < {n}; ++i) {array}[i] = {};", init.text));
            kept.push(KeptSum { result, inst, source: sum.source, reduced, init, array });
        }
        Ok(kept)
    }

    /// Writes a part's sums.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[Argument],
        (walk, team, part): (&RowWalk, Team, Atom),
        kept: &[KeptSum],
    ) -> Result<(), GpuError> {
        let ColumnSum { n_columns, .. } = self.sums[0].2;
        let start = e.affine(part, n_columns, 0);
        let table = e.fresh("s");
        if team == Team::Warp {
            // One table for all sums, one after the other: together they may be more than a block has.
            let bytes = kept.iter().map(|sum| results[sum.result].ctype.held_bytes()).max().unwrap_or(8) as i64;
            e.line(format!("__shared__ double {table}[{}];", N_WARPS * n_columns * bytes / 8));
        }
        for sum in kept {
            let ctype = results[sum.result].ctype;
            match team {
                Team::Thread | Team::Block(_) | Team::Column(_) => {
                    walk.each_pack_place(e, &mut |e, element, column| {
                        let value = ctype.to_stored(&ctype.rounded(&format!("{}[{element}]", sum.array)));
                        e.line(format!("r{}[{start} + {column}] = {value};", sum.result));
                    })?
                }
                Team::Warp => sum.join(e, frame, ctype, &table, (walk, start, n_columns))?,
            }
        }
        Ok(())
    }
}

impl KeptSum {
    /// Adds a row's element to the thread's sum of its column, where `is_own` holds.
    pub(super) fn add(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        pack: &PackAt<'_>,
        (k, index): (Atom, &[Atom]),
        is_own: Option<&str>,
    ) -> Result<(), GpuError> {
        let mut value = e.value(frame, self.source, 0, index)?;
        if let Some(is_own) = is_own {
            let held = self.reduced.combiner.ctypes[0].held;
            value = e.constant(held, &format!("{is_own} ? {} : {}", value.text, self.init.text));
        }
        let depth = e.depth();
        let own = Value { text: format!("{}[{}]", self.array, pack.element_of_thread(k)), depth };
        self.reduced.combiner.combine(e, &[own], &[value])
    }

    /// Adds up the sums of a block's warps and writes them.
    fn join(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        ctype: CType,
        table: &str,
        (walk, start, n_columns): (&RowWalk, Atom, i64),
    ) -> Result<(), GpuError> {
        let (n_threads, held, parts) = (Team::Warp.block(), ctype.held, e.fresh("s"));
        e.is_cooperative = true;
        e.line(format!("{held}* const {parts} = ({held}*){table};"));
        walk.each_pack_place(e, &mut |e, element, column| {
            e.line(format!("{parts}[{} * {n_columns} + {column}] = {}[{element}];", Team::Warp.element(), self.array));
        })?;
        e.line("__syncthreads();");
        let column = e.loop_variable();
        let header = format!("for (idx {column} = threadIdx.x; {column} < {n_columns}; {column} += {n_threads})");
        e.scope(ScopeKind::Divided, header, |e| {
            let total = e.variable(held, &format!("{parts}[{column}]"));
            let total = std::slice::from_ref(&total);
            e.scope(ScopeKind::Loop, format!("for (int part = 1; part < {N_WARPS}; ++part)"), |e| {
                let other = e.constant(held, &format!("{parts}[part * {n_columns} + {column}]"));
                self.reduced.combiner.combine(e, total, &[other])
            })?;
            let value = self.reduced.combiner.finish(e, frame, self.inst, 0, &[column], total)?;
            e.line(format!("r{}[{start} + {column}] = {};", self.result, ctype.exact_stored(&value.text)));
            Ok(())
        })?;
        e.line("__syncthreads();");
        Ok(())
    }
}
