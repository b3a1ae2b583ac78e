// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every way of damaging an image is refused, before memory is filled, with the section and the offset.
//!
//! `STASIS_IMAGE_CASES` sets how many damaged images are tried (10 000).

use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::format::{CHUNK_ENTRY_BYTES, CONTENTS_OFFSET, HEADER_BYTES, SECTION_BYTES};
use super::*;

const HEADER_HASH: usize = 32;
/// A section's row: where its offset, its length and its hash are.
const ROW: [usize; 3] = [8, 16, 24];

fn image_of(seed: u64) -> Vec<u8> {
    let sizes = [5000, 100, 4096];
    let mut memories: Vec<_> = sizes.iter().map(|n| Memory::of(&noise(*n, seed + *n as u64))).collect();
    memories.insert(1, Memory::of(&[0; 4096]));
    let mut writer = ImageWriter::in_memory().unwrap();
    writer.write_contents(&extents(&mut memories), &Limit::none()).unwrap();
    let file = writer.finish(&vec!["meta", &format!("of {seed}")]).unwrap().file;
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    bytes
}

fn whole() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| image_of(1))
}

fn other() -> &'static [u8] {
    static OTHER: OnceLock<Vec<u8>> = OnceLock::new();
    OTHER.get_or_init(|| image_of(2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn row(section: usize) -> usize {
    HEADER_BYTES + section * SECTION_BYTES
}

/// Where a section lies.
fn section(bytes: &[u8], section: usize) -> std::ops::Range<usize> {
    let start = u64_at(bytes, row(section) + ROW[0]) as usize;
    start..start.saturating_add(u64_at(bytes, row(section) + ROW[1]) as usize)
}

/// Opens, checks and fills; nothing may be filled unless all was right.
fn take(bytes: &[u8]) -> Result<(), ImageError> {
    let file = File::from(memfd_create("damaged", MFdFlags::MFD_CLOEXEC).unwrap());
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    let image = Image::of_file(file, Path::new("damaged"))?;
    image.verify()?;
    let mut memories: Vec<_> = [5000, 4096, 100, 4096].iter().map(|n| Memory::of(&vec![1; *n])).collect();
    image.fill(&extents(&mut memories), false, &Limit::none()).map(|_| ())
}

/// Makes all hashes fit that a forger can compute: those of tables, metadata and header.
fn forge(bytes: &mut [u8]) {
    let range =
        |n| Some(section(bytes, n)).filter(|range| range.start <= range.end && range.end <= bytes.len());
    let hashes = [1, 2].map(|n| range(n).map(|range| *blake3::hash(&bytes[range]).as_bytes()));
    for (n, hash) in [(0, hashes[0]), (1, hashes[0]), (2, hashes[1])] {
        if let Some(hash) = hash {
            bytes[row(n) + ROW[2]..row(n) + ROW[2] + 32].copy_from_slice(&hash);
        }
    }
    let (front, table) = (&bytes[..HEADER_HASH], &bytes[HEADER_BYTES..row(3)]);
    let hash = *blake3::Hasher::new().update(front).update(table).finalize().as_bytes();
    bytes[HEADER_HASH..HEADER_BYTES].copy_from_slice(&hash);
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index),
    Truncate(prop::sample::Index),
    Append(u8),
    /// Bytes of another image of the same form, in place of a section and, unless false, its row.
    Splice(usize, bool),
    SwapRows(usize, usize),
    SwapContents(usize, usize),
    /// A number of header or section table, with hashes that fit.
    Number(usize, u64),
    /// A number of the chunk table, with hashes that fit.
    ChunkNumber(prop::sample::Index, usize, u64),
    Version(u16, u16),
}

fn number() -> impl Strategy<Value = u64> {
    let edges = vec![
        0,
        1,
        63,
        64,
        4095,
        4096,
        8192,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        1 << 31,
        1 << 32,
        1 << 40,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ];
    prop_oneof![prop::sample::select(edges), any::<u64>(), 0u64..40_000]
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let numbers: Vec<usize> = [16, 24, 28, 12]
        .into_iter()
        .chain((0..3).flat_map(|n| [0, 4, 8, 16, 56].map(|at| row(n) + at)))
        .collect();
    prop_oneof![
        8 => index().prop_map(Damage::Flip),
        2 => index().prop_map(Damage::Truncate),
        1 => any::<u8>().prop_map(Damage::Append),
        1 => (0usize..3, any::<bool>()).prop_map(|(n, rows)| Damage::Splice(n, rows)),
        1 => (0usize..3, 1usize..3).prop_map(|(n, more)| Damage::SwapRows(n, (n + more) % 3)),
        1 => (0usize..3, 1usize..3).prop_map(|(n, more)| Damage::SwapContents(n, (n + more) % 3)),
        4 => (prop::sample::select(numbers), number()).prop_map(|(at, n)| Damage::Number(at, n)),
        4 => (index(), prop::sample::select(vec![0usize, 4, 8, 16, 24, 32]), number())
            .prop_map(|(chunk, at, n)| Damage::ChunkNumber(chunk, at, n)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(major, minor)| Damage::Version(major, minor)),
    ]
}

impl Damage {
    fn apply(&self) -> Vec<u8> {
        let mut bytes = whole().to_vec();
        match *self {
            Self::Flip(place) => {
                let bit = place.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Self::Truncate(keep) => bytes.truncate(keep.index(whole().len())),
            Self::Append(byte) => bytes.push(byte),
            Self::Splice(n, rows) => {
                let range = section(&bytes, n);
                bytes[range.clone()].copy_from_slice(&other()[range]);
                if rows {
                    bytes[row(n)..row(n + 1)].copy_from_slice(&other()[row(n)..row(n + 1)]);
                }
            }
            Self::SwapRows(one, two) => {
                for at in 0..SECTION_BYTES {
                    bytes.swap(row(one) + at, row(two) + at);
                }
            }
            Self::SwapContents(one, two) => {
                let (one, two) = (section(&bytes, one), section(&bytes, two));
                for (one, two) in one.zip(two) {
                    bytes.swap(one, two);
                }
            }
            Self::Number(at, n) => {
                bytes[at..at + 4].copy_from_slice(&n.to_le_bytes()[..4]);
                if matches!(at, 16 | 72 | 80 | 120 | 136 | 144 | 184 | 200 | 208 | 248) {
                    bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
                }
                forge(&mut bytes);
            }
            Self::ChunkNumber(chunk, field, n) => {
                let table = section(&bytes, 1);
                let at =
                    table.start + chunk.index(table.len() / CHUNK_ENTRY_BYTES) * CHUNK_ENTRY_BYTES + field;
                let bytes_of = if field < 8 { 4 } else { 8 };
                bytes[at..at + bytes_of].copy_from_slice(&n.to_le_bytes()[..bytes_of]);
                forge(&mut bytes);
            }
            Self::Version(major, minor) => {
                bytes[8..10].copy_from_slice(&major.to_le_bytes());
                bytes[10..12].copy_from_slice(&minor.to_le_bytes());
                forge(&mut bytes);
            }
        }
        bytes
    }

    /// Whether only the hashes that a forger cannot compute are left to tell, and do not: another place for the same
    /// bytes is an image of other buffers.
    fn is_another_image(&self) -> bool {
        matches!(self, Self::ChunkNumber(_, 0 | 8, _))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let bytes = self.apply();
        if bytes == whole() {
            return Ok(());
        }
        let error = match take(&bytes) {
            Err(error) => error,
            Ok(()) if self.is_another_image() => return Ok(()),
            Ok(()) => return Err(TestCaseError::fail("it was taken")),
        };
        let named = match (&error, self) {
            (ImageError::Corrupt { section, offset, .. }, Self::Flip(place)) => {
                let byte = (place.index(whole().len() * 8) / 8) as u64;
                *section == section_of(byte as usize) && *offset <= byte.max(HEADER_HASH as u64)
            }
            (ImageError::Corrupt { offset, .. }, _) => *offset <= whole().len() as u64,
            (ImageError::NotAnImage { .. }, Self::Flip(place)) => place.index(whole().len() * 8) / 8 < 8,
            (ImageError::Version { .. }, Self::Flip(place)) => {
                (8..12).contains(&(place.index(whole().len() * 8) / 8))
            }
            (ImageError::NotAnImage { .. } | ImageError::Length { .. }, Self::Truncate(_)) => true,
            (ImageError::Length { .. }, Self::Append(_) | Self::Number(16, _)) => true,
            (ImageError::Version { major, minor, .. }, Self::Version(wanted, other)) => {
                (major, minor) == (wanted, other)
            }
            (ImageError::Extents { .. } | ImageError::ExtentLength { .. }, Self::ChunkNumber(..)) => true,
            _ => false,
        };
        prop_assert!(named, "{error}: {error:?}");
        Ok(())
    }
}

fn section_of(byte: usize) -> &'static str {
    let names = ["contents", "chunks", "metadata"];
    (0..3).find(|n| section(whole(), *n).contains(&byte)).map_or("header", |n| names[n])
}

#[test]
fn sample_is_taken() {
    take(whole()).unwrap();
    take(other()).unwrap();
    assert_eq!(whole().len(), other().len());
}

#[test]
fn any_damage_is_refused_where_it_is() {
    let cases = std::env::var("STASIS_IMAGE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    proptest::test_runner::TestRunner::new(config).run(&damage(), |damage| damage.check()).unwrap();
}

#[test]
fn every_byte_is_covered() {
    for place in 0..whole().len() {
        let mut bytes = whole().to_vec();
        bytes[place] ^= 1 << (place % 8);
        assert!(take(&bytes).is_err(), "byte {place} of {} is not covered", section_of(place));
    }
}

#[test]
fn truncation_is_refused_at_every_length() {
    for keep in 0..whole().len() {
        let error = take(&whole()[..keep]).unwrap_err();
        assert!(
            matches!(error, ImageError::NotAnImage { .. } | ImageError::Length { .. }),
            "{keep}: {error:?}"
        );
    }
}

#[test]
fn forged_tables_longer_than_their_contents_are_refused_unread() {
    // A file that is long only in name: what was allocated for its table would be real.
    let file = File::from(memfd_create("sparse", MFdFlags::MFD_CLOEXEC).unwrap());
    let chunk_bytes = 1u64 << 29;
    let mut bytes = whole()[..CONTENTS_OFFSET as usize].to_vec();
    let mut put = |at: usize, n: u64| bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
    put(row(0) + ROW[1], 4096);
    put(row(1) + ROW[0], 8192);
    put(row(1) + ROW[1], chunk_bytes);
    put(row(2) + ROW[0], 8192 + chunk_bytes);
    put(row(2) + ROW[1], 0);
    put(16, 8192 + chunk_bytes);
    forge(&mut bytes);
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    file.set_len(8192 + chunk_bytes).unwrap();
    let error = Image::of_file(file, Path::new("sparse")).unwrap_err();
    assert!(matches!(error, ImageError::Corrupt { section: "chunks", offset: 8192, .. }), "{error}");
}
