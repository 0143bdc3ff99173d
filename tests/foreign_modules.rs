//! Modules of front ends beside JAX: AWS Neuron's tokens, TensorFlow's stripped literals, JAX's memory kinds and its partitioning callbacks.

use crate::cli::{folder, run};
use std::fs;

/// A ZeRO-1 step of PyTorch/XLA for AWS Neuron: a scalar goes through all collectives and keeps them in order.
const TOKENS: &str = r#"HloModule step, input_output_alias={ {0}: (0, {}, must-alias) }, entry_computation_layout={(f32[8,4]{1,0}, f32[8,4]{1,0}, f32[])->(f32[8,4]{1,0}, f32[])}, replica_count=2

%sum.1 (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%x.1, %y.1)
}

ENTRY %step.20 (weight.1: f32[8,4], gradient.1: f32[8,4], order.1: f32[]) -> (f32[8,4], f32[]) {
  %weight.1 = f32[8,4]{1,0} parameter(0)
  %gradient.1 = f32[8,4]{1,0} parameter(1)
  %order.1 = f32[] parameter(2)
  %scattered.1 = (f32[4,4]{1,0}, f32[]) reduce-scatter(%gradient.1, %order.1), replica_groups={{0,1}}, dimensions={0}, to_apply=%sum.1
  %part.1 = f32[4,4]{1,0} get-tuple-element(%scattered.1), index=0
  %order.2 = f32[] get-tuple-element(%scattered.1), index=1
  %gathered.1 = (f32[8,4]{1,0}, f32[]) all-gather(%part.1, %order.2), replica_groups={{0,1}}, dimensions={0}
  %whole.1 = f32[8,4]{1,0} get-tuple-element(%gathered.1), index=0
  %order.3 = f32[] get-tuple-element(%gathered.1), index=1
  %new.1 = f32[8,4]{1,0} subtract(%weight.1, %whole.1)
  ROOT %out.1 = (f32[8,4]{1,0}, f32[]) tuple(%new.1, %order.3)
}
"#;

#[test]
fn passes_and_judges_take_collectives_that_keep_a_scalar() {
    let folder = folder("scalar-operands");
    let (step, new) = (folder.join("step.hlo"), folder.join("new.hlo"));
    fs::write(&step, TOKENS).expect("a file");
    let (step, new) = (step.display().to_string(), new.display().to_string());
    for pass in [
        "shard-weight-update{profit=always,min-bytes=0}",
        "combine-collectives",
        "cse,dce,simplify-algebra",
        "make-async",
    ] {
        let made = run(&[&step, "--pass", pass, "-q", "-o", &new]);
        assert_eq!(made.code, 0, "{pass}: {}", made.stderr);
        let same = run(&["compare", &step, &new]);
        assert_eq!(same.code, 0, "{pass}: {}{}", same.stdout, same.stderr);
        let proved = run(&["prove", &step, &new]);
        assert_eq!(proved.code, 0, "{pass}: {}{}", proved.stdout, proved.stderr);
    }
    let audit = run(&["audit", &step]);
    assert_eq!(audit.code, 0, "{}{}", audit.stdout, audit.stderr);
    // A scalar that another device's replaces is another result.
    let wrong = TOKENS.replace("tuple(%new.1, %order.3)", "tuple(%new.1, %summed.1)").replace(
        "  ROOT %out.1",
        "  %summed.1 = f32[] all-reduce(%order.3), replica_groups={{0,1}}, to_apply=%sum.1\n  ROOT %out.1",
    );
    fs::write(&new, wrong).expect("a file");
    assert_ne!(run(&["compare", &step, &new]).code, 0);
    assert_ne!(run(&["prove", &step, &new]).code, 0);
}

#[test]
fn a_call_that_only_its_front_end_can_partition_is_refused_by_name() {
    let folder = folder("partitioning-callback");
    let (global, local) = (folder.join("global.hlo"), folder.join("local.hlo"));
    let text = "HloModule m, entry_computation_layout={(f32[8,12]{1,0})->f32[8,12]{1,0}}\n\nENTRY %main (a: f32[8,12]) -> f32[8,12] {\n  \
                %a = f32[8,12]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}\n  \
                %mine = f32[8,12]{1,0} custom-call(%a), custom_call_target=\"CustomSPMDPartitioning\", api_version=API_VERSION_STATUS_RETURNING, \
                frontend_attributes={xla.sdy.sharding_rule=\"#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=12}, custom>\"}, backend_config=\"14\"\n  \
                ROOT %out = f32[8,12]{1,0} add(%mine, %a)\n}\n";
    fs::write(&global, text).expect("a file");
    for how in [["--preset", "auto-spmd"], ["--pass", "propagate-shardings,spmd-partition"]] {
        let args = [&global.display().to_string(), how[0], how[1], "-o", &local.display().to_string()];
        let refused = run(&args);
        assert_ne!(refused.code, 0, "{how:?}");
        for word in ["`%mine`", "`CustomSPMDPartitioning`", "`custom_partitioning`"] {
            assert!(refused.stderr.contains(word), "{how:?}: {}", refused.stderr);
        }
        assert!(!local.exists(), "{how:?}");
    }
}

#[test]
fn an_error_about_an_elided_constant_names_the_file_that_has_it() {
    let folder = folder("elided");
    let whole = "HloModule m\n\nENTRY %main (a: f32[3]) -> f32[3] {\n  %a = f32[3]{0} parameter(0)\n  %table.1 = f32[3]{0} constant({1, 2, 3})\n  \
                 ROOT %b = f32[3]{0} add(%a, %table.1)\n}\n";
    let elided = folder.join("module_0007.jit_f.sm_90_gpu_after_optimizations.txt");
    fs::write(&elided, whole.replace("{1, 2, 3}", "{...}")).expect("a file");
    let elided = elided.display().to_string();
    let alone = run(&["eval", &elided]);
    assert_ne!(alone.code, 0);
    assert!(alone.stderr.contains("%table.1") && alone.stderr.contains("--xla_dump_hlo_as_proto"), "{}", alone.stderr);
    // Files of another module, and one of this module that lacks the elements too, are no help.
    fs::write(folder.join("module_0008.jit_f.before_optimizations.txt"), whole).expect("a file");
    fs::write(folder.join("module_0007.jit_f.before_optimizations.txt"), whole.replace("{1, 2, 3}", "{...}"))
        .expect("a file");
    assert!(run(&["eval", &elided]).stderr.contains("--xla_dump_hlo_as_proto"));
    let module = hlo_text::parse_module(whole).expect("a module").module;
    let proto = folder.join("module_0007.jit_f.hlo.pb");
    fs::write(&proto, hlo_proto::write(&module, &hlo_proto::Kept::default()).bytes).expect("a file");
    for command in [vec!["eval", &elided], vec!["compare", &elided, &elided], vec!["run", "--backend", "host", &elided]]
    {
        let advised = run(&command);
        assert_ne!(advised.code, 0);
        let expected = format!("`{}` has the elements of %table.1", proto.display());
        assert!(advised.stderr.contains(&expected), "{command:?}: {}", advised.stderr);
    }
    assert_eq!(run(&["eval", &proto.display().to_string()]).code, 0);
}
