//! Real plans, corrupted in every way that came to mind: the verifier must refuse each, and name the step or the entity.
//!
//! All devices run one list of steps, so ranks that issue collectives in different sequences cannot be written down, but for
//! decisions that differ between devices; a swap that all ranks make breaks what the steps read.

use super::verify;
use crate::lower::{LowerOptions, lower};
use crate::plan::{Access, BufferId, CollectiveKind, KernelId, Place, Plan, Step, Stream, Work};
use cranelift_entity::EntityRef;
use hlo_ir::DType;
use std::sync::OnceLock;

/// Loops, branches, several meshes, products, each collective.
const SAMPLES: [&str; 14] = [
    "programs/mlp_adam.hlo",
    "programs/mlp_adam_accum.hlo",
    "programs/mlp_adam_fori.hlo",
    "programs/mlp_adam_summary.hlo",
    "programs/mlp_adam_pjit2d.hlo",
    "programs/gpt2l_adam.hlo",
    "programs/ncf_adam.hlo",
    "ops/all-gather.hlo",
    "ops/all-to-all.tuple.hlo",
    "ops/collective-permute.hlo",
    "ops/reduce-scatter.hlo",
    "ops/while.hlo",
    "passes/shard-weight-update/rare-branch.hlo",
    "passes/shard-weight-update/shared-branch.hlo",
];
/// Places of one kind that are tried in each plan.
const MOST_PLACES: usize = 60;

fn plans() -> &'static [(&'static str, Plan)] {
    static PLANS: OnceLock<Vec<(&'static str, Plan)>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let plan = |name: &&'static str| {
            let path = format!("{}/../../ir-samples/{name}", env!("CARGO_MANIFEST_DIR"));
            let mut module = hlo_text::parse_bytes(&std::fs::read(path).unwrap()).unwrap().module;
            let calls = hlo_pass::pipeline::parse_pipeline("propagate-layouts,fuse").unwrap();
            let passes = hlo_pass::runner::bind(&calls, crate::PASSES).unwrap();
            let mut analyses = hlo_analysis::Analyses::default();
            let options = hlo_pass::runner::RunOptions::default();
            hlo_pass::runner::run_pipeline(&mut module, &mut analyses, &passes, options).unwrap();
            let mut emitter = crate::kernel::CudaKernels::default();
            let plan = lower(&module, &mut emitter, &LowerOptions::default()).unwrap();
            verify(&plan).unwrap_or_else(|errors| panic!("{name}: {}", errors.join("\n")));
            (*name, plan)
        };
        SAMPLES.iter().map(plan).collect()
    })
}

/// What a corruption did: the step or entity that the verifier must name, and a part of what it must say of it.
struct Corrupted {
    who: String,
    says: &'static str,
}

fn corrupted(who: impl ToString, says: &'static str) -> Option<Corrupted> {
    Some(Corrupted { who: who.to_string(), says })
}

/// Corrupts each plan at its first, second, … place until there are no more; the verifier must refuse each.
fn refuses(corrupt: impl Fn(&mut Plan, usize) -> Option<Corrupted>) {
    let mut n_places = 0;
    for (name, plan) in plans() {
        for at in 0..MOST_PLACES {
            let mut broken = plan.clone();
            let Some(done) = corrupt(&mut broken, at) else { break };
            n_places += 1;
            let errors = verify(&broken).err().unwrap_or_default();
            let is_told =
                |error: &String| error.starts_with(&done.who) && done.says.split('|').any(|part| error.contains(part));
            assert!(
                errors.iter().any(is_told),
                "{name}, place {at}: expected `{}: … {}`, found {errors:#?}",
                done.who,
                done.says
            );
        }
    }
    assert!(n_places > 0, "no place to corrupt");
}

fn lists<'s>(steps: &'s [Step], found: &mut Vec<&'s [Step]>) {
    found.push(steps);
    for step in steps {
        match &step.work {
            Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| lists(s, found)),
            Work::Conditional { branches, .. } => branches.iter().for_each(|s| lists(s, found)),
            _ => {}
        }
    }
}

