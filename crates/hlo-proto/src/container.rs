//! What wraps a module in files: HloProto, HloSnapshot, HloUnoptimizedSnapshot, and gzip around any of them. Files are told apart by
//! their bytes, not by their names.

use crate::table::{Field, hlo, hlo_module, hlo_snapshot, hlo_unoptimized_snapshot};
use crate::wire::{Value, take_field};
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::io::Read;
use std::ops::Range;

/// Unpacked files may not be larger: offsets in modules have 32 bits.
const MAX_BYTES: u64 = u32::MAX as u64;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrapper {
    /// An HloModuleProto.
    Module,
    /// An HloProto: a module, and perhaps its assignment of buffers.
    Proto,
    /// An HloSnapshot: an HloProto with arguments and result.
    Snapshot,
    /// An HloUnoptimizedSnapshot: a module with the arguments of each partition.
    UnoptimizedSnapshot,
}

/// The bytes of a file without gzip, and where its module stands in them.
#[derive(Clone, Debug)]
pub struct Unpacked<'b> {
    /// The bytes.
    pub bytes: Cow<'b, [u8]>,
    /// What they are.
    pub wrapper: Wrapper,
    module: Range<usize>,
}

impl Unpacked<'_> {
    /// The bytes of the HloModuleProto.
    pub fn module(&self) -> &[u8] {
        self.bytes.get(self.module.clone()).unwrap_or(&[])
    }
}

/// Whether bytes are a message and not text: soon there is a character that no text has, such as those that begin fields.
pub fn is_binary(bytes: &[u8]) -> bool {
    let is_control = |&b: &u8| b < 0x20 && !matches!(b, b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    !bytes.trim_ascii_start().starts_with(b"HloModule") && bytes.iter().take(4096).any(is_control)
}

/// The bytes of a file, unpacked if they are packed with gzip.
///
/// # Errors
/// They cannot be unpacked, or there are more than `max_bytes` of them.
pub fn unzip(bytes: Vec<u8>, max_bytes: u64) -> Result<Vec<u8>, String> {
    if bytes.starts_with(&GZIP) { unzipped(&bytes, max_bytes) } else { Ok(bytes) }
}

/// Finds the module in a file.
///
/// # Errors
/// The file is no such message, or gzip that cannot be unpacked.
pub fn unpack(bytes: &[u8]) -> Result<Unpacked<'_>, String> {
    let bytes = match bytes.starts_with(&GZIP) {
        true => Cow::Owned(unzipped(bytes, MAX_BYTES)?),
        false => Cow::Borrowed(bytes),
    };
    let (wrapper, module) = find_module(&bytes)?;
    Ok(Unpacked { bytes, wrapper, module })
}

fn unzipped(bytes: &[u8], max_bytes: u64) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(max_bytes.saturating_add(1)).read_to_end(&mut out);
    read.map_err(|error| format!("gzip: {error}"))?;
    if out.len() as u64 > max_bytes {
        return Err(format!("gzip: expected at most {max_bytes} bytes, found more"));
    }
    Ok(out)
}

/// What the bytes are, and where the module stands. A module's first field is text, its name; that of the others is a message.
fn find_module(bytes: &[u8]) -> Result<(Wrapper, Range<usize>), String> {
    let whole = 0..bytes.len();
    let fields = first_level(bytes)?;
    if looks_like_module(&fields) {
        return Ok((Wrapper::Module, whole));
    }
    let place = |inner: &[u8]| {
        let start = inner.as_ptr() as usize - bytes.as_ptr() as usize;
        start..start + inner.len()
    };
    let inner_of = |outer: &[(u32, Value<'_>)], field: Field| {
        outer.iter().find_map(|&(number, value)| match value {
            Value::Bytes(inner) if number == field.number => Some(place(inner)),
            Value::Bytes(_) | Value::Int(_) | Value::Fixed32(_) | Value::Fixed64(_) => None,
        })
    };
    let error = || "expected an HloModuleProto, HloProto or HloSnapshot, found another message".to_string();
    let first = inner_of(&fields, hlo::hlo_module).ok_or_else(error)?;
    let inner = first_level(&bytes[first.clone()]).map_err(|_| error())?;
    if looks_like_module(&inner) {
        let is_snapshot = fields.iter().any(|(number, _)| *number == hlo_unoptimized_snapshot::partitions.number);
        return Ok((if is_snapshot { Wrapper::UnoptimizedSnapshot } else { Wrapper::Proto }, first));
    }
    debug_assert_eq!(hlo_snapshot::hlo.number, hlo::hlo_module.number);
    let module = inner_of(&inner, hlo::hlo_module).ok_or_else(error)?;
    match first_level(&bytes[module.clone()]) {
        Ok(fields) if looks_like_module(&fields) => Ok((Wrapper::Snapshot, module)),
        Ok(_) | Err(_) => Err(error()),
    }
}

fn first_level(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, String> {
    let (mut pos, mut fields) = (0, Vec::new());
    while pos < bytes.len() {
        let begin = pos;
        let field = take_field(bytes, &mut pos).map_err(|what| format!("byte {begin}: {what}"))?;
        fields.push(field);
    }
    Ok(fields)
}

/// Whether these are fields of a module: it has computations or a name that is text, where others have messages.
fn looks_like_module(fields: &[(u32, Value<'_>)]) -> bool {
    let has = |field: Field| fields.iter().any(|(number, _)| *number == field.number);
    has(hlo_module::computations) && (has(hlo_module::host_program_shape) || has(hlo_module::entry_computation_name))
        || has(hlo_module::entry_computation_name) && has(hlo_module::name) && fields.len() > 3
}
