// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers on disk: NumPy's `.npy`, or raw bytes.
//!
//! INVARIANT: a file is read whole, within a bound, before its header is believed; nothing is allocated for what a header
//! merely says.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use npyz::{NpyHeader, Order};
use queues::words::size;
use stasis::regular::{self, Links};

use super::element::Element;

/// The most bytes of a `.npy` header; NumPy writes about a hundred.
const MAX_HEADER: usize = 64 << 10;
/// The deepest nesting in one: a dictionary, a list of fields, a field, its shape.
const MAX_DEPTH: usize = 8;
/// Bytes written at a time.
const PIECE: usize = 1 << 20;

/// What NumPy needs to know of a buffer's bytes: the elements are little-endian, in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The elements' type; `None` for raw bytes.
    pub element: Option<Element>,
    /// How many there are in each dimension.
    pub shape: Vec<u64>,
}

/// A file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub bytes: Vec<u8>,
    pub layout: Layout,
}

fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy")
}

impl Array {
    /// Reads a regular file of at most `limit` bytes of data: `.npy` by its header, anything else as bytes.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(path: &Path, limit: u64) -> Result<Self> {
        if !is_npy(path) {
            let bytes = regular::read(path, limit, Links::Follow)?;
            return Ok(Self { layout: Layout { shape: vec![bytes.len() as u64], element: None }, bytes });
        }
        let mut bytes = regular::read(path, limit.saturating_add(MAX_HEADER as u64), Links::Follow)?;
        let named = || format!("{} is no .npy file", path.display());
        let data = data_offset(&bytes).with_context(named)?;
        let header = NpyHeader::from_reader(&bytes[..data]).with_context(named)?;
        let element = Element::of_numpy(&header.dtype())
            .with_context(|| format!("{} has elements of type {}", path.display(), header.dtype().descr()))?;
        if header.order() != Order::C {
            bail!("{} is in Fortran order; save it with numpy.ascontiguousarray", path.display());
        }
        let found = (bytes.len() - data) as u64;
        let wanted = header.len().saturating_mul(element.bytes() as u64);
        if found != wanted {
            bail!("{} has {found} bytes of data where its header says {wanted}", path.display());
        }
        bytes.drain(..data);
        Ok(Self { bytes, layout: Layout { element: Some(element), shape: header.shape().to_vec() } })
    }
}

/// Where the data of a `.npy` file begins, if its header is one that can be read without harm: short, flat, and with a
/// number of elements that is a number.
fn data_offset(file: &[u8]) -> Result<usize> {
    let (magic, rest) = file.split_at_checked(8).context("it is shorter than a header")?;
    ensure!(magic.starts_with(b"\x93NUMPY"), "it does not begin as one");
    let (length, start) = match (magic[6], rest) {
        (1, [a, b, ..]) => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        (2 | 3, [a, b, c, d, ..]) => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        (version, _) => bail!("its version is {version}, known are 1 to 3"),
    };
    ensure!(length <= MAX_HEADER, "its header has {length} bytes, more than {MAX_HEADER}");
    let text = file.get(start..start + length).context("its header is cut off")?;
    let (mut depth, mut elements) = (0usize, 1u64);
    for run in text.chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit()) {
        match run {
            [b'(' | b'[' | b'{'] => depth += 1,
            [b')' | b']' | b'}'] => depth = depth.saturating_sub(1),
            [b'0'..=b'9', ..] => {
                let number = std::str::from_utf8(run).ok().and_then(|run| run.parse::<u64>().ok());
                let product = number.and_then(|number| elements.checked_mul(number.max(1)));
                elements = product.context("its header speaks of more elements than can be counted")?;
            }
            _ => {}
        }
        ensure!(depth <= MAX_DEPTH, "its header is nested more than {MAX_DEPTH} deep");
    }
    Ok(start + length)
}

impl Layout {
    /// Writes `bytes` bytes, which `read` gives piece by piece, to a file: `.npy` with type and shape, else as they are.
    ///
    /// # Errors
    /// Those of the file, with its name, and of `read`.
    pub fn write(
        &self,
        path: &Path,
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let failed = || format!("Cannot write {}", path.display());
        let file = File::create(path).with_context(|| format!("Cannot create {}", path.display()))?;
        let mut file = BufWriter::new(file);
        if is_npy(path) {
            file.write_all(&self.npy_header()?).with_context(failed)?;
        }
        // No more than PIECE.
        let mut piece = vec![0; size(bytes.min(PIECE as u64))];
        let mut done = 0;
        while done < bytes {
            let part = &mut piece[..size((bytes - done).min(PIECE as u64))];
            read(done, part)?;
            file.write_all(part).with_context(failed)?;
            done += part.len() as u64;
        }
        file.flush().with_context(failed)
    }

