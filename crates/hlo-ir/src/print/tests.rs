//! Hand-built modules in both forms. Whole files come back byte for byte in the round-trip tests.

use super::*;
use crate::attrs::*;
use crate::groups::*;
use crate::header::{AliasEntry, DebugTables, EntryLayout, FileLocation, StackFrame};
use crate::module::{Instruction, Operands};
use crate::shape::{ArrayShape, Dims, Layout, Shape, ShapeId};
use crate::sharding::Sharding;
use crate::{ConstantValue, DType, Literal};

fn add(
    module: &mut Module,
    parent: CompId,
    name: &str,
    shape: ShapeId,
    opcode: Opcode,
    ops: &[InstId],
    attrs: Attrs,
) -> InstId {
    let name = module.names.intern(name);
    let operands = Operands::from_slice(ops);
    module.add_instruction(Instruction { opcode, shape, name, parent, operands, attrs, marks: None })
}

fn comp(module: &mut Module, name: &str) -> CompId {
    let name = module.names.intern(name);
    module.add_computation(name)
}

fn param(number: i64) -> Attrs {
    ParameterAttrs { number, ..Default::default() }.into()
}

/// `sum` adds two scalars; `main` all-reduces a parameter and makes a tuple of six elements.
fn sample() -> Module {
    let mut m = Module::new("m");
    let scalar = m.shapes.intern(Shape::array(DType::F32, []).clone());
    let array = m.shapes.intern(Shape::Array(ArrayShape::new(DType::F32, [8, 4]).with_row_major()));
    let sum = comp(&mut m, "sum");
    let x = add(&mut m, sum, "x", scalar, Opcode::Parameter, &[], param(0));
    let y = add(&mut m, sum, "y", scalar, Opcode::Parameter, &[], param(1));
    let z = add(&mut m, sum, "z", scalar, Opcode::Add, &[x, y], Attrs::Plain);
    m.comp_mut(sum).root = Some(z).into();

    let main = comp(&mut m, "main");
    let a = add(&mut m, main, "a", array, Opcode::Parameter, &[], param(0));
    m.marks_mut(a).sharding = Some(Sharding::replicated());
    let mesh = Mesh { axes: vec![("a".into(), 4), ("b".into(), 2)], device_ids: MeshDevices::Iota };
    let axes = vec![AxisRef { name: "a".into(), sub: Some((2, 2)) }, AxisRef { name: "b".into(), sub: None }];
    let attrs = CombiningAttrs {
        channel_id: Some(1),
        replica_groups: ReplicaGroups::Mesh(MeshGroups { mesh, axes }),
        use_global_device_ids: true,
        to_apply: Some(sum),
        ..Default::default()
    };
    let r = add(&mut m, main, "r", array, Opcode::AllReduce, &[a], attrs.into());
    m.marks_mut(r).control_predecessors.push(a);
    let metadata = Metadata {
        op_name: Some(QuotedText("jit(f)/\"psum\"".into())),
        stack_frame_id: Some(1),
        scheduling_name: Some(QuotedText("s".into())),
        ..Default::default()
    };
    m.marks_mut(r).metadata = Some(Box::new(metadata));
    m.marks_mut(r).backend_config = Some("{\"k\": 1}".into());
    let value = ConstantValue::Array(Literal::from_elem(1.5f32));
    let c = add(&mut m, main, "c", scalar, Opcode::Constant, &[], Attrs::Constant(Box::new(value)));
    let scalar_shape = m.shapes.get(scalar).clone();
    let tuple = m.shapes.intern(Shape::Tuple(vec![scalar_shape; 6]));
    let t = add(&mut m, main, "t", tuple, Opcode::Tuple, &[c; 6], Attrs::Plain);
    m.comp_mut(main).root = Some(t).into();
    m.set_entry(main);
    m.header.entry_computation_layout = Some(EntryLayout { params: vec![array; 6], result: tuple });
    m.header.num_partitions = 8;
    let alias = AliasEntry { output_index: Dims::from_slice(&[0]), param: 0, param_index: Dims::new(), is_must: false };
    m.header.input_output_alias = vec![alias.clone(), AliasEntry { is_must: true, ..alias }];
    m
}

