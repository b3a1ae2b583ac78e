// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the private blob that CRIU_OP CHECKPOINT writes and RESTORE takes (`kfd_priv.h`, version 1).
//!
//! ```text
//! | process | device 0.. | buffer object 0.. | queue: descriptor, control stack | event | ... |
//! ```
//!
//! INVARIANT: reading has no effects, and every length is checked against the bytes of the blob before anything is
//! copied.

use crate::ids::{GpuId, MemoryHandle};
use crate::sys::*;

/// Attributes of a range besides one per GPU: preferred location, prefetch, granularity, flags.
const RANGE_ATTRIBUTES: usize = 4;
/// Bytes of an attribute.
const ATTRIBUTE_BYTES: usize = 8;

/// A blob's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob {
    /// Whether faults were retried.
    pub xnack: bool,
    /// Buffer objects, in the order of their buckets.
    pub bos: Vec<BoEntry>,
    /// Queues.
    pub queues: Vec<QueueEntry>,
    /// Events.
    pub events: Vec<kfd_criu_event_priv_data>,
    /// How many ranges of shared virtual memory there are.
    pub ranges: usize,
}

/// A buffer object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoEntry {
    /// First address of a USERPTR object's pages, else 0.
    pub user_address: u64,
    /// The lower half of its handle.
    pub index: u32,
    /// The GPUs it is mapped on.
    pub mapped: Vec<GpuId>,
}

impl BoEntry {
    /// Its handle; `gpu` is its bucket's.
    #[must_use]
    pub fn handle(&self, gpu: GpuId) -> MemoryHandle {
        MemoryHandle(u64::from(gpu.0) << 32 | u64::from(self.index))
    }
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its properties.
    pub data: kfd_criu_queue_priv_data,
    /// Its memory descriptors.
    pub mqd: Vec<u8>,
    /// Its control stack, where the driver keeps it (before gfx10).
    pub control_stack: Vec<u8>,
}

/// Why bytes are no blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The version of another kernel.
    #[error("The blob has version {found}, this library reads {KFD_CRIU_PRIV_VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// It ends too early.
    #[error("The blob ends at byte {length}, but {what} at byte {offset} needs {wanted} bytes")]
    Truncated {
        /// What should be there.
        what: &'static str,
        /// Where.
        offset: usize,
        /// How many bytes it has.
        wanted: usize,
        /// How many bytes the blob has.
        length: usize,
    },
    /// An object that is none of the known kinds.
    #[error("The object at byte {offset} of the blob has unknown type {found}")]
    Object {
        /// Where.
        offset: usize,
        /// Its type.
        found: u32,
    },
}

impl Blob {
    /// Reads the blob of a checkpoint with as many device and buffer object buckets.
    ///
    /// # Errors
    /// [`BlobError`]; bytes behind the last whole object are an error too.
    pub fn parse(bytes: &[u8], num_devices: u32, num_bos: u32) -> Result<Self, BlobError> {
        let mut reader = Reader { bytes, offset: 0 };
        let process: kfd_criu_process_priv_data = reader.structure("the process")?;
        if process.version != KFD_CRIU_PRIV_VERSION {
            return Err(BlobError::Version { found: process.version });
        }
        let mut blob = Self { xnack: process.xnack_mode != 0, ..Self::default() };
        let devices = (num_devices as usize).saturating_mul(size_of::<kfd_criu_device_priv_data>());
        reader.take(devices, "the devices")?;
        for _ in 0..num_bos {
            let bo: kfd_criu_bo_priv_data = reader.structure("a buffer object")?;
            let mapped = bo.mapped_gpuids.iter().take_while(|id| **id != 0).map(|id| GpuId(*id));
            let entry =
                BoEntry { user_address: bo.user_addr, index: bo.idr_handle, mapped: mapped.collect() };
            blob.bos.push(entry);
        }
        while reader.offset < bytes.len() {
            blob.object(&mut reader, num_devices)?;
        }
        Ok(blob)
    }

