//! Searches for parallel plans with options by chance.

use crate::random_module::Rng;

/// Devices at one switch so slow that cutting pays wherever it can, as the text of a description.
pub const SLOW_MACHINE: &str = "name = \"slow\"
[device]
name = \"slow\"
memory_bytes_per_s = 1e5
memory_bytes = 1e12
launch_s = 0
flops_per_s = { f32 = 1e5 }";

/// Numbers of devices.
const N_DEVICES: [usize; 7] = [2, 3, 4, 5, 6, 8, 12];

/// `search-parallelization` with random options, as a pipeline takes it, and the number of devices: mostly a legal plan by chance, or
/// the best plan on slow devices. Calls are inlined before it or left to it.
pub fn random_search(rng: &mut Rng) -> (String, usize) {
    let n_devices = *rng.pick(&N_DEVICES);
    let seed = 1 + rng.below(1 << 20);
    let even = if rng.one_in(4) { ",even=true" } else { "" };
    let axes = 1 + rng.below(3);
    let options = match rng.one_in(3) {
        true => format!(",effort=0.01,axes={axes}{even}"),
        false => format!(",draw={seed},axes={axes}{even}"),
    };
    let before = if rng.one_in(2) { "inline-calls," } else { "" };
    let search = format!("search-parallelization{{devices={n_devices}{options}}}");
    (format!("@machine='{SLOW_MACHINE}';{before}{search}"), n_devices)
}
