//! Global programs beside programs of one device among several: what a partitioner may write is proved and agrees in the
//! evaluator, which runs the global program on one device; near misses are not proved, and differ there.

use hlo_eval::draw::{Draw, DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{DType, Literal, Module, Scalar};
use hlo_prove::{Error, Options, Proof, prove};
use std::sync::Arc;

/// Reducers that the programs call.
const REDUCERS: &str = "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  \
                        ROOT %s = f32[] add(%x, %y)\n}\n\n%max (x.1: f32[], y.1: f32[]) -> f32[] {\n  \
                        %x.1 = f32[] parameter(0)\n  %y.1 = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%x.1, %y.1)\n}\n";
/// Groups of all four devices.
const ALL: &str = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true";

fn module(header: &str, lines: &str) -> Module {
    let lines: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = format!(
        "HloModule m{header}\n\n{REDUCERS}\nENTRY %main {{\n  {}\n}}\n",
        lines.join("\n  ").replace("ALL", ALL)
    );
    parsed(&text)
}

fn parsed(text: &str) -> Module {
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    module
}

fn global(lines: &str) -> Module {
    module("", lines)
}

fn local(n: usize, lines: &str) -> Module {
    module(&format!(", num_partitions={n}"), lines)
}

fn proof(global: &Module, local: &Module) -> Proof {
    let proof = prove(global, local, &Options::default()).unwrap();
    assert!(proof.is_global);
    proof
}

/// The grid of a leaf of the entry: as the second module says, or as the first does.
fn grid_of_input(modules: [&Module; 2], leaf: usize, rank: usize, n_devices: usize) -> TileGrid {
    let of = |module: &Module| {
        let param = module.comp(module.entry()?).params[leaf];
        module.sharding(param)?.leaf(0)?.tile_grid(rank, n_devices)
    };
    of(modules[1]).or_else(|| of(modules[0])).unwrap_or_else(|| TileGrid::replicated(rank, n_devices))
}

/// A device's tile, with sevens where it is padding.
fn tile(whole: &Literal, grid: &TileGrid, device: usize) -> Literal {
    let (starts, held) = grid.tile_of(whole.dims(), device);
    let dims = grid.tile_dims(whole.dims());
    let mut out = Literal::splat(whole.dtype(), &dims, Scalar::Int(7)).unwrap();
    for flat in 0..out.n_elems() {
        let (mut rest, mut from, mut step, mut is_held) = (flat as i64, 0, 1, true);
        for d in (0..dims.len()).rev() {
            let k = rest % dims[d];
            rest /= dims[d];
            is_held &= k < held[d];
            from += (starts[d] + k) * step;
            step *= whole.dims()[d];
        }
        if is_held {
            out.set(flat, whole.get(from as usize).unwrap());
        }
    }
    out
}

/// The largest difference of the tiles that the devices give and those of what the global program gives.
fn distance(global: &Module, local: &Module, proof: Option<&Proof>) -> f64 {
    let n_devices = local.n_devices();
    let mut largest = 0.0f64;
    for seed in 0..3 {
        let n_leaves = hlo_eval::entry_leaves(global).len();
        let draws = hlo_eval::entry_leaves(global);
        let draws =
            draws.iter().map(|leaf| if leaf.shape.dtype.is_integer() { Draw::Below(16) } else { Draw::Normal(1.0) });
        let options = DrawOptions { seed, draws: draws.take(n_leaves).collect(), ..DrawOptions::default() };
        let inputs = draw_inputs(global, None, &options).unwrap();
        let cut = inputs.leaves.iter().enumerate().map(|(leaf, row)| {
            let grid = grid_of_input([global, local], leaf, row[0].dims().len(), n_devices);
            (0..n_devices).map(|device| Arc::new(tile(&row[0], &grid, device))).collect()
        });
        let cut = Inputs { leaves: cut.collect() };
        let expected = run(global, &inputs, &EvalOptions::default()).unwrap();
        let found: Outputs = run(local, &cut, &EvalOptions::default()).unwrap();
        for (leaf, (whole, tiles)) in expected.leaves.iter().zip(&found.leaves).enumerate() {
            let rank = whole[0].dims().len();
            let layout = proof.and_then(|proof| proof.outputs[leaf].layout.clone());
            let root = global.comp(global.entry().unwrap()).root.expand().unwrap();
            let layout = layout.or_else(|| global.sharding(root)?.leaf(leaf).cloned());
            let grid =
                layout.map_or_else(|| TileGrid::replicated(rank, n_devices), |l| l.tile_grid(rank, n_devices).unwrap());
            for (device, tile_found) in tiles.iter().enumerate() {
                let tile_expected = tile(&whole[0], &grid, device);
                let (_, held) = grid.tile_of(whole[0].dims(), device);
                for flat in 0..tile_expected.n_elems() {
                    let (mut rest, mut is_held) = (flat as i64, true);
                    for d in (0..rank).rev() {
                        is_held &= rest % tile_expected.dims()[d] < held[d];
                        rest /= tile_expected.dims()[d];
                    }
                    if is_held {
                        largest = largest.max((number(&tile_expected, flat) - number(tile_found, flat)).abs());
                    }
                }
            }
        }
    }
    largest
}

fn number(literal: &Literal, flat: usize) -> f64 {
    match literal.convert(DType::F64).get(flat) {
        Some(Scalar::Float(value)) => value,
        other => panic!("{other:?}"),
    }
}

/// The pair is proved, bit for bit or modulo rounding, and agrees in the evaluator.
#[track_caller]
fn equal(is_exact: bool, global: &Module, local: &Module) {
    let proof = proof(global, local);
    assert!(proof.is_proved(), "{:?}", proof.outputs.iter().map(|o| &o.difference).collect::<Vec<_>>());
    assert_eq!(proof.outputs.iter().all(|o| o.modulo.iter().next().is_none()), is_exact);
    assert!(distance(global, local, Some(&proof)) <= if is_exact { 0.0 } else { 1e-4 });
}

/// The pair is not proved, and rightly so.
#[track_caller]
fn different(global: &Module, local: &Module) {
    assert!(!proof(global, local).is_proved());
    let apart = distance(global, local, None);
    assert!(apart > 1e-3, "the near miss is no miss: {apart}");
}

const DOT: &str = "%x = f32[8,12] parameter(0), sharding={devices=[1,4]<=[4]}
    %w = f32[12,6] parameter(1), sharding={devices=[4,1]<=[4]}
    ROOT %d = f32[8,6] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={replicated}";

fn dot_of_parts(tail: &str) -> Module {
    local(
        4,
        &format!(
            "%x = f32[8,3] parameter(0), sharding={{devices=[1,4]<=[4]}}
        %w = f32[3,6] parameter(1), sharding={{devices=[4,1]<=[4]}}
        %p = f32[8,6] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        {tail}"
        ),
    )
}

#[test]
fn a_product_over_cut_rows_is_the_sum_of_the_parts() {
    equal(false, &global(DOT), &dot_of_parts("ROOT %r = f32[8,6] all-reduce(%p), ALL, to_apply=%add"));
    different(&global(DOT), &dot_of_parts("ROOT %r = f32[8,6] copy(%p)"));
    different(
        &global(DOT),
        &dot_of_parts(
            "ROOT %r = f32[8,6] all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, \
             to_apply=%add",
        ),
    );
    // Rows of the result on each device.
    let cut = DOT.replace("sharding={replicated}", "sharding={devices=[4,1]<=[4]}");
    let scatter = |dim: usize, shape: &str| {
        dot_of_parts(&format!("ROOT %r = f32[{shape}] reduce-scatter(%p), ALL, dimensions={{{dim}}}, to_apply=%add"))
    };
    equal(false, &global(&cut), &scatter(0, "2,6"));
    // The same, but columns where rows were asked for.
    let square = |text: &str| text.replace("[12,6]", "[12,8]").replace("[8,6]", "[8,8]");
    let columns = prove(
        &global(&square(&cut)),
        &local(
            4,
            &square(
                "%x = f32[8,3] parameter(0), sharding={devices=[1,4]<=[4]}
        %w = f32[3,8] parameter(1), sharding={devices=[4,1]<=[4]}
        %p = f32[8,8] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT %r = f32[8,2] reduce-scatter(%p), ALL, dimensions={1}, to_apply=%add",
            ),
        ),
        &Options::default(),
    );
    assert!(matches!(columns, Err(Error::Outputs(_))), "{columns:?}");
}

#[test]
fn a_result_without_annotation_may_be_cut_as_any_input_is() {
    let free = DOT.replace(", sharding={replicated}", "").replace("[12,6]", "[12,12]").replace("[8,6]", "[8,12]");
    let columns = local(
        4,
        "%x = f32[8,3] parameter(0), sharding={devices=[1,4]<=[4]}
        %w = f32[3,12] parameter(1), sharding={devices=[4,1]<=[4]}
        %p = f32[8,12] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT %r = f32[8,3] reduce-scatter(%p), ALL, dimensions={1}, to_apply=%add",
    );
    let proof = proof(&global(&free), &columns);
    assert!(proof.is_proved());
    assert_eq!(proof.outputs[0].layout.as_ref().map(ToString::to_string).as_deref(), Some("{devices=[1,4]<=[4]}"));
}

#[test]
fn rows_of_a_cut_table_are_read_where_they_are() {
    let whole = |wrap: &str| {
        global(&format!(
            "%t = f32[16,5] parameter(0), sharding={{devices=[4,1]<=[4]}}
            %i = s32[7] parameter(1), sharding={{replicated}}
            %c = s32[7,1] reshape(%i)
            ROOT %g = f32[7,5] gather(%t, %c), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
             index_vector_dim=1, slice_sizes={{1,5}}{wrap}"
        ))
    };
    let masked = |first: &str, last: &str, shift: &str| {
        local(
            4,
            &format!(
                "%t = f32[4,5] parameter(0), sharding={{devices=[4,1]<=[4]}}
            %i = s32[7] parameter(1), sharding={{replicated}}
            %zero = s32[] constant(0)
            %zeros = s32[7] broadcast(%zero), dimensions={{}}
            %last = s32[] constant(15)
            %lasts = s32[7] broadcast(%last), dimensions={{}}
            %c = s32[7] clamp(%zeros, %i, %lasts)
            %firsts = s32[4] constant({first})
            %id = u32[] partition-id()
            %mine = s32[1] dynamic-slice(%firsts, %id), dynamic_slice_sizes={{1}}
            %low = s32[] reshape(%mine)
            %lows = s32[7] broadcast(%low), dimensions={{}}
            %three = s32[] constant({last})
            %high = s32[] add(%low, %three)
            %highs = s32[7] broadcast(%high), dimensions={{}}
            %below = pred[7] compare(%c, %lows), direction=LT
            %above = pred[7] compare(%c, %highs), direction=GT
            %out = pred[7] or(%below, %above)
            %outs = pred[7,5] broadcast(%out), dimensions={{0}}
            %offset = s32[7] subtract(%c, %{shift})
            %at = s32[7,1] reshape(%offset)
            %g = f32[7,5] gather(%t, %at), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
             index_vector_dim=1, slice_sizes={{1,5}}
            %none = f32[] constant(0)
            %nones = f32[7,5] broadcast(%none), dimensions={{}}
            %s = f32[7,5] select(%outs, %nones, %g)
            ROOT %r = f32[7,5] all-reduce(%s), ALL, to_apply=%add"
            ),
        )
    };
    equal(false, &whole(""), &masked("{0, 4, 8, 12}", "3", "lows"));
    different(&whole(""), &masked("{0, 4, 8, 12}", "2", "lows"));
    different(&whole(""), &masked("{0, 4, 8, 12}", "4", "lows"));
    different(&whole(""), &masked("{0, 4, 12, 8}", "3", "lows"));
    different(&whole(""), &masked("{0, 4, 8, 12}", "3", "zeros"));
}

#[test]
fn rows_are_added_where_they_are() {
    let body = |n: usize, rows: usize, shift: &str, update: &str| {
        format!(
            "%u = f32[7,5] parameter(0), sharding={{replicated}}
            %i = s32[7] parameter(1), sharding={{replicated}}
            %none = f32[] constant(0)
            %t = f32[{rows},5] broadcast(%none), dimensions={{}}
            %firsts = s32[{n}] constant({{{}}})
            %id = u32[] partition-id()
            %mine = s32[1] dynamic-slice(%firsts, %id), dynamic_slice_sizes={{1}}
            %low = s32[] reshape(%mine)
            %lows = s32[7] broadcast(%low), dimensions={{}}
            %c = s32[7] {shift}
            %at = s32[7,1] reshape(%c)
            ROOT %r = f32[{rows},5] scatter(%t, %at, %u), update_window_dims={{1}}, inserted_window_dims={{0}}, \
             scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%{update}, sharding={{devices=[4,1]<=[4]}}",
            (0..n).map(|k| (k * rows).to_string()).collect::<Vec<_>>().join(", ")
        )
    };
    let whole = global(
        "%u = f32[7,5] parameter(0), sharding={replicated}
        %i = s32[7] parameter(1), sharding={replicated}
        %none = f32[] constant(0)
        %t = f32[16,5] broadcast(%none), dimensions={}
        %at = s32[7,1] reshape(%i)
        ROOT %r = f32[16,5] scatter(%t, %at, %u), update_window_dims={1}, inserted_window_dims={0}, \
         scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add, sharding={devices=[4,1]<=[4]}",
    );
    equal(false, &whole, &local(4, &body(4, 4, "subtract(%i, %lows)", "add")));
    different(&whole, &local(4, &body(4, 4, "copy(%i)", "add")));
    different(&whole, &local(4, &body(4, 4, "add(%i, %lows)", "add")));
    different(&whole, &local(4, &body(4, 4, "subtract(%i, %lows)", "max")));
}

#[test]
fn windows_reach_over_the_cut() {
    let whole = global(
        "%x = f32[2,16,3] parameter(0), sharding={devices=[1,4,1]<=[4]}
        %k = f32[3,3,5] parameter(1), sharding={replicated}
        ROOT %c = f32[2,16,5] convolution(%x, %k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, \
         sharding={devices=[1,4,1]<=[4]}",
    );
    let halo = |left: &str, right: &str| {
        local(
            4,
            &format!(
                "%x = f32[2,4,3] parameter(0), sharding={{devices=[1,4,1]<=[4]}}
            %k = f32[3,3,5] parameter(1), sharding={{replicated}}
            %l = f32[2,1,3] slice(%x), slice={{[0:2], [3:4], [0:3]}}
            %from_left = f32[2,1,3] collective-permute(%l), channel_id=2, source_target_pairs={left}
            %f = f32[2,1,3] slice(%x), slice={{[0:2], [0:1], [0:3]}}
            %from_right = f32[2,1,3] collective-permute(%f), channel_id=3, source_target_pairs={right}
            %all = f32[2,6,3] concatenate(%from_left, %x, %from_right), dimensions={{1}}
            ROOT %c = f32[2,4,5] convolution(%all, %k), window={{size=3}}, dim_labels=b0f_0io->b0f"
            ),
        )
    };
    let (left, right) = ("{{0,1},{1,2},{2,3}}", "{{1,0},{2,1},{3,2}}");
    equal(false, &whole, &halo(left, right));
    different(&whole, &halo("{{0,1},{1,2},{2,3},{3,0}}", right));
    different(&whole, &halo(left, "{{1,0},{3,2}}"));
    different(&whole, &halo(right, left));
}

#[test]
fn maxima_of_windows_hold_bit_for_bit_or_modulo_identities() {
    let whole = global(
        "%x = f32[16] parameter(0), sharding={devices=[4]<=[4]}
        %least = f32[] constant(-inf)
        ROOT %m = f32[8] reduce-window(%x, %least), window={size=3 stride=2 pad=0_1}, to_apply=%max, \
         sharding={devices=[4]<=[4]}",
    );
    let with = |filler: &str, pairs: &str| {
        local(
            4,
            &format!(
                "%x = f32[4] parameter(0), sharding={{devices=[4]<=[4]}}
            %f = f32[1] slice(%x), slice={{[0:1]}}
            %right = f32[1] collective-permute(%f), channel_id=2, source_target_pairs={pairs}
            %ids = s32[4] constant({{0, 1, 2, 3}})
            %id = u32[] partition-id()
            %mine = s32[1] dynamic-slice(%ids, %id), dynamic_slice_sizes={{1}}
            %three = s32[1] constant({{3}})
            %is_inner = pred[1] compare(%mine, %three), direction=LT
            %filler = f32[1] constant({{{filler}}})
            %next = f32[1] select(%is_inner, %right, %filler)
            %all = f32[5] concatenate(%x, %next), dimensions={{0}}
            %least = f32[] constant(-inf)
            ROOT %m = f32[2] reduce-window(%all, %least), window={{size=3 stride=2}}, to_apply=%max"
            ),
        )
    };
    equal(false, &whole, &with("-inf", "{{1,0},{2,1},{3,2}}"));
    different(&whole, &with("2.5", "{{1,0},{2,1},{3,2}}"));
}

#[test]
fn padding_of_uneven_tiles_may_hold_anything() {
    // Ten rows on four devices: three, three, three, one.
    let rows = global(
        "%x = f32[10,3] parameter(0), sharding={devices=[4,1]<=[4]}
        ROOT %y = f32[10,3] tanh(%x), sharding={devices=[4,1]<=[4]}",
    );
    let tiles = "%x = f32[3,3] parameter(0), sharding={devices=[4,1]<=[4]}
        ROOT %y = f32[3,3] tanh(%x)";
    equal(true, &rows, &local(4, tiles));
    let sum = global(
        "%x = f32[10,3] parameter(0), sharding={devices=[4,1]<=[4]}
        %zero = f32[] constant(0)
        ROOT %s = f32[3] reduce(%x, %zero), dimensions={0}, to_apply=%add, sharding={replicated}",
    );
    let of_tiles = |mask: &str| {
        local(
            4,
            &format!(
                "%x = f32[3,3] parameter(0), sharding={{devices=[4,1]<=[4]}}
            %zero = f32[] constant(0)
            %zeros = f32[3,3] broadcast(%zero), dimensions={{}}
            %firsts = s32[4] constant({{0, 3, 6, 9}})
            %id = u32[] partition-id()
            %mine = s32[1] dynamic-slice(%firsts, %id), dynamic_slice_sizes={{1}}
            %first = s32[] reshape(%mine)
            %lows = s32[3,3] broadcast(%first), dimensions={{}}
            %number = s32[3,3] iota(), iota_dimension=0
            %row = s32[3,3] add(%number, %lows)
            %n = s32[] constant({mask})
            %ns = s32[3,3] broadcast(%n), dimensions={{}}
            %is_row = pred[3,3] compare(%row, %ns), direction=LT
            %held = f32[3,3] select(%is_row, %x, %zeros)
            %s = f32[3] reduce(%held, %zero), dimensions={{0}}, to_apply=%add
            ROOT %r = f32[3] all-reduce(%s), ALL, to_apply=%add"
            ),
        )
    };
    equal(false, &sum, &of_tiles("10"));
    different(&sum, &of_tiles("12"));
    different(&sum, &of_tiles("9"));
}

/// A manual region over `d`, in the form of Shardy and of GSPMD.
fn manual_regions(reduces: bool) -> [Module; 2] {
    let sum = if reduces { format!("all-reduce(%p), {ALL}, to_apply=%add") } else { "copy(%p)".to_string() };
    let sharding = |dims: &str| format!("#sdy.sharding_per_value<[<@mesh, [{dims}]>]>");
    let quoted = |text: String| text.replace('"', "\\\"");
    let shardy = format!(
        "HloModule m, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<[\"d\"=4]>}}}}\n\n{REDUCERS}\n\
         %body {{\n  %x = f32[2,3] parameter(0)\n  %zero = f32[] constant(0)\n  \
         %p = f32[3] reduce(%x, %zero), dimensions={{0}}, to_apply=%add\n  ROOT %s = f32[3] {sum}\n}}\n\n\
         ENTRY %main {{\n  %x = f32[8,3] parameter(0), sharding={{devices=[4,1]<=[4]}}\n  \
         %l = f32[2,3] custom-call(%x), custom_call_target=\"xla.sdy.GlobalToLocalShape\", \
         custom_call_has_side_effect=true, frontend_attributes={{xla.sdy.in_shardings=\"{}\",xla.sdy.manual_axes=\"{}\"}}\n  \
         %b = f32[3] call(%l), to_apply=%body\n  \
         ROOT %g = f32[3] custom-call(%b), custom_call_target=\"xla.sdy.LocalToGlobalShape\", \
         custom_call_has_side_effect=true, frontend_attributes={{xla.sdy.manual_axes=\"{}\",xla.sdy.out_shardings=\"{}\"}}\n}}\n",
        quoted(sharding("{\"d\"}, {}")),
        quoted("#sdy<manual_axes{\"d\"}>".into()),
        quoted("#sdy<manual_axes{\"d\"}>".into()),
        quoted(sharding("{}")),
    );
    let gspmd = format!(
        "HloModule m\n\n{REDUCERS}\nENTRY %main {{\n  %in = f32[8,3] parameter(0), sharding={{devices=[4,1]<=[4]}}\n  \
         %c = f32[8,3] custom-call(%in), custom_call_target=\"Sharding\", sharding={{devices=[4,1]<=[4]}}\n  \
         %x = f32[2,3] custom-call(%c), custom_call_target=\"SPMDFullToShardShape\", sharding={{manual}}\n  \
         %zero = f32[] constant(0)\n  %p = f32[3] reduce(%x, %zero), dimensions={{0}}, to_apply=%add\n  \
         %s = f32[3] {sum}\n  %m = f32[3] custom-call(%s), custom_call_target=\"Sharding\", sharding={{manual}}\n  \
         ROOT %g = f32[3] custom-call(%m), custom_call_target=\"SPMDShardToFullShape\", sharding={{replicated}}\n}}\n"
    );
    [shardy, gspmd].map(|text| parsed(&text))
}

#[test]
fn manual_regions_take_tiles_and_give_wholes() {
    let tiles = |sum: &str| {
        local(
            4,
            &format!(
                "%x = f32[2,3] parameter(0), sharding={{devices=[4,1]<=[4]}}
            %zero = f32[] constant(0)
            %p = f32[3] reduce(%x, %zero), dimensions={{0}}, to_apply=%add
            ROOT %s = f32[3] {sum}"
            ),
        )
    };
    let summed = tiles("all-reduce(%p), ALL, to_apply=%add");
    for region in manual_regions(true) {
        let proof = proof(&region, &summed);
        assert!(proof.is_proved(), "{:?}", proof.outputs[0].difference);
        assert!(!self::proof(&region, &tiles("copy(%p)")).is_proved());
    }
    // A region that calls its own part of a sum replicated: each device goes on with its own.
    for region in manual_regions(false) {
        assert!(!proof(&region, &summed).is_proved());
        assert!(proof(&region, &tiles("copy(%p)")).is_proved());
    }
    let whole = global(
        "%x = f32[8,3] parameter(0), sharding={devices=[4,1]<=[4]}
        %zero = f32[] constant(0)
        ROOT %s = f32[3] reduce(%x, %zero), dimensions={0}, to_apply=%add, sharding={replicated}",
    );
    equal(false, &whole, &summed);
}

#[test]
fn tiles_that_do_not_fit_are_an_error() {
    let local = local(4, "ROOT %x = f32[3,12] parameter(0), sharding={devices=[4,1]<=[4]}");
    let global = global("ROOT %x = f32[8,12] parameter(0), sharding={devices=[4,1]<=[4]}");
    let error = prove(&global, &local, &Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "expected inputs the tiles of f32[8, 12], found f32[3, 12]");
}

#[test]
fn devices_are_counted_by_annotations_where_headers_name_none() {
    let program = |header: &str, op: &str| {
        let text = format!(
            "HloModule m{header}\n\nENTRY main {{\n  a = u32[4] parameter(0), sharding={{devices=[4]<=[4]}}\n  id = u32[] partition-id()\n  \
             z = u32[] constant(0)\n  k = u32[] {op}(id, z)\n  b = u32[4] broadcast(k), dimensions={{}}\n  ROOT r = u32[4] add(a, b)\n}}\n"
        );
        hlo_text::parse_module(&text).expect("a module").module
    };
    for headers in [["", ""], [", num_partitions=4", ""], ["", ", num_partitions=4"]] {
        let [before, after] = headers;
        let proved = |a: &Module, b: &Module| {
            let proof = prove(a, b, &Options::default()).expect("a pair");
            assert_eq!(proof.n_devices, 4);
            proof.is_proved()
        };
        assert!(!proved(&program(before, "multiply"), &program(after, "add")), "{headers:?}");
        assert!(proved(&program(before, "add"), &program(after, "add")), "{headers:?}");
    }
}
