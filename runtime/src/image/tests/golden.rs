// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images of earlier versions of the format, which every later one loads.

use std::path::Path;

use super::*;
use crate::checkpoint::Metadata;
use crate::context::registry::Registry;
use crate::registry::Persist;

/// Written by the last version of format 1.0: two agents of a driver that only the tests had, a queue, a signal and the embedded code
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
    assert_holds_what_was_written(&image, &metadata, b"a golden image of format 1.0");
}

/// Written by the last version of format 1.1, with the same in it as that of 1.0.
#[test]
fn golden_image_of_format_1_1_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.1.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 1, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    assert!(metadata.agents.iter().all(|agent| agent.gpu_id.is_some() && agent.links.is_some()));
    assert_holds_what_was_written(&image, &metadata, b"a golden image of format 1.1");
}

/// Written by the last version of format 1.2, for a process with signals and many buffers.
#[test]
fn golden_image_of_format_1_2_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.2.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 2, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    let registry = &metadata.registry;
    assert_eq!((registry.queues.entries.len(), registry.executables.entries.len()), (2, 1));
    // What came with 1.3.
    assert!(registry.fixtures.trap_handlers.is_empty());
    Registry::restore((), registry).unwrap();
}

/// Written by the last version of format 1.3, for a program in C that writes its packets itself.
#[test]
fn golden_image_of_format_1_3_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.3.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 3, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    let registry = &metadata.registry;
    assert_eq!((registry.queues.entries.len(), registry.fixtures.trap_handlers.len()), (1, 1));
    // What came with 1.4.
    assert!(registry.svm.is_empty());
    Registry::restore((), registry).unwrap();
}

/// Written by the last version of format 1.4, for a program in C that writes its packets itself, on a driver with shared virtual memory.
#[test]
fn golden_image_of_format_1_4_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.4.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 4, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    let registry = &metadata.registry;
    assert_eq!((registry.queues.entries.len(), registry.signals.entries.len()), (1, 3));
    // What came with 1.5.
    assert_eq!(image.earlier(), []);
    Registry::restore((), registry).unwrap();
}

/// Written by the last version of format 1.5: a queue, a signal, a buffer whose byte `i` is `i * 7 / 8`.
#[test]
fn golden_image_of_format_1_5_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.5.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 5, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    let registry = &metadata.registry;
    // What came with 1.6.
    let [(_, queue)] = &registry.queues.entries[..] else { panic!("{:?}", registry.queues) };
    assert_eq!((queue.hostcall_doorbell, queue.bos.hostcall), (None, None));
    Registry::restore((), registry).unwrap();
}

/// Written by the last version of format 1.6: a queue, and a buffer whose byte `i` is `i * 7 / 8`.
#[test]
fn golden_image_of_format_1_6_loads_and_verifies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/image/golden/format-1.6.img");
    assert_eq!(std::fs::read(&path).unwrap()[8..12], [1, 0, 6, 0]);
    let image = Image::open(&path).unwrap();
    image.verify().unwrap();
    let metadata: Metadata = image.metadata().unwrap();
    let registry = &metadata.registry;
    // What came with 1.7.
    assert!(registry.bos.entries.iter().all(|(_, bo)| bo.label.is_none()));
    Registry::restore((), registry).unwrap();
}

fn assert_holds_what_was_written(image: &Image, metadata: &Metadata, sentence: &[u8]) {
    let registry = &metadata.registry;
    // What came with 1.2.
    assert!(registry.maps.entries.is_empty());
    Registry::restore((), registry).unwrap();
    assert_eq!((registry.queues.entries.len(), registry.executables.entries.len()), (1, 1));
    // `#INDEX.GENERATION`
    let index = |name: &String| name[1..].split('.').next().unwrap().parse::<u32>().unwrap();
    let of = |name| registry.bos.entries.iter().find(|(key, _)| *key == index(name)).unwrap();
    let bytes: Vec<u64> = metadata.extents.iter().map(|name| of(name).1.bytes).collect();
    let mut memories: Vec<_> = bytes.iter().map(|&bytes| Memory::of(&vec![0xaa; bytes as usize])).collect();
    let extents: Vec<_> = memories.iter_mut().map(Memory::extent).collect();
    image.fill(&extents, false, &Limit::none()).unwrap();
    let counted: Vec<u8> = (0..5_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    assert!(memories.iter().any(|memory| memory.get().starts_with(&counted)));
    assert!(memories.iter().any(|memory| memory.get().starts_with(sentence)));
}
