//! Convert what a loop does not change to a narrower type once, before the loop.
//!
//! Before, each iteration converts its layer's weights:
//! ```text
//! %w = f32[12,64,64] get-tuple-element(%carried), index=1
//! %slice = f32[1,64,64] dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={1,64,64}
//! %narrow = bf16[1,64,64] convert(%slice)
//! ```
//! after, the loop carries the converted weights:
//! ```text
//! %w = bf16[12,64,64] get-tuple-element(%carried), index=1
//! %slice = bf16[1,64,64] dynamic-slice(%w, %i, %zero, %zero), dynamic_slice_sizes={1,64,64}
//! ```
//! The sample `ir-samples/passes/hoist-conversions/layers.hlo` runs this.
//!
//! **Why.** The loops of a model whose layers stand in a scan convert the same weights in the forward and in the backward pass, or in each
//! microbatch. Converted before the loops, weights that are kept in shards are gathered in the narrow type: half the bytes.
//!
//! **What it does not do.** It leaves arrays that something takes in the wide type, in the loop or after it, arrays that
//! leave a loop by the entry's result, and conversions that widen. It moves no other arithmetic: `hoist-invariants` does, of what
//! depends on nothing that changes, where a slice of the iteration's layer does.
//!
//! **Algorithm.** From each value that a loop carries and does not change, the web of what moves its elements about: slices,
//! reshapes, transposes, broadcasts, copies, and loops and calls inside. If every use of the web is a conversion to the same
//! narrower type, the web gets that type, and its conversions vanish. Outer loops come first, so one conversion serves all
//! loops inside. It pays where the iterations convert at least as many elements as the array has. Linear in the uses of
//! what loops carry, times their depth.
//!
//! **Requires** nothing. **Ensures** the same results: a conversion is the same function of each element wherever it
//! stands. **Errors**: none on a verified module.

