// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of a USERPTR buffer that the client no longer has mapped.
//!
//! The kernel's MMU notifier stops the process's queues (`amdgpu_amdkfd_evict_userptr`). A worker asks for the pages again and
//! lets the queues go on. Where nothing is mapped any more get_user_pages answers EFAULT; the worker goes on without these pages,
//! and a GPU that accesses them faults (`update_invalid_user_pages`).
//!
//! Here the pages are taken out of the GPUs' page tables under the running queues, which has the same outcome: an access
//! before that found the pages, one after it faults. Pages that the client maps later at the same addresses are not the
//! buffer's; the kernel would find those, when it next asks.

use nix::errno::Errno;

use super::PAGE;
use super::bo::Domain;
use super::process::{KfdProcess, split_handle};

impl KfdProcess {
    /// Takes pages of a buffer from all GPUs. The buffer keeps its handle, its addresses, and its other pages.
    ///
    /// # Errors
    /// `EINVAL` when the handle is none of a USERPTR buffer, or for a range that is not of whole pages.
    pub fn pages_gone(&self, handle: u64, offset: u64, bytes: u64) -> Result<(), Errno> {
        if !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let state = self.state.lock();
        let (gpu_id, index) = split_handle(handle);
        let bo = state.bo(self.gpu_by_id(gpu_id)?, index);
        let bo = bo.filter(|bo| bo.backing.domain == Domain::Userptr).ok_or(Errno::EINVAL)?;
        for part in bo.backing.lose(offset, bytes) {
            for gpu in (0..self.gpus.len()).filter(|gpu| bo.is_mapped_on(*gpu)) {
                for copy in 0..bo.copies() {
                    let va = bo.va + copy * bo.backing.bytes + part.start;
                    self.hardware.unmap(gpu, va, part.end - part.start);
                }
            }
        }
        Ok(())
    }
}
