//! Sorts in shared memory: rows that are sorted as a whole, and rows whose halves are merged.

use super::{Case, case, check_all};
use std::collections::BTreeMap;

/// Comparators of a small number, a float and a position.
const COMPARATORS: [&str; 4] = [
    "ROOT less = pred[] compare(a, b), direction=LT",
    "ROOT more = pred[] compare(x, y), direction=GT, type=TOTALORDER",
    "ROOT at_least = pred[] compare(a, b), direction=GE",
    "same = pred[] compare(a, b), direction=EQ
  more = pred[] compare(x, y), direction=GT, type=TOTALORDER
  less = pred[] compare(a, b), direction=LT
  ROOT both = pred[] select(same, more, less)",
];

/// A sort of small numbers, of which many are equal, with floats and positions, along a dim of `dims`; of sorted halves, if so.
fn sort_case(dims: &[i64], along: usize, layout: &str, comparator: &str, has_halves: bool) -> Case {
    let list = |dims: &[i64]| dims.iter().map(i64::to_string).collect::<Vec<String>>().join(",");
    let all = format!("[{}]", list(dims));
    let [floats, numbers, places] = ["f32", "s8", "s32"].map(|dtype| format!("{dtype}{all}{layout}"));
    let sort = |(x, n, i): (&str, &str, &str), operands: &str, along: usize, more: &str| {
        format!("({n}, {x}, {i}) sort({operands}), dimensions={{{along}}}, is_stable=true, to_apply=order{more}")
    };
    let marked = ", frontend_attributes={hlo_opt.sorted=\"halves\"}";
    let sorted = sort((&floats, &numbers, &places), "number, x, place", along, "");
    let body = if has_halves {
        let mut halves = dims.to_vec();
        halves[along] /= 2;
        halves.insert(along, 2);
        let cut = format!("[{}]", list(&halves));
        let [f, n, i] = ["f32", "s8", "s32"].map(|dtype| format!("{dtype}{cut}"));
        let (first, second) = (
            sort((&f, &n, &i), "n2, x2, i2", along + 1, ""),
            sort((&floats, &numbers, &places), "n4, x4, i4", along, marked),
        );
        format!(
            "n2 = {n} reshape(number)\n  x2 = {f} reshape(x)\n  i2 = {i} reshape(place)\n  halves = {first}
  n3 = {n} get-tuple-element(halves), index=0\n  x3 = {f} get-tuple-element(halves), index=1
  i3 = {i} get-tuple-element(halves), index=2
  n4 = {numbers} reshape(n3)\n  x4 = {floats} reshape(x3)\n  i4 = {places} reshape(i3)\n  ROOT out = {second}"
        )
    } else {
        format!("ROOT out = {sorted}")
    };
    let text = format!(
        "HloModule sorts
order {{
  a = s8[] parameter(0)
  b = s8[] parameter(1)
  x = f32[] parameter(2)
  y = f32[] parameter(3)
  i = s32[] parameter(4)
  j = s32[] parameter(5)
  {comparator}
}}
ENTRY main {{
  x = {floats} parameter(0)
  four = f32[] constant(4)
  fours = {floats} broadcast(four), dimensions={{}}
  scaled = {floats} multiply(x, fours)
  number = {numbers} convert(scaled)
  place = {places} iota(), iota_dimension={along}
  {body}
}}"
    );
    case(&format!("sort {all}{layout} along {along}, halves {has_halves}: {comparator}"), &text)
}

#[test]
fn rows_are_sorted_as_by_the_evaluator() {
    let shapes: [(&[i64], usize, &str); 14] = [
        (&[1], 0, ""),
        (&[2], 0, ""),
        (&[37], 0, ""),
        (&[3, 5], 1, ""),
        (&[70, 8], 1, ""),
        (&[70, 8], 0, ""),
        (&[8, 70], 1, "{0,1}"),
        (&[5, 33, 6], 1, ""),
        (&[5, 33, 6], 1, "{1,0,2}"),
        (&[129, 64], 1, ""),
        (&[3, 1000], 1, ""),
        (&[2, 1025], 1, ""),
        (&[2, 4096], 1, ""),
        (&[2049, 3], 0, ""),
    ];
    let cases: Vec<Case> = shapes
        .iter()
        .zip(COMPARATORS.iter().cycle())
        .map(|(&(dims, along, layout), comparator)| sort_case(dims, along, layout, comparator, false))
        .collect();
    assert_eq!(check_all(&cases), BTreeMap::new());
}