use hashbrown::HashMap;
use hlo_analysis::Preserved;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::values::{Origin, SharedCallees, Through, User, ValueId, Values, tuple_elements};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode, Shape};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use indexmap::{IndexMap, IndexSet};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "hoist-conversions",
    help: "convert what a loop does not change to a narrower type once, before the loop",
    options: &[],
    build: |_| Ok(Box::new(HoistConversions)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoistConversions;

/// Values that get a narrower type together.
struct Web {
    /// The loop that carries the first of them.
    site: InstId,
    /// Which leaf of what it carries.
    leaf_idx: usize,
    narrow: DType,
    values: IndexSet<ValueId>,
    /// The conversions that vanish.
    conversions: Vec<InstId>,
}

/// Why an array stays as it is.
enum Obstacle {
    /// No conversion takes it: nothing to say.
    NotConverted,
    Wide(InstId),
    Leaves,
    TwoTypes(DType, DType),
    OtherLayout(InstId),
    Mixed,
    Seldom,
    Nested,
}

impl Obstacle {
    fn reason(&self, module: &Module) -> Option<String> {
        Some(match self {
            Obstacle::NotConverted => return None,
            Obstacle::Wide(user) => format!("`{}` takes it in the wide type", module.inst_name(*user)),
            Obstacle::Leaves => "it is a result of the module".into(),
            Obstacle::TwoTypes(one, other) => format!("it is converted to {one} and to {other}"),
            Obstacle::OtherLayout(user) => format!("`{}` changes its layout too", module.inst_name(*user)),
            Obstacle::Mixed => "what is converted comes from other arrays too".into(),
            Obstacle::Seldom => "the iterations convert fewer elements than the array has".into(),
            Obstacle::Nested => "it stands in a tuple inside of what the loop carries".into(),
        })
    }
}

impl Pass for HoistConversions {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let values = cx.analyses.values(module, Through::MARKERS, SharedCallees::Opaque);
        let frequencies = cx.analyses.frequencies(module);
        let finder = Finder { module, values: &values, frequencies: &frequencies };
        let (mut webs, mut known): (Vec<Web>, IndexSet<ValueId>) = (Vec::new(), IndexSet::new());
        for (start, value) in values.values.iter() {
            if value.origin != Origin::Carry || known.contains(&start) {
                continue;
            }
            match finder.web(start) {
                Ok(web) => {
                    let reason = format!(
                        "converted to {} once, before the loop, in place of {} in its iterations",
                        web.narrow,
                        count(web.conversions.len(), "conversion"),
                    );
                    cx.report.decisions.push(finder.decision(start, "hoisted", reason));
                    known.extend(web.values.iter().copied());
                    webs.push(web);
                }
                Err(obstacle) => {
                    let reason = obstacle.reason(module);
                    cx.report.decisions.extend(reason.map(|reason| finder.decision(start, "left", reason)));
                }
            }
        }
        cx.report.count("arrays-converted", webs.len() as u64);
        cx.report.count("conversions-removed", webs.iter().map(|web| web.conversions.len() as u64).sum());
        if webs.is_empty() {
            cx.report.unchanged_because = Some("no loop converts what it does not change to a narrower type".into());
            return Ok(Changed::No);
        }
        let rewritten = rewrite(module, &values, &webs);
        rewritten
            .map_err(|inst| PassError::about("cycle", Entity::Inst(inst), "the instruction needs its own result"))?;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

struct Finder<'m> {
    module: &'m Module,
    values: &'m Values,
    frequencies: &'m Frequencies,
}

impl Finder<'_> {
    fn decision(&self, start: ValueId, action: &str, reason: String) -> Decision {
        let array = self.values.shape(self.module, start).map_or(String::new(), |array| {
            let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
            format!("{}[{}]: ", array.dtype, dims.join(","))
        });
        let told = Decision::about(self.module, self.values.inst(start), action, format!("{array}{reason}"));
        Decision { bytes: self.values.shape(self.module, start).map_or(0, |array| array.size_bytes()), ..told }
    }

    /// The web of a value that a loop carries and does not change.
    fn web(&self, start: ValueId) -> Result<Web, Obstacle> {
        let (module, values) = (self.module, self.values);
        let mut others = values.sources[start].iter().filter(|&&source| source != start);
        let (Some(&init), None) = (others.next(), others.next()) else { return Err(Obstacle::NotConverted) };
        let Some(wide) = values.shape(module, start) else { return Err(Obstacle::NotConverted) };
        let mut web: IndexSet<ValueId> = IndexSet::from([start]);
        let mut narrow: Option<DType> = None;
        let (mut conversions, mut obstacle) = (Vec::new(), None);
        let mut next = 0;
        while let Some(&value) = web.get_index(next) {
            next += 1;
            for taken in &values.uses[value] {
                match taken.user {
                    User::Op { inst, .. } if self.narrowed(inst, wide.dtype).is_some() => {
                        let to = module.shape(inst).as_array().map_or(wide.dtype, |array| array.dtype);
                        match narrow.replace(to).filter(|known| *known != to) {
                            Some(other) => obstacle = obstacle.or(Some(Obstacle::TwoTypes(other, to))),
                            None if !self.keeps_layout(inst) => {
                                obstacle = obstacle.or(Some(Obstacle::OtherLayout(inst)))
                            }
                            None => conversions.push(inst),
                        }
                    }
                    User::Op { inst, operand: 0 } if moves_elements(module, inst) => match values.of(inst) {
                        Some(result) => {
                            web.insert(result);
                        }
                        None => obstacle = obstacle.or(Some(Obstacle::Wide(inst))),
                    },
                    User::Becomes(into) => {
                        web.insert(into);
                    }
                    User::Op { inst, .. } | User::Opaque(inst) => obstacle = obstacle.or(Some(Obstacle::Wide(inst))),
                    User::Exit(_) => obstacle = obstacle.or(Some(Obstacle::Leaves)),
                }
            }
        }
        let Some(narrow) = narrow else { return Err(Obstacle::NotConverted) };
        let is_mixed =
            web.contains(&init) || web.iter().skip(1).any(|v| values.sources[*v].iter().any(|s| !web.contains(s)));
        let obstacle = obstacle.or(is_mixed.then_some(Obstacle::Mixed));
        if let Some(obstacle) = obstacle {
            return Err(obstacle);
        }
        let (site, leaf_idx) = self.loop_of(start).ok_or(Obstacle::Nested)?;
        let elements = |inst: InstId| module.shape(inst).as_array().map_or(0, ArrayShape::n_elems) as f64;
        let converted: f64 = conversions.iter().map(|&c| self.frequencies.of_inst(module, c) * elements(c)).sum();
        if converted < self.frequencies.of_inst(module, site) * wide.n_elems() as f64 {
            return Err(Obstacle::Seldom);
        }
        Ok(Web { site, leaf_idx, narrow, values: web, conversions })
    }

    /// The type that `inst` gives, if it converts arrays of type `wide` to a narrower one.
    fn narrowed(&self, inst: InstId, wide: DType) -> Option<DType> {
        let to = self.module.shape(inst).as_array()?.dtype;
        let is_narrower = to.bits() < wide.bits();
        (self.module.inst(inst).opcode == Opcode::Convert && is_narrower).then_some(to)
    }

    /// Whether a conversion changes nothing but the type.
    fn keeps_layout(&self, inst: InstId) -> bool {
        let module = self.module;
        let operand = module.inst(inst).operands.first().and_then(|&operand| module.shape(operand).as_array());
        let (Some(operand), Some(result)) = (operand, module.shape(inst).as_array()) else { return false };
        narrowed(operand, result.dtype) == *result
    }

    /// The loop that carries a value, and the leaf; `None` if the leaf is no element of what it carries.
    fn loop_of(&self, start: ValueId) -> Option<(InstId, usize)> {
        let is_loop = |site: &&(InstId, u32)| self.module.inst(site.0).opcode == Opcode::While;
        let &(site, leaf_idx) = self.values.values[start].sites.iter().find(is_loop)?;
        let elements = self.module.shape(site).as_tuple()?;
        let are_arrays = elements.iter().all(|element| element.n_leaves() == 1);
        are_arrays.then_some((site, leaf_idx as usize))
    }
}

