// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: are there GPUs here that can take the places of those the process had? Judged before anything is changed,
//! every difference named. `docs/admission.md` has the rules.
//!
//! INVARIANT: until the judgement is passed nothing of the process is touched, and after a refusal it holds nothing of
//! the device.
//!
//! ```text
//! topology here ─ Candidate::all ─┐
//! agents of the process ──────────┼─ judge ─┬─ an agent's GPU each ─ AgentInfo::sit
//! switches and map ─ Admission ───┘         └─ Refusal: every difference
//! ```

mod checks;
mod difference;
mod elsewhere;
mod identity;
mod judge;
mod peers;
mod place;
mod rules;
mod search;
mod standing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kfd::{Kfd, Topology, Transport};
use serde::{Deserialize, Serialize};
use stasis_protocol::{Limit, Stopped};

pub use self::checks::{Checks, Switch, SwitchError};
pub use self::difference::{Difference, Subject, Value};
pub use self::elsewhere::ElsewhereError;
use self::elsewhere::other_device;
pub use self::identity::{AgentIdentity, CpuLink, LinkKind, Links};
use self::identity::{Candidate, Interface};
use self::judge::{Case, judge, lost_paths};
pub use self::peers::PeerBuffers;
use self::peers::peer_mappings;
pub use self::place::{Place, PlaceError};
pub use self::rules::{Relation, Rule, rules};
pub use self::standing::{OfferError, Standing, TermsSecret};
use super::down::disconnect;
use super::parked::Parked;
use super::{CheckpointError, call_limit, device, system};
use crate::context::Context;
use crate::context::agent::placement::Placement;
use crate::context::device::Device;
use crate::context::error::{DeviceError, OpenError};

/// On what terms a process is restored: which differences are borne, on which device, and which GPU an agent is to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admission {
    /// The checks that are made.
    pub checks: Checks,
    /// Where agents are to go; the others find their places by themselves.
    pub places: Vec<Place>,
    /// A path between two agents may be missing, or be less than it was: copies go through the host's memory instead.
    pub allow_staged: bool,
    /// The device that a restored copy takes instead of the one it had: a [`kfd::DeviceSpec`] as text, which is read
    /// where the copy is. A process that lives on has its device for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The instance of softgpud for `device`, instead of the copy's own (`STASIS_SOFTGPU_INSTANCE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

impl Admission {
    /// As the switches in the environment of this process say, with no agent placed, on the device that there was.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn from_env() -> Result<Self, SwitchError> {
        Ok(Self { checks: Checks::from_env()?, ..Self::default() })
    }
}

/// Why agents were not admitted.
#[derive(Debug)]
enum Refusal {
    /// No assignment keeps to the rules.
    Differences(Vec<Difference>),
    /// The map is no good.
    Place(PlaceError),
    /// The search was stopped.
    Stopped(Stopped),
}

impl From<PlaceError> for Refusal {
    fn from(error: PlaceError) -> Self {
        Self::Place(error)
    }
}

impl From<Stopped> for Refusal {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<Refusal> for CheckpointError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Differences(differences) => Self::Agents { differences },
            Refusal::Place(error) => Self::Place(error),
            Refusal::Stopped(stopped) => Self::Stopped { verb: "restore", stopped },
        }
    }
}

/// The agents of a process as they are now.
pub(super) fn identities(context: &Context, on: Option<&Device>) -> Vec<AgentIdentity> {
    let candidates: Vec<Candidate> =
        context.agents.iter().filter_map(|agent| Candidate::of(&agent.placement())).collect();
    let candidates: Vec<&Candidate> = candidates.iter().collect();
    // `Device::open` takes no other major.
    let interface = Interface { major: 1, minor: on.map_or(0, Device::interface_minor) };
    AgentIdentity::of(&candidates, interface)
}

