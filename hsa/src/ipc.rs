// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and signals of other processes, by handles of 32 bytes that programs send each other as they like.
//!
//! ```text
//! word 0       whose it is: the process
//! words 1..5   the number by which that process knows it
//! word 5       where in its buffer memory begins, pages
//! words 6..8   bytes of memory; 0 for a signal
//! ```
//!
//! INVARIANT: nothing of a handle is an address or a descriptor: it names the same after a restore.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::Duration;

use queues::words::size;
use stasis::share::{NAME_BYTES, SharedName};
use stasis::{NamedError, ShareError};

use crate::abi::declared::*;
use crate::abi::{INVALID_ARGUMENT, OUT_OF_RESOURCES, Out, Outcome, export, slice};
use crate::instance::{Instance, instance};
use crate::memory::{Block, Origin, PAGE, address_of, agents_of, pointer_to, status_of};

/// TIMEOUT: how long a process may be locked or checkpointed that is asked for its memory.
const LIMIT: Duration = Duration::from_secs(30);
/// Words of a handle.
const WORDS: usize = 8;

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    name: SharedName,
    first_page: u32,
    bytes: u64,
}

impl Shared {
    fn words(self) -> [u32; WORDS] {
        let mut bytes = [0; 4 * WORDS];
        bytes[..NAME_BYTES].copy_from_slice(&self.name.to_bytes());
        bytes[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&self.first_page.to_le_bytes());
        bytes[NAME_BYTES + 4..].copy_from_slice(&self.bytes.to_le_bytes());
        bytemuck::cast(bytes)
    }

    fn of_words(words: [u32; WORDS]) -> Self {
        let bytes: [u8; 4 * WORDS] = bytemuck::cast(words);
        let (name, rest) = bytes.split_at(NAME_BYTES);
        let (page, length) = rest.split_at(4);
        Shared {
            name: SharedName::from_bytes(name.try_into().unwrap_or_default()),
            first_page: u32::from_le_bytes(page.try_into().unwrap_or_default()),
            bytes: u64::from_le_bytes(length.try_into().unwrap_or_default()),
        }
    }
}

/// What the program's handle says.
///
/// # Errors
/// [`INVALID_ARGUMENT`] for null.
///
/// # Safety
/// The handle is null or the program's.
unsafe fn read(handle: *const hsa_amd_ipc_memory_t) -> Outcome<Shared> {
    if handle.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null; the rest by contract.
    Ok(Shared::of_words(unsafe { handle.read_unaligned() }.handle))
}

