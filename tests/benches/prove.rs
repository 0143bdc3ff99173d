//! How long a proof takes of what the passes of `data-parallel` make of a module: by the number of instructions (generated
//! steps on eight devices), and by the number of devices (GPT-2 with two layers, collectives in stages of nodes of eight).

use divan::counter::ItemsCount;
use hlo_ir::Module;
use hlo_opt::library::OpenModule;
use hlo_opt::presets::PREPARE;
use hlo_prove::{Options, prove};
use hlo_tests::large_step::{Kind, large_step};

fn main() {
    divan::main();
}

const SHARD: &str = "shard-weight-update{profit=always,min-bytes=0},dce";
const COMBINE: &str = "combine-collectives{mode=variadic}";

/// The module of a text, and what a pipeline makes of it.
fn both(text: &str, pipeline: &str) -> Option<(OpenModule, OpenModule)> {
    let before = OpenModule::parse("bench", text.as_bytes().to_vec(), &[]).ok()?.0;
    let after = before.run(&[("pass", pipeline)]).ok()?.module;
    Some((before, after))
}

fn time(bencher: divan::Bencher<'_, '_>, text: &str, pipeline: &str) {
    let Some((before, after)) = both(text, pipeline) else {
        println!("no module to prove");
        return;
    };
    let (before, after): (&Module, &Module) = (before.module(), after.module());
    let is_proved = || prove(before, after, &Options::default()).is_ok_and(|proof| proof.is_proved());
    assert!(is_proved(), "a proof is not found");
    bencher.counter(ItemsCount::new(before.n_instructions())).bench_local(is_proved);
}

#[divan::bench(args = [18_000, 75_000, 300_000], sample_count = 5, sample_size = 1)]
fn one_step(bencher: divan::Bencher<'_, '_>, n_instructions: usize) {
    time(bencher, &large_step(Kind::Step, n_instructions), &format!("{PREPARE},{SHARD},{COMBINE}"));
}

#[divan::bench(args = [18_000, 75_000, 300_000], sample_count = 5, sample_size = 1)]
fn clipped_by_the_global_norm(bencher: divan::Bencher<'_, '_>, n_instructions: usize) {
    time(bencher, &large_step(Kind::Clipped, n_instructions), &format!("{PREPARE},{SHARD},{COMBINE}"));
}

#[divan::bench(args = [8, 64, 256, 1024], sample_count = 5, sample_size = 1)]
fn by_devices(bencher: divan::Bencher<'_, '_>, n_devices: usize) {
    let file = hlo_tests::root().join("programs/gpt2l_adam.hlo");
    let Ok(text) = std::fs::read_to_string(file) else {
        println!("no file to read");
        return;
    };
    let devices: Vec<String> = (0..n_devices).map(|device| device.to_string()).collect();
    let text = text
        .replace("num_partitions=8", &format!("num_partitions={n_devices}"))
        .replace("{{0,1,2,3,4,5,6,7}}", &format!("{{{{{}}}}}", devices.join(",")))
        .replace("devices=[8,1]<=[8]", &format!("devices=[{n_devices},1]<=[{n_devices}]"));
    let (machine, stages) = match n_devices {
        ..=8 => (String::new(), ""),
        _ => (format!("@machine=[(node,{}),(gpu,8)];", n_devices / 8), "decompose-collectives{min-gain=0},"),
    };
    time(bencher, &text, &format!("{machine}{PREPARE},{SHARD},{stages}{COMBINE}"));
}
