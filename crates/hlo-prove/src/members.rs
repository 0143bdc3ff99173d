//! Who takes from whom in a collective: for each device a list of devices, in order.

/// The lists, each stored once.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct Members {
    /// Numbered by the first device that has the list.
    lists: Vec<Vec<u32>>,
    list_of: Vec<u32>,
    /// Where each device stands in its own list.
    positions: Vec<Option<u32>>,
}

/// The number of interned members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MembersId(pub usize);

impl Members {
    /// Each device takes from those of its group. `None` if a device is in no group.
    pub(crate) fn of_groups(groups: &[Vec<u32>], n_devices: usize) -> Option<Members> {
        let mut group_of = vec![usize::MAX; n_devices];
        for (k, group) in groups.iter().enumerate() {
            for &device in group {
                *group_of.get_mut(device as usize)? = k;
            }
        }
        let mut numbers = vec![u32::MAX; groups.len()];
        let mut lists = Vec::with_capacity(groups.len());
        let mut list_of = Vec::with_capacity(n_devices);
        let mut positions = vec![None; n_devices];
        for &k in &group_of {
            let number = numbers.get_mut(k)?;
            if *number == u32::MAX {
                *number = lists.len() as u32;
                for (position, &device) in groups[k].iter().enumerate().rev() {
                    if group_of[device as usize] == k {
                        positions[device as usize] = Some(position as u32);
                    }
                }
                lists.push(groups[k].clone());
            }
            list_of.push(*number);
        }
        Some(Members { lists, list_of, positions })
    }

    /// Each device takes from one.
    pub(crate) fn of_sources(sources: impl Iterator<Item = u32>) -> Members {
        let lists: Vec<Vec<u32>> = sources.map(|source| vec![source]).collect();
        let n = lists.len() as u32;
        let positions = lists.iter().zip(0..).map(|(list, device)| (list[0] == device).then_some(0)).collect();
        Members { lists, list_of: (0..n).collect(), positions }
    }

    /// From whom a device takes.
    pub(crate) fn of(&self, device: usize) -> &[u32] {
        &self.lists[self.list_of[device] as usize]
    }

    /// Where a device stands in its own list.
    pub(crate) fn position(&self, device: usize) -> Option<usize> {
        self.positions[device].map(|position| position as usize)
    }

    /// The number of a device's list.
    pub(crate) fn list_idx(&self, device: usize) -> usize {
        self.list_of[device] as usize
    }

    /// The lists.
    pub(crate) fn lists(&self) -> &[Vec<u32>] {
        &self.lists
    }

    /// How many devices each takes from, if that is the same number for all.
    pub(crate) fn n_members(&self) -> Option<usize> {
        let n = self.lists.first()?.len();
        self.lists.iter().all(|list| list.len() == n).then_some(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbered_by_their_first_device() {
        let members = Members::of_groups(&[vec![3, 1], vec![0, 2]], 4).unwrap();
        assert_eq!(Some(&members), Members::of_groups(&[vec![0, 2], vec![3, 1]], 4).as_ref());
        assert_eq!((members.of(1), members.position(1), members.list_idx(0)), ([3, 1].as_slice(), Some(1), 0));
        assert_eq!(members.n_members(), Some(2));
        assert_eq!(Members::of_groups(&[vec![0, 1]], 3), None);
        assert_eq!(Members::of_groups(&[vec![0, 3]], 2), None);
    }
}
