// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked of a saved process before it is restored, and of a restored one.

use std::sync::atomic::Ordering;

use super::state::ProcessState;
use crate::driver::KfdProcess;
use crate::driver::kernel::KernelModel;

impl ProcessState {
    /// The kernel whose driver the process had.
    pub fn kernel(&self) -> KernelModel {
        self.kernel
    }

    /// Name of the token and number of each open file.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().filter_map(|file| {
            let token = self.memories.get(usize::try_from(file.token).ok()?)?;
            Some((token.name.as_str(), file.id))
        })
    }
}

impl KfdProcess {
    /// Tells GET_CLOCK_COUNTERS how far the client's clocks are ahead of this process's, nanoseconds: CRIU restores a client into a
    /// time namespace where its clocks go on from the checkpoint.
    pub fn set_clock_offset(&self, nanoseconds: i64) {
        self.clock_offset.store(nanoseconds, Ordering::Relaxed);
    }
}