/// The n-th list of steps, in the order of [`lists`].
fn list_mut<'s>(steps: &'s mut Vec<Step>, n: &mut usize) -> Option<&'s mut Vec<Step>> {
    if *n == 0 {
        return Some(steps);
    }
    *n -= 1;
    for step in steps {
        let inner: Vec<&mut Vec<Step>> = match &mut step.work {
            Work::While { condition, body, .. } => vec![condition, body],
            Work::Conditional { branches, .. } => branches.iter_mut().collect(),
            _ => vec![],
        };
        for list in inner {
            if let Some(found) = list_mut(list, n) {
                return Some(found);
            }
        }
    }
    None
}

/// The n-th place (list and index) where `is_place` holds.
fn find(plan: &Plan, n: usize, is_place: impl Fn(&[Step], usize) -> bool) -> Option<(usize, usize)> {
    let mut all = Vec::new();
    lists(&plan.steps, &mut all);
    let places = all.iter().enumerate().flat_map(|(l, list)| (0..list.len()).map(move |i| (l, *list, i)));
    places.filter(|&(_, list, i)| is_place(list, i)).map(|(l, _, i)| (l, i)).nth(n)
}

fn list(plan: &mut Plan, mut number: usize) -> &mut Vec<Step> {
    list_mut(&mut plan.steps, &mut number).unwrap()
}

/// The n-th step for which `is_place` holds.
fn pick(plan: &mut Plan, n: usize, is_place: impl Fn(&Step) -> bool) -> Option<&mut Step> {
    let (l, i) = find(plan, n, |list, i| is_place(&list[i]))?;
    Some(&mut list(plan, l)[i])
}

fn bytes(plan: &Plan, b: BufferId) -> (Place, u64, u64) {
    crate::plan::ranges::range(plan, b)
}

/// Takes a step out of its list, and its number out of the others' waits.
fn remove(steps: &mut Vec<Step>, at: usize) -> Step {
    let removed = steps.remove(at);
    for step in steps {
        step.waits_for.retain(|&i| i as usize != at);
        step.waits_for.iter_mut().filter(|i| **i as usize > at).for_each(|i| *i -= 1);
    }
    removed
}

#[test]
fn a_dropped_wait() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| !step.waits_for.is_empty())?;
        step.waits_for.clear();
        corrupted(&step.name, "must wait for step")
    });
}

/// Groups that share one device may meet, groups that share two may not, and a wait keeps them apart.
#[test]
fn collectives_on_two_streams_may_share_one_device() {
    use crate::plan::CollectiveCall;
    let step = |stream, communicator, waits_for: &[u32]| Step {
        name: format!("{communicator}"),
        stream,
        waits_for: waits_for.to_vec(),
        work: Work::Collective(CollectiveCall {
            kind: CollectiveKind::Groups { reduction: None, scatters: false },
            communicator,
            calls: Vec::new(),
        }),
    };
    let found = |groups: [&[&[u32]]; 2], waits_for: &[u32]| {
        let mut plan = Plan { n_replicas: 1, n_partitions: 4, ..Plan::default() };
        let ids = groups.map(|groups| plan.communicators.push(groups.iter().map(|group| group.to_vec()).collect()));
        let steps = vec![step(Stream::Communication, ids[0], &[]), step(Stream::Compute, ids[1], waits_for)];
        let mut errors = Vec::new();
        super::flights::check(&plan, &steps, &mut errors);
        errors
    };
    let (rows, columns): (&[&[u32]], &[&[u32]]) = (&[&[0, 1], &[2, 3]], &[&[0, 2], &[1, 3]]);
    assert_eq!(found([rows, columns], &[]), Vec::<String>::new());
    let all: &[&[u32]] = &[&[0, 1, 2, 3]];
    assert!(
        found([rows, all], &[]).concat().contains("devices 0 and 1 take part in both"),
        "{:?}",
        found([rows, all], &[])
    );
    assert_eq!(found([rows, all], &[0]), Vec::<String>::new());
}

