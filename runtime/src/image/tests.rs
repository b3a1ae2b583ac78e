// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images round-trip, and every way of damaging one is refused.

#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use proptest::prelude::*;

use super::*;
use crate::checkpoint::Metadata;
use crate::limit::Limit;

/// Owns the memory behind an extent, in whole pages of u64 so that it is aligned.
struct Memory(Vec<u8>);

impl Memory {
    fn extent(&mut self) -> Extent {
        // SAFETY: the vector outlives the extent in every test below and is not resized.
        unsafe { Extent::new(NonNull::new(self.0.as_mut_ptr()).unwrap(), self.0.len() as u64) }
    }
}

fn sample() -> Vec<Memory> {
    let noise = |n: usize, seed: u64| {
        (0..n as u64)
            .map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect::<Vec<_>>()
    };
    let mut holes = vec![0; 3 * CHUNK_BYTES as usize];
    holes[2 * CHUNK_BYTES as usize + 5] = 1;
    vec![
        Memory(noise(CHUNK_BYTES as usize + 4096, 1)),
        Memory(holes),
        Memory(noise(100, 3)),
        Memory(vec![0; 4096]),
    ]
}

fn write(path: &Path, memories: &mut [Memory]) -> WriteStats {
    let extents: Vec<_> = memories.iter_mut().map(Memory::extent).collect();
    let mut writer = ImageWriter::create(path).unwrap();
    writer.write_contents(&extents, &Limit::none()).unwrap();
    writer.finish(&vec!["meta"]).unwrap()
}

fn written() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.img");
    write(&path, &mut sample());
    (directory, path)
}

#[test]
fn fill_gives_back_every_byte_and_zeroes_the_rest() {
    let (_directory, path) = written();
    let image = Image::open(&path).unwrap();
    assert_eq!(image.metadata::<Vec<String>>().unwrap(), ["meta"]);
    let mut filled: Vec<_> = sample().iter().map(|m| Memory(vec![0xaa; m.0.len()])).collect();
    let extents: Vec<_> = filled.iter_mut().map(Memory::extent).collect();
    image.fill(&extents, false, &Limit::none()).unwrap();
    for (got, want) in filled.iter().zip(sample()) {
        assert!(got.0 == want.0);
    }
}

#[test]
fn zero_chunks_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let stats = write(&directory.path().join("z.img"), &mut [Memory(vec![0; 64 << 20])]);
    assert_eq!(stats.stored_bytes, 0);
    assert!(stats.file_bytes < 8192, "{stats:?}");
}

#[test]
fn fill_refuses_other_buffers_before_writing() {
    let (_directory, path) = written();
    let image = Image::open(&path).unwrap();
    let mut one = Memory(vec![7; 4096]);
    assert!(matches!(
        image.fill(&[one.extent()], false, &Limit::none()),
        Err(ImageError::ExtentLength { extent: 0, .. })
    ));
    assert!(one.0.iter().all(|b| *b == 7));
}

#[test]
fn unfinished_image_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    drop(ImageWriter::create(&directory.path().join("x.img")).unwrap());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn newer_version_is_refused_by_number() {
    let (_directory, path) = written();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[10] = MINOR as u8 + 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(
        matches!(Image::open(&path), Err(ImageError::Version { major: MAJOR, minor, .. }) if minor == MINOR + 1)
    );
}

/// Written by the last version of format 1.0: two agents of the fake driver, a queue, a signal and the embedded code
/// object; in the first buffer byte `i` is `i * 7 / 8`, the second one starts with a sentence.
#[test]
fn golden_image_of_format_1_0_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.0.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 0, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    assert_eq!(metadata.agents.len(), 2);
    for (agent, uuid) in metadata.agents.iter().zip(["GPU-a1b2000000000001", "GPU-a1b2000000000002"]) {
        assert_eq!((agent.uuid(), agent.properties.len()), (uuid.to_owned(), 23));
        assert_eq!(agent.properties["gfx_target_version"], 110_000);
        // What came with 1.1.
        assert_eq!((agent.gpu_id, agent.ordinal, &agent.links), (None, None, &None));
    }
    let registry = &metadata.registry;
    assert_eq!((registry.queues.entries.len(), registry.executables.entries.len()), (1, 1));
    // `#INDEX.GENERATION`
    let index = |name: &String| name[1..].split('.').next().unwrap().parse::<u32>().unwrap();
    let of = |name| registry.bos.entries.iter().find(|(key, _)| *key == index(name)).unwrap();
    let bytes: Vec<u64> = metadata.extents.iter().map(|name| of(name).1.bytes).collect();
    let mut memories: Vec<_> = bytes.iter().map(|&bytes| Memory(vec![0xaa; bytes as usize])).collect();
    let extents: Vec<_> = memories.iter_mut().map(Memory::extent).collect();
    image.fill(&extents, false, &Limit::none()).unwrap();
    let counted: Vec<u8> = (0..5_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    assert!(memories.iter().any(|memory| memory.0.starts_with(&counted)));
    assert!(memories.iter().any(|memory| memory.0.starts_with(b"a golden image of format 1.0")));
}

#[test]
fn truncation_is_refused_everywhere() {
    let (_directory, path) = written();
    let bytes = std::fs::read(&path).unwrap();
    for keep in [0, 1, 7, 8, 63, 64, 255, 256, 4096, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..keep]).unwrap();
        assert!(Image::open(&path).is_err(), "accepted {keep} of {} bytes", bytes.len());
    }
}

#[test]
fn foreign_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    std::fs::write(&path, b"\x7fELF and so on").unwrap();
    assert!(matches!(Image::open(&path), Err(ImageError::NotAnImage { .. })));
}

fn flip_is_caught(bytes: &[u8], bit: usize, path: &Path) -> bool {
    let mut damaged = bytes.to_vec();
    damaged[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(path, damaged).unwrap();
    Image::open(path).and_then(|i| i.verify()).is_err()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_flipped_bit_is_caught(place in any::<prop::sample::Index>()) {
        let (_directory, path) = written();
        let bytes = std::fs::read(&path).unwrap();
        let bit = place.index(bytes.len() * 8);
        // Padding between the section table and the contents, and after a chunk's last byte, carries nothing.
        let byte = bit / 8;
        let image = Image::open(&path).unwrap();
        let in_chunk = image.chunks().iter().any(|c| (c.file_offset..c.file_offset + c.length).contains(&(byte as u64)));
        let in_tables = byte < 256 || byte as u64 >= image.chunks().iter().map(|c| c.file_offset + c.length).max().unwrap().next_multiple_of(4096);
        if in_chunk || in_tables {
            prop_assert!(flip_is_caught(&bytes, bit, &path));
        }
    }
}

#[test]
fn every_bit_of_the_front_is_covered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.img");
    write(&path, &mut [Memory(vec![7; 4096])]);
    let bytes = std::fs::read(&path).unwrap();
    for bit in 0..256 * 8 {
        assert!(
            flip_is_caught(&bytes, bit, &path),
            "bit {bit} of the header or section table is not covered"
        );
    }
}
