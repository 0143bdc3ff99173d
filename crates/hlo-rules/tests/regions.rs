//! Alternatives of regions: written back as HLO, they pass the verifier and give what the source gives.

use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_ir::{InstId, Literal, Module, Opcode, Scalar};
use hlo_rules::bridge::{find_regions, read_region, write_alternative};
use hlo_rules::region::{Aim, Limits, Rewrite, aimed_rewrites, alternatives, is_backward_form, rewrites};
use hlo_rules::text::print_rule;
use hlo_rules::{Op, Options, Origin, RuleSet, TermId, Terms, generate};
use std::collections::BTreeSet;
use std::sync::OnceLock;

fn set() -> &'static (RuleSet, Vec<Rewrite>) {
    static SET: OnceLock<(RuleSet, Vec<Rewrite>)> = OnceLock::new();
    SET.get_or_init(|| {
        let set = generate(Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let rewrites = rewrites(&set);
        (set, rewrites)
    })
}

/// A launch and the elements that an op touches; more for a product's than for a copy's.
fn cost(terms: &Terms, term: TermId, is_concat_dear: bool) -> u64 {
    let n = |t: TermId| terms.dims(t).iter().map(|d| d.as_number().unwrap_or(1)).product::<i64>() as u64;
    let node = terms.node(term);
    let touched = n(term) + node.args.iter().map(|&a| n(a)).sum::<u64>();
    match node.op {
        Op::Input(_) => 0,
        Op::Dot(_) | Op::Conv(_) => 10_000 + touched,
        Op::Concat { .. } if is_concat_dear => 1_000 * touched,
        _ => touched,
    }
}

