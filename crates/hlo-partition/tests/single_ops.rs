//! Single ops on a few devices: which collectives the partitioner writes, and how many bytes a device receives, counted by hand. That the
//! results are right is tested in the evaluator, for these too.

use hlo_eval::global::{GlobalProgram, TiledInterface};
use hlo_eval::{EvalOptions, draw};
use hlo_ir::collective::Participants;
use hlo_ir::op::CollectiveSource;
use hlo_ir::{InstId, Module};
use hlo_partition::PASSES;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};

/// A module of one computation, after `%add` and `%max`.
fn module(body: &str) -> Module {
    let text = format!(
        "HloModule m\n\n%add (x: f32[], y: f32[]) -> f32[] {{\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  ROOT %s = f32[] add(%x, %y)\n}}\n\n\
         ENTRY %main {{\n{body}\n}}\n"
    );
    match hlo_text::parse_module(&text) {
        Ok(parsed) => parsed.module,
        Err(diagnostics) => panic!("{}", hlo_text::render(&diagnostics, "m", &text, false)),
    }
}

/// Opcodes of the collectives, and bytes that a device receives on a ring, after the partitioner; the evaluator agrees.
fn partitioned(body: &str) -> (Vec<&'static str>, u64) {
    partitioned_by("spmd-partition", body)
}

/// The same with this pipeline.
fn partitioned_by(pipeline: &str, body: &str) -> (Vec<&'static str>, u64) {
    let global = module(body);
    let mut local = global.clone();
    let calls = parse_pipeline(pipeline).expect("a pipeline");
    let passes = bind(&calls, PASSES).expect("the pass");
    run_pipeline(&mut local, &mut Default::default(), &passes, RunOptions::default()).expect("the pass runs");
    let program = GlobalProgram::of(&global).expect("a global program");
    let wholes =
        program.draw(&draw::DrawOptions { seed: 1, draws: Vec::new(), same: draw::Same::Auto }).expect("inputs");
    let expected = program.run(&wholes, &EvalOptions::default()).expect("it runs");
    let tiled = TiledInterface::between(&program, &[&local]).expect("tiles");
    let inputs = tiled.cut_inputs(&wholes).expect("inputs are cut");
    let found = hlo_eval::run(&local, &inputs, &EvalOptions::default()).expect("the local program runs");
    for (leaf, (whole, tile)) in expected.of_devices().leaves.iter().zip(&found.leaves).enumerate() {
        let cut = &tiled.of_output(leaf)[0];
        let (whole, tile) = (cut.of_wholes(whole).expect("tiles"), cut.without_padding(tile).expect("tiles"));
        for (a, b) in whole.iter().zip(&tile) {
            for i in 0..a.n_elems() {
                let value = |array: &hlo_ir::Literal| match array.get(i) {
                    Some(hlo_ir::Scalar::Float(x)) => x,
                    other => panic!("expected a float, found {other:?}"),
                };
                let (a, b) = (value(a), value(b));
                assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "expected {a}, found {b}");
            }
        }
    }
    let entry = local.entry().expect("an entry");
    let insts: Vec<InstId> = local.comp(entry).insts.clone();
    let collectives: Vec<InstId> = insts.into_iter().filter(|&i| local.inst(i).attrs.collective().is_some()).collect();
    let bytes = collectives.iter().map(|&inst| received_bytes(&local, inst)).sum();
    (collectives.iter().map(|&inst| local.inst(inst).opcode.name()).collect(), bytes)
}

fn received_bytes(module: &Module, inst: InstId) -> u64 {
    let node = module.inst(inst);
    let operand = module.shape(node.operands[0]).size_bytes();
    let rule = node.opcode.row().collective.expect("a collective");
    let Participants::Groups { groups, .. } = node.attrs.collective().expect("its attributes").participants else {
        return operand;
    };
    let n = groups.expand().expect("groups")[0].len() as u64;
    match (rule.source, rule.scatters, rule.gathers) {
        (CollectiveSource::Reduction, false, _) => 2 * operand * (n - 1) / n,
        (CollectiveSource::Reduction, true, _) | (_, true, true) => operand * (n - 1) / n,
        (_, _, _) => operand * (n - 1),
    }
}

