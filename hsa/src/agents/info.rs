// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of agents, each in the header's type.

use super::{Agents, Device, caches};
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Outcome};
use crate::instance::Instance;
use crate::queues::{MAX_PACKETS, MAX_QUEUES, MIN_PACKETS};
use crate::{isas, system};

/// Characters of names and of a uuid, the end included.
const NAME: usize = 64;
const UUID: usize = 21;
/// Work-items of a work-group at most, and fbarriers (`GpuAgent::GetInfo` of AMD's runtime).
pub const MAX_WORKGROUP: u16 = 1024;
pub const MAX_FBARRIERS: u32 = 32;
/// What libdrm says of a board that its list does not have.
const PRODUCT: &str = "AMD Radeon Graphics";
/// Bits of `capability` (`kfd_sysfs.h`): the chip's revision, and how many addresses can be watched.
const REVISION_SHIFT: u32 = 22;
const REVISION_MASK: u32 = 0xf;
const WATCH_SUPPORTED: u32 = 1 << 7;
const WATCH_SHIFT: u32 = 8;
const WATCH_MASK: u32 = 0xf;
/// Bits of firmware versions.
const FIRMWARE: u32 = 0x3ff;
const L2: u32 = 2;
/// What rows of pitched memory begin at a multiple of, bytes: HIP asks for it without any image.
const PITCH_ALIGNMENT: u32 = 256;

pub fn answer(instance: &Instance, index: usize, attribute: hsa_agent_info_t, answer: Answer) -> Outcome {
    let device = instance.agents.at(index).ok_or(INVALID_ARGUMENT)?;
    if let Some(outcome) = general(device, attribute, answer) {
        return outcome;
    }
    match device {
        Device::Host { node, name } => of_host(instance, node, name, attribute, answer),
        Device::Gpu(agent) => of_gpu(instance, agent, attribute, answer),
    }
}

/// What all agents have.
fn general(device: &Device, attribute: hsa_agent_info_t, answer: Answer) -> Option<Outcome> {
    let node = device.node();
    Some(match attribute {
        HSA_AGENT_INFO_MACHINE_MODEL => answer.put(HSA_MACHINE_MODEL_LARGE),
        HSA_AGENT_INFO_DEFAULT_FLOAT_ROUNDING_MODE => answer.put(HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR),
        HSA_AGENT_INFO_NODE => answer.put(node.id.0),
        HSA_AGENT_INFO_QUEUE_TYPE => answer.put(HSA_QUEUE_TYPE_MULTI),
        HSA_AGENT_INFO_CACHE_SIZE => answer.put(caches::sizes(device)),
        HSA_AGENT_INFO_EXTENSIONS => answer.bytes(&system::extensions()),
        HSA_AGENT_INFO_VERSION_MAJOR | HSA_AGENT_INFO_VERSION_MINOR => answer.put(1_u16),
        HSA_AMD_AGENT_INFO_CHIP_ID => answer.put(node.properties.device_id),
        HSA_AMD_AGENT_INFO_DRIVER_NODE_ID => answer.put(node.id.0),
        HSA_AMD_AGENT_INFO_BDFID => answer.put(node.properties.location_id),
        HSA_AMD_AGENT_INFO_DOMAIN => answer.put(node.properties.domain),
        HSA_AMD_AGENT_INFO_NUM_SIMDS_PER_CU => answer.put(node.properties.simd_per_cu),
        HSA_AMD_AGENT_INFO_MEMORY_WIDTH => answer.put(node.mem_banks.first().map_or(0, |bank| bank.width)),
        HSA_AMD_AGENT_INFO_MEMORY_MAX_FREQUENCY => {
            answer.put(node.mem_banks.first().map_or(0, |bank| bank.mem_clk_max))
        }
        agent_info::IOMMU_SUPPORT => answer.put(0_u32),
        agent_info::MEMORY_PROPERTIES | agent_info::AQL_EXTENSIONS => answer.put([0_u8; 8]),
        agent_info::DRIVER_UID => answer.put(node.gpu_id.0),
        _ => return None,
    })
}

