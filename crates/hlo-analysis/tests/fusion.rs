//! What is rewritten before fusion, and which small fusions become one, on modules of a few instructions.

use hlo_analysis::fusion::{FusionLimits, find_groups, prepare};
use hlo_ir::{CompId, InstId, Module};

fn entry_of(text: &str) -> (Module, CompId) {
    let module = hlo_text::parse_module(text).unwrap_or_else(|e| panic!("{}", e[0].message)).module;
    let entry = module.entry().expect("an entry");
    (module, entry)
}

fn find(module: &Module, comp: CompId, name: &str) -> InstId {
    let mut insts = module.comp(comp).insts.iter().copied();
    insts.find(|&inst| module.inst_name(inst) == name).unwrap_or_else(|| panic!("no {name}"))
}

/// `b` is cheap, and read before two products and after them.
fn with_a_late_user(root: &str) -> (Module, CompId) {
    entry_of(&format!(
        "HloModule m\nENTRY main {{\n  a = f32[64,64]{{1,0}} parameter(0)\n  two = f32[] constant(2)\n  \
         twos = f32[64,64]{{1,0}} broadcast(two), dimensions={{}}\n  b = f32[64,64]{{1,0}} multiply(a, twos)\n  \
         n = f32[64,64]{{1,0}} negate(b)\n  d = f32[64,64]{{1,0}} dot(n, n), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         e = f32[64,64]{{1,0}} dot(d, d), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         f = f32[64,64]{{1,0}} add(e, b)\n  g = f32[64,64]{{1,0}} subtract(f, a)\n  ROOT {root}\n}}\n"
    ))
}

#[test]
fn a_cheap_value_is_computed_again_from_what_is_kept_anyway() {
    let (mut module, entry) = with_a_late_user("h = f32[64,64]{1,0} negate(g)");
    assert_eq!(prepare(&mut module, entry).expect("no cycle").n_repeated, 1);
    hlo_ir::verify::verify(&module).expect("a module");
    let late = module.inst(find(&module, entry, "f")).operands[1];
    assert_eq!(module.inst_name(late), "b.again");
    assert_eq!(module.inst(late).operands.as_slice(), module.inst(find(&module, entry, "b")).operands.as_slice());
}

/// What a GELU's backward pass reads of its forward pass: `x` and values that are computed of it. `n_more` functions lie between.
fn gelu(n_more: usize) -> (Module, CompId) {
    let shape = "f32[64,64]{1,0}";
    let more: String = (0..n_more).map(|k| format!("  t{} = {shape} tanh(t{k})\n", k + 1)).collect();
    entry_of(&format!(
        "HloModule m\nENTRY main {{\n  a = {shape} parameter(0)\n  bias = f32[64]{{0}} parameter(1)\n  \
         d = {shape} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         biases = {shape} broadcast(bias), dimensions={{1}}\n  x = {shape} add(d, biases)\n  \
         x2 = {shape} multiply(x, x)\n  x3 = {shape} multiply(x, x2)\n  t0 = {shape} tanh(x3)\n{more}  \
         g = {shape} multiply(x, t{n_more})\n  \
         e = {shape} dot(g, g), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         h = {shape} multiply(e, t{n_more})\n  ROOT out = {shape} multiply(h, x)\n}}\n"
    ))
}

#[test]
fn a_value_of_many_operations_is_computed_again_where_these_are_cheaper_than_its_bytes() {
    let repeated = |n_more: usize| {
        let (mut module, entry) = gelu(n_more);
        let n_repeated = prepare(&mut module, entry).expect("no cycle").n_repeated;
        hlo_ir::verify::verify(&module).expect("a module");
        let late = module.inst(find(&module, entry, "h")).operands[1];
        (n_repeated, module.inst_name(late).to_string())
    };
    // A sum, two products and a tanh are 11 operations for four bytes, eight tanh 67. `x` is computed again in any case.
    assert_eq!(repeated(0), (2, "t0.again".into()));
    assert_eq!(repeated(6), (2, "t6.again".into()));
    assert_eq!(repeated(7), (1, "t7".into()));
}

