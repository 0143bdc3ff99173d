//! Shapes and layouts, and the cache that parses each distinct shape text once.

use crate::cursor::{CLOSE, Cursor, OPEN, STOP, bracket_class, find_blank, is_blank, is_name_byte};
use crate::error::{EXPECTED, Fallible, LIMIT, MAX_DEPTH, UNKNOWN, failure};
use hashbrown::HashTable;
use hlo_ir::names::hash_bytes;
use hlo_ir::shape::{DimLevel, Layout, SplitConfig, TILE_COMBINE, UNBOUNDED_DIM};
use hlo_ir::{ArrayShape, DType, Dims, Shape, ShapeId, shape::ShapePool};

/// Shape texts met so far and what they mean.
#[derive(Default)]
pub(crate) struct ShapeCache {
    table: HashTable<(usize, usize, ShapeId)>,
}

impl ShapeCache {
    /// Takes a shape. The text up to a likely end is looked up first; it counts as a shape's text only if it was once
    /// parsed to its end and no brace follows that would belong to the shape.
    #[inline]
    pub(crate) fn shape(&mut self, cur: &mut Cursor<'_>, pool: &mut ShapePool) -> Fallible<ShapeId> {
        self.shape_at(cur, pool, 0)
    }

    #[inline]
    fn shape_at(&mut self, cur: &mut Cursor<'_>, pool: &mut ShapePool, depth: usize) -> Fallible<ShapeId> {
        let _ = cur.peek();
        let bytes = cur.bytes();
        let near_end = scan_near_end(bytes, cur.pos);
        if let Some(id) = near_end.and_then(|end| self.find(bytes, cur.pos, end)) {
            cur.pos = near_end.unwrap_or(cur.pos);
            return Ok(id);
        }
        self.far_shape(cur, pool, depth)
    }

    /// Takes a shape whose text is long, holds blanks or is new.
    #[inline(never)]
    fn far_shape(&mut self, cur: &mut Cursor<'_>, pool: &mut ShapePool, depth: usize) -> Fallible<ShapeId> {
        let (bytes, start) = (cur.bytes(), cur.pos);
        let end = scan_end(bytes, start);
        if let Some(id) = self.find(bytes, start, end) {
            cur.pos = end;
            return Ok(id);
        }
        let shape = match cur.raw() {
            Some(b'(') => self.element(cur, pool, depth)?,
            _ => shape(cur, depth)?,
        };
        let id = pool.intern(shape);
        if cur.pos == end && is_clear_after(bytes, end) {
            let hash = |a: usize, b: usize| hash_bytes(bytes.get(a..b).unwrap_or(&[]));
            self.table.insert_unique(hash(start, end), (start, end, id), |&(a, b, _)| hash(a, b));
        }
        Ok(id)
    }

    /// Takes an element of a tuple. Only arrays are looked up: tuples in tuples would be kept once for each level.
    fn element(&mut self, cur: &mut Cursor<'_>, pool: &mut ShapePool, depth: usize) -> Fallible<Shape> {
        check_depth(cur, depth)?;
        match cur.peek() {
            Some(b'(') => tuple(cur, depth, &mut |cur, depth| self.element(cur, pool, depth)),
            _ => self.shape_at(cur, pool, depth).map(|id| pool.get(id).clone()),
        }
    }

    /// What the text from `start` to `end` was found to mean, if nothing after it can belong to the shape.
    #[inline]
    fn find(&self, bytes: &[u8], start: usize, end: usize) -> Option<ShapeId> {
        let key = bytes.get(start..end)?;
        let found = self.table.find(hash_bytes(key), |&(a, b, _)| bytes.get(a..b) == Some(key))?;
        is_clear_after(bytes, end).then_some(found.2)
    }
}