fn of_host(
    instance: &Instance,
    node: &kfd::topology::Node,
    name: &str,
    attribute: hsa_agent_info_t,
    answer: Answer,
) -> Outcome {
    match attribute {
        HSA_AGENT_INFO_NAME | HSA_AMD_AGENT_INFO_PRODUCT_NAME => answer.text::<NAME>(name),
        HSA_AGENT_INFO_VENDOR_NAME => answer.text::<NAME>("CPU"),
        HSA_AGENT_INFO_DEVICE => answer.put(HSA_DEVICE_TYPE_CPU),
        HSA_AGENT_INFO_PROFILE => answer.put(HSA_PROFILE_FULL),
        HSA_AGENT_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES => {
            answer.put(HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR)
        }
        HSA_AGENT_INFO_FAST_F16_OPERATION => answer.put(false),
        HSA_AGENT_INFO_WORKGROUP_MAX_DIM => answer.put([0_u16; 3]),
        HSA_AGENT_INFO_GRID_MAX_DIM => answer.put(hsa_dim3_t::default()),
        HSA_AGENT_INFO_ISA => answer.put(hsa_isa_t::default()),
        HSA_AGENT_INFO_FEATURE
        | HSA_AGENT_INFO_WAVEFRONT_SIZE
        | HSA_AGENT_INFO_WORKGROUP_MAX_SIZE
        | HSA_AGENT_INFO_GRID_MAX_SIZE
        | HSA_AGENT_INFO_FBARRIER_MAX_SIZE
        | HSA_AGENT_INFO_QUEUES_MAX
        | HSA_AGENT_INFO_QUEUE_MIN_SIZE
        | HSA_AGENT_INFO_QUEUE_MAX_SIZE => answer.put(0_u32),
        HSA_AMD_AGENT_INFO_CACHELINE_SIZE => answer.put(64_u32),
        HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT => answer.put(node.properties.cpu_cores_count),
        HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY => answer.put(node.properties.max_engine_clk_ccompute),
        HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS => answer.put(1_u32),
        HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU
        | HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES
        | HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE
        | HSA_AMD_AGENT_INFO_ASIC_REVISION
        | HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT
        | agent_info::ASIC_FAMILY_ID
        | agent_info::UCODE_VERSION
        | agent_info::SDMA_UCODE_VERSION
        | agent_info::NUM_SDMA_ENG
        | agent_info::NUM_SDMA_XGMI_ENG
        | agent_info::NUM_XCC => answer.put(0_u32),
        HSA_AMD_AGENT_INFO_HDP_FLUSH => answer.put(no_hdp()),
        HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES => answer.put(false),
        HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS => answer.put(true),
        HSA_AMD_AGENT_INFO_UUID => answer.text::<UUID>("CPU-XX"),
        agent_info::MEMORY_AVAIL => {
            answer.put(instance.runtime.gtt().available().map_err(crate::memory::status_of)?)
        }
        agent_info::TIMESTAMP_FREQUENCY => answer.put(stasis::SYSTEM_FREQUENCY),
        agent_info::NEAREST_CPU => answer.put(instance.agents.host()),
        HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS..=HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT => {
            no_images(attribute, answer)
        }
        _ => Err(INVALID_ARGUMENT),
    }
}

