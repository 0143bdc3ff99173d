//! Sums of columns by the threads that compute what is summed.
//!
//! A block has 32 lanes of columns and the rows of one part. Its threads go down the rows, [`ROWS`] of them at a time, compute and write
//! the elements, and keep the sums; at the end they join these in shared memory. The order of the additions is fixed.

use hlo_analysis::fusion::{COLUMNS_OF_BLOCK, ColumnSum, n_column_dims};
use hlo_ir::{ArrayShape, InstId, Module};
use smallvec::SmallVec;

use super::Signature;
use super::contraction::LOOPS;
use super::emitter::{Argument, Atom, Binding, Emitter, FrameId, Index, Preloaded, ScopeKind, Value};
use super::group::{BlockRange, ResultGroup, ResultSum, either_way};
use super::reach::Reach;
use super::reduction::Reduced;
use super::team::Team;
use super::team_join;
use crate::GpuError;

/// Rows that a block's threads have at a time.
const ROWS: u32 = 8;
/// The team of a column.
pub(super) const TEAM: Team = Team::Column(ROWS);
/// Blocks of a launch, below which lanes take one column each.
const MIN_BLOCKS: i64 = 512;
/// Registers that loads take which go ahead of their use, and the rows of a thread that these are at most.
const REGISTERS_AHEAD: i64 = 32;
const MAX_AHEAD: i64 = 4;

/// How columns are dealt out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ColumnTeam {
    /// What is written whole, and the sums, by the numbers of the results.
    pub whole: Vec<usize>,
    sums: Vec<ResultSum>,
    /// The shape of all that is written whole or summed.
    shape: ArrayShape,
    /// Operands that are read at the elements that are written.
    loaded: Vec<(usize, InstId)>,
    /// Neighbours that a lane takes.
    width: i64,
}

/// The columns of a kernel that gives whole arrays of one shape and sums of columns of arrays that it computes.
pub(super) fn choose(module: &Module, reach: &Reach, signature: &Signature) -> Option<ColumnTeam> {
    let (whole, sums) = reach.whole_and_sums(module, &signature.bindings);
    let (&first, &(_, _, sum)) = (whole.first()?, sums.first()?);
    let is_sum = |inst: &InstId| signature.bindings.contains_key(inst) || sums.iter().any(|(_, own, _)| own == inst);
    let mut all = reach.roots.iter().flat_map(|root| &root.all);
    if all.any(|inst| LOOPS.contains(&module.inst(*inst).opcode) && !is_sum(inst)) {
        return None; // each element would compute them anew
    }
    let shape = signature.results[first].shape.clone();
    let is_own = |other: &ArrayShape| other.dims == shape.dims && other.is_same_order(&shape);
    let is_alike = |other: &ColumnSum| {
        let source = module.shape(other.source).as_array();
        other.is_alike(&sum) && source.is_some_and(is_own)
    };
    if !whole.iter().all(|&i| is_own(&signature.results[i].shape)) || !sums.iter().all(|(_, _, sum)| is_alike(sum)) {
        return None;
    }
    n_column_dims(&shape, sum.n_columns)?;
    let mut loaded: Vec<(usize, InstId)> = Vec::new();
    let at_elements = reach.with_sources(module, &signature.bindings, &sums);
    for inst in at_elements.roots.iter().flat_map(|root| root.in_place.iter().copied()) {
        if let Some(Binding::Arguments(argument)) = signature.bindings.get(&inst)
            && module.shape(inst).as_array().is_some_and(is_own)
            && !loaded.iter().any(|(known, _)| known == argument)
        {
            loaded.push((*argument, inst));
        }
    }
    loaded.sort();
    // A lane accesses 4 bytes of the widest array at least, where that leaves enough blocks.
    let read = loaded.iter().map(|&(argument, _)| signature.operands[argument].ctype.size_bytes());
    let widest = read.chain(whole.iter().map(|&i| signature.results[i].ctype.size_bytes())).max().unwrap_or(4) as i64;
    let fits = |n: &i64| {
        n * widest <= 4 && sum.n_columns % n == 0 && sum.n_parts * sum.n_columns >= n * COLUMNS_OF_BLOCK * MIN_BLOCKS
    };
    let width = [4, 2].into_iter().find(fits).unwrap_or(1);
    Some(ColumnTeam { whole, sums, shape, loaded, width })
}

impl ColumnTeam {
    /// The sums among the results.
    pub(super) fn sums(&self) -> &[ResultSum] {
        &self.sums
    }

    fn sum(&self) -> ColumnSum {
        self.sums[0].2
    }

    /// Elements of each array that is written whole.
    pub(super) fn n_elems(&self) -> i64 {
        self.sum().n_elems()
    }

    fn tiles_of_part(&self) -> i64 {
        let columns = COLUMNS_OF_BLOCK * self.width;
        (self.sum().n_columns + columns - 1) / columns
    }

    /// Tiles of columns of a part.
    pub(super) fn n_tiles(&self) -> i64 {
        self.sum().n_parts * self.tiles_of_part()
    }