/// Where the text of a short array shape ends if one stands here: before the first blank, or the comma before it.
#[inline]
fn scan_near_end(bytes: &[u8], start: usize) -> Option<usize> {
    let chunk = |at: usize| bytes.get(at..)?.first_chunk();
    let end = match find_blank(chunk(start)?) {
        Some(len) => start + len,
        None => start + 16 + find_blank(chunk(start + 16)?)?,
    };
    Some(end - usize::from(bytes.get(..end)?.last() == Some(&b',')))
}

/// Where a shape's text ends if it is one: at a blank outside of brackets, or after the bracket that closes an outer one.
fn scan_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0usize;
    let mut end = start;
    while let Some(&byte) = bytes.get(end) {
        match bracket_class(byte) {
            0 => {}
            OPEN => depth += 1,
            CLOSE if depth > 0 => depth -= 1,
            STOP if depth > 0 => {}
            _ => break,
        }
        end += 1;
    }
    end
}

/// Whether what follows cannot belong to a shape: `f32[2] {0}` is one shape, `f32[2] add` is a shape and a word.
fn is_clear_after(bytes: &[u8], end: usize) -> bool {
    let next = end + usize::from(bytes.get(end).is_some_and(|&b| is_blank(b)));
    match bytes.get(next) {
        // A layout, or the brace before a computation's instructions.
        Some(b'{') => {
            let inner = bytes.get(next + 1..).unwrap_or(&[]).iter().find(|&&b| !is_blank(b));
            !matches!(inner, Some(b'0'..=b'9' | b'}' | b':' | b'/'))
        }
        byte => !matches!(byte, Some(b'[' | b'(' | b'/' | b' ' | b'\t' | b'\n' | b'\r')),
    }
}