#[test]
fn long_form_has_signatures_and_operand_counts() {
    let text = print_module(&sample(), &PrintOptions::default());
    let expected = "\
HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {0}: (0, {}, must-alias) }, \
entry_computation_layout={(f32[8,4]{1,0}, f32[8,4]{1,0}, f32[8,4]{1,0}, f32[8,4]{1,0}, f32[8,4]{1,0}, \
/*index=5*/f32[8,4]{1,0})->(f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[])}, num_partitions=8

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

ENTRY %main (a: f32[8,4]) -> (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) {
  %a = f32[8,4]{1,0} parameter(0), sharding={replicated}
  %r = f32[8,4]{1,0} all-reduce(%a), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a':(2)2,'b'}, \
use_global_device_ids=true, to_apply=%sum, control-predecessors={%a}, \
metadata={op_name=\"jit(f)/\\\"psum\\\"\" stack_frame_id=1 scheduling_name=\"s\"}, backend_config={\"k\": 1}
  %c = f32[] constant(1.5)
  ROOT %t = (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) tuple(%c, %c, %c, %c, %c, /*index=5*/%c)
}

";
    assert_eq!(text, expected);
}

#[test]
fn short_form_has_neither() {
    let mut module = sample();
    module.form = TextForm::Short;
    let text = print_module(&module, &PrintOptions { expand_mesh_groups: true, ..Default::default() });
    assert!(text.contains("\nsum {\n  x = f32[] parameter(0)\n"), "{text}");
    assert!(text.contains("\nENTRY main {\n"), "{text}");
    assert!(text.contains(" tuple(c, c, c, c, c, c)\n"), "{text}");
    assert!(text.contains("replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=sum,"), "{text}");
}

#[test]
fn one_instruction_stands_on_one_line() {
    let module = sample();
    let root = module.comp(module.computations()[0]).root.expand().unwrap();
    assert_eq!(print_instruction(&module, root), "ROOT %z = f32[] add(%x, %y)");
}

#[test]
fn debug_tables_stand_before_the_computations() {
    let mut module = Module::new("m");
    let place = FileLocation { file_name_id: 1, function_name_id: 1, line: 2, end_line: 3, column: 4, end_column: 5 };
    module.header.tables = DebugTables {
        file_names: vec!["a \"b\".py".into()],
        function_names: vec!["f".into()],
        file_locations: vec![place],
        stack_frames: vec![StackFrame { file_location_id: 1, parent_frame_id: 1 }],
    };
    let expected = "HloModule m\n\nFileNames\n1 \"a \\\"b\\\".py\"\n\nFunctionNames\n1 \"f\"\n\nFileLocations\n\
        1 {file_name_id=1 function_name_id=1 line=2 end_line=3 column=4 end_column=5}\n\n\
        StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n\n";
    assert_eq!(print_module(&module, &PrintOptions::default()), expected);
}

/// The attributes of an instruction with `attrs`, as they stand after its operands.
fn attributes(attrs: Attrs) -> String {
    let mut m = Module::new("m");
    let shape = m.shapes.intern(Shape::array(DType::F32, []));
    let main = comp(&mut m, "main");
    let id = add(&mut m, main, "i", shape, Opcode::CustomCall, &[], attrs);
    let line = print_instruction(&m, id);
    line.split_once("custom-call()").unwrap().1.trim_start_matches(", ").to_string()
}

#[test]
fn strides_and_interior_padding_stand_everywhere_or_nowhere() {
    let dim = |start, limit, stride| SliceDim { start, limit, stride };
    let slice = |dims: &[SliceDim]| attributes(SliceAttrs { slice: dims.to_vec() }.into());
    assert_eq!(slice(&[dim(0, 1, 1), dim(1, 5, 1)]), "slice={[0:1], [1:5]}");
    assert_eq!(slice(&[dim(0, 1, 1), dim(1, 5, 2)]), "slice={[0:1:1], [1:5:2]}");
    let pad = |interior| {
        let dims = vec![PadDim { low: 0, high: -1, interior: 0 }, PadDim { low: 1, high: 2, interior }];
        attributes(PadAttrs { padding: dims }.into())
    };
    assert_eq!(pad(0), "padding=0_-1x1_2");
    assert_eq!(pad(3), "padding=0_-1_0x1_2_3");
}

