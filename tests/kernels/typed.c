// SPDX-License-Identifier: MIT OR Apache-2.0
// Arguments of the small types; compiled by the test that uses it.
#include "device.h"

KERNEL typed(GLOBAL _Float16 *halves, GLOBAL u16 *brains, GLOBAL signed char *bytes, GLOBAL _Bool *flags, _Float16 half,
             u16 brain, signed char byte, _Bool flag)
{
    halves[1] = halves[0] * half;
    brains[0] = brain;
    bytes[1] = bytes[0] + byte;
    flags[0] = flag;
}