/// What the last instruction takes that reads `x = add(d, other)` late, of a product `d` and `n_late` late readers.
fn late_sum(other: &str, n_late: usize) -> String {
    let (wide, by_rows) = ("f32[64,64]{1,0}", "lhs_contracting_dims={1}, rhs_contracting_dims={0}");
    let mut text = format!(
        "HloModule m\nENTRY main {{\n  a = {wide} parameter(0)\n  bias = f32[64]{{0}} parameter(1)\n  \
         d = {wide} dot(a, a), {by_rows}\n  e = {wide} dot(d, a), {by_rows}\n  \
         biases = {wide} broadcast(bias), dimensions={{1}}\n  x = {wide} add(d, {other})\n  \
         n = {wide} negate(x)\n  g0 = {wide} dot(n, n), {by_rows}\n"
    );
    for k in 0..n_late {
        text += &format!("  h{k} = {wide} multiply(g{k}, x)\n  g{} = {wide} dot(h{k}, h{k}), {by_rows}\n", k + 1);
    }
    let (mut module, entry) = entry_of(&format!("{text}  ROOT out = {wide} negate(g{n_late})\n}}\n"));
    prepare(&mut module, entry).expect("no cycle");
    hlo_ir::verify::verify(&module).expect("a module");
    let late = module.inst(find(&module, entry, &format!("h{}", n_late - 1))).operands[1];
    module.inst_name(late).to_string()
}

/// A product is written in any case: to keep it rather than a sum saves the bytes of the sum, if no more is read for that.
#[test]
fn what_is_written_anyway_is_kept_where_fewer_bytes_move() {
    for n_late in [1, 3] {
        assert!(late_sum("biases", n_late).starts_with("x.again"), "{n_late}");
        assert_eq!(late_sum("e", n_late), "x", "two products are twice as large, {n_late}");
    }
}

#[test]
fn the_smallest_values_that_lead_to_one_are_kept_for_it() {
    let (wide, small) = ("f32[64,64]{1,0}", "bf16[64,64]{1,0}");
    let (mut module, entry) = entry_of(&format!(
        "HloModule m\nENTRY main {{\n  a = {small} parameter(0)\n  b = {small} parameter(1)\n  \
         d = {small} dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         e = {small} dot(b, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         x = {small} add(d, e)\n  c = {wide} convert(x)\n  n = {wide} negate(c)\n  \
         f = {wide} dot(n, n), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n  \
         ROOT g = {wide} multiply(f, c)\n}}\n"
    ));
    // Both products are as large as `c` together; `x` is half of it.
    assert_eq!(prepare(&mut module, entry).expect("no cycle").n_repeated, 1);
    hlo_ir::verify::verify(&module).expect("a module");
    let late = module.inst(find(&module, entry, "g")).operands[1];
    assert_eq!(module.inst_name(late), "c.again");
    assert_eq!(module.inst(late).operands.as_slice(), [find(&module, entry, "x")]);
}

#[test]
fn a_value_that_the_root_hands_on_is_not_computed_again() {
    let shape = "f32[64,64]{1,0}";
    let (mut module, entry) = with_a_late_user(&format!("t = ({shape}, {shape}, {shape}) tuple(g, a, b)"));
    assert_eq!(prepare(&mut module, entry).expect("no cycle").n_repeated, 0);
}

#[test]
fn small_updates_share_a_kernel_while_it_has_arguments_left() {
    let (module, entry) = entry_of(
        "HloModule m\nENTRY main {\n  a = f32[8]{0} parameter(0)\n  b = f32[8]{0} parameter(1)\n  c = f32[8]{0} parameter(2)\n  \
         d = f32[8]{0} parameter(3)\n  x = f32[8]{0} subtract(a, b)\n  y = f32[8]{0} subtract(c, d)\n  z = f32[8]{0} add(a, d)\n  \
         ROOT t = (f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(x, y, z)\n}\n",
    );
    let joined = |max_arguments: usize| {
        let limits = FusionLimits { max_arguments, ..FusionLimits::default() };
        let groups = find_groups(&module, entry, limits);
        groups.iter().flat_map(|group| &group.members).map(|&m| module.inst_name(m)).collect::<String>()
    };
    // Two operands and a result each; the third reads what the others read. One alone is no fusion.
    assert_eq!([7, 6, 5, 4].map(joined), ["xyz", "xy", "yz", ""]);
}
