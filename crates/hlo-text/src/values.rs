//! One parse rule per type of attribute value; which attribute has which type is the format's business.

use crate::cursor::{Cursor, is_name_byte};
use crate::error::{EXPECTED, Fallible, LIMIT, MAX_DEPTH, UNKNOWN, failure};
use crate::groups::{dims, replica_groups};
use crate::instruction::constant_value;
use crate::parser::Parser;
use crate::sharding::sharding;
use crate::words::known_word;
use hlo_ir::Dims;
use hlo_ir::attrs::{
    AttrFormat, Comparison, ConvDims, DomainSharding, F32Bits, FieldMut, OperandAlias, PadDim, QuotedText, RawBraces,
    RawLiteral, SliceDim, Window, WindowDim, Word,
};

const BRACES: (u8, u8) = (b'{', b'}');

impl Parser<'_> {
    /// Takes the value of the attribute `key` of `format` and stores it.
    pub(crate) fn value(&mut self, format: AttrFormat, key: &str, field: FieldMut<'_>) -> Fallible<()> {
        let cur = &mut self.cur;
        match field {
            FieldMut::Int(v) => *v = cur.int("an integer")?,
            FieldMut::OptInt(v) => *v = Some(cur.int("an integer")?),
            FieldMut::Bool(v) => *v = boolean(cur)?,
            FieldMut::OptBool(v) => *v = Some(boolean(cur)?),
            FieldMut::Float(v) => *v = float(cur)?,
            FieldMut::Dims(v) => *v = dims(cur, BRACES, "of the list")?,
            FieldMut::Bools(v) => cur.list(BRACES, "of the list", &mut |cur| {
                v.push(boolean(cur)?);
                Ok(())
            })?,
            FieldMut::Text(v) => *v = QuotedText(cur.string("a quoted string")?.into_owned()),
            FieldMut::OptText(v) => *v = Some(QuotedText(cur.string("a quoted string")?.into_owned())),
            FieldMut::Word(v) => *v = word(cur, format, key)?,
            FieldMut::Words(v) => cur.list(BRACES, "of the list", &mut |cur| {
                v.push(word(cur, format, key)?);
                Ok(())
            })?,
            FieldMut::Comp(v) => *v = Some(self.computation_ref()?),
            FieldMut::Comps(v) => {
                self.list(BRACES, "of the computations", &mut |p| {
                    v.push(p.computation_ref()?);
                    Ok(())
                })?;
            }
            FieldMut::Shape(v) => *v = Some(self.shape()?),
            FieldMut::Shapes(v) => {
                let mut shapes = Vec::new();
                self.list(BRACES, "of the shapes", &mut |p| {
                    shapes.push(p.shape()?);
                    Ok(())
                })?;
                *v = Some(shapes);
            }
            FieldMut::Slice(v) => cur.list(BRACES, "of the slice", &mut |cur| {
                v.push(slice_dim(cur)?);
                Ok(())
            })?,
            FieldMut::Padding(v) => *v = padding(cur)?,
            FieldMut::Window(v) => *v = window(cur)?,
            FieldMut::ConvDims(v) => *v = conv_dims(cur)?,
            FieldMut::Groups(v) => *v = replica_groups(cur)?,
            FieldMut::Pairs(v) => cur.list(BRACES, "of the pairs", &mut |cur| {
                cur.expect(b'{', "of a pair")?;
                let source = cur.int("a source id")?;
                cur.expect(b',', "between source and target")?;
                v.push((source, cur.int("a target id")?));
                cur.expect(b'}', "after the pair")
            })?,
            FieldMut::OutputAliases(v) => cur.list(BRACES, "of the aliases", &mut |cur| {
                v.push(operand_alias(cur)?);
                Ok(())
            })?,
            FieldMut::DomainSharding(v) => *v = Some(Box::new(domain(cur)?)),
            FieldMut::Sharding(v) => *v = Some(Box::new(sharding(cur)?)),
            FieldMut::Comparison(v) => *v = comparison(cur)?,
            FieldMut::RawLiteral(v) => {
                let mut text = String::new();
                self.literal(&mut text, 0)?;
                *v = RawLiteral(text);
            }
            FieldMut::Raw(v) => *v = RawBraces(cur.braces(&format!("`{{` after `{key}=`"))?.to_string()),
        }
        Ok(())
    }
}

