//! A plan as instructions of a per-device module.

use super::plan::Redistribution;
use super::price::moved_atoms;
use super::route::LoweredStep;
use super::space::{Place, Places, Space, permutation};
use super::tile_builder::TileBuilder;
use super::{StepKind, write_blocks};
use crate::append::Appender;
use crate::device_ids::DeviceTables;
use crate::error::SpmdError;
use crate::group_attrs::{ChannelIds, GroupAttrs};
use hlo_ir::attrs::ParameterAttrs;
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, Dims, InstId, Module, Opcode, Shape};
use hlo_mesh::Exchange;

impl Redistribution {
    /// A per-device module of the plan: its parameter is the source tile, its root the target tile.
    ///
    /// # Errors
    /// A defect of the plan.
    pub fn to_module(&self, name: &str) -> Result<Module, SpmdError> {
        let mut module = Module::new(name);
        module.header.num_partitions = self.route.n_devices as i64;
        let entry = module.names.intern("main");
        let entry = module.add_computation(entry);
        module.set_entry(entry);
        let tile = ArrayShape::new(self.route.shape.dtype, self.route.source_tile.iter().copied());
        let attrs = ParameterAttrs { number: 0, ..ParameterAttrs::default() };
        let tile = Shape::Array(tile.with_row_major());
        let parameter = Builder::new(&mut module, entry).add("source", Opcode::Parameter, tile, [], attrs);
        let mut channels = ChannelIds::free_in(&module);
        let root = self.append_to(&mut module, parameter, &mut channels)?;
        module.comp_mut(entry).root = Some(root).into();
        // Computations that are called stand before those that call them.
        let order: Vec<CompId> =
            module.computations().iter().copied().filter(|&comp| comp != entry).chain([entry]).collect();
        module.set_computation_order(order);
        Ok(module)
    }

    /// Appends the plan to the computation of `tile`, the source tile of this device; gives its target tile.
    ///
    /// # Errors
    /// The module has another number of devices, or `tile` other dims.
    pub fn append_to(&self, module: &mut Module, tile: InstId, channels: &mut ChannelIds) -> Result<InstId, SpmdError> {
        let is_source =
            crate::collective::array(module, tile).is_some_and(|array| array.dims == self.route.source_tile);
        if !is_source {
            return Err(SpmdError::not_an_array(module, tile));
        }
        if module.n_devices() != self.route.n_devices {
            return Err(SpmdError::UnknownDevice);
        }
        let comp = module.inst(tile).parent;
        let mut lowering = TileBuilder {
            comp,
            at: Appender::standing_for(comp, tile),
            module,
            channels,
            dtype: self.route.shape.dtype,
            rank: self.route.shape.rank(),
            monoid: self.route.monoid,
            tables: DeviceTables::default(),
        };
        let mut value = tile;
        for step in &self.route.steps {
            value = lowering.step(step, value)?;
        }
        Ok(lowering.shaped(value, &self.route.target_tile))
    }
}

/// A part of a tile: what an atom gives or takes, or what lies between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Atom(usize),
    /// Elements between, by their number among these cells.
    Rest(usize),
}

