// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: are there GPUs here that can take the places of those the process had? Judged before anything is changed,
//! every difference named. `docs/admission.md` has the rules.
//!
//! INVARIANT: until the judgement is passed nothing of the process is touched, and after a refusal it holds nothing of
//! the device.
//!
//! ```text
//! topology here ─ Candidate::all ─┐
//! agents of the process ──────────┼─ judge ─┬─ an agent's GPU each ─ AgentInfo::place
//! switches and map ─ Admission ───┘         └─ Refusal: every difference
//! ```

mod checks;
mod difference;
mod elsewhere;
mod identity;
mod judge;
mod offer;
mod peers;
mod place;
mod refusal;
mod rules;
mod search;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kfd::transport::{name_of, open_instance};
use kfd::{Kfd, Topology, Transport};
use stasis_protocol::Limit;

pub use self::checks::{Checks, Switch, SwitchError};
pub use self::difference::{Difference, Subject, Value};
pub use self::elsewhere::ElsewhereError;
use self::elsewhere::parse;
pub use self::identity::{AgentIdentity, CpuLink, LinkKind, Links};
use self::identity::{Candidate, Interface};
use self::judge::{Case, judge, lost_paths};
pub use self::offer::{OfferError, TermsOffer};
pub use self::peers::PeerBuffers;
use self::peers::peer_mappings;
pub use self::place::{Place, PlaceError};
use self::refusal::Refusal;
pub use self::rules::{Relation, Rule, rules};
pub use self::terms::{Admission, Lazy};
use super::calls::{call_limit, disconnect};
use super::error::{CheckpointError, device, system};
use super::snapshot::Snapshot;
use crate::context::Context;
use crate::context::agent::placement::Placement;
use crate::context::device::Device;
use crate::context::error::{DeviceError, OpenError};

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
/// before; else it takes the switches of its environment. When contents are to come ([`Admission::lazy`]).
///
/// # Errors
/// [`CheckpointError::Agents`], [`CheckpointError::Place`], [`CheckpointError::Switch`], [`CheckpointError::Capture`],
/// [`CheckpointError::Elsewhere`], [`CheckpointError::Open`], [`CheckpointError::Stopped`].
pub(super) fn admit(
    context: &Arc<Context>,
    snapshot: &mut Snapshot,
    given: Option<&Admission>,
    same_process: bool,
    limit: &Limit,
) -> Result<Lazy, CheckpointError> {
    // A limit that is over says nothing of the device.
    limit.check().map_err(|stopped| CheckpointError::Stopped { verb: "restore", stopped })?;
    if !same_process {
        let asked = match given {
            Some(terms) => Some(terms.clone()),
            None => {
                offer::ask_for_terms(&snapshot.secret).map_err(system("ask for the terms of the restore"))?
            }
        };
        // A copy that was refused tries again by itself, and must not take what its controller did not want.
        snapshot.terms = asked.or(snapshot.terms.take());
    }
    let terms = given.or(snapshot.terms.as_ref());
    let lazy = terms.map_or(Lazy::Off, |terms| terms.lazy);
    let other = call_limit(limit).hold(|| other_device(&*snapshot.transport, terms, same_process))?;
    let transport = other.unwrap_or_else(|| Arc::clone(&snapshot.transport));
    // The first words with the device, which change nothing: from one that does not answer, nothing is wanted.
    let admitted =
        call_limit(limit).hold(|| find_placements(context, snapshot, &transport, terms, same_process, limit));
    if admitted.is_err()
        && let Err(error) = disconnect(&*transport)
    {
        tracing::warn!(target: "checkpoint", %error, "the transport stays connected");
    }
    for (agent, placement) in context.agents.iter().zip(admitted?) {
        agent.place(placement);
    }
    snapshot.transport = transport;
    Ok(lazy)
}

fn find_placements(
    context: &Context,
    snapshot: &Snapshot,
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
    let in_place = same_process || snapshot.captured.is_some();
    let mapped = peer_mappings(&context.registry.lock());
    let case = Case { agents: &snapshot.agents, gpus: &gpus, interface, in_place, mapped: &mapped };
    let chosen = match terms {
        Some(terms) => judge(&case, terms, limit)?,
        // The environment is asked when something depends on it: a process must not fail to go on because of it.
        None => match judge(&case, &Admission::default(), limit) {
            Err(Refusal::Differences(_)) => judge(&case, &Admission::from_env()?, limit)?,
            outcome => outcome?,
        },
    };
    if let Some(captured) = &snapshot.captured {
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

/// The device that `terms` name, opened, unless it is the one that the process has.
///
/// # Errors
/// [`CheckpointError::Elsewhere`], and [`CheckpointError::Open`] for a device that is not there.
fn other_device(
    had: &dyn Transport,
    terms: Option<&Admission>,
    same_process: bool,
) -> Result<Option<Arc<dyn Transport>>, CheckpointError> {
    let Some((text, terms)) = terms.and_then(|terms| Some((terms.device.as_ref()?, terms))) else {
        return Ok(None);
    };
    let spec = parse(text)?;
    let open = |error| CheckpointError::Open(OpenError::Transport(error));
    let wanted = name_of(&spec).map_err(open)?;
    match wanted == had.name() {
        true if same_process || terms.instance.is_none() => Ok(None),
        false if same_process => Err(ElsewhereError::Known { had: had.name().to_owned(), wanted }.into()),
        _ => open_instance(&spec, terms.instance.as_deref()).map(Some).map_err(open),
    }
}
