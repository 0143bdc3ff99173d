//! Reads names of dims, meshes and layouts, by the grammar `layout.pest`.

use crate::error::PartitionError;
use grammar::{Grammar, Rule};
use hlo_ir::diag::Entity;
use pest::Parser;
use pest::error::{ErrorVariant, LineColLocation};
use pest::iterators::Pair;

/// The grammar's generated rules, which carry no documentation of their own.
#[allow(missing_docs)]
mod grammar {
    #[derive(pest_derive::Parser)]
    #[grammar = "mesh_layout/layout.pest"]
    pub(super) struct Grammar;
}

/// A name and a place that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Naming {
    pub name: String,
    pub target: NamedTarget,
    /// The leaf of a tuple.
    pub leaf: Option<usize>,
    pub dim: usize,
    pub part: usize,
    /// The place as it is written, and its line.
    pub text: String,
    pub line: usize,
}

/// What a place is a dim of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NamedTarget {
    /// The name of an instruction.
    Instruction(String),
    /// What the framework calls a parameter.
    Framework(String),
}

/// An axis of a mesh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamedAxis {
    pub name: String,
    pub size: i64,
}

/// `batch = %x:0, %y:0`, one a line.
///
/// # Errors
/// Another text: its place, what was expected and what was found.
pub(crate) fn parse_names(text: &str) -> Result<Vec<Naming>, PartitionError> {
    let mut out = Vec::new();
    for naming in parse(Rule::names, "names", text)? {
        let mut inner = naming.into_inner();
        let Some(name) = inner.next().filter(|pair| pair.as_rule() == Rule::name) else { continue };
        for place in inner.filter(|pair| pair.as_rule() == Rule::place) {
            out.push(read_place(name.as_str(), place)?);
        }
    }
    Ok(out)
}

fn read_place(name: &str, place: Pair<'_, Rule>) -> Result<Naming, PartitionError> {
    let (line, _) = place.line_col();
    let text = place.as_str().trim().to_string();
    let target = NamedTarget::Instruction(String::new());
    let mut naming = Naming { name: name.to_string(), target, leaf: None, dim: 0, part: 0, text, line };
    for pair in place.into_inner() {
        match pair.as_rule() {
            Rule::instruction => {
                let inst = pair.as_str().trim_start_matches('%').to_string();
                naming.target = NamedTarget::Instruction(inst);
            }
            Rule::quoted => {
                let name = pair.as_str().trim_matches('"').to_string();
                naming.target = NamedTarget::Framework(name);
            }
            Rule::leaf => naming.leaf = Some(read_number("names", pair)?),
            Rule::part => naming.part = read_number("names", pair)?,
            Rule::number => naming.dim = read_number("names", pair)?,
            _ => {}
        }
    }
    Ok(naming)
}

/// `rows:4,cols:2`.
///
/// # Errors
/// Another text; an axis that stands twice or has no place.
pub(crate) fn parse_mesh(text: &str) -> Result<Vec<NamedAxis>, PartitionError> {
    let mut out: Vec<NamedAxis> = Vec::new();
    if text.trim().is_empty() {
        return Err(wrong("mesh", "mesh: expected axes such as `rows:4,cols:2`, found none".to_string()));
    }
    for axis in parse(Rule::mesh, "mesh", text)?.into_iter().filter(|pair| pair.as_rule() == Rule::axis) {
        let mut inner = axis.into_inner();
        let (Some(name), Some(size)) = (inner.next(), inner.find(|pair| pair.as_rule() == Rule::number)) else {
            continue;
        };
        let (name, size) = (name.as_str().to_string(), read_number("mesh", size)?);
        if out.iter().any(|axis| axis.name == name) {
            return Err(wrong("mesh", format!("axis `{name}`: expected it once, found it twice")));
        }
        if size == 0 {
            return Err(wrong("mesh", format!("axis `{name}`: expected 1 device or more, found 0")));
        }
        out.push(NamedAxis { name, size: size as i64 });
    }
    Ok(out)
}

/// `batch:rows;hidden:cols`: names of dims, and of axes.
///
/// # Errors
/// Another text; a dim that stands twice.
pub(crate) fn parse_layout(text: &str) -> Result<Vec<(String, String)>, PartitionError> {
    let mut out: Vec<(String, String)> = Vec::new();
    for pair in parse(Rule::layout, "layout", text)?.into_iter().filter(|pair| pair.as_rule() == Rule::assignment) {
        let names: Vec<String> = pair
            .into_inner()
            .filter(|pair| pair.as_rule() == Rule::name)
            .map(|name| name.as_str().to_string())
            .collect();
        let [dim, axis] = names.as_slice() else { continue };
        if let Some((_, other)) = out.iter().find(|(known, _)| known == dim) {
            let text = format!("dim `{dim}`: expected at most one axis, found `{other}` and `{axis}`");
            return Err(wrong("layout", text));
        }
        out.push((dim.clone(), axis.clone()));
    }
    Ok(out)
}

