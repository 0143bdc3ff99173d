//! `decompose-collectives` with every program that HLO can say, not only with those that some machine likes best.

use crate::equivalence::{Nearness, check};
use crate::lockstep::parse;
use cranelift_entity::EntitySet;
use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::to_arrays;
use hlo_cluster::reduction::scatter::{ScatterProgram, scatter_programs};
use hlo_cluster::reduction::{Graph, ReductionStep, Rules, Scatter, Vocabulary};
use hlo_collectives::decompose_collectives::choose::{all_reduce_program, scatter_program};
use hlo_collectives::decompose_collectives::emit::{DeviceProgram, emit};
use hlo_collectives::decompose_collectives::fit::{Fit, find_fit};
use hlo_collectives::decompose_collectives::subject::{Subject, find_subject};
use hlo_ir::{ArrayShape, Module};
use hlo_spmd::{ChannelIds, Rewrite};

fn programs(n_factors: usize) -> Vec<Vec<ReductionStep>> {
    let graph = Graph::build_with(n_factors, Rules::Pinned, Vocabulary::Hlo, true).expect("a graph");
    let mut all = Vec::new();
    graph.for_each_program(usize::MAX, &mut |edges| all.push(edges.iter().map(|e| graph.step(e)).collect()));
    all
}

fn module(shape: &str, counts: &str, groups: &str) -> Module {
    let bare = shape.split('{').next().unwrap_or_default();
    let text = format!(
        "HloModule m, {counts}\n\n%add (a: s32[], b: s32[]) -> s32[] {{\n  %a = s32[] parameter(0)\n  \
         %b = s32[] parameter(1)\n  ROOT %c = s32[] add(%a, %b)\n}}\n\nENTRY %e (x: {bare}) -> {bare} {{\n  \
         %x = {shape} parameter(0)\n  ROOT %sum = {shape} all-reduce(%x), {groups}, to_apply=%add\n}}\n"
    );
    parse("generated", &text)
}

/// The module with its all-reduce done by `program`.
fn decomposed(before: &Module, levels: &[u32], program: &[ReductionStep]) -> Module {
    rewritten(before, levels, |fit, subject, whole| {
        let steps = to_arrays(&fit.factors, program).expect("steps over arrays");
        assert_eq!(subject.kind, Collective::AllReduce);
        all_reduce_program(fit, whole, &steps)
    })
}

/// The module with its collective done by a program.
fn rewritten(
    before: &Module,
    levels: &[u32],
    program: impl Fn(&Fit, &Subject, &ArrayShape) -> DeviceProgram,
) -> Module {
    let mut module = before.clone();
    let comp = module.entry().expect("an entry");
    let mut rewrite = Rewrite::new(&module, comp);
    let mut subjects = rewrite
        .live_insts(&module)
        .into_iter()
        .filter_map(|inst| find_subject(&module, inst, &EntitySet::new()).expect("a free collective"));
    let subject = subjects.next_back().expect("a collective");
    let fit = find_fit(levels, &subject.groups).expect("groups that fit");
    let program = program(&fit, &subject, &subject.whole(&module, 0).expect("an array"));
    let mut channels = ChannelIds::free_in(&module);
    let (operand, result) = subject.parts[0].clone();
    let (new, _) = emit(&mut module, (comp, subject.inst), (operand, &result), &program, &mut channels);
    rewrite.redirect(subject.inst, new);
    rewrite.finish(&mut module).expect("an order");
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{program:?}: {diags:?}"));
    module
}

fn check_all(levels: &[u32], shape: &str, counts: &str, groups: &str, programs: &[Vec<ReductionStep>]) {
    let before = module(shape, counts, groups);
    for program in programs {
        let after = decomposed(&before, levels, program);
        check(&before, &after, "int1000", Nearness::Exact)
            .unwrap_or_else(|e| panic!("{shape}, {counts}, {groups}, {program:?}: {e}"));
    }
}

const FLAT: &str = "channel_id=7, replica_groups={{3,1,6,0,2,5,7,4}}, use_global_device_ids=true";

#[test]
fn every_program_of_two_levels() {
    let all = programs(2);
    assert_eq!(all.len(), 20);
    let gathers_at_once = |p: &&Vec<ReductionStep>| {
        let kinds: Vec<Collective> = p.iter().map(|s| s.collective).collect();
        kinds == [Collective::ReduceScatter, Collective::ReduceScatter, Collective::AllGather]
    };
    assert!(all.iter().filter(gathers_at_once).count() >= 2);
    for shape in ["s32[16,3]{1,0}", "s32[3,16]{0,1}", "s32[5,3]{1,0}", "s32[5,3]{0,1}", "s32[]", "s32[1,24]{1,0}"] {
        check_all(&[2, 4], shape, "num_partitions=8", FLAT, &all);
        check_all(&[2, 4], shape, "replica_count=8", "replica_groups={}", &all);
        check_all(&[2, 4], shape, "replica_count=4, num_partitions=2", "replica_groups={{2,0,3,1}}", &all);
        check_all(&[2, 4], shape, "replica_count=4, num_partitions=2", "channel_id=1, replica_groups={}", &all);
    }
    check_all(&[3, 2], "s32[7,5]{1,0}", "replica_count=6", "replica_groups={}", &all);
}

