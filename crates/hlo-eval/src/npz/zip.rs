//! As much of the zip format as numpy's stored archives need, 64-bit sizes included.
//!
//! Reference: PKWARE's APPNOTE, sections 4.3 and 4.5.3. The directory at the end is what counts; local headers are only
//! skipped over.

use super::read_at;
use crate::error::EvalError;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const END64_LOCATOR: u32 = 0x0706_4b50;
const END_LEN: usize = 22;
const LOCATOR_LEN: usize = 20;

/// One file of an archive.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    method: u16,
    crc: u32,
    packed_bytes: u64,
    bytes: u64,
    header_offset: u64,
}

/// CRC-32 as zip uses it (polynomial 0xEDB88320).
fn crc32(bytes: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = crc_tables();
    let mut crc = u32::MAX;
    let mut chunks = bytes.chunks_exact(8);
    for c in &mut chunks {
        let low = crc ^ u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        let lane = |k: usize, byte: u32| TABLES[k][(byte & 0xff) as usize];
        crc = lane(7, low) ^ lane(6, low >> 8) ^ lane(5, low >> 16) ^ lane(4, low >> 24);
        crc ^= lane(3, c[4].into()) ^ lane(2, c[5].into()) ^ lane(1, c[6].into()) ^ lane(0, c[7].into());
    }
    for &byte in chunks.remainder() {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize];
    }
    !crc
}

/// Table `k` advances the remainder of one byte by `k` zero bytes.
const fn crc_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[k - 1][i];
            tables[k][i] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    tables
}

