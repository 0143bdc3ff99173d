//! Plans in words.

use super::StepKind;
use super::price::moved_atoms;
use super::space::{Place, Places, Space};
use hlo_ir::axes::AxisSharding;
use hlo_mesh::Exchange;

/// A letter for each axis, major first.
pub(super) fn letters(sizes: &[i64]) -> Vec<(char, i64)> {
    (0..).map(letter).zip(sizes.iter().copied()).collect()
}

/// a, b, c …; beyond z the letters of other alphabets, which follow one another.
fn letter(axis: usize) -> char {
    let plain = "abcdefghijklmnopqrstuvwxyz";
    plain.chars().nth(axis).or_else(|| char::from_u32('α' as u32 + axis as u32 - 26)).unwrap_or('?')
}

fn list(atoms: &[usize]) -> String {
    let letters: Vec<String> = atoms.iter().map(|&a| letter(a).to_string()).collect();
    match letters.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        letters => letters.concat(),
    }
}

/// `[{a,b},{},{_,c}]`: the axes of each dim; `_` for a part of a dim that is not cut.
pub(super) fn state(space: &Space, places: &Places, rank: usize) -> String {
    let lists = space.lists(places);
    let of_dim = |dim: usize| {
        let of_dim = space.segments.iter().zip(&lists).filter(|(segment, _)| segment.dim == dim);
        let mut parts: Vec<String> = of_dim
            .map(|(_, list)| match list.as_slice() {
                [] => "_".to_string(),
                list => list.iter().map(|&a| letter(a).to_string()).collect::<Vec<_>>().join(","),
            })
            .collect();
        while parts.last().is_some_and(|part| part == "_") {
            parts.pop();
        }
        format!("{{{}}}", parts.join(","))
    };
    let dims: Vec<String> = (0..rank).map(of_dim).collect();
    let partial: Vec<usize> = (0..places.len()).filter(|&a| places[a] == Place::Partial).collect();
    let suffix = if partial.is_empty() { String::new() } else { format!(" unreduced over {}", list(&partial)) };
    format!("[{}]{suffix}", dims.join(","))
}

/// The same of a sharding over prime axes.
pub(super) fn sharding(sharding: &AxisSharding) -> String {
    let dim = |axes: &Vec<hlo_ir::axes::SubAxis>| {
        let axes: Vec<String> = axes.iter().map(|part| letter(part.axis).to_string()).collect();
        format!("{{{}}}", axes.join(","))
    };
    format!("[{}]", sharding.dims.iter().map(dim).collect::<Vec<_>>().join(","))
}

fn dim_of(space: &Space, place: Place) -> Option<usize> {
    match place {
        Place::On { segment, .. } => space.segments.get(segment as usize).map(|segment| segment.dim),
        Place::Free | Place::Partial => None,
    }
}

/// The dims that an axis leaves and comes to.
type Way = (Option<usize>, Option<usize>);

/// Why a step is there: which axes go where.
pub(super) fn because(space: &Space, kind: StepKind, from: &Places, to: &Places) -> String {
    let moved = moved_atoms(from, to);
    // Axes that go the same way are named together.
    let mut ways: Vec<(Way, Vec<usize>)> = Vec::new();
    for &a in &moved {
        let way = (dim_of(space, from[a]), dim_of(space, to[a]));
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, atoms)) => atoms.push(a),
            None => ways.push((way, vec![a])),
        }
    }
    let text = |((from, to), atoms): &(Way, Vec<usize>)| {
        let axes = list(atoms);
        let verb = |one: &'static str, more: &'static str| if atoms.len() == 1 { one } else { more };
        match (kind, from, to) {
            (StepKind::Slice, _, Some(to)) => {
                format!("every device holds dim {to} whole and keeps its part along {axes}")
            }
            (StepKind::Exchange(Exchange::AllGather), Some(from), _) => {
                format!("dim {from} is to be whole along {axes}")
            }
            (StepKind::Exchange(Exchange::ReduceScatter), _, Some(to)) => {
                format!("partial results over {axes} are due, and dim {to} is to be cut there")
            }
            (StepKind::Exchange(Exchange::AllReduce), _, _) => {
                format!("partial results over {axes} are due, and stay whole")
            }
            (_, Some(from), Some(to)) if from == to => format!("{axes} {} within dim {from}", verb("moves", "move")),
            (_, Some(from), Some(to)) => format!("{axes} {} from dim {from} to dim {to}", verb("goes", "go")),
            (_, Some(from), None) => format!("{axes} {} dim {from}", verb("leaves", "leave")),
            (_, None, Some(to)) => format!("{axes} {} to dim {to}", verb("comes", "come")),
            (_, None, None) => format!("{axes} {} free", verb("is", "are")),
        }
    };
    ways.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Why a permute of pieces is there.
pub(super) fn piece(block: &[i64], n_receivers: usize) -> String {
    let dims: Vec<String> = block.iter().map(i64::to_string).collect();
    let (devices, lack) = if n_receivers == 1 { ("device", "lacks") } else { ("devices", "lack") };
    format!("{n_receivers} {devices} {lack} a piece [{}] of the target tile", dims.join(","))
}

pub(super) fn padding(short: &[usize], dims: &[i64], padded: &[i64]) -> String {
    let one = |&dim: &usize| format!("dim {dim} of size {} is to have even tiles: {}", dims[dim], padded[dim]);
    short.iter().map(one).collect::<Vec<_>>().join("; ")
}

pub(super) fn trimming(long: &[usize], dims: &[i64], padded: &[i64]) -> String {
    let one = |&dim: &usize| format!("dim {dim} has size {}, and {} with its padding", dims[dim], padded[dim]);
    long.iter().map(one).collect::<Vec<_>>().join("; ")
}