#[test]
fn every_program_of_three_levels() {
    let all = programs(3);
    assert_eq!(all.len(), 394);
    check_all(&[2, 2, 2], "s32[5,3]{1,0}", "num_partitions=8", FLAT, &all);
}

/// The judge sees a wrong order of chunks.
#[test]
fn groups_in_another_order_are_seen() {
    let before = module("s32[16,3]{1,0}", "num_partitions=8", FLAT);
    let all = programs(2);
    let program = all.iter().find(|p| p.len() == 3 && p[2].collective == Collective::AllGather).expect("one");
    let after = decomposed(&before, &[2, 4], program);
    let mut wrong = after.clone();
    let entry = wrong.entry().expect("an entry");
    for inst in wrong.comp(entry).insts.clone() {
        if let hlo_ir::attrs::Attrs::Gathering(attrs) = &mut wrong.inst_mut(inst).attrs
            && let hlo_ir::groups::ReplicaGroups::List(groups) = &mut attrs.replica_groups
        {
            groups.iter_mut().for_each(|group| group.reverse());
        }
    }
    assert!(check(&before, &wrong, "int1000", Nearness::Exact).is_err());
    assert_eq!(check(&before, &after, "int1000", Nearness::Exact), Ok(()));
}

/// A module whose root scatters or gathers along `dim`, in every order of the levels.
fn check_scatter(levels: &[u32], (op, dim): (&str, usize), whole: &str, counts: &str, groups: &str) {
    let (dims, layout) = whole.split_once('{').unwrap_or((whole, ""));
    let layout = if layout.is_empty() { String::new() } else { format!("{{{layout}") };
    let numbers: Vec<i64> =
        dims.trim_start_matches("s32[").trim_end_matches(']').split(',').filter_map(|n| n.parse().ok()).collect();
    let mut part = numbers.clone();
    part[dim] /= groups.split(['{', '}']).map(|list| list.split(',').count()).max().unwrap_or(1).max(2) as i64;
    let text = |numbers: &[i64]| format!("s32[{}]", numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(","));
    let (from, to, reducer) = match op {
        "all-gather" => (text(&part), text(&numbers), ""),
        _ => (text(&numbers), text(&part), ", to_apply=%add"),
    };
    let text = format!(
        "HloModule m, {counts}\n\n%add (a: s32[], b: s32[]) -> s32[] {{\n  %a = s32[] parameter(0)\n  \
         %b = s32[] parameter(1)\n  ROOT %c = s32[] add(%a, %b)\n}}\n\nENTRY %e (x: {from}) -> {to} {{\n  \
         %x = {from}{layout} parameter(0)\n  ROOT %r = {to}{layout} {op}(%x), {groups}, dimensions={{{dim}}}{reducer}\n}}\n"
    );
    let before = parse("generated", &text);
    let n_factors = levels.iter().filter(|n| **n > 1).count();
    let programs = scatter_programs(n_factors);
    assert_eq!(programs.len(), [1, 1, 3, 11][n_factors]);
    for instructions in programs {
        let after = rewritten(&before, levels, |fit, subject, whole| {
            let chunks = fit.places(&subject.groups);
            let scatter = Scatter { factors: &fit.factors, groups: &fit.groups, chunks: &chunks };
            let (order, groups) = scatter.with_order(&instructions).expect("an order");
            let found = ScatterProgram {
                seconds: 0.0,
                instructions: instructions.clone(),
                order,
                groups,
                is_second_choice: false,
            };
            scatter_program(fit, (subject.kind, subject.dim), whole, found)
        });
        check(&before, &after, "int1000", Nearness::Exact)
            .unwrap_or_else(|e| panic!("{op} {whole}, {counts}, {groups}, {instructions:?}: {e}"));
    }
}

#[test]
fn every_order_of_levels_scatters_and_gathers() {
    const IN_ORDER: &str = "channel_id=7, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true";
    for op in ["reduce-scatter", "all-gather"] {
        for (whole, dim) in [("s32[16,3]{1,0}", 0), ("s32[16,3]{0,1}", 0), ("s32[3,8,2]{2,1,0}", 1), ("s32[8]", 0)] {
            for groups in [IN_ORDER, FLAT] {
                check_scatter(&[2, 4], (op, dim), whole, "num_partitions=8", groups);
                check_scatter(&[2, 2, 2], (op, dim), whole, "num_partitions=8", groups);
            }
            check_scatter(&[4, 2], (op, dim), whole, "replica_count=8", "replica_groups={{0,1,2,3,4,5,6,7}}");
        }
        let by_replica = "replica_groups={{2,0,3,1}}";
        check_scatter(&[2, 4], (op, 0), "s32[8,3]{1,0}", "replica_count=4, num_partitions=2", by_replica);
        let two = "channel_id=1, replica_groups={{0,1,4,5},{2,3,6,7}}, use_global_device_ids=true";
        check_scatter(&[2, 4], (op, 1), "s32[3,8]{1,0}", "num_partitions=8", two);
    }
}
