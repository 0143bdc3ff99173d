//! Where the values of an argmax or argmin come from, while several threads take turns with the elements.
//!
//! The reducer keeps the first NaN, and the first or the last of -0 and 0. A thread sees its own elements in order; those of
//! other threads lie between them. So each accumulator carries the position of the element whose value it holds, -1 for the
//! initial value, and two accumulators are combined in the order of their positions.
// circle: a reduction keeps places beside its accumulators, which its combiner joins

use hlo_ir::arg_extremum::ArgExtremum;

use super::emitter::{Atom, Emitter, Value};
use super::reduction::Combiner;
use crate::GpuError;

/// The position of an accumulator's value.
pub(super) struct Places {
    extremum: ArgExtremum,
    place: Value,
}

impl Places {
    /// That of an initial value.
    pub(super) fn new(e: &mut Emitter<'_>, extremum: ArgExtremum) -> Places {
        Places { extremum, place: e.variable("idx", "-1") }
    }

    /// As an accumulator, with its C++ type.
    pub(super) fn held(&self) -> (Value, &'static str) {
        (self.place.clone(), "idx")
    }

    /// Before the element at position `k`, which is behind all earlier ones, is combined with the accumulators.
    pub(super) fn advance(&self, e: &mut Emitter<'_>, accumulators: &[Value], values: &[Value], k: Atom) {
        if let ([a, ..], [x, ..]) = (accumulators, values) {
            e.line(format!("{0} = {1} ? {0} : {k};", self.place.text, self.keeps_first(a, x)));
        }
    }

    /// Writes `accumulators = f(accumulators, others)` or `f(others, accumulators)`, whichever is in order. The last of
    /// `others` is their position.
    pub(super) fn join(
        &self,
        e: &mut Emitter<'_>,
        combiner: &Combiner,
        accumulators: &[Value],
        others: &[Value],
    ) -> Result<(), GpuError> {
        let Some((other_place, others)) = others.split_last() else { return Ok(()) };
        let own_place = self.place.text.clone();
        let is_other_first = e.constant("bool", &format!("{} < {own_place}", other_place.text)).text;
        let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
        for ((own, other), ctype) in accumulators.iter().zip(others).zip(&combiner.ctypes) {
            firsts.push(e.constant(ctype.held, &format!("{is_other_first} ? {} : {}", other.text, own.text)));
            seconds.push(e.constant(ctype.held, &format!("{is_other_first} ? {} : {}", own.text, other.text)));
        }
        if let ([first, ..], [second, ..]) = (firsts.as_slice(), seconds.as_slice()) {
            let kept = self.keeps_first(first, second);
            e.line(format!("{own_place} = ({kept}) == {is_other_first} ? {} : {own_place};", other_place.text));
        }
        let args: Vec<Value> = firsts.into_iter().chain(seconds).collect();
        combiner.assign(e, accumulators, &args)
    }

    /// Whether the value of `first` is kept, not that of `second`.
    fn keeps_first(&self, first: &Value, second: &Value) -> String {
        let better = match (self.extremum.is_largest, self.extremum.keeps_first_of_equal) {
            (true, false) => ">",
            (true, true) => ">=",
            (false, false) => "<",
            (false, true) => "<=",
        };
        format!("({0} {better} {1} || {0} != {0})", first.text, second.text)
    }
}