    /// Writes the loop over the tiles of the blocks.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let ColumnSum { n_rows, n_columns, .. } = self.sum();
        let (of_part, width) = (self.tiles_of_part(), self.width);
        let tile = e.loop_variable();
        let header = blocks.loop_header(tile, self.n_tiles());
        let is_aligned = self.alignment(e, results);
        e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let (part, of_columns) = e.divide(tile, of_part);
            let lanes = COLUMNS_OF_BLOCK * width;
            let mine = e.bind(format!("{of_columns} * {lanes} + (idx){} * {width}", TEAM.element()), depth);
            let is_even = n_columns % lanes == 0;
            // Lanes beyond the end go along, for those that wait for them.
            let last = n_columns - width;
            let column = if is_even { mine } else { e.bind(format!("{mine} < {n_columns} ? {mine} : {last}"), depth) };
            let is_own = (!is_even).then(|| format!("{mine} < {n_columns}"));
            let mut accumulators: Vec<(Reduced, Vec<Vec<Value>>)> = Vec::new();
            for &(_, inst, _) in &self.sums {
                let comp = e.module.called(inst).first().copied();
                let reduced = Reduced::new(e, frame, inst, comp)?;
                let of_lane = (0..width).map(|_| reduced.combiner.start(e, &reduced.inits)).collect();
                accumulators.push((reduced, of_lane));
            }
            let first_row = e.affine(part, n_rows, 0);
            let at = Tile { column, first_row, is_aligned: is_aligned.clone(), is_own: is_own.clone() };
            self.write_rows(e, frame, group, results, &at, &accumulators)?;
            self.write_sums(e, frame, results, (part, column, is_own), &accumulators)
        })
    }

    /// A condition of the kernel: all arrays of whole results lie at multiples of what a lane takes.
    fn alignment(&self, e: &mut Emitter<'_>, results: &[Argument]) -> String {
        let read = self.loaded.iter().map(|&(i, _)| (format!("p{i}"), e.arguments[i].ctype.stored));
        let written = self.whole.iter().map(|&i| (format!("r{i}"), results[i].ctype.stored));
        let test = |(at, stored): (String, &str)| format!("hlo::is_aligned<{stored}, {}>({at})", self.width);
        let tests: Vec<String> = read.chain(written).map(test).collect();
        e.constant("bool", &tests.join(" && ")).text
    }

    fn write_rows(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        tile: &Tile,
        accumulators: &[(Reduced, Vec<Vec<Value>>)],
    ) -> Result<(), GpuError> {
        let (n_rows, n_columns, width) = (self.sum().n_rows, self.sum().n_columns, self.width);
        let read: Vec<(usize, &'static str)> =
            self.loaded.iter().map(|&(i, _)| (i, e.arguments[i].ctype.stored)).collect();
        let bytes = self.loaded.iter().map(|&(i, _)| e.arguments[i].ctype.size_bytes() as i64 * width);
        let registers: i64 = bytes.map(|bytes| (bytes + 3) / 4).sum();
        let rows = i64::from(ROWS);
        let rounds = (n_rows + rows - 1) / rows;
        let n_ahead = (REGISTERS_AHEAD / registers.max(1)).clamp(1, MAX_AHEAD).min(rounds);
        let base = e.loop_variable();
        let step = rows * n_ahead;
        let header = format!("for (idx {base} = (idx){}; {base} < {n_rows}; {base} += {step})", TEAM.part());
        e.scope(ScopeKind::Divided, header, |e| {
            for (i, stored) in &read {
                e.line(format!("hlo::Pack<{stored}, {width}> q{i}[{n_ahead}];"));
            }
            // Loads go ahead: a result may lie where an operand lies, so that the compiler keeps loads behind stores.
            let each =
                |e: &mut Emitter<'_>, body: &mut dyn FnMut(&mut Emitter<'_>, Atom, Atom) -> Result<(), GpuError>| {
                    let round = e.loop_variable();
                    let header = format!("#pragma unroll\nfor (idx {round} = 0; {round} < {n_ahead}; ++{round})");
                    e.scope(ScopeKind::Divided, header, |e| {
                        let depth = e.depth();
                        let row = e.bind(format!("{base} + {round} * {rows}"), depth);
                        if n_rows % step == 0 {
                            return body(e, round, row);
                        }
                        e.scope(ScopeKind::Divided, format!("if ({row} < {n_rows})"), |e| {
                            let depth = e.depth();
                            let row = e.bind(row.to_string(), depth);
                            body(e, round, row)
                        })
                    })
                };
            if !read.is_empty() {
                each(e, &mut |e, round, row| {
                    let row = e.sum(tile.first_row, row);
                    let depth = e.depth();
                    let at = e.bind(format!("{row} * {n_columns} + {}", tile.column), depth);
                    either_way(e, &tile.is_aligned, &|how| {
                        read.iter().map(|(i, _)| format!("hlo::load_{how}(q{i}[{round}], p{i} + {at});")).collect()
                    });
                    Ok(())
                })?;
            }
            each(e, &mut |e, round, row| {
                let row = e.sum(tile.first_row, row);
                self.write_row(e, frame, group, results, (tile, round, row), accumulators)
            })
        })
    }

    /// The elements of one thread in one row.
    fn write_row(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        (tile, round, row): (&Tile, Atom, Atom),
        accumulators: &[(Reduced, Vec<Vec<Value>>)],
    ) -> Result<(), GpuError> {
        let (whole, width, n_columns) = (group.only(&self.whole), self.width, self.sum().n_columns);
        for &result in &self.whole {
            e.line(format!("hlo::Pack<{}, {width}> w{result};", results[result].ctype.stored));
        }
        let depth = e.depth();
        let first = e.bind(format!("{row} * {n_columns} + {}", tile.column), depth);
        for k in 0..width {
            let column = e.affine(tile.column, 1, k);
            let index = self.index(e, row, column);
            let position = e.affine(first, 1, k);
            e.know_position(&index, &self.shape.dims, &self.shape.physical_order(), position);
            e.preloaded = self
                .loaded
                .iter()
                .map(|&(argument, _)| Preloaded {
                    argument,
                    linear: position,
                    text: format!("q{argument}[{round}].elems[{k}]"),
                })
                .collect();
            let stores = whole.values_at(e, frame, results, &index)?;
            for ((reduced, of_lane), (_, _, sum)) in accumulators.iter().zip(&self.sums) {
                let value = e.value(frame, sum.source, 0, &index)?;
                reduced.combiner.combine(e, &of_lane[k as usize], &[value])?;
            }
            stores.iter().for_each(|(result, _, value)| e.line(format!("w{result}.elems[{k}] = {value};")));
            e.preloaded.clear();
        }
        let guard = tile.is_own.as_ref().map_or(String::new(), |is_own| format!("if ({is_own}) "));
        either_way(e, &tile.is_aligned, &|how| {
            self.whole.iter().map(|i| format!("{guard}hlo::store_{how}(r{i} + {first}, w{i});")).collect()
        });
        Ok(())
    }

    /// The index of an element of a row, of which the column is known further out.
    fn index(&self, e: &mut Emitter<'_>, row: Atom, column: Atom) -> Index {
        let order = self.shape.physical_order();
        let (fast, slow) = order.split_at(n_column_dims(&self.shape, self.sum().n_columns).unwrap_or(0));
        let of_column = e.index_at(column, &self.shape.dims, fast);
        let mut index = e.index_at(row, &self.shape.dims, slow);
        fast.iter().for_each(|&dim| index[dim] = of_column[dim]);
        index
    }

    /// Joins the threads' sums and writes them.
    fn write_sums(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[Argument],
        (part, column, is_own): (Atom, Atom, Option<String>),
        accumulators: &[(Reduced, Vec<Vec<Value>>)],
    ) -> Result<(), GpuError> {
        let mut stores = Vec::new();
        // One table for all sums, one after the other: together they may be more than a block has.
        let table = e.fresh("s");
        let bytes = self.sums.iter().map(|&(result, _, _)| results[result].ctype.held_bytes()).max().unwrap_or(8);
        e.line(format!("__shared__ double {table}[{}];", TEAM.block() as usize * bytes.div_ceil(8).max(1)));
        for ((reduced, of_lane), &(result, inst, _)) in accumulators.iter().zip(&self.sums) {
            for (k, values) in (0..).zip(of_lane) {
                let held: SmallVec<[(Value, &'static str); 1]> =
                    values.iter().cloned().zip(reduced.combiner.ctypes.iter().map(|ctype| ctype.held)).collect();
                let combine: team_join::Combine<'_> = &mut |e, others| reduced.combiner.combine(e, values, others);
                team_join::join_in(TEAM, e, Some(&table), &held, combine)?;
                let depth = e.depth();
                let at = e.bind(format!("{part} * {} + {column} + {k}", self.sum().n_columns), depth);
                let Argument { shape, ctype } = &results[result];
                let index = e.index_at(at, &shape.dims, &shape.physical_order());
                let value = reduced.combiner.finish(e, frame, inst, 0, &index, values)?;
                stores.push(format!("r{result}[{at}] = {};", ctype.exact_stored(&value.text)));
            }
        }
        let is_own = is_own.map_or(String::new(), |is_own| format!(" && {is_own}"));
        e.scope(ScopeKind::Branch, format!("if ({} == 0{is_own})", TEAM.part()), |e| {
            stores.iter().for_each(|store| e.line(store));
            Ok(())
        })
    }
}

/// A block's columns of some rows.
struct Tile {
    /// The first of a lane's columns, and the first row.
    column: Atom,
    first_row: Atom,
    /// Conditions: accesses of all neighbours at once are aligned; the lane's columns exist.
    is_aligned: String,
    is_own: Option<String>,
}
