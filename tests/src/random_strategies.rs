//! Random strategies for the operators of a random program.

use crate::random_module::Rng;
use hlo_analysis::code::code_computations;
use hlo_ir::{InstId, Module};

/// A pass about strategies with random options, as a pipeline takes it, and the number of devices: strategies for some operators of the
/// program, legal ones and others, or a search.
pub fn random_pass(module: &Module, rng: &mut Rng) -> (String, usize) {
    let n_devices = *rng.pick(&[2usize, 3, 4, 6, 8, 12]);
    if rng.one_in(4) {
        let price = *rng.pick(&["bytes", "time"]);
        let order = *rng.pick(&["topological", "weight"]);
        let text = match rng.one_in(2) || !n_devices.is_power_of_two() {
            true => format!("search-strategies{{algo=dp,devices={n_devices},price={price}}}"),
            false => format!("search-strategies{{devices={n_devices},order={order}}}"),
        };
        return (text, n_devices);
    }
    let insts: Vec<InstId> =
        code_computations(module).into_iter().flat_map(|comp| module.comp(comp).insts.clone()).collect();
    let cuttable: Vec<InstId> = insts.into_iter().filter(|&inst| !tensors(module, inst).is_empty()).collect();
    let n_entries = if cuttable.is_empty() { 0 } else { rng.below(3) + 1 };
    let entries: Vec<String> = (0..n_entries)
        .map(|_| {
            let inst = *rng.pick(&cuttable);
            let side = if rng.one_in(3) { ", left-over = \"first\"" } else { "" };
            format!(
                "{{name = \"%{}\", strategy = {:?}{side}}}",
                module.inst_name(inst),
                strategy(module, inst, n_devices, rng)
            )
        })
        .collect();
    let pass = *rng.pick(&["apply-strategies", "propagate-strategies"]);
    (format!("{pass}{{devices={n_devices},file='operator = [{}]'}}", entries.join(", ")), n_devices)
}

/// The dims of the operands that have some; of a broadcast, those of the result.
fn tensors(module: &Module, inst: InstId) -> Vec<Vec<i64>> {
    let dims =
        |inst: InstId| module.shape(inst).as_array().map(|array| array.dims.to_vec()).filter(|dims| !dims.is_empty());
    let node = module.inst(inst);
    let Some(result) = dims(inst) else { return Vec::new() };
    if node.opcode == hlo_ir::Opcode::Broadcast {
        return vec![result];
    }
    node.operands.iter().filter_map(|&operand| dims(operand)).collect()
}

/// Cuts of each tensor: one number for one size, so that dims that go together are often cut alike.
fn strategy(module: &Module, inst: InstId, n_devices: usize, rng: &mut Rng) -> Vec<Vec<i64>> {
    let tensors = tensors(module, inst);
    let sizes: Vec<i64> = tensors.iter().flatten().copied().collect();
    let chosen = *rng.pick(&sizes);
    let mut divisors: Vec<i64> = (2..=n_devices as i64).filter(|d| n_devices as i64 % d == 0).collect();
    if !rng.one_in(8) {
        divisors.retain(|d| chosen % d == 0);
    }
    let cut = if divisors.is_empty() { 1 } else { *rng.pick(&divisors) };
    let place = rng.below(sizes.len());
    let is_single = rng.one_in(3);
    let mut at = 0;
    let mut of_dim = |&size: &i64| {
        at += 1;
        if size == chosen && (!is_single || at == place + 1) { cut } else { 1 }
    };
    tensors.iter().map(|dims| dims.iter().map(&mut of_dim).collect()).collect()
}
