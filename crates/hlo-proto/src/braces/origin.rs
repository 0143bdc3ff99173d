//! `origin={({"v1"}, {"v2" {1,0}})}`: from which value of the program as it was first each leaf of a value comes.

use super::cursor::Cursor;
use crate::table::{original_array, original_value, original_value_element};
use crate::view::View;
use crate::writer::Writer;
use hlo_ir::Shape;
use hlo_ir::print::write_quoted;

/// Tuples may not be nested deeper.
const MAX_DEPTH: usize = 100;

/// The text of the origin of a value of this shape.
pub(super) fn read(view: &View<'_>, shape: &Shape) -> String {
    if view.bool(original_value::is_synthetic_call) {
        return "{[synthetic_call]}".into();
    }
    let element = |element: View<'_>| {
        let index: Vec<i64> = element.ints(original_value_element::shape_index).collect();
        let mut out = String::from("{");
        if let Some(array) = element.message(original_value_element::original_array) {
            write_array(&array, &mut out);
        }
        out.push('}');
        (index, out)
    };
    let elements: Vec<(Vec<i64>, String)> = view.messages(original_value::elements).map(element).collect();
    if elements.is_empty() {
        return String::new();
    }
    let mut out = String::from("{");
    write_leaves(&elements, shape, &mut Vec::new(), &mut out);
    out.push('}');
    out
}

fn write_array(array: &View<'_>, out: &mut String) {
    write_quoted(&array.text(original_array::instruction_name), out);
    let index: Vec<String> = array.ints(original_array::shape_index).map(|i| i.to_string()).collect();
    if !index.is_empty() {
        out.push_str(&format!(" {{{}}}", index.join(",")));
    }
}

fn write_leaves(elements: &[(Vec<i64>, String)], shape: &Shape, at: &mut Vec<i64>, out: &mut String) {
    match shape {
        Shape::Tuple(inner) => {
            out.push('(');
            for (i, shape) in inner.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                at.push(i as i64);
                write_leaves(elements, shape, at, out);
                at.pop();
            }
            out.push(')');
        }
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            let found = elements.iter().find(|(index, _)| index == at);
            out.push_str(found.map_or("{}", |(_, text)| text));
        }
    }
}

/// Appends the fields that such a text says.
pub(super) fn write(w: &mut Writer, text: &str) -> Option<()> {
    let mut cur = Cursor::new(text);
    cur.expect("{")?;
    if cur.eat("[synthetic_call]") {
        w.bool(original_value::is_synthetic_call, true);
        return Some(());
    }
    node(w, &mut cur, &mut Vec::new())
}

fn node(w: &mut Writer, cur: &mut Cursor<'_>, at: &mut Vec<i64>) -> Option<()> {
    if cur.eat("(") {
        let mut i = 0;
        while !cur.eat(")") {
            if at.len() >= MAX_DEPTH {
                return None;
            }
            at.push(i);
            node(w, cur, at)?;
            at.pop();
            i += 1;
            cur.eat(",");
        }
        return Some(());
    }
    cur.expect("{")?;
    let name = cur.quoted();
    let index = match name {
        Some(_) if !cur.eat("}") => {
            let index = cur.ints()?;
            cur.expect("}")?;
            index
        }
        Some(_) => Vec::new(),
        None => {
            cur.expect("}")?;
            Vec::new()
        }
    };
    w.message(original_value::elements, |w| {
        w.ints(original_value_element::shape_index, at.iter().copied());
        if let Some(name) = name {
            w.message(original_value_element::original_array, |w| {
                w.text(original_array::instruction_name, &name);
                w.ints(original_array::shape_index, index.iter().copied());
            });
        }
    });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;

    #[test]
    fn texts_come_back() {
        let array = || Shape::array(DType::F32, [2]);
        let pair = Shape::Tuple(vec![Shape::Tuple(vec![array(), array()]), array()]);
        for (text, shape) in [
            (r#"{{"a" {0}}}"#, &array()),
            ("{[synthetic_call]}", &array()),
            (r#"{(({"v1" {0}}, {}), {"v2" {1,0}})}"#, &pair),
        ] {
            let mut w = Writer::default();
            write(&mut w, text).unwrap();
            assert_eq!(read(&View::of(&w.out), shape), text);
        }
    }
}
