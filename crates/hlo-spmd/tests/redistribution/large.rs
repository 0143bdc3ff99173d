//! Meshes of five and six prime axes, as searched; and how long a plan takes.

use crate::pairs::{Draw, drawn_pair};
use crate::run::{plan, plan_on};
use hlo_cluster::Cluster;
use std::time::Instant;

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn five_and_six_prime_axes_stay_near_the_bound() {
    let cluster = Cluster::from_arg("[(node,8,50,5),(gpu,8,400,2)]").unwrap_or_else(|error| panic!("{error}"));
    for mesh in [&[8, 4][..], &[8, 8]] {
        let mut draw = Draw(31);
        let (mut bound, mut bytes, mut n_searched) = (0, 0, 0);
        let mut slowest = [0.0f64; 2];
        for _ in 0..12 {
            let (from, to) = drawn_pair(&mut draw, mesh, 3);
            let began = Instant::now();
            let planned = plan(&[64, 64, 64], &from, &to).unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
            let after = began.elapsed().as_secs_f64();
            let on_cluster = plan_on(&[64, 64, 64], &from, &to, Some(&cluster))
                .unwrap_or_else(|error| panic!("{from} -> {to}: {error}"));
            slowest = [slowest[0].max(after), slowest[1].max(began.elapsed().as_secs_f64() - after)];
            let steps = planned.without_pieces.unwrap_or_else(|| panic!("{from} -> {to}: expected steps"));
            n_searched += usize::from(planned.is_searched);
            assert_eq!(planned.price.bytes, planned.bound_bytes, "{from} -> {to}");
            assert!(on_cluster.price.bytes >= planned.bound_bytes, "{from} -> {to}");
            bound += planned.bound_bytes;
            bytes += steps.bytes;
        }
        println!(
            "{mesh:?}: {n_searched} of 12 searched, steps {:.3} of the bound, slowest plan {slowest:?} s",
            bytes as f64 / bound as f64
        );
        assert!((bytes as f64) < 1.15 * bound as f64, "{bytes} {bound}");
    }
}
