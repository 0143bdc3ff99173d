//! A module as XLA prints it after reading it: its orders, its defaults, its normal forms.
//!
//! `--format long` and `--format short` print this, so two texts that XLA holds for the same print the same.

use super::{order, tables};
use crate::attrs::{Attrs, ExchangingAttrs, FieldMut, Marks, Metadata, QuotedText, ReduceAttrs};
use crate::float::decimal::write_f64;
use crate::groups::{IotaTile, Mesh, MeshDevices, ReplicaGroups};
use crate::header::EntryLayout;
use crate::module::{InstId, Module, TextForm};
use crate::op::{CollectiveRule, CollectiveSource, Opcode};
use crate::shape::{ArrayShape, Shape, ShapeId};
use crate::sharding::{LeafSharding, Sharding, ShardingKind, SubgroupKind, TileDevices, Tiling};
use cranelift_entity::SecondaryMap;
use std::sync::Arc;

/// The module in XLA's normal form, to be printed in `form`.
pub fn canonical(module: &Module, form: TextForm) -> Module {
    let mut module = module.clone();
    module.form = form;
    match form {
        // XLA numbers the tables while it reads, so before it puts anything in order.
        TextForm::Long => tables::renumber(&mut module),
        TextForm::Short => module.header.tables = Default::default(),
    }
    let order = order::computation_order(&module);
    module.set_computation_order(order);
    if !module.header.is_scheduled {
        let mut state = SecondaryMap::with_capacity(module.n_inst_slots());
        for comp in module.computations().to_vec() {
            let order = order::instruction_order(&module, comp, &mut state);
            // Operands in a circle leave instructions out; such a computation is printed as it stands.
            if order.len() == module.comp(comp).insts.len() {
                module.comp_mut(comp).insts = order;
            }
        }
    }
    let mut layouts = SecondaryMap::new();
    for comp in module.computations().to_vec() {
        for inst in module.comp(comp).insts.clone() {
            rewrite_instruction(&mut module, inst, &mut layouts);
        }
    }
    rewrite_header(&mut module, &mut layouts);
    module
}

/// With-layout twins of the shapes met so far.
type Layouts = SecondaryMap<ShapeId, Option<ShapeId>>;

fn rewrite_instruction(module: &mut Module, id: InstId, layouts: &mut Layouts) {
    let shape = with_layout(module, module.inst(id).shape, layouts);
    module.inst_mut(id).shape = shape;
    let rank = module.shape(id).as_array().map_or(0, ArrayShape::rank);
    let n_leaves = matches!(module.shape(id), Shape::Tuple(_)).then(|| module.shape(id).n_leaves());
    let form = module.form;
    let mut attrs = std::mem::replace(&mut module.inst_mut(id).attrs, Attrs::Plain);
    rewrite_attributes(module, id, &mut attrs, rank);
    attrs.for_each_field_mut(&mut |field| match field {
        FieldMut::Shape(Some(shape)) => *shape = with_layout(module, *shape, layouts),
        FieldMut::Shapes(Some(shapes)) => shapes.iter_mut().for_each(|s| *s = with_layout(module, *s, layouts)),
        FieldMut::Groups(ReplicaGroups::Iota(tile)) => simplify(tile),
        FieldMut::Groups(ReplicaGroups::Mesh(groups)) => simplify_mesh(&mut groups.mesh),
        FieldMut::DomainSharding(Some(domain)) => {
            rewrite_sharding(&mut domain.entry, n_leaves);
            rewrite_sharding(&mut domain.exit, n_leaves);
        }
        _ => {}
    });
    let inst = module.inst_mut(id);
    inst.attrs = attrs;
    if let Some(marks) = &mut inst.marks {
        rewrite_marks(Arc::make_mut(marks), form, n_leaves);
        if marks.is_empty() {
            inst.marks = None;
        }
    }
}

/// Fills in attributes that XLA always prints and drops those that it reads without printing them.
fn rewrite_attributes(module: &Module, id: InstId, attrs: &mut Attrs, rank: usize) {
    let inst = module.inst(id);
    if let Some(ReduceAttrs { dimensions, .. }) = ReduceAttrs::of_mut(attrs)
        && inst.opcode == Opcode::Map
        && dimensions.is_empty()
    {
        *dimensions = (0..rank as i64).collect();
    }
    // Rows lie along dim 0 and no other.
    if let Some(ExchangingAttrs { dimensions, .. }) = ExchangingAttrs::of_mut(attrs)
        && inst.opcode.row().collective.is_some_and(takes_rows)
    {
        dimensions.clear();
    }
    module.normalize_attrs(&inst.operands, attrs);
}

