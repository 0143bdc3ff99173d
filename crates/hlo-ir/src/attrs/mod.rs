//! Attributes of instructions: one *format* per structure, not per opcode.
//!
//! A format is a list of fields, declared once in [`formats`]; parsing, printing, equality, hashing and renumbering
//! all walk that list through [`FieldRef`] and [`FieldMut`]. A new attribute is one line there; a new *type* of
//! attribute value is one variant here, with one parse rule in `hlo-text` and one print rule in [`crate::print`].

mod defaults;
mod dot_algorithm;
pub mod encode_bytes;
mod formats;
mod marks;
mod values;

pub use defaults::{default_order, is_default};
pub use formats::*;
pub use marks::*;
pub use values::*;

/// When a field is printed, and whether the text must give it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The text must give it; always printed.
    Required,
    /// Defaulted when absent; always printed.
    Always,
    /// Defaulted when absent; printed if it differs from the default.
    IfSet,
}

/// Whether the variant of [`FieldRef`] holds computations.
macro_rules! names_comps {
    (Comp) => {
        true
    };
    (Comps) => {
        true
    };
    ($variant:ident) => {
        false
    };
}

/// Declares [`FieldRef`] and [`FieldMut`] over the closed list of attribute value types.
macro_rules! field_types {
    ($($variant:ident($type:ty);)*) => {
        /// A shared view of one attribute field, by value type.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub enum FieldRef<'a> { $($variant(&'a $type)),* }

        /// A mutable view of one attribute field, by value type.
        #[derive(Debug)]
        #[allow(missing_docs)]
        pub enum FieldMut<'a> { $($variant(&'a mut $type)),* }

        /// A type that an attribute field can have.
        pub trait FieldType {
            /// A shared view of the field.
            fn view(&self) -> FieldRef<'_>;
            /// A mutable view of the field.
            fn view_mut(&mut self) -> FieldMut<'_>;
            /// Whether the field has its default value, for [`Presence::IfSet`].
            fn is_unset(&self) -> bool;
            /// Whether a field of this type names computations.
            const NAMES_COMPS: bool;
        }

        $(impl FieldType for $type {
            fn view(&self) -> FieldRef<'_> { FieldRef::$variant(self) }
            fn view_mut(&mut self) -> FieldMut<'_> { FieldMut::$variant(self) }
            fn is_unset(&self) -> bool { *self == <$type>::default() }
            const NAMES_COMPS: bool = names_comps!($variant);
        })*
    };
}
use crate::groups::ReplicaGroups;
use crate::module::CompId;
use crate::shape::{Dims, ShapeId};
use crate::sharding::Sharding;

/// The fields of one format.
pub type FieldRefs<'a> = smallvec::SmallVec<[FieldRef<'a>; 16]>;

field_types! {
    Int(i64);
    OptInt(Option<i64>);
    Bool(bool);
    OptBool(Option<bool>);
    Float(F32Bits);
    Dims(Dims);
    Bools(Vec<bool>);
    Text(QuotedText);
    OptText(Option<QuotedText>);
    Word(Word);
    Words(Vec<Word>);
    Comp(Option<CompId>);
    Comps(Vec<CompId>);
    Shape(Option<ShapeId>);
    Shapes(Option<Vec<ShapeId>>);
    Slice(Vec<SliceDim>);
    Padding(Vec<PadDim>);
    Window(Window);
    ConvDims(ConvDims);
    Groups(ReplicaGroups);
    Pairs(Vec<(i64, i64)>);
    OutputAliases(Vec<OperandAlias>);
    DomainSharding(Option<Box<DomainSharding>>);
    Sharding(Option<Box<Sharding>>);
    Comparison(Comparison);
    Raw(RawBraces);
    RawLiteral(RawLiteral);
}

