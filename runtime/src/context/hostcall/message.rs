// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages: what a lane says in several calls, put together.
//!
//! The first word of each call is the message's descriptor: bit 0, a message begins; bit 1, it ends with this call; bits 5 to 7, how many
//! of the 7 words that follow are the message's; bits 8 to 63, the message's id, which the answer to the first call gives
//! (ROCm's `ockl/src/services.cl`).

use std::collections::HashMap;

use super::buffer::WORDS;

const BEGINS: u64 = 1;
const ENDS: u64 = 2;
const LENGTH_AT: u32 = 5;
const ID_AT: u32 = 8;

/// Words of all messages at most that have not ended: 32 MiB. What comes beyond is left out.
const MOST_WORDS: usize = 4 << 20;
/// Messages at most that have not ended: far more than there are lanes.
const MOST_MESSAGES: usize = 1 << 20;
/// The id of messages that there was no room for.
const NO_ROOM: u64 = 0;

/// A message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Its words.
    pub words: Vec<u64>,
    /// How many of the words are its first string's at most: a string ends with a call that has room left.
    pub first_string: Option<usize>,
    /// Words that there was no room for.
    pub left_out: usize,
}

/// The messages that have not ended.
#[derive(Debug, Default)]
pub struct Messages {
    open: HashMap<u64, Message>,
    last_id: u64,
    words: usize,
}

/// What has come of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The message goes on, under this descriptor.
    More(u64),
    /// It has ended.
    Whole(Message),
    /// There is no such message, or was no room for it.
    Unknown,
}

impl Messages {
    /// Hears one lane's call.
    pub fn hear(&mut self, call: &[u64; WORDS]) -> Heard {
        let [descriptor, payload @ ..] = call;
        let begins = descriptor & BEGINS != 0;
        // 3 bits.
        let length = (descriptor >> LENGTH_AT & 7) as usize;
        let id = match begins {
            true => self.begin(),
            false => descriptor >> ID_AT,
        };
        let room = MOST_WORDS - self.words;
        let Some(message) = self.open.get_mut(&id) else {
            // A lane whose message there was no room for goes on all the same.
            return if begins { Heard::More(NO_ROOM << ID_AT) } else { Heard::Unknown };
        };
        let taken = length.min(room);
        message.words.extend_from_slice(&payload[..taken]);
        message.left_out += length - taken;
        self.words += taken;
        if !begins && length < payload.len() {
            message.first_string.get_or_insert(message.words.len());
        }
        if descriptor & ENDS == 0 {
            return Heard::More(descriptor & !(BEGINS | u64::MAX << ID_AT) | id << ID_AT);
        }
        let message = self.open.remove(&id).unwrap_or_default();
        self.words -= message.words.len();
        Heard::Whole(message)
    }

    fn begin(&mut self) -> u64 {
        if self.open.len() >= MOST_MESSAGES {
            return NO_ROOM;
        }
        // 56 bits of messages are never used up.
        self.last_id += 1;
        self.open.insert(self.last_id, Message::default());
        self.last_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(descriptor: u64, length: u64, fill: u64) -> [u64; WORDS] {
        let mut call = [fill; WORDS];
        call[0] = descriptor | length << LENGTH_AT;
        call
    }

    #[test]
    fn messages_of_two_lanes_are_put_together_apart() {
        let mut messages = Messages::default();
        let mut begin = |fill| match messages.hear(&call(BEGINS, 1, fill)) {
            Heard::More(descriptor) => descriptor & u64::MAX << ID_AT,
            other => panic!("{other:?}"),
        };
        let (one, two) = (begin(10), begin(20));
        assert_ne!(one, two);
        for (id, fill) in [(one, 11), (two, 21)] {
            assert!(
                matches!(messages.hear(&call(id, 7, fill)), Heard::More(found) if found >> ID_AT == id >> ID_AT)
            );
        }
        for (id, fill, first) in [(two, 20, 20), (one, 10, 10)] {
            let Heard::Whole(message) = messages.hear(&call(id | ENDS, 2, fill + 2)) else { panic!() };
            let expected: Vec<u64> = [vec![first], vec![fill + 1; 7], vec![fill + 2; 2]].concat();
            assert_eq!((message.words, message.first_string), (expected, Some(10)));
        }
        assert_eq!(messages.hear(&call(one, 1, 0)), Heard::Unknown);
        assert_eq!(messages.words, 0);
    }

    #[test]
    fn message_without_end_takes_no_more_than_its_share() {
        let mut messages = Messages::default();
        let Heard::More(id) = messages.hear(&call(BEGINS, 0, 0)) else { panic!() };
        for _ in 0..MOST_WORDS / 7 + 10 {
            assert!(matches!(messages.hear(&call(id, 7, 1)), Heard::More(_)));
        }
        let Heard::Whole(message) = messages.hear(&call(id | ENDS, 7, 1)) else { panic!() };
        assert_eq!(message.words.len(), MOST_WORDS);
        assert!(message.left_out > 0);
        assert_eq!(messages.words, 0);
    }

    #[test]
    fn messages_that_never_end_are_bounded_and_later_ones_are_let_go_on() {
        let mut messages = Messages::default();
        for _ in 0..MOST_MESSAGES {
            messages.hear(&call(BEGINS, 0, 0));
        }
        let Heard::More(descriptor) = messages.hear(&call(BEGINS, 1, 0)) else { panic!() };
        assert_eq!(descriptor >> ID_AT, NO_ROOM);
        assert_eq!(messages.hear(&call(descriptor | ENDS, 7, 0)), Heard::Unknown);
        assert_eq!(messages.open.len(), MOST_MESSAGES);
    }
}
