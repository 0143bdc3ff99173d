//! Several shardings on one mesh of prime axes.

use super::{AxisMesh, AxisSharding, SubAxis};

/// The same shardings on one mesh all of whose axes have prime sizes, so that each of their axes is a list of whole ones.
///
/// `None` if the devices stand in different orders, or if the axes cut that order at places that do not divide one another (3 x 2
/// beside 2 x 3). A sharding that names no axis fits any mesh.
pub fn refine_together<const N: usize>(shardings: [&AxisSharding; N]) -> Option<[AxisSharding; N]> {
    let first = shardings.iter().copied().find(|s| !s.is_replicated()).or(shardings.first().copied())?;
    let devices = &first.mesh.devices;
    let fits =
        |s: &&AxisSharding| s.mesh.devices.len() == devices.len() && (s.is_replicated() || s.mesh.devices == *devices);
    if !shardings.iter().all(fits) {
        return None;
    }
    let n_devices = devices.len() as i64;
    let mut cuts = vec![1, n_devices];
    for sharding in shardings {
        cuts.extend(sharding.parts().flat_map(|part| {
            let stride = sharding.mesh.stride(part);
            [stride, stride * part.size]
        }));
    }
    cuts.sort();
    cuts.dedup();
    let mut sizes = Vec::new();
    for pair in cuts.windows(2) {
        let [low, high] = pair else { continue };
        if high % low != 0 {
            return None;
        }
        sizes.extend(primes(high / low));
    }
    sizes.reverse();
    let mesh = AxisMesh { sizes, devices: devices.clone() };
    let refined = shardings.map(|sharding| on_primes(sharding, &mesh));
    refined
        .iter()
        .all(Option::is_some)
        .then(|| refined.map(|s| s.unwrap_or_else(|| AxisSharding::replicated(mesh.clone(), 0))))
}

/// A sharding on a mesh of prime axes whose borders are among its own.
fn on_primes(sharding: &AxisSharding, mesh: &AxisMesh) -> Option<AxisSharding> {
    let axes = |parts: &[SubAxis]| -> Result<Vec<SubAxis>, ()> {
        let mut out = Vec::new();
        for &part in parts {
            let from = sharding.mesh.stride(part);
            let (mut left, before) = (from * part.size, out.len());
            for (axis, &size) in mesh.sizes.iter().enumerate() {
                let prime = SubAxis { axis, pre: 1, size };
                let stride = mesh.stride(prime);
                if stride >= from && stride * size == left {
                    out.push(prime);
                    left = stride;
                }
            }
            if left != from && out.len() > before || out.len() == before {
                return Err(());
            }
        }
        Ok(out)
    };
    sharding.map_lists(mesh.clone(), axes).ok()
}

/// The prime factors, the least first.
pub fn primes(mut n: i64) -> Vec<i64> {
    let (mut out, mut prime) = (Vec::new(), 2);
    while n > 1 {
        while n % prime == 0 {
            out.push(prime);
            n /= prime;
        }
        prime = if prime * prime > n { n.max(prime + 1) } else { prime + 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_products_of_their_primes() {
        for n in 1..300 {
            let found = primes(n);
            assert_eq!(found.iter().product::<i64>(), n);
            assert!(found.iter().all(|&p| (2..p).all(|d| p % d != 0)) && found.is_sorted(), "{n} {found:?}");
        }
    }
}
