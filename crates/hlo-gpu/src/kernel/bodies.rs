//! Code of groups of results that differ in nothing but their arguments, written once.
//!
//! The update of a hundred weights is one kernel, whose blocks find out which weight is theirs. Weights of one shape have the same code: it is
//! written once, for pointers that each block takes from a list, and not once for each weight, which compilers take long over.

use std::fmt::Write as _;

use super::emitter::{Argument, Emitter};

/// The name of a block's number among its group's.
pub(super) const BLOCK_NUMBER: &str = "block";

/// The code of a group, and the blocks of the grid that it is for.
pub(super) struct GroupCode {
    pub first: u32,
    pub end: u32,
    pub text: String,
}

/// A pointer of the kernel: an operand or a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pointer {
    Operand(usize),
    Result(usize),
}

impl Pointer {
    /// The pointer that a name of the kernel's parameters is.
    fn of(name: &str) -> Option<Pointer> {
        let (letter, number) = name.split_at_checked(1)?;
        let number = number.parse().ok()?;
        match letter {
            "p" => Some(Pointer::Operand(number)),
            "r" => Some(Pointer::Result(number)),
            _ => None,
        }
    }

    fn name(self) -> String {
        match self {
            Pointer::Operand(i) => format!("p{i}"),
            Pointer::Result(i) => format!("r{i}"),
        }
    }

    fn ctype(self, operands: &[Argument], results: &[Argument]) -> String {
        match self {
            Pointer::Operand(i) => format!("const {}*", operands[i].ctype.stored),
            Pointer::Result(i) => format!("{}*", results[i].ctype.stored),
        }
    }
}

/// Calls `take` with each identifier of a text and what stands before it, and at the end with what is left.
fn each_word<'t>(text: &'t str, take: &mut dyn FnMut(&'t str, Option<&'t str>)) {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = text;
    while let Some(start) = rest.find(is_of_word) {
        let length = rest[start..].find(|c| !is_of_word(c)).unwrap_or(rest.len() - start);
        take(&rest[..start], Some(&rest[start..start + length]));
        rest = &rest[start + length..];
    }
    take(rest, None);
}

/// A name that the emitter made for the code of a group: one letter and a number.
fn is_made(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_lowercase()) && word.len() > 1 && chars.all(|c| c.is_ascii_digit())
}

/// A text in which made names have numbers in the order of their first appearance, and its pointers in that order. Two groups whose texts and
/// types of pointers are equal have the same code.
fn in_order(text: &str, outer: &str) -> (String, Vec<Pointer>) {
    let (mut made, mut pointers): (Vec<&str>, Vec<Pointer>) = Default::default();
    let mut known = Vec::new();
    each_word(outer, &mut |_, word| known.extend(word.filter(|word| is_made(word))));
    let mut found = String::new();
    let mut last = "";
    each_word(text, &mut |before, word| {
        found.push_str(before);
        let is_qualified = before.ends_with("::") || (before.is_empty() && last.ends_with("::"));
        last = before;
        let Some(word) = word else { return };
        if let Some(pointer) = Pointer::of(word).filter(|_| !is_qualified) {
            let place = pointers.iter().position(|&other| other == pointer).unwrap_or_else(|| {
                pointers.push(pointer);
                pointers.len() - 1
            });
            let _ = write!(found, "<{place}>");
        } else if is_made(word) && !is_qualified && !known.contains(&word) {
            let place = made.iter().position(|&other| other == word).unwrap_or_else(|| {
                made.push(word);
                made.len() - 1
            });
            let _ = write!(found, "[{place}]");
        } else {
            found.push_str(word);
        }
    });
    (found, pointers)
}

