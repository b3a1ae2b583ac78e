// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which agents have access to which pools, and over which links.

use kfd::topology::{Link, Node};

use super::{Place, Pool};
use crate::abi::declared::*;
use crate::agents::Device;
use crate::instance::Instance;

/// Kinds of links (`kfd_crat.h`).
const HYPERTRANSPORT: u32 = 1;
const QPI: u32 = 5;
const XGMI: u32 = 11;
/// Flags of links: not coherent, no 32-bit atomics, no 64-bit atomics.
const NOT_COHERENT: u32 = 1 << 1;
const NO_ATOMICS_32: u32 = 1 << 2;
pub const NO_ATOMICS_64: u32 = 1 << 3;

/// The link that a node has to another one.
fn between<'n>(from: &'n Node, to: &Node) -> Option<&'n Link> {
    from.io_links.iter().chain(&from.p2p_links).find(|link| link.node_to == to.id.0)
}

/// The link between an agent and the owner of a pool; `None` for its own pools, and where there is none.
fn link(instance: &Instance, agent: usize, pool: Pool) -> Option<&Link> {
    let (from, to) = (instance.agents.at(agent)?.node(), instance.agents.at(pool.agent)?.node());
    // The same link is told at both ends; a GPU's has its flags.
    between(from, to).or_else(|| between(to, from))
}

/// Whether two agents are processors of the host, or one.
fn both_hosts(instance: &Instance, agent: usize, pool: Pool) -> bool {
    let is_host = |index| matches!(instance.agents.at(index), Some(Device::Host { .. }));
    is_host(agent) && is_host(pool.agent)
}

/// `hsa_amd_memory_pool_access_t` of an agent to a pool (`MemoryRegion::GetAccessInfo` of AMD's runtime).
pub fn access(instance: &Instance, agent: usize, pool: Pool) -> hsa_amd_memory_pool_access_t {
    if agent == pool.agent || both_hosts(instance, agent, pool) {
        return HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT;
    }
    let Some(link) = link(instance, agent, pool) else { return HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED };
    let is_gpu = instance.agents.at(agent).is_some_and(|device| device.gpu().is_ok());
    let is_visible = || {
        let owner = instance.agents.at(pool.agent).and_then(|device| device.gpu().ok());
        owner.is_some_and(|owner| owner.vram().is_visible())
    };
    match pool.place {
        Place::HostFine | Place::HostKernarg | Place::HostCoarse => {
            HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT
        }
        Place::Vram if is_gpu || is_visible() => HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT,
        Place::FineVram if link.kind == XGMI => HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT,
        Place::Vram | Place::FineVram | Place::Group => HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED,
    }
}

/// The links from an agent to a pool: none to its own and to what it does not reach, else one.
pub fn hops(instance: &Instance, agent: usize, pool: Pool) -> Vec<hsa_amd_memory_pool_link_info_t> {
    if agent == pool.agent {
        return Vec::new();
    }
    link(instance, agent, pool).map(describe).into_iter().collect()
}

fn describe(link: &Link) -> hsa_amd_memory_pool_link_info_t {
    hsa_amd_memory_pool_link_info_t {
        min_latency: link.min_latency,
        max_latency: link.max_latency,
        min_bandwidth: link.min_bandwidth,
        max_bandwidth: link.max_bandwidth,
        atomic_support_32bit: link.flags & NO_ATOMICS_32 == 0,
        atomic_support_64bit: link.flags & NO_ATOMICS_64 == 0,
        coherent_support: link.flags & NOT_COHERENT == 0,
        link_type: match link.kind {
            HYPERTRANSPORT => HSA_AMD_LINK_INFO_TYPE_HYPERTRANSPORT,
            QPI => HSA_AMD_LINK_INFO_TYPE_QPI,
            XGMI => HSA_AMD_LINK_INFO_TYPE_XGMI,
            // PCIe, and what the header has no name for.
            _ => HSA_AMD_LINK_INFO_TYPE_PCIE,
        },
        numa_distance: link.weight,
    }
}