fn of_gpu(
    instance: &Instance,
    agent: &stasis::Agent,
    attribute: hsa_agent_info_t,
    answer: Answer,
) -> Outcome {
    let (properties, target) = (&agent.node().properties, agent.target());
    let per_engine = properties.simd_arrays_per_engine;
    match attribute {
        HSA_AGENT_INFO_NAME => answer.text::<NAME>(agent.name()),
        HSA_AGENT_INFO_VENDOR_NAME => answer.text::<NAME>("AMD"),
        HSA_AGENT_INFO_DEVICE => answer.put(HSA_DEVICE_TYPE_GPU),
        HSA_AGENT_INFO_PROFILE => answer.put(HSA_PROFILE_BASE),
        HSA_AGENT_INFO_FEATURE => answer.put(HSA_AGENT_FEATURE_KERNEL_DISPATCH),
        HSA_AGENT_INFO_BASE_PROFILE_DEFAULT_FLOAT_ROUNDING_MODES => {
            answer.put(HSA_DEFAULT_FLOAT_ROUNDING_MODE_NEAR)
        }
        HSA_AGENT_INFO_FAST_F16_OPERATION => answer.put(true),
        HSA_AGENT_INFO_WAVEFRONT_SIZE => answer.put(target.wave_front_size()),
        HSA_AGENT_INFO_WORKGROUP_MAX_DIM => answer.put([MAX_WORKGROUP; 3]),
        HSA_AGENT_INFO_WORKGROUP_MAX_SIZE => answer.put(u32::from(MAX_WORKGROUP)),
        HSA_AGENT_INFO_GRID_MAX_DIM => answer.put([u32::MAX; 3]),
        HSA_AGENT_INFO_GRID_MAX_SIZE => answer.put(u32::MAX),
        HSA_AGENT_INFO_FBARRIER_MAX_SIZE => answer.put(MAX_FBARRIERS),
        HSA_AGENT_INFO_QUEUES_MAX => answer.put(MAX_QUEUES),
        HSA_AGENT_INFO_QUEUE_MIN_SIZE => answer.put(MIN_PACKETS),
        HSA_AGENT_INFO_QUEUE_MAX_SIZE => answer.put(MAX_PACKETS),
        HSA_AGENT_INFO_ISA => answer.put(isas::first_of(instance, agent)?),
        HSA_AMD_AGENT_INFO_PRODUCT_NAME => answer.text::<NAME>(PRODUCT),
        HSA_AMD_AGENT_INFO_CACHELINE_SIZE => {
            let line =
                agent.caches().iter().find(|cache| cache.level == L2).map(|cache| cache.cache_line_size);
            answer.put(line.unwrap_or(64))
        }
        HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT | HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT => {
            answer.put(agent.compute_units())
        }
        HSA_AMD_AGENT_INFO_MAX_CLOCK_FREQUENCY => answer.put(properties.max_engine_clk_fcompute),
        HSA_AMD_AGENT_INFO_MAX_ADDRESS_WATCH_POINTS => {
            let points = 1_u32 << (properties.capability >> WATCH_SHIFT & WATCH_MASK);
            answer.put(if properties.capability & WATCH_SUPPORTED == 0 { 0 } else { points })
        }
        HSA_AMD_AGENT_INFO_MAX_WAVES_PER_CU => {
            answer.put(properties.simd_per_cu * properties.max_waves_per_simd)
        }
        HSA_AMD_AGENT_INFO_NUM_SHADER_ENGINES => {
            answer.put(properties.array_count.checked_div(per_engine).unwrap_or(0))
        }
        HSA_AMD_AGENT_INFO_NUM_SHADER_ARRAYS_PER_SE => answer.put(per_engine),
        HSA_AMD_AGENT_INFO_HDP_FLUSH => {
            let words = instance.queues.hdp_words(agent.index());
            answer.put(hsa_amd_hdp_flush_t { HDP_MEM_FLUSH_CNTL: words[0], HDP_REG_FLUSH_CNTL: words[1] })
        }
        HSA_AMD_AGENT_INFO_COOPERATIVE_QUEUES => answer.put(properties.num_gws > 0),
        HSA_AMD_AGENT_INFO_UUID => answer.text::<UUID>(agent.uuid()),
        HSA_AMD_AGENT_INFO_ASIC_REVISION => {
            answer.put(properties.capability >> REVISION_SHIFT & REVISION_MASK)
        }
        HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS => answer.put(false),
        agent_info::MEMORY_AVAIL => {
            let available = agent.vram_available().map_err(crate::memory::status_of)?;
            answer.put(available + instance.memory.unused())
        }
        agent_info::TIMESTAMP_FREQUENCY => {
            answer.put(agent.clock_frequency().map_err(crate::memory::status_of)?)
        }
        agent_info::ASIC_FAMILY_ID => answer.put(0_u32),
        agent_info::UCODE_VERSION => answer.put(properties.fw_version & FIRMWARE),
        agent_info::SDMA_UCODE_VERSION => answer.put(properties.sdma_fw_version & FIRMWARE),
        agent_info::NUM_SDMA_ENG => answer.put(properties.num_sdma_engines),
        agent_info::NUM_SDMA_XGMI_ENG => answer.put(properties.num_sdma_xgmi_engines),
        agent_info::NUM_XCC => answer.put(properties.num_xcc.max(1)),
        agent_info::NEAREST_CPU => answer.put(nearest_host(instance, agent)),
        agent_info::SCRATCH_LIMIT_MAX | agent_info::SCRATCH_LIMIT_CURRENT => answer.put(0_u64),
        agent_info::CLOCK_COUNTERS => {
            // What the program converts, as it does what kernels read.
            let clocks = agent.counters().map_err(crate::memory::status_of)?;
            answer.put(hsa_amd_clock_counters_t {
                gpu_clock_counter: clocks.gpu,
                cpu_clock_counter: clocks.cpu,
                system_clock_counter: clocks.system,
                system_clock_frequency: clocks.system_frequency,
            })
        }
        HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS..=HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT => {
            image_limits(attribute, answer)
        }
        _ => Err(INVALID_ARGUMENT),
    }
}

