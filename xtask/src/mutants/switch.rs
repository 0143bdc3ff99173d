//! Puts many mutants into one source, each behind a switch that a test process turns on by its number.
//!
//! ```text
//! a < b    becomes   (if crate::mutant_switch::on(7) { /*<7*/ a <= b /*7>*/ } else { a < b })
//! ```
//!
//! One build then serves all mutants of a sample. What cannot ask a switch is left out: constants, and conditions that bind
//! names with `let`.

use super::sample::Mutant;
use std::collections::HashMap;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, Block, Expr, ExprBinary, ExprStruct, ExprUnary, Member};

/// The module that is added to each crate with mutants: `on(id)` is whether the process runs mutant `id`. While
/// `HLO_MUTANTS_MET` names a file, no mutant is on, and the first question about each is noted there.
pub(super) const SWITCH_MODULE: &str = r#"
#[allow(missing_docs, clippy::all)]
pub(crate) mod mutant_switch {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
    const UNKNOWN: u32 = u32::MAX;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
    static NOTED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
    static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();

    #[inline]
    pub(crate) fn on(id: u32) -> bool {
        let active = ACTIVE.load(Relaxed);
        if active == UNKNOWN { ask(id) } else { active == id }
    }

    #[cold]
    fn ask(id: u32) -> bool {
        let file = FILE.get_or_init(|| {
            let path = std::env::var_os("HLO_MUTANTS_MET")?;
            std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
        });
        if let Some(mut file) = file.as_ref() {
            let bit = 1 << (id % 64);
            if NOTED[id as usize / 64].fetch_or(bit, Relaxed) & bit == 0 {
                let _ = file.write_all(format!("{id}\n").as_bytes());
            }
            return false;
        }
        let active = std::env::var("HLO_MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(UNKNOWN - 1);
        ACTIVE.store(active, Relaxed);
        active == id
    }
}
"#;

/// The source with a switch for each mutant, and the mutants that cannot have one.
pub(super) fn with_switches(source: &str, mutants: &[(u32, &Mutant)]) -> Result<(String, Vec<u32>), String> {
    let file = syn::parse_file(source).map_err(|e| e.to_string())?;
    let mut at = HashMap::<_, Vec<_>>::new();
    for &(id, mutant) in mutants {
        at.entry((mutant.genre.as_str(), mutant.span.start)).or_default().push((id, mutant));
    }
    let mut switches = Switches { source, at, constants: 0, begins: HashMap::new(), ends: HashMap::new() };
    switches.visit_file(&file);
    let left: Vec<u32> = switches.at.values().flatten().map(|(id, _)| *id).collect();
    Ok((switches.render(), left))
}

struct Switches<'a> {
    source: &'a str,
    /// Mutants that no node was found for yet, by genre and first byte.
    at: HashMap<(&'a str, usize), Vec<(u32, &'a Mutant)>>,
    /// How many constants are around the node.
    constants: usize,
    /// What is put before a byte, outer nodes first.
    begins: HashMap<usize, Vec<String>>,
    /// What is put after a node that ends before a byte, outer nodes first.
    ends: HashMap<usize, Vec<String>>,
}

fn on(id: u32) -> String {
    format!("crate::mutant_switch::on({id})")
}

/// Text of one mutant, between marks by which an error of the compiler is laid to it.
fn marked(id: u32, text: &str) -> String {
    format!("/*<{id}*/ {text} /*{id}>*/")
}

impl<'a> Switches<'a> {
    /// Takes the mutants of a genre at a node, unless a constant is around it.
    fn take(&mut self, genre: &'static str, start: usize) -> Vec<(u32, &'a Mutant)> {
        if self.constants > 0 { Vec::new() } else { self.at.remove(&(genre, start)).unwrap_or_default() }
    }

    fn put(&mut self, range: Range<usize>, begin: String, end: String) {
        self.begins.entry(range.start).or_default().push(begin);
        self.ends.entry(range.end).or_default().push(end);
    }

    /// Puts other texts in the place of an expression, each for its mutant.
    fn choose(&mut self, range: Range<usize>, texts: &[(u32, String)]) {
        if texts.is_empty() {
            return;
        }
        let branches: Vec<String> =
            texts.iter().map(|(id, text)| format!("if {} {{ {} }}", on(*id), marked(*id, text))).collect();
        self.put(range, format!("({} else {{ ", branches.join(" else ")), " })".into());
    }

    fn body(&mut self, block: &Block) {
        let Some(first) = block.stmts.first() else { return };
        let start = first.span().byte_range().start;
        for (id, mutant) in self.take("FnValue", start) {
            let text = format!("if {} {{ {} }} ", on(id), marked(id, &format!("return {};", mutant.replacement)));
            self.put(start..start, text, String::new());
        }
    }

    fn inside_constant(&mut self, is_constant: bool, visit: impl FnOnce(&mut Self)) {
        self.constants += usize::from(is_constant);
        visit(self);
        self.constants -= usize::from(is_constant);
    }

    fn render(&self) -> String {
        let mut text = String::with_capacity(self.source.len() * 2);
        let mut places: Vec<usize> = self.begins.keys().chain(self.ends.keys()).copied().collect();
        places.sort_unstable();
        places.dedup();
        let mut done = 0;
        for place in places {
            text.push_str(&self.source[done..place]);
            text.extend(self.ends.get(&place).into_iter().flatten().rev().map(String::as_str));
            text.extend(self.begins.get(&place).into_iter().flatten().map(String::as_str));
            done = place;
        }
        text + &self.source[done..]
    }
}

