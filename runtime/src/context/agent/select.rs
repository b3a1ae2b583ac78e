// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which GPUs become agents, and which do not and why.
//!
//! INVARIANT: every GPU of the topology is either an agent or left out with a reason. A list is kept to the letter; only
//! where nobody said which are wanted are those left out that cannot be used.

use std::fmt;
use std::sync::Arc;

use kfd::topology::{Node, Topology};
use queues::words::count;

use crate::context::agent::info::AgentInfo;
use crate::context::agent::placement::Placement;
use crate::context::agent::spec;
use crate::context::error::{OpenError, explain};
use crate::context::registry::state::AgentIndex;

/// A GPU that is none of the agents.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// Its position among all GPUs: its index in an agent list.
    pub ordinal: usize,
    /// `GPU-` and its unique id.
    pub uuid: String,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why a GPU is none of the agents.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LeftOutReason {
    /// A list (`Options::agents` or `ROCR_VISIBLE_DEVICES`) does not name it.
    NotListed {
        /// The list.
        list: String,
    },
    /// This build has no copy kernels for it. Naming it in a list opens it nevertheless.
    NoKernels {
        /// Its target.
        target: &'static str,
    },
    /// It cannot be used, whatever the list says.
    Unusable(Arc<OpenError>),
}

impl fmt::Display for LeftOutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotListed { list } => write!(f, "not in the agent list {list:?}"),
            Self::NoKernels { target } => {
                write!(
                    f,
                    "no copy kernels for {target} are built in; name it in the agent list to use it without"
                )
            }
            Self::Unusable(error) => f.write_str(&explain(error.as_ref())),
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.ordinal, self.uuid, self.reason)
    }
}

/// What became of a topology's GPUs.
#[derive(Debug, Default)]
pub struct Selection {
    /// In the order of the list, or of the topology.
    pub agents: Vec<Arc<AgentInfo>>,
    /// In the order of the topology.
    pub left_out: Vec<LeftOut>,
}

/// The agents that `list` selects from a topology; without a list all that can be used.
///
/// # Errors
/// [`OpenError::Agents`], [`OpenError::NoAgents`], or what a listed GPU lacks; without a list, what the first one lacks
/// if none can be used.
pub fn select(topology: &Topology, list: Option<&str>, transport: &str) -> Result<Selection, OpenError> {
    let gpus: Vec<&Node> = topology.gpus().collect();
    if gpus.is_empty() {
        return Err(OpenError::NoAgents { transport: transport.to_owned() });
    }
    let placements = Placement::all(topology);
    match list {
        Some(list) => listed(list, &gpus, &placements),
        None => usable(&gpus, &placements, |target| device_lib::object_for(target).is_ok()),
    }
}

fn listed(list: &str, gpus: &[&Node], placements: &[Placement]) -> Result<Selection, OpenError> {
    let uuids: Vec<String> = gpus.iter().map(|node| spec::uuid(node.properties.unique_id)).collect();
    let chosen = spec::select(list, &uuids)?;
    let agents = chosen.iter().zip(0..).map(|(&at, index)| {
        AgentInfo::new(AgentIndex(index), gpus[at].clone(), placements[at].clone()).map(Arc::new)
    });
    let agents = agents.collect::<Result<_, _>>()?;
    let others = uuids.into_iter().enumerate().filter(|(at, _)| !chosen.contains(at));
    let left_out = others.map(|(ordinal, uuid)| {
        let reason = LeftOutReason::NotListed { list: list.to_owned() };
        LeftOut { ordinal, uuid, reason }
    });
    Ok(Selection { agents, left_out: left_out.collect() })
}

fn usable(
    gpus: &[&Node],
    placements: &[Placement],
    has_kernels: impl Fn(&str) -> bool,
) -> Result<Selection, OpenError> {
    let first = usable_where(gpus, placements, has_kernels);
    // Copy kernels are not all there is to an agent: where no other is here, one without them is used.
    let selection = if first.agents.is_empty() { usable_where(gpus, placements, |_| true) } else { first };
    if !selection.agents.is_empty() {
        return Ok(selection);
    }
    let error = selection.left_out.into_iter().find_map(|left| match left.reason {
        LeftOutReason::Unusable(error) => Arc::into_inner(error),
        _ => None,
    });
    Err(error.unwrap_or(OpenError::NoAgents { transport: String::new() }))
}

