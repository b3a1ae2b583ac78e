// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the host by kernels: printf and what is made of it (`hidden_hostcall_buffer`).
//!
//! Kernels write calls into a buffer of packets; who answers them is in [`super::queue::host_calls`]. Messages that have not ended are the
//! process's own memory, and the buffer is saved and restored with its queue.
//!
//! ```text
//! buffer   packets in shared memory          format      the text of a printf
//! message  calls that belong together        conversion  one conversion of it
//!                                            output      where text goes
//! ```

mod buffer;
mod conversion;
mod format;
mod message;
pub mod output;

use parking_lot::Mutex;

use self::buffer::{Call, LANES, PacketBuffer};
use self::message::{Heard, Message, Messages};
use self::output::{Output, Stream};
use crate::context::memory::mapped::Mapped;

/// The service of printf. The others (functions of the host, memory, a sanitizer's reports) are not offered.
const PRINTF: u32 = 2;
/// Its answer where nothing was printed.
const FAILED: u64 = u64::MAX;

/// What kernels of one queue call the host through.
#[derive(Debug)]
pub struct Hostcall {
    buffer: PacketBuffer,
    messages: Mutex<Messages>,
}

impl Hostcall {
    /// Bytes of memory for the calls of so many waves.
    pub const fn bytes(waves: u64) -> u64 {
        PacketBuffer::bytes(PacketBuffer::packets_for(waves))
    }

    /// Makes one over memory of [`Hostcall::bytes`] zeros. `doorbell` is the handle of the signal that a call raises.
    pub fn create(view: Mapped, waves: u64, doorbell: u64) -> Self {
        let buffer = PacketBuffer::create(view, PacketBuffer::packets_for(waves), doorbell);
        Self { buffer, messages: Mutex::default() }
    }

    /// The address that kernels are given.
    pub fn va(&self) -> u64 {
        self.buffer.va()
    }

    /// Whether there are calls.
    pub fn is_called(&self) -> bool {
        self.buffer.has_calls()
    }

    /// Answers all calls that were not answered yet: their waves go on. What kernels print is added to `output` before. Returns the first
    /// service that is not offered; calls for such stay unanswered.
    pub fn answer(&self, output: &Output) -> Option<u32> {
        let mut refused = None;
        for call in self.buffer.take_calls() {
            if call.service == PRINTF {
                self.print(call, output);
                self.buffer.complete(call);
            } else {
                refused.get_or_insert(call.service);
            }
        }
        refused
    }

    fn print(&self, call: Call, output: &Output) {
        let mut messages = self.messages.lock();
        for lane in (0..LANES).filter(|lane| call.lanes & 1 << lane != 0) {
            let answer = match messages.hear(&self.buffer.words(call, lane)) {
                Heard::More(descriptor) => descriptor,
                Heard::Whole(message) => print(&message, output),
                Heard::Unknown => FAILED,
            };
            self.buffer.set_answer(call, lane, answer);
        }
    }
}

/// Prints a message: a word that says where to, then the format and its arguments. How many bytes it had.
fn print(message: &Message, output: &Output) -> u64 {
    let stream = match message.words.first() {
        Some(0) => Stream::Out,
        Some(1) => Stream::Error,
        _ => return FAILED,
    };
    // One that says nothing of its first string's end has no other call.
    let string = message.first_string.map(|end| end.saturating_sub(1));
    let text = format::format(&message.words[1..], string);
    output.add(stream, &text);
    if message.left_out > 0 {
        output.add(
            stream,
            format!("\n[{} words of a kernel's printf were dropped]\n", message.left_out).as_bytes(),
        );
    }
    text.len() as u64
}

#[cfg(test)]
mod tests {
    use super::buffer::WORDS;
    use super::buffer::tests::Waves;
    use super::*;

    /// The words of a call: begin 1, end 2, so many words, the message's descriptor so far.
    fn call(flags: u64, words: &[u64], descriptor: u64) -> [u64; WORDS] {
        let mut call = [0; WORDS];
        call[0] = descriptor & !0xe3 | flags | (words.len() as u64) << 5;
        call[1..=words.len()].copy_from_slice(words);
        call
    }

    #[test]
    fn lanes_of_a_wave_print_each_its_own() {
        let waves = Waves::new(4);
        let hostcall = Hostcall { buffer: waves.buffer, messages: Mutex::default() };
        let output = Output::default();
        output.keep(true);
        let lanes = [0u64, 5, 63];
        let say = |words: &dyn Fn(u64) -> [u64; WORDS]| -> Vec<u64> {
            let given: Vec<_> = lanes.iter().map(|&lane| (lane, words(lane))).collect();
            let pointer = waves.call(PRINTF, &given);
            assert!(hostcall.is_called());
            assert_eq!(hostcall.answer(&output), None);
            assert!(!hostcall.is_called());
            waves.answer(pointer, &lanes).unwrap()
        };
        let descriptors = say(&|lane| call(1, &[u64::from(lane == 63)], 0));
        let of = |lane: u64| descriptors[lanes.iter().position(|each| *each == lane).unwrap()];
        say(&|lane| call(0, &[u64::from_le_bytes(*b"lane %d\n"), 0], of(lane)));
        assert_eq!(say(&|lane| call(2, &[lane], of(lane))), [7, 7, 8]);
        let printed: Vec<_> = output.take().into_iter().map(|piece| (piece.stream, piece.text)).collect();
        let expected = [(Stream::Out, b"lane 0\nlane 5\n".to_vec()), (Stream::Error, b"lane 63\n".to_vec())];
        assert_eq!(printed, expected);
    }

    #[test]
    fn service_that_is_not_offered_is_named_and_not_answered() {
        let waves = Waves::new(2);
        let hostcall = Hostcall { buffer: waves.buffer, messages: Mutex::default() };
        let pointer = waves.call(1, &[(0, [0; WORDS])]);
        assert_eq!(hostcall.answer(&Output::default()), Some(1));
        assert_eq!(waves.answer(pointer, &[0]), None);
    }

    #[test]
    fn message_for_no_stream_prints_nothing() {
        let output = Output::default();
        output.keep(true);
        // A first call of no words, another of none, and then a word: the first string ends before all words.
        let short = Message { words: vec![0], first_string: Some(0), ..Message::default() };
        assert_eq!(print(&short, &output), 0);
        for words in [vec![], vec![2, 65]] {
            assert_eq!(print(&Message { words, ..Message::default() }, &output), FAILED);
        }
        assert_eq!(output.take(), []);
        let long = Message { words: vec![0, 0x41], left_out: 3, ..Message::default() };
        assert_eq!(print(&long, &output), 1);
        assert_eq!(output.take()[0].text, b"A\n[3 words of a kernel's printf were dropped]\n");
    }
}
