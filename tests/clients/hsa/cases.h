// SPDX-License-Identifier: MIT OR Apache-2.0
// A case: some checks and the line that tells whether they held.
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include <hsa/hsa.h>

static unsigned cases, failures;
static bool failed;

static void report(const char *name) {
    cases++;
    failures += failed;
    printf("%s %s\n", failed ? "FAIL" : "ok", name);
    fflush(stdout);
    failed = false;
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: not %s\n", __LINE__, #condition);                                                         \
            failed = true;                                                                                             \
        }                                                                                                              \
    } while (0)

#define STATUS(wanted, call)                                                                                           \
    do {                                                                                                               \
        hsa_status_t status_ = (call);                                                                                 \
        if (status_ != (hsa_status_t)(wanted)) {                                                                       \
            printf("line %d: %s answers %#x, not %s\n", __LINE__, #call, status_, #wanted);                            \
            failed = true;                                                                                             \
        }                                                                                                              \
    } while (0)

#define OK(call) STATUS(HSA_STATUS_SUCCESS, call)
