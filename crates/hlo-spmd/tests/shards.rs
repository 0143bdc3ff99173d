//! Shards that are built, run in the evaluator: cut and joined they are what they were, reduced into shards they are the sum.

use hlo_eval::Inputs;
use hlo_ir::attrs::{Attrs, ReduceAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, DType, InstId, Literal, Module, Opcode, Shape};
use hlo_spmd::packing::{flat_order, flatten, unflatten};
use hlo_spmd::{Appender, ChannelIds, DeviceIds, DimRun, GroupAttrs, Packing, ShardBuilder, ShardFormat};
use std::sync::Arc;

type Groups = Vec<Vec<u32>>;

/// Replicas, partitions, and groups of their devices.
fn places() -> Vec<(usize, usize, Groups)> {
    let mut places = Vec::new();
    for (replicas, partitions) in [(1, 2), (3, 1), (1, 6), (2, 3), (1, 8), (2, 4)] {
        let n = (replicas * partitions) as u32;
        places.push((replicas, partitions, vec![(0..n).collect()]));
        places.push((replicas, partitions, vec![(0..n).rev().collect()]));
        if n.is_multiple_of(2) && n > 2 {
            // Strided, so that positions are not device ids.
            places.push((replicas, partitions, (0..n / 2).map(|i| vec![i + n / 2, i]).collect()));
        }
    }
    places
}

/// `text` in the entry of a module, with `%add` for `s32`.
fn module(replicas: usize, partitions: usize, parameter: &str, text: &str) -> Module {
    let text = format!(
        "HloModule m, replica_count={replicas}, num_partitions={partitions}

%add (x: s32[], y: s32[]) -> s32[] {{
  %x = s32[] parameter(0)
  %y = s32[] parameter(1)
  ROOT %s = s32[] add(%x, %y)
}}

ENTRY %main {{
  %p = {parameter} parameter(0)
{text}}}
"
    );
    hlo_text::parse_bytes(text.as_bytes()).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module
}

