// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools, and regions, which are pools under their old name.
#![allow(unsafe_code)]

pub mod links;

use std::ffi::c_void;

use queues::words::count;

use crate::abi::declared::*;
use crate::abi::{
    Answer, INVALID_ALLOCATION, INVALID_ARGUMENT, INVALID_POOL, OUT_OF_RESOURCES, Out, Outcome, Status, each,
    export,
};
use crate::agents::Device;
use crate::handles::{Kind, fixed, number};
use crate::instance::{Instance, instance};

const INVALID_REGION: Status = Status(HSA_STATUS_ERROR_INVALID_REGION);
/// Pools that an agent may have, of which handles are made.
const PLACES: usize = 8;
const PAGE: usize = 4096;
/// Bytes that allocations of an agent's memory are best a multiple of: its page tables have such pages.
const LARGE_PAGE: usize = 2 << 20;
const KIB: u64 = 1024;

/// What a pool's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    HostFine,
    HostKernarg,
    HostCoarse,
    Vram,
    FineVram,
    Group,
}

impl Place {
    const ALL: [Self; 6] =
        [Self::HostFine, Self::HostKernarg, Self::HostCoarse, Self::Vram, Self::FineVram, Self::Group];

    pub fn is_host(self) -> bool {
        matches!(self, Self::HostFine | Self::HostKernarg | Self::HostCoarse)
    }

    /// Flags of a pool of the global segment.
    pub fn flags(self) -> u32 {
        match self {
            Self::HostFine => HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED,
            Self::HostKernarg => {
                HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED | HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT
            }
            Self::HostCoarse | Self::Vram => HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED,
            Self::FineVram => HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_EXTENDED_SCOPE_FINE_GRAINED,
            Self::Group => 0,
        }
    }
}

/// A pool: whose it is, by the agent's position, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub agent: usize,
    pub place: Place,
}

/// The pools of an agent, in the order in which they are iterated.
fn pools_of(instance: &Instance, agent: usize) -> Vec<Pool> {
    let places: &[Place] = match instance.agents.at(agent) {
        Some(Device::Host { .. }) => &[Place::HostFine, Place::HostKernarg, Place::HostCoarse],
        Some(Device::Gpu(gpu)) if gpu.vram().is_visible() => &[Place::Vram, Place::FineVram, Place::Group],
        Some(Device::Gpu(_)) => &[Place::Vram, Place::Group],
        None => &[],
    };
    places.iter().map(|&place| Pool { agent, place }).collect()
}

impl Pool {
    fn number(self) -> u32 {
        let place = Place::ALL.iter().position(|place| *place == self.place);
        count(self.agent * PLACES + place.unwrap_or(0))
    }

    pub fn handle(self) -> hsa_amd_memory_pool_t {
        hsa_amd_memory_pool_t { handle: fixed(Kind::Pool, self.number()) }
    }

    fn region(self) -> hsa_region_t {
        hsa_region_t { handle: fixed(Kind::Region, self.number()) }
    }

    fn of_number(instance: &Instance, number: usize) -> Option<Self> {
        let place = *Place::ALL.get(number % PLACES)?;
        let pool = Pool { agent: number / PLACES, place };
        pools_of(instance, pool.agent).contains(&pool).then_some(pool)
    }

    /// The pool of a handle.
    ///
    /// # Errors
    /// [`INVALID_POOL`].
    pub fn find(instance: &Instance, pool: hsa_amd_memory_pool_t) -> Outcome<Self> {
        let number = number(Kind::Pool, pool.handle).ok_or(INVALID_POOL)?;
        Self::of_number(instance, number).ok_or(INVALID_POOL)
    }

    /// The pool of a region's handle.
    ///
    /// # Errors
    /// HSA_STATUS_ERROR_INVALID_REGION.
    pub fn of_region(instance: &Instance, region: hsa_region_t) -> Outcome<Self> {
        let number = number(Kind::Region, region.handle).ok_or(INVALID_REGION)?;
        Self::of_number(instance, number).ok_or(INVALID_REGION)
    }

    /// Its bytes.
    fn bytes(self, instance: &Instance) -> u64 {
        let Some(device) = instance.agents.at(self.agent) else { return 0 };
        match (self.place, device) {
            (Place::Group, _) => u64::from(device.node().properties.lds_size_in_kb) * KIB,
            (_, Device::Host { node, .. }) => node.mem_banks.iter().map(|bank| bank.size_in_bytes).sum(),
            (_, Device::Gpu(gpu)) => gpu.vram_bytes(),
        }
    }

