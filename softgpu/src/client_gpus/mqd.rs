// SPDX-License-Identifier: MIT OR Apache-2.0
//! The firmware's part of a queue's memory descriptor: words written in order and read back in the same order.
//!
//! ```text
//! dword 0         compute registers, COMPUTE_DISPATCH_INITIATOR at 1 (v11_compute_mqd)
//! dword 174..178  where the waves are (driver and debugger read them)
//! dword 256       MAGIC, VERSION | kind << 8, then the queue's state
//! ```
//! A copy queue's descriptor (`v11_sdma_mqd`) ends at dword 128, so its state begins at dword 64.
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
    next: usize,
    end: usize,
}

impl Writer {
    /// A descriptor of `queue` without waves.
    pub(super) fn new(queue: &HwQueue) -> Self {
        let mut mqd = Box::<Mqd>::default();
        let (header, end) = place(queue.kind);
        mqd.set_word(header, MAGIC);
        mqd.set_word(header + 1, VERSION | kind_code(queue.kind) << 8);
        let mut writer = Self { mqd, next: header + 2, end };
        if queue.kind != HwQueueKind::Sdma {
            writer.mqd.set_word(mqd_field::SAVE_AREA_SIZE, queue.cwsr_bytes);
            writer.waves(queue, None);
        }
        writer
    }

    /// Enters where the saved waves are; `None`: there are none.
    pub(super) fn waves(&mut self, queue: &HwQueue, saved: Option<SavedWaves>) {
        let end = queue.control_stack_bytes;
        let (stack, records) =
            saved.map_or((end, end), |saved| (saved.control_stack_offset, saved.wave_state_offset));
        self.mqd.set_word(mqd_field::CONTROL_STACK_OFFSET, stack);
        self.mqd.set_word(mqd_field::CONTROL_STACK_SIZE, end);
        self.mqd.set_word(mqd_field::WAVE_STATE_OFFSET, records);
    }

    /// Sets a compute register's dword.
    pub(super) fn register(&mut self, index: usize, value: u32) {
        self.mqd.set_word(REGISTERS + index, value);
    }

    /// Appends a word.
    pub(super) fn put(&mut self, value: u32) {
        debug_assert!(self.next < self.end, "INVARIANT: a queue's state fits its descriptor");
        self.mqd.set_word(self.next, value);
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
        if [mqd.word(header), mqd.word(header + 1)] != expected {
            return Err(Errno::EINVAL);
        }
        Ok(Self { mqd, next: header + 2 })
    }

    /// A compute register's dword.
    pub(super) fn register(&self, index: usize) -> u32 {
        self.mqd.word(REGISTERS + index)
    }

    /// The next word.
    pub(super) fn take(&mut self) -> u32 {
        let value = self.mqd.word(self.next);
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
        let mut writer = Writer::new(&queue);
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
        let mut writer = Writer::new(&some_queue(HwQueueKind::Sdma));
        writer.put_all(&[5; 62]);
        let mqd = Mqd::from_bytes(&writer.finish().bytes()[..512]);
        let mut reader = Reader::new(&mqd, HwQueueKind::Sdma).unwrap();
        assert_eq!(reader.take_all(), [5; 62]);
    }

    #[test]
    fn descriptor_of_another_kind_or_of_nobody_is_refused() {
        let mqd = Writer::new(&some_queue(HwQueueKind::Sdma)).finish();
        assert_eq!(Reader::new(&mqd, HwQueueKind::Aql).unwrap_err(), Errno::EINVAL);
        assert_eq!(
            Reader::new(&Mqd::from_bytes(&[0xab; 2048]), HwQueueKind::Aql).unwrap_err(),
            Errno::EINVAL
        );
    }
}
