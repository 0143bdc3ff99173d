//! Whether two forms are equal: for each kind of product, the parts of both cancel everywhere.

use super::canonical::canonical;
use super::*;
use std::collections::BTreeMap;

/// What a comparison of forms shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Proof {
    /// They are equal for all sizes and inputs.
    Equal,
    /// The products differ; where functions of which nothing is known take part, or sums that could be written in several ways, the
    /// values may still be equal.
    Different,
}

/// The borders of each index's parts, in order, and the index.
pub(super) type Borders = Vec<(Var, Vec<Size>)>;

/// Sorts the ends of ranges of each index.
///
/// # Errors
/// Two of them have no proved order.
pub(super) fn borders<'a>(vars: &[Var], ranges: impl Iterator<Item = &'a Vec<Range>>) -> Result<Borders, Unknown> {
    let mut borders: Borders = vars.iter().map(|v| (*v, Vec::new())).collect();
    for ranges in ranges {
        for (var, ends) in &mut borders {
            let Some((low, high)) = range_of(ranges, *var) else { continue };
            for end in [low, high] {
                insert_in_order(ends, end)?;
            }
        }
    }
    Ok(borders)
}

fn insert_in_order(ends: &mut Vec<Size>, end: Size) -> Result<(), Unknown> {
    for at in 0..ends.len() {
        if ends[at] == end {
            return Ok(());
        }
        if end.is_at_most(&ends[at]) {
            ends.insert(at, end);
            return Ok(());
        }
        if !ends[at].is_at_most(&end) {
            return Err(Unknown::Order);
        }
    }
    ends.push(end);
    Ok(())
}

/// All cells between borders.
pub(super) fn cells(borders: &Borders) -> Vec<Vec<Range>> {
    let mut all: Vec<Vec<Range>> = vec![Vec::new()];
    for (var, ends) in borders {
        let next = all.iter().flat_map(|cell| {
            ends.windows(2).map(move |pair| {
                let mut cell = cell.clone();
                cell.push((*var, pair[0].clone(), pair[1].clone()));
                cell
            })
        });
        all = next.collect();
    }
    all
}

/// Whether ranges whose ends are among the borders have a cell within them.
pub(super) fn covers(ranges: &[Range], cell: &[Range]) -> bool {
    cell.iter().all(|(var, low, high)| {
        range_of(ranges, *var).is_none_or(|(from, to)| from.is_at_most(low) && high.is_at_most(&to))
    })
}

/// Products that differ in ranges and coefficients only.
type Kinds = BTreeMap<(Vec<Factor>, Vec<Guard>), Vec<(Vec<Range>, Size)>>;

/// Most places that a range of known size is taken apart into.
const MOST_PLACES: i64 = 4;

/// Compares two forms.
///
/// # Errors
/// Nothing is known of the order of two borders, or there are too many products.
pub(crate) fn prove_equal(a: &Form, b: &Form) -> Result<Proof, Unknown> {
    let minus = |p: &Product| Product { coefficient: -&p.coefficient, ..p.clone() };
    let all: Vec<Product> = a.products.iter().cloned().chain(b.products.iter().map(minus)).collect();
    let rest = uncancelled(all)?;
    if rest.is_empty() {
        return Ok(Proof::Equal);
    }
    // What is left may cancel place by place, where dims have known sizes: a stack's.
    let places = taken_apart(rest)?;
    Ok(if uncancelled(places)?.is_empty() { Proof::Equal } else { Proof::Different })
}

/// The products of kinds whose parts do not cancel.
fn uncancelled(all: Vec<Product>) -> Result<Vec<Product>, Unknown> {
    let mut kinds: Kinds = BTreeMap::new();
    for product in all.into_iter().filter_map(|p| canonical(p, 0, &|_| None)) {
        let Product { factors, guards, ranges, coefficient } = product;
        kinds.entry((factors, guards)).or_default().push((ranges, coefficient));
    }
    let mut rest = Vec::new();
    for ((factors, guards), parts) in kinds {
        if !is_zero(&parts)? {
            let product = |(ranges, coefficient)| Product {
                factors: factors.clone(),
                guards: guards.clone(),
                ranges,
                coefficient,
            };
            rest.extend(parts.into_iter().map(product));
        }
    }
    Ok(rest)
}

/// Whether signed parts add up to zero in every cell.
fn is_zero(parts: &[(Vec<Range>, Size)]) -> Result<bool, Unknown> {
    let vars: Vec<Var> = parts[0].0.iter().map(|r| r.0).collect();
    let borders = borders(&vars, parts.iter().map(|p| &p.0))?;
    Ok(cells(&borders).iter().all(|cell| {
        let there = parts.iter().filter(|part| covers(&part.0, cell));
        there.fold(Size::default(), |sum, part| &sum + &part.1).is_zero()
    }))
}

fn taken_apart(products: Vec<Product>) -> Result<Vec<Product>, Unknown> {
    let mut all = Vec::new();
    for product in products {
        let mut parts = vec![product.clone()];
        for (var, low, high) in &product.ranges {
            let Some(n) = (high - low).as_number().filter(|n| (2..=MOST_PLACES).contains(n)) else { continue };
            let split = |p: &Product| {
                (0..n)
                    .map(|i| {
                        let mut part = p.clone();
                        let at = low + &Size::number(i);
                        part.set_range(*var, at.clone(), &at + &Size::number(1));
                        part
                    })
                    .collect::<Vec<_>>()
            };
            parts = parts.iter().flat_map(split).collect();
            if all.len() + parts.len() > 8 * MOST_PRODUCTS {
                return Err(Unknown::TooMany);
            }
        }
        all.extend(parts);
    }
    Ok(all)
}
