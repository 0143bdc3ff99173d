//! The table of messages and fields that everything else goes by: reading, checking, writing, and the text format.
//!
//! The rows have the names and numbers of XLA's descriptor (`xla/service/hlo.proto`, `xla/xla_data.proto`); a check holds them
//! against the descriptor in an installed jaxlib. A row reads `Kind name = number label`, with the label `one` (absent means
//! zero), `maybe` (absent differs from zero), `either` (one of a oneof) or `many`. A field that a module cannot hold is marked
//! `kept`: reading keeps its bytes beside the module, as it does for fields that no row has.

/// The type of a field's values.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Int64,
    Int32,
    Uint64,
    Uint32,
    Bool,
    Float,
    Double,
    /// UTF-8, unless the writer was careless.
    Text,
    Bytes,
    /// A name of a closed list.
    Enum(&'static Enum),
    /// Fields of their own. A function, as messages may hold messages of their own kind.
    Message(fn() -> &'static Message),
}

/// How often a field stands, and what its absence means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    /// At most once; absent means zero or empty.
    One,
    /// At most once; absent differs from zero.
    Maybe,
    /// At most one of several such fields.
    Either,
    /// Any number of times.
    Many,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its number on the wire.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// How often it stands.
    pub label: Label,
    /// A module cannot hold it, so its bytes are kept beside the module.
    pub is_kept: bool,
}

/// The fields of one message.
#[derive(Debug)]
pub struct Message {
    /// Its name within package `xla`; nested ones have dots.
    pub name: &'static str,
    /// Its fields by ascending number.
    pub fields: &'static [Field],
    /// One more than the place in `fields`, by number.
    places: [u8; N_NUMBERS],
}

/// The names of an enum's values.
#[derive(Debug)]
pub struct Enum {
    /// Its name within package `xla`.
    pub name: &'static str,
    /// Numbers and names.
    pub values: &'static [(i32, &'static str)],
    /// What HLO text leaves out at the beginning of a name.
    prefix: &'static str,
    /// HLO text has the names in small letters.
    is_small: bool,
}

/// No field has a number as large as this.
const N_NUMBERS: usize = 128;

impl Message {
    const fn new(name: &'static str, fields: &'static [Field]) -> Message {
        let mut places = [0; N_NUMBERS];
        let mut i = 0;
        while i < fields.len() {
            places[fields[i].number as usize] = i as u8 + 1;
            i += 1;
        }
        Message { name, fields, places }
    }

    /// The field of a number.
    #[inline]
    pub fn field(&self, number: u32) -> Option<&'static Field> {
        let place = *self.places.get(number as usize)?;
        self.fields.get(usize::from(place).checked_sub(1)?)
    }

    /// The field of a name.
    pub fn field_named(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name() == name)
    }
}

impl Field {
    /// Its name; a name that is a word of Rust stands raw in the table.
    pub fn name(&self) -> &'static str {
        self.name.strip_prefix("r#").unwrap_or(self.name)
    }
}

impl Enum {
    /// The word that HLO text has for a number.
    pub fn word(&self, number: i64) -> Option<String> {
        let name = self.name_of(number)?;
        let word = name.strip_prefix(self.prefix).unwrap_or(name);
        Some(if self.is_small { word.to_ascii_lowercase() } else { word.to_string() })
    }

    /// The name of a number.
    pub fn name_of(&self, number: i64) -> Option<&'static str> {
        self.values.iter().find(|&&(value, _)| i64::from(value) == number).map(|&(_, name)| name)
    }

    /// The number of a word as HLO text has it.
    pub fn number_of_word(&self, word: &str) -> Option<i64> {
        let is_it = |name: &str| name.strip_prefix(self.prefix).unwrap_or(name).eq_ignore_ascii_case(word);
        self.values.iter().find(|(_, name)| is_it(name)).map(|&(value, _)| i64::from(value))
    }
}

/// What a row says of a field's type.
macro_rules! kind {
    (Message($of:ident)) => {
        $crate::table::Kind::Message(|| &$crate::table::$of::MESSAGE)
    };
    (Enum($of:ident)) => {
        $crate::table::Kind::Enum(&$crate::table::$of)
    };
    ($kind:ident) => {
        $crate::table::Kind::$kind
    };
}

macro_rules! label {
    (one) => {
        $crate::table::Label::One
    };
    (maybe) => {
        $crate::table::Label::Maybe
    };
    (either) => {
        $crate::table::Label::Either
    };
    (many) => {
        $crate::table::Label::Many
    };
}

macro_rules! is_kept {
    () => {
        false
    };
    (kept) => {
        true
    };
}

/// Declares messages: a module for each, with its fields as constants.
macro_rules! messages {
    ($($name:literal $module:ident {
        $($kind:ident $(($of:ident))? $field:ident = $number:literal $label:ident $($kept:ident)?;)*
    })*) => {
        $(#[allow(non_upper_case_globals, dead_code)] // the constants have the names of the descriptor
        pub(crate) mod $module {
            use $crate::table::{Field, Message};
            $(pub(crate) const $field: Field = Field {
                number: $number,
                name: stringify!($field),
                kind: kind!($kind $(($of))?),
                label: label!($label),
                is_kept: is_kept!($($kept)?),
            };)*
            pub(crate) static MESSAGE: Message = Message::new($name, &[$($field),*]);
        })*
        pub(super) static ALL: &[&$crate::table::Message] = &[$(&$module::MESSAGE),*];
    };
}

/// Declares enums.
macro_rules! enums {
    ($($name:literal $constant:ident $prefix:literal $case:ident { $($number:literal $value:literal;)* })*) => {
        $(pub(crate) static $constant: Enum = Enum {
            name: $name,
            values: &[$(($number, $value)),*],
            prefix: $prefix,
            is_small: is_small!($case),
        };)*
        pub(super) static ALL: &[&Enum] = &[$(&$constant),*];
    };
}

macro_rules! is_small {
    (small) => {
        true
    };
    (exact) => {
        false
    };
}

mod enum_rows;
mod module_rows;
mod payload_rows;
mod shape_rows;
mod snapshot_rows;

pub(crate) use enum_rows::*;
pub(crate) use module_rows::*;
pub(crate) use payload_rows::*;
pub(crate) use shape_rows::*;
pub(crate) use snapshot_rows::*;

/// Every message of the table.
pub fn messages() -> impl Iterator<Item = &'static Message> {
    [module_rows::ALL, payload_rows::ALL, shape_rows::ALL, snapshot_rows::ALL].into_iter().flatten().copied()
}

/// Every enum of the table.
pub fn enums() -> impl Iterator<Item = &'static Enum> {
    enum_rows::ALL.iter().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_ascend_and_are_found_by_number_and_name() {
        for message in messages() {
            assert!(message.fields.is_sorted_by_key(|field| field.number), "{}", message.name);
            for field in message.fields {
                assert_eq!(message.field(field.number).map(Field::name), Some(field.name()));
                assert_eq!(message.field_named(field.name()).map(|f| f.number), Some(field.number));
            }
        }
        assert!(op_sharding::MESSAGE.field(127).is_none() && op_sharding::MESSAGE.field(4000).is_none());
    }
}