#[test]
fn a_wait_for_a_later_step_or_one_of_the_same_stream() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| !step.waits_for.is_empty())?;
        step.waits_for = vec![if n % 2 == 0 { u32::MAX } else { 1 << 20 }];
        corrupted(&step.name, "no earlier step of the other stream")
    });
}

/// Not whole loops: one may run no round.
#[test]
fn a_dropped_step() {
    refuses(|plan, n| {
        let (l, i) = find(plan, n, |list, i| !matches!(list[i].work, Work::While { .. }))?;
        remove(list(plan, l), i);
        corrupted("", "before it is written|lies and not|writes all of")
    });
}

#[test]
fn a_step_before_the_one_that_it_reads_from() {
    refuses(|plan, n| {
        let old = plan.clone();
        let reads_from = |list: &[Step], i: usize| {
            let Some(next) = list.get(i + 1) else { return false };
            let (written, read) = (list[i].work.accesses(&old).writes, next.work.accesses(&old).reads);
            written.iter().any(|&w| read.iter().any(|&r| old.buffers[w].value == old.buffers[r].value))
        };
        let (l, i) = find(plan, n, reads_from)?;
        let steps = list(plan, l);
        steps.swap(i, i + 1);
        corrupted(&steps[i].name, "before it is written|lies and not")
    });
}

/// On every rank the same, so that the library would not hang, but on wrong contents.
#[test]
fn two_collectives_in_each_others_place() {
    refuses(|plan, n| {
        let old = plan.clone();
        // The second's input is written between the two.
        let is_place = |list: &[Step], i: usize| {
            let Work::Collective(_) = list[i].work else { return false };
            let mut later = list.iter().enumerate().skip(i + 1);
            let Some((j, second)) = later.find(|(_, s)| matches!(s.work, Work::Collective(_))) else { return false };
            let inputs = second.work.accesses(&old).reads;
            list[i + 1..j].iter().any(|s| {
                let writes = s.work.accesses(&old).writes;
                writes.iter().any(|&w| inputs.iter().any(|&r| old.buffers[w].value == old.buffers[r].value))
            })
        };
        let (l, i) = find(plan, n, is_place)?;
        let steps = list(plan, l);
        let j = (i + 1..steps.len()).find(|&j| matches!(steps[j].work, Work::Collective(_)))?;
        let (first, second) = (steps[i].work.clone(), steps[j].work.clone());
        (steps[i].work, steps[j].work) = (second, first);
        corrupted(&steps[i].name, "before it is written|lies and not")
    });
}

#[test]
fn two_live_values_in_the_same_bytes() {
    refuses(|plan, n| {
        // A value that is written by one step and read by a later one, and a step between them that touches it not.
        let whole = |b: &BufferId| plan.buffers[*b].place == Place::Arena && plan.buffers[*b].value_offset_bytes == 0;
        let mut places = Vec::new();
        for (i, step) in plan.steps.iter().enumerate() {
            for kept in step.work.accesses(plan).writes.into_iter().filter(|b| whole(b)) {
                let value = plan.buffers[kept].value;
                let reads = |s: &Step| s.work.accesses(plan).reads.iter().any(|&r| plan.buffers[r].value == value);
                let Some(reader) = (i + 1..plan.steps.len()).find(|&j| reads(&plan.steps[j])) else { continue };
                for between in &plan.steps[i + 1..reader] {
                    let moved = between.work.accesses(plan).writes.into_iter().find(|b| whole(b));
                    places.extend(moved.filter(|&m| plan.buffers[m].value != value).map(|moved| (kept, moved)));
                }
            }
        }
        let (kept, moved) = *places.get(n * 7)?;
        let (value, to) = (plan.buffers[moved].value, plan.buffers[kept].offset_bytes);
        for buffer in plan.buffers.values_mut().filter(|b| b.value == value) {
            buffer.offset_bytes = to + buffer.value_offset_bytes;
        }
        plan.arena_bytes *= 2;
        corrupted("", "lies and not|overlaps with")
    });
}