impl TileBuilder<'_> {
    fn step(&mut self, step: &LoweredStep, value: InstId) -> Result<InstId, SpmdError> {
        match step {
            LoweredStep::Pad(dims) => Ok(self.padded(value, dims)),
            LoweredStep::Trim(before, dims) => {
                let value = self.shaped(value, before);
                Ok(self.trimmed(value, dims))
            }
            LoweredStep::Reorder(pairs) => Ok(self.permuted(value, pairs)),
            LoweredStep::Pieces(plan) => write_blocks::lower(self, plan, value),
            LoweredStep::Leg { space, kind, from, to } => match kind {
                StepKind::Slice => self.sliced(space, from, to, value),
                StepKind::Exchange(Exchange::AllGather) => Ok(self.gathered(space, from, to, value)),
                StepKind::Exchange(Exchange::AllToAll) | StepKind::Exchange(Exchange::ReduceScatter) => {
                    Ok(self.exchanged(space, *kind, from, to, value))
                }
                StepKind::Exchange(Exchange::Permute) => {
                    Ok(self.permuted(value, &permutation((space, from), (space, to))))
                }
                StepKind::Exchange(Exchange::AllReduce) => Ok(self.reduced(space, from, to, value)),
                StepKind::Exchange(Exchange::Broadcast) | StepKind::Pad | StepKind::Trim | StepKind::Pieces => {
                    Ok(value)
                }
            },
        }
    }

    /// This device's part of the segments that atoms come to cut.
    fn sliced(&mut self, space: &Space, from: &Places, to: &Places, value: InstId) -> Result<InstId, SpmdError> {
        let (before, after) = (space.local_sizes(from), space.local_sizes(to));
        let lists = space.lists(to);
        let is_new = |a: &&usize| from[**a] != to[**a];
        let (mut dims, mut part, mut starts) = (Dims::new(), Dims::new(), vec![Dims::new(); space.devices.len()]);
        for (segment, list) in lists.iter().enumerate() {
            let (size, own, dim) = (before[segment], after[segment], space.segments[segment].dim);
            let new: Vec<usize> = list.iter().filter(is_new).copied().collect();
            // One row of what stands before, or all of this segment: together they are one run of elements.
            let is_of_dim = segment > 0 && space.segments[segment - 1].dim == dim;
            let is_run = is_of_dim && part.last().is_some_and(|&rows| rows == 1 || own == size);
            let joined = |list: &mut Dims, n: i64| match list.last_mut().filter(|_| is_run) {
                Some(last) => *last *= n,
                None => list.push(n),
            };
            joined(&mut dims, size);
            joined(&mut part, own);
            for (position, &device) in space.devices.iter().enumerate() {
                let start = if size == own { 0 } else { space.place_along(position, &new) * own };
                let list = &mut starts[device as usize];
                match list.last_mut().filter(|_| is_run) {
                    Some(last) => *last = *last * size + start,
                    None => list.push(start),
                }
            }
        }
        let whole = space.local_dims(from, self.rank);
        if dims.iter().eq(whole.iter().filter(|&&size| size != 1)) {
            // Each dim is one run: the array as it is, with its dims of one element.
            let mut sizes = part.into_iter();
            let of_dim = |&size: &i64| if size == 1 { 1 } else { sizes.next().unwrap_or(1) };
            part = whole.iter().map(of_dim).collect();
            for list in &mut starts {
                let mut own = std::mem::take(list).into_iter();
                *list = whole.iter().map(|&size| if size == 1 { 0 } else { own.next().unwrap_or(0) }).collect();
            }
            dims = whole;
        }
        let value = self.shaped(value, &dims);
        self.block(value, &starts, &part)
    }

    /// Atoms leave the minor ends of their segments.
    fn gathered(&mut self, space: &Space, from: &Places, to: &Places, value: InstId) -> InstId {
        let moved = moved_atoms(from, to);
        let (cells, sizes) = cells(space, from, to);
        let n = space.n_places(&moved);
        let rests: Vec<i64> = sizes.clone();
        let groups = space.groups(&moved);
        let attrs = |lowering: &mut Self, dim: usize| {
            GroupAttrs::new(lowering.module, &groups, lowering.channels).gathering(dim)
        };
        let atoms: Vec<usize> =
            cells.iter().enumerate().filter(|(_, c)| matches!(c, Cell::Atom(_))).map(|(k, _)| k).collect();
        let n_before: i64 = rests[..atoms.first().copied().unwrap_or(0)].iter().product();
        let (small, large) = (space.local_dims(from, self.rank), space.local_dims(to, self.rank));
        let are_together = atoms.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let first = atoms.first().copied().unwrap_or(0);
        if let (true, Some(dim)) = (are_together, dim_of_parts(&large, &small, n_before)) {
            let value = self.shaped(value, &small);
            let shape = self.array(&large);
            let attrs = attrs(self, dim);
            return self.at.add(self.module, "all-gather", Opcode::AllGather, shape, &[value], attrs);
        }
        if are_together && first < cells.len() - atoms.len() {
            // All of them stand before one run of elements: the all-gather puts its parts in order.
            let value = self.shaped(value, &rests);
            let mut dims: Dims = rests.iter().copied().collect();
            dims[first] *= n;
            let shape = self.array(&dims);
            let attrs = attrs(self, first);
            return self.at.add(self.module, "all-gather", Opcode::AllGather, shape, &[value], attrs);
        }
        let value = self.shaped(value, &[&[1], &rests[..]].concat());
        let shape = self.array(&[&[n], &rests[..]].concat());
        let attrs = attrs(self, 0);
        let all = self.at.add(self.module, "all-gather", Opcode::AllGather, shape, &[value], attrs);
        self.laid_out(space, (&moved, 0), &cells, &rests, all)
    }

    /// `value`, in which the places of the atoms stand before the rest of this number, with the atoms where the cells have them.
    fn laid_out(
        &mut self,
        space: &Space,
        (moved, place): (&[usize], usize),
        cells: &[Cell],
        rests: &[i64],
        value: InstId,
    ) -> InstId {
        let mut dims: Dims = rests[..place].iter().copied().collect();
        dims.extend(moved.iter().map(|&a| space.atoms[a].size));
        dims.extend(rests[place..].iter().copied());
        let value = self.shaped(value, &dims);
        let perm = cells.iter().map(|cell| match place_of(*cell, moved) {
            atom if atom < moved.len() => place + atom,
            rest if rest - moved.len() < place => rest - moved.len(),
            rest => rest,
        });
        self.transposed(value, &perm.collect::<Vec<_>>())
    }

    /// Atoms come to segments, from other segments or from partial results.
    fn exchanged(&mut self, space: &Space, kind: StepKind, from: &Places, to: &Places, value: InstId) -> InstId {
        let moved = moved_atoms(from, to);
        let n = space.n_places(&moved);
        // What comes is cut off before the exchange; what leaves is put together after it.
        let (gains, losses, rests) = exchange_cells(space, from, to);
        let sizes: Dims = gains
            .iter()
            .map(|cell| match *cell {
                Cell::Atom(a) => space.atoms[a].size,
                Cell::Rest(k) => rests[k],
            })
            .collect();
        let mut perm: Vec<usize> = (0..gains.len()).collect();
        perm.sort_by_key(|&k| place_of(gains[k], &moved));
        // Where the atoms that come stand one after the other, the collective finds them there; else they go to the front.
        let first = gains.iter().position(|cell| matches!(cell, Cell::Atom(_))).unwrap_or(0);
        let are_together = perm.iter().take(moved.len()).copied().eq(first..first + moved.len());
        let place = if are_together { first } else { 0 };
        let value = match are_together {
            true => value,
            false => {
                let value = self.shaped(value, &sizes);
                self.transposed(value, &perm)
            }
        };
        let parts = |n: i64| -> Dims {
            rests[..place].iter().copied().chain([n]).chain(rests[place..].iter().copied()).collect()
        };
        let groups = space.groups(&moved);
        let attrs = GroupAttrs::new(self.module, &groups, self.channels);
        if kind == StepKind::Exchange(Exchange::ReduceScatter) {
            let (large, small) = (space.local_dims(from, self.rank), space.local_dims(to, self.rank));
            let n_before = rests[..place].iter().product();
            let (value, dim, shape) = match dim_of_parts(&large, &small, n_before).filter(|_| are_together) {
                Some(dim) => (self.shaped(value, &large), dim, self.array(&small)),
                None => (self.shaped(value, &parts(n)), place, self.array(&parts(1))),
            };
            let attrs = attrs.combining(Dims::from_slice(&[dim as i64]), Some(self.reducer()));
            let sum = self.at.add(self.module, "reduce-scatter", Opcode::ReduceScatter, shape, &[value], attrs);
            return self.shaped(sum, &rests);
        }
        let value = self.shaped(value, &parts(n));
        let shape = self.array(&parts(n));
        let attrs = attrs.exchanging(place);
        let all = self.at.add(self.module, "all-to-all", Opcode::AllToAll, shape, &[value], attrs);
        self.laid_out(space, (&moved, place), &losses, &rests, all)
    }

    fn reduced(&mut self, space: &Space, from: &Places, to: &Places, value: InstId) -> InstId {
        let groups = space.groups(&moved_atoms(from, to));
        let reducer = self.reducer();
        let attrs = GroupAttrs::new(self.module, &groups, self.channels).combining(Dims::new(), Some(reducer));
        let shape = self.array(&self.dims(value));
        self.at.add(self.module, "all-reduce", Opcode::AllReduce, shape, &[value], attrs)
    }
}