/// Little-endian fields read one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], EvalError> {
        let (head, tail) =
            self.0.split_at_checked(n).ok_or_else(|| EvalError::invalid("npz: a zip record is cut off"))?;
        self.0 = tail;
        Ok(head)
    }

    fn uint(&mut self, n: usize) -> Result<u64, EvalError> {
        Ok(self.take(n)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn u16(&mut self) -> Result<u16, EvalError> {
        Ok(self.uint(2)? as u16)
    }

    fn u32(&mut self) -> Result<u32, EvalError> {
        Ok(self.uint(4)? as u32)
    }
}

/// Number of entries, size and offset of the directory.
fn find_directory<R: Read + Seek>(source: &mut R) -> Result<(u64, u64, u64), EvalError> {
    let io_error = |e: io::Error| EvalError::invalid(format!("npz: {e}"));
    let file_len = source.seek(SeekFrom::End(0)).map_err(io_error)?;
    // The end record is the last thing but for a comment of at most 65,535 bytes.
    let tail_len = file_len.min((END_LEN + LOCATOR_LEN + 0xffff) as u64);
    let tail_start = file_len - tail_len;
    let tail = read_at(source, tail_start, tail_len)?;
    let at = (0..tail.len().saturating_sub(END_LEN - 1)).rev().find(|&i| tail[i..].starts_with(&END.to_le_bytes()));
    let at = at.ok_or_else(|| EvalError::invalid("npz: expected a zip archive, found no end record"))?;
    let mut fields = Fields(&tail[at..]);
    fields.take(10)?;
    let (n, size, offset) = (fields.uint(2)?, fields.uint(4)?, fields.uint(4)?);
    if n != 0xffff && size != 0xffff_ffff && offset != 0xffff_ffff {
        return Ok((n, size, offset));
    }
    let locator = at.checked_sub(LOCATOR_LEN).and_then(|start| tail.get(start..at));
    let mut fields = Fields(locator.ok_or_else(|| EvalError::invalid("npz: expected a zip64 locator"))?);
    if fields.u32()? != END64_LOCATOR {
        return Ok((n, size, offset));
    }
    fields.take(4)?;
    let end64 = read_at(source, fields.uint(8)?, 56)?;
    let mut fields = Fields(&end64);
    if fields.u32()? != END64 {
        return Err(EvalError::invalid("npz: expected a zip64 end record"));
    }
    fields.take(28)?;
    Ok((fields.uint(8)?, fields.uint(8)?, fields.uint(8)?))
}

/// The files of an archive by name, `.npy` dropped.
pub(super) fn read_directory<R: Read + Seek>(source: &mut R) -> Result<BTreeMap<String, Entry>, EvalError> {
    let (n, size, offset) = find_directory(source)?;
    let bytes = read_at(source, offset, size)?;
    let mut fields = Fields(&bytes);
    let mut entries = BTreeMap::new();
    for _ in 0..n {
        if fields.u32()? != CENTRAL {
            return Err(EvalError::invalid("npz: expected a directory record"));
        }
        fields.take(6)?;
        let method = fields.u16()?;
        fields.take(4)?;
        let crc = fields.u32()?;
        let (mut packed_bytes, mut bytes) = (fields.uint(4)?, fields.uint(4)?);
        let (name_len, extra_len, comment_len) = (fields.u16()?, fields.u16()?, fields.u16()?);
        fields.take(8)?;
        let mut header_offset = fields.uint(4)?;
        let name = String::from_utf8_lossy(fields.take(name_len.into())?).into_owned();
        let mut extra = Fields(fields.take(extra_len.into())?);
        fields.take(comment_len.into())?;
        while extra.0.len() >= 4 {
            let (id, len) = (extra.u16()?, extra.u16()?);
            let mut body = Fields(extra.take(len.into())?);
            if id == 1 {
                // Only the fields that do not fit 32 bits are here, in this order.
                for field in [&mut bytes, &mut packed_bytes, &mut header_offset] {
                    if *field == 0xffff_ffff {
                        *field = body.uint(8)?;
                    }
                }
            }
        }
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_string();
        entries.insert(name, Entry { method, crc, packed_bytes, bytes, header_offset });
    }
    Ok(entries)
}

/// The bytes of one file, checked against their CRC.
pub(super) fn read_entry<R: Read + Seek>(source: &mut R, name: &str, entry: &Entry) -> Result<Vec<u8>, EvalError> {
    if entry.method != 0 || entry.packed_bytes != entry.bytes {
        let text = format!("npz: `{name}` is compressed; store it with np.savez, not np.savez_compressed");
        return Err(EvalError::unsupported(text));
    }
    let header = read_at(source, entry.header_offset, 30)?;
    let mut fields = Fields(&header);
    if fields.u32()? != LOCAL {
        return Err(EvalError::invalid(format!("npz: expected the header of `{name}`")));
    }
    fields.take(22)?;
    let skipped = 30 + u64::from(fields.u16()?) + u64::from(fields.u16()?);
    let bytes = read_at(source, entry.header_offset.saturating_add(skipped), entry.bytes)?;
    if crc32(&bytes) != entry.crc {
        return Err(EvalError::invalid(format!("npz: `{name}` is damaged: its CRC differs")));
    }
    Ok(bytes)
}

/// Writes files one after the other, uncompressed, and the directory at the end.
#[derive(Debug)]
pub(super) struct Writer<W: Write> {
    sink: W,
    offset: u64,
    directory: Vec<(String, Entry)>,
}

/// The extra field with 64-bit sizes; every entry has it, so that no size is a special case.
fn extra64(fields: &[u64]) -> Vec<u8> {
    let mut out = vec![1, 0];
    out.extend(((fields.len() * 8) as u16).to_le_bytes());
    fields.iter().for_each(|f| out.extend(f.to_le_bytes()));
    out
}

impl<W: Write> Writer<W> {
    pub(super) fn new(sink: W) -> Writer<W> {
        Writer { sink, offset: 0, directory: Vec::new() }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.offset += bytes.len() as u64;
        self.sink.write_all(bytes)
    }

    /// Version 4.5 (64-bit sizes), no flags, stored, 1 January 1980.
    fn fixed_fields(crc: u32, name: &str, extra: &[u8]) -> Vec<u8> {
        let mut out = vec![45, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        out.extend(crc.to_le_bytes());
        out.extend([0xff; 8]);
        out.extend((name.len() as u16).to_le_bytes());
        out.extend((extra.len() as u16).to_le_bytes());
        out
    }

    /// Adds the file `name`.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        let entry = Entry { method: 0, crc: crc32(bytes), packed_bytes: len, bytes: len, header_offset: self.offset };
        let extra = extra64(&[len, len]);
        let fixed = Self::fixed_fields(entry.crc, name, &extra);
        self.put(&LOCAL.to_le_bytes())?;
        self.put(&fixed)?;
        self.put(name.as_bytes())?;
        self.put(&extra)?;
        self.put(bytes)?;
        self.directory.push((name.to_string(), entry));
        Ok(())
    }

    /// Writes the directory; the archive is whole.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let start = self.offset;
        for (name, entry) in std::mem::take(&mut self.directory) {
            let extra = extra64(&[entry.bytes, entry.packed_bytes, entry.header_offset]);
            let mut record = CENTRAL.to_le_bytes().to_vec();
            record.extend([45, 0]);
            record.extend(Self::fixed_fields(entry.crc, &name, &extra));
            // No comment, disk 0, no attributes; the offset is in the extra field.
            record.extend([0; 10]);
            record.extend([0xff; 4]);
            record.extend(name.as_bytes());
            record.extend(extra);
            self.put(&record)?;
            self.directory.push((name, entry));
        }
        let (size, end64, n) = (self.offset - start, self.offset, self.directory.len() as u64);
        let mut record = END64.to_le_bytes().to_vec();
        record.extend(44u64.to_le_bytes());
        record.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        [n, n, size, start].iter().for_each(|f| record.extend(f.to_le_bytes()));
        record.extend(END64_LOCATOR.to_le_bytes());
        record.extend([0; 4]);
        record.extend(end64.to_le_bytes());
        record.extend([1, 0, 0, 0]);
        record.extend(END.to_le_bytes());
        record.extend([0; 4]);
        record.extend([0xff; 12]);
        record.extend([0; 2]);
        self.put(&record)?;
        self.sink.flush()?;
        Ok(self.sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_standard_check_string() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
