// SPDX-License-Identifier: MIT OR Apache-2.0
//! `amd_signal_t`: what a signal handle points at.

use bytemuck::{Pod, Zeroable};

use super::layout::assert_layout;

/// Values of [`AmdSignal::kind`].
pub mod signal_kind {
    /// Not a signal.
    pub const INVALID: i64 = 0;
    /// A value in memory.
    pub const USER: i64 = 1;
    /// A doorbell; the value's place holds its address.
    pub const DOORBELL: i64 = -1;
    /// A 32-bit doorbell of gfx8 and older.
    pub const LEGACY_DOORBELL: i64 = -2;
}

/// A signal in shared memory. A signal's handle is its address.
///
/// The value changes under everybody's hands: shared memory is read and written through atomics at these
/// offsets, this type is for building an initial value and for copies.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct AmdSignal {
    /// One of [`signal_kind`].
    pub kind: i64,
    /// The value, or the address of the doorbell if `kind` is [`signal_kind::DOORBELL`].
    pub value: i64,
    /// Address of the event page slot that completion writes `event_id` to; 0 for a signal that is only
    /// polled.
    pub event_mailbox_ptr: u64,
    /// KFD's event, 0 for none.
    pub event_id: u32,
    /// Zero.
    pub reserved1: u32,
    /// When the packet's work began, GPU clock ticks.
    pub start_ts: u64,
    /// When it ended, GPU clock ticks.
    pub end_ts: u64,
    /// Address of the [`AmdQueue`](super::AmdQueue) of a doorbell signal.
    pub queue_ptr: u64,
    /// Zero.
    pub reserved3: [u32; 2],
}

assert_layout!(AmdSignal, 64, align 64, {
    0 kind,
    8 value,
    16 event_mailbox_ptr,
    24 event_id,
    28 reserved1,
    32 start_ts,
    40 end_ts,
    48 queue_ptr,
    56 reserved3,
});