impl<'ast> Visit<'ast> for Switches<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.inside_constant(item.sig.constness.is_some(), |this| {
            this.body(&item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.inside_constant(item.sig.constness.is_some(), |this| {
            this.body(&item.block);
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.inside_constant(true, |this| visit::visit_item_const(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.inside_constant(true, |this| visit::visit_impl_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.inside_constant(true, |this| visit::visit_item_static(this, item));
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.inside_constant(true, |this| visit::visit_type_array(this, array));
    }

    fn visit_expr_binary(&mut self, node: &'ast ExprBinary) {
        let operator = node.op.span().byte_range();
        if !binds_names(&node.left) && !binds_names(&node.right) {
            let range = node.span().byte_range();
            let (before, after) = (&self.source[range.start..operator.start], &self.source[operator.end..range.end]);
            let texts: Vec<_> = self
                .take("BinaryOperator", operator.start)
                .into_iter()
                .map(|(id, mutant)| (id, format!("{before}{}{after}", mutant.replacement)))
                .collect();
            self.choose(range, &texts);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast ExprUnary) {
        let operator = node.op.span().byte_range();
        let range = node.span().byte_range();
        let operand = self.source[operator.end..range.end].to_string();
        let texts: Vec<_> =
            self.take("UnaryOperator", operator.start).into_iter().map(|(id, _)| (id, operand.clone())).collect();
        self.choose(range, &texts);
        visit::visit_expr_unary(self, node);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let (start, end) = (arm.span().byte_range().start, arm.pat.span().byte_range().end);
        for (id, _) in self.take("MatchArm", start) {
            self.put(end..end, format!(" if {}", marked(id, &format!("!{}", on(id)))), String::new());
        }
        if let Some((_, guard)) = &arm.guard {
            let range = guard.span().byte_range();
            for (id, mutant) in self.take("MatchArmGuard", range.start) {
                let joined =
                    if mutant.replacement == "true" { format!("{} ||", on(id)) } else { format!("!{} &&", on(id)) };
                match binds_names(guard) {
                    false => self.put(range.clone(), format!("{} (", marked(id, &joined)), ")".into()),
                    true => self.put(range.clone(), marked(id, &joined), String::new()),
                }
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, node: &'ast ExprStruct) {
        if let Some(rest) = &node.rest {
            let (path, rest) = (node.path.span().byte_range(), rest.span().byte_range());
            let (path, rest) = (&self.source[path], &self.source[rest]);
            for field in &node.fields {
                let Member::Named(name) = &field.member else { continue };
                if field.colon_token.is_none() {
                    continue;
                }
                let text = format!("let base: {path} = {rest}; base.{name}");
                let texts: Vec<_> = self
                    .take("StructField", field.span().byte_range().start)
                    .into_iter()
                    .map(|(id, _)| (id, text.clone()))
                    .collect();
                self.choose(field.expr.span().byte_range(), &texts);
            }
        }
        visit::visit_expr_struct(self, node);
    }
}

/// Whether a condition has `let` in it.
fn binds_names(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => binds_names(&binary.left) || binds_names(&binary.right),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Mutant, with_switches};

    fn mutant(source: &str, genre: &str, part: &str, replacement: &str) -> Mutant {
        let start = source.find(part).expect("the part is in the source");
        Mutant {
            key: String::new(),
            part: 0,
            file: String::new(),
            genre: genre.into(),
            span: start..start + part.len(),
            replacement: replacement.into(),
        }
    }

    #[test]
    fn each_genre_gets_its_switch_and_what_runs_at_compile_time_gets_none() {
        let source = "const N: u8 = 1 * 2;\nfn f(x: u8) -> bool { match x { 3 if x > 1 => !true, 4 => x + 1 < 9, _ => false } }\n";
        let mutants = [
            mutant(source, "BinaryOperator", "*", "+"),
            mutant(source, "FnValue", "match x", "false"),
            mutant(source, "MatchArmGuard", "x > 1", "true"),
            mutant(source, "UnaryOperator", "!", ""),
            mutant(source, "MatchArm", "4 =>", ""),
            mutant(source, "BinaryOperator", "+", "-"),
            mutant(source, "BinaryOperator", "<", ">"),
        ];
        let numbered: Vec<_> = (0..).zip(&mutants).collect();
        let (text, left) = with_switches(source, &numbered).expect("the source parses");
        assert_eq!(left, [0]);
        let text = text.replace("crate::mutant_switch::on", "on");
        let expected = [
            "const N: u8 = 1 * 2;\nfn f(x: u8) -> bool { if on(1) { /*<1*/ return false; /*1>*/ } match x { ",
            "3 if /*<2*/ on(2) || /*2>*/ (x > 1) => (if on(3) { /*<3*/ true /*3>*/ } else { !true }), ",
            "4 if /*<4*/ !on(4) /*4>*/ => (if on(6) { /*<6*/ x + 1 > 9 /*6>*/ } else { ",
            "(if on(5) { /*<5*/ x - 1 /*5>*/ } else { x + 1 }) < 9 }), _ => false } }\n",
        ];
        assert_eq!(text, expected.concat());
    }
}