impl Parser<'_> {
    /// Takes a shape and its value, `s32[2] {1,2}`, or a tuple of them, `( s32[] 1, ( pred[] true ) )`, and writes it as XLA does. A
    /// tuple may also be written as the shape of all and then the values of all, as it was until the values of elements had shapes.
    fn literal(&mut self, out: &mut String, depth: usize) -> Fallible<()> {
        if depth > MAX_DEPTH {
            let message = format!("expected at most {MAX_DEPTH} levels of tuples, found more");
            return Err(failure(LIMIT, self.cur.pos, self.cur.pos + 1, message));
        }
        if self.cur.peek() == Some(b'(') && !self.is_shape_of_tuple() {
            out.push_str("( ");
            let mut is_first = true;
            self.list((b'(', b')'), "of the tuple literal", &mut |p| {
                if !std::mem::take(&mut is_first) {
                    out.push_str(", ");
                }
                p.literal(out, depth + 1)
            })?;
            out.push_str(" )");
            return Ok(());
        }
        let shape = self.shape()?;
        let shape = self.module.shapes.get(shape);
        let value = constant_value(&mut self.cur, shape, 0)?;
        value.write_with_shape(shape, out);
        Ok(())
    }

    /// Whether the tuple that comes next is a shape with a value after it.
    fn is_shape_of_tuple(&self) -> bool {
        let mut ahead = self.cur;
        crate::shape::shape(&mut ahead, 0).is_ok() && ahead.peek() == Some(b'(')
    }
}

/// Takes a word that the attribute `key` of `format` can have.
fn word(cur: &mut Cursor<'_>, format: AttrFormat, key: &str) -> Fallible<Word> {
    let word = cur.peek_word();
    if word.is_empty() {
        return Err(cur.expected("a word"));
    }
    let known = known_word(format, key, word).map_err(|instead| cur.expected(&format!("one of {instead}")))?;
    cur.pos += word.len();
    Ok(Word(known.to_string()))
}

/// Takes `true` or `false`.
pub(crate) fn boolean(cur: &mut Cursor<'_>) -> Fallible<bool> {
    let word = cur.peek_word();
    let value = match word {
        "true" => true,
        "false" => false,
        _ => return Err(cur.expected("`true` or `false`")),
    };
    cur.pos += word.len();
    Ok(value)
}

/// Takes a decimal number as an `f32`.
fn float(cur: &mut Cursor<'_>) -> Fallible<F32Bits> {
    cur.skip_blanks();
    let start = cur.pos;
    while cur.raw().is_some_and(|b| is_name_byte(b) || b == b'+') {
        cur.pos += 1;
    }
    let value = cur.slice(start, cur.pos).parse::<f64>();
    value.map(|v| F32Bits::from(v as f32)).map_err(|_| {
        cur.pos = start;
        cur.expected("a number")
    })
}

/// Takes `[start:limit:stride]`.
fn slice_dim(cur: &mut Cursor<'_>) -> Fallible<SliceDim> {
    cur.expect(b'[', "of a slice range")?;
    let start = cur.int("the first index")?;
    cur.expect(b':', "after the first index")?;
    let limit = cur.int("the limit")?;
    let stride = if cur.eat(b':') { cur.int("the stride")? } else { 1 };
    cur.expect(b']', "after the slice range")?;
    Ok(SliceDim { start, limit, stride })
}

/// Takes integers with `separator` between them, no blanks.
fn joined(cur: &mut Cursor<'_>, separator: u8, what: &str) -> Fallible<Dims> {
    let mut out = Dims::new();
    loop {
        out.push(cur.int(what)?);
        if cur.raw() != Some(separator) {
            return Ok(out);
        }
        cur.pos += 1;
    }
}

/// Takes `low_high[_interior]` for each dim, `x` between; nothing for a scalar.
fn padding(cur: &mut Cursor<'_>) -> Fallible<Vec<PadDim>> {
    let mut out = Vec::new();
    if !cur.peek().is_some_and(|b| b.is_ascii_digit() || b == b'-') {
        return Ok(out);
    }
    loop {
        let start = cur.pos;
        match joined(cur, b'_', "a padding amount")?.as_slice() {
            &[low, high] => out.push(PadDim { low, high, interior: 0 }),
            &[low, high, interior] => out.push(PadDim { low, high, interior }),
            other => {
                let message = format!("expected `low_high` or `low_high_interior`, found {} numbers", other.len());
                return Err(failure(EXPECTED, start, cur.pos, message));
            }
        }
        if cur.raw() != Some(b'x') {
            return Ok(out);
        }
        cur.pos += 1;
    }
}