/// Whether each element of an op's result is an element of its first operand, of whatever type.
fn moves_elements(module: &Module, inst: InstId) -> bool {
    let opcode = module.inst(inst).opcode;
    let operand = module.inst(inst).operands.first().and_then(|&operand| module.shape(operand).as_array());
    let is_same_type = operand.map(|array| array.dtype) == module.shape(inst).as_array().map(|array| array.dtype);
    let rule = opcode.row().factors;
    let moves =
        matches!(rule, FactorRule::Slice | FactorRule::DynamicSlice | FactorRule::Reverse | FactorRule::Broadcast);
    is_same_type && (opcode == Opcode::Copy || moves || rule.relabelling().is_some())
}

/// The array in another type.
fn narrowed(array: &ArrayShape, dtype: DType) -> ArrayShape {
    ArrayShape { dtype, ..array.clone() }
}

/// Gives the webs their types. An instruction on a cycle is an error.
fn rewrite(module: &mut Module, values: &Values, webs: &[Web]) -> Result<(), InstId> {
    let types: HashMap<ValueId, DType> =
        webs.iter().flat_map(|web| web.values.iter().map(|&value| (value, web.narrow))).collect();
    let mut changed: IndexSet<CompId> = IndexSet::new();
    for &comp in &values.comps {
        for inst in module.comp(comp).insts.clone() {
            let leaves = values.leaves(inst).iter().map(|leaf| leaf.expand().and_then(|v| types.get(&v).copied()));
            let leaves: Vec<Option<DType>> = leaves.collect();
            if leaves.iter().any(Option::is_some) {
                changed.insert(comp);
                let shape = with_types(module.shape(inst), &mut leaves.into_iter());
                module.inst_mut(inst).shape = module.shapes.intern(shape);
            }
        }
    }
    for &conversion in webs.iter().flat_map(|web| &web.conversions) {
        if let Some(&operand) = module.inst(conversion).operands.first() {
            module.replace_all_uses(conversion, operand);
        }
    }
    let mut converted = HashMap::new();
    for (site, types) in narrowed_leaves(webs) {
        let comp = module.inst(site).parent;
        convert_initial_values(module, site, &types, &mut converted);
        changed.insert(comp);
    }
    for comp in changed {
        module.restore_order(comp)?;
        // Dead code may read what has another type now.
        module.remove_dead(comp);
    }
    Ok(())
}

/// By loop the leaves that it carries in a narrower type.
fn narrowed_leaves(webs: &[Web]) -> IndexMap<InstId, HashMap<usize, DType>> {
    let mut found: IndexMap<InstId, HashMap<usize, DType>> = IndexMap::new();
    for web in webs {
        found.entry(web.site).or_default().insert(web.leaf_idx, web.narrow);
    }
    found
}

/// The shape with other types where they are given, leaf by leaf.
fn with_types(shape: &Shape, types: &mut impl Iterator<Item = Option<DType>>) -> Shape {
    match shape {
        Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(|element| with_types(element, types)).collect()),
        Shape::Array(array) => match types.next().flatten() {
            Some(dtype) => Shape::Array(narrowed(array, dtype)),
            None => shape.clone(),
        },
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            types.next();
            shape.clone()
        }
    }
}

/// Converts initial values of a loop; what the loop carries is a tuple of arrays. `converted` has what was converted for other loops.
fn convert_initial_values(
    module: &mut Module,
    site: InstId,
    types: &HashMap<usize, DType>,
    converted: &mut HashMap<(InstId, DType), InstId>,
) {
    let comp = module.inst(site).parent;
    let Some(&tuple) = module.inst(site).operands.first() else { return };
    let shapes: Vec<Shape> = module.shape(tuple).as_tuple().map(<[Shape]>::to_vec).unwrap_or_default();
    let known = tuple_elements(module, tuple).map(<[InstId]>::to_vec);
    let mut elements = Vec::with_capacity(shapes.len());
    for (index, shape) in shapes.iter().enumerate() {
        let element = known.as_ref().and_then(|known| known.get(index).copied()).unwrap_or_else(|| {
            let hint = format!("{}.{index}", module.inst_name(tuple));
            let attrs = TupleIndexAttrs { index: index as i64 };
            Builder::new(module, comp).add(&hint, Opcode::GetTupleElement, shape.clone(), [tuple], attrs)
        });
        elements.push(match (types.get(&index), shape.as_array()) {
            (Some(&dtype), Some(array)) => *converted.entry((element, dtype)).or_insert_with(|| {
                let hint = format!("{}.converted", module.inst_name(element));
                let shape = Shape::Array(narrowed(array, dtype));
                Builder::new(module, comp).add(&hint, Opcode::Convert, shape, [element], Attrs::Plain)
            }),
            (_, _) => element,
        });
    }
    let shape = Shape::Tuple(elements.iter().map(|&element| module.shape(element).clone()).collect());
    let hint = module.inst_name(tuple).to_string();
    let tuple = Builder::new(module, comp).add(&hint, Opcode::Tuple, shape, elements, Attrs::Plain);
    module.inst_mut(site).operands[0] = tuple;
}
