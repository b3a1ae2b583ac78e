// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint over a stream: the index first, then the objects of the chunks that the receiver has not.
//!
//! ```text
//!  sender                                  receiver
//!  greeting, nonce                   -->
//!                                    <--   greeting, nonce, proof that it has the key
//!  proof that it has the key         -->
//!                                    <--   accepted, or failed and why
//!  index (not) the last              -->   takes what it has from DIR.partial
//!                                    <--   wanted: a bit for each chunk
//!  chunk, chunk, ...  end            -->   writes each where it belongs
//!                                    <--   done, or failed and why
//! ```
//! A stream in one direction, such as a pipe, has the sender's part only, without its proof: the index has one. The sender sends all
//! chunks then. Before the last index there may be others, of images that are copied while the process still runs: what came of those is
//! there already.
//!
//! INVARIANT: the receiver says that it is done when the directory has its name, on the disk. With a key each
//! side proves to the other that it has it, for this connection, before anything else is read; of a pipe, for what was sent.

mod address;
mod connection;
mod frame;
mod receive;
mod send;

use self::frame::IndexFrame;

pub use self::address::{Address, Channel, Listener};
pub use self::connection::Connection;
pub use self::receive::{Received, Receiver};
pub use self::send::{Sender, Sent, Stage};

/// What the sender proves to have said with an index.
fn said_of_index(index: &IndexFrame) -> Vec<u8> {
    let numbers = [index.stopped_us, index.bytes].map(u64::to_le_bytes).concat();
    [&[u8::from(index.is_last)][..], &numbers, &index.name].concat()
}

#[cfg(test)]
mod tests;
