//! Arrays in numpy's `.npz` files: a zip archive of `.npy` arrays, stored without compression as `np.savez` does.
//!
//! Reads and writes go through `Read`, `Write` and `Seek`; this module opens no file. Types that numpy lacks (bf16, the f8s)
//! are stored as `f32`, which holds all their values.

use crate::error::EvalError;
use crate::run::{Inputs, Outputs, entry_leaves};
use hlo_ir::literal::Buffer;
use hlo_ir::{DType, Literal, Module};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

mod npy;
mod zip;

pub use npy::{read_npy, write_npy};

/// An `.npz` archive open for reading.
#[derive(Debug)]
pub struct NpzReader<R> {
    source: R,
    entries: BTreeMap<String, zip::Entry>,
}

fn io_error(error: std::io::Error) -> EvalError {
    EvalError::invalid(format!("npz: {error}"))
}

impl<R: Read + Seek> NpzReader<R> {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// The bytes are no zip archive, or reading fails.
    pub fn new(mut source: R) -> Result<NpzReader<R>, EvalError> {
        let entries = zip::read_directory(&mut source)?;
        Ok(NpzReader { source, entries })
    }

    /// The names of the arrays, without `.npy`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The array `name`.
    ///
    /// # Errors
    /// There is no such array, it is compressed or damaged, or of a type that HLO lacks.
    pub fn read(&mut self, name: &str) -> Result<Literal, EvalError> {
        let entry =
            self.entries.get(name).ok_or_else(|| EvalError::invalid(format!("npz: expected an array `{name}`")))?;
        let bytes = zip::read_entry(&mut self.source, name, entry)?;
        read_npy(&bytes).map_err(|e| EvalError::invalid(format!("npz: `{name}`: {e}")))
    }

    /// The inputs of `module`: arrays `in{leaf}_d{device}`, converted to the parameters' element types where numpy lacks
    /// them. Equal arrays of a leaf are held once.
    ///
    /// # Errors
    /// An array is missing or does not fit its parameter, or there is one that the module does not take: neither such an input nor
    /// an output `out{leaf}_d{device}`, which runs write beside the inputs.
    pub fn read_inputs(&mut self, module: &Module) -> Result<Inputs, EvalError> {
        self.read_rows(module, module.n_devices())
    }

    /// The inputs of a global program: arrays `in{leaf}_d0`, as [`NpzReader::read_inputs`] reads them.
    ///
    /// # Errors
    /// As [`NpzReader::read_inputs`].
    pub fn read_wholes(&mut self, module: &Module) -> Result<Inputs, EvalError> {
        self.read_rows(module, 1)
    }

    fn read_rows(&mut self, module: &Module, n_devices: usize) -> Result<Inputs, EvalError> {
        self.check_names(entry_leaves(module).len(), n_devices)?;
        let mut leaves = Vec::new();
        for (i, leaf) in entry_leaves(module).iter().enumerate() {
            let mut row: Vec<Arc<Literal>> = Vec::new();
            for device in 0..n_devices {
                let found = self.read(&format!("in{i}_d{device}"))?;
                let array = fit(found, leaf.shape.dtype, &leaf.shape.dims)
                    .map_err(|e| EvalError::invalid(format!("npz: in{i}_d{device}: {e}")))?;
                let known = row.iter().find(|known| ***known == array).cloned();
                row.push(known.unwrap_or_else(|| Arc::new(array)));
            }
            leaves.push(row);
        }
        Ok(Inputs { leaves })
    }

    fn check_names(&self, n_leaves: usize, n_devices: usize) -> Result<(), EvalError> {
        let place = |name: &str, what: &str| {
            let (leaf, device) = name.strip_prefix(what)?.split_once("_d")?;
            Some((leaf.parse::<usize>().ok()?, device.parse::<usize>().ok()?))
        };
        let is_known = |name: &&str| {
            let input = place(name, "in").is_some_and(|(leaf, device)| leaf < n_leaves && device < n_devices);
            input || place(name, "out").is_some()
        };
        let Some(name) = self.names().find(|name| !is_known(name)) else { return Ok(()) };
        let expected = format!("in0_d0 to in{}_d{}", n_leaves.saturating_sub(1), n_devices.saturating_sub(1));
        Err(EvalError::invalid(format!("npz: expected the arrays {expected} alone, found `{name}`")))
    }
}

/// The array as `dtype` with `dims`. Only widenings that [`savable`] makes are undone; other types must agree.
fn fit(array: Literal, dtype: DType, dims: &[i64]) -> Result<Literal, EvalError> {
    if array.dtype() != savable(dtype) || (array.dims() != dims && array.n_elems() != 1) {
        let expected = savable(dtype);
        let text = format!("expected {expected}{dims:?}, found {}{:?}", array.dtype(), array.dims());
        return Err(EvalError::invalid(text));
    }
    Ok(array.convert(dtype).with_dims(dims)?)
}

/// The type in which arrays of `dtype` are stored.
pub fn savable(dtype: DType) -> DType {
    match dtype {
        DType::S1 | DType::S2 | DType::S4 => DType::S8,
        DType::U1 | DType::U2 | DType::U4 => DType::U8,
        DType::Pred
        | DType::S8
        | DType::S16
        | DType::S32
        | DType::S64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::F16
        | DType::F32
        | DType::F64
        | DType::C64
        | DType::C128 => dtype,
        _ => DType::F32,
    }
}

