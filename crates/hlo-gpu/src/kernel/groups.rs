//! Results that are computed together, and the loops over their elements.
//!
//! Results of equal dims that share an operand form a group, which gets a range of the grid's blocks.

use std::collections::HashMap;

use hlo_ir::{InstId, Module, Opcode};

use super::bodies::{self, GroupCode};
use super::column_team::{self, ColumnTeam};
use super::contraction::LOOPS;
use super::conv_tiles::{self, ConvTiles};
use super::emitter::{Argument, Atom, Binding, Emitter, FrameId, Preloaded, ScopeKind};
use super::group::{BlockRange, ResultGroup, either_way};
use super::reach::{Reach, Root};
use super::row_team::{self, RowTeam};
use super::scatter_rows::{self, ScatterRows};
use super::sort_rows::{self, SortRows};
use super::team::Team;
use super::tiles::{self, Tiles};
use super::{EmitOptions, Signature};
use crate::GpuError;
use hlo_ir::attrs::Attrs;

/// Threads of a block that has no team.
const BLOCK: u32 = 256;
/// Blocks that a group gets at most, so many that those of the last round, which do not fill a device, take no time beside the others.
const MAX_BLOCKS: u64 = 1 << 16;

/// How the elements of a group are dealt out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// An element for each thread.
    Elemental,
    /// An element for each team.
    Team(Team),
    /// Several neighbours for each thread; these arguments are loaded at once.
    Packs { n_elems: i64, loaded: Vec<(usize, InstId)> },
    /// A tile for each block.
    Tiles(Tiles),
    /// A row for each team.
    RowTeam(RowTeam),
    /// Columns of some rows for each block, which are summed too.
    Columns(ColumnTeam),
    /// The rows of a scatter.
    ScatterRows(ScatterRows),
    /// The rows of a sort.
    SortRows(SortRows),
    /// A tile of a matrix product for each block.
    Product(ConvTiles),
}

/// A group and how its elements are dealt out.
#[derive(Clone, Debug)]
pub(super) struct FormedGroup {
    pub group: ResultGroup,
    pub form: Form,
}

impl FormedGroup {
    /// Whether its results are whole rows, or one element for each.
    pub(super) fn is_of_rows(&self) -> bool {
        matches!(self.form, Form::RowTeam(_))
    }

    /// Whether threads compute its elements together.
    pub(super) fn has_team(&self) -> bool {
        match &self.form {
            Form::Team(team) | Form::RowTeam(RowTeam { team, .. }) => *team != Team::Thread,
            Form::Columns(_) => true,
            Form::Elemental
            | Form::Packs { .. }
            | Form::Tiles(_)
            | Form::ScatterRows(_)
            | Form::SortRows(_)
            | Form::Product(_) => false,
        }
    }

    /// Threads that its blocks want.
    pub(super) fn block(&self) -> u32 {
        match &self.form {
            Form::Team(team) => team.block(),
            Form::RowTeam(rows) => rows.team.block(),
            Form::Columns(_) => column_team::TEAM.block(),
            Form::SortRows(rows) => rows.block(),
            Form::Elemental | Form::Packs { .. } | Form::Tiles(_) | Form::ScatterRows(_) | Form::Product(_) => BLOCK,
        }
    }
}