fn takes_rows(rule: CollectiveRule) -> bool {
    rule.source == CollectiveSource::Rows
}

fn rewrite_header(module: &mut Module, layouts: &mut Layouts) {
    let stated = module.header.entry_computation_layout.take();
    let inferred = module.entry().and_then(|entry| {
        let params = module.comp(entry).params.iter().map(|&param| module.inst(param).shape).collect();
        Some(EntryLayout { params, result: module.result_shape(entry)? })
    });
    if let Some(mut layout) = stated.or(inferred) {
        layout.params.iter_mut().for_each(|param| *param = with_layout(module, *param, layouts));
        layout.result = with_layout(module, layout.result, layouts);
        module.header.entry_computation_layout = Some(layout);
    }
    module.header.frontend_attributes.sort();
}

/// The same shape with row-major layouts where it has none.
fn with_layout(module: &mut Module, id: ShapeId, layouts: &mut Layouts) -> ShapeId {
    if let Some(known) = layouts[id] {
        return known;
    }
    let mut shape = module.shapes.get(id).clone();
    shape.fill_layouts();
    let new = module.shapes.intern(shape);
    layouts[id] = Some(new);
    new
}

fn rewrite_marks(marks: &mut Marks, form: TextForm, n_leaves: Option<usize>) {
    if let Some(sharding) = &mut marks.sharding {
        rewrite_sharding(sharding, n_leaves);
        if form == TextForm::Short {
            drop_metadata(sharding);
        }
    }
    marks.frontend_attributes.sort();
    if !marks.statistics.0.is_empty() {
        marks.statistics.0 = normal_statistics(&marks.statistics.0).unwrap_or_default();
    }
    if !marks.result_accuracy.0.is_empty() {
        marks.result_accuracy.0 = normal_accuracy(&marks.result_accuracy.0);
    }
    if is_blank_braces(&marks.origin.0) {
        marks.origin.0 = "{()}".into();
    }
    if form == TextForm::Short {
        marks.metadata = None;
        marks.control_predecessors.clear();
    }
    if let Some(metadata) = &mut marks.metadata {
        rewrite_metadata(metadata);
        if **metadata == Metadata::default() {
            marks.metadata = None;
        }
    }
}

/// Empty text and zeros are the same as none.
fn rewrite_metadata(metadata: &mut Metadata) {
    metadata.profile_type.clear();
    metadata.preserve_layout = false;
    let texts = [
        &mut metadata.op_type,
        &mut metadata.op_name,
        &mut metadata.source_file,
        &mut metadata.deduplicated_name,
        &mut metadata.scheduling_name,
    ];
    for text in texts {
        text.take_if(|QuotedText(text)| text.is_empty());
    }
    let numbers = [
        &mut metadata.source_line,
        &mut metadata.source_end_line,
        &mut metadata.source_column,
        &mut metadata.source_end_column,
        &mut metadata.stack_frame_id,
        &mut metadata.size_of_generated_code_in_bytes,
    ];
    for number in numbers {
        number.take_if(|number| *number == 0);
    }
}

/// `n_leaves` is the number of leaves of a tuple-shaped value, for which one sharding is spread over all of them.
fn rewrite_sharding(sharding: &mut Sharding, n_leaves: Option<usize>) {
    match sharding {
        Sharding::Single(leaf) => {
            rewrite_leaf(leaf);
            if let Some(n_leaves) = n_leaves {
                *sharding = Sharding::Tuple(vec![leaf.clone(); n_leaves.max(1)]);
            }
        }
        Sharding::Tuple(leaves) => leaves.iter_mut().for_each(rewrite_leaf),
    }
}

fn drop_metadata(sharding: &mut Sharding) {
    match sharding {
        Sharding::Single(leaf) => leaf.metadata.clear(),
        Sharding::Tuple(leaves) => leaves.iter_mut().for_each(|leaf| leaf.metadata.clear()),
    }
}

fn rewrite_leaf(leaf: &mut LeafSharding) {
    match &mut leaf.kind {
        ShardingKind::Tiled(tiling) => {
            if let TileDevices::Iota(tile) = &mut tiling.devices {
                simplify(tile);
            }
            tiling.last_dim_short |= tiling.last_dims == [SubgroupKind::Replicated];
            if is_replicated(tiling) {
                leaf.kind = ShardingKind::Replicated;
            }
        }
        ShardingKind::Named(named) => simplify_mesh(&mut named.mesh),
        ShardingKind::Replicated
        | ShardingKind::Maximal(_)
        | ShardingKind::Manual
        | ShardingKind::Unknown
        | ShardingKind::Unreduced
        | ShardingKind::MaximalMesh(_) => {}
    }
}

