// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory: attributes of ranges of the process's own memory.

use std::ops::Range;

use kfd::{Errno, GpuId, IoctlError};

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::registry::state::AgentIndex;
use crate::context::registry::svm::{SvmAnswer, SvmAttribute, SvmPlace, SvmRanges, SvmState, SvmUse};

impl Device {
    fn place_of(&self, place: kfd::ioctl::SvmPlace<GpuId>) -> SvmPlace {
        place.try_map(|gpu| self.agent_of(gpu).ok_or(())).unwrap_or(SvmPlace::Undefined)
    }

    /// Sets attributes of whole pages.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn set_svm(&self, addresses: &Range<u64>, attributes: &[SvmAttribute]) -> Result<(), DeviceError> {
        let attributes =
            attributes.iter().map(|attribute| attribute.try_map(|agent| Ok(self.node(agent)?.gpu)));
        let attributes = attributes.collect::<Result<Vec<_>, DeviceError>>()?;
        let bytes = addresses.end.saturating_sub(addresses.start);
        self.kfd.svm_set(addresses.start, bytes, &attributes).map_err(ioctl("attributes of shared memory"))
    }

    /// What is set for all of some pages.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn svm(&self, addresses: &Range<u64>) -> Result<SvmAnswer, DeviceError> {
        self.ask(addresses).map_err(ioctl("a look at shared memory"))
    }

    fn ask(&self, addresses: &Range<u64>) -> Result<SvmAnswer, IoctlError> {
        let gpus: Vec<_> = self.nodes.iter().map(|node| node.gpu).collect();
        let bytes = addresses.end.saturating_sub(addresses.start);
        let answer = self.kfd.svm_get(addresses.start, bytes, &gpus)?;
        Ok(SvmAnswer {
            preferred: self.place_of(answer.preferred),
            prefetch: self.place_of(answer.prefetch),
            set: answer.set,
            clear: answer.clear,
            granularity: answer.granularity,
            uses: answer.uses,
        })
    }

    /// Takes agents' access to all ranges away, and has the memory come to the host; what was set stays noted. What the program
    /// has unmapped since is forgotten, as the driver has forgotten it.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; [`Device::make_svm`] gives back what was taken. [`DeviceError::Maps`].
    pub fn end_svm(&self, ranges: &mut SvmRanges) -> Result<(), DeviceError> {
        // Those of a restore that failed before it had made them are still to be made.
        if !ranges.is_made() {
            return Ok(());
        }
        forget_unmapped(ranges)?;
        for (addresses, state) in all(ranges) {
            let users: Vec<(AgentIndex, SvmUse)> = state.users().collect();
            if users.is_empty() {
                continue;
            }
            let mut end: Vec<_> =
                users.iter().map(|(agent, _)| SvmAttribute::Access(*agent, SvmUse::No)).collect();
            end.push(SvmAttribute::Prefetch(SvmPlace::Host));
            match self.ask(&addresses) {
                Ok(answer) if users.iter().all(|(agent, how)| answer.uses.get(agent.at()) == Some(how)) => {
                    self.set_svm(&addresses, &end)?;
                }
                // Other memory is there now.
                Ok(_) => ranges.forget(&addresses),
                Err(error) if error.errno == Errno::EFAULT => ranges.forget(&addresses),
                Err(error) => return Err(ioctl("a look at shared memory")(error)),
            }
        }
        ranges.set_made(false);
        Ok(())
    }

    /// Sets for all ranges what was set for them. What is not there any more is forgotten.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`], [`DeviceError::Maps`].
    pub fn make_svm(&self, ranges: &mut SvmRanges) -> Result<(), DeviceError> {
        forget_unmapped(ranges)?;
        // From here on some may be in the driver.
        ranges.set_made(true);
        for (addresses, state) in all(ranges) {
            match self.set_svm(&addresses, &state.attributes()) {
                Err(DeviceError::Ioctl { source, .. }) if source.errno == Errno::EFAULT => {
                    tracing::warn!(
                        target: "svm", error = %source, address = addresses.start, bytes = addresses.end - addresses.start,
                        "memory is not shared with agents any more: other memory is there"
                    );
                    ranges.forget(&addresses);
                }
                made => made?,
            }
        }
        Ok(())
    }
}

fn all(ranges: &SvmRanges) -> Vec<(Range<u64>, SvmState)> {
    ranges.iter().map(|(addresses, state)| (addresses, state.clone())).collect()
}

/// Forgets ranges of addresses at which the process has no memory.
///
/// # Errors
/// [`DeviceError::Maps`].
pub fn forget_unmapped(ranges: &mut SvmRanges) -> Result<(), DeviceError> {
    if ranges.iter().next().is_none() {
        return Ok(());
    }
    let maps = kfd::maps::in_range(&(0..usize::MAX)).map_err(|errno| DeviceError::Maps { errno })?;
    let mapped: Vec<Range<u64>> =
        maps.into_iter().map(|vma| vma.range.start as u64..vma.range.end as u64).collect();
    ranges.keep_only(&mapped);
    Ok(())
}