/// A text with other names for its pointers.
fn renamed(text: &str, names: &[(Pointer, String)]) -> String {
    let mut found = String::new();
    each_word(text, &mut |before, word| {
        found.push_str(before);
        let Some(word) = word else { return };
        let other = Pointer::of(word).filter(|_| !before.ends_with("::"));
        let name = other.and_then(|pointer| names.iter().find(|(known, _)| *known == pointer));
        found.push_str(name.map_or(word, |(_, name)| name));
    });
    found
}

/// Code that groups have in common.
struct Body {
    /// See [`in_order`].
    in_order: String,
    types: Vec<String>,
    /// With their pointers, in the order of the types.
    groups: Vec<(GroupCode, Vec<Pointer>)>,
}

/// Writes the code of groups, each for its blocks.
pub(super) fn write(e: &mut Emitter<'_>, groups: Vec<GroupCode>, results: &[Argument]) {
    let outer = e.text().to_string();
    let mut same: Vec<Body> = Vec::new();
    for group in groups {
        let (text, pointers) = in_order(&group.text, &outer);
        let types: Vec<String> = pointers.iter().map(|pointer| pointer.ctype(&e.arguments, results)).collect();
        match same.iter_mut().find(|body| body.in_order == text && body.types == types) {
            Some(body) => body.groups.push((group, pointers)),
            None => same.push(Body { in_order: text, types, groups: vec![(group, pointers)] }),
        }
    }
    for Body { types, groups: all, .. } in same {
        let is_own = |group: &GroupCode| match group.first {
            0 => format!("blockIdx.x < {}", group.end),
            first => format!("blockIdx.x >= {first} && blockIdx.x < {}", group.end),
        };
        if let [(group, _)] = all.as_slice() {
            e.line(format!("if ({}) {{", is_own(group)));
            e.line(format!("const idx {BLOCK_NUMBER} = (idx)blockIdx.x - {};", group.first));
            e.raw(&group.text);
            e.line("}");
            continue;
        }
        let Some((first, pointers)) = all.first() else { continue };
        let names: Vec<(Pointer, String)> = pointers.iter().map(|&pointer| (pointer, e.fresh("g"))).collect();
        e.line("{");
        e.line(format!("idx {BLOCK_NUMBER} = -1;"));
        for ((_, name), ctype) in names.iter().zip(&types) {
            e.line(format!("{ctype} {name} = nullptr;"));
        }
        for (i, (group, own)) in all.iter().enumerate() {
            e.line(format!("{}if ({}) {{", if i == 0 { "" } else { "else " }, is_own(group)));
            e.line(format!("{BLOCK_NUMBER} = (idx)blockIdx.x - {};", group.first));
            for ((_, name), pointer) in names.iter().zip(own) {
                e.line(format!("{name} = {};", pointer.name()));
            }
            e.line("}");
        }
        let text = renamed(&first.text, &names);
        e.line(format!("if ({BLOCK_NUMBER} >= 0) {{"));
        e.raw(&text);
        e.line("}\n}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_alike_in_their_order() {
        let (a, of_a) = in_order("const float v3 = hlo::f16(p2[i1]); r0[i1] = v3 + v9 + p2[0];", "const float v9 = 1;");
        let (b, of_b) = in_order("const float v8 = hlo::f16(p5[i7]); r4[i7] = v8 + v9 + p5[0];", "const float v9 = 1;");
        assert_eq!(a, b);
        assert_eq!(of_a, [Pointer::Operand(2), Pointer::Result(0)]);
        assert_eq!(of_b, [Pointer::Operand(5), Pointer::Result(4)]);
        // Another type, and another outer value.
        assert_ne!(in_order("hlo::f16(p2[i1])", "").0, in_order("hlo::f32(p2[i1])", "").0);
        assert_ne!(in_order("r0[0] = v9;", "v9 v8").0, in_order("r0[0] = v8;", "v9 v8").0);
        let names = [(Pointer::Operand(2), "g1".to_string())];
        assert_eq!(renamed("p2[p22] + hlo::p2 + r2", &names), "g1[p22] + hlo::p2 + r2");
    }
}
