//! Text to rules.

use super::parse_error::ParseError;
use super::tokens::{Placed, Token, tokens};
use crate::op::{Conv, Dims, DotDims, Op, Unary, Window};
use crate::rule::{Label, Rule};
use crate::signature::Signature;
use crate::size::{Size, Sym};
use crate::term::{Args, TermId};
use smallvec::SmallVec;

type Parsed<T> = Result<T, ParseError>;

/// Deepest nesting of a term.
const MOST_DEPTH: usize = 64;

/// The rules of a text, each with the label that it claims.
///
/// # Errors
/// The first place that does not fit.
pub fn parse_rules(text: &str) -> Result<Vec<(Rule, Option<Label>)>, ParseError> {
    let mut parser =
        Parser { tokens: tokens(text)?, at: 0, rule: Rule::default(), amounts: Vec::new(), inputs: Vec::new() };
    let mut rules = Vec::new();
    while *parser.peek() != Token::End {
        rules.push(parser.rule()?);
    }
    Ok(rules)
}

/// The signatures of a text: inputs, the names of ops, and sizes that they are taken from.
///
/// # Errors
/// The first place that does not fit.
pub(crate) fn parse_signatures(text: &str) -> Result<Vec<Signature>, ParseError> {
    let mut parser =
        Parser { tokens: tokens(text)?, at: 0, rule: Rule::default(), amounts: Vec::new(), inputs: Vec::new() };
    let mut all = Vec::new();
    while *parser.peek() != Token::End {
        all.push(parser.signature()?);
    }
    Ok(all)
}

struct Parser {
    tokens: Vec<Placed>,
    at: usize,
    rule: Rule,
    amounts: Vec<String>,
    inputs: Vec<TermId>,
}