/// Declares the attribute formats; see [`formats`].
macro_rules! attr_formats {
    ($($(#[$doc:meta])* $format:ident($attrs:ident) { $($(#[$field_doc:meta])* $field:ident : $type:ty = $key:literal $presence:ident;)* })*) => {
        /// Which fields an opcode's attributes have.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum AttrFormat {
            /// No attributes of its own.
            Plain,
            /// The literal of a `constant`; stands between the parentheses, not among the attributes.
            Constant,
            $($(#[$doc])* $format),*
        }

        /// An instruction's own attributes.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Attrs {
            /// None.
            Plain,
            /// A constant's value.
            Constant(Box<crate::literal::ConstantValue>),
            $($(#[$doc])* $format(Box<$attrs>)),*
        }

        $($(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $attrs { $($(#[$field_doc])* pub $field: $type),* }

        impl $attrs {
            /// These attributes, if `attrs` has their format.
            pub fn of(attrs: &Attrs) -> Option<&$attrs> {
                match attrs { Attrs::$format(found) => Some(found), _ => None }
            }

            /// As [`Self::of`], mutably.
            pub fn of_mut(attrs: &mut Attrs) -> Option<&mut $attrs> {
                match attrs { Attrs::$format(found) => Some(found), _ => None }
            }

            /// Calls `visit(key, presence, field)` on every field in the order in which XLA prints them.
            pub fn for_each_field(&self, mut visit: impl FnMut(&'static str, Presence, FieldRef<'_>)) {
                $(visit($key, Presence::$presence, self.$field.view());)*
            }

            /// All fields in the order in which XLA prints them, for who goes through them in another order.
            #[inline]
            pub fn fields(&self) -> FieldRefs<'_> {
                [$(self.$field.view()),*].into_iter().collect()
            }
        }

        impl From<$attrs> for Attrs {
            fn from(attrs: $attrs) -> Attrs { Attrs::$format(Box::new(attrs)) }
        })*

        impl Attrs {
            /// Attributes of `format` with every field at its type's default.
            pub(super) fn zero_of(format: AttrFormat) -> Option<Attrs> {
                match format {
                    AttrFormat::Plain => Some(Attrs::Plain),
                    AttrFormat::Constant => None,
                    $(AttrFormat::$format => Some(Attrs::$format(Box::default()))),*
                }
            }

            /// The format of these attributes.
            pub fn format(&self) -> AttrFormat {
                match self {
                    Attrs::Plain => AttrFormat::Plain,
                    Attrs::Constant(_) => AttrFormat::Constant,
                    $(Attrs::$format(_) => AttrFormat::$format),*
                }
            }

            /// Calls `visit(key, presence, field)` on every field in the order in which XLA prints them.
            pub fn for_each_field(&self, visit: &mut dyn FnMut(&'static str, Presence, FieldRef<'_>)) {
                match self {
                    Attrs::Plain | Attrs::Constant(_) => {}
                    $(Attrs::$format(attrs) => attrs.for_each_field(visit)),*
                }
            }

            /// All fields in the order in which XLA prints them, for who goes through them in another order.
            #[inline]
            pub fn fields(&self) -> FieldRefs<'_> {
                match self {
                    Attrs::Plain | Attrs::Constant(_) => FieldRefs::new(),
                    $(Attrs::$format(attrs) => attrs.fields()),*
                }
            }

            /// The field with this text key, its place in the format's order and its presence.
            pub fn field_mut(&mut self, key: &str) -> Option<(usize, FieldMut<'_>)> {
                match self {
                    Attrs::Plain | Attrs::Constant(_) => None,
                    $(Attrs::$format(attrs) => {
                        let _ = &attrs;
                        #[allow(unused_mut, unused_assignments, unused_variables)]
                        let mut place = 0usize;
                        $(if key == $key { return Some((place, attrs.$field.view_mut())); }
                        #[allow(unused_assignments)] { place += 1; })*
                        None
                    })*
                }
            }

            /// Calls `visit` on every field, mutably.
            pub fn for_each_field_mut(&mut self, visit: &mut dyn FnMut(FieldMut<'_>)) {
                match self {
                    Attrs::Plain | Attrs::Constant(_) => {}
                    $(Attrs::$format(attrs) => { let _ = &attrs; $(visit(attrs.$field.view_mut());)* })*
                }
            }
        }

        impl AttrFormat {
            /// The keys and presences of the format, in XLA's print order.
            pub fn fields(self) -> &'static [(&'static str, Presence)] {
                match self {
                    AttrFormat::Plain | AttrFormat::Constant => &[],
                    $(AttrFormat::$format => &[$(($key, Presence::$presence)),*]),*
                }
            }

            /// Whether a field of the format names computations.
            #[inline]
            pub const fn names_comps(self) -> bool {
                match self {
                    AttrFormat::Plain | AttrFormat::Constant => false,
                    $(AttrFormat::$format => false $(|| <$type as FieldType>::NAMES_COMPS)*),*
                }
            }
        }
    };
}
pub(crate) use attr_formats;

impl FieldRef<'_> {
    /// Whether the field has its default value.
    pub fn is_unset(&self) -> bool {
        match self {
            FieldRef::Int(v) => v.is_unset(),
            FieldRef::OptInt(v) => v.is_unset(),
            FieldRef::Bool(v) => v.is_unset(),
            FieldRef::OptBool(v) => v.is_unset(),
            FieldRef::Float(v) => v.is_unset(),
            FieldRef::Dims(v) => v.is_unset(),
            FieldRef::Bools(v) => v.is_unset(),
            FieldRef::Text(v) => v.is_unset(),
            FieldRef::OptText(v) => v.is_unset(),
            FieldRef::Word(v) => v.is_unset(),
            FieldRef::Words(v) => v.is_unset(),
            FieldRef::Comp(v) => v.is_unset(),
            FieldRef::Comps(v) => v.is_unset(),
            FieldRef::Shape(v) => v.is_unset(),
            FieldRef::Shapes(v) => v.is_unset(),
            FieldRef::Slice(v) => v.is_unset(),
            FieldRef::Padding(v) => v.is_unset(),
            FieldRef::Window(v) => v.is_unset(),
            FieldRef::ConvDims(v) => v.is_unset(),
            FieldRef::Groups(v) => v.is_unset(),
            FieldRef::Pairs(v) => v.is_unset(),
            FieldRef::OutputAliases(v) => v.is_unset(),
            FieldRef::DomainSharding(v) => v.is_unset(),
            FieldRef::Sharding(v) => v.is_unset(),
            FieldRef::Comparison(v) => v.is_unset(),
            FieldRef::Raw(v) => v.is_unset(),
            FieldRef::RawLiteral(v) => v.is_unset(),
        }
    }
}

/// What the computations that attributes name are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompUse {
    /// The attributes name none.
    None,
    /// The op calls them with its operands.
    Called,
    /// It combines elements: an accumulator for each array, then a value for each.
    Reducer(Option<CompId>),
    /// It combines two elements of one array; one computation serves all arrays.
    Combiner(Option<CompId>),
    /// It says whether one element of each array comes before another.
    Comparator(Option<CompId>),
    /// `select` chooses one of two elements, and `scatter` combines two.
    Selector {
        /// The computation that chooses.
        select: Option<CompId>,
        /// The computation that combines.
        scatter: Option<CompId>,
    },
    /// It is one step along a dim.
    Step(Option<CompId>),
}

impl Attrs {
    /// What the computations that the attributes name are for.
    pub fn comp_use(&self) -> CompUse {
        match self {
            Attrs::Call(_)
            | Attrs::Fusion(_)
            | Attrs::While(_)
            | Attrs::Conditional(_)
            | Attrs::Custom(_)
            | Attrs::Async(_) => CompUse::Called,
            Attrs::Reduce(attrs) => CompUse::Reducer(attrs.to_apply),
            Attrs::ReduceWindow(attrs) => CompUse::Reducer(attrs.to_apply),
            Attrs::Scatter(attrs) => CompUse::Reducer(attrs.to_apply),
            Attrs::Combining(attrs) => CompUse::Combiner(attrs.to_apply),
            Attrs::Sort(attrs) => CompUse::Comparator(attrs.to_apply),
            Attrs::SelectAndScatter(attrs) => CompUse::Selector { select: attrs.select, scatter: attrs.scatter },
            Attrs::Scan(attrs) => CompUse::Step(attrs.to_apply),
            _ => CompUse::None,
        }
    }

    /// Which parts of the result share memory with which parts of operands, as the attributes say.
    pub fn output_aliases(&self) -> &[OperandAlias] {
        match self {
            Attrs::Call(attrs) => &attrs.output_to_operand_aliasing,
            Attrs::Fusion(attrs) => &attrs.output_to_operand_aliasing,
            Attrs::Custom(attrs) => &attrs.output_to_operand_aliasing,
            Attrs::Async(attrs) => &attrs.output_to_operand_aliasing,
            _ => &[],
        }
    }

    /// Whether ops of this format can say which parts of the result share memory with operands.
    pub fn has_output_aliases(&self) -> bool {
        matches!(self, Attrs::Call(_) | Attrs::Fusion(_) | Attrs::Custom(_) | Attrs::Async(_))
    }

    /// What a call or a fusion calls; `None` for other formats, `Some(None)` while it is not given.
    pub fn callee(&self) -> Option<Option<CompId>> {
        match self {
            Attrs::Call(attrs) => Some(attrs.to_apply),
            Attrs::Fusion(attrs) => Some(attrs.calls),
            _ => None,
        }
    }

    /// The value of a constant.
    pub fn as_constant(&self) -> Option<&crate::literal::ConstantValue> {
        match self {
            Attrs::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Attributes of `format` as they are when the text gives none; `None` for constants, which have no default.
    pub fn default_of(format: AttrFormat) -> Option<Attrs> {
        let mut attrs = Attrs::zero_of(format)?;
        if let Attrs::TopK(topk) = &mut attrs {
            topk.largest = true;
        }
        Some(attrs)
    }

    /// Calls `visit` on every computation that the attributes name, in print order.
    #[inline]
    pub fn for_each_comp(&self, visit: &mut dyn FnMut(CompId)) {
        // Few formats do; the others' fields need no look.
        if !self.format().names_comps() {
            return;
        }
        self.for_each_field(&mut |_, _, field| match field {
            FieldRef::Comp(Some(comp)) => visit(*comp),
            FieldRef::Comps(comps) => comps.iter().for_each(|&c| visit(c)),
            _ => {}
        });
    }

    /// Calls `visit` on every computation that the attributes name, mutably.
    pub fn for_each_comp_mut(&mut self, visit: &mut dyn FnMut(&mut CompId)) {
        self.for_each_field_mut(&mut |field| match field {
            FieldMut::Comp(Some(comp)) => visit(comp),
            FieldMut::Comps(comps) => comps.iter_mut().for_each(&mut *visit),
            _ => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Opcode;

    #[test]
    fn views_of_one_structure_know_every_format_that_has_it() {
        for format in Opcode::ALL.iter().map(|op| op.row().format) {
            let Some(mut attrs) = Attrs::default_of(format) else { continue };
            assert_eq!(attrs.comp_use() != CompUse::None, format.names_comps(), "{format:?}");
            let mut has_aliases = false;
            attrs.for_each_field_mut(&mut |field| {
                if let FieldMut::OutputAliases(aliases) = field {
                    aliases.push(OperandAlias::default());
                    has_aliases = true;
                }
            });
            assert_eq!(attrs.output_aliases().len(), usize::from(has_aliases), "{format:?}");
            assert_eq!(attrs.has_output_aliases(), has_aliases, "{format:?}");
        }
    }
}