#[test]
fn windows_leave_out_parts_at_their_defaults() {
    let one = WindowDim { size: 3, ..WindowDim::default() };
    let other = WindowDim {
        stride: 2,
        pad_low: 1,
        pad_high: -2,
        base_dilation: 3,
        window_dilation: 4,
        is_reversed: true,
        ..one
    };
    let dims = ConvDims {
        input_batch: 0,
        input_feature: 3,
        input_spatial: Dims::from_slice(&[1, 2]),
        kernel_input_feature: 2,
        kernel_output_feature: 3,
        kernel_spatial: Dims::from_slice(&[0, 1]),
        output_batch: 3,
        output_feature: 0,
        output_spatial: Dims::from_slice(&[2, 1]),
        unknown: Default::default(),
    };
    let conv = |window: &[WindowDim]| {
        attributes(
            ConvAttrs { window: Window { dims: window.to_vec() }, dim_labels: dims.clone(), ..Default::default() }
                .into(),
        )
    };
    assert_eq!(conv(&[]), "dim_labels=b01f_01io->f10b");
    assert_eq!(conv(&[one, one]), "window={size=3x3}, dim_labels=b01f_01io->f10b");
    assert_eq!(
        conv(&[one, other]),
        "window={size=3x3 stride=1x2 pad=0_0x1_-2 lhs_dilate=1x3 rhs_dilate=1x4 rhs_reversal=0x1}, \
         dim_labels=b01f_01io->f10b"
    );
}

#[test]
fn layouts_have_their_parts_in_order() {
    let mut layout = Layout::new(Dims::from_slice(&[1, 0]));
    assert_eq!(layout.to_string(), "{1,0}");
    layout.tiles = vec![Dims::from_slice(&[8, 128]), Dims::from_slice(&[2, 1])];
    layout.element_size_in_bits = 4;
    layout.memory_space = 5;
    assert_eq!(layout.to_string(), "{1,0:T(8,128)(2,1)E(4)S(5)}");
    let scalar = ArrayShape::new(DType::F32, []).with_row_major();
    assert_eq!(Shape::Tuple(vec![Shape::Array(scalar), Shape::Token]).to_string(), "(f32[], token[])");
    let mut dynamic = ArrayShape::new(DType::S8, [2, crate::shape::UNBOUNDED_DIM, 3]);
    dynamic.dynamic = 0b011;
    assert_eq!(dynamic.to_string(), "s8[<=2,?,3]");
}

#[test]
fn an_async_pair_of_one_op_is_sugared_and_its_computation_left_out() {
    let mut m = Module::new("m");
    let shape = m.shapes.intern(Shape::array(DType::F32, [8]));
    let wrapped = comp(&mut m, "wrapped");
    let x = add(&mut m, wrapped, "x", shape, Opcode::Parameter, &[], param(0));
    let attrs = ExchangingAttrs { dimensions: Dims::from_slice(&[0]), ..Default::default() };
    let op = add(&mut m, wrapped, "op", shape, Opcode::AllToAll, &[x], attrs.into());
    m.comp_mut(wrapped).root = Some(op).into();
    let main = comp(&mut m, "main");
    let a = add(&mut m, main, "a", shape, Opcode::Parameter, &[], param(0));
    let attrs = AsyncAttrs {
        calls: Some(wrapped),
        async_execution_thread: Some(QuotedText("side".into())),
        ..AsyncAttrs::default()
    };
    let start = add(&mut m, main, "start", shape, Opcode::AsyncStart, &[a], attrs.into());
    let done = add(&mut m, main, "done", shape, Opcode::AsyncDone, &[start], AsyncAttrs::default().into());
    m.comp_mut(main).root = Some(done).into();
    m.set_entry(main);
    let text = print_module(&m, &PrintOptions::default());
    let expected = "HloModule m

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %start = f32[8] all-to-all-start(%a), async_execution_thread=\"side\", replica_groups={}, dimensions={0}
  ROOT %done = f32[8] all-to-all-done(%start)
}

";
    assert_eq!(text, expected);
    // A second op in the computation must be printed, and so must the computation.
    let extra = add(&mut m, wrapped, "extra", shape, Opcode::Negate, &[op], Attrs::Plain);
    m.comp_mut(wrapped).root = Some(extra).into();
    let text = print_module(&m, &PrintOptions::default());
    assert!(text.contains("%wrapped (x: f32[8])"), "{text}");
    assert!(text.contains("async-start(%a), async_execution_thread=\"side\", calls=%wrapped\n"), "{text}");
    assert!(text.contains("async-done(%start)\n"), "{text}");
}