/// The one dim in which `large` is more than `small`, if its parts are major in it: `n_before` elements stand before a part.
fn dim_of_parts(large: &[i64], small: &[i64], n_before: i64) -> Option<usize> {
    let mut others = (0..large.len()).filter(|&dim| large[dim] != small[dim]);
    let dim = others.next().filter(|_| others.next().is_none())?;
    (small[..dim].iter().product::<i64>() == n_before).then_some(dim)
}

/// The position of a cell where atoms come first, in the order of `moved`, and then what lies between.
fn place_of(cell: Cell, moved: &[usize]) -> usize {
    match cell {
        Cell::Atom(atom) => moved.iter().position(|&a| a == atom).unwrap_or_default(),
        Cell::Rest(k) => moved.len() + k,
    }
}

/// The atoms of a segment that are on it in `places` and elsewhere in `others`, major to minor.
fn only_in(space: &Space, places: &Places, others: &Places, segment: usize) -> Vec<usize> {
    let list = &space.lists(places)[segment];
    list.iter().copied().filter(|&a| places[a] != others[a] && matches!(places[a], Place::On { .. })).collect()
}

/// The tile after atoms left it, as cells; beside them the sizes of what lies between.
fn cells(space: &Space, from: &Places, to: &Places) -> (Vec<Cell>, Vec<i64>) {
    let (_, losses, rests) = exchange_cells(space, from, to);
    (losses, rests)
}

