//! Macros that run one generic body on whatever vector a buffer holds.

/// A buffer of the same kind, its vector made from the old one by `$body`.
macro_rules! map_elems {
    ($buffer:expr, $v:ident => $body:expr) => {{
        use hlo_ir::literal::Buffer;
        match $buffer {
            Buffer::Pred($v) => Buffer::Pred($body),
            Buffer::S8($v) => Buffer::S8($body),
            Buffer::S16($v) => Buffer::S16($body),
            Buffer::S32($v) => Buffer::S32($body),
            Buffer::S64($v) => Buffer::S64($body),
            Buffer::U8($v) => Buffer::U8($body),
            Buffer::U16($v) => Buffer::U16($body),
            Buffer::U32($v) => Buffer::U32($body),
            Buffer::U64($v) => Buffer::U64($body),
            Buffer::F8($v) => Buffer::F8($body),
            Buffer::F16($v) => Buffer::F16($body),
            Buffer::BF16($v) => Buffer::BF16($body),
            Buffer::F32($v) => Buffer::F32($body),
            Buffer::F64($v) => Buffer::F64($body),
            Buffer::C64($v) => Buffer::C64($body),
            Buffer::C128($v) => Buffer::C128($body),
        }
    }};
}

/// `$body` on the vectors of two buffers of the same kind; an error if the kinds differ.
macro_rules! zip_elems {
    ($a:expr, $b:expr, ($x:ident, $y:ident) => $body:expr) => {{
        use hlo_ir::literal::Buffer;
        match ($a, $b) {
            (Buffer::Pred($x), Buffer::Pred($y)) => Ok(Buffer::Pred($body)),
            (Buffer::S8($x), Buffer::S8($y)) => Ok(Buffer::S8($body)),
            (Buffer::S16($x), Buffer::S16($y)) => Ok(Buffer::S16($body)),
            (Buffer::S32($x), Buffer::S32($y)) => Ok(Buffer::S32($body)),
            (Buffer::S64($x), Buffer::S64($y)) => Ok(Buffer::S64($body)),
            (Buffer::U8($x), Buffer::U8($y)) => Ok(Buffer::U8($body)),
            (Buffer::U16($x), Buffer::U16($y)) => Ok(Buffer::U16($body)),
            (Buffer::U32($x), Buffer::U32($y)) => Ok(Buffer::U32($body)),
            (Buffer::U64($x), Buffer::U64($y)) => Ok(Buffer::U64($body)),
            (Buffer::F8($x), Buffer::F8($y)) => Ok(Buffer::F8($body)),
            (Buffer::F16($x), Buffer::F16($y)) => Ok(Buffer::F16($body)),
            (Buffer::BF16($x), Buffer::BF16($y)) => Ok(Buffer::BF16($body)),
            (Buffer::F32($x), Buffer::F32($y)) => Ok(Buffer::F32($body)),
            (Buffer::F64($x), Buffer::F64($y)) => Ok(Buffer::F64($body)),
            (Buffer::C64($x), Buffer::C64($y)) => Ok(Buffer::C64($body)),
            (Buffer::C128($x), Buffer::C128($y)) => Ok(Buffer::C128($body)),
            _ => Err(crate::error::EvalError::invalid("expected operands of one element type, found two")),
        }
    }};
}

pub(crate) use {map_elems, zip_elems};