/// Puts the results into groups and chooses the form of each.
pub(super) fn groups(module: &Module, reach: &Reach, signature: &Signature, options: &EmitOptions) -> Vec<FormedGroup> {
    if let (false, Some(all)) = (options.is_elemental_only, form_of_all(module, reach, signature, options)) {
        return vec![all];
    }
    let mut of_result: Vec<usize> = (0..reach.roots.len()).collect();
    let mut owner: HashMap<(InstId, &[i64]), usize> = HashMap::new();
    for (i, root) in reach.roots.iter().enumerate() {
        let dims = signature.results[i].shape.dims.as_slice();
        for inst in root.all.iter().copied().filter(|&inst| joins(module, inst)) {
            let first = *owner.entry((inst, dims)).or_insert(of_result[i]);
            let (old, new) = (of_result[i].max(first), of_result[i].min(first));
            of_result.iter_mut().filter(|group| **group == old).for_each(|group| *group = new);
            owner.values_mut().filter(|group| **group == old).for_each(|group| *group = new);
        }
    }
    let mut groups: Vec<FormedGroup> = Vec::new();
    for first in 0..of_result.len() {
        let results: Vec<usize> = (0..of_result.len()).filter(|&i| of_result[i] == first).collect();
        if results.is_empty() {
            continue;
        }
        let is_one_layout = are_one_layout(signature, &results);
        let shape = &signature.results[first].shape;
        let sources = results.iter().map(|&i| (reach.roots[i].inst, reach.roots[i].leaf)).collect();
        let n_elems = i64::try_from(shape.n_elems()).unwrap_or(i64::MAX);
        let group = ResultGroup { results, sources, is_one_layout, n_elems };
        groups.push(FormedGroup { group, form: Form::Elemental });
    }
    let is_alone = groups.len() == 1;
    for formed in &mut groups {
        // A sort has no other form, and takes all of the shared memory.
        if let Some(rows) = sort_rows::choose(module, signature, &formed.group).filter(|_| is_alone) {
            formed.form = Form::SortRows(rows);
        } else if !options.is_elemental_only {
            formed.form = choose_form(module, reach, signature, (&formed.group, is_alone), options);
        }
    }
    groups
}

/// All results in one form, where sums of columns or reductions of rows are among them.
fn form_of_all(module: &Module, reach: &Reach, signature: &Signature, options: &EmitOptions) -> Option<FormedGroup> {
    let results: Vec<usize> = (0..reach.roots.len()).collect();
    let tiles = || conv_tiles::choose_with_sums(module, reach, signature, options.uses_tf32);
    let (is_one_layout, n_elems, form) = if let Some(tiles) = tiles() {
        (are_one_layout(signature, tiles.whole()), tiles.n_elems(), Form::Product(tiles))
    } else if let Some(rows) = row_team::choose(module, reach, signature) {
        (are_one_layout(signature, &results), rows.n_rows(), Form::RowTeam(rows))
    } else if let Some(columns) = column_team::choose(module, reach, signature) {
        (are_one_layout(signature, &columns.whole), columns.n_elems(), Form::Columns(columns))
    } else {
        return None;
    };
    let sources = reach.roots.iter().map(|root| (root.inst, root.leaf)).collect();
    Some(FormedGroup { group: ResultGroup { results, sources, is_one_layout, n_elems }, form })
}

/// Whether the elements of these results lie in the same order.
fn are_one_layout(signature: &Signature, results: &[usize]) -> bool {
    let shape = |&i: &usize| &signature.results[i].shape;
    results.first().map(shape).is_none_or(|first| results.iter().map(shape).all(|other| other.is_same_order(first)))
}

/// Whether two results that both depend on `inst` are worth computing together.
fn joins(module: &Module, inst: InstId) -> bool {
    let is_filled = [Opcode::Broadcast, Opcode::Iota, Opcode::Constant].contains(&module.inst(inst).opcode);
    !is_filled && module.shape(inst).as_array().is_none_or(|shape| shape.n_elems() > 1)
}

fn choose_form(
    module: &Module,
    reach: &Reach,
    signature: &Signature,
    (group, is_alone): (&ResultGroup, bool),
    options: &EmitOptions,
) -> Form {
    let roots: Vec<&Root> = group.results.iter().map(|&i| &reach.roots[i]).collect();
    let has_loop = |root: &&Root| {
        root.all.iter().any(|inst| !signature.bindings.contains_key(inst) && LOOPS.contains(&module.inst(*inst).opcode))
    };
    if let Some(rows) = scatter_rows::choose(module, signature, group) {
        return Form::ScatterRows(rows);
    }
    if let Some(tiles) = conv_tiles::choose(module, signature, group, options.uses_tf32) {
        return Form::Product(tiles);
    }
    if let Some(tiles) = tiles::choose(module, signature, group, &roots)
        && !roots.iter().any(has_loop)
    {
        return Form::Tiles(tiles);
    }
    if roots.iter().any(has_loop) {
        return choose_team(module, signature, group, &roots, is_alone).map_or(Form::Elemental, Form::Team);
    }
    choose_packs(module, signature, group, &roots).unwrap_or(Form::Elemental)
}

