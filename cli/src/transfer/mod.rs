// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints on their way: into a store and out of it, over a stream, and what `checkpoint` and `restore` are told of it.

mod args;
mod deliver;
mod obtain;
mod store;
mod stream;

pub use self::args::{DestinationArgs, SourceArgs};
pub use self::deliver::{Delivered, Destination, report};
pub use self::obtain::{Obtained, hand_on, hand_on_all, obtain};
pub use self::store::{StoreArgs, run as store};
pub use self::stream::{ReceiveArgs, SendArgs, receive, send};
