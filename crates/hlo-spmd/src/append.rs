//! Appending instructions that compute arrays.
//!
//! New instructions go to the end of a computation; whoever appends them restores the order of operands and users afterwards.

use hlo_ir::attrs::{Attrs, PadAttrs, PadDim, SliceAttrs, SliceDim};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode, Scalar, Shape};

/// Appends instructions to a computation, with the metadata of the instruction that they stand for, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Appender {
    comp: CompId,
    source: Option<InstId>,
}

impl Appender {
    /// Appends to `comp`, without metadata.
    pub fn new(comp: CompId) -> Appender {
        Appender { comp, source: None }
    }

    /// Appends to `comp`, with the metadata of `source`, so that the new instructions are found where `source` was found.
    pub fn standing_for(comp: CompId, source: InstId) -> Appender {
        Appender { comp, source: Some(source) }
    }

    /// Where it appends.
    pub fn computation(self) -> CompId {
        self.comp
    }

    /// Appends an instruction that computes an array, named after `hint`.
    pub fn add(
        self,
        module: &mut Module,
        hint: &str,
        opcode: Opcode,
        shape: ArrayShape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        self.add_any(module, (hint, opcode), Shape::Array(shape), operands, attrs)
    }

    /// Appends an instruction of any shape, named after `hint`.
    pub fn add_any(
        self,
        module: &mut Module,
        (hint, opcode): (&str, Opcode),
        shape: Shape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let new = Builder::new(module, self.comp).add(hint, opcode, shape, operands.iter().copied(), attrs);
        let metadata = self.source.and_then(|source| module.inst(source).marks.as_ref()?.metadata.clone());
        if let Some(metadata) = metadata {
            module.marks_mut(new).metadata = Some(metadata);
        }
        new
    }

    /// Appends the constant zero, `dtype[]`.
    pub fn zero(self, module: &mut Module, dtype: DType) -> InstId {
        Builder::new(module, self.comp).constant("zero", Literal::scalar(dtype, Scalar::Float(0.0)))
    }

    /// Appends `value` padded to `shape`: with `padding` elements of `fill`, a scalar, behind its end along `dim`.
    pub fn pad_end(
        self,
        module: &mut Module,
        hint: &str,
        [value, fill]: [InstId; 2],
        shape: ArrayShape,
        (dim, padding): (usize, i64),
    ) -> InstId {
        let mut dims = vec![PadDim::default(); shape.rank()];
        dims.get_mut(dim).into_iter().for_each(|dim| dim.high = padding);
        self.add(module, hint, Opcode::Pad, shape, &[value, fill], PadAttrs { padding: dims })
    }

    /// Appends the part of `value` that has this shape and begins at index `start` of `dim`, and at 0 of all other dims.
    pub fn slice(
        self,
        module: &mut Module,
        hint: &str,
        value: InstId,
        shape: ArrayShape,
        (dim, start): (usize, i64),
    ) -> InstId {
        let whole = |&limit: &i64| SliceDim { start: 0, limit, stride: 1 };
        let mut slice: Vec<SliceDim> = shape.dims.iter().map(whole).collect();
        slice.get_mut(dim).into_iter().for_each(|dim| (dim.start, dim.limit) = (start, start + dim.limit));
        self.add(module, hint, Opcode::Slice, shape, &[value], SliceAttrs { slice })
    }
}
