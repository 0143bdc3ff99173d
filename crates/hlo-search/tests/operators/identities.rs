//! The identities, and that adjoints are adjoints, along one axis.

use crate::AXES;
use crate::array::Array;
use crate::number::{Number, Residue};
use crate::random::Random;
use hlo_search::{IDENTITIES, Operator, Side, Space};

/// By device, and within a pipeline by piece. A value that all devices have is that of one device.
type Value = Vec<Vec<Array<Residue>>>;

/// What becomes of one piece, from all devices to all devices.
type OfPiece<'a> = &'a dyn Fn(&[&Array<Residue>]) -> Vec<Array<Residue>>;

fn draw(space: Space, dims: &[usize], n: u64, random: &mut Random) -> Value {
    let n_devices = if space == Space::One { 1 } else { n };
    (0..n_devices).map(|_| vec![Array::draw(dims, random)]).collect()
}

fn apply(operator: Operator, x: &Value, n: usize) -> Value {
    let each_piece = |f: OfPiece<'_>| -> Value {
        let by_piece: Vec<_> =
            (0..x[0].len()).map(|piece| f(&x.iter().map(|device| &device[piece]).collect::<Vec<_>>())).collect();
        (0..by_piece[0].len()).map(|device| by_piece.iter().map(|piece| piece[device].clone()).collect()).collect()
    };
    match operator {
        Operator::Partition(dim) => each_piece(&|all| {
            assert_eq!(all.len(), 1, "{operator} takes one value");
            let len = all[0].dims[dim] / n;
            (0..n).map(|device| all[0].part(dim, device * len, len)).collect()
        }),
        Operator::Combine(dim) => each_piece(&|all| vec![Array::join(all, dim)]),
        Operator::Replicate => each_piece(&|all| {
            assert_eq!(all.len(), 1, "{operator} takes one value");
            vec![all[0].clone(); n]
        }),
        Operator::Reduce => each_piece(&|all| vec![Array::sum(all)]),
        Operator::Pipeline { dim, n_pieces } => {
            let split = |device: &Vec<Array<Residue>>| {
                let (whole, n_pieces) = (&device[0], n_pieces as usize);
                let len = whole.dims[dim] / n_pieces;
                (0..n_pieces).map(|piece| whole.part(dim, piece * len, len)).collect()
            };
            x.iter().map(split).collect()
        }
        Operator::Batch { dim, n_pieces } => {
            let joined = |device: &Vec<Array<Residue>>| {
                assert_eq!(device.len(), n_pieces as usize);
                vec![Array::join(&device.iter().collect::<Vec<_>>(), dim)]
            };
            x.iter().map(joined).collect()
        }
    }
}

fn run(operators: &[Operator], x: &Value, n: usize) -> Value {
    operators.iter().fold(x.clone(), |x, &operator| apply(operator, &x, n))
}

fn right_side(side: Side, x: &Value, n: usize) -> Value {
    let part = |x: &Array<Residue>, dim: usize, device: usize| x.part(dim, device * (x.dims[dim] / n), x.dims[dim] / n);
    let from_all = |of: &dyn Fn(usize) -> Vec<Array<Residue>>, join: &dyn Fn(&[&Array<Residue>]) -> Array<Residue>| {
        (0..n).map(|to| vec![join(&of(to).iter().collect::<Vec<_>>())]).collect()
    };
    match side {
        Side::Operators(operators) => run(operators, x, n),
        Side::TimesAxis => {
            let n_times = |array: &Array<Residue>| array.map(|a| (1..n).fold(a, |sum, _| sum.add(a)));
            x.iter().map(|device| device.iter().map(n_times).collect()).collect()
        }
        Side::ReduceScatter(dim) => {
            from_all(&|to| x.iter().map(|device| part(&device[0], dim, to)).collect(), &|all| Array::sum(all))
        }
        Side::AllToAll(from, cut) => {
            from_all(&|to| x.iter().map(|device| part(&device[0], cut, to)).collect(), &|all| Array::join(all, from))
        }
    }
}

#[test]
fn identities_hold_or_have_a_counterexample() {
    for identity in IDENTITIES {
        for n in AXES {
            let mut random = Random::new(n);
            // Four times the axis in one dim, six times in the other: pieces and parts divide both.
            let dims = [4 * n as usize, 6 * n as usize];
            let n_equal = (0..10)
                .filter(|_| {
                    let x = draw(identity.space, &dims, n, &mut random);
                    run(identity.left, &x, n as usize) == right_side(identity.right, &x, n as usize)
                })
                .count();
            assert_eq!(n_equal, if identity.holds { 10 } else { 0 }, "{identity:?} on {n} devices");
        }
    }
    assert!(IDENTITIES.iter().any(|identity| identity.holds) && IDENTITIES.iter().any(|identity| !identity.holds));
}

#[test]
fn adjoints_move_to_the_other_side_of_an_inner_product() {
    let inner_product = |x: &Value, y: &Value| {
        let pairs = x.iter().flatten().zip(y.iter().flatten());
        pairs.fold(Residue::zero(), |sum, (a, b)| sum.add(a.inner_product(b)))
    };
    let operators = [
        Operator::Partition(0),
        Operator::Partition(1),
        Operator::Combine(0),
        Operator::Combine(1),
        Operator::Replicate,
        Operator::Reduce,
        Operator::Pipeline { dim: 1, n_pieces: 2 },
    ];
    for operator in operators {
        assert_eq!(operator.adjoint().adjoint(), operator);
        for n in AXES {
            let mut random = Random::new(n);
            let takes_one = matches!(operator, Operator::Partition(_) | Operator::Replicate);
            let space = if takes_one { Space::One } else { Space::Each };
            let x = draw(space, &[4 * n as usize, 6 * n as usize], n, &mut random);
            let image = apply(operator, &x, n as usize);
            let y: Value =
                image.iter().map(|d| d.iter().map(|a| Array::draw(&a.dims, &mut random)).collect()).collect();
            let back = apply(operator.adjoint(), &y, n as usize);
            assert_eq!(inner_product(&image, &y), inner_product(&x, &back), "{operator} on {n} devices");
            // The other three are the adjoints of these: no operator is its own.
            assert_ne!(operator.adjoint(), operator);
        }
    }
}
