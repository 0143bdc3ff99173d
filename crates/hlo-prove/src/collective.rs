//! Collectives: what each device receives, in terms of what the others have.

use crate::array::{Tree, Value};
use crate::members::{Members, MembersId};
use crate::prover::{Prover, Side};
use crate::segment::{Coords, Dim, Region, row_major};
use crate::sum::Summand;
use crate::term::ArrayId;
use hashbrown::HashMap;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{CollectiveRule, CollectiveSource};
use hlo_ir::{ArrayShape, DType, InstId, Shape};
use std::rc::Rc;

impl Prover {
    /// The outcome of a collective: a leaf for each operand, or one leaf.
    pub(crate) fn collective(
        &mut self,
        side: &Side<'_>,
        inst: InstId,
        rule: CollectiveRule,
        operands: &[Tree],
    ) -> Option<Tree> {
        let module = side.module;
        let view = module.inst(inst).attrs.collective()?;
        let leaves: Vec<Value> = operands.iter().flat_map(Tree::leaves).collect();
        let shapes: Vec<&ArrayShape> =
            module.inst(inst).operands.iter().map(|&o| module.shape(o).as_array()).collect::<Option<_>>()?;
        if leaves.len() != shapes.len() || view.is_in_place {
            return None;
        }
        let (leaves, own) = leaves.split_at(module.n_exchanged(inst, rule).min(leaves.len()));
        let mut out = Vec::with_capacity(leaves.len() + own.len());
        match rule.source {
            CollectiveSource::Reduction => {
                let members = self.members_of_groups(module.device_groups(inst).ok()?.groups)?;
                let monoid = find_monoid(module, view.to_apply?)?;
                for (value, shape) in leaves.iter().zip(shapes) {
                    let sum = self.all_reduce(value, members, monoid, shape.dtype)?;
                    out.push(if rule.scatters { self.own_part(&sum, members, view.dim()?, &shape.dims)? } else { sum });
                }
            }
            CollectiveSource::Members => {
                let members = self.members_of_groups(module.device_groups(inst).ok()?.groups)?;
                let is_tuple = rule.exchanges_parts() && view.dimensions.is_empty();
                if is_tuple {
                    out = self.exchange(leaves, members)?;
                } else {
                    for (value, shape) in leaves.iter().zip(shapes) {
                        out.push(self.gather_parts(value, members, view.dim()?, &shape.dims, rule.scatters)?);
                    }
                }
            }
            CollectiveSource::Root => {
                let groups = module.device_groups(inst).ok()?.groups;
                let pairs = groups.iter().flat_map(|g| g.iter().map(|&d| (g[0], d))).collect::<Vec<_>>();
                for (value, shape) in leaves.iter().zip(shapes) {
                    out.push(self.permute(value, &pairs, shape)?);
                }
            }
            CollectiveSource::Pair => {
                let pairs = module.device_pairs(inst).ok()?;
                for (value, shape) in leaves.iter().zip(shapes) {
                    out.push(self.permute(value, &pairs, shape)?);
                }
            }
            CollectiveSource::Rows => return None,
        }
        // What a collective does not exchange each device keeps.
        out.extend(own.iter().cloned());
        let is_one = out.len() == 1
            && !matches!(module.shape(inst), Shape::Tuple(elements) if !rule.has_operands_in_result() && elements.len() == 1);
        Some(match (is_one, out.pop()) {
            (true, Some(value)) => Tree::Leaf(value),
            (_, last) => {
                out.extend(last);
                Tree::Tuple(Rc::new(out.into_iter().map(Tree::Leaf).collect()))
            }
        })
    }

    /// For each device the members of its group. `None` if a device is in no group.
    fn members_of_groups(&mut self, groups: Vec<Vec<u32>>) -> Option<MembersId> {
        let members = Members::of_groups(&groups, self.n_devices())?;
        Some(self.members(members))
    }

