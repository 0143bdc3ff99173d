//! Elements at places that are known at run time alone: clamped, left out, wrapped, in one step and in two, and as sums over a mask.

use hlo_tests::random_module::Rng;

use super::Program;

const N: i64 = 8;

/// A place: the input index, plus a number, kept in bounds or not.
#[derive(Clone, Copy, PartialEq)]
struct At {
    plus: i64,
    /// Added in two steps, which is the same for numbers that wrap.
    is_in_two: bool,
    /// Clamped to these bounds before.
    clamp: Option<(i64, i64)>,
    /// Through a narrower type.
    narrow: Option<&'static str>,
    dtype: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Read {
    Slice(i64),
    Gather(i64),
    /// The first slice is `4` long, and another number is added within it.
    SliceOfSlice(i64),
    MaskedSum,
    MaskedDot,
    Update,
    Scatter,
    ScatterAdd,
    SelectMask,
    AddMask,
    Mask(&'static str),
    /// The iota with the number on the other side.
    ShiftedMask(&'static str),
}

pub(super) fn pair(rng: &mut Rng) -> (Program, Program) {
    let at = At {
        plus: *rng.pick(&[0, 0, 1, -1, 3, 2147483647]),
        is_in_two: false,
        clamp: rng.one_in(3).then(|| *rng.pick(&[(0, N - 1), (0, N), (1, 5)])),
        narrow: rng.one_in(6).then(|| *rng.pick(&["s8", "u8", "s64", "u32"])),
        dtype: rng.pick::<&'static str>(&["s32", "s32", "u32", "s8", "u8"]),
    };
    let direction = |rng: &mut Rng| *rng.pick::<&'static str>(&["LT", "GE", "EQ", "NE", "GT", "LE"]);
    let kin = rng.below(3);
    let read = |rng: &mut Rng| match kin {
        0 => match rng.below(6) {
            0 | 1 => Read::Slice(1),
            2 => Read::Gather(1),
            3 => Read::SliceOfSlice(1),
            4 => Read::MaskedSum,
            _ => Read::MaskedDot,
        },
        1 => match rng.below(5) {
            0 => Read::Update,
            1 => Read::Scatter,
            2 => Read::ScatterAdd,
            3 => Read::SelectMask,
            _ => Read::AddMask,
        },
        _ => match rng.below(4) {
            0 | 1 => Read::Mask(direction(rng)),
            _ => Read::ShiftedMask(direction(rng)),
        },
    };
    let first = read(rng);
    let second = match (rng.below(3), first) {
        (0, _) => first,
        (_, Read::Mask(direction)) => Read::ShiftedMask(direction),
        (_, _) => read(rng),
    };
    let mut other = at;
    other.is_in_two = rng.one_in(2);
    match rng.below(8) {
        0 => other.plus = *rng.pick(&[0, 1, -1, 3, 7]),
        1 => other.clamp = Some((0, N - 1)),
        2 => other.clamp = None,
        3 => other.narrow = None,
        _ => {}
    }
    (write(at, first), write(other, second))
}

fn write(at: At, read: Read) -> Program {
    let mut p = Program::single();
    let x = p.param("f32[8]");
    let u = p.param("f32[]");
    let param = p.param(&format!("{}[]", at.dtype));
    let (mut place, mut dtype) = (param, at.dtype);
    if let Some(narrow) = at.narrow {
        place = p.add(&format!("{narrow}[]"), &format!("convert({place})"));
        dtype = narrow;
    }
    let scalar = format!("{dtype}[]");
    let bits = match dtype {
        "s8" | "u8" => 8,
        "s64" => 64,
        _ => 32,
    };
    let wrapped = |number: i64| match (dtype, bits) {
        ("u8" | "u32", bits) => number.rem_euclid(1 << bits),
        (_, 8) => i64::from(number as i8),
        _ => number,
    };
    let steps = if at.is_in_two { vec![at.plus + 5, -5] } else { vec![at.plus] };
    for plus in steps {
        let plus = if bits == 32 && dtype == "s32" { i64::from(plus as i32) } else { plus };
        let plus = p.constant(&scalar, &wrapped(plus).to_string());
        place = p.add(&scalar, &format!("add({place}, {plus})"));
    }
    if let Some((low, high)) = at.clamp {
        let (low, high) = (p.constant(&scalar, &low.to_string()), p.constant(&scalar, &high.to_string()));
        place = p.add(&scalar, &format!("clamp({low}, {place}, {high})"));
    }
    let (shape, value) = read.write(&mut p, &x, &u, &place, dtype);
    p.give(shape, &value);
    p
}

/// Compares an iota with a place.
fn mask(p: &mut Program, place: &str, dtype: &str, direction: &str) -> String {
    let wide = format!("{dtype}[8]");
    let iota = p.add(&wide, "iota(), iota_dimension=0");
    let everywhere = p.add(&wide, &format!("broadcast({place}), dimensions={{}}"));
    p.add("pred[8]", &format!("compare({iota}, {everywhere}), direction={direction}"))
}

const ROW: &str =
    "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=0";

impl Read {
    fn write(self, p: &mut Program, x: &str, u: &str, place: &str, dtype: &str) -> (&'static str, String) {
        let zero = p.constant("f32[]", "0");
        let shape = "f32[8]";
        match self {
            Read::Slice(n) => {
                let row =
                    p.add(&format!("f32[{n}]"), &format!("dynamic-slice({x}, {place}), dynamic_slice_sizes={{{n}}}"));
                ("f32[]", p.add("f32[]", &format!("reshape({row})")))
            }
            Read::Gather(n) => {
                let index = p.add(&format!("{dtype}[1]"), &format!("reshape({place})"));
                let row = p.add(
                    &format!("f32[{n}]"),
                    &format!(
                        "gather({x}, {index}), offset_dims={{0}}, collapsed_slice_dims={{}}, start_index_map={{0}}, \
                         index_vector_dim=0, slice_sizes={{{n}}}"
                    ),
                );
                ("f32[]", p.add("f32[]", &format!("reshape({row})")))
            }
            Read::SliceOfSlice(plus) => {
                let four = p.add("f32[4]", &format!("dynamic-slice({x}, {place}), dynamic_slice_sizes={{4}}"));
                let row = p.add("f32[1]", &format!("slice({four}), slice={{[{}:{plus}]}}", plus - 1));
                ("f32[]", p.add("f32[]", &format!("reshape({row})")))
            }
            Read::MaskedSum => {
                let mask = mask(p, place, dtype, "EQ");
                let zeros = p.splat(shape, "0");
                let chosen = p.add(shape, &format!("select({mask}, {x}, {zeros})"));
                ("f32[]", p.add("f32[]", &format!("reduce({chosen}, {zero}), dimensions={{0}}, to_apply=%add")))
            }
            Read::MaskedDot => {
                let mask = mask(p, place, dtype, "EQ");
                let ones = p.add(shape, &format!("convert({mask})"));
                let text = format!("dot({ones}, {x}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}");
                ("f32[]", p.add("f32[]", &text))
            }
            Read::Update => {
                let row = p.add("f32[1]", &format!("reshape({u})"));
                (shape, p.add(shape, &format!("dynamic-update-slice({x}, {row}, {place})")))
            }
            Read::Scatter | Read::ScatterAdd => {
                let index = p.add(&format!("{dtype}[1]"), &format!("reshape({place})"));
                let reducer = if self == Read::Scatter { "second" } else { "add" };
                (shape, p.add(shape, &format!("scatter({x}, {index}, {u}), {ROW}, to_apply=%{reducer}")))
            }
            Read::SelectMask | Read::AddMask => {
                let mask = mask(p, place, dtype, "EQ");
                let us = p.add(shape, &format!("broadcast({u}), dimensions={{}}"));
                if self == Read::SelectMask {
                    return (shape, p.add(shape, &format!("select({mask}, {us}, {x})")));
                }
                let zeros = p.splat(shape, "0");
                let row = p.add(shape, &format!("select({mask}, {us}, {zeros})"));
                (shape, p.add(shape, &format!("add({x}, {row})")))
            }
            Read::Mask(direction) => {
                let mask = mask(p, place, dtype, direction);
                let us = p.add(shape, &format!("broadcast({u}), dimensions={{}}"));
                (shape, p.add(shape, &format!("select({mask}, {us}, {x})")))
            }
            Read::ShiftedMask(direction) => {
                // The place minus the iota, beside zero: other where the difference wraps.
                let wide = format!("{dtype}[8]");
                let iota = p.add(&wide, "iota(), iota_dimension=0");
                let everywhere = p.add(&wide, &format!("broadcast({place}), dimensions={{}}"));
                let apart = p.add(&wide, &format!("subtract({iota}, {everywhere})"));
                let zeros = p.splat(&wide, "0");
                let mask = p.add("pred[8]", &format!("compare({apart}, {zeros}), direction={direction}"));
                let us = p.add(shape, &format!("broadcast({u}), dimensions={{}}"));
                (shape, p.add(shape, &format!("select({mask}, {us}, {x})")))
            }
        }
    }
}
