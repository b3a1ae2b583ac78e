// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint over a stream: the index first, then the objects of the chunks that the receiver has not.
//!
//! ```text
//!  sender                                  receiver
//!  "STASISST" version flags          -->
//!                                    <--   "STASISSR" version challenge
//!  index (not) the last              -->   takes what it has from DIR.partial
//!                                    <--   wanted: a bit for each chunk
//!  chunk, chunk, ...  end            -->   writes each where it belongs
//!                                    <--   done, or failed and why
//! ```
//! Of a stream in one direction, such as a pipe, the receiver says nothing and the sender sends all. Before the last index
//! there may be others, of images that are copied while the process still runs: what came of those is there already.
//!
//! INVARIANT: the receiver says that it is done when the directory has its name, on the disk. With a key each
//! side proves to the other that it has it, for this connection, before anything else is taken.

mod address;
mod frame;
mod receive;
mod send;

pub use self::address::{Address, Channel, Listener};
pub use self::receive::{Received, Receiver};
pub use self::send::{Sender, Sent, Stage};

use crate::object::Codec;

/// What proves that the sender has the key: zeros where there is none.
fn proof_of_index(codec: &Codec, challenge: &[u8; 32], name: &[u8; 32], is_last: bool) -> [u8; 32] {
    let said = || [&b"index"[..], challenge, name, &[u8::from(is_last)]].concat();
    codec.key.as_ref().map_or([0; 32], |key| key.answer(&said()))
}

/// The same of the receiver.
fn proof_of_done(codec: &Codec, challenge: &[u8; 32], name: &[u8; 32]) -> [u8; 32] {
    codec.key.as_ref().map_or([0; 32], |key| key.answer(&[&b"done"[..], challenge, name].concat()))
}

#[cfg(test)]
mod tests;
