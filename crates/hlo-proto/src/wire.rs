//! The wire format: varints, tags, lengths; nothing here knows a field. For the few messages that are not in the table, too.

/// One value as it stands on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A varint: integers, booleans, enums.
    Int(u64),
    /// Four bytes: `float`.
    Fixed32(u32),
    /// Eight bytes: `double`.
    Fixed64(u64),
    /// A length and bytes: text, bytes, messages, packed numbers.
    Bytes(&'a [u8]),
}

/// Takes a varint; `None` if it does not end within ten bytes and the input.
#[inline]
pub(crate) fn take_varint(bytes: &[u8], pos: &mut usize) -> Option<u64> {
    let first = *bytes.get(*pos)?;
    if first < 0x80 {
        *pos += 1;
        return Some(u64::from(first));
    }
    let mut value = 0u64;
    for (i, &byte) in bytes.get(*pos..)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i as u32);
        if byte < 0x80 {
            *pos += i + 1;
            return Some(value);
        }
    }
    None
}

/// Takes the next field: its number and its value.
///
/// # Errors
/// What is wrong with the bytes at `pos`.
#[inline]
pub fn take_field<'a>(bytes: &'a [u8], pos: &mut usize) -> Result<(u32, Value<'a>), &'static str> {
    let tag = take_varint(bytes, pos).ok_or("expected a field's number, found a varint that does not end")?;
    let number = u32::try_from(tag >> 3).ok().filter(|&n| n > 0 && n < 1 << 29);
    let number = number.ok_or("expected a field's number, found one out of range")?;
    let value = match tag & 7 {
        0 => Value::Int(take_varint(bytes, pos).ok_or("expected a varint, found one that does not end")?),
        1 => Value::Fixed64(u64::from_le_bytes(take_array(bytes, pos).ok_or("expected 8 bytes, found the end")?)),
        2 => {
            let len = take_varint(bytes, pos).ok_or("expected a length, found a varint that does not end")?;
            let end = usize::try_from(len).ok().and_then(|len| pos.checked_add(len));
            let value = end.and_then(|end| bytes.get(*pos..end));
            let value = value.ok_or("expected as many bytes as the length says, found the end")?;
            *pos += value.len();
            Value::Bytes(value)
        }
        5 => Value::Fixed32(u32::from_le_bytes(take_array(bytes, pos).ok_or("expected 4 bytes, found the end")?)),
        _ => return Err("expected a varint, 4 bytes, 8 bytes or a length, found another wire type"),
    };
    Ok((number, value))
}

#[inline]
fn take_array<const N: usize>(bytes: &[u8], pos: &mut usize) -> Option<[u8; N]> {
    let array = *bytes.get(*pos..)?.first_chunk()?;
    *pos += N;
    Some(array)
}

/// Appends a varint.
#[inline]
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes a varint takes.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            let mut pos = 0;
            assert_eq!((take_varint(&bytes, &mut pos), pos), (Some(value), bytes.len()));
        }
        assert_eq!(take_varint(&[0x80; 11], &mut 0), None);
        assert_eq!(take_varint(&[0x80], &mut 0), None);
    }
}