/// One tile, held by every device.
fn is_replicated(tiling: &Tiling) -> bool {
    tiling.last_dims == [SubgroupKind::Replicated] && tiling.dims.iter().take(tiling.data_rank()).all(|&dim| dim == 1)
}

fn simplify_mesh(mesh: &mut Mesh) {
    let n_axes_devices = mesh.n_devices().unwrap_or(0);
    let is_iota = match &mut mesh.device_ids {
        MeshDevices::Iota => true,
        MeshDevices::Tile(tile) => {
            simplify(tile);
            tile.perm.len() <= 1
        }
        MeshDevices::List(ids) => ids.iter().copied().eq(0..n_axes_devices),
    };
    if is_iota {
        mesh.device_ids = MeshDevices::Iota;
    }
}

/// Leaves out dims of size 1 and joins dims that stay next to each other.
fn simplify(tile: &mut IotaTile) {
    let size = |dim: i64| usize::try_from(dim).ok().and_then(|dim| tile.reshape_dims.get(dim)).copied();
    // Runs of consecutive old dims, in permuted order: first dim, last dim, product of the sizes.
    let mut runs: Vec<(i64, i64, i64)> = Vec::new();
    let is_one = |dim: i64| size(dim) == Some(1);
    for &dim in &tile.perm {
        let Some(size) = size(dim) else { return };
        if size == 1 {
            continue;
        }
        match runs.last_mut() {
            Some((_, last, product)) if dim > *last && (*last + 1..dim).all(is_one) => {
                *last = dim;
                *product = product.saturating_mul(size);
            }
            _ => runs.push((dim, dim, size)),
        }
    }
    if runs.is_empty() {
        runs.push((0, 0, 1));
    }
    let mut by_position: Vec<usize> = (0..runs.len()).collect();
    by_position.sort_by_key(|&run| runs[run].0);
    tile.reshape_dims = by_position.iter().map(|&run| runs[run].2).collect();
    tile.perm = (0..runs.len())
        .map(|run| by_position.iter().position(|&other| other == run).unwrap_or_default() as i64)
        .collect();
}

fn is_blank_braces(text: &str) -> bool {
    text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).is_some_and(|inner| inner.trim().is_empty())
}

/// A name or a number.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte))
}

/// The entries `key=value` with commas between, blanks removed; `None` if the text is not such a list of words.
fn entries(text: &str) -> Option<Vec<(&str, &str)>> {
    fn pair(entry: &str) -> Option<(&str, &str)> {
        let (key, value) = entry.split_once('=')?;
        let (key, value) = (key.trim(), value.trim());
        (is_word(key) && is_word(value)).then_some((key, value))
    }
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(pair).collect()
}

/// Numbers as C's `%g` prints them; `None` without an index to show.
fn normal_statistics(text: &str) -> Option<String> {
    let entries = entries(text.trim().strip_prefix('{')?.strip_suffix('}')?)?;
    let (_, index) = entries.iter().find(|(key, _)| *key == "visualizing_index")?;
    let mut out = format!("{{visualizing_index={index}");
    for (key, value) in entries.iter().filter(|(key, _)| *key != "visualizing_index") {
        out.push(',');
        out.push_str(key);
        out.push('=');
        write_number(value, &mut out);
    }
    out.push('}');
    Some(out)
}

/// The default is left out; tolerances are complete. What is neither a mode nor tolerances stays as written.
pub(crate) fn normal_accuracy(text: &str) -> String {
    let inner = text.trim().trim_start_matches('{').trim_end_matches('}').trim();
    if let Some(mode) = inner.strip_prefix("mode").map(|rest| rest.trim().trim_start_matches('=').trim()) {
        return match mode {
            "default" => String::new(),
            mode if is_word(mode) => format!("{{mode={mode}}}"),
            _ => text.to_string(),
        };
    }
    let tolerances = inner.split_once('{').and_then(|(_, rest)| entries(rest));
    let Some(tolerances) = tolerances else { return text.to_string() };
    let mut out = String::from("{tolerance={");
    for (i, key) in ["atol", "rtol", "ulps"].into_iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        out.push_str(key);
        out.push('=');
        let value = tolerances.iter().find(|(k, _)| *k == key).map_or("0", |(_, value)| value);
        write_number(value, &mut out);
    }
    out.push_str("}}");
    out
}

fn write_number(text: &str, out: &mut String) {
    match text.parse::<f64>() {
        Ok(value) => write_f64(value, out),
        Err(_) => out.push_str(text),
    }
}
