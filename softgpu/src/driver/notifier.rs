// SPDX-License-Identifier: MIT OR Apache-2.0
//! USERPTR buffers of which the client no longer has all pages mapped.
//!
//! The kernel's MMU notifier stops the process's queues (`amdgpu_amdkfd_evict_userptr`). A worker asks for the pages of the buffer
//! again. If one is not mapped any more, get_user_pages answers EFAULT: the worker clears the page table entries of the whole
//! buffer and lets the queues go on, and a GPU that accesses the buffer faults (`update_invalid_user_pages`,
//! `validate_invalid_user_pages`).
//!
//! Here the buffer is taken out of the GPUs' page tables under the running queues, which has the same outcome: an access before
//! that found the pages, one after it faults. The kernel asks once more when any of the pages changes again, and would take what
//! the client has mapped in their place; here the buffer stays without pages.

use nix::errno::Errno;

use super::bo::Domain;
use super::process::{KfdProcess, split_handle};

impl KfdProcess {
    /// Takes a buffer from all GPUs. It keeps its handle and its addresses.
    ///
    /// # Errors
    /// `EINVAL` when the handle is none of a USERPTR buffer.
    pub fn pages_gone(&self, handle: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (gpu_id, index) = split_handle(handle);
        let bo = state.bo_mut(self.gpu_by_id(gpu_id)?, index);
        let bo = bo.filter(|bo| bo.backing.domain == Domain::Userptr).ok_or(Errno::EINVAL)?;
        if std::mem::replace(&mut bo.lost, true) {
            return Ok(());
        }
        for gpu in (0..self.gpus.len()).filter(|gpu| bo.is_mapped_on(*gpu)) {
            for copy in 0..bo.copies() {
                self.hardware.unmap(gpu, bo.va + copy * bo.backing.bytes, bo.backing.bytes);
            }
        }
        Ok(())
    }
}