/// Finds a GPU for each agent of the process, on its device or the one that the terms name. On success the agents know
/// their places, and the transport is that device's; nothing else is changed.
///
/// Without terms of its own (`given`), a restored copy takes those that its controller holds ready for it, or has had
/// before; else it takes the switches of its environment.
///
/// # Errors
/// [`CheckpointError::Agents`], [`CheckpointError::Place`], [`CheckpointError::Switch`], [`CheckpointError::Capture`],
/// [`CheckpointError::Elsewhere`], [`CheckpointError::Open`], [`CheckpointError::Stopped`].
pub(super) fn admit(
    context: &Arc<Context>,
    parked: &mut Parked,
    given: Option<&Admission>,
    same_process: bool,
    limit: &Limit,
) -> Result<(), CheckpointError> {
    // A limit that is over says nothing of the device.
    limit.check().map_err(|stopped| CheckpointError::Stopped { verb: "restore", stopped })?;
    if !same_process {
        let asked = match given {
            Some(terms) => Some(terms.clone()),
            None => standing::ask(&parked.secret).map_err(system("ask for the terms of the restore"))?,
        };
        // A copy that was refused tries again by itself, and must not take what its controller did not want.
        parked.terms = asked.or(parked.terms.take());
    }
    let terms = given.or(parked.terms.as_ref());
    let other = call_limit(limit).hold(|| other_device(&*parked.transport, terms, same_process))?;
    let transport = other.unwrap_or_else(|| Arc::clone(&parked.transport));
    // The first words with the device, which change nothing: from one that does not answer, nothing is wanted.
    let admitted =
        call_limit(limit).hold(|| find_placements(context, parked, &transport, terms, same_process, limit));
    if admitted.is_err()
        && let Err(error) = disconnect(&*transport)
    {
        tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
    }
    for (agent, placement) in context.agents.iter().zip(admitted?) {
        agent.place(placement);
    }
    parked.transport = transport;
    Ok(())
}

fn find_placements(
    context: &Context,
    parked: &Parked,
    transport: &Arc<dyn Transport>,
    terms: Option<&Admission>,
    same_process: bool,
    limit: &Limit,
) -> Result<Vec<Placement>, CheckpointError> {
    let interface = interface(transport)?;
    let topology = Topology::read(transport.sysfs()).map_err(|source| {
        CheckpointError::Open(OpenError::Topology { transport: transport.name().to_owned(), source })
    })?;
    let gpus = Candidate::all(&topology);
    let in_place = same_process || parked.captured.is_some();
    let mapped = peer_mappings(&context.registry.lock());
    let case = Case { agents: &parked.agents, gpus: &gpus, interface, in_place, mapped: &mapped };
    let chosen = match terms {
        Some(terms) => judge(&case, terms, limit)?,
        // The environment is asked when something depends on it: a process must not fail to go on because of it.
        None => match judge(&case, &Admission::default(), limit) {
            Err(Refusal::Differences(_)) => judge(&case, &Admission::from_env()?, limit)?,
            outcome => outcome?,
        },
    };
    if let Some(captured) = &parked.captured {
        captured.check_gpus(&gpus.iter().map(|gpu| gpu.placement.gpu).collect::<Vec<_>>())?;
    }
    for path in lost_paths(&case, &chosen) {
        tracing::warn!(target: "checkpoint", %path, "a path is lost, copies go through the host's memory");
    }
    let mut gpus: Vec<_> = gpus.into_iter().map(|gpu| Some(gpu.placement)).collect();
    Ok(chosen.into_iter().filter_map(|gpu| gpus.get_mut(gpu)?.take()).collect())
}

/// Asks the driver that is here for its version.
fn interface(transport: &Arc<dyn Transport>) -> Result<Interface, CheckpointError> {
    let opened = Kfd::open(&**transport).map_err(DeviceError::Open);
    let version =
        opened.and_then(|kfd| kfd.get_version().map_err(crate::context::device::ioctl("its version")));
    let version = version.map_err(device("to say its version"))?;
    Ok(Interface { major: version.major, minor: version.minor })
}