#[test]
fn products_send_what_they_must() {
    // GSPMD's figure: rows and columns cut along two axes, nothing to send.
    let (ops, bytes) = partitioned(
        "  %x = f32[8,32] parameter(0), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
  %w = f32[32,64] parameter(1), sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  ROOT %y = f32[8,64] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,4]<=[8]}",
    );
    assert_eq!((ops.len(), bytes), (0, 0));
    let contracted = |result: &str| {
        partitioned(&format!(
            "  %x = f32[16,32] parameter(0), sharding={{devices=[1,4]<=[4]}}
  %w = f32[32,64] parameter(1), sharding={{devices=[4,1]<=[4]}}
  ROOT %y = f32[16,64] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, sharding={result}"
        ))
    };
    assert_eq!(contracted("{replicated}"), (vec!["all-reduce"], 6144));
    assert_eq!(contracted("{devices=[4,1]<=[4]}"), (vec!["reduce-scatter"], 3072));
}

#[test]
fn copies_send_what_they_must() {
    let copied = |from: &str, to: &str| {
        partitioned(&format!(
            "  %z = f32[16,64] parameter(0), sharding={from}\n  ROOT %c = f32[16,64] copy(%z), sharding={to}"
        ))
    };
    assert_eq!(copied("{devices=[4,1]<=[4]}", "{replicated}"), (vec!["all-gather"], 3072));
    assert_eq!(copied("{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}"), (vec!["all-to-all"], 768));
    let (x, y) =
        ("{devices=[4,1,4]<=[16] last_tile_dim_replicate}", "{devices=[4,1,4]<=[4,4]T(1,0) last_tile_dim_replicate}");
    assert_eq!(copied(x, y), (vec!["collective-permute"], 1024));
}

#[test]
fn reductions_of_several_cut_dims_are_one_collective() {
    let (ops, bytes) = partitioned(
        "  %x = f32[8,8,4] parameter(0), sharding={devices=[2,2,1]<=[4]}
  %zero = f32[] constant(0)
  ROOT %s = f32[4] reduce(%x, %zero), dimensions={0,1}, to_apply=%add, sharding={replicated}",
    );
    assert_eq!((ops, bytes), (vec!["all-reduce"], 24));
    // An initial value that is no zero counts once.
    let (ops, _) = partitioned(
        "  %x = f32[8] parameter(0), sharding={devices=[4]<=[4]}
  %five = f32[] constant(5)
  ROOT %s = f32[] reduce(%x, %five), dimensions={0}, to_apply=%add, sharding={replicated}",
    );
    assert_eq!(ops, ["all-reduce"]);
}

#[test]
fn one_row_is_read_where_it_lies() {
    let (ops, bytes) = partitioned(
        "  %x = f32[16,8] parameter(0), sharding={devices=[4,1]<=[4]}
  %i = s32[] constant(13)
  %zero = s32[] constant(0)
  ROOT %r = f32[1,8] dynamic-slice(%x, %i, %zero), dynamic_slice_sizes={1,8}, sharding={replicated}",
    );
    assert_eq!((ops, bytes), (vec!["all-reduce"], 48));
}

#[test]
fn batches_of_transforms_and_right_hand_sides_stay_where_they_are() {
    let (ops, _) = partitioned(
        "  %a = f32[4,4] parameter(0), sharding={replicated}
  %b = f32[4,16] parameter(1), sharding={devices=[1,4]<=[4]}
  %one = f32[] constant(1)
  %ones = f32[4,4] broadcast(%one), dimensions={}
  %rows = s32[4,4] iota(), iota_dimension=0
  %columns = s32[4,4] iota(), iota_dimension=1
  %is_diagonal = pred[4,4] compare(%rows, %columns), direction=EQ
  %t = f32[4,4] select(%is_diagonal, %ones, %a)
  ROOT %s = f32[4,16] triangular-solve(%t, %b), left_side=true, lower=true, unit_diagonal=true, transpose_a=NO_TRANSPOSE, sharding={devices=[1,4]<=[4]}",
    );
    assert!(ops.is_empty(), "{ops:?}");
}

#[test]
fn batches_of_fourier_transforms_stay_where_they_are() {
    let (ops, _) = partitioned(
        "  %a = f32[8,12] parameter(0), sharding={devices=[4,1]<=[4]}
  %f = c64[8,7] fft(%a), fft_type=RFFT, fft_length={12}
  ROOT %r = f32[8,7] real(%f), sharding={devices=[4,1]<=[4]}",
    );
    assert!(ops.is_empty(), "{ops:?}");
}

