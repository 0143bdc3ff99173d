//! Peak memory of one device: what lives when, over the program's order.
//!
//! The order of instructions in each computation is taken as the schedule, whether the module says `is_scheduled` or not.
//! The rules are those of a buffer assignment without fragmentation:
//!
//! - Parameters of the entry live to its end. A result that is aliased with a parameter, or paired with a donated one of
//!   the same shape, goes into the parameter's memory once that was read for the last time; computed before, it needs memory until the end.
//! - Tuples, their elements, bitcasts, transposes and reshapes that move nothing, parameters of called computations and their results are the memory of
//!   what they stand for.
//! - A loop's carried leaf is one buffer from before the loop to its last use. The initial value moves in if it dies there
//!   and is copied otherwise; a leaf that the body hands through is the initial value itself.
//! - A dying value gives its memory to a result of the same size in these ops: elementwise ops, copies and sorts; fusions
//!   that read it only at the place they write; dynamic-update-slice and scatter, where it is the target.
//! - Of a conditional's branches the one that needs most counts; it owns what dies with it.
//! - What lies in the memory of the host ([`hlo_ir::memory_space`]) takes none of the device's.
//! - Inside of a fusion, a reducer, a custom call or what an asynchronous instruction calls nothing counts.
//! - Constants live all the time, counted once for each computation.
//!
//! Of what a backend would still do to a module that is not scheduled yet, four things are foreseen: it is fused ([`crate::fusion`]), copies that keep the
//! layout are dropped, broadcasts and iotas are made anew by each user, and what carries need is copied. A module that is scheduled, or has fusions, is
//! fused as it is. Scratch memory of library calls, alignment and the pointers of tuples are not counted, and a rotation of carried leaves needs no
//! memory here; nor is what XLA gathers and sums an iteration earlier or later in loops.
//!
//! Cost: each computation is walked once for each way it is called, at most ten; before that a copy of the module is fused.

mod buffer_table;
mod curve;
mod foresee;
mod in_place;
mod schedule_walk;
mod updates;

pub use curve::MemoryPoint;
pub use updates::InPlaceUpdates;
pub(crate) use updates::{behind_views, updated_operands};

use buffer_table::{Action, BufferSource, BufferTable, END, control, device_bytes};
use cranelift_entity::SecondaryMap;
use foresee::Foreseen;
use hashbrown::HashMap;
use hlo_ir::memory_space::leaves_on_host;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Shape};
use schedule_walk::{ContextId, Peak, PeakFinder, ResultMode, ResultSlot, WalkContext};
use std::collections::VecDeque;
use std::rc::Rc;

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BufferKind {
    /// A leaf of the entry's parameters.
    Argument,
    /// Becomes a leaf of the result.
    Output,
    /// Neither.
    Temporary,
    /// A constant.
    Constant,
}

impl BufferKind {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Argument => "argument",
            BufferKind::Output => "output",
            BufferKind::Temporary => "temporary",
            BufferKind::Constant => "constant",
        }
    }
}

/// A buffer that lives at the peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBuffer {
    /// The instruction whose value is in it, or the first of them.
    pub inst: InstId,
    /// Which leaf of its value.
    pub leaf_idx: u32,
    /// Size.
    pub bytes: u64,
    /// What it is for.
    pub kind: BufferKind,
}

/// How much of what is in the memory of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemorySizes {
    /// The most that lives at one time: arguments, constants, outputs and temporaries.
    pub peak_bytes: u64,
    /// The parameters.
    pub argument_bytes: u64,
    /// The result's leaves.
    pub output_bytes: u64,
    /// The part of the result that lies in parameters' memory.
    pub alias_bytes: u64,
    /// Constants outside fusions.
    pub constant_bytes: u64,
    /// What the peak takes beyond arguments, outputs (each counted once) and constants.
    pub temp_bytes: u64,
    /// Parameters in the memory of the host; no other figure counts them.
    pub host_bytes: u64,
}

/// The memory of one device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// How much there is.
    pub sizes: MemorySizes,
    /// Where the peak is: an instruction of the computation, then one in what it calls there, and so on.
    pub peak_at: Vec<InstId>,
    /// What lives at the peak, the largest first; its sizes add up to the peak.
    pub live_at_peak: Vec<LiveBuffer>,
}

/// The peak memory of the entry; nothing for a module without one.
pub fn peak_memory(module: &Module) -> MemoryReport {
    module.entry().map_or_else(MemoryReport::default, |entry| peak_memory_of(module, entry))
}

/// [`peak_memory`] of a module that is run as it is written: no fusions are foreseen.
pub fn peak_memory_as_written(module: &Module) -> MemoryReport {
    module.entry().map_or_else(MemoryReport::default, |entry| measured(module, entry, None))
}