/// The pairs below the rule.
fn parse<'t>(rule: Rule, what: &'static str, text: &'t str) -> Result<Vec<Pair<'t, Rule>>, PartitionError> {
    let parsed = Grammar::parse(rule, text).map_err(|error| syntax_error(what, text, &error))?;
    Ok(parsed.flat_map(|pair| pair.into_inner()).collect())
}

fn read_number(what: &'static str, pair: Pair<'_, Rule>) -> Result<usize, PartitionError> {
    let ((line, column), text) = (pair.line_col(), pair.as_str().trim());
    match text.parse::<u32>() {
        Ok(number) => Ok(number as usize),
        Err(_) => {
            let text = format!("{what}, line {line}, column {column}: expected a number below 2^32, found `{text}`");
            Err(wrong(what, text))
        }
    }
}

fn wrong(rule: &'static str, text: String) -> PartitionError {
    PartitionError::about(rule, Entity::Module, text)
}

fn syntax_error(what: &'static str, text: &str, error: &pest::error::Error<Rule>) -> PartitionError {
    let (line, column) = match error.line_col {
        LineColLocation::Pos(at) | LineColLocation::Span(at, _) => at,
    };
    let word = |rule: &Rule| match rule {
        Rule::names | Rule::naming => "a line `name = %instruction:dim`",
        Rule::place => "a place `%instruction:dim`",
        Rule::mesh | Rule::axis => "an axis `name:size`",
        Rule::layout | Rule::assignment => "an entry `dim:axis`",
        Rule::name => "a name",
        Rule::leaf => "a leaf of a tuple",
        Rule::number | Rule::part => "a number",
        Rule::quoted | Rule::inner => "a parameter's name in quotes",
        Rule::instruction => "an instruction",
        Rule::equals => "`=`",
        Rule::colon => "`:`",
        Rule::comma => "`,`",
        Rule::separator => "a new line",
        Rule::EOI => "the end",
        Rule::WHITESPACE | Rule::COMMENT => "a blank",
    };
    let mut expected: Vec<&str> = match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => positives.iter().map(word).collect(),
        ErrorVariant::CustomError { .. } => Vec::new(),
    };
    expected.dedup();
    let expected = expected.join(" or ");
    let rest: String =
        text.lines().nth(line.saturating_sub(1)).unwrap_or_default().chars().skip(column - 1).take(20).collect();
    let found = if rest.is_empty() { "the end of the line".to_string() } else { format!("`{rest}`") };
    wrong(what, format!("{what}, line {line}, column {column}: expected {expected}, found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_several_places_and_comments() {
        let text = "# the model\nbatch = %x:0, y.1:2/1,\n  \"params['w']\":1 # rows\n; io = %t:1.0\n";
        let names = parse_names(text).expect("names");
        let told: Vec<_> = names.iter().map(|n| (n.name.as_str(), n.leaf, n.dim, n.part, n.line)).collect();
        assert_eq!(
            told,
            [("batch", None, 0, 0, 2), ("batch", None, 2, 1, 2), ("batch", None, 1, 0, 3), ("io", Some(1), 0, 0, 4)]
        );
        assert_eq!(names[1].target, NamedTarget::Instruction("y.1".into()));
        assert_eq!(names[2].target, NamedTarget::Framework("params['w']".into()));
        assert_eq!(parse_names("\n# nothing\n").expect("no names"), []);
    }

    #[test]
    fn wrong_text_is_told_with_its_place() {
        let told = |text: &str| parse_names(text).expect_err(text).to_string();
        assert_eq!(told("a = %x:0\nb %x:1"), "names, line 2, column 3: expected `=`, found `%x:1`");
        assert_eq!(told("a = %x"), "names, line 1, column 7: expected `:`, found the end of the line");
        assert!(told("a = %x:99999999999").ends_with("expected a number below 2^32, found `99999999999`"));
        let mesh = |text: &str| parse_mesh(text).expect_err(text).to_string();
        assert_eq!(mesh("rows:4,rows:2"), "axis `rows`: expected it once, found it twice");
        assert_eq!(mesh("rows:0"), "axis `rows`: expected 1 device or more, found 0");
        assert_eq!(mesh(" "), "mesh: expected axes such as `rows:4,cols:2`, found none");
        assert_eq!(mesh("rows=4"), "mesh, line 1, column 5: expected `:`, found `=4`");
        let layout = parse_layout("a:x;b:y;a:y").expect_err("twice").to_string();
        assert_eq!(layout, "dim `a`: expected at most one axis, found `x` and `y`");
        assert_eq!(parse_layout("").expect("an empty layout"), []);
    }
}