#[test]
fn a_result_over_an_operand_that_is_read_elsewhere() {
    refuses(|plan, n| {
        let old = plan.clone();
        let shares = |step: &Step| {
            let Work::Launch { .. } = step.work else { return false };
            let accesses = step.work.accesses(&old);
            accesses.writes.iter().any(|&w| accesses.reads.iter().any(|&r| bytes(&old, w) == bytes(&old, r)))
        };
        let step = pick(plan, n, shares)?;
        let name = step.name.clone();
        if let Work::Launch { kernel, .. } = step.work {
            plan.kernel_facts[kernel].updatable.clear();
        }
        corrupted(name, "overlaps with")
    });
}

#[test]
fn a_write_to_a_parameter_that_is_not_donated() {
    refuses(|plan, n| {
        let leaf = |b: &BufferId| match plan.buffers[*b].place {
            Place::Parameter(leaf) => Some(leaf as usize),
            _ => None,
        };
        let mut all = Vec::new();
        lists(&plan.steps, &mut all);
        let steps = all.into_iter().flatten();
        let writers =
            steps.filter_map(|s| s.work.accesses(plan).writes.iter().find_map(leaf).map(|l| (s.name.clone(), l)));
        let (name, leaf) = writers.collect::<Vec<_>>().get(n)?.clone();
        plan.parameter_facts[leaf].is_donated = false;
        corrupted(name, "which is only read")
    });
}

#[test]
fn a_write_to_a_constant_or_the_device_ids() {
    refuses(|plan, n| {
        let read_only = |b: &BufferId| matches!(plan.buffers[*b].place, Place::Constant(_) | Place::DeviceIds);
        let target = plan.buffers.keys().find(read_only)?;
        let step = pick(plan, n, |s| matches!(s.work, Work::Launch { .. } | Work::Gemm(_)))?;
        match &mut step.work {
            Work::Launch { arguments, .. } => *arguments.last_mut()? = target,
            Work::Gemm(gemm) => gemm.output.buffer = target,
            _ => {}
        }
        corrupted(&step.name, "which is only read")
    });
}

#[test]
fn an_output_that_nothing_writes() {
    refuses(|plan, n| {
        let k = n;
        let mut buffer = plan.buffers[*plan.outputs.get(k)?].clone();
        (buffer.place, buffer.offset_bytes, buffer.value) =
            (Place::Output(k as u32), 0, crate::plan::PlanValueId::new(1 << 20));
        plan.outputs[k] = plan.buffers.push(buffer);
        corrupted("the caller", "before it is written|lies and not")
    });
}

#[test]
fn one_buffer_for_two_outputs() {
    refuses(|plan, n| {
        let first = *plan.outputs.first()?;
        *plan.outputs.get_mut(n + 1)? = first;
        corrupted(format!("output {}", n + 1), "expected it at output|bytes of its own")
    });
}

#[test]
fn parameters_in_another_order() {
    refuses(|plan, n| {
        plan.parameters.get(n + 1)?;
        plan.parameters.swap(n, n + 1);
        corrupted(format!("parameter {n}"), "expected it at parameter")
    });
}

#[test]
fn a_buffer_beyond_the_end_of_its_place() {
    refuses(|plan, n| {
        let id = plan.buffers.keys().nth(n)?;
        plan.buffers[id].offset_bytes += 1 << 40;
        corrupted(id, "expected an end within")
    });
}

#[test]
fn a_part_apart_from_its_value() {
    refuses(|plan, n| {
        let twice = |id: &BufferId| {
            let same = |b: &&crate::plan::PlanBuffer| b.value == plan.buffers[*id].value && b.shape.n_elems() > 0;
            plan.buffers[*id].shape.n_elems() > 0 && plan.buffers.values().filter(same).count() > 1
        };
        let id = plan.buffers.keys().filter(twice).nth(n)?;
        plan.buffers[id].offset_bytes += 16;
        corrupted("", "as other views of it")
    });
}

#[test]
fn a_value_at_an_odd_offset() {
    refuses(|plan, n| {
        let id = plan.buffers.keys().filter(|&id| plan.buffers[id].shape.n_elems() > 0).nth(n)?;
        plan.buffers[id].offset_bytes += 4;
        corrupted(id, "a multiple of 16 B|found another")
    });
}