    fn object(&mut self, reader: &mut Reader<'_>, num_devices: u32) -> Result<(), BlobError> {
        let offset = reader.offset;
        let object_type: u32 = reader.structure("an object's type")?;
        reader.offset = offset;
        match object_type {
            KFD_CRIU_OBJECT_TYPE_QUEUE => {
                let data: kfd_criu_queue_priv_data = reader.structure("a queue")?;
                let mqd = reader.take(data.mqd_size as usize, "a queue's descriptor")?.to_vec();
                let control_stack = reader.take(data.ctl_stack_size as usize, "a control stack")?.to_vec();
                self.queues.push(QueueEntry { data, mqd, control_stack });
            }
            KFD_CRIU_OBJECT_TYPE_EVENT => self.events.push(reader.structure("an event")?),
            KFD_CRIU_OBJECT_TYPE_SVM_RANGE => {
                reader.structure::<kfd_criu_svm_range_priv_data>("a range")?;
                let attributes = (num_devices as usize).saturating_add(RANGE_ATTRIBUTES);
                reader.take(attributes.saturating_mul(ATTRIBUTE_BYTES), "a range's attributes")?;
                self.ranges += 1;
            }
            found => return Err(BlobError::Object { offset, found }),
        }
        Ok(())
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, wanted: usize, what: &'static str) -> Result<&'a [u8], BlobError> {
        let offset = self.offset;
        let truncated = BlobError::Truncated { what, offset, wanted, length: self.bytes.len() };
        let end = offset.checked_add(wanted).ok_or_else(|| truncated.clone())?;
        let taken = self.bytes.get(offset..end).ok_or(truncated)?;
        self.offset = end;
        Ok(taken)
    }

    fn structure<T: bytemuck::Pod>(&mut self, what: &'static str) -> Result<T, BlobError> {
        self.take(size_of::<T>(), what).map(bytemuck::pod_read_unaligned)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob() -> Vec<u8> {
        let process = kfd_criu_process_priv_data { version: 1, xnack_mode: 0 };
        let mut bo = kfd_criu_bo_priv_data { user_addr: 9, idr_handle: 7, ..Default::default() };
        bo.mapped_gpuids[..2].copy_from_slice(&[5, 6]);
        // The first zero ends the list.
        bo.mapped_gpuids[3] = 8;
        let queue =
            kfd_criu_queue_priv_data { q_id: 3, mqd_size: 16, ctl_stack_size: 4, ..Default::default() };
        let event = kfd_criu_event_priv_data { object_type: 1, event_id: 2, ..Default::default() };
        let range =
            kfd_criu_svm_range_priv_data { object_type: 2, start_addr: 1, size: 1, ..Default::default() };
        [
            bytemuck::bytes_of(&process),
            &[0; 16],
            bytemuck::bytes_of(&bo),
            bytemuck::bytes_of(&queue),
            &[1; 16],
            &[2; 4],
            bytemuck::bytes_of(&event),
            bytemuck::bytes_of(&range),
            &[0; 6 * 8],
        ]
        .concat()
    }

    #[test]
    fn parse_finds_every_object() {
        let found = Blob::parse(&blob(), 2, 1).unwrap();
        assert_eq!(found.bos[0].mapped, [GpuId(5), GpuId(6)]);
        assert_eq!(found.bos[0].handle(GpuId(5)), MemoryHandle(5 << 32 | 7));
        assert_eq!((found.bos[0].user_address, found.queues[0].data.q_id), (9, 3));
        assert_eq!(
            (&found.queues[0].mqd[..], &found.queues[0].control_stack[..]),
            (&[1; 16][..], &[2; 4][..])
        );
        assert_eq!((found.events[0].event_id, found.ranges, found.xnack), (2, 1, false));
    }

    #[test]
    fn parse_refuses_every_truncation_and_other_versions() {
        let whole = blob();
        let ends = [8 + 16 + 272, 8 + 16 + 272 + 140, 8 + 16 + 272 + 140 + 64];
        for length in 0..whole.len() {
            let found = Blob::parse(&whole[..length], 2, 1);
            assert_eq!(found.is_ok(), ends.contains(&length), "{length}");
        }
        let mut other = whole.clone();
        other[0] = 2;
        assert_eq!(Blob::parse(&other, 2, 1), Err(BlobError::Version { found: 2 }));
        let mut unknown = whole;
        unknown[8 + 16 + 272] = 3;
        assert_eq!(Blob::parse(&unknown, 2, 1), Err(BlobError::Object { offset: 296, found: 3 }));
    }

    proptest! {
        #[test]
        fn parse_never_panics(
            start in prop::sample::select(vec![0usize, 8, 24, 296]),
            junk in proptest::collection::vec(any::<u8>(), 0..400),
            devices in prop_oneof![0u32..4, any::<u32>()],
            bos in prop_oneof![0u32..4, any::<u32>()],
        ) {
            let bytes = [&blob()[..start], &junk].concat();
            let _ = Blob::parse(&bytes, devices, bos);
        }
    }
}
