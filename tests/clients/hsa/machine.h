// SPDX-License-Identifier: MIT OR Apache-2.0
// The host, one GPU, and that GPU's memory.
#pragma once

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#include "cases.h"

static hsa_agent_t cpu, gpu;
static hsa_amd_memory_pool_t vram;

static hsa_status_t find_agent(hsa_agent_t agent, void *data) {
    (void)data;
    hsa_device_type_t type;
    hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    *(type == HSA_DEVICE_TYPE_GPU ? &gpu : &cpu) = agent;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data) {
    hsa_amd_segment_t segment;
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
    if (segment == HSA_AMD_SEGMENT_GLOBAL && vram.handle == 0)
        vram = pool;
    (void)data;
    return HSA_STATUS_SUCCESS;
}

static void find_machine(void) {
    OK(hsa_iterate_agents(find_agent, NULL));
    OK(hsa_amd_agent_iterate_memory_pools(gpu, find_pool, NULL));
}
