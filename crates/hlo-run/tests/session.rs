//! Programs whose arrays stay on their devices from step to step, on the host.

use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::Plan;
use hlo_ir::{Literal, Scalar};
use hlo_run::{HostProgram, Meeting, OutputBytes, Watch, all_devices, arrays, with_session};
use std::sync::Arc;

/// A step of four devices: donated weights and a donated count of steps, a batch that is not donated, a loss that takes no
/// input's place, a loop over parts of the batch, and a collective.
const STEP: &str = "
HloModule step, num_partitions=4, input_output_alias={ {1}: (0, {}, may-alias), {0}: (2, {}, may-alias) }

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%more (s: (s32[], f32[5,7])) -> pred[] {
  %s = (s32[], f32[5,7]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %three), direction=LT
}

%part (t: (s32[], f32[5,7])) -> (s32[], f32[5,7]) {
  %t = (s32[], f32[5,7]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[5,7] get-tuple-element(%t), index=1
  %y = f32[5,7] tanh(%x)
  %z = f32[5,7] add(%x, %y)
  ROOT %u = (s32[], f32[5,7]) tuple(%next, %z)
}

ENTRY %main (w: f32[5,7], x: f32[5,7], n: s32[]) -> (s32[], f32[5,7], f32[]) {
  %w = f32[5,7] parameter(0)
  %x = f32[5,7] parameter(1)
  %n = s32[] parameter(2)
  %zero = s32[] constant(0)
  %first = (s32[], f32[5,7]) tuple(%zero, %x)
  %last = (s32[], f32[5,7]) while(%first), condition=%more, body=%part
  %y = f32[5,7] get-tuple-element(%last), index=1
  %e = f32[5,7] subtract(%y, %w)
  %sum = f32[5,7] all-reduce(%e), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add
  %rate = f32[] constant(0.001)
  %rates = f32[5,7] broadcast(%rate), dimensions={}
  %change = f32[5,7] multiply(%sum, %rates)
  %new = f32[5,7] add(%w, %change)
  %none = f32[] constant(0)
  %loss = f32[] reduce(%e, %none), dimensions={0,1}, to_apply=%add
  %one = s32[] constant(1)
  %count = s32[] add(%n, %one)
  ROOT %r = (s32[], f32[5,7], f32[]) tuple(%count, %new, %loss)
}
";

fn plan(text: &str) -> Plan {
    let loaded = hlo_text::parse_module(text.trim_start()).expect("a module");
    lower(&loaded.module, &mut CudaKernels::default(), &LowerOptions::default()).expect("a plan")
}

/// `[device][leaf]`: equal weights, another batch for each device and each seed.
fn inputs(seed: usize) -> Vec<Vec<Arc<Literal>>> {
    let array = |seed: usize| {
        let values = (0..35).map(|i| ((i * 31 + seed * 17) % 53) as f32 / 53.0 - 0.5).collect();
        Arc::new(Literal::from_elems::<f32>(&[5, 7], values).expect("an array"))
    };
    let count = Arc::new(Literal::from_elem(0i32));
    (0..4).map(|device| vec![array(99), array(seed * 4 + device), count.clone()]).collect()
}

fn bytes_of(plan: &Plan, program: &HostProgram<'_>, n: u32, repeat: usize) -> Vec<OutputBytes> {
    let meeting = Meeting::alone(all_devices(plan));
    with_session(program, &meeting, Watch::default(), |session| {
        session.write(&inputs(0))?;
        for _ in 0..repeat {
            session.steps(n)?;
        }
        session.outputs()
    })
    .expect("outputs")
}

#[test]
fn a_thousand_steps_are_a_thousand_runs() {
    let plan = plan(STEP);
    let program = HostProgram::new(&plan).expect("kernels");
    let together = bytes_of(&plan, &program, 1000, 1);
    assert_eq!(together, bytes_of(&plan, &program, 1, 1000), "steps of one session");
    // Runs of their own: each begins with what the one before returned.
    let mut leaves: Vec<Vec<Literal>> =
        inputs(0).into_iter().map(|leaves| leaves.iter().map(|leaf| leaf.as_ref().clone()).collect()).collect();
    let mut outputs = Vec::new();
    for _ in 0..1000 {
        outputs = program.run(&leaves).expect("a run");
        for (leaves, outputs) in leaves.iter_mut().zip(&outputs) {
            leaves[0] = outputs[1].clone();
            leaves[2] = outputs[0].clone();
        }
    }
    assert_eq!(arrays(&plan, &together).expect("arrays"), outputs);
    assert_eq!(outputs[3][0].get(0), Some(Scalar::Int(1000)));
}

/// Aliases that no buffer is shared for: a product cannot lie over its operand, a loss is computed beside a counter, another output could lie
/// where the state lay, parameters change places or are passed through.
#[test]
fn what_the_header_aliases_is_carried_wherever_it_lies() {
    let add = "add {\n  l = f32[] parameter(0)\n  r = f32[] parameter(1)\n  ROOT z = f32[] add(l, r)\n}";
    let cases = [
        (
            "{0}: (0, {}, may-alias)",
            "a = f32[4,4] parameter(0)\n w = f32[4,4] parameter(1)\n d = f32[4,4] dot(a, w), lhs_contracting_dims={1}, \
          rhs_contracting_dims={0}\n ROOT t = (f32[4,4]) tuple(d)",
        ),
        (
            "{1}: (0, {}, may-alias)",
            "n = f32[] parameter(0)\n x = f32[100] parameter(1)\n z = f32[] constant(0)\n one = f32[] constant(1)\n \
          s = f32[] reduce(x, z), dimensions={0}, to_apply=add\n loss = f32[] multiply(s, n)\n next = f32[] add(n, one)\n \
          ROOT t = (f32[], f32[]) tuple(loss, next)",
        ),
        (
            "{1}: (0, {}, may-alias)",
            "a = f32[4] parameter(0)\n e = f32[4] exponential(a)\n n = f32[4] negate(a)\n \
          ROOT t = (f32[4], f32[4]) tuple(e, n)",
        ),
        (
            "{0}: (0, {}, must-alias)",
            "a = f32[4,4] parameter(0)\n w = f32[4,4] parameter(1)\n d = f32[4,4] dot(a, w), \
          lhs_contracting_dims={1}, rhs_contracting_dims={0}\n e = f32[4,4] exponential(a)\n ROOT t = (f32[4,4], f32[4,4]) tuple(d, e)",
        ),
        (
            "{0}: (1, {}, may-alias), {1}: (0, {}, may-alias)",
            "a = f32[4] parameter(0)\n b = f32[4] parameter(1)\n \
          ROOT t = (f32[4], f32[4]) tuple(a, b)",
        ),
        (
            "{0}: (0, {}, may-alias), {1}: (1, {}, may-alias), {2}: (2, {}, may-alias)",
            "a = f32[4] parameter(0)\n b = f32[4] parameter(1)\n \
          c = f32[4] parameter(2)\n ROOT t = (f32[4], f32[4], f32[4]) tuple(b, c, a)",
        ),
        (
            "{0}: (0, {}, may-alias)",
            "a = f32[4] parameter(0)\n n = f32[4] negate(a)\n ROOT t = (f32[4], f32[4]) tuple(n, a)",
        ),
        (
            "{0}: (0, {}, may-alias), {1}: (1, {}, may-alias)",
            "a = f32[4] parameter(0)\n b = f32[4] parameter(1)\n \
          ROOT t = (f32[4], f32[4], f32[4], f32[4]) tuple(b, b, b, a)",
        ),
        (
            "{0}: (1, {}, may-alias), {1}: (0, {}, may-alias)",
            "a = f32[4] parameter(0)\n b = f32[4] parameter(1)\n \
          s = f32[4] add(a, b)\n d = f32[4] subtract(a, b)\n ROOT t = (f32[4], f32[4], f32[4]) tuple(s, d, a)",
        ),
    ];
    for (aliases, entry) in cases {
        let text =
            format!("HloModule carried, input_output_alias={{ {aliases} }}\n\n{add}\n\nENTRY main {{\n {entry}\n}}\n");
        let plan = plan(&text);
        let program = HostProgram::new(&plan).expect("kernels");
        let fill = |leaf: usize| {
            let shape = &plan.buffers[plan.parameters[leaf]].shape;
            let values = (0..shape.n_elems()).map(|i| ((i * 7 + leaf as u64 * 3) % 11) as f32 / 8.0 - 0.5).collect();
            Literal::from_elems::<f32>(&shape.dims, values).expect("an array")
        };
        let mut leaves: Vec<Literal> = (0..plan.parameters.len()).map(fill).collect();
        let meeting = Meeting::alone(all_devices(&plan));
        let shared: Vec<Arc<Literal>> = leaves.iter().cloned().map(Arc::new).collect();
        let found = with_session(&program, &meeting, Watch::default(), |session| {
            session.write(std::slice::from_ref(&shared))?;
            session.steps(2)?;
            session.steps(1)?;
            session.outputs()
        });
        let found = arrays(&plan, &found.expect("outputs")).expect("arrays");
        let mut outputs = Vec::new();
        for _ in 0..3 {
            outputs = program.run(std::slice::from_ref(&leaves)).expect("a run");
            plan.aliases.iter().for_each(|&(output, leaf)| leaves[leaf] = outputs[0][output].clone());
        }
        assert_eq!(found, outputs, "{text}");
    }
}

#[test]
fn the_next_batch_is_written_alone() {
    let plan = plan(STEP);
    let program = HostProgram::new(&plan).expect("kernels");
    let meeting = Meeting::alone(all_devices(&plan));
    let batch = |seed: usize| inputs(seed).into_iter().map(|leaves| leaves[1].clone()).collect::<Vec<_>>();
    let found = with_session(&program, &meeting, Watch::default(), |session| {
        session.write(&inputs(0))?;
        session.steps(1)?;
        session.write_leaf(1, &batch(1))?;
        session.steps(1)?;
        session.outputs()
    });
    let leaves: Vec<Vec<Literal>> =
        inputs(0).into_iter().map(|leaves| leaves.iter().map(|leaf| leaf.as_ref().clone()).collect()).collect();
    let after = program.run(&leaves).expect("a run");
    let again: Vec<Vec<Literal>> = (after.iter().zip(batch(1)))
        .map(|(outputs, batch)| vec![outputs[1].clone(), batch.as_ref().clone(), outputs[0].clone()])
        .collect();
    assert_eq!(arrays(&plan, &found.expect("outputs")).expect("arrays"), program.run(&again).expect("a run"));
}

#[test]
fn what_does_not_fit_is_said() {
    let plan = plan(STEP);
    let program = HostProgram::new(&plan).expect("kernels");
    let meeting = Meeting::alone(all_devices(&plan));
    let said = with_session(&program, &meeting, Watch::default(), |session| {
        let mut said = Vec::new();
        said.push(session.write(&inputs(0)[..3]).expect_err("three devices").to_string());
        let short: Vec<_> = inputs(0).into_iter().map(|leaves| leaves[..2].to_vec()).collect();
        said.push(session.write(&short).expect_err("two leaves").to_string());
        said.push(session.write_leaf(3, &[]).expect_err("no such leaf").to_string());
        // Nothing of this ended the session.
        session.write(&inputs(0))?;
        said.push(session.outputs().expect_err("no step yet").to_string());
        session.steps(2)?;
        Ok(said)
    });
    let expected = [
        "inputs: expected inputs for 4 devices, found 3",
        "inputs: expected 3 arrays, found 2",
        "inputs: expected a leaf below 3, found 3",
        "outputs: expected outputs to be read after a step and before parameters are filled again",
    ];
    assert_eq!(said.expect("a session"), expected);
}

/// What the header donates without an alias is carried too: the output of its shape is its next value.
#[test]
fn donors_without_an_alias_are_carried_by_shape() {
    let text = "
HloModule donor, buffer_donor={ (0, {}), (2, {}) }

ENTRY %main (x: f32[4], y: f32[4], n: s32[]) -> (f32[], s32[], f32[4]) {
  %x = f32[4] parameter(0)
  %y = f32[4] parameter(1)
  %n = s32[] parameter(2)
  %z = f32[4] add(%x, %y)
  %one = s32[] constant(1)
  %m = s32[] add(%n, %one)
  %f = f32[] convert(%m)
  ROOT %out = (f32[], s32[], f32[4]) tuple(%f, %m, %z)
}
";
    let plan = plan(text);
    assert_eq!(plan.aliases, [(1, 2), (2, 0)]);
    let program = HostProgram::new(&plan).expect("kernels");
    let meeting = Meeting::alone(all_devices(&plan));
    let array = |x: f32| Arc::new(Literal::from_elems(&[4], vec![x; 4]).expect("an array"));
    let outputs = with_session(&program, &meeting, Watch::default(), |session| {
        session.write(&[vec![
            array(1.0),
            array(0.25),
            Arc::new(Literal::from_elems(&[], vec![5i32]).expect("a number")),
        ]])?;
        session.steps(3)?;
        session.steps(2)?;
        session.outputs()
    });
    let outputs = arrays(&plan, &outputs.expect("five steps")).expect("arrays");
    assert_eq!(outputs[0][2], *array(2.25));
    assert_eq!(outputs[0][1].get(0), Some(Scalar::Int(10)));
}

#[test]
fn a_parameter_that_a_step_uses_up_allows_one_step() {
    // The donated parameter's memory holds a value of the step, but no output.
    let donor = "
HloModule donor, buffer_donor={ (0, {}) }

ENTRY %main (x: f32[4096], y: f32[16,16]) -> f32[16,16] {
  %x = f32[4096] parameter(0)
  %y = f32[16,16] parameter(1)
  %e = f32[4096] exponential(%x)
  %a = f32[64,64] reshape(%e)
  %b = f32[64,64] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %s = f32[16,16] slice(%b), slice={[0:16], [0:16]}
  ROOT %r = f32[16,16] add(%s, %y)
}
";
    let plan = plan(donor);
    assert_eq!(plan.used_up(), [0]);
    let program = HostProgram::new(&plan).expect("kernels");
    let meeting = Meeting::alone(all_devices(&plan));
    let array = |dims: &[i64], n: usize| Arc::new(Literal::from_elems(dims, vec![0.5f32; n]).expect("an array"));
    let error = with_session(&program, &meeting, Watch::default(), |session| {
        session.write(&[vec![array(&[4096], 4096), array(&[16, 16], 256)]])?;
        session.steps(1)?;
        session.steps(1)
    });
    let error = error.expect_err("no second step").to_string();
    assert!(error.contains("leaf 0 (`x`), which is donated and is no output's alias"), "{error}");
}
