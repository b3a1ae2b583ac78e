// SPDX-License-Identifier: MIT OR Apache-2.0
// A library with the vendor's function names, for the loader's tests. Numbers are those of hsa.h.
#include <stdint.h>
#include <string.h>

#ifndef INIT_STATUS
#define INIT_STATUS 0
#endif

typedef struct {
    uint64_t handle;
} handle_t;

static int started;

uint32_t hsa_init(void) {
    if (started)
        return 0x1000;
    started = INIT_STATUS == 0;
    return INIT_STATUS;
}

uint32_t hsa_shut_down(void) {
    if (!started)
        return 0x100b;
    started = 0;
    return 0;
}

uint32_t hsa_status_string(uint32_t status, const char **text) {
    (void)status;
    *text = "fake text";
    return 0;
}

#ifndef NO_ITERATE
uint32_t hsa_iterate_agents(uint32_t (*callback)(handle_t, void *), void *data) {
    for (uint64_t agent = 1; agent <= 2; agent++) {
        uint32_t status = callback((handle_t){agent}, data);
        if (status != 0)
            return status;
    }
    return 0;
}
#endif

uint32_t hsa_agent_get_info(handle_t agent, uint32_t attribute, void *value) {
    int gpu = agent.handle == 2;
    switch (attribute) {
    case 0:
        strcpy(value, gpu ? "gfx1100" : "Fake CPU");
        return 0;
    case 1:
        strcpy(value, gpu ? "AMD" : "CPU");
        return 0;
    case 17:
        *(uint32_t *)value = gpu;
        return 0;
    case 0xa009:
        if (!gpu)
            return 0x1001;
        memcpy(value, "Fake GPU with a name of exactly sixty-four bytes, and no NUL end", 64);
        return 0;
    case 0xa011:
        strcpy(value, gpu ? "GPU-0123456789abcdef" : "CPU-XX");
        return 0;
    }
    return 0x1001;
}

#ifndef NO_ISAS
uint32_t hsa_agent_iterate_isas(handle_t agent, uint32_t (*callback)(handle_t, void *), void *data) {
    return agent.handle == 2 ? callback((handle_t){7}, data) : 0x1004;
}

uint32_t hsa_isa_get_info_alt(handle_t isa, uint32_t attribute, void *value) {
    static const char name[] = "amdgcn-amd-amdhsa--gfx1100";
    if (isa.handle != 7 || attribute > 1)
        return 0x1001;
    if (attribute == 0)
        *(uint32_t *)value = sizeof name;
    else
        memcpy(value, name, sizeof name);
    return 0;
}
#endif