#[test]
fn a_device_that_does_not_exist() {
    refuses(|plan, n| {
        let (id, groups) = plan.communicators.iter_mut().nth(n)?;
        *groups.last_mut()?.last_mut()? = 1000;
        corrupted(id, "expected devices below")
    });
}

#[test]
fn overlapping_groups() {
    refuses(|plan, n| {
        let (id, groups) = plan.communicators.iter_mut().nth(n)?;
        let first = *groups.first()?.first()?;
        groups.last_mut()?.push(first);
        corrupted(id, "a device twice")
    });
}

#[test]
fn a_device_in_no_group() {
    refuses(|plan, n| {
        let (id, groups) = plan.communicators.iter_mut().nth(n)?;
        groups.first_mut()?.pop();
        corrupted(id, "devices in its groups")
    });
}

#[test]
fn groups_of_several_sizes() {
    refuses(|plan, n| {
        let needs_equal = |step: &Step| match &step.work {
            Work::Collective(call) => !call.kind.is_elementwise() && call.kind.pairs().is_none(),
            _ => false,
        };
        let step = pick(plan, n, needs_equal)?;
        let name = step.name.clone();
        let Work::Collective(call) = &step.work else { return None };
        let communicator = call.communicator;
        let groups = &mut plan.communicators[communicator];
        let member = groups.first_mut()?.pop()?;
        groups.push(vec![member]);
        corrupted(name, "groups of one size|gives no")
    });
}

#[test]
fn the_communicator_of_another_collective() {
    refuses(|plan, n| {
        let mut groups = vec![(0..plan.n_replicas * plan.n_partitions).collect::<Vec<u32>>()];
        let needs_size = |step: &Step| match &step.work {
            Work::Collective(call) => {
                !call.kind.is_elementwise()
                    && call.kind.reduction().is_some()
                        != matches!(call.kind, CollectiveKind::Groups { scatters: false, .. })
            }
            _ => false,
        };
        let (l, i) = find(plan, n, |list, i| needs_size(&list[i]))?;
        let Work::Collective(call) = &list(plan, l)[i].work else { return None };
        let communicator = call.communicator;
        if plan.communicators[communicator].len() == 1 {
            groups = groups[0].iter().map(|&d| vec![d]).collect();
        }
        let other = plan.communicators.push(groups);
        let step = &mut list(plan, l)[i];
        if let Work::Collective(call) = &mut step.work {
            call.communicator = other;
        }
        corrupted(&step.name, "gives no")
    });
}

#[test]
fn a_collective_of_two_types() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(step.work, Work::Collective(_)))?;
        let name = step.name.clone();
        let Work::Collective(call) = &step.work else { return None };
        let output = call.calls[0].1;
        plan.buffers[output].shape.dtype = DType::U32;
        corrupted(name, "gives no|overlaps with")
    });
}

#[test]
fn a_permutation_with_two_values_for_one_device() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| match &step.work {
            Work::Collective(call) => call.kind.pairs().is_some_and(|pairs| pairs.len() > 1),
            _ => false,
        })?;
        if let Work::Collective(call) = &mut step.work
            && let CollectiveKind::Pairs(pairs) = &mut call.kind
        {
            pairs[1].1 = pairs[0].1;
        }
        corrupted(&step.name, "each target once")
    });
}

#[test]
fn a_permutation_to_a_device_that_does_not_exist() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| match &step.work {
            Work::Collective(call) => call.kind.pairs().is_some(),
            _ => false,
        })?;
        if let Work::Collective(call) = &mut step.work
            && let CollectiveKind::Pairs(pairs) = &mut call.kind
        {
            pairs[0].1 = 99;
        }
        corrupted(&step.name, "permute expects devices below")
    });
}

fn is_gemm(step: &Step) -> bool {
    matches!(step.work, Work::Gemm(_))
}