/// The value of an attribute, read before it is known what it is of: numbers of dims are sizes without unknowns.
enum Value {
    Size(Size),
    List(Vec<Vec<Size>>),
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn error<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        self.error_at(self.at, expected, self.peek().to_string())
    }

    fn error_at<T>(&self, at: usize, expected: impl Into<String>, found: impl Into<String>) -> Parsed<T> {
        let (_, line, column) = self.tokens[at];
        Err(ParseError { line, column, expected: expected.into(), found: found.into() })
    }

    fn sign(&mut self, sign: char) -> Parsed<()> {
        if *self.peek() != Token::Sign(sign) {
            return self.error(format!("`{sign}`"));
        }
        self.next();
        Ok(())
    }

    fn is_taken(&mut self, sign: char) -> bool {
        let is = *self.peek() == Token::Sign(sign);
        if is {
            self.next();
        }
        is
    }

    fn word(&mut self, what: &str) -> Parsed<String> {
        match self.peek().clone() {
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            Token::Number(_) | Token::Sign(_) | Token::End => self.error(what),
        }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(w) if w == word)
    }

    fn rule(&mut self) -> Parsed<(Rule, Option<Label>)> {
        self.header("rule")?;
        let label = [Label::Exact, Label::Reassoc].into_iter().find(|label| self.is_word(label.name()));
        if label.is_some() {
            self.next();
        }
        self.amounts()?;
        while !self.is_word("left") {
            self.input()?;
        }
        let left = self.side("left")?;
        let right = self.side("right")?;
        (self.rule.left, self.rule.right) = (left, right);
        Ok((std::mem::take(&mut self.rule), label))
    }

    fn header(&mut self, word: &str) -> Parsed<()> {
        if !self.is_word(word) {
            return self.error(format!("`{word}`"));
        }
        self.next();
        (self.rule, self.amounts, self.inputs) = Default::default();
        self.rule.name = self.word("a name")?;
        Ok(())
    }

    fn amounts(&mut self) -> Parsed<()> {
        if self.is_word("amounts") {
            self.next();
            loop {
                let name = self.word("the name of an amount")?;
                self.amounts.push(name);
                if !self.is_taken(',') {
                    break;
                }
            }
        }
        Ok(())
    }

    fn signature(&mut self) -> Parsed<Signature> {
        self.header("signature")?;
        self.amounts()?;
        while !self.is_word("ops") {
            self.input()?;
        }
        self.next();
        self.sign('=')?;
        let mut signature = Signature::default();
        while let Token::Word(word) = self.peek().clone() {
            if ["windows", "pads", "new", "point", "signature"].contains(&word.as_str()) {
                break;
            }
            signature.ops.push(word);
            self.next();
        }
        while self.is_word("windows") || self.is_word("pads") || self.is_word("new") || self.is_word("point") {
            let at = self.at;
            let what = self.word("what sizes are for")?;
            self.sign('=')?;
            for item in self.list()? {
                match (what.as_str(), item.as_slice()) {
                    ("windows", [a, b, c, d, e]) => signature.windows.push([a, b, c, d, e].map(Clone::clone)),
                    ("pads", [low, high]) => signature.pads.push((low.clone(), high.clone())),
                    ("new", [size]) => signature.new.push(size.clone()),
                    ("point", [name, value]) => signature.point.push((name.clone(), value.clone())),
                    (_, item) => {
                        return self.error_at(
                            at,
                            "5 sizes a window, 2 a padding or a point, 1 a dim",
                            item.len().to_string(),
                        );
                    }
                }
            }
        }
        signature.inputs = std::mem::take(&mut self.inputs);
        signature.base = std::mem::take(&mut self.rule);
        Ok(signature)
    }

    fn input(&mut self) -> Parsed<()> {
        let at = self.at;
        let name = self.word("an input or `left`")?;
        if self.rule.inputs.contains(&name) {
            return self.error_at(at, "a name that no other input has", format!("`{name}`"));
        }
        if self.rule.inputs.len() >= 64 {
            return self.error_at(at, "at most 64 inputs", "another one");
        }
        self.sign(':')?;
        let at = self.at;
        let dims: Dims = self.list()?.into_iter().flatten().collect();
        if !dims.iter().all(|d| Size::number(1).is_at_most(d)) {
            return self.error_at(at, "dims of one or more for all sizes", "a dim that may be less");
        }
        let term = self.rule.terms.input(self.rule.inputs.len() as u8, dims);
        self.rule.inputs.push(name);
        self.inputs.push(term);
        Ok(())
    }

    fn side(&mut self, which: &str) -> Parsed<Vec<TermId>> {
        if !self.is_word(which) {
            return self.error(format!("`{which}`"));
        }
        self.next();
        self.sign('=')?;
        let mut results = vec![self.term(0)?];
        while self.is_taken(',') {
            results.push(self.term(0)?);
        }
        Ok(results)
    }

    /// `[a:b, c]`.
    fn list(&mut self) -> Parsed<Vec<Vec<Size>>> {
        self.sign('[')?;
        let mut items = Vec::new();
        while !self.is_taken(']') {
            let mut item = vec![self.size()?];
            while self.is_taken(':') {
                item.push(self.size()?);
            }
            items.push(item);
            if *self.peek() != Token::Sign(']') {
                self.sign(',')?;
            }
        }
        Ok(items)
    }

    fn size(&mut self) -> Parsed<Size> {
        let is_negative = self.is_taken('-');
        let first = self.product()?;
        let mut sum = if is_negative { -&first } else { first };
        loop {
            if self.is_taken('+') {
                sum = &sum + &self.product()?;
            } else if self.is_taken('-') {
                sum = &sum - &self.product()?;
            } else {
                return Ok(sum);
            }
        }
    }

    fn product(&mut self) -> Parsed<Size> {
        let mut product = self.factor()?;
        let mut n_factors = 1;
        while self.is_taken('*') {
            product = &product * &self.factor()?;
            n_factors += 1;
            if n_factors > 3 {
                return self.error("products of at most three factors");
            }
        }
        Ok(product)
    }

    fn factor(&mut self) -> Parsed<Size> {
        match self.next() {
            Token::Number(n) => Ok(Size::number(n)),
            Token::Word(name) => {
                let known = self.rule.unknowns.iter().position(|u| *u == name);
                if known.is_none() && self.rule.unknowns.len() >= 64 {
                    return self.error("at most 64 names of sizes");
                }
                let number = known.unwrap_or_else(|| {
                    self.rule.unknowns.push(name.clone());
                    self.rule.unknowns.len() - 1
                }) as u8;
                let is_amount = self.amounts.contains(&name);
                Ok(Size::unknown(if is_amount { Sym::amount(number) } else { Sym::size(number) }))
            }
            Token::Sign(_) | Token::End => {
                self.at = self.at.saturating_sub(1);
                self.error("a name or a number")
            }
        }
    }

    fn term(&mut self, depth: usize) -> Parsed<TermId> {
        if depth > MOST_DEPTH {
            return self.error(format!("terms of at most {MOST_DEPTH} levels"));
        }
        let at = self.at;
        let name = self.word("a term")?;
        if *self.peek() != Token::Sign('(') {
            return match self.rule.inputs.iter().position(|i| *i == name) {
                Some(input) => Ok(self.inputs[input]),
                None => self.error_at(at, "an input or an op with operands", format!("`{name}`")),
            };
        }
        self.next();
        let (mut args, mut attributes) = (Args::new(), Vec::new());
        while !self.is_taken(')') {
            match self.tokens.get(self.at + 1).map(|t| &t.0) {
                Some(Token::Sign('=')) => attributes.push(self.attribute()?),
                Some(_) | None => args.push(self.term(depth + 1)?),
            }
            if *self.peek() != Token::Sign(')') {
                self.sign(',')?;
            }
        }
        let op = self.op(at, &name, Attributes(attributes))?;
        match self.rule.terms.add(op, args) {
            Ok(term) => Ok(term),
            Err(error) => self.error_at(at, error.expected, format!("others at `{name}`")),
        }
    }

    fn attribute(&mut self) -> Parsed<(String, Value, usize)> {
        let at = self.at;
        let name = self.word("the name of an attribute")?;
        self.sign('=')?;
        let value = match self.peek() {
            Token::Sign('[') => Value::List(self.list()?),
            Token::Word(_) | Token::Number(_) | Token::Sign(_) | Token::End => Value::Size(self.size()?),
        };
        Ok((name, value, at))
    }

    fn op(&self, at: usize, name: &str, mut attributes: Attributes) -> Parsed<Op> {
        let a = &mut attributes;
        let op = match name {
            "add" => Some(Op::Add),
            "multiply" => Some(Op::Multiply),
            "scale" => Some(Op::Scale),
            "max" => Some(Op::Max),
            "above" => Some(Op::Above),
            "dot" => (|| Some(Op::Dot(DotDims { batch: a.pairs("batch")?, contract: a.pairs("contract")? })))(),
            "conv" => a.conv().map(|conv| Op::Conv(Box::new(conv))),
            "transpose" => a.dims("order").map(Op::Transpose),
            "reshape" => a.sizes("dims").map(Op::Reshape),
            "slice" => (|| Some(Op::Slice { dim: a.dim("dim")?, start: a.size("start")?, size: a.size("size")? }))(),
            "concat" => a.dim("dim").map(|dim| Op::Concat { dim }),
            "stack" => a.dim("dim").map(|dim| Op::Stack { dim }),
            "pick" => (|| Some(Op::Pick { dim: a.dim("dim")?, place: a.dim("place")? }))(),
            "pad" => (|| Some(Op::Pad { dim: a.dim("dim")?, low: a.size("low")?, high: a.size("high")? }))(),
            "broadcast" => a.new_dims().map(Op::Broadcast),
            "reduce" => a.dims("dims").map(Op::Reduce),
            other => match Unary::ALL.into_iter().find(|u| u.name() == other) {
                Some(unary) => Some(Op::Unary(unary)),
                None => return self.error_at(at, "an op", format!("`{other}`")),
            },
        };
        let Some(op) = op else {
            return self.error_at(at, format!("the attributes of {name}"), "one that is missing or has another form");
        };
        if let Some((left, _, place)) = attributes.0.first() {
            return self.error_at(*place, format!("an attribute of {name}"), format!("`{left}`"));
        }
        Ok(op)
    }
}