fn whole_pages(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn refused(error: &ShareError) -> crate::abi::Status {
    tracing::debug!(target: "hsa", error = %stasis::explain(error), "an object was not named");
    OUT_OF_RESOURCES
}

fn named<T>(result: Result<T, NamedError>) -> Outcome<T> {
    result.map_err(|error| {
        tracing::debug!(target: "hsa", error = %stasis::explain(&error), "an object was not had by its name");
        if error.is_name() { INVALID_ARGUMENT } else { OUT_OF_RESOURCES }
    })
}

/// Memory that a handle names, for these agents; for all if there are none.
fn attach(instance: &Instance, shared: Shared, agents: &[&stasis::Agent]) -> Outcome<u64> {
    let all: Vec<&stasis::Agent> = instance.agents.gpus().collect();
    let agents = if agents.is_empty() { &all[..] } else { agents };
    let [first, others @ ..] = agents else { return Err(INVALID_ARGUMENT) };
    let buffer = named(instance.runtime.import_named(&shared.name, first, LIMIT))?;
    let offset = u64::from(shared.first_page) * PAGE;
    // The numbers are the program's own, whatever its handle was.
    if offset.checked_add(shared.bytes).is_none_or(|end| end > buffer.len()) {
        return Err(INVALID_ARGUMENT);
    }
    for other in others {
        buffer.allow(other).map_err(status_of)?;
    }
    Ok(instance.memory.add(Block::part(buffer, offset, shared.bytes, Origin::Attached)).base())
}

export! {
    /// A handle that names memory for other processes: all of an allocation.
    fn hsa_amd_ipc_memory_create(ptr: *mut c_void, len: usize, handle: *mut hsa_amd_ipc_memory_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(handle) }?;
        if ptr.is_null() || len == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let (block, offset) = instance.memory.find(address_of(ptr)).ok_or(INVALID_ARGUMENT)?;
        let lengths = block.bytes()..=whole_pages(block.bytes());
        let is_shared = matches!(block.origin, Origin::Pool(_) | Origin::Imported | Origin::Attached);
        if offset != 0 || !lengths.contains(&(len as u64)) || !is_shared {
            return Err(INVALID_ARGUMENT);
        }
        let (buffer, at) = block.place(0)?;
        instance.memory.keep_apart(&block);
        let shared = Shared {
            name: buffer.name().map_err(|error| refused(&error))?,
            first_page: queues::words::count(size(at / PAGE)),
            bytes: block.bytes(),
        };
        out.put(hsa_amd_ipc_memory_t { handle: shared.words() });
        Ok(())
    }

    /// Memory that such a handle names, here or in another process; for all agents where none is listed.
    fn hsa_amd_ipc_memory_attach(
        handle: *const hsa_amd_ipc_memory_t,
        len: usize,
        num_agents: u32,
        mapping_agents: *const hsa_agent_t,
        mapped_ptr: *mut *mut c_void,
    ) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let (shared, out) = unsafe { (read(handle)?, Out::new(mapped_ptr)?) };
        let lengths = shared.bytes..=whole_pages(shared.bytes);
        if shared.bytes == 0 || !lengths.contains(&(len as u64)) {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as above.
        let agents = agents_of(instance, unsafe { slice(mapping_agents, num_agents as usize) }?)?;
        out.put(pointer_to(attach(instance, shared, &agents)?));
        Ok(())
    }

    /// Ends what `hsa_amd_ipc_memory_attach` gave.
    fn hsa_amd_ipc_memory_detach(mapped_ptr: *mut c_void) {
        let instance = instance()?;
        let is_attached = |origin| matches!(origin, Origin::Attached);
        instance.memory.free_of(address_of(mapped_ptr), is_attached).map_err(|_| INVALID_ARGUMENT)
    }

    /// A handle that names a signal for other processes: one that was made for them.
    fn hsa_amd_ipc_signal_create(signal: hsa_signal_t, handle: *mut hsa_amd_ipc_signal_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let out = unsafe { Out::new(handle) }?;
        let signal = instance.signals.get(signal.handle).ok_or(INVALID_ARGUMENT)?;
        let name = signal.of_runtime().name().map_err(|error| match error {
            ShareError::NotShared { .. } => INVALID_ARGUMENT,
            error => refused(&error),
        })?;
        out.put(hsa_amd_ipc_signal_t { handle: Shared { name, first_page: 0, bytes: 0 }.words() });
        Ok(())
    }

    /// The signal that such a handle names, here or in another process.
    fn hsa_amd_ipc_signal_attach(handle: *const hsa_amd_ipc_signal_t, signal: *mut hsa_signal_t) {
        let instance = instance()?;
        // SAFETY: the caller's, by the header.
        let (shared, out) = unsafe { (read(handle)?, Out::new(signal)?) };
        if (shared.first_page, shared.bytes) != (0, 0) {
            return Err(INVALID_ARGUMENT);
        }
        let attached = named(instance.runtime.import_named_signal(&shared.name, LIMIT))?;
        out.put(hsa_signal_t { handle: instance.signals.add(attached)? });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_says_what_it_was_made_of() {
        let name = SharedName { owner: 4711, number: u128::MAX / 3 };
        let shared = Shared { name, first_page: 511, bytes: 1 << 40 | 7 };
        assert_eq!(Shared::of_words(shared.words()), shared);
        assert_eq!(shared.words()[0], 4711);
    }
}
