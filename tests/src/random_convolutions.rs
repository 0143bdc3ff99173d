//! Random networks of convolutions: forward passes, gradients of inputs and of kernels, and what is computed of them element by element.

use std::fmt::Write;

/// Draws numbers; equal seeds give equal ones.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

const IMAGES: &str = "f32[4,6,5,16]";
const KERNEL: &str = "f32[3,3,16,16]";

/// A module of one device.
pub fn random_convolutions(seed: u64) -> String {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
    let mut text = format!(
        "HloModule random
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
ENTRY main {{
 x = {IMAGES} parameter(0)
 w = {KERNEL} parameter(1)
 v = {KERNEL} parameter(2)
 b = f32[16] parameter(3)
 zero = f32[] constant(0)
 zeros = {IMAGES} broadcast(zero), dimensions={{}}
"
    );
    let (mut images, mut kernels) = (vec!["x".to_string()], vec!["w".to_string(), "v".to_string()]);
    let n_steps = 6 + numbers.below(14);
    for step in 0..n_steps {
        // What was made last is read more often.
        let mut of = |list: &[String]| {
            let n = list.len();
            list[n - 1 - numbers.below(n).min(numbers.below(n))].clone()
        };
        let (a, c, k) = (of(&images), of(&images), of(&kernels));
        let name = format!("n{step}");
        let window = "window={size=3x3 pad=1_1x1_1}";
        let is_image = match numbers.below(12) {
            0..=2 => {
                let _ =
                    writeln!(text, " {name} = {IMAGES} convolution({a}, {k}), {window}, dim_labels=b01f_01io->b01f");
                true
            }
            3 => {
                let _ = writeln!(text, " r{step} = {KERNEL} reverse({k}), dimensions={{0,1}}");
                let _ = writeln!(
                    text,
                    " {name} = {IMAGES} convolution({a}, r{step}), {window}, dim_labels=b01f_01oi->b01f"
                );
                true
            }
            4 => {
                let window = "window={size=6x5 pad=1_1x1_1}";
                let _ =
                    writeln!(text, " {name} = {KERNEL} convolution({a}, {c}), {window}, dim_labels=f01b_i01o->01bf");
                false
            }
            5 => {
                let _ = writeln!(text, " p{step} = {KERNEL} transpose({k}), dimensions={{1,0,2,3}}");
                let _ = writeln!(text, " {name} = {KERNEL} multiply(p{step}, {k})");
                false
            }
            6 => {
                let _ = writeln!(text, " sum{step} = f32[] reduce({a}, zero), dimensions={{0,1,2,3}}, to_apply=add");
                let _ = writeln!(text, " b{step} = {IMAGES} broadcast(sum{step}), dimensions={{}}");
                let _ = writeln!(text, " {name} = {IMAGES} subtract({c}, b{step})");
                true
            }
            7 => {
                let _ = writeln!(text, " b{step} = {IMAGES} broadcast(b), dimensions={{3}}");
                let _ = writeln!(text, " {name} = {IMAGES} add({a}, b{step})");
                true
            }
            8 => {
                let _ = writeln!(text, " on{step} = pred[4,6,5,16] compare({a}, zeros), direction=GT");
                let _ = writeln!(text, " {name} = {IMAGES} select(on{step}, {c}, zeros)");
                true
            }
            9 => {
                let _ = writeln!(text, " {name} = {IMAGES} maximum({a}, zeros)");
                true
            }
            kind => {
                let op = if kind == 10 { "add" } else { "subtract" };
                let _ = writeln!(text, " {name} = {IMAGES} {op}({a}, {c})");
                true
            }
        };
        if is_image { images.push(name) } else { kernels.push(name) }
    }
    let n_images = 1 + numbers.below(3);
    let mut results: Vec<(&str, &String)> = images.iter().rev().take(n_images).map(|name| (IMAGES, name)).collect();
    results.extend(kernels.iter().rev().take(1).map(|name| (KERNEL, name)));
    let shapes: Vec<&str> = results.iter().map(|(shape, _)| *shape).collect();
    let names: Vec<&str> = results.iter().map(|(_, name)| name.as_str()).collect();
    let _ = writeln!(text, " ROOT all = ({}) tuple({})\n}}", shapes.join(", "), names.join(", "));
    text
}
