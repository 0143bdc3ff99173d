//! Programs whose walk would double with each level: calls on values that were seen are not walked again, and what is not is given
//! up in time.

use hlo_ir::Module;
use hlo_prove::{Options, prove};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Each of 40 computations calls the one before twice.
fn calls(op: &str) -> String {
    let mut text = format!(
        "HloModule m\n\nc0 {{\n  x = f32[] parameter(0)\n  s = f32[] {op}(x)\n  ROOT r = f32[] negate(s)\n}}\n"
    );
    for k in 1..=40 {
        let below = k - 1;
        let _ = write!(
            text,
            "c{k} {{\n  x = f32[] parameter(0)\n  a = f32[] call(x), to_apply=c{below}\n  ROOT b = f32[] call(a), to_apply=c{below}\n}}\n"
        );
    }
    text + "ENTRY main {\n  x = f32[] parameter(0)\n  ROOT r = f32[] call(x), to_apply=c40\n}\n"
}

/// Each of 41 loops has the one before twice in its body.
fn loops(op: &str) -> String {
    let mut text = "HloModule m\n\ncond {\n  t = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  k = s32[] constant(1)\n  \
                    ROOT r = pred[] compare(i, k), direction=LT\n}\n"
        .to_string();
    for k in 0..=40 {
        let inner = match k {
            0 => format!("y = f32[4] {op}(x)"),
            _ => format!(
                "ii = s32[] constant(0)\n  tt = (s32[], f32[4]) tuple(ii, x)\n  u = (s32[], f32[4]) while(tt), condition=cond, body=body{below}\n  \
                 v = (s32[], f32[4]) while(u), condition=cond, body=body{below}\n  y = f32[4] get-tuple-element(v), index=1",
                below = k - 1
            ),
        };
        let _ = write!(
            text,
            "body{k} {{\n  t = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  x = f32[4] get-tuple-element(t), index=1\n  \
             one = s32[] constant(1)\n  j = s32[] add(i, one)\n  {inner}\n  ROOT r = (s32[], f32[4]) tuple(j, y)\n}}\n"
        );
    }
    text + "ENTRY main {\n  x = f32[4] parameter(0)\n  ii = s32[] constant(0)\n  tt = (s32[], f32[4]) tuple(ii, x)\n  \
            w = (s32[], f32[4]) while(tt), condition=cond, body=body40\n  ROOT r = f32[4] get-tuple-element(w), index=1\n}\n"
}

fn read(text: &str) -> Module {
    hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module
}

#[test]
fn calls_on_values_that_were_seen_are_not_walked_again() {
    let before = read(&calls("copy"));
    let after = read("HloModule m\n\nENTRY main {\n  x = f32[] parameter(0)\n  ROOT r = f32[] copy(x)\n}\n");
    let proof = prove(&before, &after, &Options::default()).expect("a pair");
    assert!(proof.is_proved() && !proof.is_out_of_time);
    let other = read("HloModule m\n\nENTRY main {\n  x = f32[] parameter(0)\n  ROOT r = f32[] negate(x)\n}\n");
    assert!(!prove(&before, &other, &Options::default()).expect("a pair").is_proved());
}

#[test]
fn what_takes_too_long_is_unknown_in_time() {
    for (before, after) in [(calls("sine"), calls("cosine")), (loops("sine"), loops("cosine"))] {
        let (before, after) = (read(&before), read(&after));
        let start = Instant::now();
        let deadline = start.checked_add(Duration::from_millis(200));
        let proof = prove(&before, &after, &Options { deadline, ..Options::default() }).expect("a pair");
        assert!(proof.is_out_of_time && proof.n_proved() == 0);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}

/// A loop's body adds and multiplies by turns, each time the two values before.
fn turns(n: usize) -> String {
    let mut body = String::new();
    for k in 2..n {
        let op = if k % 2 == 0 { "multiply" } else { "add" };
        let _ = writeln!(body, "  y{k} = f32[4] {op}(y{}, y{})", k - 1, k - 2);
    }
    let last = n - 1;
    format!(
        "HloModule m\n\nbody {{\n  t = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  y0 = f32[4] get-tuple-element(t), index=1\n  \
         one = s32[] constant(1)\n  j = s32[] add(i, one)\n  y1 = f32[4] add(y0, y0)\n{body}  ROOT r = (s32[], f32[4]) tuple(j, y{last})\n}}\n\
         cond {{\n  t = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  k = s32[] constant(4)\n  ROOT r = pred[] compare(i, k), direction=LT\n}}\n\
         ENTRY main {{\n  x = f32[4] parameter(0)\n  ii = s32[] constant(0)\n  tt = (s32[], f32[4]) tuple(ii, x)\n  \
         w = (s32[], f32[4]) while(tt), condition=cond, body=body\n  ROOT r = f32[4] get-tuple-element(w), index=1\n}}\n"
    )
}

#[test]
fn sums_and_products_by_turns_are_looked_at_once() {
    let (before, after) = (read(&turns(60)), read(&turns(59)));
    let start = Instant::now();
    assert!(!prove(&before, &after, &Options::default()).expect("a pair").is_proved());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