fn no_hdp() -> hsa_amd_hdp_flush_t {
    hsa_amd_hdp_flush_t { HDP_MEM_FLUSH_CNTL: std::ptr::null_mut(), HDP_REG_FLUSH_CNTL: std::ptr::null_mut() }
}

/// Limits of images (`image_manager_nv.cpp` of AMD's runtime), although none can be made: HIP takes an agent without them for one
/// without pitched memory.
pub fn image_limits(attribute: hsa_agent_info_t, answer: Answer) -> Outcome {
    const SIDE: u32 = 16384;
    const LAYERS: u32 = 8192;
    match attribute {
        HSA_EXT_AGENT_INFO_IMAGE_1D_MAX_ELEMENTS | HSA_EXT_AGENT_INFO_IMAGE_1DA_MAX_ELEMENTS => {
            answer.put(SIDE)
        }
        HSA_EXT_AGENT_INFO_IMAGE_1DB_MAX_ELEMENTS => answer.put(u32::MAX),
        HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS => answer.put([SIDE; 2]),
        HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS => answer.put([SIDE, SIDE, LAYERS]),
        HSA_EXT_AGENT_INFO_IMAGE_ARRAY_MAX_LAYERS => answer.put(LAYERS),
        HSA_EXT_AGENT_INFO_MAX_IMAGE_RD_HANDLES => answer.put(128_u32),
        HSA_EXT_AGENT_INFO_MAX_IMAGE_RORW_HANDLES => answer.put(64_u32),
        HSA_EXT_AGENT_INFO_MAX_SAMPLER_HANDLERS => answer.put(16_u32),
        HSA_EXT_AGENT_INFO_IMAGE_LINEAR_ROW_PITCH_ALIGNMENT => answer.put(PITCH_ALIGNMENT),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// The same of a processor of the host, which has none.
fn no_images(attribute: hsa_agent_info_t, answer: Answer) -> Outcome {
    match attribute {
        HSA_EXT_AGENT_INFO_IMAGE_2D_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DA_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DDEPTH_MAX_ELEMENTS
        | HSA_EXT_AGENT_INFO_IMAGE_2DADEPTH_MAX_ELEMENTS => answer.put([0_u32; 2]),
        HSA_EXT_AGENT_INFO_IMAGE_3D_MAX_ELEMENTS => answer.put([0_u32; 3]),
        _ => answer.put(0_u32),
    }
}

/// The processor that a GPU's first link to one leads to.
fn nearest_host(instance: &Instance, agent: &stasis::Agent) -> hsa_agent_t {
    let is_host = |index: usize, node: u32| matches!(instance.agents.at(index), Some(Device::Host { node: host, .. }) if host.id.0 == node);
    let mut linked = agent.links().map(|link| link.node_to);
    let found = linked.find_map(|node| (0..instance.agents.len()).find(|index| is_host(*index, node)));
    found.map_or_else(|| instance.agents.host(), Agents::handle)
}
