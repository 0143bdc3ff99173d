//! `scatter` of whole rows without atomics. Each block owns some rows, each of its threads some columns of these.
//!
//! 1. The block's threads look at all index vectors, a thousand at a time, and put those that hit the block's rows into a
//!    list in shared memory, in the order of the index vectors.
//! 2. When the list is nearly full, and at the end, the threads go through the block's rows. They load a row, add its
//!    updates in the order of the list, and store it. The first time the operand's row is loaded, later the result's: then, and where
//!    the result lies where the operand lies, rows without updates stay as they are.
//!
//! So every order of additions is that of the index vectors, and where the list suffices once, each row is read and written
//! once.

use hlo_ir::{InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::emitter::{Argument, Atom, Binding, Emitter, FrameId, Index, ScopeKind, Value};
use super::group::{BlockRange, ResultGroup};
use super::indexing::ScatterParts;
use super::reduction::Combiner;
use crate::GpuError;

/// Index vectors that a block looks at in one round; also threads of the largest block.
const ROUND: u32 = 1024;
/// Updates that the list holds: more than a round, so that it is seldom full.
const CAPACITY: u32 = 2 * ROUND;
/// Blocks that own rows at most: each looks at all index vectors.
const MAX_BLOCKS: u64 = 1024;
/// Updates of a row that are loaded at once.
const N_HITS: usize = 4;
/// Bytes of a row that a thread loads at once, and elements at most.
const BYTES_AT_ONCE: i64 = 16;
const MAX_AT_ONCE: i64 = 8;

/// How rows and columns are dealt out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ScatterRows {
    scatter: InstId,
    /// Operand dims that index vectors name, the fastest first.
    row_dims: SmallVec<[usize; 4]>,
    /// The others.
    column_dims: SmallVec<[usize; 4]>,
    n_rows: i64,
    n_columns: i64,
    /// Threads along a row; the block's other threads take other rows.
    lanes: i64,
    /// The arguments that the operands are, if all are.
    arguments: Option<SmallVec<[usize; 2]>>,
}

/// A group that is a scatter whose windows are whole rows.
pub(super) fn choose(module: &Module, signature: &Signature, group: &ResultGroup) -> Option<ScatterRows> {
    let (inst, _) = *group.sources.first()?;
    let is_scatter = module.inst(inst).opcode == Opcode::Scatter && !signature.bindings.contains_key(&inst);
    if !is_scatter || !group.is_one_layout || !group.sources.iter().enumerate().all(|(i, s)| *s == (inst, i)) {
        return None;
    }
    let hlo_ir::attrs::Attrs::Scatter(attrs) = &module.inst(inst).attrs else { return None };
    let n = module.inst(inst).operands.len() / 2;
    let shape = module.shape(*module.inst(inst).operands.first()?).as_array()?;
    let updates = module.shape(*module.inst(inst).operands.get(n + 1)?).as_array()?;
    let is_row = |dim: usize| attrs.scatter_dims_to_operand_dims.contains(&(dim as i64));
    let rows_are_points =
        (0..shape.rank()).all(|dim| is_row(dim) == attrs.inserted_window_dims.contains(&(dim as i64)));
    let column_dims = (0..shape.rank()).filter(|&dim| !is_row(dim));
    let windows_are_whole =
        column_dims.zip(&attrs.update_window_dims).all(|(dim, &d)| shape.dims[dim] == updates.dims[d as usize]);
    if !rows_are_points || !windows_are_whole || !attrs.input_batching_dims.is_empty() || group.sources.len() != n {
        return None;
    }
    let order = signature.results[group.results[0]].shape.physical_order();
    let row_dims: SmallVec<[usize; 4]> = order.iter().copied().filter(|&dim| is_row(dim)).collect();
    let column_dims: SmallVec<[usize; 4]> = order.into_iter().filter(|&dim| !is_row(dim)).collect();
    let n_rows = row_dims.iter().map(|&dim| shape.dims[dim]).product();
    let n_columns: i64 = column_dims.iter().map(|&dim| shape.dims[dim]).product();
    let lanes = (n_columns.max(1) as u64).next_power_of_two().min(256) as i64;
    let argument = |operand: &InstId| match signature.bindings.get(operand)? {
        Binding::Arguments(argument) => Some(*argument),
        Binding::Outer(..) | Binding::Scalar(_) => None,
    };
    let arguments = module.inst(inst).operands.iter().take(n).map(argument).collect();
    Some(ScatterRows { scatter: inst, row_dims, column_dims, n_rows, n_columns, lanes, arguments })
}

