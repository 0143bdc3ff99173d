//! The JSON of a collection.

use super::{Kind, RANK, Unread};
use crate::text::ParseError;
use serde::Deserialize;
use std::collections::BTreeSet;

/// A rule as it is written.
#[derive(Debug)]
pub(super) struct Stated {
    pub(super) name: String,
    pub(super) source: Vec<Operator>,
    pub(super) target: Vec<Operator>,
    /// Results of the source with those of the target that stand for them.
    pub(super) outputs: Vec<((i64, usize), (i64, usize))>,
}

impl Stated {
    pub(super) fn sides(&self) -> [&[Operator]; 2] {
        [&self.source, &self.target]
    }

    /// The ops that compute.
    pub(super) fn family(&self) -> String {
        let ops = self.source.iter().chain(&self.target);
        let names: BTreeSet<&str> = ops
            .filter_map(|op| match op.name.as_str() {
                "OP_PARTITION" | "OP_COMBINE" | "OP_REPLICATE" | "OP_REDUCE" => None,
                "OP_CONCAT" | "OP_SPLIT" => Some("concat"),
                "OP_EW_ADD" => Some("add"),
                "OP_EW_MUL" => Some("multiply"),
                "OP_LINEAR" => Some("linear"),
                "OP_RELU" => Some("relu"),
                other => Some(other),
            })
            .collect();
        match names.is_empty() {
            true => "parallel ops alone".to_string(),
            false => names.into_iter().collect::<Vec<_>>().join(", "),
        }
    }
}

/// An op as it is written.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) name: String,
    pub(super) inputs: Vec<(i64, usize)>,
    parameters: Vec<(String, i64)>,
}

impl Operator {
    /// What it does.
    pub(super) fn kind(&self) -> Result<Kind, Unread> {
        let dim = |key| self.parameter(key, |n| usize::try_from(n).ok().filter(|&dim| dim < RANK));
        let degree = || self.parameter("PM_PARALLEL_DEGREE", |n| (2..=64).contains(&n).then_some(n));
        Ok(match self.name.as_str() {
            "OP_PARTITION" | "OP_COMBINE" => Kind::Keep,
            "OP_REPLICATE" => Kind::Replicate { dim: dim("PM_PARALLEL_DIM")?, n: degree()? },
            "OP_REDUCE" => Kind::Reduce { dim: dim("PM_PARALLEL_DIM")?, n: degree()? },
            "OP_RELU" => Kind::Relu,
            "OP_EW_ADD" => Kind::Add,
            "OP_EW_MUL" => Kind::Multiply,
            "OP_CONCAT" => Kind::Concat { dim: dim("PM_AXIS")? },
            "OP_SPLIT" => Kind::Split { dim: dim("PM_AXIS")? },
            "OP_LINEAR" => {
                let has_relu = |n| match n {
                    0 => Some(false),
                    2 => Some(true),
                    _ => None,
                };
                Kind::Linear { has_relu: self.parameter("PM_ACTI", has_relu)? }
            }
            other => return Err(Unread::Op(other.to_string())),
        })
    }

    fn parameter<T>(&self, key: &'static str, known: impl Fn(i64) -> Option<T>) -> Result<T, Unread> {
        let value = self.parameters.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
        value.and_then(known).ok_or_else(|| Unread::Parameter { op: self.name.clone(), key })
    }
}

/// Reads a collection.
pub(super) fn parse(text: &str) -> Result<Vec<Stated>, ParseError> {
    let read: Collection = serde_json::from_str(text).map_err(|e| ParseError {
        line: e.line(),
        column: e.column(),
        expected: "a collection of rules (\"rule\": [{\"name\", \"srcOp\", \"dstOp\", \"mappedOutput\"}, …])"
            .to_string(),
        found: e.to_string(),
    })?;
    let operators = |list: Vec<OperatorJson>| -> Vec<Operator> {
        let one = |op: OperatorJson| Operator {
            name: op.name,
            inputs: op.input.into_iter().map(|tensor| (tensor.op, tensor.result)).collect(),
            parameters: op.para.into_iter().map(|one| (one.key, one.value)).collect(),
        };
        list.into_iter().map(one).collect()
    };
    let stated = |rule: RuleJson| Stated {
        name: rule.name,
        source: operators(rule.source),
        target: operators(rule.target),
        outputs: rule
            .outputs
            .into_iter()
            .map(|pair| ((pair.source, pair.source_result), (pair.target, pair.target_result)))
            .collect(),
    };
    Ok(read.rule.into_iter().map(stated).collect())
}

#[derive(Deserialize)]
struct Collection {
    rule: Vec<RuleJson>,
}

#[derive(Deserialize)]
struct RuleJson {
    name: String,
    #[serde(rename = "srcOp")]
    source: Vec<OperatorJson>,
    #[serde(rename = "dstOp")]
    target: Vec<OperatorJson>,
    #[serde(rename = "mappedOutput")]
    outputs: Vec<OutputJson>,
}

#[derive(Deserialize)]
struct OperatorJson {
    #[serde(rename = "type")]
    name: String,
    input: Vec<TensorJson>,
    #[serde(default)]
    para: Vec<ParameterJson>,
}

#[derive(Deserialize)]
struct TensorJson {
    #[serde(rename = "opId")]
    op: i64,
    #[serde(rename = "tsId")]
    result: usize,
}

#[derive(Deserialize)]
struct ParameterJson {
    key: String,
    value: i64,
}

#[derive(Deserialize)]
struct OutputJson {
    #[serde(rename = "srcOpId")]
    source: i64,
    #[serde(rename = "srcTsId")]
    source_result: usize,
    #[serde(rename = "dstOpId")]
    target: i64,
    #[serde(rename = "dstTsId")]
    target_result: usize,
}
