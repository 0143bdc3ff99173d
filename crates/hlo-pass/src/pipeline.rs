//! Pipeline strings such as `@machine=h200:2;shard-weight-update{min-bytes=4KiB},dce`, read with a small pest grammar (`pipeline.pest`).

use pest::Parser;
use pest::iterators::Pair;
use std::fmt;

use grammar::{Grammar, Rule};

/// The grammar's generated rules, which carry no documentation of their own.
#[allow(missing_docs)]
mod grammar {
    #[derive(pest_derive::Parser)]
    #[grammar = "pipeline.pest"]
    pub(super) struct Grammar;
}

/// Longest pipeline string that is read; nesting is bounded by it.
const MAX_LEN: usize = 16 << 10;

/// A pipeline as given: settings of its target in front, then its passes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pipeline {
    /// Settings in order, not yet read.
    pub settings: Vec<(String, String)>,
    /// Passes in order.
    pub calls: Vec<PassCall>,
}

impl Pipeline {
    /// Reads a pipeline string.
    ///
    /// # Errors
    /// Place, expected and found.
    pub fn parse(text: &str) -> Result<Pipeline, PipelineError> {
        let mut pipeline = Pipeline::default();
        for pair in pairs(text)? {
            match pair.as_rule() {
                Rule::setting => pipeline.settings.push(setting(pair)),
                Rule::pass => pipeline.calls.push(pass_call(pair)),
                _ => {}
            }
        }
        Ok(pipeline)
    }
}

/// One pass of a pipeline with its options as given.
#[derive(Clone, PartialEq, Debug)]
pub struct PassCall {
    /// Name, not yet looked up.
    pub name: String,
    /// Options in order.
    pub options: Vec<(String, OptionValue)>,
}

/// An option's value as given.
#[derive(Clone, PartialEq, Debug)]
pub enum OptionValue {
    /// Text, quotes and escapes removed.
    Text(String),
    /// A list `[a,b]`.
    List(Vec<OptionValue>),
    /// No `=`: the flag is set.
    Set,
}

/// The text that [`parse_pipeline`] reads as this call.
impl fmt::Display for PassCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (i, (name, value)) in self.options.iter().enumerate() {
            write!(f, "{}{name}", if i == 0 { '{' } else { ',' })?;
            match value {
                OptionValue::Set => {}
                OptionValue::List(_) => write!(f, "={}", value.as_text())?,
                OptionValue::Text(text) if text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c)) => {
                    write!(f, "={text}")?;
                }
                OptionValue::Text(text) => write!(f, "=\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))?,
            }
        }
        f.write_str(if self.options.is_empty() { "" } else { "}" })
    }
}

impl OptionValue {
    /// The value as one text; lists keep their brackets.
    pub fn as_text(&self) -> String {
        match self {
            OptionValue::Text(text) => text.clone(),
            OptionValue::List(items) => {
                format!("[{}]", items.iter().map(OptionValue::as_text).collect::<Vec<_>>().join(","))
            }
            OptionValue::Set => "true".into(),
        }
    }
}

/// What is wrong with a pipeline string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PipelineError(String);

impl PipelineError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> PipelineError {
        PipelineError(message.into())
    }

    /// `unknown <what> <name>`, with the nearest of `known` if one is near, and else with all of them.
    pub fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> PipelineError {
        let all = known.clone().collect::<Vec<_>>().join(", ");
        let advice = match nearest(name, known) {
            Some(near) => format!(", did you mean `{near}`?"),
            None if all.is_empty() => "; there is none".into(),
            None => format!("; expected one of {all}"),
        };
        PipelineError(format!("unknown {what}: `{name}`{advice}"))
    }
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PipelineError {}

/// The candidate nearest to `name`, if it is near enough to be a slip of the pen.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        // Jaro-Winkler is hard on short names: one slip (`dec` for `dce`) counts as near too.
        .map(|c| (strsim::jaro_winkler(name, c).max(if strsim::osa_distance(name, c) <= 1 { 0.8 } else { 0.0 }), c))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c)
}

/// Reads a pipeline string without settings, as presets are made of.
///
/// # Errors
/// Place, expected and found; a setting.
pub fn parse_pipeline(text: &str) -> Result<Vec<PassCall>, PipelineError> {
    let Pipeline { settings, calls } = Pipeline::parse(text)?;
    match settings.first() {
        Some((name, _)) => Err(PipelineError(format!("expected passes alone, found the setting `@{name}`"))),
        None => Ok(calls),
    }
}

fn pairs(text: &str) -> Result<impl Iterator<Item = Pair<'_, Rule>>, PipelineError> {
    if text.len() > MAX_LEN {
        return Err(PipelineError(format!("expected at most {MAX_LEN} bytes of pipeline, found {}", text.len())));
    }
    let depth = text.bytes().fold((0i64, 0i64), |(now, max), b| match b {
        b'{' | b'[' | b'(' => (now + 1, max.max(now + 1)),
        b'}' | b']' | b')' => (now - 1, max),
        _ => (now, max),
    });
    if depth.1 > 64 {
        return Err(PipelineError("brackets are nested deeper than 64 levels".into()));
    }
    let mut pairs =
        Grammar::parse(Rule::pipeline, text).map_err(|e| PipelineError(format!("pipeline string:\n{e}")))?;
    Ok(pairs.next().map(Pair::into_inner).into_iter().flatten())
}

