// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents that an engine moves: an image of them is the image of the same bytes in the process's memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::image::{AgentRange, ContentEngine, EngineBuffer, EngineError, HostRange, Piece};

/// Where its memory begins in addresses that no process has.
const BASE: u64 = 1 << 60;

/// An engine whose agent's memory is a vector.
#[derive(Debug)]
struct TestEngine {
    memory: Mutex<Vec<u8>>,
    buffers: Mutex<Vec<(usize, Vec<u8>)>>,
    /// Buffers that are taken now, and the most there were.
    taken: AtomicUsize,
    most: AtomicUsize,
    /// Transfers until one fails.
    left: AtomicUsize,
}

impl TestEngine {
    fn new(bytes: usize) -> Self {
        let buffers = (0..most_workers()).map(|n| (n, vec![0x77; CHUNK_BYTES as usize])).collect();
        Self {
            memory: Mutex::new(vec![0xaa; bytes]),
            buffers: Mutex::new(buffers),
            taken: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            left: AtomicUsize::new(usize::MAX),
        }
    }

    fn transfer(
        &self,
        buffer: &EngineBuffer<'_>,
        pieces: &[Piece],
        copy: impl Fn(&mut [u8], &HostRange, &Piece),
    ) -> Result<(), EngineError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.left.store(0, Ordering::Relaxed);
            return Err(EngineError::Failed("stalled".into()));
        }
        let mut memory = self.memory.lock().unwrap();
        for piece in pieces {
            let start = (piece.va - BASE) as usize;
            copy(&mut memory[start..start + piece.bytes as usize], buffer.range(), piece);
        }
        Ok(())
    }
}

impl ContentEngine for TestEngine {
    fn take(&self) -> Result<EngineBuffer<'_>, EngineError> {
        let (number, mut bytes) = self.buffers.lock().unwrap().pop().expect("a buffer for each worker");
        self.most.fetch_max(self.taken.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // The test's process is short: what is given back is a new one.
        std::mem::forget(bytes);
        // SAFETY: the vector's bytes stay for ever.
        Ok(EngineBuffer::new(self, number, unsafe { HostRange::new(start, CHUNK_BYTES) }))
    }

    fn put(&self, number: usize) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.buffers.lock().unwrap().push((number, vec![0x77; CHUNK_BYTES as usize]));
    }

    fn fetch(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.transfer(buffer, pieces, |memory, range, piece| range.copy_in(piece.at, memory))
    }

    fn store(&self, buffer: &EngineBuffer<'_>, pieces: &[Piece]) -> Result<(), EngineError> {
        self.transfer(buffer, pieces, |memory, range, piece| range.copy_out(piece.at, memory))
    }
}

/// Bytes of every kind of buffer, where in an agent's memory each begins, and that memory's length.
fn placed() -> (Vec<Vec<u8>>, Vec<u64>, usize) {
    let mut contents: Vec<_> = sample().iter().map(|memory| memory.get().to_vec()).collect();
    contents.extend((0..600).map(|n| noise(100 + n, n as u64)));
    let mut end = 0;
    let starts = contents.iter().map(|bytes| {
        let start = end;
        end = (end + bytes.len() as u64).next_multiple_of(4096);
        start
    });
    let starts: Vec<_> = starts.collect();
    (contents, starts, end as usize)
}

/// Every third buffer is the process's, the others are the engine's.
fn is_own(n: usize) -> bool {
    n % 3 == 1
}

fn mixed<'e>(own: &'e mut [Memory], engine: &'e TestEngine, starts: &[u64]) -> Vec<Extent<'e>> {
    let extents = own.iter_mut().map(Memory::extent).zip(starts).enumerate();
    let extent = |(n, (host, start)): (usize, (Extent<'e>, &u64))| match is_own(n) {
        true => host,
        false => Extent::Agent(AgentRange { engine, va: BASE + start, bytes: host.bytes() }),
    };
    extents.map(extent).collect()
}

#[test]
fn what_an_engine_moves_has_the_same_image_and_comes_back() {
    let (contents, starts, bytes) = placed();
    let engine = TestEngine::new(bytes);
    for (start, bytes) in starts.iter().zip(&contents) {
        engine.memory.lock().unwrap()[*start as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    let mut own: Vec<_> = contents.iter().map(|bytes| Memory::of(bytes)).collect();
    let mut writer = ImageWriter::in_memory().unwrap();
    writer.write_contents(&mixed(&mut own, &engine, &starts), &Limit::none()).unwrap();
    let file = writer.finish(&vec!["meta"]).unwrap().file;
    let image = Image::of_file(file, Path::new("memory")).unwrap();
    assert_holds(&image, &own);

    let back = TestEngine::new(bytes);
    let mut filled: Vec<_> = own.iter().map(Memory::overwritten).collect();
    image.fill(&mixed(&mut filled, &back, &starts), false, &Limit::none()).unwrap();
    for (n, (start, wanted)) in starts.iter().zip(&contents).enumerate() {
        match is_own(n) {
            true => assert!(filled[n].get() == wanted.as_slice(), "{n}"),
            false => {
                assert!(back.memory.lock().unwrap()[*start as usize..][..wanted.len()] == wanted[..], "{n}")
            }
        }
    }
    for engine in [engine, back] {
        assert_eq!(engine.taken.into_inner(), 0, "buffers that were not given back");
        assert!((1..=most_workers()).contains(&engine.most.into_inner()));
    }
}

#[test]
fn engine_that_fails_ends_the_work_by_name() {
    let (contents, starts, bytes) = placed();
    let engine = TestEngine::new(bytes);
    let mut own: Vec<_> = contents.iter().map(|bytes| Memory::of(bytes)).collect();
    let file = in_memory(&mut own);
    let image = Image::of_file(file, Path::new("memory")).unwrap();
    for left in 0..3 {
        engine.left.store(left, Ordering::Relaxed);
        let extents = mixed(&mut own, &engine, &starts);
        let mut writer = ImageWriter::in_memory().unwrap();
        let written = writer.write_contents(&extents, &Limit::none());
        assert!(matches!(written, Err(ImageError::Engine(EngineError::Failed(_)))), "{written:?}");
        engine.left.store(left, Ordering::Relaxed);
        let filled = image.fill(&extents, true, &Limit::none());
        assert!(matches!(filled, Err(ImageError::Engine(EngineError::Failed(_)))), "{filled:?}");
    }
    assert_eq!(engine.taken.load(Ordering::Relaxed), 0);
}

#[test]
fn memory_behind_an_aperture_is_filled_without_being_read() {
    let mut memories = sample();
    let image = Image::of_file(in_memory(&mut memories), Path::new("memory")).unwrap();
    let mut filled: Vec<_> = memories.iter().map(Memory::overwritten).collect();
    let apertures = extents(&mut filled).into_iter().map(|extent| match extent {
        // A second for a byte: a single one read would be noticed.
        Extent::Host(range) => Extent::Aperture(range.with_read_cost(1_000_000_000_000)),
        other => other,
    });
    image.fill(&apertures.collect::<Vec<_>>(), false, &Limit::none()).unwrap();
    for (got, wanted) in filled.iter().zip(&memories) {
        assert!(got.get() == wanted.get());
    }
}