#[test]
fn a_product_beyond_its_buffers() {
    refuses(|plan, n| {
        let step = pick(plan, n / 4, is_gemm)?;
        let Work::Gemm(gemm) = &mut step.work else { return None };
        match n % 4 {
            0 => gemm.m += 1,
            1 => gemm.n *= 2,
            2 => gemm.k += 1,
            _ => gemm.batch += if gemm.output.batch_stride_elems == 0 { u64::MAX / 2 } else { 1 },
        }
        corrupted(&step.name, "strides lead to element|each element once")
    });
}

#[test]
fn a_product_with_too_large_a_stride() {
    refuses(|plan, n| {
        let is_whole = |gemm: &crate::plan::Gemm| gemm.m > 1 && gemm.n > 1 && gemm.k > 1;
        let step = pick(plan, n, |step| matches!(&step.work, Work::Gemm(gemm) if is_whole(gemm)))?;
        let Work::Gemm(gemm) = &mut step.work else { return None };
        let matrix = [&mut gemm.lhs, &mut gemm.rhs, &mut gemm.output].into_iter().nth(n % 3)?;
        let stride =
            if matrix.row_stride_elems == 1 { &mut matrix.col_stride_elems } else { &mut matrix.row_stride_elems };
        *stride = u64::MAX / 3;
        corrupted(&step.name, "strides lead to element")
    });
}

#[test]
fn a_product_that_writes_an_element_twice() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(&step.work, Work::Gemm(gemm) if gemm.m > 1 && gemm.n > 1))?;
        let Work::Gemm(gemm) = &mut step.work else { return None };
        (gemm.output.row_stride_elems, gemm.output.col_stride_elems) = (1, 1);
        corrupted(&step.name, "each element once")
    });
}

#[test]
fn a_product_of_types_that_the_library_has_not() {
    refuses(|plan, n| {
        let step = pick(plan, n, is_gemm)?;
        let name = step.name.clone();
        let Work::Gemm(gemm) = &step.work else { return None };
        let operand = gemm.lhs.buffer;
        plan.buffers[operand].shape.dtype = DType::S32;
        corrupted(name, "the product library has no")
    });
}

#[test]
fn too_few_or_too_many_arguments() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(step.work, Work::Launch { .. }))?;
        let Work::Launch { arguments, .. } = &mut step.work else { return None };
        if n % 2 == 0 {
            arguments.pop();
        } else {
            arguments.push(arguments[0]);
        }
        corrupted(&step.name, "arguments, found")
    });
}

#[test]
fn an_argument_read_that_the_source_writes() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(step.work, Work::Launch { .. }))?;
        let name = step.name.clone();
        let Work::Launch { kernel, .. } = step.work else { return None };
        let last = plan.kernels[kernel].arguments.last_mut()?;
        *last = Access::Read;
        corrupted(name, "by its source")
    });
}

#[test]
fn an_argument_written_that_the_source_reads() {
    refuses(|plan, n| {
        let reads = |plan: &Plan, k: KernelId| plan.kernels[k].arguments.first() == Some(&Access::Read);
        let old = plan.clone();
        let step = pick(plan, n, |s| matches!(s.work, Work::Launch { kernel, .. } if reads(&old, kernel)))?;
        let name = step.name.clone();
        let Work::Launch { kernel, .. } = step.work else { return None };
        plan.kernels[kernel].arguments[0] = Access::Write;
        corrupted(name, "by its source|which is only read")
    });
}

#[test]
fn a_launch_that_the_hardware_refuses() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(step.work, Work::Launch { .. }))?;
        let name = step.name.clone();
        let Work::Launch { kernel, .. } = step.work else { return None };
        let kernel = &mut plan.kernels[kernel];
        match n % 3 {
            0 => kernel.block = 2048,
            1 => kernel.grid = 0,
            _ => kernel.shared_bytes = 1 << 20,
        }
        corrupted(name, "cannot be launched")
    });
}

