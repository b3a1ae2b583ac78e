// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets with all choices made, as the clients of real queues make them.

use super::Packet;
use super::control::{EventWrite, event, event_index};
use super::field::{CachePolicy, Compare};
use super::memory::{
    AcquireCaches, AcquireMem, DataSel, IntSel, ReleaseDestination, ReleaseMem, coher, gcr, release_gcr,
};
use super::wait::{WaitRegMem, WaitTarget};
use crate::target::Target;

/// How often waits poll.
const POLL_INTERVAL: u16 = 4;

/// How much a [`signal`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 4 bytes: the low half of the value.
    Bits32,
    /// 8 bytes.
    Bits64,
}

const fn acquire(gcr: u32) -> Packet<'static> {
    Packet::AcquireMem(AcquireMem {
        caches: AcquireCaches::Gcr(gcr),
        size: u64::MAX,
        base: 0,
        poll_interval: 0,
    })
}

/// Makes everything that hosts, other agents and earlier kernels wrote visible (gfx10 and later).
///
/// What the host writes directly into device memory must have left the host data path before. There is no packet for
/// that here: where the registers of the flush are differs from chip to chip (`nbio_v*.c`: `get_hdp_flush_req_offset`,
/// relative to a base that the chip's discovery table has). The host flushes, by the page that the driver gives it
/// (`KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL`), before it rings the doorbell.
#[must_use]
pub const fn memory_barrier() -> Packet<'static> {
    acquire(gcr::SYSTEM)
}

/// Makes what earlier kernels of the same agent wrote visible (gfx10 and later).
#[must_use]
pub const fn kernel_barrier() -> Packet<'static> {
    acquire(gcr::AGENT)
}

/// Makes code that was written visible to instruction fetch, in the form of the chip's generation.
///
/// This is the packet that AMD's runtime sends after it loaded a code object.
#[must_use]
pub const fn code_invalidate(target: &Target) -> Packet<'static> {
    let caches = match target.gcr {
        true => AcquireCaches::Gcr(gcr::CODE),
        false => AcquireCaches::Coherency(coher::CODE),
    };
    Packet::AcquireMem(AcquireMem { caches, size: 0xff_ffff_ffff, base: 0, poll_interval: 0 })
}

/// Waits until all waves of the queue's earlier dispatches have ended.
#[must_use]
pub const fn cs_partial_flush() -> Packet<'static> {
    Packet::EventWrite(EventWrite {
        event: event::CS_PARTIAL_FLUSH,
        index: event_index::PARTIAL_FLUSH,
        address: None,
    })
}

/// Waits until the word at `address`, a multiple of 4, masked, compares as wanted with `value`.
#[must_use]
pub const fn wait_memory(address: u64, function: Compare, value: u32, mask: u32) -> Packet<'static> {
    Packet::WaitRegMem(WaitRegMem {
        target: WaitTarget::Memory { address },
        function,
        reference: value,
        mask,
        poll_interval: POLL_INTERVAL,
        cache_policy: CachePolicy::Lru,
        offload: false,
    })
}

const fn release(caches: u16, data_sel: DataSel, address: u64, value: u64) -> ReleaseMem {
    ReleaseMem {
        event: event::CACHE_FLUSH_AND_INV_TS,
        index: event_index::END_OF_PIPE,
        caches,
        cache_policy: CachePolicy::Lru,
        update_status: false,
        scalar_invalidate: false,
        destination: ReleaseDestination::Memory,
        int_sel: IntSel::None,
        data_sel,
        address,
        value,
        context_id: 0,
    }
}

/// Writes `value` to `address`, a multiple of its width, when earlier work is done and its results are
/// visible to everyone (gfx10 and later).
#[must_use]
pub const fn signal(address: u64, value: u64, width: Width) -> Packet<'static> {
    let (data_sel, value) = match width {
        Width::Bits32 => (DataSel::Low32, value & 0xffff_ffff),
        Width::Bits64 => (DataSel::All64, value),
    };
    Packet::ReleaseMem(release(release_gcr::SYSTEM, data_sel, address, value))
}

/// Writes `event_id` to the event's slot at `mailbox`, then sends KFD the interrupt that wakes its waiters.
///
/// Goes behind [`signal`], because it flushes nothing.
#[must_use]
pub const fn interrupt(mailbox: u64, event_id: u32) -> Packet<'static> {
    // CAST: widened.
    let packet = release(0, DataSel::Low32, mailbox, event_id as u64);
    Packet::ReleaseMem(ReleaseMem { int_sel: IntSel::AfterWriteConfirm, context_id: event_id, ..packet })
}

/// Writes the GPU's clock to `address`, a multiple of 8, when earlier work is done.
#[must_use]
pub const fn timestamp(address: u64) -> Packet<'static> {
    Packet::ReleaseMem(release(0, DataSel::GpuClock, address, 0))
}