/// Attributes that are not taken yet.
struct Attributes(Vec<(String, Value, usize)>);

impl Attributes {
    fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|a| a.0 == name)?;
        Some(self.0.remove(at).1)
    }

    fn size(&mut self, name: &str) -> Option<Size> {
        match self.take(name)? {
            Value::Size(size) => Some(size),
            Value::List(_) => None,
        }
    }

    fn dim(&mut self, name: &str) -> Option<u8> {
        number(&self.size(name)?)
    }

    fn items(&mut self, name: &str) -> Option<Vec<Vec<Size>>> {
        match self.take(name)? {
            Value::List(items) => Some(items),
            Value::Size(_) => None,
        }
    }

    fn sizes(&mut self, name: &str) -> Option<Dims> {
        self.items(name)?.into_iter().map(|item| <[Size; 1]>::try_from(item).ok().map(|[one]| one)).collect()
    }

    fn dims(&mut self, name: &str) -> Option<SmallVec<[u8; 4]>> {
        self.sizes(name)?.iter().map(number).collect()
    }

    /// No pairs if the attribute is absent.
    fn pairs(&mut self, name: &str) -> Option<SmallVec<[(u8, u8); 2]>> {
        if self.0.iter().all(|a| a.0 != name) {
            return Some(SmallVec::new());
        }
        self.items(name)?
            .iter()
            .map(|item| if let [a, b] = &item[..] { Some((number(a)?, number(b)?)) } else { None })
            .collect()
    }

    fn new_dims(&mut self) -> Option<SmallVec<[(u8, Size); 2]>> {
        let items = self.items("new")?;
        items.iter().map(|item| if let [d, n] = &item[..] { Some((number(d)?, n.clone())) } else { None }).collect()
    }

    fn conv(&mut self) -> Option<Conv> {
        let windows = self.items("window")?;
        let reversed = if self.0.iter().any(|a| a.0 == "reversed") { self.dims("reversed")? } else { SmallVec::new() };
        let mut groups = |name: &str| if self.0.iter().any(|a| a.0 == name) { self.dim(name) } else { Some(1) };
        let (feature_groups, batch_groups) = (groups("groups")?, groups("batch_groups")?);
        let window = |(s, item): (usize, Vec<Size>)| {
            let [stride, low, base, dilation, out] = <[Size; 5]>::try_from(item).ok()?;
            Some(Window { stride, low, base, dilation, out, is_reversed: reversed.contains(&(s as u8)) })
        };
        let windows = windows.into_iter().enumerate().map(window).collect::<Option<_>>()?;
        (feature_groups > 0 && batch_groups > 0).then_some(Conv { windows, feature_groups, batch_groups })
    }
}

fn number(size: &Size) -> Option<u8> {
    u8::try_from(size.as_number()?).ok().filter(|n| *n < 64)
}
