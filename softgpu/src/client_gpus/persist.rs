// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the GPUs apart from that of their queues, which is in the driver's descriptors while they are off the
//! hardware: the pages that clients map, and the clock.

use std::collections::HashSet;
use std::sync::Arc;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::doorbell::{Doorbells, PARKED_BYTES, SLICE_BYTES};
use super::gpu::Gpu;
use super::hdp::{Hdp, PAGE as HDP_BYTES};
use super::memory::HostMemory;
use super::shared::SharedPages;
use super::{Chip, ClientGpus};
use crate::hardware::Hardware;
use crate::journal::Journal;
use crate::persist::{Memories, Memory, Part, PersistError};

/// The GPUs of a process, as [`ClientGpus::save`] made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpusState {
    pub(super) gpus: Vec<GpuState>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuState {
    /// The clock counter.
    pub(super) ticks: u64,
    /// The target's name.
    pub(super) chip: String,
    xccs: u32,
    /// Names of the doorbell slice, the page of the parked word, and the HDP's page of registers if there is one.
    pub(super) doorbells: String,
    pub(super) parked: String,
    pub(super) hdp: Option<String>,
    /// Of a client that rings by stores alone, how many mappings of the slice it has; else none.
    pub(super) storing_mappings: Option<u32>,
}

impl GpusState {
    /// Name and size of each memory that restore needs.
    pub fn memories(&self) -> impl Iterator<Item = (&str, u64)> {
        self.gpus.iter().flat_map(GpuState::memories)
    }
}

impl GpuState {
    fn memories(&self) -> impl Iterator<Item = (&str, u64)> {
        // CAST: two pages and one.
        let pages = [(&self.doorbells, SLICE_BYTES as u64), (&self.parked, PARKED_BYTES as u64)];
        let hdp = self.hdp.as_ref().map(|name| (name, HDP_BYTES as u64));
        pages.into_iter().chain(hdp).map(|(name, bytes)| (name.as_str(), bytes))
    }
}

/// The memory of this name, mapped.
fn pages(memories: &Memories, name: &str, bytes: usize) -> Result<SharedPages, PersistError> {
    // CAST: a few pages.
    let fd = memories.find(name, bytes as u64)?;
    Ok(SharedPages::adopt(fd, bytes)?)
}

impl ClientGpus {
    /// The GPUs while none of their queues is on the hardware, and the memory that the state names.
    ///
    /// What the host stored and the HDP still holds back arrives, here and when the driver pauses: the memory that a
    /// checkpoint reads is behind the aperture, where all stores have arrived. A client that misses a flush is not caught at
    /// it after a checkpoint.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn save(&self) -> Result<(GpusState, Vec<Memory>), Errno> {
        self.settle_host_writes();
        let mut memories = Memories::new();
        let mut save = |gpu: &Gpu| -> Result<GpuState, Errno> {
            let [doorbells, parked] = gpu.doorbells.pages().map(|pages| memories.add(pages.fd()));
            Ok(GpuState {
                ticks: gpu.counter.ticks(),
                chip: gpu.chip.target.name.to_owned(),
                xccs: gpu.chip.xccs,
                doorbells: doorbells?,
                parked: parked?,
                hdp: gpu.hdp.page().map(|page| memories.add(page.fd())).transpose()?,
                storing_mappings: gpu.doorbells.storing_mappings(),
            })
        };
        let gpus = self.gpus.iter().map(|runlist| save(runlist.gpu())).collect::<Result<_, _>>()?;
        Ok((GpusState { gpus }, memories.into_vec()))
    }

    /// GPUs of these chips with the pages that the state names, and without other memory or queues. The clock
    /// counters go on from the saved ones. A client that rings by stores alone is watched again once it has said where its
    /// mappings are ([`Hardware::expect_stores`]); until then queues take naps.
    ///
    /// # Errors
    /// [`PersistError`] when the state is of other chips, or a page is missing.
    pub fn restore(
        chips: &[Chip],
        journal: Arc<Journal>,
        state: &GpusState,
        memories: &Memories,
    ) -> Result<Self, PersistError> {
        if chips.len() != state.gpus.len() {
            let number = state.gpus.len() as u64;
            return Err(PersistError::Damaged { part: Part::Gpu, number });
        }
        let mut names = HashSet::new();
        if let Some((_, bytes)) = state.memories().find(|(name, _)| !names.insert(*name)) {
            return Err(PersistError::Damaged { part: Part::Memory, number: bytes });
        }
        let mut parts = Vec::with_capacity(chips.len());
        for (gpu, (chip, saved)) in chips.iter().zip(&state.gpus).enumerate() {
            if (chip.target.name, chip.xccs) != (saved.chip.as_str(), saved.xccs) {
                return Err(PersistError::Chip {
                    gpu,
                    saved: saved.chip.clone(),
                    found: chip.target.name,
                    saved_xccs: saved.xccs,
                    found_xccs: chip.xccs,
                });
            }
            let slots = pages(memories, &saved.doorbells, SLICE_BYTES)?;
            let parked = pages(memories, &saved.parked, PARKED_BYTES)?;
            let hdp = saved.hdp.as_ref().map(|name| pages(memories, name, HDP_BYTES)).transpose()?;
            parts.push((Doorbells::restored(slots, parked, saved.storing_mappings), Hdp::restored(hdp)));
        }
        let gpus = Self::of_parts(chips, HostMemory::default(), journal, parts);
        for (runlist, saved) in gpus.gpus.iter().zip(&state.gpus) {
            runlist.gpu().counter.go_on_from(saved.ticks);
        }
        Ok(gpus)
    }
}
