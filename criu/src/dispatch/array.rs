// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers on disk: NumPy's `.npy`, or raw bytes.

use std::fs::{self, File};
use std::io::{BufWriter, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use npyz::{DType, NpyHeader, Order, TypeChar, TypeStr, WriterBuilder};

use super::argument::Element;

/// Bytes with what NumPy needs to know of them.
#[derive(Clone, Debug)]
pub struct Array {
    /// The elements, little-endian, C order.
    pub bytes: Vec<u8>,
    /// Their type; `None` for raw bytes.
    pub element: Option<Element>,
    /// Their shape.
    pub shape: Vec<u64>,
}

fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy")
}

impl Array {
    /// Reads a file: `.npy` by its header, anything else as bytes.
    pub fn read(path: &Path) -> Result<Self> {
        if !is_npy(path) {
            let bytes = fs::read(path).with_context(|| format!("Cannot read {}", path.display()))?;
            return Ok(Self { shape: vec![bytes.len() as u64], bytes, element: None });
        }
        let mut file = File::open(path).with_context(|| format!("Cannot open {}", path.display()))?;
        let header = NpyHeader::from_reader(&mut file)
            .with_context(|| format!("{} is no .npy file", path.display()))?;
        let element = element_of(&header.dtype())
            .with_context(|| format!("{} has elements of type {}", path.display(), header.dtype().descr()))?;
        if header.order() != Order::C {
            bail!("{} is in Fortran order; save it with numpy.ascontiguousarray", path.display());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let wanted = header.len() * element.bytes() as u64;
        if bytes.len() as u64 != wanted {
            bail!("{} has {} bytes of data where its header says {wanted}", path.display(), bytes.len());
        }
        Ok(Self { bytes, element: Some(element), shape: header.shape().to_vec() })
    }

    /// Writes a file: `.npy` with type and shape, anything else as bytes.
    pub fn write(&self, path: &Path) -> Result<()> {
        if !is_npy(path) {
            return fs::write(path, &self.bytes).with_context(|| format!("Cannot write {}", path.display()));
        }
        let file = File::create(path).with_context(|| format!("Cannot create {}", path.display()))?;
        macro_rules! typed {
            ($type:ty) => {{
                let options = npyz::WriteOptions::<$type>::new().default_dtype().shape(&self.shape);
                let mut writer = options.writer(BufWriter::new(file)).begin_nd()?;
                for element in self.bytes.as_chunks::<{ size_of::<$type>() }>().0 {
                    writer.push(&<$type>::from_le_bytes(*element))?;
                }
                writer.finish()?;
            }};
        }
        match self.element.unwrap_or(Element::U8) {
            Element::U8 => typed!(u8),
            Element::I8 => typed!(i8),
            Element::U16 => typed!(u16),
            Element::I16 => typed!(i16),
            Element::U32 => typed!(u32),
            Element::I32 => typed!(i32),
            Element::U64 => typed!(u64),
            Element::I64 => typed!(i64),
            Element::F32 => typed!(f32),
            Element::F64 => typed!(f64),
        }
        Ok(())
    }
}

fn element_of(dtype: &DType) -> Result<Element> {
    let DType::Plain(plain) = dtype else { bail!("structured types are not kernel arguments") };
    let plain: &TypeStr = plain;
    let element = match (plain.type_char(), plain.size_field()) {
        (TypeChar::Uint, 1) | (TypeChar::Bool, 1) => Element::U8,
        (TypeChar::Int, 1) => Element::I8,
        (TypeChar::Uint, 2) => Element::U16,
        (TypeChar::Int, 2) => Element::I16,
        (TypeChar::Uint, 4) => Element::U32,
        (TypeChar::Int, 4) => Element::I32,
        (TypeChar::Uint, 8) => Element::U64,
        (TypeChar::Int, 8) => Element::I64,
        (TypeChar::Float, 4) => Element::F32,
        (TypeChar::Float, 8) => Element::F64,
        _ => bail!(
            "the types known are u1, i1, u2, i2, u4, i4, u8, i8, f4, f8; pass others as raw bytes (.bin)"
        ),
    };
    if plain.size_field() > 1 && !matches!(plain.endianness(), npyz::Endianness::Little) {
        bail!("big-endian data; convert it with astype");
    }
    Ok(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_round_trips_with_type_and_shape() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let bytes: Vec<u8> = (0..6u32).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let array = Array { bytes: bytes.clone(), element: Some(Element::F32), shape: vec![2, 3] };
        array.write(&path).unwrap();
        let back = Array::read(&path).unwrap();
        assert_eq!((back.bytes, back.element, back.shape), (bytes, Some(Element::F32), vec![2, 3]));
    }

    #[test]
    fn truncated_npy_is_refused_with_both_lengths() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        Array { bytes: vec![1; 8], element: Some(Element::U32), shape: vec![2] }.write(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let error = format!("{:#}", Array::read(&path).unwrap_err());
        assert!(error.contains("7 bytes") && error.contains('8'), "{error}");
    }
}