/// Takes `{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=… rhs_dilate=… rhs_reversal=…}`.
fn window(cur: &mut Cursor<'_>) -> Fallible<Window> {
    let start = cur.pos;
    cur.expect(b'{', "of the window")?;
    let mut columns: [Option<Dims>; 5] = Default::default();
    let mut pads: Option<Vec<PadDim>> = None;
    const KEYS: [&str; 5] = ["size", "stride", "lhs_dilate", "rhs_dilate", "rhs_reversal"];
    while cur.peek() != Some(b'}') {
        let at = cur.pos;
        let key = cur.word("`size=`, `stride=`, `pad=`, `lhs_dilate=`, `rhs_dilate=` or `rhs_reversal=`")?;
        cur.expect(b'=', "after the window's key")?;
        let is_repeated = if key == "pad" {
            pads.replace(padding(cur)?).is_some()
        } else {
            let column = KEYS.iter().position(|&k| k == key).and_then(|i| columns.get_mut(i));
            let Some(column) = column else {
                let message = format!("expected a key of a window, found `{}`", key.get(..40).unwrap_or(key));
                return Err(failure(UNKNOWN, at, at + key.len(), message));
            };
            column.replace(joined(cur, b'x', "a number")?).is_some()
        };
        if is_repeated {
            return Err(failure(
                crate::error::DUPLICATE,
                at,
                cur.pos,
                format!("expected `{key}` once, found it twice"),
            ));
        }
        let _ = cur.eat(b',');
    }
    cur.pos += 1;
    let rank = columns.iter().flatten().map(|c| c.len()).chain(pads.as_ref().map(Vec::len)).next().unwrap_or(0);
    let is_even = columns.iter().flatten().all(|c| c.len() == rank) && pads.as_ref().is_none_or(|p| p.len() == rank);
    if !is_even || pads.iter().flatten().any(|p| p.interior != 0) {
        let message = format!("expected every part of the window to have {rank} dims, found another count");
        return Err(failure(EXPECTED, start, cur.pos, message));
    }
    if rank > 0 && columns[0].is_none() {
        return Err(failure(crate::error::MISSING, start, cur.pos, "expected `size=` in the window, found none"));
    }
    let [size, stride, base_dilation, window_dilation, reversal] = &columns;
    let of = |column: &Option<Dims>, i: usize, default: i64| {
        column.as_ref().and_then(|c| c.get(i)).copied().unwrap_or(default)
    };
    let dims = (0..rank).map(|i| {
        let pad = pads.as_ref().and_then(|p| p.get(i)).copied().unwrap_or_default();
        WindowDim {
            size: of(size, i, 1),
            stride: of(stride, i, 1),
            pad_low: pad.low,
            pad_high: pad.high,
            base_dilation: of(base_dilation, i, 1),
            window_dilation: of(window_dilation, i, 1),
            is_reversed: of(reversal, i, 0) != 0,
        }
    });
    Ok(Window { dims: dims.collect() })
}

/// One array's part of `dim_labels`: where the two letters and the digits stand.
struct Labels {
    letters: [i64; 2],
    spatial: Dims,
    unknown: Dims,
}