    /// A header of version 1.0, as NumPy writes it: the data begins at a multiple of 64.
    fn npy_header(&self) -> Result<Vec<u8>> {
        let numbers: Vec<_> = self.shape.iter().map(u64::to_string).collect();
        let shape = match &numbers[..] {
            [only] => format!("({only},)"),
            all => format!("({})", all.join(", ")),
        };
        let descr = self.element.unwrap_or(Element::U8).descr();
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
        let length_field =
            u16::try_from(length).context("A shape of so many dimensions fits no .npy file")?;
        let mut header = b"\x93NUMPY\x01\x00".to_vec();
        header.extend(length_field.to_le_bytes());
        header.extend(format!("{text:<width$}\n", width = length - 1).into_bytes());
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(array: &Array, path: &Path) {
        let read = |offset: u64, piece: &mut [u8]| {
            piece.copy_from_slice(&array.bytes[offset as usize..][..piece.len()]);
            Ok(())
        };
        array.layout.write(path, array.bytes.len() as u64, read).unwrap();
    }

    #[test]
    fn npy_round_trips_with_type_and_shape() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        for element in [Element::F32, Element::F16, Element::Bool, Element::I8, Element::U64] {
            let layout = Layout { element: Some(element), shape: vec![2, 3] };
            let array = Array { bytes: (0..6 * element.bytes()).map(|n| n as u8 & 1).collect(), layout };
            write(&array, &path);
            assert_eq!(Array::read(&path, 1 << 20).unwrap(), array);
        }
    }

    #[test]
    fn bf16_is_saved_as_its_bits_and_read_as_numpy_calls_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let layout = Layout { element: Some(Element::Bf16), shape: vec![3] };
        write(&Array { bytes: vec![1, 2, 3, 4, 5, 6], layout }, &path);
        assert_eq!(Array::read(&path, 1 << 20).unwrap().layout.element, Some(Element::U16));
        let mut file = fs::read(&path).unwrap();
        let place = file.windows(3).position(|window| window == b"<u2").unwrap();
        file[place + 1] = b'V';
        fs::write(&path, file).unwrap();
        assert_eq!(Array::read(&path, 1 << 20).unwrap().layout.element, Some(Element::Bf16));
    }

    #[test]
    fn npy_data_longer_than_a_piece_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|n| (n / 7) as u8).collect();
        let layout = Layout { element: Some(Element::U8), shape: vec![bytes.len() as u64] };
        let array = Array { bytes, layout };
        write(&array, &path);
        assert!(Array::read(&path, 1 << 30).unwrap() == array);
    }

    #[test]
    fn truncated_npy_is_refused_with_both_lengths() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let layout = Layout { element: Some(Element::U32), shape: vec![2] };
        write(&Array { bytes: vec![1; 8], layout }, &path);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let error = format!("{:#}", Array::read(&path, 1 << 20).unwrap_err());
        assert!(error.contains("7 bytes") && error.contains('8'), "{error}");
    }

    #[test]
    fn hostile_npy_headers_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.npy");
        let dictionary =
            |shape: &str| format!("{{'descr': '<u4', 'fortran_order': False, 'shape': {shape}, }}\n");
        for (version, length, text, said) in [
            (1, None, dictionary("(4611686018427387904, 4611686018427387904)"), "more elements"),
            (1, None, dictionary(&format!("({},)", "9".repeat(5000))), "more elements"),
            (1, None, dictionary(&"(".repeat(30_000)), "nested"),
            (2, Some(u32::MAX), dictionary("(1,)"), "4294967295 bytes"),
            (1, Some(9999), dictionary("(1,)"), "cut off"),
            (9, None, dictionary("(1,)"), "version is 9"),
            (1, None, "nothing".to_owned(), "is no .npy file"),
        ] {
            let mut file = b"\x93NUMPY".to_vec();
            file.extend([version, 0]);
            let length = length.unwrap_or(text.len() as u32).to_le_bytes();
            file.extend(if version == 1 { &length[..2] } else { &length[..] });
            file.extend(text.as_bytes());
            fs::write(&path, file).unwrap();
            let error = format!("{:#}", Array::read(&path, 1 << 20).unwrap_err());
            assert!(error.contains(said), "wanted {said:?}: {error}");
        }
    }
}
