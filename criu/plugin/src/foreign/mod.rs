// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs under `stasis run`, which know nothing of checkpoints (`docs/foreign.md`). Their device is in softgpud: nobody of the
//! tree is asked, and states and memory go into files beside CRIU's images.
//!
//! ```text
//! criu dump                                        executors (outside of the tree)
//!   PAUSE, first    finds the run's softgpud,      pause; of a container, they move out of the tree first
//!                   orders a pause of each
//!   CHECKPOINT,     all tasks are frozen:          give states and memory that no task has
//!      first        foreign.json, device-PID.state
//!   criu's end      the connections end            resume, or end with their clients
//! criu restore
//!   init            files complete? run free?      softgpud starts
//!   RESUME_LATE,    memory and states              new executors take them and go on
//!      first
//! ```
//!
//! INVARIANT: from the pause to the end of this process the connections to the executors stay open. Whatever ends this process, they
//! end with it, and the devices resume.

mod freeze;
mod restore;
mod run;

pub(crate) use self::freeze::{FreezeError, forget, has_client, is_holding, pause, save};
pub(crate) use self::restore::{RestoreError, prepare, restore};

/// Whether any visible process belongs to a run.
pub(crate) fn is_any() -> bool {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.any(|pid| stasis_criu_foreign::Run::of(pid).is_some())
}
