//! One way of writing a product: factors sorted, sums numbered in the order in which they are met, and counted from the
//! place at which the first element takes them.

use super::simplify::simplify;
use super::*;

/// A product in its canonical form; `None` if nothing is left of it.
pub(super) fn canonical(product: Product, level: u8, outer: Outer<'_>) -> Option<Product> {
    let mut product = simplify(product, level, outer)?;
    for _ in 0..2 {
        canonical_args(&mut product, level, outer);
        product.factors.sort_by_cached_key(|factor| masked(factor, level));
        number_sums(&mut product, level);
        shift_sums(&mut product, level, outer);
        product = simplify(product, level, outer)?;
    }
    canonical_args(&mut product, level, outer);
    product.factors.sort();
    product.guards.sort();
    Some(product)
}

/// The arguments of functions: canonical products, equal ones added up.
fn canonical_args(product: &mut Product, level: u8, outer: Outer<'_>) {
    let Product { factors, ranges, .. } = product;
    let range = |v: Var| range_of(ranges, v).or_else(|| outer(v));
    for factor in factors {
        let Factor::Function { function, args } = factor else { continue };
        for form in args.iter_mut() {
            let products = std::mem::take(&mut form.products);
            let mut products: Vec<Product> =
                products.into_iter().filter_map(|p| canonical(p, level + 1, &range)).collect();
            products.sort();
            for p in products {
                match form.products.last_mut() {
                    Some(last) if (&last.factors, &last.guards, &last.ranges) == (&p.factors, &p.guards, &p.ranges) => {
                        last.coefficient = &last.coefficient + &p.coefficient;
                    }
                    Some(_) | None => form.products.push(p),
                }
            }
            form.products.retain(|p| !p.coefficient.is_zero());
        }
        if *function == Function::Max {
            args.sort();
        }
    }
}

/// A factor without what renumbering and shifting change.
fn masked(factor: &Factor, level: u8) -> Factor {
    let mut factor = factor.clone();
    let mask = |v: Var| match v {
        Var::Bound(l, _) if l == level => Var::Bound(l, u16::MAX),
        Var::Bound(..) | Var::Free(_) => v,
    };
    factor.replace(&|v| Affine::var(mask(v)), &|_| None);
    match &mut factor {
        Factor::Element { index, .. } => index.iter_mut().for_each(|e| e.constant = Size::default()),
        Factor::Function { .. } => {}
    }
    factor
}

/// Sums of the level in the order in which they are met.
fn sums_in_order(product: &Product, level: u8) -> Vec<Var> {
    let mut order: Vec<Var> = Vec::new();
    product.visit(&mut |v| {
        if matches!(v, Var::Bound(l, _) if l == level) && !order.contains(&v) {
            order.push(v);
        }
    });
    order
}

fn number_sums(product: &mut Product, level: u8) {
    let order = sums_in_order(product, level);
    let new = |v: Var| order.iter().position(|&o| o == v).map_or(v, |n| Var::Bound(level, n as u16));
    product.replace(&|v| Affine::var(new(v)), &|_| None);
    product.ranges.iter_mut().for_each(|r| r.0 = new(r.0));
    product.ranges.sort();
}

fn shift_sums(product: &mut Product, level: u8, outer: Outer<'_>) {
    for var in sums_in_order(product, level) {
        let coordinates = product.factors.iter().flat_map(|factor| match factor {
            Factor::Element { index, .. } => index.as_slice(),
            Factor::Function { .. } => &[],
        });
        let signed = |e: &Affine| Some((e.coefficient(var)?.as_number()?, e.constant.clone()));
        let Some((n, constant)) = coordinates.filter_map(signed).find(|(n, _)| n.abs() == 1) else { continue };
        let Some((_, low, high)) = product.remove_range(var) else { continue };
        // The new index is n * var + constant.
        let by = Affine::var(var).plus(&-&constant).times(&Size::number(n));
        let (low, high) = match n {
            1 => (&low + &constant, &high + &constant),
            _ => (&(&constant - &high) + &Size::number(1), &(&constant - &low) + &Size::number(1)),
        };
        product.set_range(var, low, high);
        product.replace(&|v| if v == var { by.clone() } else { Affine::var(v) }, outer);
    }
}