    /// Memory of it.
    ///
    /// # Errors
    /// [`INVALID_ALLOCATION`] for more than it has and for a pool of which nothing is allocated, [`INVALID_ARGUMENT`] for
    /// nothing, [`OUT_OF_RESOURCES`].
    pub fn alloc(self, instance: &Instance, bytes: usize) -> Outcome<stasis::Buffer> {
        let bytes = bytes as u64;
        if bytes == 0 {
            return Err(INVALID_ARGUMENT);
        }
        if self.place == Place::Group || bytes > self.bytes(instance) {
            return Err(INVALID_ALLOCATION);
        }
        let pool = self.of_runtime(instance)?;
        pool.alloc(bytes).map_err(crate::memory::status_of)
    }

    /// The runtime's pool that it is.
    ///
    /// # Errors
    /// [`INVALID_ALLOCATION`] for one of which nothing is allocated.
    pub fn of_runtime(self, instance: &Instance) -> Outcome<stasis::Pool> {
        let gpu = || instance.agents.at(self.agent).ok_or(INVALID_POOL)?.gpu();
        Ok(match self.place {
            Place::HostFine | Place::HostCoarse => instance.runtime.gtt(),
            Place::HostKernarg => instance.runtime.kernarg(),
            Place::Vram => gpu()?.vram(),
            Place::FineVram => gpu()?.fine_vram(),
            Place::Group => return Err(INVALID_ALLOCATION),
        })
    }
}

fn put_attribute(
    instance: &Instance,
    pool: Pool,
    attribute: hsa_amd_memory_pool_info_t,
    answer: Answer,
) -> Outcome {
    let is_group = pool.place == Place::Group;
    let bytes = usize::try_from(pool.bytes(instance)).unwrap_or(usize::MAX);
    let granule = if is_group { 0 } else { PAGE };
    match attribute {
        HSA_AMD_MEMORY_POOL_INFO_SEGMENT if is_group => answer.put(HSA_AMD_SEGMENT_GROUP),
        HSA_AMD_MEMORY_POOL_INFO_SEGMENT => answer.put(HSA_AMD_SEGMENT_GLOBAL),
        HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS => answer.put(pool.place.flags()),
        HSA_AMD_MEMORY_POOL_INFO_SIZE => answer.put(bytes),
        HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED => answer.put(!is_group),
        HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE | HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT => {
            answer.put(granule)
        }
        pool_info::RUNTIME_ALLOC_REC_GRANULE => {
            answer.put(if is_group || pool.place.is_host() { granule } else { LARGE_PAGE })
        }
        HSA_AMD_MEMORY_POOL_INFO_ACCESSIBLE_BY_ALL => answer.put(pool.place.is_host()),
        HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE => answer.put(if is_group { 0 } else { bytes }),
        pool_info::LOCATION if pool.place.is_host() => answer.put(HSA_AMD_MEMORY_POOL_LOCATION_CPU),
        pool_info::LOCATION => answer.put(HSA_AMD_MEMORY_POOL_LOCATION_GPU),
        _ => Err(INVALID_ARGUMENT),
    }
}

type PoolCallback = unsafe extern "C" fn(hsa_amd_memory_pool_t, *mut c_void) -> hsa_status_t;

