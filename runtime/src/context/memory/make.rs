// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making buffer objects, and unmaking those that nobody was given.
//!
//! INVARIANT: a failure leaves nothing registered and nothing allocated.

use kfd::{Errno, meminfo};
use nix::sys::resource::{Resource, getrlimit};

use super::mapped::{self, Mapped};
use super::request::Request;
use crate::context::Context;
use crate::context::device::Device;
use crate::context::error::{AllocError, DeviceError};
use crate::context::registry::Registry;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind};
use crate::context::registry::tally::{Holdings, place_of};

/// Registers and makes a buffer object.
pub fn make_bo(
    context: &Context,
    registry: &mut Registry,
    device: &Device,
    request: Request,
) -> Result<BoKey, AllocError> {
    let Request { kind, agent, bytes: wanted, align, at, .. } = request;
    if wanted == 0 {
        return Err(AllocError::Empty);
    }
    let state = request.into_state();
    let key = match at {
        Some(_) => registry.add_bo_at(state)?,
        None => registry.add_aligned_bo(state, align)?,
    };
    let Some(bo) = registry.bos.get_mut(key) else {
        return Err(DeviceError::Absent { what: "the entry" }.into());
    };
    match device.create_bo(bo) {
        Ok(()) => {
            registry.tally.settle();
            Ok(key)
        }
        Err(error) => {
            registry.remove_bo(key);
            let held = Holdings::of(registry.bos.iter().map(|(_, bo)| &bo.state), place_of(kind, agent));
            Err(alloc_error(context, device, kind, agent, wanted, held, error))
        }
    }
}

/// Says how much there is when there was not enough.
fn alloc_error(
    context: &Context,
    device: &Device,
    kind: BoKind,
    agent: AgentIndex,
    wanted: u64,
    held: Holdings,
    error: DeviceError,
) -> AllocError {
    if matches!(error.errno(), Some(Errno::EMFILE | Errno::ENFILE)) {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(limit, _)| limit);
        return AllocError::Files { limit, source: error };
    }
    let no_memory = matches!(&error, DeviceError::Ioctl { source, .. } if source.errno == Errno::ENOMEM);
    if !no_memory {
        return error.into();
    }
    let (name, available) = match kind {
        BoKind::Vram => {
            let info = &context.agents[agent.at()];
            let name = format!("{} ({})", info.target().name, info.uuid());
            (name, device.available(agent).unwrap_or(0))
        }
        _ => ("gtt".to_owned(), meminfo::bytes("MemAvailable").unwrap_or(0)),
    };
    AllocError::OutOfMemory { agent: name, wanted, available, held }
}

/// Frees one of the runtime's own objects; what the driver will not free stays registered.
pub fn unmake_bo(registry: &mut Registry, device: &Device, key: BoKey) {
    let Some(bo) = registry.bos.get_mut(key) else { return };
    match device.destroy_bo(bo) {
        Ok(()) => drop(registry.remove_bo(key)),
        Err(error) => tracing::warn!(target: "pools", %error, %key, "memory could not be freed"),
    }
}

/// A view of a buffer object the CPU sees.
pub fn bo_view(registry: &Registry, key: BoKey) -> Option<Mapped> {
    let state = &registry.bos.get(key)?.state;
    if !state.cpu_mapped {
        return None;
    }
    mapped::view(state.va, state.bytes)
}