fn load(name: &str) -> Module {
    let path = format!("{}/examples/programs/{name}.hlo", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{name}: {e:?}")).module
}

fn numbers(literal: &Literal) -> Vec<f64> {
    let n: i64 = literal.dims().iter().product();
    let number = |i| match literal.get(i) {
        Some(Scalar::Float(x)) => x,
        other => panic!("expected a float, found {other:?}"),
    };
    (0..n as usize).map(number).collect()
}

fn results(module: &Module, seed: u64) -> Vec<Vec<f64>> {
    let options = DrawOptions { seed, ..DrawOptions::default() };
    let inputs = draw_inputs(module, None, &options).unwrap_or_else(|e| panic!("{e}"));
    let outputs = run(module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    outputs.leaves.iter().map(|leaf| numbers(&leaf[0])).collect()
}

/// Checks all alternatives of a program; returns the numbers of dots and convolutions of each.
fn check(name: &str, is_concat_dear: bool) -> Vec<usize> {
    check_with(name, &set().1, Limits::default(), &|terms, term| cost(terms, term, is_concat_dear))
}

/// The same by the rewrites of an aim alone.
fn check_aimed(name: &str, aim: Aim) -> Vec<usize> {
    let rewrites = aimed_rewrites(aim).unwrap_or_else(|e| panic!("{e:?}"));
    let limits = Limits { n_ops: 60, n_classes: 600, n_rounds: 12, joins_again: true, ..Limits::default() };
    // What is to be got rid of is dear.
    let is_product = |terms: &Terms, t: TermId| matches!(terms.node(t).op, Op::Dot(_) | Op::Conv(_));
    let price = |terms: &Terms, term: TermId| match (&terms.node(term).op, aim) {
        (Op::Slice { .. }, Aim::Split) if terms.reachable(&[term]).iter().any(|&t| is_product(terms, t)) => 1 << 30,
        _ => cost(terms, term, aim == Aim::Split),
    };
    check_with(name, &rewrites, limits, &price)
}

fn check_with(name: &str, rewrites: &[Rewrite], limits: Limits, cost: &dyn Fn(&Terms, TermId) -> u64) -> Vec<usize> {
    let module = load(name);
    let entry = module.entry().expect("an entry");
    let mut products = Vec::new();
    for insts in find_regions(&module, entry, limits.n_ops) {
        let region = read_region(&module, entry, &insts).unwrap_or_else(|e| panic!("{e}"));
        let roots: Vec<TermId> = region.outputs.iter().map(|o| o.1).collect();
        let start = std::time::Instant::now();
        let found = alternatives(rewrites, &region.terms, &roots, limits, cost).unwrap_or_else(|e| panic!("{e}"));
        println!("{name}: {} applications, {} unproved, {:?}", found.n_applications, found.n_unproved, start.elapsed());
        assert!(found.all.len() <= limits.n_alternatives);
        for alternative in &found.all {
            let mut changed = module.clone();
            write_alternative(&mut changed, &region, &found.terms, &alternative.roots)
                .unwrap_or_else(|e| panic!("{e}"));
            let text = hlo_ir::print::print_module(&changed, &Default::default());
            hlo_ir::verify::verify(&changed).unwrap_or_else(|e| panic!("{text}{e:?}"));
            let is_slice = |inst| changed.inst(inst).opcode == Opcode::Slice;
            let nested = |&inst: &InstId| is_slice(inst) && is_slice(changed.inst(inst).operands[0]);
            assert!(!changed.comp(entry).insts.iter().any(nested), "slices of slices are one slice\n{text}");
            for seed in 0..3 {
                for (want, is) in results(&module, seed).iter().zip(&results(&changed, seed)) {
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * (1.0 + a.abs());
                    assert!(want.len() == is.len() && want.iter().zip(is).all(close), "{want:?} {is:?} {text}");
                }
            }
            let is_product = |t: &&TermId| matches!(found.terms.node(**t).op, Op::Dot(_) | Op::Conv(_));
            let all = found.terms.reachable(&alternative.roots);
            products.push(all.iter().filter(is_product).count());
        }
    }
    products
}

#[test]
fn products_that_share_an_operand_become_one() {
    let n_products = check("shared_operand", false);
    assert_eq!((n_products.iter().min(), n_products.iter().max()), (Some(&1), Some(&2)));
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn branches_with_their_gradients_are_stacked() {
    assert!(check("branches", false).iter().min() <= Some(&6), "ten products become six or fewer");
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn a_product_of_a_concatenation_is_split() {
    assert!(check("wide_concat", true).iter().max() >= Some(&4));
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn convolutions_on_one_input_become_one() {
    assert_eq!(check("kernels", false).iter().min(), Some(&1));
}

#[test]
#[ignore = "takes long: .ci/nightly runs it"]
fn convolutions_of_two_inputs_become_a_grouped_one() {
    assert_eq!(check("groups", false).iter().min(), Some(&1));
}

#[test]
fn chains_are_associated_in_both_ways() {
    assert!(check("chain", false).len() >= 2);
}

#[test]
fn three_products_of_one_operand_become_one_product() {
    let n_products = check_aimed("three_of_one", Aim::Join);
    assert_eq!((n_products.iter().min(), n_products.iter().max()), (Some(&1), Some(&3)));
}

#[test]
fn products_of_nine_parts_are_split_into_all_of_them() {
    assert_eq!(
        check_aimed("nine_parts", Aim::Split).iter().max(),
        Some(&18),
        "forward, and the gradient of the weight"
    );
    assert_eq!(check_aimed("nine_slices", Aim::Split).iter().max(), Some(&9));
}

/// What is said of an operand by its place stays with it: such a product is in no region.
#[test]
fn products_with_a_precision_for_each_operand_are_no_region() {
    let of = |words: &str| {
        let text = format!(
            "HloModule m\n\nENTRY %main {{\n  %x = f32[4,5] parameter(0)\n  %w = f32[5,6] parameter(1)\n  \
             ROOT %y = f32[4,6] dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, operand_precision={{{words}}}\n}}\n"
        );
        let module = hlo_text::parse_module(&text).unwrap_or_else(|e| panic!("{e:?}")).module;
        let (entry, root) = (module.entry().expect("an entry"), module.comp(module.entry().unwrap()).root.unwrap());
        read_region(&module, entry, &[root]).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(of("highest,highest"), Ok(()));
    assert!(of("highest,default").is_err_and(|e| e.contains("another precision for each operand")));
}

#[test]
fn an_aim_has_no_rewrites_for_other_programs() {
    assert_eq!(check_aimed("nine_parts", Aim::Join), [2]);
    assert_eq!(check_aimed("three_of_one", Aim::Split), [3]);
    assert!(check_aimed("chain", Aim::Reorder).len() >= 2);
}

/// The texts that are kept are the rewrites of the set, in order. `KEEP_REWRITES=1` writes them anew.
#[test]
fn kept_rewrites_are_those_of_the_set() {
    let (set, all) = set();
    for aim in Aim::ALL {
        let label = |rewrite: &Rewrite| Some(set.entries[rewrite.entry].accepted.label);
        let wanted: Vec<String> =
            all.iter().filter(|one| one.serves(aim)).map(|one| print_rule(&one.rule, label(one))).collect();
        assert!(!wanted.is_empty(), "{}", aim.name());
        let path = format!("{}/src/region/{}.txt", env!("CARGO_MANIFEST_DIR"), aim.name());
        if std::env::var_os("KEEP_REWRITES").is_some() {
            std::fs::write(&path, wanted.join("\n")).unwrap_or_else(|e| panic!("{path}: {e}"));
            continue;
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(kept == wanted.join("\n"), "{path}: KEEP_REWRITES=1 writes it anew");
        assert_eq!(aimed_rewrites(aim).map(|kept| kept.len()), Ok(wanted.len()));
    }
}

/// So are the names of those that are there only because the set is closed.
#[test]
fn kept_names_of_backward_forms_are_those_of_the_set() {
    let (set, all) = set();
    let is_enumerated =
        |name: &str| set.entries.iter().any(|e| e.rule.name == name && !matches!(e.origin, Origin::Gradient { .. }));
    let is_backward = |rewrite: &&Rewrite| !is_enumerated(&rewrite.rule.name);
    let of_aims = all.iter().filter(|one| Aim::ALL.into_iter().any(|aim| one.serves(aim)));
    let wanted: BTreeSet<String> = of_aims.filter(is_backward).map(|one| one.rule.name.clone()).collect();
    let path = format!("{}/src/region/backward.txt", env!("CARGO_MANIFEST_DIR"));
    let text = wanted.iter().map(|name| format!("{name}\n")).collect::<String>();
    if std::env::var_os("KEEP_REWRITES").is_some() {
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{path}: {e}"));
        return;
    }
    assert!(!wanted.is_empty() && wanted.len() < all.len());
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(kept == text, "{path}: KEEP_REWRITES=1 writes it anew");
    let is_told = |one: &Rewrite| is_backward_form(one) == wanted.contains(&one.rule.name);
    assert!(Aim::ALL.into_iter().all(|aim| aimed_rewrites(aim).is_ok_and(|kept| kept.iter().all(is_told))));
}
