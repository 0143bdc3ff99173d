//! Makes a product's ranges tight and its guards few.

use super::*;

/// Rounds of simplification; each but the last removes a guard or an index.
const MOST_ROUNDS: usize = 16;

/// What became of a guard.
enum Fate {
    Stays(Box<Guard>),
    Holds,
    Fails,
    /// It fixes the values of one index further.
    Range(Box<Range>),
    /// It says what one index is.
    Equation(Var, Box<(Affine, Guard)>),
}

/// A product without what its ranges decide; `None` if nothing is left.
pub(super) fn simplify(mut product: Product, level: u8, outer: Outer<'_>) -> Option<Product> {
    if product.coefficient.is_zero() {
        return None;
    }
    for _ in 0..MOST_ROUNDS {
        let mut is_changed = apply_guards(&mut product, level, outer)?;
        is_changed |= drop_units(&mut product, level, outer)?;
        if !is_changed {
            break;
        }
    }
    count_unused(&mut product, level);
    Some(product)
}

/// Sorts the guards out. Returns whether a range or an index changed.
fn apply_guards(product: &mut Product, level: u8, outer: Outer<'_>) -> Option<bool> {
    let mut is_changed = false;
    let mut kept = Vec::new();
    let mut waiting = std::mem::take(&mut product.guards);
    waiting.reverse();
    while let Some(guard) = waiting.pop() {
        match judge(guard, product, level, outer) {
            Fate::Holds => {}
            Fate::Fails => return None,
            Fate::Stays(guard) => kept.push(*guard),
            Fate::Range(range) => {
                let (var, low, high) = *range;
                product.set_range(var, low, high);
                is_changed = true;
            }
            Fate::Equation(var, solution) => {
                let (value, of_range) = *solution;
                product.remove_range(var);
                product.guards = std::mem::take(&mut kept);
                product.guards.append(&mut waiting);
                product.guards.push(of_range);
                product.replace(&|v| if v == var { value.clone() } else { Affine::var(v) }, outer);
                waiting = std::mem::take(&mut product.guards);
                is_changed = true;
            }
        }
    }
    kept.sort();
    kept.dedup();
    product.guards = kept;
    Some(is_changed)
}

/// The guard with its constant on the other side and its first coefficient positive.
fn normal(guard: Guard) -> Guard {
    let (low, high) = (&guard.low - &guard.expr.constant, &guard.high - &guard.expr.constant);
    let expr = Affine { terms: guard.expr.terms, constant: Size::default() };
    let is_negative = expr.terms.first().is_some_and(|(_, n)| (-n).is_never_negative());
    if !is_negative {
        return Guard { expr, low, high };
    }
    let one = Size::number(1);
    Guard { expr: expr.times(&Size::number(-1)), low: &one - &high, high: &one - &low }
}

fn judge(guard: Guard, product: &Product, level: u8, outer: Outer<'_>) -> Fate {
    let guard = normal(guard);
    let one = Size::number(1);
    let range = |v: Var| range_of(&product.ranges, v).or_else(|| outer(v));
    if let Some((least, greatest)) = guard.expr.extremes(&range) {
        if guard.low.is_at_most(&least) && (&greatest + &one).is_at_most(&guard.high) {
            return Fate::Holds;
        }
        if (&greatest + &one).is_at_most(&guard.low) || guard.high.is_at_most(&least) {
            return Fate::Fails;
        }
    }
    if let Some((var, false)) = guard.expr.as_shifted_var()
        && let Some((low, high)) = range_of(&product.ranges, var)
        && let (Some(low), Some(high)) = (greater(&low, &guard.low), lesser(&high, &guard.high))
    {
        return Fate::Range(Box::new((var, low, high)));
    }
    if &guard.low + &one == guard.high
        && let Some(var) = solvable(&guard.expr, product, level)
    {
        let (_, low, high) = product.ranges[product.ranges.partition_point(|r| r.0 < var)].clone();
        let n = guard.expr.coefficient(var).cloned().unwrap_or_default();
        let rest = guard.expr.clone().add(&Affine::var(var), &-&n);
        // n * var + rest = low, and n is 1 or -1.
        let value = Affine::constant(guard.low.clone()).add(&rest, &Size::number(-1)).times(&n);
        return Fate::Equation(var, Box::new((value.clone(), Guard { expr: value, low, high })));
    }
    Fate::Stays(Box::new(guard))
}

/// The greater of two sizes, if one is proved to be.
fn greater(a: &Size, b: &Size) -> Option<Size> {
    if b.is_at_most(a) { Some(a.clone()) } else { a.is_at_most(b).then(|| b.clone()) }
}

fn lesser(a: &Size, b: &Size) -> Option<Size> {
    if a.is_at_most(b) { Some(a.clone()) } else { b.is_at_most(a).then(|| b.clone()) }
}

/// A sum's own index that an equation determines.
fn solvable(expr: &Affine, product: &Product, level: u8) -> Option<Var> {
    let is_own = |v: Var| matches!(v, Var::Bound(l, _) if l == level) && range_of(&product.ranges, v).is_some();
    expr.terms.iter().find_map(|(atom, n)| match atom {
        Atom::Var(v) if is_own(*v) && matches!(n.as_number(), Some(1 | -1)) => {
            let elsewhere = expr.clone().add(&Affine::var(*v), &-n);
            (!elsewhere.mentions(*v)).then_some(*v)
        }
        Atom::Var(_) | Atom::Quotient(_) | Atom::Rest(_) => None,
    })
}

/// Writes the value of an index that has only one. `None` if a range is empty.
fn drop_units(product: &mut Product, level: u8, outer: Outer<'_>) -> Option<bool> {
    let mut is_changed = false;
    for (var, low, high) in product.ranges.clone() {
        if high.is_at_most(&low) {
            return None;
        }
        let is_own = matches!(var, Var::Bound(l, _) if l == level);
        if (&high - &low).as_number() != Some(1) {
            continue;
        }
        let mut is_mentioned = false;
        product.visit(&mut |v| is_mentioned |= v == var);
        if is_own {
            product.remove_range(var);
        }
        if is_mentioned {
            product.replace(&|v| if v == var { Affine::constant(low.clone()) } else { Affine::var(v) }, outer);
            is_changed = true;
        }
    }
    Some(is_changed)
}

/// A sum over an index that nothing depends on is a multiple.
fn count_unused(product: &mut Product, level: u8) {
    let mut used = Vec::new();
    product.visit(&mut |v| used.push(v));
    let ranges = std::mem::take(&mut product.ranges);
    for (var, low, high) in ranges {
        let is_own = matches!(var, Var::Bound(l, _) if l == level);
        if is_own && !used.contains(&var) {
            product.coefficient = &product.coefficient * &(&high - &low);
        } else {
            product.ranges.push((var, low, high));
        }
    }
}