/// The sizes of [`peak_memory`] without what lives at the peak.
pub fn memory_sizes(module: &Module) -> MemorySizes {
    let Some(entry) = module.entry() else { return MemorySizes::default() };
    let foreseen = Foreseen::of(module);
    let module = foreseen.as_ref().map_or(module, |foreseen| &foreseen.module);
    Measuring::begin(module, entry).map_or_else(MemorySizes::default, |mut m| m.sizes())
}

/// The peak memory of the entry, and the memory at every moment of its run, of which the largest is the peak.
pub fn memory_curve(module: &Module) -> (MemoryReport, Vec<MemoryPoint>) {
    let Some(entry) = module.entry() else { return Default::default() };
    let mut points = Vec::new();
    let report = foreseen(module, entry, Some(&mut points));
    (report, points)
}

/// The peak memory of one computation, as if it were the entry. Aliases and donations count for the entry only.
pub fn peak_memory_of(module: &Module, comp: CompId) -> MemoryReport {
    foreseen(module, comp, None)
}

/// The peak memory of a computation that is fused if it is not yet; `points` gets its curve.
fn foreseen(module: &Module, comp: CompId, mut points: Option<&mut Vec<MemoryPoint>>) -> MemoryReport {
    let Some(foreseen) = Foreseen::of(module) else { return measured(module, comp, points) };
    let mut report = measured(&foreseen.module, comp, points.as_deref_mut());
    foreseen.name_in_source(&mut report, points);
    report
}

/// The peak memory of a computation as it is written; `points` gets its curve.
fn measured(module: &Module, comp: CompId, points: Option<&mut Vec<MemoryPoint>>) -> MemoryReport {
    let Some(mut measuring) = Measuring::begin(module, comp) else { return MemoryReport::default() };
    let mut report = MemoryReport { sizes: measuring.sizes(), ..MemoryReport::default() };
    let Measuring { order, table, finder, granted, sizes } = &mut measuring;
    if let Some(granted) = *granted {
        (report.peak_at, report.live_at_peak) = path_to_peak(module, finder, granted);
        if let Some(points) = points {
            *points = curve::curve(module, finder, granted, sizes.argument_bytes.saturating_add(sizes.constant_bytes));
        }
    }
    add_given(module, order, table, &mut report.live_at_peak);
    report
        .live_at_peak
        .sort_by_key(|buffer| (std::cmp::Reverse(buffer.bytes), buffer.kind, buffer.inst, buffer.leaf_idx));
    report
}

/// What is known before the schedule of a computation is walked.
struct Measuring<'m> {
    /// The computation and those below it.
    order: Vec<CompId>,
    table: Rc<BufferTable>,
    finder: PeakFinder<'m>,
    /// How the computation is run.
    granted: Option<ContextId>,
    /// All but the peak.
    sizes: MemorySizes,
}

