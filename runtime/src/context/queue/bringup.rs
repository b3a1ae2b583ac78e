// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting a registered queue on the hardware, the first time and after every restore.
//!
//! INVARIANT: ring, pointers, `amd_queue_t` and save area headers, as far as the kind has them, are in place before the
//! driver hears of the queue, since the hardware may look at them at once.

use std::sync::atomic::Ordering;

use bytemuck::bytes_of;
use kfd::Doorbell;
use queues::hsa::{AmdQueue, AmdSignal, queue_properties, signal_kind};
use queues::save_area::SaveAreaHeader;
use queues::words::{count, words};

use crate::context::device::Device;
use crate::context::error::DeviceError;
use crate::context::memory::mapped::{Mapped, view};
use crate::context::queue::live::{QueueLive, READ_INDEX};
use crate::context::queue::scratch;
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, QueueKey, QueueKind, QueueState};

/// Where the queue's page holds its doorbell as a signal, which `amd_queue_t` names: for kernels of this agent that enqueue
/// (`hsa_signal_store` of the device library stores to the address in `value`).
const DOORBELL_SIGNAL: u64 = 512;

/// Prepares the memory of a registered queue for a hardware queue that continues at `logical`, creates that queue,
/// and returns its doorbell for [`QueueLive::attach`]. All its buffers, its signals and the doorbell slice's
/// entry exist, mapped for the CPU.
///
/// # Errors
/// [`DeviceError`]; there is no hardware queue then.
pub fn bring_up(
    device: &Device,
    registry: &mut Registry,
    key: QueueKey,
    live: &QueueLive,
    logical: u64,
) -> Result<Doorbell, DeviceError> {
    const ABSENT: DeviceError = DeviceError::Absent { what: "the queue" };
    let state = registry.queues.get(key).ok_or(ABSENT)?.state.clone();
    write_save_area(device, registry, &state)?;
    if state.kind == QueueKind::Aql {
        scratch::close_question(registry, key);
        write_page(device, registry, &state, live)?;
    }
    live.prepare(logical);
    let Registry { bos, queues, fixtures, .. } = registry;
    let slice = fixtures.doorbells.get(&state.agent).and_then(|&slice| bos.get(slice));
    let slice = slice.ok_or(DeviceError::Absent { what: "the doorbell slice" })?;
    let queue = queues.get_mut(key).ok_or(ABSENT)?;
    let doorbell = device.create_queue(queue, bos, slice)?;
    if state.kind != QueueKind::Aql {
        return Ok(doorbell);
    }
    let page = live.memory().page;
    let signal = AmdSignal {
        kind: signal_kind::DOORBELL,
        value: (slice.state.va + u64::from(queue.numbers.doorbell_offset)).cast_signed(),
        queue_ptr: page.va(),
        ..AmdSignal::default()
    };
    page.write(DOORBELL_SIGNAL, bytes_of(&signal));
    page.store(ID, u64::from(queue.numbers.id), Ordering::Relaxed);
    Ok(doorbell)
}

const ID: u64 = std::mem::offset_of!(AmdQueue, id) as u64;

fn memory(registry: &Registry, key: BoKey) -> Result<Mapped, DeviceError> {
    let absent = DeviceError::Absent { what: "a queue's memory" };
    let state = &registry.bos.get(key).ok_or(DeviceError::Absent { what: "a queue's memory" })?.state;
    view(state.va, state.bytes).filter(|_| state.cpu_mapped).ok_or(absent)
}

/// Writes the header of every XCC's save area: where the debugger's memory is, and where exceptions go.
fn write_save_area(device: &Device, registry: &Registry, state: &QueueState) -> Result<(), DeviceError> {
    let Some(area) = state.bos.save_area else { return Ok(()) };
    let area = memory(registry, area)?;
    let geometry = device.node(state.agent)?.info.geometry();
    let exceptions = registry.signals.get(state.exceptions).and_then(|signal| signal.live.as_ref());
    let payload = exceptions.map_or(0, |signal| signal.value_va());
    let event = registry.fixtures.queue_exception.and_then(|event| registry.events.get(event));
    let event = event.map_or(0, |event| event.live.id.load(Ordering::Relaxed));
    for xcc in 0..geometry.num_xcc {
        let header = SaveAreaHeader::initial(geometry, xcc, payload, event);
        if let (Some(header), Some(offset)) = (header, geometry.area_offset(xcc)) {
            area.write(offset, &header.to_bytes());
        }
    }
    Ok(())
}

/// Writes the `amd_queue_t`, all but its indices.
fn write_page(
    device: &Device,
    registry: &Registry,
    state: &QueueState,
    live: &QueueLive,
) -> Result<(), DeviceError> {
    let node = device.node(state.agent)?;
    let properties = &node.info.node().properties;
    let page = live.memory().page;
    let cus = properties.simd_count.checked_div(properties.simd_per_cu).unwrap_or(0);
    let inactive = state.inactive.and_then(|signal| registry.signals.get(signal)?.live.as_ref());
    let mut queue = AmdQueue {
        features: 1,
        base_address: live.memory().ring.va(),
        doorbell_signal: page.va() + DOORBELL_SIGNAL,
        size: state.ring_bytes / count(queues::aql::PACKET_BYTES),

        group_segment_aperture_base_hi: node.lds_aperture_hi,
        private_segment_aperture_base_hi: node.scratch_aperture_hi,
        max_cu_id: cus.saturating_sub(1),
        max_wave_id: properties.max_waves_per_simd.saturating_mul(properties.simd_per_cu).saturating_sub(1),
        read_dispatch_id_field_base_byte_offset: words(READ_INDEX)[0],
        queue_properties: queue_properties::IS_PTR64 | queue_properties::ENABLE_PROFILING,
        queue_inactive_signal: inactive.map_or(0, |signal| signal.handle()),
        ..AmdQueue::default()
    };
    if let (Some(key), Some(format)) = (state.bos.scratch, node.info.target().scratch) {
        let memory = registry.bos.get(key).ok_or(DeviceError::Absent { what: "the scratch memory" })?;
        scratch::describe(&mut queue, &memory.state, state.scratch_lane_bytes, &node.info, format);
    }
    page.write(0, bytes_of(&queue));
    Ok(())
}