impl ScatterRows {
    /// Blocks in which every row has a thread.
    pub(super) fn n_blocks(&self, block: u32) -> u64 {
        (self.n_rows.max(0) as u64).div_ceil(self.rows_at_once(block) as u64).clamp(1, MAX_BLOCKS)
    }

    /// Rows that a block's threads work on at the same time.
    fn rows_at_once(&self, block: u32) -> i64 {
        (i64::from(block) / self.lanes).max(1)
    }

    /// Writes the search for updates and the loop over the rows.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[(usize, &Argument)],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let parts = ScatterParts::new(e, self.scatter)?;
        let comp = parts.attrs.to_apply;
        let comp = comp.ok_or_else(|| e.unsupported(self.scatter, "expected a computation to combine by"))?;
        let dtypes: Vec<_> = results.iter().map(|(_, argument)| argument.shape.dtype).collect();
        let combiner = Combiner::new(e, comp, &dtypes);
        let depth = e.depth();
        let rows_at_once = self.rows_at_once(blocks.block);
        let lane = e.bind(format!("(idx)threadIdx.x % {}", self.lanes), depth);
        let number = blocks.block_number();
        let owner = e.bind(format!("{number} * {rows_at_once} + (idx)threadIdx.x / {}", self.lanes), depth);
        let sizes: SmallVec<[i64; 4]> = parts.batch_dims.iter().map(|&dim| parts.update_shape.dims[dim]).collect();
        let n_updates: i64 = sizes.iter().product();
        let n_owners = rows_at_once * i64::from(blocks.n_blocks);
        let list = List { items: e.fresh("s"), rows: e.fresh("s"), length: e.fresh("n") };
        let is_first = e.variable("bool", &self.has_other_memory(results));
        let update =
            Update { rows: self, parts: &parts, combiner: &combiner, results, frame, sizes: &sizes, list: &list };
        let owned = Owned { lane, owner, n_owners, is_first: &is_first.text };
        e.is_cooperative = true;
        let (items, rows, length) = (&list.items, &list.rows, &list.length);
        e.line(format!("__shared__ idx {items}[{CAPACITY}], {rows}[{CAPACITY}];\nint {length} = 0;"));
        if n_updates == 0 {
            return update.write(e, &owned);
        }
        let n_warps = (blocks.block / 32).max(1);
        let n_slots = (ROUND / blocks.block.max(1)).max(1);
        let counts = e.fresh("s");
        e.line(format!("__shared__ int {counts}[{}];", 2 * n_warps));
        let base = e.loop_variable();
        let round = n_slots * blocks.block;
        let header = format!("for (idx {base} = 0; {base} < {n_updates}; {base} += {round})");
        e.scope(ScopeKind::Loop, header, |e| {
            let (hits, targets) = (e.fresh("h"), e.fresh("h"));
            e.line(format!("bool {hits}[{n_slots}];\nidx {targets}[{n_slots}];\n#pragma unroll"));
            let slot = e.loop_variable();
            e.scope(ScopeKind::Loop, format!("for (int {slot} = 0; {slot} < {n_slots}; ++{slot})"), |e| {
                let depth = e.depth();
                // A warp takes neighbours.
                let thread = format!("(idx)(threadIdx.x / 32 * {} + threadIdx.x % 32)", 32 * n_slots);
                let own = e.bind(format!("{base} + {thread} + {slot} * 32"), depth);
                // Threads beyond the end go along.
                let i = e.bind(format!("{own} < {n_updates} ? {own} : {}", n_updates - 1), depth);
                let batch = update.batch(e, i);
                let row = self.target(e, frame, &parts, &batch)?;
                let is_own = format!("{row} % {n_owners} / {rows_at_once} == {number}");
                e.line(format!("{hits}[{slot}] = {own} < {n_updates} && {row} >= 0 && {is_own};"));
                e.line(format!("{targets}[{slot}] = {row};"));
                Ok(())
            })?;
            e.line(format!(
                "{length} = hlo::append_in_order<{n_slots}, {n_warps}>({hits}, {targets}, {base}, {items}, {rows}, \
                 {counts} + {base} / {round} % 2 * {n_warps}, {length});"
            ));
            let is_due = format!("{length} > {} || {base} + {round} >= {n_updates}", CAPACITY - round);
            e.branch(&is_due, |e| {
                e.line("__syncthreads();");
                update.write(e, &owned)?;
                e.line(format!("__syncthreads();\n{length} = 0;\n{} = false;", is_first.text));
                Ok(())
            })
        })
    }

    /// A condition of the kernel: a result lies elsewhere than its operand.
    fn has_other_memory(&self, results: &[(usize, &Argument)]) -> String {
        let Some(arguments) = &self.arguments else { return "true".to_string() };
        let pairs = arguments.iter().zip(results);
        let tests: Vec<String> = pairs
            .map(|(argument, (result, _))| format!("(const void*)p{argument} != (const void*)r{result}"))
            .collect();
        tests.join(" || ")
    }

    /// The function of the prelude for this many threads along a row: those of a warp that work on one row search together.
    fn search(&self, name: &str) -> String {
        if self.lanes >= 32 { format!("hlo::{name}_of_warp") } else { format!("hlo::{name}") }
    }

    /// The row that the index vector at `batch` names, or -1.
    fn target(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        parts: &ScatterParts<'_>,
        batch: &[Atom],
    ) -> Result<Atom, GpuError> {
        let (mut conditions, mut terms, mut depth) = (Vec::new(), Vec::new(), 0);
        let mut stride = 1i64;
        for &dim in &self.row_dims {
            let n = parts.shape.dims[dim];
            let k = parts.attrs.scatter_dims_to_operand_dims.iter().position(|&d| d as usize == dim);
            let k = k.ok_or_else(|| e.unsupported(self.scatter, "expected a component for each row dim"))?;
            let start = parts.start(e, frame, batch, k)?;
            conditions.push(format!("{0} >= 0 && {0} < {n}", start.text));
            terms.push(format!("{} * {stride}", start.text));
            depth = depth.max(start.depth);
            stride = stride.saturating_mul(n);
        }
        if terms.is_empty() {
            return Ok(Atom::Const(0));
        }
        Ok(e.bind(format!("({}) ? (idx)({}) : -1", conditions.join(" && "), terms.join(" + ")), depth))
    }

    fn index(&self, e: &mut Emitter<'_>, row: Atom, column: Atom, dims: &[i64]) -> Index {
        let mut index: Index = SmallVec::from_elem(Atom::Const(0), dims.len());
        for (linear, list) in [(row, &self.row_dims), (column, &self.column_dims)] {
            let sizes: SmallVec<[i64; 4]> = list.iter().map(|&dim| dims[dim]).collect();
            let order: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
            let found = e.index_at(linear, &sizes, &order);
            for (&dim, &atom) in list.iter().zip(&found) {
                index[dim] = atom;
            }
        }
        index
    }
}