export! {
    /// Calls back for every pool of an agent.
    fn hsa_amd_agent_iterate_memory_pools(agent: hsa_agent_t, callback: Option<PoolCallback>, data: *mut c_void) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's function, with the caller's data.
        each(pools_of(instance, index), |pool| unsafe { callback(pool.handle(), data) })
    }

    /// An attribute of a pool.
    fn hsa_amd_memory_pool_get_info(
        memory_pool: hsa_amd_memory_pool_t,
        attribute: hsa_amd_memory_pool_info_t,
        value: *mut c_void,
    ) {
        let instance = instance()?;
        let pool = Pool::find(instance, memory_pool)?;
        // SAFETY: the caller's, by the header.
        put_attribute(instance, pool, attribute, unsafe { Answer::new(value) }?)
    }

    /// What an agent may do with a pool, and over which links.
    fn hsa_amd_agent_memory_pool_get_info(
        agent: hsa_agent_t,
        memory_pool: hsa_amd_memory_pool_t,
        attribute: hsa_amd_agent_memory_pool_info_t,
        value: *mut c_void,
    ) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        let pool = Pool::find(instance, memory_pool)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        match attribute {
            HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS => answer.put(links::access(instance, index, pool)),
            HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS => {
                answer.put(count(links::hops(instance, index, pool).len()))
            }
            HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO => {
                // The header's type is an array of one for each hop, and there is one at most.
                links::hops(instance, index, pool).into_iter().try_for_each(|hop| answer.put(hop))
            }
            _ => Err(INVALID_ARGUMENT),
        }
    }

    /// Whether what is allocated of one pool can move to another: nothing can.
    fn hsa_amd_memory_pool_can_migrate(
        src_memory_pool: hsa_amd_memory_pool_t,
        dst_memory_pool: hsa_amd_memory_pool_t,
        result: *mut bool,
    ) {
        let instance = instance()?;
        Pool::find(instance, src_memory_pool)?;
        Pool::find(instance, dst_memory_pool)?;
        // SAFETY: the caller's, by the header.
        unsafe { Out::new(result) }?.put(false);
        Err(OUT_OF_RESOURCES)
    }

    /// Calls back for every region that an agent uses: its own, and for a GPU the fine-grained ones of the host.
    fn hsa_agent_iterate_regions(
        agent: hsa_agent_t,
        callback: Option<unsafe extern "C" fn(hsa_region_t, *mut c_void) -> hsa_status_t>,
        data: *mut c_void,
    ) {
        let instance = instance()?;
        let index = instance.agents.index(agent)?;
        let callback = callback.ok_or(INVALID_ARGUMENT)?;
        let mut pools = pools_of(instance, index);
        if instance.agents.at(index).is_some_and(|device| device.gpu().is_ok()) {
            pools.extend(pools_of(instance, 0).into_iter().filter(|pool| pool.place != Place::HostCoarse));
        }
        // SAFETY: the caller's function, with the caller's data.
        each(pools, |pool| unsafe { callback(pool.region(), data) })
    }

    /// An attribute of a region.
    fn hsa_region_get_info(region: hsa_region_t, attribute: hsa_region_info_t, value: *mut c_void) {
        let instance = instance()?;
        let pool = Pool::of_region(instance, region)?;
        // SAFETY: the caller's, by the header.
        let answer = unsafe { Answer::new(value) }?;
        let same = |attribute| put_attribute(instance, pool, attribute, answer);
        let host = pool.place.is_host();
        match attribute {
            HSA_REGION_INFO_SEGMENT if pool.place == Place::Group => answer.put(HSA_REGION_SEGMENT_GROUP),
            HSA_REGION_INFO_SEGMENT => answer.put(HSA_REGION_SEGMENT_GLOBAL),
            HSA_REGION_INFO_GLOBAL_FLAGS => same(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS),
            HSA_REGION_INFO_SIZE => same(HSA_AMD_MEMORY_POOL_INFO_SIZE),
            HSA_REGION_INFO_ALLOC_MAX_SIZE => same(HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE),
            HSA_REGION_INFO_ALLOC_MAX_PRIVATE_WORKGROUP_SIZE => answer.put(0_u32),
            HSA_REGION_INFO_RUNTIME_ALLOC_ALLOWED => same(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED),
            HSA_REGION_INFO_RUNTIME_ALLOC_GRANULE => same(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE),
            HSA_REGION_INFO_RUNTIME_ALLOC_ALIGNMENT => same(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT),
            HSA_AMD_REGION_INFO_HOST_ACCESSIBLE => answer.put(host || pool.place == Place::FineVram),
            HSA_AMD_REGION_INFO_BASE => answer.put(std::ptr::null_mut::<c_void>()),
            HSA_AMD_REGION_INFO_BUS_WIDTH | HSA_AMD_REGION_INFO_MAX_CLOCK_FREQUENCY => {
                let bank = instance.agents.at(pool.agent).and_then(|device| device.node().mem_banks.first());
                let width = attribute == HSA_AMD_REGION_INFO_BUS_WIDTH;
                answer.put(bank.map_or(0, |bank| if width { bank.width } else { bank.mem_clk_max }))
            }
            _ => Err(INVALID_ARGUMENT),
        }
    }
}
