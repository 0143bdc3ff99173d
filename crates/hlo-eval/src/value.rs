//! Run-time values: arrays behind reference counts, so that equal values of many devices are held and computed once.

use crate::error::EvalError;
use hlo_ir::{ArrayShape, Literal, Shape};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The value of an instruction on one device.
#[derive(Clone, Debug)]
pub enum Value {
    /// A dense array.
    Array(Arc<Literal>),
    /// A tuple.
    Tuple(Arc<[Value]>),
    /// An ordering token.
    Token,
}

impl From<Literal> for Value {
    fn from(literal: Literal) -> Value {
        Value::Array(Arc::new(literal))
    }
}

impl Value {
    /// A tuple of `elements`.
    pub fn tuple(elements: impl IntoIterator<Item = Value>) -> Value {
        Value::Tuple(elements.into_iter().collect())
    }

    /// Whether both are the same storage: equal without a look at the elements.
    pub fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Array(a), Value::Array(b)) => Arc::ptr_eq(a, b),
            (Value::Tuple(a), Value::Tuple(b)) => {
                Arc::ptr_eq(a, b) || (a.len() == b.len() && a.iter().zip(b.iter()).all(|(x, y)| x.is_same(y)))
            }
            (Value::Token, Value::Token) => true,
            (Value::Array(_) | Value::Tuple(_) | Value::Token, _) => false,
        }
    }

    /// Hashes what [`is_same`](Value::is_same) compares.
    pub(crate) fn hash_storage(&self, hasher: &mut impl Hasher) {
        match self {
            Value::Array(array) => Arc::as_ptr(array).hash(hasher),
            Value::Tuple(elements) => elements.iter().for_each(|element| element.hash_storage(hasher)),
            Value::Token => 0u8.hash(hasher),
        }
    }

    /// The array.
    ///
    /// # Errors
    /// The value is a tuple or a token.
    pub fn as_array(&self) -> Result<&Arc<Literal>, EvalError> {
        match self {
            Value::Array(array) => Ok(array),
            Value::Tuple(_) => Err(EvalError::invalid("expected an array, found a tuple")),
            Value::Token => Err(EvalError::invalid("expected an array, found a token")),
        }
    }

    /// The array, given away.
    ///
    /// # Errors
    /// The value is a tuple or a token.
    pub fn into_array(self) -> Result<Arc<Literal>, EvalError> {
        self.as_array()?;
        match self {
            Value::Array(array) => Ok(array),
            Value::Tuple(_) | Value::Token => Err(EvalError::invalid("expected an array")),
        }
    }

    /// Element `index` of a tuple.
    ///
    /// # Errors
    /// The value is no tuple or has no such element.
    pub fn element(&self, index: i64) -> Result<&Value, EvalError> {
        let Value::Tuple(elements) = self else {
            return Err(EvalError::invalid(format!("expected a tuple with element {index}, found no tuple")));
        };
        usize::try_from(index).ok().and_then(|i| elements.get(i)).ok_or_else(|| {
            EvalError::invalid(format!("expected a tuple element below {}, found {index}", elements.len()))
        })
    }

    /// Calls `visit` on every array leaf in order; tokens are passed over.
    pub fn for_each_array(&self, visit: &mut dyn FnMut(&Arc<Literal>)) {
        match self {
            Value::Array(array) => visit(array),
            Value::Tuple(elements) => elements.iter().for_each(|e| e.for_each_array(visit)),
            Value::Token => {}
        }
    }

    /// Builds a value of `shape`, taking its array leaves in order from `next`.
    ///
    /// # Errors
    /// What `next` returns, or the shape has a leaf that is neither array nor token.
    pub fn of_leaves(
        shape: &Shape,
        next: &mut dyn FnMut(&ArrayShape) -> Result<Arc<Literal>, EvalError>,
    ) -> Result<Value, EvalError> {
        match shape {
            Shape::Array(array) => Ok(Value::Array(next(array)?)),
            Shape::Tuple(elements) => {
                let elements: Result<Vec<Value>, EvalError> =
                    elements.iter().map(|e| Value::of_leaves(e, next)).collect();
                Ok(Value::tuple(elements?))
            }
            Shape::Token => Ok(Value::Token),
            Shape::Opaque => Err(EvalError::unsupported("opaque handles have no value here")),
            Shape::Buffer(_) => Err(EvalError::unsupported("mutable buffers have no value here")),
        }
    }

    /// Checks that the value has the element types and dims of `shape`.
    ///
    /// # Errors
    /// The first leaf that differs, expected and found.
    pub fn check_shape(&self, shape: &Shape) -> Result<(), EvalError> {
        match (self, shape) {
            (Value::Array(found), Shape::Array(expected)) => {
                if found.dtype() == expected.dtype && found.dims() == expected.dims.as_slice() {
                    return Ok(());
                }
                Err(EvalError::invalid(format!(
                    "expected a result {}{:?}, computed {}{:?}",
                    expected.dtype,
                    expected.dims.as_slice(),
                    found.dtype(),
                    found.dims()
                )))
            }
            (Value::Tuple(found), Shape::Tuple(expected)) => {
                if found.len() != expected.len() {
                    let text = format!("expected a tuple of {}, computed one of {}", expected.len(), found.len());
                    return Err(EvalError::invalid(text));
                }
                found.iter().zip(expected).try_for_each(|(v, s)| v.check_shape(s))
            }
            (Value::Token, Shape::Token) => Ok(()),
            (Value::Array(_) | Value::Tuple(_) | Value::Token, _) => {
                Err(EvalError::invalid("the computed value is not of the kind (array, tuple, token) of its shape"))
            }
        }
    }
}

/// The value of an instruction on all devices that run it, in the order of the active devices.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    /// The same storage on every device.
    Same(Value),
    /// One for each device.
    Each(Vec<Value>),
}

impl Spread {
    /// One value for each device, held once if all are the same storage.
    pub(crate) fn of(values: Vec<Value>) -> Spread {
        match values.split_first() {
            Some((first, rest)) if rest.iter().all(|v| v.is_same(first)) => Spread::Same(first.clone()),
            _ => Spread::Each(values),
        }
    }

    /// The value on the active device number `i`.
    pub(crate) fn get(&self, i: usize) -> Result<&Value, EvalError> {
        match self {
            Spread::Same(value) => Ok(value),
            Spread::Each(values) => {
                values.get(i).ok_or_else(|| EvalError::invalid(format!("no value for active device number {i}")))
            }
        }
    }

    /// The values of some of the active devices.
    pub(crate) fn subset(&self, picks: &[usize]) -> Result<Spread, EvalError> {
        match self {
            Spread::Same(value) => Ok(Spread::Same(value.clone())),
            Spread::Each(_) => {
                let values: Result<Vec<Value>, EvalError> = picks.iter().map(|&i| self.get(i).cloned()).collect();
                Ok(Spread::of(values?))
            }
        }
    }

    /// Applies `f` to every distinct entry.
    pub(crate) fn map(&self, f: impl Fn(&Value) -> Result<Value, EvalError>) -> Result<Spread, EvalError> {
        match self {
            Spread::Same(value) => Ok(Spread::Same(f(value)?)),
            Spread::Each(values) => {
                let values: Result<Vec<Value>, EvalError> = values.iter().map(f).collect();
                Ok(Spread::of(values?))
            }
        }
    }
}