/// The list of updates in shared memory: names of its arrays and of its length.
struct List {
    /// Which update: the position of its index vector.
    items: String,
    /// Which row.
    rows: String,
    length: String,
}

/// What a thread owns.
struct Owned<'a> {
    /// The first column of each tile, and the first row.
    lane: Atom,
    owner: Atom,
    /// From one of its rows to the next.
    n_owners: i64,
    /// The variable that says whether the operand's rows are still to be loaded.
    is_first: &'a str,
}

/// How rows take the updates of the list.
struct Update<'a, 'm> {
    rows: &'a ScatterRows,
    parts: &'a ScatterParts<'m>,
    combiner: &'a Combiner,
    results: &'a [(usize, &'a Argument)],
    frame: FrameId,
    /// Sizes of the updates' batch dims.
    sizes: &'a [i64],
    list: &'a List,
}

/// Some columns of a row: their index, which threads have them, and an accumulator for each result.
struct Column {
    index: Index,
    guard: Option<String>,
    accumulators: Vec<Value>,
}

impl Update<'_, '_> {
    /// The index of the update at a position.
    fn batch(&self, e: &mut Emitter<'_>, i: Atom) -> Index {
        let order: SmallVec<[usize; 4]> = (0..self.sizes.len()).rev().collect();
        e.index_at(i, self.sizes, &order)
    }