impl<'m> Measuring<'m> {
    fn begin(module: &'m Module, comp: CompId) -> Option<Measuring<'m>> {
        let order: Vec<CompId> = control_order(module, comp);
        let (tables, constant_bytes) = build_tables(module, &order);
        let table = tables.get(&comp)?.clone();
        let modes = modes_of(module, &order);
        let mut finder = PeakFinder::new(module, tables, &modes);
        let bytes_of = |leaf: &buffer_table::BufId| table.buffers[*leaf].bytes;
        let aliases = if module.entry() == Some(comp) { pair_aliases(module, comp, &table) } else { HashMap::new() };
        let slots = (0..table.root.len() as u32)
            .map(|leaf| aliases.get(&leaf).map_or(ResultSlot::Pays, |&p| ResultSlot::After(p)));
        let context = WalkContext {
            comp,
            mode: ResultMode::Owns,
            owned: vec![false; table.params.len()].into(),
            slots: slots.collect(),
        };
        let argument_bytes = table.params.iter().map(bytes_of).fold(0, u64::saturating_add);
        let output_bytes = table.root.iter().map(bytes_of).fold(0, u64::saturating_add);
        let aliased = table.root.iter().enumerate().filter(|(leaf, _)| aliases.contains_key(&(*leaf as u32)));
        let alias_bytes = aliased.map(|(_, buffer)| bytes_of(buffer)).fold(0, u64::saturating_add);
        let host_bytes = host_bytes(module, comp);
        let sizes = MemorySizes {
            argument_bytes,
            output_bytes,
            alias_bytes,
            constant_bytes,
            host_bytes,
            ..MemorySizes::default()
        };
        let granted = finder.grant(context, 0);
        Some(Measuring { order, table, finder, granted, sizes })
    }

    /// The sizes, with the peak.
    fn sizes(&mut self) -> MemorySizes {
        let peak = self.granted.map(|granted| self.finder.peak(granted, 0).bytes);
        let beyond = u64::try_from(peak.unwrap_or(0)).unwrap_or(0);
        let given_bytes = self.sizes.argument_bytes.saturating_add(self.sizes.constant_bytes);
        MemorySizes {
            peak_bytes: given_bytes.saturating_add(beyond),
            temp_bytes: beyond.saturating_sub(self.sizes.output_bytes - self.sizes.alias_bytes),
            ..self.sizes
        }
    }
}

/// The bytes of the parameters that lie in the memory of the host.
fn host_bytes(module: &Module, comp: CompId) -> u64 {
    let mut sum = 0u64;
    for &param in &module.comp(comp).params {
        let mut is_on_host = leaves_on_host(module, param).into_iter();
        module.shape(param).for_each_leaf(&mut |_, leaf| {
            if is_on_host.next() == Some(true) {
                sum = sum.saturating_add(leaf.memory_bytes());
            }
        });
    }
    sum
}

/// `comp` and the computations that run on operands of their own below it, callees before callers.
fn control_order(module: &Module, comp: CompId) -> Vec<CompId> {
    let mut wanted: SecondaryMap<CompId, bool> = SecondaryMap::new();
    wanted[comp] = true;
    let mut order = module.callees_first(&[comp]);
    // Callers first, so that what a wanted computation calls is wanted when its turn comes.
    order.reverse();
    for &caller in &order {
        if wanted[caller] {
            for &inst in &module.comp(caller).insts {
                for (callee, _) in callees(module, inst) {
                    wanted[callee] = true;
                }
            }
        }
    }
    order.reverse();
    order.retain(|&c| wanted[c]);
    order
}

/// The computations that an instruction runs on its operands, and how.
fn callees(module: &Module, inst: InstId) -> Vec<(CompId, ResultMode)> {
    match control(module, inst) {
        Some(Action::Call(callee)) => vec![(callee, ResultMode::Shares)],
        Some(Action::While { condition, body }) => vec![(condition, ResultMode::Shares), (body, ResultMode::Carries)],
        Some(Action::Conditional(branches)) => branches.into_iter().map(|branch| (branch, ResultMode::Owns)).collect(),
        Some(Action::Op) | None => Vec::new(),
    }
}

fn modes_of(module: &Module, order: &[CompId]) -> Vec<(CompId, Vec<ResultMode>)> {
    let mut modes: SecondaryMap<CompId, Vec<ResultMode>> = SecondaryMap::new();
    for &comp in order {
        for (callee, mode) in module.comp(comp).insts.iter().flat_map(|&inst| callees(module, inst)) {
            if !modes[callee].contains(&mode) {
                modes[callee].push(mode);
            }
        }
    }
    order.iter().map(|&comp| (comp, modes[comp].clone())).collect()
}

/// The tables of `order`, callees before callers, and the bytes of their constants.
fn build_tables(module: &Module, order: &[CompId]) -> (HashMap<CompId, Rc<BufferTable>>, u64) {
    let mut tables = HashMap::new();
    let mut results: SecondaryMap<CompId, Rc<[buffer_table::ResultLeaf]>> = SecondaryMap::with_default(Rc::from([]));
    let mut constant_bytes = 0u64;
    for &comp in order {
        let table = BufferTable::build(module, comp, &results);
        results[comp] = table.result.clone();
        constant_bytes = constant_bytes.saturating_add(table.constant_bytes);
        tables.insert(comp, Rc::new(table));
    }
    (tables, constant_bytes)
}

/// For each leaf of the entry's result that has one, the leaf of the parameters in whose memory it goes: by
/// `input_output_alias`, then donated parameters in order, each with the first result of its type that has none: layouts are the
/// compiler's to choose.
fn pair_aliases(module: &Module, entry: CompId, table: &BufferTable) -> HashMap<u32, u32> {
    let computation = module.comp(entry);
    let mut first_leaf = Vec::with_capacity(computation.params.len());
    let mut n_leaves = 0u32;
    for &param in &computation.params {
        first_leaf.push(n_leaves);
        n_leaves += module.shape(param).n_leaves() as u32;
    }
    let param_leaf = |param: i64, index: &[i64]| {
        let param = usize::try_from(param).ok()?;
        let leaf = leaf_at(module, *computation.params.get(param)?, index)?;
        Some(first_leaf[param] + leaf)
    };
    let mut aliases: HashMap<u32, u32> = HashMap::new();
    let mut taken = vec![false; table.params.len()];
    let bytes =
        |leaf: u32, of: &[buffer_table::BufId]| of.get(leaf as usize).map(|&buffer| table.buffers[buffer].bytes);
    for alias in &module.header.input_output_alias {
        let output = computation.root.expand().and_then(|root| leaf_at(module, root, &alias.output_index));
        if let (Some(output), Some(param)) = (output, param_leaf(alias.param, &alias.param_index))
            && bytes(output, &table.root) == bytes(param, &table.params)
            && !taken[param as usize]
        {
            taken[param as usize] = true;
            aliases.insert(output, param);
        }
    }
    // Results without an alias, by type, in order.
    let mut waiting: HashMap<Shape, VecDeque<u32>> = HashMap::new();
    let mut output = 0;
    if let Some(root) = computation.root.expand() {
        for_each_leaf(module.shape(root), &mut |leaf| {
            if !aliases.contains_key(&output) {
                waiting.entry(leaf.without_layout()).or_default().push_back(output);
            }
            output += 1;
        });
    }
    for donor in &module.header.buffer_donor {
        let Some(param) = param_leaf(donor.param, &donor.param_index) else { continue };
        let shape = usize::try_from(donor.param).ok().and_then(|p| computation.params.get(p));
        let Some(leaf) = shape.and_then(|&p| module.shape(p).at(&donor.param_index)) else { continue };
        if !taken[param as usize]
            && let Some(output) = waiting.get_mut(&leaf.without_layout()).and_then(VecDeque::pop_front)
            && bytes(output, &table.root) == bytes(param, &table.params)
        {
            taken[param as usize] = true;
            aliases.insert(output, param);
        }
    }
    aliases
}

/// The number of an instruction's leaf at a tuple index; `None` if there is no leaf.
fn leaf_at(module: &Module, inst: InstId, index: &[i64]) -> Option<u32> {
    module.shapes.leaf_number(module.inst(inst).shape, index).map(|leaf| leaf as u32)
}

fn for_each_leaf<'s>(shape: &'s Shape, visit: &mut dyn FnMut(&'s Shape)) {
    match shape {
        Shape::Tuple(elements) => elements.iter().for_each(|element| for_each_leaf(element, visit)),
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => visit(shape),
    }
}

/// The instructions that lead to the peak, and the buffers held by the computations along the way.
fn path_to_peak(module: &Module, finder: &mut PeakFinder<'_>, start: ContextId) -> (Vec<InstId>, Vec<LiveBuffer>) {
    let (mut at, mut live) = (Vec::new(), Vec::new());
    let (mut context, mut depth) = (Some(start), 0);
    // For each leaf of the result of the computation at hand, whether it becomes a leaf of the entry's.
    let mut is_output: Option<Vec<bool>> = None;
    while let Some(id) = context {
        let (Peak { position, within, .. }, held) = finder.held_at_peak(id, depth);
        let comp = finder.computation(id);
        let computation = module.comp(comp);
        let inst = match position {
            Some(END) => computation.root.expand(),
            Some(position) => computation.insts.get(position as usize).copied(),
            None => None,
        };
        at.extend(inst);
        let becomes_output = |result_leaf: Option<u32>| match (&is_output, result_leaf) {
            (None, Some(_)) => true,
            (Some(flags), Some(leaf)) => flags.get(leaf as usize) == Some(&true),
            (_, None) => false,
        };
        live.extend(held.iter().filter(|buffer| buffer.bytes > 0).map(|buffer| LiveBuffer {
            inst: buffer.inst,
            leaf_idx: buffer.leaf,
            bytes: buffer.bytes,
            kind: if becomes_output(buffer.result_leaf) { BufferKind::Output } else { BufferKind::Temporary },
        }));
        let results = inst.zip(finder.tables.get(&comp)).map(|(inst, table)| {
            let is_loop = matches!(control(module, inst), Some(Action::While { .. }));
            let leaves = table.leaves(inst).iter();
            leaves.map(|&leaf| !is_loop && becomes_output(table.buffers[leaf].result_leaf)).collect()
        });
        is_output = Some(results.unwrap_or_default());
        context = within;
        depth += 1;
    }
    (at, live)
}

/// Adds what lives all the time: the parameters and the constants.
fn add_given(module: &Module, order: &[CompId], table: &BufferTable, live: &mut Vec<LiveBuffer>) {
    let params = table.params.iter().map(|&buffer| &table.buffers[buffer]);
    live.extend(params.filter(|param| param.bytes > 0).map(|param| LiveBuffer {
        inst: param.inst,
        leaf_idx: param.leaf,
        bytes: param.bytes,
        kind: BufferKind::Argument,
    }));
    debug_assert!(table.params.iter().all(|&p| matches!(table.buffers[p].source, BufferSource::Param(_))));
    for &inst in order.iter().flat_map(|&comp| &module.comp(comp).insts) {
        if module.inst(inst).opcode.row().flow == Flow::Constant {
            let leaves = (0u32..).zip(device_bytes(module, inst)).filter(|&(_, bytes)| bytes > 0);
            let constant = |(leaf_idx, bytes)| LiveBuffer { inst, leaf_idx, bytes, kind: BufferKind::Constant };
            live.extend(leaves.map(constant));
        }
    }
}