/// Whether a shape comes next, not an opcode or a name: `(`, `f32[`, `b(`.
pub(crate) fn is_next(cur: &mut Cursor<'_>) -> bool {
    match cur.peek() {
        Some(b'(') => true,
        Some(b'b') if !cur.raw_at(1).is_some_and(is_name_byte) => {
            let mut ahead = *cur;
            ahead.pos += 1;
            ahead.peek() == Some(b'(')
        }
        Some(byte) if byte.is_ascii_lowercase() => {
            let rest = cur.bytes().get(cur.pos..).unwrap_or(&[]);
            // No type name is longer than 16 bytes.
            let Some(len) = rest.iter().take(17).position(|&b| !is_name_byte(b)) else { return false };
            match rest.get(len) {
                Some(b'[') => true,
                Some(&byte) if is_blank(byte) || byte == b'/' => {
                    let mut ahead = *cur;
                    ahead.pos += len;
                    ahead.peek() == Some(b'[')
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Takes a shape of any kind.
pub(crate) fn shape(cur: &mut Cursor<'_>, depth: usize) -> Fallible<Shape> {
    check_depth(cur, depth)?;
    if cur.peek() == Some(b'(') {
        return tuple(cur, depth, &mut shape);
    }
    let word = cur.peek_word();
    let start = cur.pos;
    cur.pos += word.len();
    if word == "b" && cur.eat(b'(') {
        let inner = shape(cur, depth + 1)?;
        cur.expect(b')', "after the buffer's shape")?;
        return match inner {
            Shape::Array(array) => Ok(Shape::Buffer(array)),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
                Err(failure(EXPECTED, start, cur.pos, "expected an array shape in `b(…)`, found another"))
            }
        };
    }
    if word == "token" || word == "opaque" {
        cur.expect_str("[]", "after the type")?;
        return Ok(if word == "token" { Shape::Token } else { Shape::Opaque });
    }
    let Some(dtype) = DType::from_name(word) else {
        cur.pos = start;
        if word.is_empty() {
            return Err(cur.expected("a shape such as `f32[2,3]`"));
        }
        let message = format!("expected an element type, found `{}`", clip(word));
        return Err(failure(UNKNOWN, start, start + word.len(), message)
            .with_help("element types are pred, s1–s64, u1–u64, bf16, f16, f32, f64, f8…, f4e2m1fn, c64, c128; `token[]` and `opaque[]` are shapes too")
            .into());
    };
    Ok(Shape::Array(array(cur, dtype)?))
}

#[inline]
fn check_depth(cur: &Cursor<'_>, depth: usize) -> Fallible<()> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    let message = format!("expected at most {MAX_DEPTH} levels of tuples, found more");
    Err(failure(LIMIT, cur.pos, cur.pos + 1, message))
}

/// Takes a tuple shape, each element as `element` takes it at its depth.
fn tuple<'t>(
    cur: &mut Cursor<'t>,
    depth: usize,
    element: &mut dyn FnMut(&mut Cursor<'t>, usize) -> Fallible<Shape>,
) -> Fallible<Shape> {
    let mut elements = Vec::new();
    cur.list((b'(', b')'), "of the tuple shape", &mut |cur| {
        elements.push(element(cur, depth + 1)?);
        Ok(())
    })?;
    Ok(Shape::Tuple(elements))
}

/// The start of an over-long word.
fn clip(word: &str) -> &str {
    word.get(..word.len().min(40)).unwrap_or(word)
}

/// Takes dims and layout of an array.
fn array(cur: &mut Cursor<'_>, dtype: DType) -> Fallible<ArrayShape> {
    let mut array = ArrayShape::new(dtype, []);
    cur.list((b'[', b']'), "of the dims", &mut |cur| {
        let place = array.dims.len();
        let is_dynamic = cur.eat_str("<=");
        let is_unbounded = !is_dynamic && cur.eat(b'?');
        if is_dynamic || is_unbounded {
            if place >= 64 {
                let message = "expected a dynamic dim among the first 64, found a later one";
                return Err(failure(LIMIT, cur.pos, cur.pos + 1, message));
            }
            array.dynamic |= 1 << place;
        }
        array.dims.push(if is_unbounded { UNBOUNDED_DIM } else { cur.count("a dim size")? });
        Ok(())
    })?;
    if cur.peek() == Some(b'{') && is_layout(cur) {
        let start = cur.pos;
        let layout = layout(cur)?;
        let (rank, found) = (array.dims.len(), layout.minor_to_major.len());
        if rank != found {
            let message = format!("expected a layout of {rank} dims, found {found}");
            return Err(failure(EXPECTED, start, cur.pos, message));
        }
        if layout != Layout::new(Dims::new()) {
            array.layout = Some(Box::new(layout));
        }
    }
    Ok(array)
}

/// Whether the brace that comes next opens a layout and not a computation or a literal: `{}`, `{1,0…}`, `{:T(8)}`.
fn is_layout(cur: &Cursor<'_>) -> bool {
    let mut ahead = *cur;
    ahead.pos += 1;
    matches!(ahead.peek(), Some(b'0'..=b'9' | b'}' | b':'))
}

/// Takes `{minor_to_major:attributes}`.
fn layout(cur: &mut Cursor<'_>) -> Fallible<Layout> {
    cur.expect(b'{', "of the layout")?;
    let mut layout = Layout::new(Dims::new());
    while cur.peek().is_some_and(|b| b.is_ascii_digit()) {
        layout.minor_to_major.push(cur.count("a dim number")?);
        if !cur.eat(b',') {
            break;
        }
    }
    if cur.eat(b':') {
        let mut next = 0;
        while cur.peek() != Some(b'}') {
            layout_attribute(cur, &mut layout, &mut next)?;
        }
    }
    cur.expect(b'}', "after the layout")?;
    Ok(layout)
}

/// Layout attributes in the order in which they must stand.
const LAYOUT_ORDER: [&str; 9] = ["D", "T", "L", "#", "*", "E", "S", "SC", "M"];

/// Takes one `T(…)(…)`, `E(…)`, … of a layout; `next` is the place in the order that may come next.
fn layout_attribute(cur: &mut Cursor<'_>, layout: &mut Layout, next: &mut usize) -> Fallible<()> {
    cur.skip_blanks();
    let start = cur.pos;
    let key = if cur.eat(b'#') {
        "#"
    } else if cur.eat(b'*') {
        "*"
    } else {
        cur.word("a layout attribute such as `T(8,128)`")?
    };
    match LAYOUT_ORDER.iter().position(|&k| k == key) {
        Some(place) if place >= *next => *next = place + 1,
        _ => {
            let message = format!(
                "expected `}}` or one of the layout attributes {} that come after those before, found `{}`",
                LAYOUT_ORDER.get(*next..).unwrap_or(&[]).join(", "),
                clip(key)
            );
            return Err(failure(EXPECTED, start, cur.pos, message));
        }
    }
    match key {
        "#" => layout.index_dtype = Some(dtype_in_parens(cur)?),
        "*" => layout.pointer_dtype = Some(dtype_in_parens(cur)?),
        "L" => layout.tail_padding_alignment_in_elements = int_in_parens(cur)?,
        "E" => layout.element_size_in_bits = int_in_parens(cur)?,
        "S" => layout.memory_space = int_in_parens(cur)?,
        "M" => layout.dynamic_shape_metadata_prefix_bytes = int_in_parens(cur)?,
        "D" => level_types(cur, layout)?,
        "T" => {
            while cur.peek() == Some(b'(') {
                let mut tile = Dims::new();
                cur.list((b'(', b')'), "of the tile", &mut |cur| {
                    tile.push(if cur.eat(b'*') { TILE_COMBINE } else { cur.count("a tile size")? });
                    Ok(())
                })?;
                layout.tiles.push(tile);
            }
        }
        _ => {
            while cur.eat(b'(') {
                layout.split_configs.push(split_config(cur)?);
            }
        }
    }
    Ok(())
}

/// Takes `dim:i,j)` after the parenthesis of a split.
fn split_config(cur: &mut Cursor<'_>) -> Fallible<SplitConfig> {
    let dimension = cur.count("a dim number")?;
    cur.expect(b':', "after the split dim")?;
    let mut split_indices = Dims::new();
    loop {
        split_indices.push(cur.count("a split index")?);
        if !cur.eat(b',') {
            break;
        }
    }
    cur.expect(b')', "after the split indices")?;
    Ok(SplitConfig { dimension, split_indices })
}

fn int_in_parens(cur: &mut Cursor<'_>) -> Fallible<i64> {
    cur.expect(b'(', "after the layout attribute")?;
    let value = cur.count("a number")?;
    cur.expect(b')', "after the layout attribute")?;
    Ok(value)
}

fn dtype_in_parens(cur: &mut Cursor<'_>) -> Fallible<DType> {
    cur.expect(b'(', "after the layout attribute")?;
    let word = cur.peek_word();
    let dtype = DType::from_name(word).ok_or_else(|| cur.expected("an element type"))?;
    cur.pos += word.len();
    cur.expect(b')', "after the element type")?;
    Ok(dtype)
}

/// Takes `(D,C+~)`.
fn level_types(cur: &mut Cursor<'_>, layout: &mut Layout) -> Fallible<()> {
    cur.list((b'(', b')'), "of the dim level types", &mut |cur| {
        let kind = match cur.peek() {
            Some(kind @ (b'D' | b'C' | b'S' | b'H')) => kind,
            _ => return Err(cur.expected("a dim level type (D, C, S, H)")),
        };
        cur.pos += 1;
        let mut level = DimLevel { kind, unique: true, ordered: true };
        loop {
            if cur.eat(b'+') {
                level.unique = false;
            } else if cur.eat(b'~') {
                level.ordered = false;
            } else {
                break;
            }
        }
        layout.dim_level_types.push(level);
        Ok(())
    })?;
    if layout.dim_level_types.iter().all(|l| l.kind == b'D' && l.unique && l.ordered) {
        layout.dim_level_types.clear();
    }
    Ok(())
}