    /// Writes the loop over a thread's rows and columns.
    fn write(&self, e: &mut Emitter<'_>, owned: &Owned<'_>) -> Result<(), GpuError> {
        let (lanes, n_columns) = (self.rows.lanes, self.rows.n_columns);
        let widest = self.results.iter().map(|(_, argument)| argument.ctype.size_bytes() as i64).max().unwrap_or(1);
        let most = (BYTES_AT_ONCE / widest).min(MAX_AT_ONCE / self.results.len().max(1) as i64).max(1);
        let at_once = ((n_columns.max(1) as u64).div_ceil(lanes as u64) as i64).min(most);
        let row = e.loop_variable();
        let header =
            format!("for (idx {row} = {}; {row} < {}; {row} += {})", owned.owner, self.rows.n_rows, owned.n_owners);
        let (has_hit, List { rows, length, .. }) = (self.rows.search("has_hit"), self.list);
        e.scope(ScopeKind::Loop, header, |e| {
            e.line(format!("if (!{} && !{has_hit}({rows}, {length}, {row})) continue;", owned.is_first));
            let tile = e.loop_variable();
            let header = format!("for (idx {tile} = 0; {tile} < {n_columns}; {tile} += {})", lanes * at_once);
            e.scope(ScopeKind::Loop, header, |e| {
                let first = e.sum(tile, owned.lane);
                let mut columns = Vec::new();
                for k in 0..at_once {
                    let column = e.affine(first, 1, k * lanes);
                    let index = self.rows.index(e, row, column, &self.parts.shape.dims);
                    let guard = (n_columns % (lanes * at_once) != 0).then(|| format!("{column} < {n_columns}"));
                    let held = self.results.iter().map(|(_, argument)| argument.ctype.held);
                    let accumulators = held.map(|held| e.variable(held, &format!("{held}()"))).collect();
                    columns.push(Column { index, guard, accumulators });
                }
                self.load_rows(e, &columns, owned.is_first)?;
                self.add_updates(e, row, &columns)?;
                self.store_rows(e, &columns)
            })
        })
    }

    fn load_rows(&self, e: &mut Emitter<'_>, columns: &[Column], is_first: &str) -> Result<(), GpuError> {
        e.branch(is_first, |e| {
            columns.iter().try_for_each(|column| {
                guarded(e, column.guard.iter(), |e| {
                    for (&operand, accumulator) in self.parts.operands.iter().zip(&column.accumulators) {
                        let value = e.value(self.frame, operand, 0, &column.index)?;
                        e.line(format!("{} = {};", accumulator.text, value.text));
                    }
                    Ok(())
                })
            })
        })?;
        e.branch(&format!("!{is_first}"), |e| {
            columns.iter().try_for_each(|column| {
                guarded(e, column.guard.iter(), |e| {
                    for ((slot, argument), accumulator) in self.slots(e, column).iter().zip(&column.accumulators) {
                        e.line(format!("{} = {};", accumulator.text, argument.ctype.loaded(slot)));
                    }
                    Ok(())
                })
            })
        })
    }

