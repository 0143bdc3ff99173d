//! Elements of what devices receive from one another.

use super::field::Number;
use super::ops::{index_of, joined, place_of};
use super::program::Place;
use super::values::{Stop, Values};
use hlo_ir::op::{CollectiveRule, CollectiveSource};

impl Values<'_> {
    /// An element of the outcome of a collective.
    pub(super) fn exchanged(
        &mut self,
        place: Place,
        rule: CollectiveRule,
        at: i64,
        device: u32,
    ) -> Result<Number, Stop> {
        let module = self.programs.module(place.frame);
        let instruction = module.inst(place.inst);
        let view = instruction.attrs.collective().ok_or_else(|| self.unread(place, "its attributes"))?;
        if view.is_in_place {
            return Err(self.unread(place, "an exchange in place"));
        }
        let is_parts = rule.exchanges_parts() && view.dimensions.is_empty();
        let operand = |values: &Self, number: usize| {
            let operand = values.programs.operand(Place { leaf: 0, ..place }, number);
            operand.ok_or_else(|| values.unread(place, "an operand that is missing"))
        };
        let own = operand(self, if is_parts { 0 } else { place.leaf })?;
        let from = self.programs.shape(own).ok_or_else(|| self.unread(place, "its operand's shape"))?;
        if rule.source == CollectiveSource::Pair {
            let pairs = module.device_pairs(place.inst).map_err(|e| self.unread(place, &e.to_string()))?;
            return match pairs.iter().find(|(_, target)| *target == device) {
                Some(&(source, _)) => self.value(own, at, source),
                None => Ok(0),
            };
        }
        let Some((group, position)) = self.group(place, device)? else {
            return match rule.source {
                CollectiveSource::Root => Ok(0),
                CollectiveSource::Reduction
                | CollectiveSource::Members
                | CollectiveSource::Pair
                | CollectiveSource::Rows => Err(self.unread(place, "a device that is in no group")),
            };
        };
        let n = group.len() as i64;
        match rule.source {
            CollectiveSource::Pair => Ok(0),
            CollectiveSource::Rows => Err(self.unread(place, "ragged rows")),
            CollectiveSource::Root => self.value(own, at, group[0]),
            CollectiveSource::Reduction => {
                let comp = view.to_apply.and_then(|comp| hlo_ir::monoid::find_monoid(module, comp));
                let monoid = comp.ok_or_else(|| self.unread(place, "its reducer"))?;
                let mut at = at;
                if rule.scatters {
                    let dim = view.dim().ok_or_else(|| self.unread(place, "its dim"))?;
                    let mut dims = from.dims.to_vec();
                    dims[dim] /= n;
                    let mut index = index_of(&dims, at);
                    index[dim] += position as i64 * dims[dim];
                    at = place_of(&from.dims, &index);
                }
                let mut total = None;
                for member in group {
                    let x = self.value(own, at, member)?;
                    total = Some(joined(monoid, from.dtype, total, x));
                }
                Ok(total.unwrap_or(0))
            }
            CollectiveSource::Members if is_parts => {
                let member = *group.get(place.leaf).ok_or_else(|| self.unread(place, "a member"))?;
                let part = operand(self, position)?;
                self.value(part, at, member)
            }
            CollectiveSource::Members => {
                let dim = view.dim().ok_or_else(|| self.unread(place, "its dim"))?;
                let mut dims = from.dims.to_vec();
                if rule.scatters {
                    dims[dim] /= n;
                }
                let part = dims[dim];
                let mut to = dims;
                to[dim] *= n;
                let mut index = index_of(&to, at);
                let member = group[(index[dim] / part.max(1)) as usize];
                index[dim] %= part.max(1);
                if rule.scatters {
                    index[dim] += position as i64 * part;
                }
                self.value(own, place_of(&from.dims, &index), member)
            }
        }
    }

    /// The group of a device, and its position there.
    fn group(&mut self, place: Place, device: u32) -> Result<Option<(Vec<u32>, usize)>, Stop> {
        let module = self.programs.module(place.frame);
        let key = (self.programs.frames[place.frame].module, place.inst);
        if !self.groups.contains_key(&key) {
            let groups = module.device_groups(place.inst).map_err(|e| self.unread(place, &e.to_string()))?;
            self.groups.insert(key, groups.groups);
        }
        let found = self.groups[&key].iter().find_map(|group| {
            let position = group.iter().position(|&member| member == device)?;
            Some((group.clone(), position))
        });
        Ok(found)
    }
}