fn find(module: &Module, name: &str) -> InstId {
    let entry = module.entry().expect("an entry");
    let mut insts = module.comp(entry).insts.iter().copied();
    insts.find(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no %{name}"))
}

fn array(module: &Module, inst: InstId) -> ArrayShape {
    module.shape(inst).as_array().expect("an array").clone()
}

/// Runs the module with these results; each device has other numbers where `differ`. By result, by device.
fn run(module: &mut Module, results: &[InstId], differ: bool) -> Vec<Vec<Arc<Literal>>> {
    let entry = module.entry().expect("an entry");
    let shape = Shape::Tuple(results.iter().map(|&r| module.shape(r).clone()).collect());
    let root = Builder::new(module, entry).add("results", Opcode::Tuple, shape, results.iter().copied(), Attrs::Plain);
    module.comp_mut(entry).root = Some(root).into();
    module.restore_order(entry).expect("no circle");
    let text = hlo_ir::print::print_module(module, &Default::default());
    hlo_ir::verify::verify(module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let param = array(module, module.comp(entry).params[0]);
    let draw = |device: usize| {
        let elems = (0..param.n_elems() as i32).map(|i| i * 7 + 3 + device as i32 * 100).collect();
        Arc::new(Literal::from_elems::<i32>(&param.dims, elems).expect("a literal"))
    };
    let devices = (0..module.n_devices()).map(|device| draw(if differ { device } else { 0 })).collect();
    let inputs = Inputs { leaves: vec![devices] };
    hlo_eval::run(module, &inputs, &Default::default()).unwrap_or_else(|e| panic!("{e:?}\n{text}")).leaves
}

/// All formats in which arrays of the tests are cut: single dims and merged ones, most of which do not divide.
fn formats(whole: &ArrayShape, n_shards: usize) -> Vec<ShardFormat> {
    let runs = [DimRun::dim(0), DimRun::dim(1), DimRun::of(0, 2), DimRun::of(1, 2)];
    runs.into_iter().map(|run| ShardFormat::new(whole, run, n_shards)).collect()
}

#[test]
fn what_is_cut_and_joined_is_what_it_was() {
    for (replicas, partitions, groups) in places() {
        let mut module = module(replicas, partitions, "s32[5,3,2]{2,1,0}", "  ROOT %r = s32[5,3,2] copy(%p)\n");
        let p = find(&module, "p");
        let whole = array(&module, p);
        let n_shards = groups[0].len();
        let mut builder = ShardBuilder::new(&module, groups.clone().into());
        let mut results = vec![p];
        for format in formats(&whole, n_shards) {
            let shard = builder.cut(&mut module, p, &format).expect("a shard");
            assert_eq!(array(&module, shard), format.shard_shape(&whole));
            results.push(builder.join(&mut module, shard, &whole, &format).whole);
        }
        let leaves = run(&mut module, &results, false);
        for (case, joined) in leaves[1..].iter().enumerate() {
            assert_eq!(*joined, leaves[0], "{replicas}x{partitions}, {groups:?}, case {case}");
        }
    }
}

#[test]
fn what_is_reduced_into_shards_is_the_sum() {
    for (replicas, partitions, groups) in places() {
        let n = (replicas * partitions) as u32;
        // Within the groups, or within halves of the only group and across them.
        let mut cases = vec![(groups.clone(), Vec::new())];
        if groups.len() == 1 && n.is_multiple_of(2) {
            let (a, b) = groups[0].split_at(n as usize / 2);
            let across = a.iter().zip(b).map(|(&a, &b)| vec![a, b]).collect();
            cases.push((vec![a.to_vec(), b.to_vec()], across));
        }
        let listed: Vec<String> = groups
            .iter()
            .map(|g| format!("{{{}}}", g.iter().map(u32::to_string).collect::<Vec<_>>().join(",")))
            .collect();
        for (shards, across) in cases {
            let sum = format!(
                "  ROOT %sum = s32[5,3,2]{{2,1,0}} all-reduce(%p), channel_id=7, replica_groups={{{}}}, \
                 use_global_device_ids=true, to_apply=%add\n",
                listed.join(",")
            );
            let mut module = module(replicas, partitions, "s32[5,3,2]{2,1,0}", &sum);
            let sum = find(&module, "sum");
            let whole = array(&module, sum);
            let n_shards = shards[0].len();
            let mut builder = ShardBuilder::new(&module, shards.clone().into()).summed_across(across);
            let mut results = vec![sum];
            for format in formats(&whole, n_shards) {
                let scattered = builder.reduce_scatter(&mut module, sum, &format).expect("a reduce-scatter");
                results.push(builder.join(&mut module, scattered.shard(), &whole, &format).whole);
            }
            let leaves = run(&mut module, &results, true);
            for (case, joined) in leaves[1..].iter().enumerate() {
                assert_eq!(*joined, leaves[0], "{replicas}x{partitions}, {shards:?}, case {case}");
            }
        }
    }
}

#[test]
fn partial_sums_of_masked_shards_make_the_sum() {
    const TEXT: &str = "  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %ones = s32[5,3,2] broadcast(%one), dimensions={}
  %more = s32[5,3,2] add(%p, %ones)
  ROOT %sum = s32[] reduce(%more, %zero), dimensions={0,1,2}, to_apply=%add
";
    for (replicas, partitions, groups) in places() {
        let mut module = module(replicas, partitions, "s32[5,3,2]{2,1,0}", TEXT);
        let (entry, p, sum, zero) =
            (module.entry().expect("an entry"), find(&module, "p"), find(&module, "sum"), find(&module, "zero"));
        let reducer = module.called(sum)[0];
        let mut builder = ShardBuilder::new(&module, groups.clone().into());
        let mut results = vec![sum];
        let whole = array(&module, p);
        for format in formats(&whole, groups[0].len()) {
            let shard = builder.cut(&mut module, p, &format).expect("a shard");
            let shape = array(&module, shard);
            let one = find(&module, "one");
            let ones = Builder::new(&mut module, entry).broadcast_scalar("ones", one, shape.clone());
            let at = Appender::new(entry);
            // Padding is one now, and must not be counted.
            let more = at.add(&mut module, "more", Opcode::Add, shape.clone(), &[shard, ones], Attrs::Plain);
            let masked = builder.mask(&mut module, more, zero, &format).expect("a mask");
            assert_eq!(masked == more, format.split.padding() == 0);
            let dimensions = (0..shape.rank() as i64).collect();
            let attrs = ReduceAttrs { dimensions, to_apply: Some(reducer) };
            let scalar = ArrayShape::new(DType::S32, []);
            let partial = at.add(&mut module, "partial", Opcode::Reduce, scalar, &[masked, zero], attrs);
            results.push(builder.all_reduce(&mut module, partial, reducer).expect("an all-reduce"));
        }
        let leaves = run(&mut module, &results, false);
        for (case, total) in leaves[1..].iter().enumerate() {
            assert_eq!(*total, leaves[0], "{replicas}x{partitions}, {groups:?}, case {case}");
        }
    }
}

#[test]
fn iotas_and_broadcasts_are_built_in_shards() {
    const TEXT: &str = "  %rows = bf16[301,3]{1,0} iota(), iota_dimension=0
  %columns = f32[301,3]{1,0} iota(), iota_dimension=1
  %counts = s32[301,3]{1,0} iota(), iota_dimension=0
  %five = f32[] constant(5)
  %fives = f32[301,3]{1,0} broadcast(%five), dimensions={}
  ROOT %r = s32[2] copy(%p)
";
    for (replicas, partitions, groups) in places() {
        let mut module = module(replicas, partitions, "s32[2]{0}", TEXT);
        let entry = module.entry().expect("an entry");
        let mut builder = ShardBuilder::new(&module, groups.clone().into());
        let (mut results, mut n_cut) = (Vec::new(), 0);
        for name in ["rows", "columns", "counts", "fives"] {
            let inst = find(&module, name);
            let whole = array(&module, inst);
            for run in [DimRun::dim(0), DimRun::dim(1), DimRun::of(0, 2)] {
                let format = ShardFormat::new(&whole, run, groups[0].len());
                let built = builder.rebuild(&mut module, entry, inst, &format).expect("an array");
                let Some(shard) = built else {
                    n_cut += 1;
                    continue;
                };
                let joined = builder.join(&mut module, shard, &whole, &format);
                results.extend([inst, joined.whole]);
            }
        }
        assert_eq!(n_cut, 3, "iotas along a merged dim have to be cut");
        let leaves = run(&mut module, &results, false);
        for (case, pair) in leaves.chunks(2).enumerate() {
            assert_eq!(pair[0], pair[1], "{replicas}x{partitions}, {groups:?}, case {case}");
        }
    }
}

#[test]
fn rows_are_exchanged_within_groups_where_an_all_to_all_can_name_them() {
    for (replicas, partitions, groups) in places() {
        let n_members = groups[0].len();
        let parameter = format!("s32[{},3]{{1,0}}", 2 * n_members);
        let mut module = module(replicas, partitions, &parameter, "  ROOT %r = s32[] constant(0)\n");
        let p = find(&module, "p");
        let mut builder = ShardBuilder::new(&module, groups.clone().into());
        let exchanged = builder.exchange_rows(&mut module, p).expect("an array");
        assert_eq!(exchanged.is_none(), replicas > 1 && partitions > 1, "{replicas}x{partitions}");
        let Some(exchanged) = exchanged else { continue };
        let leaves = run(&mut module, &[p, exchanged], true);
        let rows = |device: u32, leaf: usize, block: usize| {
            (0..6).map(|k| leaves[leaf][device as usize].get(6 * block + k)).collect::<Vec<_>>()
        };
        for group in &groups {
            for (i, &member) in group.iter().enumerate() {
                for (j, &other) in group.iter().enumerate() {
                    assert_eq!(rows(member, 1, j), rows(other, 0, i), "{replicas}x{partitions}, {groups:?}");
                }
            }
        }
    }
}

#[test]
fn a_position_is_that_of_the_device_in_its_group() {
    for (replicas, partitions, groups) in places() {
        let mut module = module(replicas, partitions, "s32[2]{0}", "  ROOT %r = s32[2] copy(%p)\n");
        let entry = module.entry().expect("an entry");
        let mut devices = DeviceIds::new(groups.clone().into());
        let position = devices.position(&mut module, entry).expect("devices");
        assert_eq!(devices.position(&mut module, entry), Ok(position), "built once");
        let offset = devices.offset(&mut module, entry, 5).expect("devices");
        let expected: Vec<i64> = (0..replicas * partitions)
            .map(|d| groups.iter().find_map(|g| g.iter().position(|&m| m as usize == d)).expect("a member") as i64)
            .collect();
        assert_eq!(hlo_spmd::find_device_values(&module, position).as_ref(), Some(&expected));
        let offsets: Vec<i64> = expected.iter().map(|position| position * 5).collect();
        assert_eq!(hlo_spmd::find_device_values(&module, offset), Some(offsets));
    }
    let mut module = module(1, 2, "s32[2]{0}", "  ROOT %r = s32[2] copy(%p)\n");
    let entry = module.entry().expect("an entry");
    let error = DeviceIds::new(vec![vec![1, 2]].into()).position(&mut module, entry).expect_err("two devices");
    assert_eq!(error.to_string(), "a group member is no device");
}

#[test]
fn packed_arrays_are_what_they_were() {
    const TEXT: &str = "  %a = s32[5,3]{1,0} slice(%p), slice={[0:5],[0:3]}
  %b = s32[5,3]{0,1} copy(%a)
  %c = s32[2]{0} constant({8, 9})
  %d = s32[] constant(4)
  ROOT %r = s32[] copy(%d)
";
    for n_rows in [None, Some(1)] {
        let mut module = module(1, 2, "s32[6,4]{1,0}", TEXT);
        let at = Appender::new(module.entry().expect("an entry"));
        let members: Vec<InstId> = ["a", "b", "c", "d"].iter().map(|name| find(&module, name)).collect();
        let (mut parts, mut sizes) = (Vec::new(), Vec::new());
        for &member in &members {
            let shape = array(&module, member);
            let order = flat_order(&shape, None);
            parts.push(flatten(&mut module, at, "flat", (member, &shape), &order, n_rows));
            sizes.push(shape.n_elems() as i64);
        }
        let packing = Packing::new(DType::S32, true, sizes);
        let packed = packing.pack(&mut module, at, "packed", &parts, n_rows);
        assert_eq!(array(&module, packed).n_elems(), 33);
        let mut results = members.clone();
        for (idx, &member) in members.iter().enumerate() {
            let shape = array(&module, member);
            let part = packing.unpack(&mut module, at, "part", packed, (idx, n_rows));
            let order = flat_order(&shape, None);
            let back = unflatten(&mut module, at, "back", part, &shape, &order);
            assert_eq!(array(&module, back), shape);
            results.push(back);
        }
        let leaves = run(&mut module, &results, true);
        assert_eq!(leaves[..4], leaves[4..]);
    }
}

#[test]
fn a_layout_that_is_flattened_as_it_lies_moves_nothing() {
    let mut module = module(1, 2, "s32[6,4]{0,1}", "  ROOT %r = s32[6,4]{0,1} copy(%p)\n");
    let (at, p) = (Appender::new(module.entry().expect("an entry")), find(&module, "p"));
    let shape = array(&module, p);
    assert_eq!(flat_order(&shape, None), [1, 0]);
    assert_eq!(flat_order(&shape, Some(0)), [0, 1]);
    let flat = flatten(&mut module, at, "flat", (p, &shape), &[1, 0], None);
    let turned = module.inst(flat).operands[0];
    assert_eq!((module.inst(flat).opcode, module.inst(turned).opcode), (Opcode::Reshape, Opcode::Transpose));
    let layout = array(&module, turned).layout.expect("a layout");
    assert_eq!(layout.minor_to_major.as_slice(), [1, 0], "what was outermost in memory is outermost in the indices");
}

#[test]
fn participants_are_named_as_the_module_and_the_old_collective_allow() {
    let text = |attrs: &str| format!("  ROOT %old = s32[2] all-reduce(%p), {attrs}, to_apply=%add\n");
    let named = |replicas, partitions, old: Option<&str>, groups: &[Vec<u32>]| {
        let old_text = text(old.unwrap_or("replica_groups={}"));
        let module = module(replicas, partitions, "s32[2]", &old_text);
        let mut channels = ChannelIds::free_in(&module);
        let participants = match old {
            Some(_) => GroupAttrs::in_place_of(&module, find(&module, "old"), groups, || channels.take()),
            None => GroupAttrs::new(&module, groups, &mut channels),
        };
        let attrs = participants.gathering(1);
        let lists = attrs.replica_groups.expand().expect("lists");
        assert_eq!(attrs.dimensions.as_slice(), [1]);
        assert_eq!(attrs.use_global_device_ids, attrs.channel_id.is_some());
        (attrs.channel_id, lists)
    };
    // One partition: replica ids are flat ids.
    assert_eq!(named(4, 1, None, &[vec![2, 0], vec![1, 3]]), (None, vec![vec![2, 0], vec![1, 3]]));
    assert_eq!(named(1, 4, None, &[vec![2, 0], vec![1, 3]]), (Some(1), vec![vec![2, 0], vec![1, 3]]));
    // Both partitions have the same groups of replicas, or they do not.
    let replicas = Some("replica_groups={{0,1}}");
    assert_eq!(named(2, 2, replicas, &[vec![2, 0], vec![3, 1]]), (None, vec![vec![1, 0]]));
    assert_eq!(named(2, 2, replicas, &[vec![2, 0], vec![1, 3]]), (Some(1), vec![vec![2, 0], vec![1, 3]]));
    // A collective over flat ids stays one.
    let flat = Some("channel_id=5, replica_groups={{0,2},{1,3}}, use_global_device_ids=true");
    assert_eq!(named(2, 2, flat, &[vec![2, 0], vec![3, 1]]), (Some(6), vec![vec![2, 0], vec![3, 1]]));
}

#[test]
fn channels_are_renewed_where_there_are_any() {
    let text = "  ROOT %old = s32[2] all-reduce(%p), channel_id=5, replica_groups={}, to_apply=%add\n";
    let module = module(1, 2, "s32[2]", text);
    let mut channels = ChannelIds::free_in(&module);
    let mut attrs = module.inst(find(&module, "old")).attrs.clone();
    channels.renew(&mut attrs);
    assert_eq!(attrs.channel_id_mut().copied(), Some(6));
    channels.renew(&mut Attrs::Plain);
    assert_eq!(channels.take(), 7, "what has no channel takes none");
}