/// The tile before atoms come to it and after atoms left it, as cells of one size each; beside them the sizes of what lies
/// between.
fn exchange_cells(space: &Space, from: &Places, to: &Places) -> (Vec<Cell>, Vec<Cell>, Vec<i64>) {
    let (before, after) = (space.local_sizes(from), space.local_sizes(to));
    let (mut gains, mut losses, mut rests): (Vec<Cell>, Vec<Cell>, Vec<i64>) = Default::default();
    for segment in 0..space.segments.len() {
        let (came, left) = (only_in(space, to, from, segment), only_in(space, from, to, segment));
        let rest = before[segment].min(after[segment]);
        let ends_in_rest = |cells: &[Cell]| matches!(cells.last(), Some(Cell::Rest(_)));
        let is_run = came.is_empty() && left.is_empty() && ends_in_rest(&gains) && ends_in_rest(&losses);
        gains.extend(came.into_iter().map(Cell::Atom));
        losses.extend(left.into_iter().map(Cell::Atom));
        match rests.last_mut() {
            Some(last) if is_run => *last *= rest,
            Some(_) | None if rest == 1 => {}
            Some(_) | None => {
                gains.push(Cell::Rest(rests.len()));
                losses.push(Cell::Rest(rests.len()));
                rests.push(rest);
            }
        }
    }
    (gains, losses, rests)
}