/// Takes `b01f_01io->b01f`.
fn conv_dims(cur: &mut Cursor<'_>) -> Fallible<ConvDims> {
    cur.skip_blanks();
    let start = cur.pos;
    while cur.raw().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'?' | b'_'))
        || (cur.raw() == Some(b'-') && cur.raw_at(1) == Some(b'>'))
        || (cur.raw() == Some(b'>') && cur.pos > start)
    {
        cur.pos += 1;
    }
    let text = cur.slice(start, cur.pos);
    let split = text.split_once('_').and_then(|(lhs, rest)| Some((lhs, rest.split_once("->")?)));
    let Some((lhs, (rhs, out))) = split else {
        cur.pos = start;
        return Err(cur.expected("dim labels such as `b01f_01io->b01f`"));
    };
    let bad = |what: &str| {
        failure(EXPECTED, start, start + text.len(), format!("expected {what} in dim labels, found another"))
    };
    let lhs =
        labels(lhs, *b"bf").ok_or_else(|| bad("`b`, `f` and the spatial dims 0, 1, … once each for the input"))?;
    let rhs =
        labels(rhs, *b"io").ok_or_else(|| bad("`i`, `o` and the spatial dims 0, 1, … once each for the kernel"))?;
    let out =
        labels(out, *b"bf").ok_or_else(|| bad("`b`, `f` and the spatial dims 0, 1, … once each for the output"))?;
    if lhs.spatial.len() != rhs.spatial.len() || lhs.spatial.len() != out.spatial.len() {
        return Err(bad("the same number of spatial dims in input, kernel and output"));
    }
    Ok(ConvDims {
        input_batch: lhs.letters[0],
        input_feature: lhs.letters[1],
        input_spatial: lhs.spatial,
        kernel_input_feature: rhs.letters[0],
        kernel_output_feature: rhs.letters[1],
        kernel_spatial: rhs.spatial,
        output_batch: out.letters[0],
        output_feature: out.letters[1],
        output_spatial: out.spatial,
        unknown: [lhs.unknown, rhs.unknown, out.unknown],
    })
}

/// Reads one array's labels; `None` unless each letter and each digit from 0 on stands once.
fn labels(text: &str, letters: [u8; 2]) -> Option<Labels> {
    let mut found = [None; 2];
    let mut digits = [None; 10];
    let mut unknown = Dims::new();
    for (dim_idx, byte) in text.bytes().enumerate() {
        let slot = match byte {
            b'?' => {
                unknown.push(dim_idx as i64);
                continue;
            }
            b'0'..=b'9' => digits.get_mut(usize::from(byte - b'0'))?,
            _ => found.get_mut(letters.iter().position(|&l| l == byte)?)?,
        };
        if slot.replace(dim_idx as i64).is_some() {
            return None;
        }
    }
    let spatial: Dims = digits.iter().map_while(|&d| d).collect();
    let is_dense = digits.iter().flatten().count() == spatial.len();
    is_dense.then_some(Labels { letters: [found[0]?, found[1]?], spatial, unknown })
}

/// Takes `{output index}: (operand, {operand index})`.
fn operand_alias(cur: &mut Cursor<'_>) -> Fallible<OperandAlias> {
    let output_index = dims(cur, BRACES, "of the output index")?;
    cur.expect(b':', "after the output index")?;
    cur.expect(b'(', "before the operand")?;
    let operand = cur.count("an operand number")?;
    cur.expect(b',', "after the operand number")?;
    let operand_index = dims(cur, BRACES, "of the operand index")?;
    if cur.eat(b',') {
        cur.word("`may-alias` or `must-alias`")?;
    }
    cur.expect(b')', "after the operand index")?;
    Ok(OperandAlias { output_index, operand, operand_index })
}

/// Takes `{kind="sharding", entry={…}, exit={…}}`.
fn domain(cur: &mut Cursor<'_>) -> Fallible<DomainSharding> {
    cur.expect(b'{', "of the domain")?;
    keyed(cur, "kind")?;
    cur.skip_blanks();
    let at = cur.pos;
    let kind = cur.string("a quoted kind")?.into_owned();
    if kind != "sharding" {
        return Err(failure(EXPECTED, at, cur.pos, "expected the domain kind \"sharding\", found another"));
    }
    cur.expect(b',', "after the kind")?;
    keyed(cur, "entry")?;
    let entry = sharding(cur)?;
    cur.expect(b',', "after the entry sharding")?;
    keyed(cur, "exit")?;
    let exit = sharding(cur)?;
    cur.expect(b'}', "after the domain")?;
    Ok(DomainSharding { kind, entry, exit })
}

/// Takes `key=`.
pub(crate) fn keyed(cur: &mut Cursor<'_>, key: &str) -> Fallible<()> {
    if !cur.eat_word(key) {
        return Err(cur.expected(&format!("`{key}=`")));
    }
    cur.expect(b'=', "after the key")
}

fn comparison(cur: &mut Cursor<'_>) -> Fallible<Comparison> {
    let word = cur.peek_word();
    let value = Comparison::from_name(word).ok_or_else(|| cur.expected("`EQ`, `NE`, `GE`, `GT`, `LE` or `LT`"))?;
    cur.pos += word.len();
    Ok(value)
}
