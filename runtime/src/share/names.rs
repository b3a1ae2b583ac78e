// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names under which other processes ask for shared memory: what a program can hand over as a few bytes, in whatever way, instead of
//! a descriptor.
//!
//! A name says whose the memory is and has a number that was drawn for it. Another process of the same user asks the owner's agent
//! for it ([`crate::Runtime::import_named`]). A name stays right across checkpoints of a process that keeps its pid, and ends with
//! the memory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use kfd::linux;
use parking_lot::Mutex;
use stasis_protocol::gate::Pass;

use super::{ShareError, export};
use crate::context::Context;
use crate::context::Layer;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, BoRole};
use crate::pool::Buffer;
use crate::signal::Signal;

/// Names a buffer or a shared signal for other processes of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedName {
    /// The process whose it is, as it knows itself.
    pub owner: i32,
    /// What it is in that process.
    pub number: u128,
}

/// Bytes of a name.
pub const NAME_BYTES: usize = 20;

impl SharedName {
    /// The name as bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[..4].copy_from_slice(&self.owner.to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The name that bytes are; any bytes are one, perhaps of nothing.
    #[must_use]
    pub fn from_bytes(bytes: [u8; NAME_BYTES]) -> Self {
        let [a, b, c, d, number @ ..] = bytes;
        SharedName { owner: i32::from_le_bytes([a, b, c, d]), number: u128::from_le_bytes(number) }
    }
}

/// What a context has names for.
#[derive(Debug, Default)]
struct Names(Mutex<BTreeMap<BoKey, u128>>);

impl Layer for Names {
    fn new(_agents: usize) -> Self {
        Names::default()
    }
}

/// The name of an object, which is drawn when first asked for.
fn name(context: &Context, registry: &Registry, key: BoKey) -> Result<SharedName, ShareError> {
    let names = context.layer::<Names>();
    let mut names = names.0.lock();
    names.retain(|named, _| registry.bos.get(*named).is_some());
    let number = match names.get(&key) {
        Some(number) => *number,
        None => {
            let number = u128::from_ne_bytes(linux::random().map_err(|errno| ShareError::Name { errno })?);
            names.insert(key, number);
            number
        }
    };
    Ok(SharedName { owner: std::process::id().cast_signed(), number })
}

/// A DMABuf of the object that has this number; `None` if none has.
///
/// # Errors
/// As for [`Buffer::export`].
pub(crate) fn export_named(
    context: &Context,
    pass: &Pass<'_>,
    number: u128,
) -> Result<Option<OwnedFd>, ShareError> {
    let names = context.layer::<Names>();
    let key = names.0.lock().iter().find_map(|(key, named)| (*named == number).then_some(*key));
    let Some(key) = key else { return Ok(None) };
    let place = context.registry.lock().bos.get(key).map(|bo| (bo.state.va, bo.state.bytes));
    let Some((va, bytes)) = place else { return Ok(None) };
    context.arriving.give_out(context, pass, va, bytes)?;
    let mut registry = context.registry.lock();
    // It may have been freed meanwhile.
    if registry.bos.get(key).is_none() {
        return Ok(None);
    }
    let exported = export(&mut registry, context.device_or_lost(pass)?, key)?;
    context.host_writes.share(pass);
    Ok(Some(exported))
}

impl Buffer {
    /// A name by which other processes of the user can ask for its memory ([`crate::Runtime::import_named`]), for as long as it
    /// is not freed. The same one every time.
    ///
    /// # Errors
    /// [`ShareError::Freed`], [`ShareError::Name`], [`ShareError::Lost`].
    pub fn name(&self) -> Result<SharedName, ShareError> {
        let context = &self.0.context;
        let pass = context.gate.enter()?;
        // Others may ask for it at any time.
        self.give_out(&pass)?;
        let registry = context.registry.lock();
        if !self.is_alive() {
            return Err(ShareError::Freed { key: self.key() });
        }
        name(context, &registry, self.key())
    }
}

impl Signal {
    /// A name by which other processes of the user can ask for a shared signal ([`Signal::shared`],
    /// [`crate::Runtime::import_named_signal`]), for as long as it lives.
    ///
    /// # Errors
    /// [`ShareError::NotShared`] for any other signal, [`ShareError::Name`], [`ShareError::Lost`].
    pub fn name(&self) -> Result<SharedName, ShareError> {
        let context = self.context();
        let _pass = context.gate.enter()?;
        let registry = context.registry.lock();
        name(context, &registry, shared_page(&registry, self)?)
    }
}

/// The page of a shared signal.
///
/// # Errors
/// [`ShareError::NotShared`] for any other.
pub(super) fn shared_page(registry: &Registry, signal: &Signal) -> Result<BoKey, ShareError> {
    let page = registry.signals.get(signal.key()).map(|signal| signal.state.page);
    let is_shared =
        |page: &BoKey| registry.bos.get(*page).is_some_and(|page| page.state.role == BoRole::SharedSignal);
    page.filter(is_shared).ok_or(ShareError::NotShared { key: signal.key() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_its_bytes() {
        let name = SharedName { owner: 4711, number: 0x0123_4567_89ab_cdef_0011_2233_4455_6677 };
        assert_eq!(SharedName::from_bytes(name.to_bytes()), name);
        assert_eq!(SharedName::from_bytes([0xff; NAME_BYTES]), SharedName { owner: -1, number: u128::MAX });
    }
}