    /// `f` of the arrays of a device's members, in order; it is called once for equal lists. It may use what holds on
    /// every device, such as the spread of a position.
    fn of_members(
        &mut self,
        value: &Value,
        members: MembersId,
        mut f: impl FnMut(&mut Prover, &[ArrayId]) -> Option<ArrayId>,
    ) -> Option<Value> {
        let members = self.members_of(members);
        if let (Value::Same(array), Some(n)) = (value, members.n_members()) {
            return f(self, &vec![*array; n]).map(Value::Same);
        }
        let mut known: HashMap<Vec<ArrayId>, ArrayId> = HashMap::new();
        let mut of_list = Vec::with_capacity(members.lists().len());
        for list in members.lists() {
            let arrays: Vec<ArrayId> = list.iter().map(|&d| self.arrays.on(value, d as usize)).collect();
            let id = match known.get(&arrays) {
                Some(&id) => id,
                None => f(self, &arrays)?,
            };
            known.insert(arrays, id);
            of_list.push(id);
        }
        Some(self.arrays.value((0..self.n_devices()).map(|d| of_list[members.list_idx(d)]).collect()))
    }

    /// The sum (or maximum, …) over the members' values.
    pub(crate) fn all_reduce(
        &mut self,
        value: &Value,
        members: MembersId,
        monoid: Monoid,
        dtype: DType,
    ) -> Option<Value> {
        self.of_members(value, members, |p, arrays| {
            let key = (members, monoid, dtype, arrays.to_vec());
            if let Some(&known) = p.reduced.get(&key) {
                return known;
            }
            let sum = p.all_reduce_arrays(arrays, members, monoid, dtype);
            p.reduced.insert(key, sum);
            sum
        })
    }

    fn all_reduce_arrays(
        &mut self,
        arrays: &[ArrayId],
        members: MembersId,
        monoid: Monoid,
        dtype: DType,
    ) -> Option<ArrayId> {
        // Members with the same array are one summand over several devices.
        let mut distinct: Vec<(ArrayId, Vec<usize>)> = Vec::new();
        for (k, &array) in arrays.iter().enumerate() {
            match distinct.iter_mut().find(|(a, _)| *a == array) {
                Some((_, positions)) => positions.push(k),
                None => distinct.push((array, vec![k])),
            }
        }
        let n = self.arrays.segments(arrays[0]).iter().map(|s| s.region.n_elems()).sum();
        let lists: Vec<ArrayId> = distinct.iter().map(|d| d.0).collect();
        let mut out = Vec::new();
        for (terms, region) in self.arrays.align(&lists, n)? {
            let mut groups: Vec<(Summand, Vec<usize>)> = Vec::new();
            let mut from = 1;
            for (&term, (_, positions)) in terms.iter().zip(&distinct) {
                let summand = Summand::own(&mut self.arrays.terms, term, &region, from);
                from += self.arrays.terms.rank(term);
                match groups.iter_mut().find(|(s, _)| *s == summand) {
                    Some((_, all)) => all.extend_from_slice(positions),
                    None => groups.push((summand, positions.clone())),
                }
            }
            let mut summands = Vec::with_capacity(groups.len());
            for (mut summand, mut positions) in groups {
                positions.sort();
                let spread = self.spread(members, &positions);
                let classes = self.arrays.terms.classes(summand.term);
                summand.spread = self.arrays.terms.devices.normalize(spread, classes);
                summands.push(summand);
            }
            out.push(self.elementwise.sum(&mut self.arrays.terms, monoid, dtype, &region, summands));
        }
        Some(self.arrays.intern(out))
    }

