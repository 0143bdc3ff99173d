//! Loops whose state can be extended: what passes need to know before they have a loop carry more, and the extension itself.

use crate::code::{is_annotated, pinned_by_control};
use crate::frequency::{Basis, Frequencies, TripCount};
use crate::values::{CallSites, condition_and_body, entered, tuple_elements, tuple_index};
use hlo_ir::attrs::{Attrs, Marks, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::op::CalleeEntry;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use std::collections::BTreeMap;

/// A `while` whose state is made, read and handed on element by element, and whose computations nobody else calls.
#[derive(Clone, Debug)]
pub struct CarriedLoop {
    /// The `while`.
    pub inst: InstId,
    /// Its body.
    pub body: CompId,
    /// The tuple that it begins with.
    pub init: InstId,
    /// The tuple that the body hands on.
    pub root: InstId,
    /// The parameters of body and condition.
    pub params: [InstId; 2],
}

impl CarriedLoop {
    /// The loop of a `while`; `None` where its body or condition is called from elsewhere, its state is used as a whole, or it carries
    /// annotations or control dependencies.
    pub fn find(module: &Module, users: &UserMap, sites: &CallSites, inst: InstId) -> Option<CarriedLoop> {
        let (condition, body) = condition_and_body(module, inst)?;
        let comp = module.inst(inst).parent;
        let is_read_by_element = |value: InstId| users[value].iter().all(|&u| tuple_index(module, u).is_some());
        let is_free =
            |comp: CompId, inst: InstId| !is_annotated(module, inst) && !pinned_by_control(module, comp).contains(inst);
        let init = *module.inst(inst).operands.first()?;
        let root = module.comp(body).root.expand()?;
        let params = [*module.comp(body).params.first()?, *module.comp(condition).params.first()?];
        let fits = module.comp(comp).root.expand() != Some(inst)
            && sites.of(body).len() == 1
            && sites.of(condition).len() == 1
            && [init, root].iter().all(|&t| tuple_elements(module, t).is_some())
            && users[root].is_empty()
            && [inst, params[0], params[1]].into_iter().all(is_read_by_element)
            && [inst, init].into_iter().all(|i| is_free(comp, i))
            && [root, params[0]].into_iter().all(|i| is_free(body, i))
            && is_free(condition, params[1]);
        fits.then_some(CarriedLoop { inst, body, init, root, params })
    }

    /// Which element of the state an instruction of the body reads.
    pub fn element_read(&self, module: &Module, inst: InstId) -> Option<usize> {
        tuple_index(module, inst).filter(|_| module.inst(inst).operands.first() == Some(&self.params[0]))
    }

    /// Whether the body hands an element on as it came.
    pub fn is_handed_on(&self, module: &Module, index: usize) -> bool {
        let next = tuple_elements(module, self.root).and_then(|elements| elements.get(index));
        next.is_some_and(|&value| self.element_read(module, value) == Some(index))
    }

    /// Has the loop carry more: `begin` are values before the loop. Returns the instructions of the body that read them; the caller
    /// appends to the root what is handed on, in the same order.
    pub fn append(&self, module: &mut Module, begin: &[InstId]) -> Vec<InstId> {
        let comp = module.inst(self.inst).parent;
        let mut elements = module.inst(self.init).operands.to_vec();
        let n_before = elements.len();
        elements.extend(begin);
        let shape = Shape::Tuple(elements.iter().map(|&element| module.shape(element).clone()).collect());
        let hint = module.inst_name(self.init).to_string();
        let init = Builder::new(module, comp).add(&hint, Opcode::Tuple, shape.clone(), elements, Attrs::Plain);
        module.inst_mut(self.inst).operands[0] = init;
        let shape = module.shapes.intern(shape);
        for inst in [self.inst, self.root, self.params[0], self.params[1]] {
            module.inst_mut(inst).shape = shape;
        }
        let mut reads = Vec::with_capacity(begin.len());
        for (place, &value) in begin.iter().enumerate() {
            let (hint, shape) = (module.inst_name(value).to_string(), module.shape(value).clone());
            let attrs = TupleIndexAttrs { index: (n_before + place) as i64 };
            let mut builder = Builder::new(module, self.body);
            reads.push(builder.add(&hint, Opcode::GetTupleElement, shape, [self.params[0]], attrs));
        }
        reads
    }
}

/// Copies of instructions of a loop's body, with other values in the place of the state's elements.
#[derive(Debug)]
pub struct Copies<'c> {
    carried: &'c CarriedLoop,
    comp: CompId,
    state: &'c [InstId],
    suffix: &'static str,
    of: BTreeMap<InstId, InstId>,
}

impl<'c> Copies<'c> {
    /// Copies that stand in `comp`, where `state` has the elements of the state; their names end with `suffix`.
    pub fn new(carried: &'c CarriedLoop, comp: CompId, state: &'c [InstId], suffix: &'static str) -> Copies<'c> {
        Copies { carried, comp, state, suffix, of: BTreeMap::new() }
    }

    /// The copy of an instruction and of all that it follows from; `edit` is called with the attributes of each copy.
    pub fn copy(&mut self, module: &mut Module, value: InstId, mut edit: impl FnMut(&mut Attrs)) -> InstId {
        let mut work = vec![value];
        while let Some(&inst) = work.last() {
            if self.of.contains_key(&inst) {
                work.pop();
                continue;
            }
            if let Some(index) = self.carried.element_read(module, inst) {
                self.of.insert(inst, self.state[index]);
                continue;
            }
            let instruction = module.inst(inst).clone();
            let missing: Vec<InstId> =
                instruction.operands.iter().copied().filter(|operand| !self.of.contains_key(operand)).collect();
            if !missing.is_empty() {
                work.extend(missing);
                continue;
            }
            let operands: Vec<InstId> = instruction.operands.iter().map(|operand| self.of[operand]).collect();
            let (hint, shape) = (format!("{}{}", module.inst_name(inst), self.suffix), module.shape(inst).clone());
            let mut attrs = instruction.attrs;
            edit(&mut attrs);
            let new = Builder::new(module, self.comp).add(&hint, instruction.opcode, shape, operands, attrs);
            if let Some(marks) = module.inst(inst).marks.as_deref().cloned() {
                // Shardings and orders are of the loop's own instructions.
                let (sharding, control_predecessors) = (None, Vec::new());
                *module.marks_mut(new) = Marks { sharding, control_predecessors, ..marks };
            }
            self.of.insert(inst, new);
        }
        self.of[&value]
    }
}

/// Whether all devices run the computation, and equally often: the entry, what calls there enter, and loops that run as often as the
/// module says. Other loops may end on one device before they do on another.
pub fn is_run_by_all(module: &Module, sites: &CallSites, frequencies: &Frequencies, comp: CompId) -> bool {
    let mut comp = comp;
    while module.entry() != Some(comp) {
        let [site] = sites.of(comp) else { return false };
        let is_known = |trips: TripCount| matches!(trips.basis, Basis::Stated | Basis::Derived);
        let is_equal = match entered(module, site.inst) {
            Some((CalleeEntry::Call, _)) => true,
            Some((CalleeEntry::Loop, _)) => frequencies.trip_count(site.inst).is_some_and(is_known),
            Some((CalleeEntry::Branches, _)) | None => false,
        };
        if !is_equal {
            return false;
        }
        comp = module.inst(site.inst).parent;
    }
    true
}