/// A team, if the longest reduction that has an element for each of the group's is long enough.
fn choose_team(
    module: &Module,
    signature: &Signature,
    group: &ResultGroup,
    roots: &[&Root],
    is_alone: bool,
) -> Option<Team> {
    let mut longest: Option<(i64, bool)> = None;
    for inst in roots.iter().flat_map(|root| root.all.iter().copied()) {
        let node = module.inst(inst);
        let Attrs::Reduce(attrs) = &node.attrs else { continue };
        if node.opcode != Opcode::Reduce || signature.bindings.contains_key(&inst) {
            continue;
        }
        let Some(operand) = node.operands.first().and_then(|&x| module.shape(x).as_array()) else { continue };
        let n_reduced: i64 = attrs.dimensions.iter().map(|&dim| operand.dims[dim as usize]).product();
        if i64::try_from(operand.n_elems()).ok() != n_reduced.checked_mul(group.n_elems) {
            continue;
        }
        let fastest = operand.physical_order().into_iter().find(|&dim| operand.dims[dim] != 1);
        let is_row = fastest.is_none_or(|dim| attrs.dimensions.contains(&(dim as i64)));
        if longest.is_none_or(|(n, _)| n < n_reduced) {
            longest = Some((n_reduced, is_row));
        }
    }
    let (n_reduced, is_row) = longest?;
    let is_few = group.n_elems < 1024;
    match (is_row, n_reduced) {
        (true, 1024..) if is_few && is_alone && n_reduced >= 4096 => Some(Team::Block(1024)),
        (true, 1024..) if is_few => Some(Team::Block(256)),
        (true, 32..) => Some(Team::Warp),
        (false, 512..) if group.n_elems < 1 << 16 && is_alone => Some(Team::Column(32)),
        (false, 32..) if group.n_elems < 1 << 18 => Some(Team::Column(8)),
        _ => None,
    }
}

/// Packs of 16 bytes of the widest array that is read or written in place.
fn choose_packs(module: &Module, signature: &Signature, group: &ResultGroup, roots: &[&Root]) -> Option<Form> {
    if !group.is_one_layout {
        return None;
    }
    let mut loaded: Vec<(usize, InstId)> = Vec::new();
    for inst in roots.iter().flat_map(|root| root.in_place.iter().copied()) {
        if let Some(Binding::Arguments(first)) = signature.bindings.get(&inst)
            && module.shape(inst).as_array().is_some()
            && !loaded.iter().any(|(argument, _)| argument == first)
        {
            loaded.push((*first, inst));
        }
    }
    loaded.sort();
    let sizes = loaded
        .iter()
        .map(|&(argument, _)| signature.operands[argument].ctype.size_bytes())
        .chain(group.results.iter().map(|&result| signature.results[result].ctype.size_bytes()));
    let n_elems = 16 / sizes.max().unwrap_or(16) as i64;
    let fits = n_elems > 1 && group.n_elems % n_elems == 0 && group.n_elems >= i64::from(BLOCK) * n_elems;
    // More packs than registers hold would be spilled.
    (fits && loaded.len() + group.results.len() <= 24).then_some(Form::Packs { n_elems, loaded })
}

