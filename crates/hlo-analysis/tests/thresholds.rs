//! The values of inputs at which programs take another way.

use hlo_analysis::thresholds::{LeafThresholds, MOST_VALUES, find_thresholds};

fn found(entry: &str) -> Vec<LeafThresholds> {
    let text = format!(
        "HloModule m\n\nless {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = pred[] compare(a, b), direction=LT\n}}\n\n\
         clip {{\n  x = f32[4] parameter(0)\n  low = f32[] parameter(1)\n  lows = f32[4] broadcast(low), dimensions={{}}\n  \
         ROOT r = f32[4] maximum(x, lows)\n}}\n\nENTRY main {{\n{entry}\n}}\n"
    );
    find_thresholds(&hlo_text::parse_module(&text).expect("a module").module)
}

/// The thresholds of an `s32[]` from which `lines` compute what is compared with 7.
fn of_counter(lines: &str) -> Vec<f64> {
    let entry = format!(
        "  x = s32[] parameter(0)\n  one = s32[] constant(1)\n  ten = s32[] constant(10)\n{lines}\n  seven = s32[] constant(7)\n  \
         ROOT p = pred[] compare(y, seven), direction=LT"
    );
    let mut values = found(&entry).remove(0).values;
    values.sort_by(f64::total_cmp);
    values
}

#[test]
fn constants_are_carried_back_through_what_can_be_solved() {
    for (lines, expected) in [
        ("  y = s32[] copy(x)", &[7.0][..]),
        ("  y = s32[] add(x, one)", &[6.0]),
        ("  y = s32[] subtract(x, one)", &[8.0]),
        ("  y = s32[] subtract(ten, x)", &[3.0]),
        ("  y = s32[] multiply(x, ten)", &[0.7]),
        ("  y = s32[] divide(x, ten)", &[70.0]),
        ("  y = s32[] negate(x)", &[-7.0]),
        ("  a = s32[] add(x, one)\n  y = s32[] remainder(a, ten)", &[6.0, 16.0]),
        ("  y = s32[] minimum(x, ten)", &[7.0, 10.0]),
        ("  f = f32[] convert(x)\n  g = f32[] floor(f)\n  y = s32[] convert(f)", &[7.0]),
        ("  y = s32[] multiply(x, x)", &[]),
        ("  y = s32[] xor(x, one)", &[]),
    ] {
        assert_eq!(of_counter(lines), expected, "{lines}");
    }
}

#[test]
fn bounds_that_a_callee_is_given_are_constants() {
    let entry = "  x = f32[4] parameter(0)\n  two = f32[] constant(2)\n  ROOT r = f32[4] call(x, two), to_apply=clip";
    assert_eq!(found(entry)[0].values, [2.0]);
    let entry = "  x = f32[4] parameter(0)\n  low = f32[] constant(-3)\n  high = f32[] constant(4)\n  ROOT r = f32[4] clamp(low, x, high)";
    assert_eq!(found(entry)[0].values, [4.0, -3.0]);
}

#[test]
fn what_is_ordered_checked_or_ends_a_loop_is_told() {
    let of = |entry: &str| {
        let leaf = found(entry).remove(0);
        (leaf.is_ordered, leaf.is_checked, leaf.ends_loop)
    };
    let sorted =
        "  x = f32[4] parameter(0)\n  y = f32[4] negate(x)\n  ROOT r = f32[4] sort(y), dimensions={0}, to_apply=less";
    assert_eq!(of(sorted), (true, false, false));
    let checked = "  x = f32[4] parameter(0)\n  d = f32[] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n  \
                   ROOT r = pred[] is-finite(d)";
    assert_eq!(of(checked), (false, true, false));
    let beside_itself = "  x = f32[4] parameter(0)\n  ROOT r = pred[4] compare(x, x), direction=NE";
    assert_eq!(of(beside_itself), (false, true, false));
    let plain = "  x = f32[4] parameter(0)\n  ROOT r = f32[4] sine(x)";
    assert_eq!(of(plain), (false, false, false));
}

#[test]
fn loops_end_the_search() {
    let text = "HloModule m\n\nbody {\n  s = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
                n = s32[] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  \
                ROOT t = (s32[], s32[]) tuple(j, n)\n}\n\ncond {\n  c = (s32[], s32[]) parameter(0)\n  \
                k = s32[] get-tuple-element(c), index=0\n  m = s32[] get-tuple-element(c), index=1\n  ten = s32[] constant(1000)\n  \
                a = pred[] compare(k, ten), direction=LT\n  b = pred[] compare(k, m), direction=LT\n  ROOT l = pred[] and(a, b)\n}\n\n\
                ENTRY main {\n  x = s32[] parameter(0)\n  n = s32[] parameter(1)\n  a = (s32[], s32[]) tuple(x, n)\n  \
                ROOT w = (s32[], s32[]) while(a), condition=cond, body=body\n}\n";
    let found = find_thresholds(&hlo_text::parse_module(text).expect("a module").module);
    assert!(found.iter().all(|leaf| leaf.ends_loop));
    // Each iteration adds one to the counter: a threshold for each, up to what is kept.
    assert_eq!(found[0].values.len(), MOST_VALUES);
    assert!(found[1].is_ordered);
}
