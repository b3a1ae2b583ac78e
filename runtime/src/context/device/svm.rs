// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory: attributes of ranges of the process's own memory.

use std::ops::Range;

use kfd::{Errno, IoctlError, ioctl as of_kfd};

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::registry::arena::PAGE;
use crate::context::registry::state::AgentIndex;
use crate::context::registry::svm::{SvmAttribute, SvmPlace, SvmRanges, SvmState, SvmUse};

/// What is set for all of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SvmAnswer {
    /// Where its memory is best; undefined if parts differ.
    pub preferred: SvmPlace,
    /// Where its memory went last; undefined if parts differ.
    pub prefetch: SvmPlace,
    /// Flags that are set everywhere.
    pub set: u32,
    /// Flags that are set nowhere.
    pub clear: u32,
    /// The smallest granularity.
    pub granularity: u32,
    /// How each agent may use it.
    pub uses: Vec<SvmUse>,
}

const fn access(access: SvmUse) -> of_kfd::SvmUse {
    match access {
        SvmUse::No => of_kfd::SvmUse::No,
        SvmUse::InPlace => of_kfd::SvmUse::InPlace,
        SvmUse::Migrating => of_kfd::SvmUse::Migrating,
    }
}

const fn access_of(access: of_kfd::SvmUse) -> SvmUse {
    match access {
        of_kfd::SvmUse::No => SvmUse::No,
        of_kfd::SvmUse::InPlace => SvmUse::InPlace,
        of_kfd::SvmUse::Migrating => SvmUse::Migrating,
    }
}

impl Device {
    fn place(&self, place: SvmPlace) -> Result<of_kfd::SvmPlace, DeviceError> {
        Ok(match place {
            SvmPlace::Undefined => of_kfd::SvmPlace::Undefined,
            SvmPlace::Host => of_kfd::SvmPlace::Host,
            SvmPlace::Agent(agent) => of_kfd::SvmPlace::Gpu(self.node(agent)?.gpu),
        })
    }

    fn place_of(&self, place: of_kfd::SvmPlace) -> SvmPlace {
        match place {
            of_kfd::SvmPlace::Undefined => SvmPlace::Undefined,
            of_kfd::SvmPlace::Host => SvmPlace::Host,
            of_kfd::SvmPlace::Gpu(gpu) => self.agent_of(gpu).map_or(SvmPlace::Undefined, SvmPlace::Agent),
        }
    }

    fn attribute(&self, attribute: SvmAttribute) -> Result<of_kfd::SvmAttribute, DeviceError> {
        Ok(match attribute {
            SvmAttribute::Preferred(place) => of_kfd::SvmAttribute::Preferred(self.place(place)?),
            SvmAttribute::Prefetch(place) => of_kfd::SvmAttribute::Prefetch(self.place(place)?),
            SvmAttribute::Access(agent, how) => {
                of_kfd::SvmAttribute::Access(self.node(agent)?.gpu, access(how))
            }
            SvmAttribute::SetFlags(flags) => of_kfd::SvmAttribute::SetFlags(flags),
            SvmAttribute::ClearFlags(flags) => of_kfd::SvmAttribute::ClearFlags(flags),
            SvmAttribute::Granularity(pages) => of_kfd::SvmAttribute::Granularity(pages),
        })
    }

    /// Sets attributes of whole pages.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn set_svm(&self, addresses: &Range<u64>, attributes: &[SvmAttribute]) -> Result<(), DeviceError> {
        let attributes = attributes.iter().map(|attribute| self.attribute(*attribute));
        let attributes = attributes.collect::<Result<Vec<_>, _>>()?;
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
            uses: answer.uses.into_iter().map(access_of).collect(),
        })
    }

    /// Takes agents' access to all ranges away, and has the memory come to the host; what was set stays noted. What the program
    /// has unmapped since, which the driver has forgotten, is forgotten.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; [`Device::make_svm`] gives back what was taken.
    pub fn end_svm(&self, ranges: &mut SvmRanges) -> Result<(), DeviceError> {
        let all: Vec<(Range<u64>, SvmState)> =
            ranges.iter().map(|(addresses, state)| (addresses, state.clone())).collect();
        for (addresses, state) in all {
            let users: Vec<(AgentIndex, SvmUse)> = state.users().collect();
            if users.is_empty() {
                continue;
            }
            let mut end: Vec<_> =
                users.iter().map(|(agent, _)| SvmAttribute::Access(*agent, SvmUse::No)).collect();
            end.push(SvmAttribute::Prefetch(SvmPlace::Host));
            let mut left = vec![addresses];
            while let Some(part) = left.pop() {
                match self.ask(&part) {
                    Ok(answer)
                        if users.iter().all(|(agent, how)| answer.uses.get(agent.at()) == Some(how)) =>
                    {
                        self.set_svm(&part, &end)?;
                    }
                    Err(error) if error.errno != Errno::EFAULT => {
                        return Err(ioctl("a look at shared memory")(error));
                    }
                    // Some of it, or all, is not what it was.
                    _ if part.end - part.start <= PAGE => ranges.forget(&part),
                    _ => {
                        let middle = part.start + (part.end - part.start) / PAGE / 2 * PAGE;
                        left.extend([part.start..middle, middle..part.end]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets for all ranges what was set for them.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`].
    pub fn make_svm(&self, ranges: &SvmRanges) -> Result<(), DeviceError> {
        ranges.iter().try_for_each(|(addresses, state)| self.set_svm(&addresses, &state.attributes()))
    }
}
