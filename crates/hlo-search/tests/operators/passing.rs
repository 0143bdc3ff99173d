//! What a reduction passes: every row of the table, before and behind the op.

use crate::AXES;
use crate::array::Array;
use crate::number::{Number, Residue};
use crate::random::Random;
use hlo_search::{LocalOp, OperandState, PASSINGS, Passes, Passing};

/// The shapes of an op's operands.
fn operand_dims(op: LocalOp) -> Vec<Vec<usize>> {
    let matrix = vec![4, 6];
    match op {
        LocalOp::Scale => vec![matrix, vec![]],
        LocalOp::Dot => vec![matrix, vec![6, 5]],
        // An image of eight places and two channels; three places of the kernel, three channels of the result.
        LocalOp::Convolution => vec![vec![8, 2], vec![3, 2, 3]],
        _ => vec![matrix.clone(), matrix],
    }
}

fn run<T: Number>(op: LocalOp, operands: &[Array<T>]) -> Array<T> {
    let (a, b) = (&operands[0], operands.last().expect("an operand"));
    let sum = |terms: &mut dyn Iterator<Item = T>| terms.fold(T::zero(), T::add);
    let padded_with = |value: T| {
        let dims: Vec<usize> = a.dims.iter().map(|len| len + 2).collect();
        Array::from_fn(&dims, |index| {
            let is_inside = index.iter().zip(&a.dims).all(|(i, len)| (1..=*len).contains(i));
            if is_inside { a.at(&index.iter().map(|i| i - 1).collect::<Vec<_>>()) } else { value }
        })
    };
    match op {
        LocalOp::Negate => a.map(T::neg),
        LocalOp::Transpose => Array::from_fn(&[a.dims[1], a.dims[0]], |i| a.at(&[i[1], i[0]])),
        LocalOp::Reshape => Array { dims: vec![a.data.len()], data: a.data.clone() },
        LocalOp::Slice => a.part(1, 2, 3),
        LocalOp::PadWithZeros => padded_with(T::zero()),
        LocalOp::PadWithOnes => padded_with(T::one()),
        LocalOp::Concatenate => Array::join(&[a, b], 0),
        LocalOp::Sum => a.fold(1, T::add),
        LocalOp::Product => a.fold(1, T::mul),
        LocalOp::Largest => a.fold(1, T::max),
        LocalOp::Broadcast => Array::from_fn(&[3, a.dims[0], a.dims[1]], |i| a.at(&i[1..])),
        LocalOp::Scale => a.map(|x| x.mul(b.at(&[]))),
        LocalOp::Add => a.zip(b, T::add),
        LocalOp::Subtract => a.zip(b, |x, y| x.add(y.neg())),
        LocalOp::Multiply => a.zip(b, T::mul),
        LocalOp::Divide => a.zip(b, T::div),
        LocalOp::Maximum => a.zip(b, T::max),
        LocalOp::Dot => Array::from_fn(&[a.dims[0], b.dims[1]], |i| {
            sum(&mut (0..a.dims[1]).map(|k| a.at(&[i[0], k]).mul(b.at(&[k, i[1]]))))
        }),
        LocalOp::Convolution => Array::from_fn(&[a.dims[0] - b.dims[0] + 1, b.dims[2]], |i| {
            let taps = (0..b.dims[0]).flat_map(|k| (0..b.dims[1]).map(move |c| (k, c)));
            sum(&mut taps.map(|(k, c)| a.at(&[i[0] + k, c]).mul(b.at(&[k, c, i[1]]))))
        }),
        LocalOp::ConvertToNarrower | LocalOp::ConvertToWider => unreachable!("conversions have a test of their own"),
    }
}

/// The results with the reductions before the op, and with one behind it, on drawn operands.
fn before_and_behind<T: Number>(row: &Passing, n: u64, random: &mut Random) -> (Array<T>, Array<T>) {
    let dims = operand_dims(row.op);
    // By operand and device.
    let draw = |(state, dims): (&OperandState, &Vec<usize>)| -> Vec<Array<T>> {
        match state {
            OperandState::Replicated => vec![Array::draw(dims, random); n as usize],
            OperandState::Partial => (0..n).map(|_| Array::draw(dims, random)).collect(),
        }
    };
    let operands: Vec<_> = row.operands.iter().zip(&dims).map(draw).collect();
    let reduced = |(state, devices): (&OperandState, &Vec<Array<T>>)| match state {
        OperandState::Replicated => devices[0].clone(),
        OperandState::Partial => Array::sum(&devices.iter().collect::<Vec<_>>()),
    };
    let before = run(row.op, &row.operands.iter().zip(&operands).map(reduced).collect::<Vec<_>>());
    let on_device =
        |device: usize| run(row.op, &operands.iter().map(|devices| devices[device].clone()).collect::<Vec<_>>());
    let results: Vec<_> = (0..n as usize).map(on_device).collect();
    (before, Array::sum(&results.iter().collect::<Vec<_>>()))
}

