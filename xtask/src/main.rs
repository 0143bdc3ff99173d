//! `cargo xtask <command>`: the chores that need more than one crate, a Python environment or the source tree itself.

mod arguments;
mod bench;
mod bench_plan;
mod bench_zero1;
mod compare;
mod coverage;
mod fuzz;
mod gpu_check;
mod gpu_compile_check;
mod gpu_peer;
mod host_check;
mod html_check;
mod jax_check;
mod make_hlo;
mod memory_check;
mod mutants;
mod nvrtc_check;
mod package_check;
mod paper_p2;
mod paper_wus;
mod partition_check;
mod pjrt_check;
mod preset_check;
mod propagate_check;
mod proto_check;
mod prove_check;
mod python;
mod reshard_check;
mod sanitize;
mod search_check;
mod size_check;
mod spelling_check;
mod tidy;
mod time_check;
mod wheel;
mod workspace;
mod xla_check;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  tidy                 rules of the source tree: crate arrows, sizes, samples, words, dependencies
  xla-check [options]  judge what hlo-opt prints, evaluates and transforms by real XLA (jaxlib, CPU devices)
      --quick              modules below 70 kB, and the smallest of each form
      --only SUBSTR        modules whose file name contains this
      --corpus DIR         a folder with manifest.json, or of samples with header lines (ir-samples/ops);
                           default ir-samples/programs
      --stages LIST        some of text,eval,pass (default all)
      --pass PIPELINE      check this pipeline too: transformed = untouched, in XLA and in the evaluator
      --mutants            with --pass: corrupted results must be detected
      --jobs N             modules at a time (default half the cores)
      --timeout SECONDS    for each module (default 900)
      --hlo-opt FILE       a built tool, instead of building it
      --all                the whole matrix of weight-update sharding instead: every per-device module x interface x weights
                           x combining; goes on where an earlier run stopped
      --decompose          collectives decomposed for 2x4, 4x2 and 2x2x2 devices instead, alone and after weight-update
                           sharding: every per-device module of 8 devices; keeps results as --all does
      --global             global programs instead: XLA partitions and runs them, and the evaluator runs them as a whole; without
                           --corpus those of ir-samples/programs and ir-samples/global; with --pass XLA gets what it makes of them
      --combination SUBSTR with --all or --decompose: combinations (2x4, 2x4.sharded, ...) whose name contains this
      --fresh              with --all or --decompose: forget the results of earlier runs
  bench [options] [FILES]  parse + resolve + verify and print: MB/s, instructions/s, memory
      --xla                beside XLA's own parser and printer
      --corpus DIR         where the default files come from (the largest of its manifest)
      --reps N             repetitions (default 15)
  host-check [options]     per-device programs on the host executor against the evaluator, as they are and fused; a row each
      --corpus DIR         a folder with manifest.json; default ir-samples/programs
      --only LIST          programs whose file name contains one of these
      --sanitize           the op samples instead, compiled with the address and undefined-behaviour sanitizers
  html-check [options] [FILES]  the page of --report html in a headless Chromium, light and dark, 1400 and 700 pixels wide:
                       layout, contrast, zoom, keys, sorting; keeps pictures
      --hlo-opt FILE       a built tool, instead of building it
  bench-plan [options]     time and memory of whole commands of the planner of reductions, and of the launch plan of the
                       largest per-device program, against limits
      --corpus DIR         a folder with manifest.json (default ir-samples/programs)
  size-check               the size of the stripped program: within a limit
  memory-check [options]   memory of launch plans beside XLA's for the same per-device modules: never more
  time-check [options]     predicted times of per-device modules beside those of their launch plans: within a tenth
      --only SUBSTR        modules whose file name contains this; may be repeated
      --corpus DIR         a folder with manifest.json (default ir-samples/programs)
      --hlo-opt FILE       a built tool, instead of building it
  preset-check [options] [FILES]  predicted times of what the presets make of per-device modules: never slower than the
                       input where the objective is time
      --only SUBSTR        modules whose file name contains this; may be repeated
      --corpus DIR         a folder with manifest.json (default ir-samples/programs)
      --hlo-opt FILE       a built tool, instead of building it
  coverage FILES       how much of the work that all devices repeat the sharded update does in shards
      --hlo-opt FILE       a built tool, instead of building it
  nvrtc-check [options]    compile emitted kernels to cubins with NVRTC (no graphics processor needed)
      --all                kernels of all samples and programs, not only the quick set
      --corpus DIR         programs of this folder too
      --archs LIST         default sm_80,sm_90,sm_100
  paper-p2             the planner of reductions against the tables of the P2 paper
  bench-zero1 [options]    what weight-update sharding makes of data-parallel JAX training, beside sharding by hand:
                       collectives and step time on CPU devices
      --width, --layers, --steps N    the model (default 1024, 4, and 10 steps in a loop)
      --reps N             timed pairs (default 15)
      --only SUBSTR        variants whose name contains this
      --hlo-opt FILE       a built tool, instead of building it
  jax-check [options]  dumps of JAX 0.10, 0.11 and 0.12 (jit, shard_map, pmap), made now: read as jaxlib reads them, and sharded
                       with the same results; 0.11 and 0.12 where a Python of 3.12 or newer is found
      --only VERSION       versions that begin so; may be repeated
      --hlo-opt FILE       a built tool, instead of building it
  package-check [--all]  builds the wheel of the Python package and runs its tests: training scripts with and without hlo_opt.jax.zero
                       on 8 CPU devices; with --all on 2 and 3 devices too, and with jax 0.12
  gpu-compile-check [options]  training scripts compiled for 8 H100s without a GPU, as they are and with hlo_opt.jax.zero: memory,
                       asynchronous collectives and their bytes in XLA's final modules; XLA's passes on collectives and
                       shardings, proved. Needs Python 3.12 or newer, and 1.5 GB for an environment
      --all                all scripts, and beside GSPMD's shardings and ZeRO by hand
      --passes             XLA's passes alone
  gpu-check [options] [PARTS]  on a card: what we lower, right beside the host and timed beside XLA, and NCCL of one rank; goes on where an
                       earlier call stopped. Parts: smoke, sweep, sanitize, nccl, times (default: all)
      --seconds S          stop after so long (default 540)
      --out DIR            tables (default target/gpu-check)
      --python FILE        a Python with numpy, and JAX with CUDA for the times (default python3)
      --hlo-opt FILE       a built tool, instead of building it
  gpu-peer [options]   launches and memory of our launch plans beside XLA's programs of the same steps, compiled for one and for eight H100s
                       without a GPU; the figures of an earlier run where XLA's compiler for GPUs cannot be had
      --only SUBSTR        steps whose name contains this; may be repeated
      --devices N          this many alone
      --store              keep the table as xtask/jax/gpu_peer.md
  pjrt-check           the wrapper plugin round XLA's plugin for CPUs: eight devices run programs of our own client with and without
                       it, and JAX trains through it with the same losses
  proto-check [options]  HloModuleProtos that we read and write, and our table of messages, against jaxlib 0.10 and 0.12
      --corpus DIR         modules of this folder too
      --only SUBSTR        modules whose file name contains this; may be repeated
  prove-check [options] [FILES]  proves what pipelines make of per-device modules, and that it is what the modules compute; the files
                       are by default those of ir-samples/programs
      --only SUBSTR        modules whose file name contains this; may be repeated
      --mutants N          instead: N small changes of transformed modules; what is proved nevertheless must agree in the evaluator
      --random N           instead: N random modules and rewrites of them, likewise
      --certificates       the certificates of those proofs, by the second checker; with --mutants, the mutants held against them
      --certificate F      instead: this certificate of the modules that are named
      --seed S             the first seed of those (default 1)
  spelling-check [options]  ways to write HLO, read by us and by jaxlib: what we refuse, and what we read otherwise
      --quick              a sample of them
      --only SUBSTR        spellings whose name contains this; may be repeated
      --show               the texts of all refusals too
      --jobs N             texts at a time (default all cores)
  fuzz [options]       the targets of fuzz/ by libFuzzer, each until 30 CPU-minutes bring no new edge; goes on where an earlier call
                       stopped, and prints what stopped it (nightly Rust of rustup, `cargo install cargo-fuzz`)
      --target NAME        parse, proto, verify, pipeline, plan or ranks; may be repeated
      --cpu-minutes N      at most so many in this call, for each target
      --keep               instead: add cases that reach more than samples to fuzz/corpus-min
  sanitize             the tests of the crates with unsafe code, built with the address sanitizer (nightly Rust of rustup)
  mutants [options]    small changes of the source that tests should notice, a sample of them: a row for each part, and those that
                       no test notices; goes on where an earlier call stopped (`cargo install cargo-mutants`)
      --seed N, --count N  which mutants, and how many (default 1 and 420)
      --again              run those that no test noticed once more
      --quick              only tests of less than two seconds; what survives them is printed and not kept
      --report             only print what earlier calls found
      --jobs N             tests at a time (default 2)
  make-hlo [options]   lower a training step with JAX: --model gpt|llama|mlp|update --out FILE; --help lists the sizes
  make-models [options]  lower the training steps whose parallel plan is searched, each as one global program without shardings:
                       Unity's models, NCF, a convolutional network, a perceptron, GPTs and a Llama; SGD, or what --help says
      --out DIR            writes DIR/MODEL.GPUS.hlo
      --only MODEL         this model; may be repeated
      --gpus N             the batch is that of one GPU times N (default 6); may be repeated
      --small              the same graphs in small size, BERTs with fewer layers
      --optimizer NAME     in place of a model's own
  compare OLD NEW [options]  two builds of the tool print the same bytes for all samples and every kind of output
      --corpus DIR         modules of this folder too; may be repeated
      --only SUBSTR        calls whose file and arguments contain this
      --jobs N             calls at a time (default all cores)
  propagate-check [options]  shardings that propagate-shardings gives values of random programs, beside those of Shardy's own
                       passes, or of XLA's propagation
      --order ORDER        shardy (default) or gspmd
      --programs N         programs (default 300)
      --seed N             which ones (default 1)
  partition-check [options] [FILE...]  random programs with random shardings or manual regions, partitioned, beside the global program
                       in the evaluator
      --random N           programs (default 500)
      --seed S             the first program's number
      --only SUBSTR        samples of ops whose name contains this; region: manual regions alone
      --xla K              K of those that agree (on 2 to 8 devices) run in real XLA too
      --layouts            random layouts of named dims on meshes in place of shardings, or the one of --pass; of FILES if given
      --beside PRESET      the preset beside XLA's partitioner instead (FILES: NAME.unopt.hlo, XLA's NAME.hlo beside it; default: samples)
      --mutants N          N small changes of per-device programs instead (of the files, or of the samples): each is seen by the evaluator,
                           proved equal, or listed
      --strategies         random strategies, or searches for some, in the place of random shardings; with FILES every search for each
      --search             parallel plans by chance, or the best ones on slow devices, in the place of random shardings
      --table              predicted times of steps by each way to find strategies instead (FILES, default: ir-samples/strategies)
      --pass PIPELINE      how they are partitioned (default inline-calls,spmd-partition,cse,dce)
  search-check [options] [FILES]  parallel plans of training steps (default: ir-samples/search), the best on slow devices and some by
                       chance, partitioned: results, memory and collectives beside those that the plan claims
      --quick              small programs on few devices, with few plans
      --random N           plans by chance of each program and number of devices (default 40)
      --seed S             the first one's seed (default 1)
      --devices N          so many devices; may be repeated (default 2, 3, 4, 6, 8, 12)
      --only SUBSTR        programs whose file name contains this; may be repeated
      --pass PIPELINE      what follows a plan (default spmd-partition{compute=as-cut},simplify-tuples,cse,dce)
      --xla                in real XLA too: what spmd-partition leaves, and what XLA's partitioner makes of the plan
      --rewritten          the programs with branches that are alike made one, in the place of the programs as they are
      --regions            with regions of products computed in other ways, by chance where the plan is
      --full DIR           the full-size steps NAME.DEVICES.hlo of make-models instead, planned and partitioned for h100s and not run
      --unity POPS         with --full: those of Unity's models on nodes of six V100s, beside Unity's own search with so many graphs from its queue
  reshard-check [options]  redistribution plans of random pairs of shardings: bytes beside the lower bound, XLA's partitioner and
                       Shardy's reshards, and plans run in XLA
      --pairs N            planned pairs of each mesh (default 1000)
      --compared N         of these, pairs that XLA and Shardy plan too (default 50)
      --run N              of these, plans that run in XLA (default 6)
  paper-wus            the models of the weight-update sharding paper on the cluster model, beside its figures
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let outcome = match words.next().as_deref() {
        Some("tidy") => tidy::run(),
        Some("xla-check") => xla_check::run(words),
        Some("bench") => bench::run(words),
        Some("host-check") => host_check::run(words),
        Some("html-check") => html_check::run(words),
        Some("bench-plan") => bench_plan::run(words),
        Some("memory-check") => memory_check::run(words),
        Some("time-check") => time_check::run(words),
        Some("size-check") => size_check::run(),
        Some("preset-check") => preset_check::run(words),
        Some("nvrtc-check") => nvrtc_check::run(words),
        Some("paper-p2") => paper_p2::run(),
        Some("bench-zero1") => bench_zero1::run(words),
        Some("jax-check") => jax_check::run(words),
        Some("package-check") => package_check::run(words),
        Some("gpu-check") => gpu_check::run(words),
        Some("gpu-peer") => gpu_peer::run(words),
        Some("gpu-compile-check") => gpu_compile_check::run(words),
        Some("pjrt-check") => pjrt_check::run(words),
        Some("make-hlo") => make_hlo::run("make_hlo.py", words),
        Some("make-models") => make_hlo::run("make_models.py", words),
        Some("sanitize") => sanitize::run(words),
        Some("spelling-check") => spelling_check::run(words),
        Some("prove-check") => prove_check::run(words),
        Some("proto-check") => proto_check::run(words),
        Some("fuzz") => fuzz::run(words),
        Some("mutants") => mutants::run(words),
        Some("coverage") => coverage::run(words),
        Some("compare") => compare::run(words),
        Some("paper-wus") => paper_wus::run(),
        Some("propagate-check") => propagate_check::run(words),
        Some("partition-check") => partition_check::run(words),
        Some("search-check") => search_check::run(words),
        Some("reshard-check") => reshard_check::run(words),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(true)
        }
        other => {
            Err(format!("expected a command, found {}\n\n{HELP}", other.map_or("none".into(), |w| format!("'{w}'"))))
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}
