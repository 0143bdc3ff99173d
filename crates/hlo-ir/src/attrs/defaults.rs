//! Attributes that state what their absence means: the one place that says which do.
//!
//! Readers and builders take such values away, so that an instruction that states a default equals one that leaves it
//! out: in comparisons, hashes, proofs and prints. The printer asks as well, for attributes that were changed in place.

use super::{Attrs, CustomAttrs, FieldMut, FieldRef, Marks, Metadata, OutfeedAttrs, Presence};
use crate::dtype::{DType, NumberClass};
use crate::module::{InstId, Module};
use crate::print::normal_accuracy;

/// The order in which elements are compared unless the text says otherwise.
pub fn default_order(operand: DType) -> &'static str {
    match operand.class() {
        NumberClass::Pred | NumberClass::Unsigned => "UNSIGNED",
        NumberClass::Signed => "SIGNED",
        NumberClass::Float | NumberClass::Complex => "FLOAT",
    }
}

/// Whether the value of the attribute `key` is the one that its absence means. `operand` is the element type of the first
/// operand, if that is an array.
pub fn is_default(key: &str, field: FieldRef<'_>, operand: Option<DType>) -> bool {
    match field {
        FieldRef::OptInt(value) => match key {
            "feature_group_count" | "batch_group_count" => matches!(value, None | Some(1)),
            "inferred_dimension" => matches!(value, None | Some(-1)),
            // XLA takes a channel that is not positive for none.
            "channel_id" => value.is_none_or(|channel| channel <= 0),
            _ => value.is_none(),
        },
        FieldRef::Word(word) => match key {
            "schedule" => matches!(word.as_str(), "" | "SCHEDULE_NONE"),
            "api_version" => matches!(word.as_str(), "" | "API_VERSION_ORIGINAL"),
            "padding_type" => matches!(word.as_str(), "" | "PADDING_INVALID"),
            "algorithm" | "convolution_kind" => matches!(word.as_str(), "" | "unset"),
            "type" => word.as_str().is_empty() || operand.map(default_order) == Some(word.as_str()),
            _ => word.as_str().is_empty(),
        },
        FieldRef::OptText(text) if key == "async_execution_thread" => text.as_ref().is_none_or(|text| text.0 == "main"),
        FieldRef::Words(words) => words.iter().all(|word| word.as_str() == "default"),
        _ => field.is_unset(),
    }
}

impl Module {
    /// Gives the attributes of an instruction with these operands the form that all attributes of the same meaning have:
    /// defaults are left out, an outfeed says which shape it sends, and a custom call lists what it calls.
    pub fn normalize_attrs(&self, operands: &[InstId], attrs: &mut Attrs) {
        if matches!(attrs, Attrs::Plain | Attrs::Constant(_)) {
            return;
        }
        let first = operands.first();
        let operand = first.and_then(|&operand| self.shape(operand).as_array()).map(|array| array.dtype);
        let mut fields = attrs.format().fields().iter();
        attrs.for_each_field_mut(&mut |field| {
            let Some((key, Presence::IfSet)) = fields.next() else { return };
            match field {
                FieldMut::OptInt(value) if is_default(key, FieldRef::OptInt(value), operand) => *value = None,
                FieldMut::Word(word) if is_default(key, FieldRef::Word(word), operand) => word.0.clear(),
                FieldMut::Words(words) if is_default(key, FieldRef::Words(words), operand) => words.clear(),
                FieldMut::OptText(text) if is_default(key, FieldRef::OptText(text), operand) => *text = None,
                _ => {}
            }
        });
        if let Some(OutfeedAttrs { outfeed_shape, .. }) = OutfeedAttrs::of_mut(attrs)
            && outfeed_shape.is_none()
        {
            *outfeed_shape = first.map(|&operand| self.inst(operand).shape);
        }
        if let Some(CustomAttrs { called_computations, to_apply, .. }) = CustomAttrs::of_mut(attrs)
            && called_computations.is_empty()
        {
            called_computations.extend(to_apply.take());
        }
    }
}

impl Marks {
    /// Leaves out what means the same as its absence.
    pub fn normalize(&mut self) {
        self.backend_config.take_if(|config| config.is_empty());
        self.metadata.take_if(|metadata| **metadata == Metadata::default());
        if self.statistics.0.trim_matches(['{', '}', ' ']).is_empty() {
            self.statistics.0.clear();
        }
        if !self.result_accuracy.0.is_empty() {
            self.result_accuracy.0 = normal_accuracy(&self.result_accuracy.0);
        }
    }
}