fn rows(passes: &[Passes]) -> impl Iterator<Item = &'static Passing> {
    let is_conversion = |row: &&Passing| matches!(row.op, LocalOp::ConvertToNarrower | LocalOp::ConvertToWider);
    PASSINGS.iter().filter(move |row| passes.contains(&row.passes) && !is_conversion(row))
}

#[test]
fn what_passes_is_equal_in_a_field() {
    for (row, n) in rows(&[Passes::Bits, Passes::Exact]).flat_map(|row| AXES.map(|n| (row, n))) {
        let mut random = Random::new(n);
        for _ in 0..20 {
            let (before, behind) = before_and_behind::<Residue>(row, n, &mut random);
            assert_eq!(before, behind, "{row:?} on {n} devices");
        }
    }
}

#[test]
fn what_passes_with_the_same_bits_has_the_same_bits() {
    let bits = |array: &Array<f32>| array.data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (row, n) in rows(&[Passes::Bits, Passes::Exact]).flat_map(|row| AXES.map(|n| (row, n))) {
        let mut random = Random::new(n);
        let pairs: Vec<_> = (0..20).map(|_| before_and_behind::<f32>(row, n, &mut random)).collect();
        let n_equal = pairs.iter().filter(|(before, behind)| bits(before) == bits(behind)).count();
        match row.passes {
            Passes::Bits => assert_eq!(n_equal, pairs.len(), "{row:?} on {n} devices"),
            // The other class is needed: rounding tells the two apart.
            _ => assert!(n_equal < pairs.len(), "{row:?} on {n} devices"),
        }
    }
}

#[test]
fn what_does_not_pass_has_counterexamples() {
    for (row, n) in rows(&[Passes::No]).flat_map(|row| AXES.map(|n| (row, n))) {
        let (before, behind) = before_and_behind::<f64>(row, n, &mut Random::new(n));
        assert_eq!(before.dims, behind.dims);
        let pairs = || before.data.iter().zip(&behind.data);
        let largest = pairs().fold(0.0_f64, |most, (a, _)| most.max(a.abs()));
        let difference = pairs().fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(difference > 1e-3 * largest, "{row:?} on {n} devices: {difference} of {largest}");
    }
}

#[test]
fn conversions_pass_as_the_table_says() {
    let of = |op: LocalOp| PASSINGS.iter().find(|row| row.op == op).map(|row| row.passes);
    assert_eq!(of(LocalOp::ConvertToWider), Some(Passes::Exact));
    assert_eq!(of(LocalOp::ConvertToNarrower), Some(Passes::Reassociated));
    for n in AXES {
        let mut random = Random::new(n);
        // Integers whose sums have no rounding: widening changes no number.
        let narrow: Vec<f32> = (0..n).map(|_| random.below(1 << 20) as f32).collect();
        let widened: f64 = narrow.iter().map(|&x| f64::from(x)).sum();
        assert_eq!(f64::from(narrow.iter().sum::<f32>()), widened);
        // Numbers that the narrower type lacks: rounded parts have another sum even if that sum is exact.
        let wide: Vec<f64> = (0..n).map(|_| 1.0 + random.below(1 << 40) as f64 / (1_u64 << 40) as f64).collect();
        let (exact, of_rounded): (f64, f64) = (wide.iter().sum(), wide.iter().map(|&x| f64::from(x as f32)).sum());
        assert!(exact != of_rounded && (exact - of_rounded).abs() <= n as f64 * 2.0 * f64::from(f32::EPSILON));
        let (before, behind) = (exact as f32, wide.iter().map(|&x| x as f32).sum::<f32>());
        assert!((before - behind).abs() <= before * n as f32 * f32::EPSILON, "{before} {behind}");
    }
}

#[test]
fn every_op_has_its_rows() {
    for (at, row) in PASSINGS.iter().enumerate() {
        assert!(row.operands.contains(&OperandState::Partial), "{row:?}: nothing to reduce");
        let is_same = |other: &Passing| other.op == row.op && other.operands == row.operands;
        assert!(!PASSINGS[..at].iter().any(is_same), "{row:?}: twice");
    }
}