#[test]
fn sorted_halves_are_merged_as_by_the_evaluator() {
    let shapes: [(&[i64], usize, &str); 8] = [
        (&[2], 0, ""),
        (&[3, 30], 1, ""),
        (&[30, 3], 0, ""),
        (&[2, 2048], 1, ""),
        (&[2, 2050], 1, ""),
        (&[1, 8192], 1, ""),
        (&[3, 6002], 1, ""),
        (&[5000, 2], 0, "{0,1}"),
    ];
    let cases: Vec<Case> = shapes
        .iter()
        .flat_map(|&(dims, along, layout)| {
            // Halves that were sorted by one that says of an element that it comes before itself are not as the whole would be.
            let strict = COMPARATORS.iter().filter(|comparator| !comparator.contains("at_least"));
            strict.map(move |comparator| sort_case(dims, along, layout, comparator, true))
        })
        .collect();
    assert_eq!(check_all(&cases), BTreeMap::new());
}

/// A fusion that gives the first `n_kept` of each row's numbers, sorted, and where they stood; of rows whose halves are sorted, if so.
fn first_case(dims: &[i64], along: usize, n_kept: i64, has_halves: bool) -> Case {
    let list = |dims: &[i64]| dims.iter().map(i64::to_string).collect::<Vec<String>>().join(",");
    let mut kept = dims.to_vec();
    kept[along] = n_kept;
    let limits = kept.iter().map(|n| format!("[0:{n}]")).collect::<Vec<String>>().join(", ");
    let (all, kept) = (list(dims), list(&kept));
    let mut cut = dims.to_vec();
    cut[along] /= 2;
    cut.insert(along, 2);
    let cut = list(&cut);
    let (halves, marked) = match has_halves {
        true => (
            format!(
                "y = f32[{cut}] reshape(x)\n  z = f32[{cut}] sort(y), dimensions={{{}}}, to_apply=one\n  w = f32[{all}] reshape(z)",
                along + 1
            ),
            ", frontend_attributes={hlo_opt.sorted=\"halves\"}",
        ),
        false => (format!("w = f32[{all}] negate(x)"), ""),
    };
    let text = format!(
        "HloModule first
one {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT less = pred[] compare(a, b), direction=LT, type=TOTALORDER
}}
order {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT less = pred[] compare(a, b), direction=LT, type=TOTALORDER
}}
fused {{
  w = f32[{all}] parameter(0)
  places = s32[{all}] iota(), iota_dimension={along}
  sorted = (f32[{all}], s32[{all}]) sort(w, places), dimensions={{{along}}}, is_stable=true, to_apply=order{marked}
  values = f32[{all}] get-tuple-element(sorted), index=0
  at = s32[{all}] get-tuple-element(sorted), index=1
  first_at = s32[{kept}] slice(at), slice={{{limits}}}
  first = f32[{kept}] slice(values), slice={{{limits}}}
  ROOT both = (s32[{kept}], f32[{kept}]) tuple(first_at, first)
}}
ENTRY main {{
  x = f32[{all}] parameter(0)
  {halves}
  ROOT f = (s32[{kept}], f32[{kept}]) fusion(w), kind=kLoop, calls=fused
}}"
    );
    case(&format!("first {n_kept} of [{all}] along {along}, halves {has_halves}"), &text)
}

#[test]
fn first_elements_of_sorted_rows_are_those_of_the_evaluator() {
    let cases = [
        first_case(&[6, 4], 1, 2, false),
        first_case(&[3, 50], 1, 50, false),
        first_case(&[50, 3], 0, 7, false),
        first_case(&[2, 4096], 1, 1, false),
        first_case(&[2, 6000], 1, 2500, true),
        first_case(&[5000, 2], 0, 3, true),
    ];
    assert_eq!(check_all(&cases), BTreeMap::new());
}
