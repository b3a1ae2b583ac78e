// SPDX-License-Identifier: MIT OR Apache-2.0
//! How every stateful type of the registry is saved and restored.

/// A type whose plain state can be saved and from which it can be made again.
///
/// What `save` gives after `restore` equals what `restore` was given.
pub trait Persist: Sized {
    /// Names and numbers: no pointer, no file descriptor.
    type State;
    /// What a restore needs beside the state.
    type Args;
    /// How a state contradicts itself.
    type Error;

    /// The plain state. It cannot fail: what must be asked of the driver is asked before.
    fn save(&self) -> Self::State;

    /// The value whose [`Persist::save`] is `state`, with nothing in the driver yet.
    ///
    /// # Errors
    /// Says how the state contradicts itself. Nothing outside is touched then.
    fn restore(args: Self::Args, state: &Self::State) -> Result<Self, Self::Error>;
}
