//! Bitcasts, whose result depends on the order of elements in memory, beside reshapes, transposes and copies.

use hlo_tests::random_module::Rng;

use super::{Program, list};

#[derive(Clone)]
enum Step {
    /// To this type and these dims with this layout: elements stay where they are in memory.
    Bitcast(Option<&'static str>, Vec<usize>, Vec<usize>),
    /// The bits of another type of the same size.
    Convert(&'static str),
    /// The same array in another layout.
    Copy(Vec<usize>),
    Reshape(Vec<usize>),
    Transpose(Vec<usize>),
    Add,
}

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let dims = rng.pick(&[vec![2, 3], vec![3, 2], vec![2, 2], vec![2, 2, 3], vec![6], vec![1, 6]]).clone();
    let steps: Vec<Step> = (0..1 + rng.below(4)).map(|_| step(rng)).collect();
    let mut other = steps.clone();
    let k = rng.below(other.len());
    match rng.below(4) {
        0 => other[k] = step(rng),
        // What a bitcast is if memory is in row-major order.
        1 => {
            if let Step::Bitcast(_, to, _) = &other[k] {
                other[k] = Step::Reshape(to.clone());
            }
        }
        2 => other.insert(k, Step::Copy(rng.shuffled(3))),
        _ => {
            let n = other.len();
            other.swap(k, n - 1);
        }
    }
    (write(&dims, &steps), write(&dims, &other))
}

fn step(rng: &mut Rng) -> Step {
    match rng.below(6) {
        0 | 1 => {
            let dtype = *rng.pick::<&'static str>(&["u32", "f32", "s32"]);
            let to = if rng.one_in(2) { vec![0, 1, 2] } else { rng.shuffled(3) };
            Step::Bitcast(rng.one_in(2).then_some(dtype), to, rng.shuffled(3))
        }
        2 => Step::Convert(rng.pick::<&'static str>(&["u32", "f32", "s32"])),
        3 => Step::Copy(rng.shuffled(3)),
        4 => match rng.one_in(2) {
            true => Step::Reshape(rng.shuffled(3)),
            false => Step::Transpose(rng.shuffled(3)),
        },
        _ => Step::Add,
    }
}

/// An order of three, as one of so many.
fn order(of_three: &[usize], rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = of_three.iter().copied().filter(|&k| k < rank).collect();
    order.extend((3..rank).collect::<Vec<_>>());
    order
}

fn shape(dtype: &str, dims: &[usize], layout: &[usize]) -> String {
    format!("{dtype}[{}]{{{}}}", list(dims), list(layout))
}

fn row_major(rank: usize) -> Vec<usize> {
    (0..rank).rev().collect()
}

fn write(dims: &[usize], steps: &[Step]) -> Program {
    let mut p = Program::single();
    let (mut dtype, mut dims, mut layout) = ("f32", dims.to_vec(), row_major(dims.len()));
    let mut value = p.param(&shape(dtype, &dims, &layout));
    for step in steps {
        let permuted = |by: &[usize]| order(by, dims.len()).iter().map(|&k| dims[k]).collect::<Vec<_>>();
        let (to_dtype, to_dims, to_layout, text) = match step {
            Step::Bitcast(to, by, with) => {
                (to.unwrap_or(dtype), permuted(by), order(with, dims.len()), format!("bitcast({value})"))
            }
            Step::Convert(to) => (*to, dims.clone(), layout.clone(), format!("bitcast-convert({value})")),
            Step::Copy(with) => (dtype, dims.clone(), order(with, dims.len()), format!("copy({value})")),
            Step::Reshape(by) => (dtype, permuted(by), row_major(dims.len()), format!("reshape({value})")),
            Step::Transpose(by) => {
                let by = order(by, dims.len());
                let text = format!("transpose({value}), dimensions={{{}}}", list(&by));
                (dtype, permuted(&by), row_major(dims.len()), text)
            }
            Step::Add => (dtype, dims.clone(), layout.clone(), format!("add({value}, {value})")),
        };
        value = p.add(&shape(to_dtype, &to_dims, &to_layout), &text);
        (dtype, dims, layout) = (to_dtype, to_dims, to_layout);
    }
    // Both programs give one type and dims.
    let flat = p.add(&shape(dtype, &[dims.iter().product()], &[0]), &format!("reshape({value})"));
    let n: usize = dims.iter().product();
    let flat = p.add(&format!("u32[{n}]"), &format!("bitcast-convert({flat})"));
    p.give(&format!("u32[{n}]"), &flat);
    p
}
