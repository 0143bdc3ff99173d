//! `decompose-collectives` with every program that HLO can say, not only with those that some machine likes best.

use crate::equivalence::{Nearness, check};
use crate::lockstep::parse;
use cranelift_entity::EntitySet;
use hlo_cluster::Collective;
use hlo_cluster::reduction::chunk_order::to_arrays;
use hlo_cluster::reduction::{Graph, Rules, Step, Vocabulary};
use hlo_collectives::decompose_collectives::{emit::emit, fit::find_fit};
use hlo_collectives::reading::find_all_reduce;
use hlo_collectives::rewrite::Rewrite;
use hlo_ir::{Module, Opcode};

fn programs(n_factors: usize) -> Vec<Vec<Step>> {
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
fn decomposed(before: &Module, levels: &[u32], program: &[Step]) -> Module {
    let mut module = before.clone();
    let comp = module.entry().expect("an entry");
    let mut rewrite = Rewrite::new(&module, comp);
    let insts = rewrite.live_insts(&module);
    let inst = insts.into_iter().find(|&i| module.inst(i).opcode == Opcode::AllReduce).expect("an all-reduce");
    let all_reduce = find_all_reduce(&module, inst, &EntitySet::new()).expect("a free one").expect("an all-reduce");
    let fit = find_fit(levels, &all_reduce.groups).expect("groups that fit");
    let steps = to_arrays(&fit.factors, program).expect("steps over arrays");
    let mut next_channel = module.max_channel_id() + 1;
    emit(&mut module, &mut rewrite, (comp, &all_reduce), (&fit, &steps), &mut next_channel);
    rewrite.finish(&mut module).expect("an order");
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{program:?}: {diags:?}"));
    module
}

fn check_all(levels: &[u32], shape: &str, counts: &str, groups: &str, programs: &[Vec<Step>]) {
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
    let gathers_at_once = |p: &&Vec<Step>| {
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