#[test]
fn a_copy_between_sizes() {
    refuses(|plan, n| {
        let size = |b: &BufferId| plan.buffers[*b].shape.memory_bytes();
        let mut other: Vec<BufferId> = plan.buffers.keys().filter(|&b| plan.buffers[b].place == Place::Arena).collect();
        other.sort_by_key(size);
        let other = [*other.first()?, *other.last()?];
        if size(&other[0]) == size(&other[1]) {
            return None;
        }
        let sizes: Vec<u64> = plan.buffers.keys().map(|b| size(&b)).collect();
        let step = pick(plan, n, |step| matches!(step.work, Work::Copy { .. }))?;
        if let Work::Copy { from, to } = &mut step.work {
            let from_bytes = sizes[from.index()];
            *to = other.into_iter().find(|b| sizes[b.index()] != from_bytes)?;
        }
        corrupted(&step.name, "expected a copy to")
    });
}

#[test]
fn a_kernel_buffer_or_communicator_that_does_not_exist() {
    refuses(|plan, n| {
        let step = pick(plan, n, |step| matches!(step.work, Work::Launch { .. } | Work::Collective(_)))?;
        match &mut step.work {
            Work::Launch { kernel, .. } if n % 2 == 0 => *kernel = KernelId::new(1 << 20),
            Work::Launch { arguments, .. } => arguments[0] = BufferId::new(1 << 20),
            Work::Collective(call) => call.communicator = crate::plan::CommunicatorId::new(1 << 20),
            _ => {}
        }
        corrupted(&step.name, "does not exist")
    });
}

#[test]
fn a_step_on_the_wrong_stream() {
    refuses(|plan, n| {
        let step = pick(plan, n, |_| true)?;
        step.stream = match step.stream {
            Stream::Compute => Stream::Communication,
            Stream::Communication => Stream::Compute,
        };
        corrupted(&step.name, "stream, found")
    });
}

#[test]
fn a_decision_that_differs_between_devices() {
    let mut n_refused = 0;
    for (name, plan) in plans() {
        let mut broken = plan.clone();
        broken.parameter_facts.iter_mut().for_each(|facts| facts.classes.clear());
        // Most loops count from a constant; these branches look at a parameter.
        let errors = verify(&broken).err().unwrap_or_default();
        let is_told = |error: &String| error.contains("not known to be the same on all devices");
        assert!(errors.iter().all(is_told), "{name}: {errors:#?}");
        n_refused += usize::from(!errors.is_empty());
    }
    assert!(n_refused > 0);
}

#[test]
fn a_decision_by_what_is_computed_from_the_device_id() {
    refuses(|plan, n| {
        // The loop's or branch's decision hangs on all that its kernel reads, and one of that is the device's number.
        let (l, i) = find(plan, n, |list, i| matches!(list[i].work, Work::While { .. }))?;
        let n_devices = plan.n_replicas * plan.n_partitions;
        let name = list(plan, l)[i].name.clone();
        let shape = hlo_ir::ArrayShape::new(DType::U32, []);
        let value = crate::plan::PlanValueId::new(1 << 20);
        let buffer = crate::plan::PlanBuffer {
            name: "partition".into(),
            shape,
            place: Place::DeviceIds,
            offset_bytes: if plan.n_partitions == 1 { 0 } else { 4 },
            value,
            value_offset_bytes: if plan.n_partitions == 1 { 0 } else { 4 },
        };
        let id = plan.buffers.push(buffer);
        let Work::While { condition, .. } = &mut list(plan, l)[i].work else { return None };
        let Work::Launch { arguments, .. } = &mut condition.last_mut()?.work else { return None };
        arguments[0] = id;
        if n_devices == 1 { None } else { corrupted(name, "not known to be the same on all devices") }
    });
}

#[test]
fn a_decision_by_something_else_than_one_truth_value() {
    refuses(|plan, n| {
        let other = plan.parameters.iter().copied().find(|&b| plan.buffers[b].shape.dtype == DType::F32)?;
        let is_decision = |step: &Step| matches!(step.work, Work::While { .. } | Work::Conditional { .. });
        let step = pick(plan, n, is_decision)?;
        match &mut step.work {
            Work::While { predicate, .. } => *predicate = other,
            Work::Conditional { selector, .. } => *selector = other,
            _ => {}
        }
        corrupted(&step.name, "expected a decision by")
    });
}
