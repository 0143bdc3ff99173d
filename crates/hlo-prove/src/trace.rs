//! What a walk found, instruction by instruction: the values, by the place of the instruction in the calls.

use crate::array::Tree;
use hashbrown::HashMap;
use hlo_ir::{CompId, InstId, Module};
use std::rc::Rc;

/// An instruction where it is run: the module's number, the calls that lead to its computation, and itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Point {
    pub side: usize,
    pub path: Rc<str>,
    pub inst: InstId,
}

/// The values that a walk found last at each point, in the order in which points were met first.
#[derive(Default)]
pub(crate) struct Trace {
    path: Vec<Rc<str>>,
    pub points: Vec<(Point, Tree)>,
    ids: HashMap<Point, usize>,
    is_paused: bool,
}

impl Trace {
    /// Goes into a computation that an instruction calls.
    pub(crate) fn enter(&mut self, module: &Module, inst: InstId, comp: CompId) {
        let n = module.called(inst).len();
        let k = module.called(inst).iter().position(|&called| called == comp).unwrap_or(n);
        let name = module.inst_name(inst);
        let step = if n == 1 { name.to_string() } else { format!("{name}:{k}") };
        let path = match self.path.last() {
            Some(outer) if !outer.is_empty() => format!("{outer}/{step}"),
            Some(_) | None => step,
        };
        self.path.push(path.into());
    }

    pub(crate) fn leave(&mut self) {
        self.path.pop();
    }

    /// Stops recording if not `goes_on`; whether it was stopped before.
    pub(crate) fn pause_unless(&mut self, goes_on: bool) -> bool {
        let was_paused = self.is_paused;
        self.is_paused |= !goes_on;
        was_paused
    }

    /// Records again, unless it was stopped before.
    pub(crate) fn resume(&mut self, was_paused: bool) {
        self.is_paused = was_paused;
    }

    pub(crate) fn note(&mut self, side: usize, inst: InstId, value: &Tree) {
        if self.is_paused {
            return;
        }
        let path = self.path.last().cloned().unwrap_or_else(|| "".into());
        let point = Point { side, path, inst };
        match self.ids.get(&point) {
            Some(&k) => self.points[k].1 = value.clone(),
            None => {
                self.ids.insert(point.clone(), self.points.len());
                self.points.push((point, value.clone()));
            }
        }
    }
}
