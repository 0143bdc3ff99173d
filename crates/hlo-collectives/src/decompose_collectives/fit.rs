//! Where the groups of a collective lie in a cluster.
//!
//! Device `d` of the module is device `d` of the cluster; its digits are its places in the levels. Groups *fit* if in each level
//! they take every `stride`-th of `factor` places: the level is then `outer × factor × stride`, and the groups are those of a
//! [`ParallelismMatrix`] with these three axes that reduces over the second.

use crate::refusal::{CollectiveRefusal, DecomposeRefusal};
use hlo_cluster::reduction::{Lowering, ParallelismMatrix};

/// Groups that lie along the levels of a cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// Three axes: what is outside of the groups' digits, the groups' digits, what is inside of them.
    pub matrix: ParallelismMatrix,
    /// The groups' factors above one, outermost level first: what programs are made over.
    pub factors: Vec<usize>,
    /// The groups, members by position in the hierarchy: ascending ids.
    pub groups: Vec<Vec<u32>>,
}

impl Fit {
    /// By group, by position in the hierarchy: the device's place in these groups, which are the same in any order.
    pub fn places(&self, groups: &[Vec<u32>]) -> Vec<Vec<usize>> {
        let n_devices = self.groups.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        let mut place_of = vec![0; n_devices];
        for group in groups {
            for (place, &device) in group.iter().enumerate() {
                place_of.get_mut(device as usize).into_iter().for_each(|slot| *slot = place);
            }
        }
        self.groups.iter().map(|group| group.iter().map(|&device| place_of[device as usize]).collect()).collect()
    }
}

/// The axis of the matrix that is reduced.
pub(crate) const REDUCED: usize = 1;

/// Finds the groups (of all devices, in any order) in a cluster with these counts, outermost level first.
///
/// # Errors
/// Why they do not fit.
pub fn find_fit(levels: &[u32], groups: &[Vec<u32>]) -> Result<Fit, CollectiveRefusal> {
    let mut sorted = groups.to_vec();
    sorted.iter_mut().for_each(|group| group.sort());
    sorted.sort();
    let first = sorted.first().ok_or(CollectiveRefusal::NoGroups)?;
    if sorted.iter().any(|group| group.len() != first.len()) {
        return Err(CollectiveRefusal::UnevenGroups);
    }
    if first.len() == 1 {
        return Err(CollectiveRefusal::LoneDevices);
    }
    const STRAY: CollectiveRefusal = CollectiveRefusal::Decompose(DecomposeRefusal::StrayGroups);
    let mut rows = vec![Vec::new(); 3];
    let mut below: u32 = levels.iter().product();
    for &level in levels {
        below /= level.max(1);
        let (factor, stride) = find_digits(first, below.max(1), level);
        if factor * stride == 0 || !level.is_multiple_of(factor * stride) {
            return Err(STRAY);
        }
        for (row, share) in rows.iter_mut().zip([level / (factor * stride), factor, stride]) {
            row.push(share);
        }
    }
    let axes: Vec<u32> = rows.iter().map(|row| row.iter().product()).collect();
    let matrix = ParallelismMatrix::new(rows, levels, &axes).map_err(|_| STRAY)?;
    if matrix.reduction_groups(&[REDUCED], Lowering::LevelMajor) != sorted {
        return Err(STRAY);
    }
    let factors = matrix.reduction_factors(&[REDUCED]).into_iter().filter(|f| *f > 1).map(|f| f as usize).collect();
    Ok(Fit { matrix, factors, groups: sorted })
}

/// How many places of a level a group takes, and the distance of the first two.
fn find_digits(group: &[u32], below: u32, level: u32) -> (u32, u32) {
    let mut digits: Vec<u32> = group.iter().map(|device| device / below % level.max(1)).collect();
    digits.sort();
    digits.dedup();
    let stride = match digits.as_slice() {
        [a, b, ..] => b - a,
        _ => 1,
    };
    (digits.len() as u32, stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(levels: &[u32], groups: &[&[u32]]) -> Result<Vec<usize>, CollectiveRefusal> {
        let groups: Vec<Vec<u32>> = groups.iter().map(|g| g.to_vec()).collect();
        find_fit(levels, &groups).map(|fit| fit.factors)
    }

    #[test]
    fn digits_of_levels_fit_in_any_order() {
        assert_eq!(fit(&[2, 4], &[&[5, 0, 1, 2, 3, 7, 6, 4]]), Ok(vec![2, 4]));
        assert_eq!(fit(&[2, 4], &[&[0, 1, 4, 5], &[2, 3, 6, 7]]), Ok(vec![2, 2]));
        assert_eq!(fit(&[2, 4], &[&[1, 3, 5, 7], &[6, 4, 2, 0]]), Ok(vec![2, 2]));
        assert_eq!(fit(&[2, 4], &[&[4, 5, 6, 7], &[0, 1, 2, 3]]), Ok(vec![4]));
    }

    #[test]
    fn other_groups_do_not() {
        assert!(fit(&[2, 4], &[&[0, 1, 4, 6], &[2, 3, 5, 7]]).is_err());
        assert!(fit(&[2, 4], &[&[0, 1, 2, 4], &[3, 5, 6, 7]]).is_err());
        assert!(fit(&[2, 4], &[&[0, 1, 2], &[3, 4, 5, 6, 7]]).is_err_and(|e| e == CollectiveRefusal::UnevenGroups));
        assert!(fit(&[8], &[&[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7]]).is_err());
        // The first group fits, the others are not its like.
        assert!(fit(&[2, 4], &[&[0, 1], &[2, 3], &[4, 6], &[5, 7]]).is_err());
    }
}