    /// The part of a value along a dim that has the device's position in its group.
    fn own_part(&mut self, value: &Value, members: MembersId, dim: usize, dims: &[i64]) -> Option<Value> {
        let members = self.members_of(members);
        let mut sizes = dims.to_vec();
        sizes[dim] = dims[dim].checked_div(members.of(0).len() as i64)?;
        let steps = row_major(dims);
        let mut known: HashMap<(ArrayId, usize), ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let position = members.position(device)?;
            let array = self.arrays.on(value, device);
            let id = match known.get(&(array, position)) {
                Some(&id) => id,
                None => {
                    let start = position as i64 * sizes[dim] * steps[dim];
                    let id = self.arrays.view(array, &sizes, start, &steps)?;
                    known.insert((array, position), id);
                    id
                }
            };
            each.push(id);
        }
        Some(self.arrays.value(each))
    }

    /// The members' values one after another along a dim; where the members scatter, of each the part with the device's position.
    fn gather_parts(
        &mut self,
        value: &Value,
        id: MembersId,
        dim: usize,
        dims: &[i64],
        scatters: bool,
    ) -> Option<Value> {
        let members = self.members_of(id);
        let n_members = members.n_members()?;
        let mut sizes = dims.to_vec();
        if scatters {
            sizes[dim] = dims[dim].checked_div(n_members as i64)?;
        }
        let mut to = sizes.clone();
        to[dim] *= n_members as i64;
        let steps = row_major(dims);
        let to_steps = row_major(&to);
        let mut known: HashMap<(Vec<ArrayId>, usize), ArrayId> = HashMap::new();
        let mut of_list: HashMap<(usize, usize), ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        let is_same = matches!(value, Value::Same(_));
        for device in 0..self.n_devices() {
            let position = if scatters { members.position(device)? } else { 0 };
            let place = (members.list_idx(device), position);
            if let Some(&id) = of_list.get(&place) {
                each.push(id);
                continue;
            }
            let arrays: Vec<ArrayId> = members.of(device).iter().map(|&d| self.arrays.on(value, d as usize)).collect();
            let key = (arrays, position);
            if let Some(&id) = known.get(&key) {
                of_list.insert(place, id);
                each.push(id);
                continue;
            }
            let mut out = Vec::new();
            for (k, &array) in key.0.iter().enumerate() {
                let source = self.spread(id, &[k]);
                let array = self.array_from(array, source);
                let mut region = Region { at: Coords::from_slice(&[0, 0]), dims: Default::default() };
                region.at[0] = k as i64 * sizes[dim] * to_steps[dim];
                region.at[1] = if scatters { position as i64 * sizes[dim] * steps[dim] } else { 0 };
                for d in 0..sizes.len() {
                    if sizes[d] != 1 {
                        region.dims.push(Dim { n: sizes[d], step: Coords::from_slice(&[to_steps[d], steps[d]]) });
                    }
                }
                if !sizes.contains(&0) {
                    out.extend(self.arrays.take(array, region)?);
                }
            }
            let array = self.arrays.intern(out);
            if is_same && !scatters {
                return Some(Value::Same(array));
            }
            known.insert(key, array);
            of_list.insert(place, array);
            each.push(array);
        }
        Some(self.arrays.value(each))
    }

    /// An all-to-all of a tuple: result `j` is the operand with the device's position, of member `j`.
    fn exchange(&mut self, operands: &[Value], id: MembersId) -> Option<Vec<Value>> {
        let members = self.members_of(id);
        let mut out = Vec::with_capacity(operands.len());
        for j in 0..operands.len() {
            let source = self.spread(id, &[j]);
            let mut each = Vec::with_capacity(self.n_devices());
            for device in 0..self.n_devices() {
                let member = *members.of(device).get(j)? as usize;
                let array = self.arrays.on(operands.get(members.position(device)?)?, member);
                each.push(self.array_from(array, source));
            }
            out.push(self.arrays.value(each));
        }
        Some(out)
    }

    /// What each device gets from the source of its pair; zeros where it has none.
    fn permute(&mut self, value: &Value, pairs: &[(u32, u32)], shape: &ArrayShape) -> Option<Value> {
        let n = self.n_devices();
        let mut sources: Vec<Option<u32>> = vec![None; n];
        for &(source, target) in pairs {
            *sources.get_mut(target as usize)? = Some(source);
        }
        // A device without a source stands for itself in the spread; it does not use it.
        let own = |(d, source): (usize, &Option<u32>)| source.unwrap_or(d as u32);
        let members = Members::of_sources(sources.iter().enumerate().map(own));
        let members = self.members(members);
        let spread = self.spread(members, &[0]);
        let zero = hlo_ir::Literal::zeros(shape.dtype, &[]).ok()?;
        let zero = self.arrays.terms.constant(zero);
        let zeros = self.arrays.whole(zero, shape.n_elems() as i64);
        let mut known: HashMap<ArrayId, ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(n);
        for source in sources {
            let Some(source) = source else {
                each.push(zeros);
                continue;
            };
            let array = self.arrays.on(value, source as usize);
            let id = match known.get(&array) {
                Some(&id) => id,
                None => {
                    let id = self.array_from(array, spread);
                    known.insert(array, id);
                    id
                }
            };
            each.push(id);
        }
        Some(self.arrays.value(each))
    }
}
