// SPDX-License-Identifier: MIT OR Apache-2.0
//! The firmware's part of a queue's memory descriptor: words written in order and read back in the same order.
//!
//! ```text
//! dword 0         compute registers, COMPUTE_DISPATCH_INITIATOR at 1 (v11_compute_mqd)
//! dword 174..178  where the waves are (driver and debugger read them)
//! dword 256       MAGIC, VERSION | kind << 8, then the queue's state
//! ```
//! A copy queue's descriptor (`v11_sdma_mqd`) ends at dword 128, so its state begins at dword 64. The queue's state is in
//! the first XCC's descriptor; those of further XCCs have what is theirs alone.
//!
//! INVARIANT: reading accepts any words and returns plain numbers; the caller checks them, because a descriptor may come
//! from a checkpoint image that was written by anyone.

use nix::errno::Errno;
use queues::words::words;

use crate::hardware::{HwQueue, HwQueueKind, MQD_BYTES, Mqd, SavedWaves, mqd_field};

/// "STSQ", little-endian.
const MAGIC: u32 = 0x5153_5453;
/// Layout of the words behind it.
const VERSION: u32 = 1;
/// Dwords of a copy queue's descriptor.
const SDMA_WORDS: usize = 128;
/// Dword of the first compute register (`COMPUTE_DISPATCH_INITIATOR`).
pub(super) const REGISTERS: usize = 1;

const fn kind_code(kind: HwQueueKind) -> u32 {
    match kind {
        HwQueueKind::Compute => 1,
        HwQueueKind::Aql => 2,
        HwQueueKind::Sdma => 3,
    }
}

/// First dword of the state, and the one behind its last.
const fn place(kind: HwQueueKind) -> (usize, usize) {
    match kind {
        HwQueueKind::Compute | HwQueueKind::Aql => (mqd_field::FIRMWARE, MQD_BYTES / 4),
        HwQueueKind::Sdma => (SDMA_WORDS / 2, SDMA_WORDS),
    }
}

/// Whether no queue of this kind has run with this descriptor.
pub(super) fn is_fresh(mqd: &Mqd, kind: HwQueueKind) -> bool {
    mqd.word(place(kind).0) == 0
}

/// Writes a descriptor's words in order.
#[derive(Debug)]
pub(super) struct Writer {
    mqd: Box<Mqd>,
    begin: usize,
    /// Whose descriptor is written.
    xcc: usize,
    next: usize,
    end: usize,
}

impl Writer {
    /// Descriptors of `queue` for so many XCCs, without waves. The first XCC's is written.
    pub(super) fn new(queue: &HwQueue, xccs: usize) -> Self {
        let mut mqd = Box::new(Mqd::with_xccs(xccs));
        let (header, end) = place(queue.kind);
        for xcc in 0..mqd.xccs() {
            mqd.set_word_of(xcc, header, MAGIC);
            mqd.set_word_of(xcc, header + 1, VERSION | kind_code(queue.kind) << 8);
        }
        let begin = header + 2;
        let mut writer = Self { mqd, begin, xcc: 0, next: begin, end };
        if queue.kind != HwQueueKind::Sdma {
            for xcc in 0..xccs {
                writer.mqd.set_word_of(xcc, mqd_field::SAVE_AREA_SIZE, queue.cwsr_bytes);
                writer.waves(xcc, queue, None);
            }
        }
        writer
    }

    /// Goes on with the descriptor of the next XCC, from its beginning.
    pub(super) fn next_xcc(&mut self) {
        self.xcc += 1;
        self.next = self.begin;
    }

    /// Enters where the saved waves of an XCC are, counted from the beginning of its area; `None`: there are none.
    pub(super) fn waves(&mut self, xcc: usize, queue: &HwQueue, saved: Option<SavedWaves>) {
        let end = queue.control_stack_bytes;
        let (stack, records) =
            saved.map_or((end, end), |saved| (saved.control_stack_offset, saved.wave_state_offset));
        self.mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_OFFSET, stack);
        self.mqd.set_word_of(xcc, mqd_field::CONTROL_STACK_SIZE, end);
        self.mqd.set_word_of(xcc, mqd_field::WAVE_STATE_OFFSET, records);
    }

    /// Sets a compute register's dword.
    pub(super) fn register(&mut self, index: usize, value: u32) {
        self.mqd.set_word_of(self.xcc, REGISTERS + index, value);
    }

    /// Appends a word.
    pub(super) fn put(&mut self, value: u32) {
        debug_assert!(self.next < self.end, "INVARIANT: a queue's state fits its descriptor");
        self.mqd.set_word_of(self.xcc, self.next, value);
        self.next += 1;
    }

    /// Appends two words.
    pub(super) fn put64(&mut self, value: u64) {
        self.put_all(&words(value));
    }

    /// Appends all of them.
    pub(super) fn put_all(&mut self, values: &[u32]) {
        values.iter().for_each(|&value| self.put(value));
    }

    /// The descriptor.
    pub(super) fn finish(self) -> Box<Mqd> {
        self.mqd
    }
}

/// Reads a descriptor's words in order; behind the end they are 0.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    mqd: &'a Mqd,
    begin: usize,
    /// Whose descriptor is read.
    xcc: usize,
    next: usize,
}