/// An `.npz` archive being written; [`NpzWriter::finish`] makes it whole.
#[derive(Debug)]
pub struct NpzWriter<W: Write> {
    zip: zip::Writer<W>,
}

impl<W: Write> NpzWriter<W> {
    /// An archive that is written to `sink` from its beginning.
    pub fn new(sink: W) -> NpzWriter<W> {
        NpzWriter { zip: zip::Writer::new(sink) }
    }

    /// Adds an array.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write(&mut self, name: &str, array: &Literal) -> Result<(), EvalError> {
        let dtype = savable(array.dtype());
        let bytes = if dtype == array.dtype() { write_npy(array) } else { write_npy(&array.convert(dtype)) };
        self.zip.add(&format!("{name}.npy"), &bytes).map_err(io_error)
    }

    /// Adds every array as `in{leaf}_d{device}`.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write_inputs(&mut self, inputs: &Inputs) -> Result<(), EvalError> {
        self.write_rows("in", &inputs.leaves)
    }

    /// Adds every array as `out{leaf}_d{device}`.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write_outputs(&mut self, outputs: &Outputs) -> Result<(), EvalError> {
        self.write_rows("out", &outputs.leaves)
    }

    fn write_rows(&mut self, prefix: &str, rows: &[Vec<Arc<Literal>>]) -> Result<(), EvalError> {
        for (i, row) in rows.iter().enumerate() {
            for (device, array) in row.iter().enumerate() {
                self.write(&format!("{prefix}{i}_d{device}"), array)?;
            }
        }
        Ok(())
    }

    /// Writes the directory and gives the sink back.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(self) -> Result<W, EvalError> {
        self.zip.finish().map_err(io_error)
    }
}

/// Reads `len` bytes at `offset`; short files are an error, and no more memory is taken than the file has bytes.
fn read_at<R: Read + Seek>(source: &mut R, offset: u64, len: u64) -> Result<Vec<u8>, EvalError> {
    source.seek(SeekFrom::Start(offset)).map_err(io_error)?;
    let mut bytes = Vec::new();
    let found = source.by_ref().take(len).read_to_end(&mut bytes).map_err(io_error)?;
    if found as u64 != len {
        return Err(EvalError::invalid(format!("npz: expected {len} bytes at {offset}, found {found}")));
    }
    Ok(bytes)
}

/// The buffer of `n_elems` elements of a savable type from its little-endian bytes.
fn buffer_of(dtype: DType, bytes: &[u8], n_elems: usize) -> Buffer {
    Buffer::from_packed_bytes(dtype, bytes, n_elems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::Scalar;
    use std::io::Cursor;

    fn literals() -> Vec<(&'static str, Literal)> {
        let f = Literal::from_elems(&[2, 3], vec![1.0f32, -2.5, 3.0, f32::INFINITY, 5.0, 0.1]).unwrap();
        vec![
            ("a", f.clone()),
            ("empty", Literal::zeros(DType::S32, &[0, 4]).unwrap()),
            ("scalar", Literal::scalar(DType::U64, Scalar::Uint(u64::MAX))),
            ("flags", Literal::from_elems(&[3], vec![true, false, true]).unwrap()),
            ("z", f.convert(DType::C128)),
            ("half", f.convert(DType::F16)),
        ]
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = NpzWriter::new(Vec::new());
        for (name, array) in literals() {
            writer.write(name, &array).unwrap();
        }
        let brain = Literal::from_elems(&[2], vec![1.5f32, 3.0]).unwrap().convert(DType::BF16);
        writer.write("brain", &brain).unwrap();
        let bytes = writer.finish().unwrap();
        let mut reader = NpzReader::new(Cursor::new(&bytes)).unwrap();
        for (name, array) in literals() {
            assert_eq!(reader.read(name).unwrap(), array, "{name}");
        }
        let stored = reader.read("brain").unwrap();
        assert_eq!(stored.dtype(), DType::F32);
        assert_eq!(fit(stored, DType::BF16, &[2]).unwrap(), brain);
        assert!(reader.read("missing").is_err());
        assert_eq!(reader.names().count(), 7);
    }

    #[test]
    fn types_of_other_packages_are_read_with_any_order_of_bytes() {
        let brain = Literal::from_elems(&[2], vec![1.5f32, 3.0]).unwrap().convert(DType::BF16);
        let mut bytes = write_npy(&brain);
        assert_eq!(read_npy(&bytes).unwrap(), brain);
        let at = bytes.windows(3).position(|name| name == b"|V2").unwrap();
        bytes[at] = b'<';
        assert_eq!(read_npy(&bytes).unwrap(), brain);
    }

    #[test]
    fn damaged_archives_are_errors() {
        let mut writer = NpzWriter::new(Vec::new());
        for (name, array) in literals() {
            writer.write(name, &array).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let read_all = |bytes: &[u8]| -> Result<(), EvalError> {
            let mut reader = NpzReader::new(Cursor::new(bytes))?;
            let names: Vec<String> = reader.names().map(str::to_string).collect();
            names.iter().try_for_each(|name| reader.read(name).map(drop))
        };
        assert!(read_all(&bytes).is_ok());
        for cut in 0..bytes.len() {
            assert!(read_all(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            // Some fields (times, attributes) mean nothing; the point is that nothing panics.
            let _ = read_all(&damaged);
        }
    }
}
