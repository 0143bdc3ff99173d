//! Sums of columns that threads keep in registers, an array of variables for each, and add up in shared memory.

use hlo_ir::InstId;
use std::fmt::Display;

use super::dtype::CType;
use super::emitter::{Argument, Atom, Emitter, FrameId, ScopeKind, Value};
use super::group::ResultSum;
use super::reduction::Reduced;
use crate::GpuError;

/// One sum, with its variables.
pub(super) struct KeptSum {
    pub result: usize,
    inst: InstId,
    pub source: InstId,
    reduced: Reduced,
    /// The value that changes nothing, and the array of a thread's sums.
    init: Value,
    pub array: String,
}

/// Sums in shared memory: so many rows of so many columns, to be added up.
pub(super) struct Parts<'a> {
    pub table: &'a str,
    pub n_rows: i64,
    pub n_columns: i64,
}

/// Where the sum of a column goes: a position in the result, and what must hold if it is not always written.
pub(super) struct SumPlace {
    pub at: String,
    pub condition: Option<String>,
}

impl KeptSum {
    /// Declares the `n` sums of a thread: of a result, its reduction, and what this is.
    pub(super) fn start(
        e: &mut Emitter<'_>,
        frame: FrameId,
        (result, inst, sum): ResultSum,
        n: i64,
    ) -> Result<KeptSum, GpuError> {
        let comp = e.module.called(inst).first().copied();
        let reduced = Reduced::new(e, frame, inst, comp)?;
        let (Some(init), Some(ctype)) = (reduced.inits.first().cloned(), reduced.combiner.ctypes.first()) else {
            return Err(e.unsupported(inst, "expected an array to reduce"));
        };
        let (array, held) = (e.fresh("a"), ctype.held);
        e.line(format!("{held} {array}[{n}];"));
        e.line(format!("#pragma unroll\nfor (int i = 0; i < {n}; ++i) {array}[i] = {};", init.text));
        Ok(KeptSum { result, inst, source: sum.source, reduced, init, array })
    }

    /// Adds an element of the source to one of the thread's sums, where `is_own` holds.
    pub(super) fn add(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        (element, index): (impl Display, &[Atom]),
        is_own: Option<&str>,
    ) -> Result<(), GpuError> {
        let mut value = e.value(frame, self.source, 0, index)?;
        if let Some(is_own) = is_own {
            let held = self.reduced.combiner.ctypes[0].held;
            value = e.constant(held, &format!("{is_own} ? {} : {}", value.text, self.init.text));
        }
        let depth = e.depth();
        let own = Value { text: format!("{}[{element}]", self.array), depth };
        self.reduced.combiner.combine(e, &[own], &[value])
    }

    /// Declares a table of shared memory that holds the parts of any one of these sums.
    pub(super) fn declare_table(
        e: &mut Emitter<'_>,
        kept: &[KeptSum],
        results: &[Argument],
        (n_rows, n_columns): (i64, i64),
    ) -> String {
        let table = e.fresh("s");
        let bytes = kept.iter().map(|sum| results[sum.result].ctype.held_bytes()).max().unwrap_or(8) as i64;
        e.line(format!("__shared__ double {table}[{}];", (n_rows * n_columns * bytes + 7) / 8));
        table
    }

    /// Adds up parts in their order and writes them. `enter` writes the parts; `place` gives where the sum of a column goes.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        (ctype, n_threads): (CType, u32),
        Parts { table, n_rows, n_columns }: Parts<'_>,
        enter: &mut dyn FnMut(&mut Emitter<'_>, &str) -> Result<(), GpuError>,
        place: &dyn Fn(&mut Emitter<'_>, Atom) -> SumPlace,
    ) -> Result<(), GpuError> {
        let (held, parts) = (ctype.held, e.fresh("s"));
        e.is_cooperative = true;
        e.line(format!("{held}* const {parts} = ({held}*){table};"));
        enter(e, &parts)?;
        e.line("__syncthreads();");
        let column = e.loop_variable();
        let header = format!("for (idx {column} = threadIdx.x; {column} < {n_columns}; {column} += {n_threads})");
        e.scope(ScopeKind::Divided, header, |e| {
            let total = e.variable(held, &format!("{parts}[{column}]"));
            let total = std::slice::from_ref(&total);
            e.scope(ScopeKind::Loop, format!("for (int part = 1; part < {n_rows}; ++part)"), |e| {
                let other = e.constant(held, &format!("{parts}[part * {n_columns} + {column}]"));
                self.reduced.combiner.combine(e, total, &[other])
            })?;
            let value = self.reduced.combiner.finish(e, frame, self.inst, 0, &[column], total)?;
            let SumPlace { at, condition } = place(e, column);
            let guard = condition.map_or(String::new(), |condition| format!("if ({condition}) "));
            e.line(format!("{guard}r{}[{at}] = {};", self.result, ctype.exact_stored(&value.text)));
            Ok(())
        })?;
        e.line("__syncthreads();");
        Ok(())
    }
}