impl<'a> Reader<'a> {
    /// Reads a descriptor that is not fresh.
    ///
    /// # Errors
    /// `EINVAL` when the software GPU did not write it, or wrote it for another kind of queue.
    pub(super) fn new(mqd: &'a Mqd, kind: HwQueueKind) -> Result<Self, Errno> {
        let (header, _) = place(kind);
        let expected = [MAGIC, VERSION | kind_code(kind) << 8];
        let is_one = |xcc| [header, header + 1].map(|word| mqd.word_of(xcc, word)) == expected;
        if !(0..mqd.xccs()).all(is_one) {
            return Err(Errno::EINVAL);
        }
        let begin = header + 2;
        Ok(Self { mqd, begin, xcc: 0, next: begin })
    }

    /// The XCCs that there are descriptors of.
    pub(super) fn xccs(&self) -> usize {
        self.mqd.xccs()
    }

    /// Goes on with the descriptor of the next XCC, from its beginning.
    pub(super) fn next_xcc(&mut self) {
        self.xcc += 1;
        self.next = self.begin;
    }

    /// A compute register's dword.
    pub(super) fn register(&self, index: usize) -> u32 {
        self.mqd.word_of(self.xcc, REGISTERS + index)
    }

    /// The next word.
    pub(super) fn take(&mut self) -> u32 {
        let value = self.mqd.word_of(self.xcc, self.next);
        self.next += 1;
        value
    }

    /// The next two words.
    pub(super) fn take64(&mut self) -> u64 {
        let low = u64::from(self.take());
        low | u64::from(self.take()) << 32
    }

    /// The next `N` words.
    pub(super) fn take_all<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_gpus::tests::some_queue;

    #[test]
    fn words_come_back_in_order_and_zeros_behind_them() {
        let queue = some_queue(HwQueueKind::Aql);
        let mut writer = Writer::new(&queue, 1);
        writer.put(7);
        writer.put64(0x1122_3344_5566_7788);
        writer.put_all(&[1, 2, 3]);
        writer.register(5, 99);
        let mqd = writer.finish();
        assert!(!is_fresh(&mqd, HwQueueKind::Aql) && is_fresh(&Mqd::default(), HwQueueKind::Aql));
        let mut reader = Reader::new(&mqd, HwQueueKind::Aql).unwrap();
        assert_eq!(reader.take(), 7);
        assert_eq!(reader.take64(), 0x1122_3344_5566_7788);
        assert_eq!(reader.take_all(), [1, 2, 3, 0]);
        assert_eq!(reader.register(5), 99);
        let waves = mqd.waves();
        assert_eq!((waves.control_stack_bytes, waves.wave_state_bytes), (0, 0));
        assert_eq!(waves.control_stack_offset, queue.control_stack_bytes);
    }

    #[test]
    fn copy_queues_state_fits_the_512_bytes_that_a_checkpoint_carries() {
        let mut writer = Writer::new(&some_queue(HwQueueKind::Sdma), 1);
        writer.put_all(&[5; 62]);
        let mqd = Mqd::from_bytes(&writer.finish().bytes()[..512]);
        let mut reader = Reader::new(&mqd, HwQueueKind::Sdma).unwrap();
        assert_eq!(reader.take_all(), [5; 62]);
    }

    #[test]
    fn every_xcc_has_its_own_words() {
        let queue = some_queue(HwQueueKind::Aql);
        let mut writer = Writer::new(&queue, 3);
        for xcc in 0..3 {
            if xcc > 0 {
                writer.next_xcc();
            }
            writer.put_all(&[xcc, 10 * xcc]);
            writer.register(7, 100 + xcc);
        }
        let saved =
            SavedWaves { control_stack_offset: 96, wave_state_offset: 0x1_0000, ..SavedWaves::default() };
        writer.waves(1, &queue, Some(saved));
        let mqd = writer.finish();
        assert_eq!(mqd.xccs(), 3);
        let mut reader = Reader::new(&mqd, HwQueueKind::Aql).unwrap();
        for xcc in 0..3 {
            if xcc > 0 {
                reader.next_xcc();
            }
            assert_eq!((reader.take_all(), reader.register(7)), ([xcc, 10 * xcc], 100 + xcc));
        }
        let offsets = [0, 1, 2].map(|xcc| mqd.waves_of(xcc).control_stack_offset);
        assert_eq!(offsets, [queue.control_stack_bytes, 96, queue.control_stack_bytes]);
        // One XCC's descriptor is nobody's.
        let mut broken = (*mqd).clone();
        broken.set_word_of(2, mqd_field::FIRMWARE, 0);
        assert_eq!(Reader::new(&broken, HwQueueKind::Aql).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn descriptor_of_another_kind_or_of_nobody_is_refused() {
        let mqd = Writer::new(&some_queue(HwQueueKind::Sdma), 1).finish();
        assert_eq!(Reader::new(&mqd, HwQueueKind::Aql).unwrap_err(), Errno::EINVAL);
        assert_eq!(
            Reader::new(&Mqd::from_bytes(&[0xab; 2048]), HwQueueKind::Aql).unwrap_err(),
            Errno::EINVAL
        );
    }
}