    /// The row's updates in the order of the list, a few at a time.
    fn add_updates(&self, e: &mut Emitter<'_>, row: Atom, columns: &[Column]) -> Result<(), GpuError> {
        let (next, mask, hits, found) = (e.fresh("n"), e.fresh("n"), e.fresh("h"), e.fresh("n"));
        let List { items, rows, length } = self.list;
        let how = self.rows.search("find_hits");
        e.line(format!("int {next} = 0;\nhlo::u32 {mask} = 0;"));
        e.scope(ScopeKind::Loop, "for (;;)".to_string(), |e| {
            e.line(format!("idx {hits}[{N_HITS}];"));
            e.line(format!(
                "const int {found} = {how}<{N_HITS}>({items}, {rows}, {length}, {row}, {next}, {mask}, {hits});"
            ));
            e.line(format!("if ({found} == 0) break;"));
            let mut loaded: Vec<Vec<Value>> = Vec::new();
            for hit in 0..N_HITS {
                let depth = e.depth();
                let item = e.bind(format!("{hits}[{hit}]"), depth);
                let batch = self.batch(e, item);
                for column in columns {
                    let held = self.results.iter().map(|(_, argument)| argument.ctype.held);
                    let values: Vec<Value> = held.map(|held| e.variable(held, &format!("{held}()"))).collect();
                    let is_found = format!("{hit} < {found}");
                    guarded(e, std::iter::once(&is_found).chain(&column.guard), |e| {
                        let index = self.update_index(&batch, &column.index);
                        for (&update, value) in self.parts.updates.iter().zip(&values) {
                            let element = e.value(self.frame, update, 0, &index)?;
                            e.line(format!("{} = {};", value.text, element.text));
                        }
                        Ok(())
                    })?;
                    loaded.push(values);
                }
            }
            for (hit, values) in loaded.chunks(columns.len().max(1)).enumerate() {
                e.branch(&format!("{hit} < {found}"), |e| {
                    columns
                        .iter()
                        .zip(values)
                        .try_for_each(|(column, values)| self.combiner.combine_rounded(e, &column.accumulators, values))
                })?;
            }
            Ok(())
        })
    }

    fn update_index(&self, batch: &[Atom], index: &[Atom]) -> Index {
        let mut update: Index = SmallVec::from_elem(Atom::Const(0), self.parts.update_shape.rank());
        for (&dim, &atom) in self.parts.batch_dims.iter().zip(batch) {
            update[dim] = atom;
        }
        for (&dim, &update_dim) in self.parts.window_dims.iter().zip(&self.parts.attrs.update_window_dims) {
            update[update_dim as usize] = index[dim];
        }
        update
    }

    fn store_rows(&self, e: &mut Emitter<'_>, columns: &[Column]) -> Result<(), GpuError> {
        columns.iter().try_for_each(|column| {
            guarded(e, column.guard.iter(), |e| {
                for ((slot, argument), accumulator) in self.slots(e, column).iter().zip(&column.accumulators) {
                    e.line(format!("{slot} = {};", argument.ctype.exact_stored(&accumulator.text)));
                }
                Ok(())
            })
        })
    }

    /// Where each result has a column's element.
    fn slots(&self, e: &mut Emitter<'_>, column: &Column) -> Vec<(String, &Argument)> {
        let mut slots = Vec::new();
        for &(result, argument) in self.results {
            let at = e.position(&column.index, &argument.shape.dims, &argument.shape.physical_order());
            slots.push((format!("r{result}[{at}]"), argument));
        }
        slots
    }
}

/// Runs `body` under all conditions; without a branch if there is none.
fn guarded<'c, 'm>(
    e: &mut Emitter<'m>,
    conditions: impl Iterator<Item = &'c String>,
    body: impl FnOnce(&mut Emitter<'m>) -> Result<(), GpuError>,
) -> Result<(), GpuError> {
    let conditions: Vec<&str> = conditions.map(String::as_str).collect();
    if conditions.is_empty() { body(e) } else { e.branch(&conditions.join(" && "), body) }
}