/// Writes all groups; the number of blocks.
pub(super) fn write(
    e: &mut Emitter<'_>,
    frame: FrameId,
    groups: &[FormedGroup],
    results: &[Argument],
    block: u32,
) -> Result<u32, GpuError> {
    let (mut first, mut codes) = (0u32, Vec::new());
    for formed in groups {
        let group = &formed.group;
        let per_block = match &formed.form {
            Form::Elemental
            | Form::Tiles(_)
            | Form::Columns(_)
            | Form::ScatterRows(_)
            | Form::SortRows(_)
            | Form::Product(_) => u64::from(block),
            Form::Team(Team::Warp) | Form::RowTeam(RowTeam { team: Team::Warp, .. }) => u64::from(block / 32),
            Form::RowTeam(rows) => u64::from(rows.team.elems_of_block()),
            Form::Team(team) => u64::from(team.elems_of_block()),
            Form::Packs { n_elems, .. } => u64::from(block) * (*n_elems as u64),
        };
        let n_blocks = match &formed.form {
            Form::ScatterRows(rows) => rows.n_blocks(block),
            Form::SortRows(rows) => rows.n_blocks().clamp(1, MAX_BLOCKS),
            Form::Product(tiles) => (tiles.n_tiles() as u64).clamp(1, MAX_BLOCKS),
            Form::Columns(columns) => (columns.n_tiles() as u64).clamp(1, MAX_BLOCKS),
            Form::Tiles(tiles) => (tiles.n_tiles(&results[group.results[0]].shape.dims) as u64).clamp(1, MAX_BLOCKS),
            Form::RowTeam(rows) => rows.n_blocks(per_block).clamp(1, MAX_BLOCKS),
            Form::Elemental | Form::Team(_) | Form::Packs { .. } => {
                (group.n_elems.max(0) as u64).div_ceil(per_block).clamp(1, MAX_BLOCKS)
            }
        } as u32;
        let end = first + n_blocks;
        let is_alone = groups.len() == 1;
        let blocks = BlockRange { is_alone, n_blocks, block, per_block: per_block as i64 };
        if is_alone {
            write_group(e, frame, formed, results, &blocks)?;
        } else {
            let text = e.captured(|e| write_group(e, frame, formed, results, &blocks))?;
            codes.push(GroupCode { first, end, text });
        }
        first = end;
    }
    bodies::write(e, codes, results);
    Ok(first)
}

fn write_group(
    e: &mut Emitter<'_>,
    frame: FrameId,
    formed: &FormedGroup,
    results: &[Argument],
    blocks: &BlockRange,
) -> Result<(), GpuError> {
    let group = &formed.group;
    e.team = None;
    e.preloaded.clear();
    match &formed.form {
        Form::Elemental => {
            let i = e.loop_variable();
            let (start, step) = (blocks.block_number(), i64::from(blocks.n_blocks) * blocks.per_block);
            let header = format!(
                "for (idx {i} = {start} * {} + (idx)threadIdx.x; {i} < {}; {i} += {step})",
                blocks.block, group.n_elems
            );
            e.scope(ScopeKind::Loop, header, |e| {
                let stores = write_element(e, frame, group, results, i)?;
                stores.iter().for_each(|(result, at, value)| e.line(format!("r{result}[{at}] = {value};")));
                Ok(())
            })
        }
        Form::Team(team) => write_team(e, frame, group, results, blocks, *team),
        Form::RowTeam(rows) => rows.write(e, frame, group, results, blocks),
        Form::Columns(columns) => columns.write(e, frame, group, results, blocks),
        Form::Packs { n_elems, loaded } => write_packs(e, frame, group, results, blocks, (*n_elems, loaded)),
        Form::Tiles(tiles) => tiles.write(e, frame, group, results, blocks),
        Form::Product(tiles) => tiles.write(e, frame, group, results, blocks),
        Form::ScatterRows(rows) => {
            let own: Vec<(usize, &Argument)> = group.results.iter().map(|&result| (result, &results[result])).collect();
            rows.write(e, frame, &own, blocks)
        }
        Form::SortRows(rows) => {
            let own: Vec<(usize, &Argument)> = group.results.iter().map(|&result| (result, &results[result])).collect();
            rows.write(e, frame, &own, blocks)
        }
    }
}

/// The values of all results at position `i`: result, position in its memory and stored value.
fn write_element(
    e: &mut Emitter<'_>,
    frame: FrameId,
    group: &ResultGroup,
    results: &[Argument],
    i: Atom,
) -> Result<Vec<(usize, Atom, String)>, GpuError> {
    let shape = &results[group.results[0]].shape;
    let index = e.index_at(i, &shape.dims, &shape.physical_order());
    group.values_at(e, frame, results, &index)
}