fn setting(pair: Pair<'_, Rule>) -> (String, String) {
    let mut inner = pair.into_inner();
    let name = inner.next().map_or(String::new(), |n| n.as_str().into());
    (name, inner.next().map_or(String::new(), |pair| value(pair).as_text()))
}

fn pass_call(pair: Pair<'_, Rule>) -> PassCall {
    let mut call = PassCall { name: String::new(), options: Vec::new() };
    for part in pair.into_inner() {
        if part.as_rule() == Rule::name {
            call.name = part.as_str().into();
        } else {
            let mut inner = part.into_inner();
            let name = inner.next().map_or(String::new(), |n| n.as_str().into());
            call.options.push((name, inner.next().map_or(OptionValue::Set, value)));
        }
    }
    call
}

fn value(pair: Pair<'_, Rule>) -> OptionValue {
    let text = pair.as_str().trim().to_string();
    let Some(inner) = pair.into_inner().next() else { return OptionValue::Text(text) };
    match inner.as_rule() {
        Rule::list => OptionValue::List(inner.into_inner().map(value).collect()),
        Rule::quoted => {
            let raw = inner.into_inner().next();
            let is_escaped = raw.as_ref().is_some_and(|r| r.as_rule() == Rule::inner);
            let raw = raw.map_or("", |r| r.as_str());
            OptionValue::Text(if is_escaped { unescape(raw) } else { raw.into() })
        }
        _ => OptionValue::Text(inner.as_str().trim().into()),
    }
}

fn unescape(raw: &str) -> String {
    let mut out = String::new();
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        out.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(t: &str) -> OptionValue {
        OptionValue::Text(t.into())
    }

    #[test]
    fn options_keep_their_commas_and_brackets() {
        let calls =
            parse_pipeline("a,b{opt=1,list=[x,y]},c{cluster=[(node,4,8),(gpu,8)],s=\"p,q}\\\"\",flag}").unwrap();
        assert_eq!(calls.len(), 3);
        assert_eq!(calls[0], PassCall { name: "a".into(), options: vec![] });
        assert_eq!(calls[1].options[0], ("opt".into(), text("1")));
        assert_eq!(calls[1].options[1].1, OptionValue::List(vec![text("x"), text("y")]));
        assert_eq!(calls[2].options[0].1.as_text(), "[(node,4,8),(gpu,8)]");
        assert_eq!(calls[2].options[1].1, text("p,q}\""));
        assert_eq!(calls[2].options[2].1, OptionValue::Set);
        assert_eq!(parse_pipeline("").unwrap(), []);
    }

    #[test]
    fn calls_print_as_they_are_read() {
        for text in ["a", "b{opt=1,list=[x,[y,z]],flag}", "c{s=\"p,q}\\\"\\\\\"}"] {
            let calls = parse_pipeline(text).unwrap();
            assert_eq!(calls[0].to_string(), text);
        }
    }

    #[test]
    fn settings_stand_in_front() {
        let text = "@machine=a100:[(node,2),(gpu,8)]; @memory-limit = 30GiB;dce,cse";
        let pipeline = Pipeline::parse(text).unwrap();
        let settings = [("machine", "a100:[(node,2),(gpu,8)]"), ("memory-limit", "30GiB")];
        assert_eq!(pipeline.settings, settings.map(|(name, value)| (name.to_string(), value.to_string())));
        assert_eq!(pipeline.calls.len(), 2);
        assert!(parse_pipeline(text).unwrap_err().to_string().contains("found the setting `@machine`"));
        assert!(Pipeline::parse("dce;@machine=h100").is_err());
        let file = Pipeline::parse("@machine=\"name = 'x'; device = 'h100'\";dce").unwrap();
        assert_eq!(file.settings[0].1, "name = 'x'; device = 'h100'");
    }

    #[test]
    fn errors_say_where() {
        let error = parse_pipeline("a{x=1").unwrap_err().to_string();
        assert!(error.contains("1:5"), "{error}");
        assert!(parse_pipeline(&"{".repeat(10_000)).is_err());
        assert!(parse_pipeline("a,,b").is_err());
    }

    #[test]
    fn slips_find_the_nearest_name() {
        assert_eq!(
            nearest("shard-weight-updat", ["dce", "shard-weight-update"].into_iter()),
            Some("shard-weight-update")
        );
        assert_eq!(nearest("dec", ["cse", "dce"].into_iter()), Some("dce"));
        assert_eq!(nearest("zzz", ["dce", "cse"].into_iter()), None);
    }
}