#[test]
fn cumulative_sums_send_the_totals_of_tiles() {
    let cumulated = |n: u64, pad: &str| {
        partitioned(&format!(
            "  %x = f32[{n},8] parameter(0), sharding={{devices=[4,1]<=[4]}}
  %zero = f32[] constant(0)
  ROOT %c = f32[{n},8] reduce-window(%x, %zero), window={{size={n}x1 pad={pad}x0_0}}, to_apply=%add, sharding={{devices=[4,1]<=[4]}}"
        ))
    };
    // A row of 32 bytes from each of three others; tiles of the second kind are not full.
    for (n, pad) in [(16, "15_0"), (16, "0_15"), (13, "12_0"), (13, "0_12")] {
        assert_eq!(cumulated(n, pad), (vec!["all-gather"], 96), "{n} rows, padding {pad}");
    }
}

#[test]
fn a_dim_of_one_row_is_not_cut_beside_groups() {
    // The batch of one is cut in two, which the groups of the operand's batch are not.
    let (ops, _) = partitioned_by(
        "spmd-partition{price=time}",
        "  %a = f32[2,7,9,4] parameter(0), sharding={devices=[2,1,4,1]<=[8]}
  %h = f32[3,2,4,6] parameter(1), sharding={devices=[4,1,1,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
  ROOT %c = f32[1,5,8,6] convolution(%a, %h), window={size=3x2}, dim_labels=b01f_01io->b01f, batch_group_count=2, sharding={devices=[2,1,1,4]<=[8]}",
    );
    assert!(!ops.is_empty());
}

#[test]
fn rows_of_neighbours_come_from_the_nearest_tiles() {
    // GSPMD's example of a halo: nine rows on five devices, windows of four rows, two apart.
    let (ops, bytes) = partitioned(
        "  %x = f32[9,2] parameter(0), sharding={devices=[5,1]<=[5]}
  %zero = f32[] constant(0)
  ROOT %w = f32[5,2] reduce-window(%x, %zero), window={size=4x1 stride=2x1 pad=3_0x0_0}, to_apply=%add, sharding={devices=[5,1]<=[5]}",
    );
    assert_eq!((ops, bytes), (vec!["collective-permute", "collective-permute"], 24));
}

/// The evaluator draws no numbers from a hidden state; in XLA (jaxlib 0.10.2, four CPU devices) all devices get the same.
#[test]
fn numbers_from_a_hidden_state_are_those_of_one_device() {
    let mut local = module(
        "  %x = f32[8,6] parameter(0), sharding={devices=[4,1]<=[4]}\n  %zero = f32[] constant(0)\n  %one = f32[] constant(1)\n  \
         %cut = f32[8,6] rng(%zero, %one), distribution=rng_uniform, sharding={devices=[4,1]<=[4]}\n  \
         %sum = f32[8,6] add(%x, %cut), sharding={devices=[4,1]<=[4]}\n  \
         %whole = f32[6] rng(%zero, %one), distribution=rng_normal\n  \
         ROOT %out = (f32[8,6], f32[6]) tuple(%sum, %whole)",
    );
    let calls = parse_pipeline("spmd-partition").expect("a pipeline");
    let passes = bind(&calls, PASSES).expect("the pass");
    run_pipeline(&mut local, &mut Default::default(), &passes, RunOptions::default()).expect("the pass runs");
    let entry = local.entry().expect("an entry");
    let insts = local.comp(entry).insts.clone();
    let summed: Vec<(&str, &str)> = insts
        .into_iter()
        .filter(|&inst| local.inst(inst).attrs.collective().is_some())
        .map(|inst| (local.inst(inst).opcode.name(), local.inst(local.inst(inst).operands[0]).opcode.name()))
        .collect();
    assert_eq!(summed, [("reduce-scatter", "select"), ("all-reduce", "select")]);
}

/// An embedding: what is looked up travels, and not the table, however it is cut and whatever part of the devices holds a copy.
#[test]
fn tables_stay_where_they_are_when_rows_are_looked_up_and_added() {
    for table in [
        "{devices=[1,4,2]<=[8] last_tile_dim_replicate}",
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
        "{devices=[2,4]<=[8]}",
    ] {
        let looked_up = format!(
            "  %t = f32[4000,16] parameter(0), sharding={table}
  %i = s32[40,1] parameter(1), sharding={{replicated}}
  ROOT %g = f32[40,16] gather(%t, %i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, \
             slice_sizes={{1,16}}, sharding={{devices=[8,1]<=[8]}}"
        );
        let added = format!(
            "  %t = f32[4000,16] parameter(0), sharding={table}
  %i = s32[40,1] parameter(1), sharding={{replicated}}
  %u = f32[40,16] parameter(2), sharding={{devices=[8,1]<=[8]}}
  ROOT %s = f32[4000,16] scatter(%t, %i, %u), update_window_dims={{1}}, inserted_window_dims={{0}}, \
             scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%add, sharding={table}"
        );
        for body in [looked_up, added] {
            for pipeline in ["spmd-partition", "spmd-partition{price=time}"] {
                let (ops, bytes) = partitioned_by(pipeline, &body);
                // All that is looked up or added has 2560 bytes, the smallest part of the table 32,000.
                assert!(bytes <= 2 * 2560, "{pipeline}: {bytes} bytes by {ops:?}\n{body}");
            }
        }
    }
}

/// An array of `n` rows over `n_devices`, put together from these rows of it, and from zeros where there are none.
fn shifted(n: i64, n_devices: i64, parts: &[Option<(i64, i64)>], result: &str) -> (Vec<&'static str>, u64) {
    let cut = format!("{{devices=[{n_devices},1]<=[{n_devices}]}}");
    let mut body = format!("  %x = f32[{n},3] parameter(0), sharding={cut}\n  %zero = f32[] constant(0)\n");
    let mut names = Vec::new();
    let mut n_rows = 0;
    let (mut before, mut after) = (0, 0);
    for (k, part) in parts.iter().enumerate() {
        match *part {
            Some((low, high)) => {
                let size = high - low;
                body += &format!("  %part{k} = f32[{size},3] slice(%x), slice={{[{low}:{high}], [0:3]}}\n");
                names.push(format!("%part{k}"));
                n_rows += size;
            }
            None if k == 0 => before = 1,
            None => after = 1,
        }
    }
    let sharding =
        if result.is_empty() { String::new() } else { format!(", sharding={}", result.replace("CUT", &cut)) };
    let put = format!("concatenate({}), dimensions={{0}}", names.join(", "));
    body += &match (before, after) {
        (0, 0) => format!("  ROOT %y = f32[{n_rows},3] {put}{sharding}"),
        _ => {
            let size = n_rows + before + after;
            format!("  ROOT %y = f32[{size},3] pad(%part{before}, %zero), padding={before}_{after}x0_0{sharding}")
        }
    };
    partitioned(&body)
}

#[test]
fn shifts_send_the_rows_that_devices_lack() {
    let permute = "collective-permute";
    // Rows of 12 bytes. Turned round by a row, by a tile, and by a tile and a row.
    assert_eq!(shifted(16, 4, &[Some((15, 16)), Some((0, 15))], "CUT"), (vec![permute], 12));
    assert_eq!(shifted(16, 4, &[Some((12, 16)), Some((0, 12))], "CUT"), (vec![permute], 48));
    assert_eq!(shifted(16, 4, &[Some((11, 16)), Some((0, 11))], "CUT"), (vec![permute; 2], 48));
    assert_eq!(shifted(16, 2, &[Some((1, 16)), Some((0, 1))], "CUT"), (vec![permute], 12));
    // The border repeats its own row, or is zero.
    assert_eq!(shifted(16, 4, &[Some((0, 1)), Some((0, 15))], "CUT"), (vec![permute], 12));
    assert_eq!(shifted(16, 4, &[None, Some((0, 15))], "CUT"), (vec![permute], 12));
    assert_eq!(shifted(16, 4, &[Some((1, 16)), None], "CUT"), (vec![permute], 12));
    // Nothing is lacked.
    assert_eq!(shifted(16, 2, &[Some((4, 8)), Some((0, 4)), Some((12, 16)), Some((8, 12))], "CUT"), (vec![], 0));
}

#[test]
fn random_shifts_are_put_together_right() {
    let mut state = 1u64;
    let mut below = |n: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % n.max(1) as u64) as i64
    };
    for _ in 0..400 {
        let (n_devices, n) = (2 + below(5), 2 + below(23));
        let mut parts = Vec::new();
        let mut left = n;
        if below(4) == 0 {
            let low = below(2);
            parts = if low == 0 { vec![None, Some((0, n - 1))] } else { vec![Some((1, n)), None] };
            left = 0;
        }
        while left > 0 {
            let size = 1 + below(left);
            let low = below(n - size + 1);
            parts.push(Some((low, low + size)));
            left -= size;
        }
        let result = ["CUT", "{replicated}", ""][below(3) as usize];
        shifted(n, n_devices, &parts, result);
    }
}
