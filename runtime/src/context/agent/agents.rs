// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which agent of a context reaches which memory, and how messages name agents.
//!
//! INVARIANT: the answers are those of the GPUs that the agents have now.

use kfd::Topology;
use kfd::topology::Node;

use super::links::{self, LinkMatrix, NoPath, Path, Place, why_not};
use crate::context::Context;
use crate::context::registry::state::AgentIndex;

/// How messages name an agent.
pub fn label(context: &Context, agent: AgentIndex) -> String {
    let info = &context.agents[agent.at()];
    format!("{} ({} {})", agent.0, info.uuid(), info.target().name)
}

/// The way from an agent to another one's memory, on the GPUs they have now.
pub fn path(context: &Context, from: AgentIndex, to: AgentIndex) -> Path {
    with_nodes(context, from, to, links::path)
}

fn with_nodes<R>(
    context: &Context,
    from: AgentIndex,
    to: AgentIndex,
    ask: impl FnOnce(&Node, &Node) -> R,
) -> R {
    let (from, to) = (&context.agents[from.at()], &context.agents[to.at()]);
    let (here, there) = (from.placement(), to.placement());
    ask(here.node().unwrap_or(from.node()), there.node().unwrap_or(to.node()))
}

/// As [`path`], or why there is none.
///
/// # Errors
/// [`NoPath`], naming both agents.
pub fn reach(context: &Context, from: AgentIndex, to: AgentIndex) -> Result<Path, NoPath> {
    let (found, why) =
        with_nodes(context, from, to, |here, there| (links::path(here, there), why_not(here, there)));
    if found.exists() {
        return Ok(found);
    }
    Err(NoPath { accessor: label(context, from), owner: label(context, to), why })
}

/// Which agent or NUMA node of the host reaches which one's memory: the agents of a context, then the nodes.
pub fn link_matrix(context: &Context) -> LinkMatrix {
    let placements: Vec<_> = context.agents.iter().map(|info| info.placement()).collect();
    let agents = context.agents.iter().zip(&placements).map(|(info, placement)| {
        let (index, uuid) = (info.index().at(), info.uuid().to_owned());
        let place = Place::Agent { index, uuid, target: info.target().name };
        (place, placement.node().unwrap_or(info.node()))
    });
    let hosts = placements.first().into_iter().flat_map(|placement| hosts(placement.topology()));
    LinkMatrix::new(&agents.chain(hosts).collect::<Vec<_>>())
}

fn hosts(topology: &Topology) -> impl Iterator<Item = (Place, &Node)> {
    let nodes = topology.nodes.iter().filter(|node| !node.is_gpu());
    nodes.map(|node| (Place::Host { node: node.id.0 }, node))
}