fn write_team(
    e: &mut Emitter<'_>,
    frame: FrameId,
    group: &ResultGroup,
    results: &[Argument],
    blocks: &BlockRange,
    team: Team,
) -> Result<(), GpuError> {
    let base = e.loop_variable();
    let (start, step) = (blocks.block_number(), i64::from(blocks.n_blocks) * blocks.per_block);
    let n = group.n_elems;
    let header = format!("for (idx {base} = {start} * {}; {base} < {n}; {base} += {step})", blocks.per_block);
    e.team = Some(team);
    e.team_depth = e.depth() + 1;
    let result = e.scope(ScopeKind::Loop, header, |e| {
        let depth = e.depth();
        let mine = e.bind(format!("{base} + (idx){}", team.element()), depth);
        // Threads beyond the end go along, for those that wait for them.
        let i = e.bind(format!("{mine} < {n} ? {mine} : {}", n - 1), depth);
        let stores = write_element(e, frame, group, results, i)?;
        let header = format!("if ({} == 0 && {mine} < {n})", team.part());
        e.scope(ScopeKind::Branch, header, |e| {
            stores.iter().for_each(|(result, at, value)| e.line(format!("r{result}[{at}] = {value};")));
            Ok(())
        })
    });
    e.team = None;
    result
}

fn write_packs(
    e: &mut Emitter<'_>,
    frame: FrameId,
    group: &ResultGroup,
    results: &[Argument],
    blocks: &BlockRange,
    (n_elems, loaded): (i64, &[(usize, InstId)]),
) -> Result<(), GpuError> {
    let pack = e.loop_variable();
    let start = blocks.block_number();
    let (n_packs, step) = (group.n_elems / n_elems, i64::from(blocks.n_blocks) * i64::from(blocks.block));
    let header = format!(
        "for (idx {pack} = {start} * {} + (idx)threadIdx.x; {pack} < {n_packs}; {pack} += {step})",
        blocks.block
    );
    let read: Vec<(usize, &'static str)> = loaded.iter().map(|&(i, _)| (i, e.arguments[i].ctype.stored)).collect();
    let written: Vec<(usize, &'static str)> = group.results.iter().map(|&i| (i, results[i].ctype.stored)).collect();
    let pointers = read.iter().map(|(i, stored)| (format!("p{i}"), stored));
    let pointers = pointers.chain(written.iter().map(|(i, stored)| (format!("r{i}"), stored)));
    let tests: Vec<String> =
        pointers.map(|(pointer, stored)| format!("hlo::is_aligned<{stored}, {n_elems}>({pointer})")).collect();
    // A buffer that is part of another may lie anywhere.
    let is_aligned = e.constant("bool", &tests.join(" && "));
    e.scope(ScopeKind::Loop, header, |e| {
        let first = e.affine(pack, n_elems, 0);
        for (i, stored) in &read {
            e.line(format!("hlo::Pack<{stored}, {n_elems}> q{i};"));
        }
        either_way(e, &is_aligned.text, &|how| {
            read.iter().map(|(i, _)| format!("hlo::load_{how}(q{i}, p{i} + {first});")).collect()
        });
        for (i, stored) in &written {
            e.line(format!("hlo::Pack<{stored}, {n_elems}> w{i};"));
        }
        let k = e.loop_variable();
        e.scope(ScopeKind::Loop, format!("#pragma unroll\nfor (idx {k} = 0; {k} < {n_elems}; ++{k})"), |e| {
            let i = e.sum(first, k);
            let preloaded = |&(argument, _): &(usize, &str)| Preloaded {
                argument,
                linear: i,
                text: format!("q{argument}.elems[{k}]"),
            };
            e.preloaded = read.iter().map(preloaded).collect();
            let stores = write_element(e, frame, group, results, i)?;
            stores.iter().for_each(|(result, _, value)| e.line(format!("w{result}.elems[{k}] = {value};")));
            e.preloaded.clear();
            Ok(())
        })?;
        either_way(e, &is_aligned.text, &|how| {
            written.iter().map(|(i, _)| format!("hlo::store_{how}(r{i} + {first}, w{i});")).collect()
        });
        Ok(())
    })
}
