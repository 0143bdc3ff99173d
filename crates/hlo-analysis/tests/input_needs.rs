//! Programs need some inputs to be positive, fractions or indices within bounds.

use hlo_analysis::input_needs::{LeafNeeds, find_input_needs};

fn needs(entry: &str) -> Vec<LeafNeeds> {
    let text = format!(
        "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\nhalf {{\n  \
         h = f32[4] parameter(0)\n  h1 = f32[] constant(0.5)\n  h2 = f32[4] broadcast(h1), dimensions={{}}\n  \
         ROOT h3 = f32[4] multiply(h, h2)\n}}\n\nENTRY main {{\n{entry}\n}}\n"
    );
    find_input_needs(&hlo_text::parse_module(&text).expect("a module").module)
}

/// Which leaves must be positive.
fn positive(entry: &str) -> Vec<bool> {
    needs(entry).into_iter().map(|needs| needs.is_positive).collect()
}

const ADAM: &str = "  w = f32[4] parameter(0)\n  g = f32[4] parameter(1)\n  v = f32[4] parameter(2)\n  t = s32[] parameter(3)\n  \
                    b2 = f32[] constant(0.999)\n  one = f32[] constant(1)\n  rest = f32[] constant(0.001)\n  \
                    decays = f32[4] broadcast(b2), dimensions={}\n  rests = f32[4] broadcast(rest), dimensions={}\n  \
                    old = f32[4] multiply(v, decays)\n  square = f32[4] multiply(g, g)\n  \
                    new = f32[4] multiply(rests, square)\n  v1 = f32[4] add(new, old)\n  tf = f32[] convert(t)\n  \
                    p = f32[] power(b2, tf)\n  q = f32[] subtract(one, p)\n  qs = f32[4] broadcast(q), dimensions={}\n  \
                    hat = f32[4] divide(v1, qs)\n  root = f32[4] sqrt(hat)\n  step = f32[4] divide(g, root)\n  \
                    ROOT w1 = f32[4] subtract(w, step)";

#[test]
fn second_moments_are_positive_and_weights_and_gradients_are_not() {
    assert_eq!(positive(ADAM), [false, false, true, false]);
}

#[test]
fn a_need_ends_where_no_sign_of_the_parameter_helps_or_none_is_asked() {
    let root_of = |text: &str| positive(&format!("  x = f32[4] parameter(0)\n{text}\n  ROOT r = f32[4] sqrt(y)"));
    for (text, expected) in [
        ("  y = f32[4] copy(x)", true),
        ("  y = f32[4] call(x), to_apply=half", true),
        ("  y = f32[4] multiply(x, x)", false),
        ("  y = f32[4] abs(x)", false),
        ("  y = f32[4] exponential(x)", false),
        ("  y = f32[4] negate(x)", false),
        ("  y = f32[4] sine(x)", false),
        ("  z = f32[] constant(0)\n  zs = f32[4] broadcast(z), dimensions={}\n  y = f32[4] maximum(x, zs)", false),
        (
            "  o = f32[4,4] broadcast(x), dimensions={0}\n  y = f32[4] dot(o, x), lhs_contracting_dims={1}, \
             rhs_contracting_dims={0}",
            false,
        ),
        (
            "  z = f32[] constant(0)\n  o = f32[4,4] broadcast(x), dimensions={0}\n  y = f32[4] reduce(o, z), dimensions={1}, \
             to_apply=add",
            false,
        ),
    ] {
        assert_eq!(root_of(text), [expected], "{text}");
    }
}

#[test]
fn a_decay_rate_that_is_an_input_is_a_fraction() {
    let found = needs(
        "  v = f32[] parameter(0)\n  b = f32[] parameter(1)\n  t = f32[] parameter(2)\n  one = f32[] constant(1)\n  \
         p = f32[] power(b, t)\n  q = f32[] subtract(one, p)\n  hat = f32[] divide(v, q)\n  ROOT r = f32[] sqrt(hat)",
    );
    let flags: Vec<(bool, bool)> = found.iter().map(|needs| (needs.is_positive, needs.is_fraction)).collect();
    assert_eq!(flags, [(true, false), (true, true), (false, false)]);
}

#[test]
fn what_a_loop_carries_has_the_needs_of_its_body() {
    let text = "HloModule m\n\nbody {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
                v = f32[4] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  n = s32[] add(i, one)\n  \
                r = f32[4] sqrt(v)\n  v1 = f32[4] add(v, r)\n  ROOT t = (s32[], f32[4]) tuple(n, v1)\n}\n\ncond {\n  \
                c = (s32[], f32[4]) parameter(0)\n  k = s32[] get-tuple-element(c), index=0\n  m = s32[] constant(3)\n  \
                ROOT l = pred[] compare(k, m), direction=LT\n}\n\nENTRY main {\n  x = f32[4] parameter(0)\n  \
                z = s32[] constant(0)\n  a = (s32[], f32[4]) tuple(z, x)\n  \
                ROOT w = (s32[], f32[4]) while(a), condition=cond, body=body\n}\n";
    let found = find_input_needs(&hlo_text::parse_module(text).expect("a module").module);
    assert_eq!(found.iter().map(|needs| needs.is_positive).collect::<Vec<_>>(), [true]);
}

#[test]
fn indices_have_bounds_and_promises() {
    let found = needs(
        "  table = f32[50,8] parameter(0)\n  rows = s32[6,1] parameter(1)\n  at = s32[] parameter(2)\n  zero = s32[] constant(0)\n  \
         taken = f32[6,8] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
         index_vector_dim=1, slice_sizes={1,8}, indices_are_sorted=true\n  two = s32[] constant(2)\n  next = s32[] add(at, two)\n  \
         ROOT part = f32[4,8] dynamic-slice(table, next, zero), dynamic_slice_sizes={4,8}",
    );
    assert_eq!(found[0], LeafNeeds::default());
    assert_eq!(found[1], LeafNeeds::default(), "a gather that nothing needs bounds nothing");
    assert_eq!(found[2].last_index, Some(46));
    let found = needs(
        "  table = f32[50,8] parameter(0)\n  rows = s32[6,1] parameter(1)\n  ROOT taken = f32[6,8] gather(table, rows), offset_dims={1}, \
         collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}, indices_are_sorted=true",
    );
    assert_eq!((found[1].last_index, found[1].is_sorted, found[1].is_unique), (Some(49), true, false));
}