fn usable_where(gpus: &[&Node], placements: &[Placement], is_wanted: impl Fn(&str) -> bool) -> Selection {
    let mut selection = Selection::default();
    for (ordinal, (node, placement)) in gpus.iter().zip(placements).enumerate() {
        // A topology has far fewer nodes than that.
        let index = AgentIndex(count(selection.agents.len()));
        let reason = match AgentInfo::new(index, (*node).clone(), placement.clone()) {
            Ok(info) if is_wanted(info.target().name) => {
                selection.agents.push(Arc::new(info));
                continue;
            }
            Ok(info) => LeftOutReason::NoKernels { target: info.target().name },
            Err(error) => LeftOutReason::Unusable(Arc::new(error)),
        };
        selection.left_out.push(LeftOut { ordinal, uuid: spec::uuid(node.properties.unique_id), reason });
    }
    selection
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestSysfs;

    fn read(change: impl FnOnce(&TestSysfs)) -> Topology {
        let sysfs = TestSysfs::new(3);
        change(&sysfs);
        Topology::read(&sysfs).unwrap()
    }

    fn version(sysfs: &TestSysfs, node: u32, version: u64) {
        sysfs.change(&format!("nodes/{node}/properties"), "gfx_target_version", version);
    }

    #[test]
    fn default_leaves_out_what_cannot_be_used_and_says_why() {
        let topology = read(|sysfs| {
            version(sysfs, 1, 999_999);
            version(sysfs, 2, 110_001);
        });
        let (gpus, placements) = (topology.gpus().collect::<Vec<_>>(), Placement::all(&topology));
        let selection = usable(&gpus, &placements, |target| target != "gfx1101").unwrap();
        let agents: Vec<_> = selection.agents.iter().map(|info| (info.index().0, info.uuid())).collect();
        assert_eq!(agents, [(0, "GPU-a1b2000000000003")]);
        let reasons: Vec<String> = selection.left_out.iter().map(LeftOut::to_string).collect();
        assert!(
            reasons[0].starts_with("0 GPU-a1b2000000000001: ") && reasons[0].contains("999999"),
            "{reasons:?}"
        );
        assert!(
            reasons[1].starts_with("1 GPU-a1b2000000000002: ") && reasons[1].contains("gfx1101"),
            "{reasons:?}"
        );
        assert_eq!(reasons.len(), 2);
        // Without a choice, agents without copy kernels are better than none.
        let selection = usable(&gpus, &placements, |_| false).unwrap();
        assert_eq!((selection.agents.len(), selection.left_out.len()), (2, 1));
        let selection = select(&topology, None, "soft").unwrap();
        assert_eq!((selection.agents.len(), selection.left_out.len()), (2, 1));
    }

    #[test]
    fn default_without_a_usable_one_says_what_the_first_lacks() {
        let topology = read(|sysfs| (1..4).for_each(|node| version(sysfs, node, 999_990 + u64::from(node))));
        let error = select(&topology, None, "soft").unwrap_err();
        assert!(matches!(error, OpenError::UnknownTarget { version: 999_991, .. }), "{error}");
    }

    #[test]
    fn list_is_kept_to_the_letter() {
        let topology = read(|sysfs| version(sysfs, 1, 999_999));
        let selection = select(&topology, Some("2,1"), "soft").unwrap();
        let agents: Vec<_> = selection.agents.iter().map(|info| info.uuid()).collect();
        assert_eq!(agents, ["GPU-a1b2000000000003", "GPU-a1b2000000000002"]);
        assert!(
            matches!(&selection.left_out[..], [LeftOut { ordinal: 0, reason: LeftOutReason::NotListed { list }, .. }] if list == "2,1")
        );
        assert!(matches!(select(&topology, Some("1,0"), "soft"), Err(OpenError::UnknownTarget { .. })));
    }
}
