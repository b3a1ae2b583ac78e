// SPDX-License-Identifier: MIT OR Apache-2.0
// A kernel that looks for the heap, as malloc does; compiled by the test that uses it.

/// Where code object v5 has the heap's address among the hidden arguments.
#define HEAP 96

__attribute__((amdgpu_kernel, visibility("protected")))
void hosted(__attribute__((address_space(1))) unsigned long *out)
{
    typedef const __attribute__((address_space(4))) char *hidden;
    typedef const __attribute__((address_space(4))) unsigned long *address;
    *out = *(address)((hidden)__builtin_amdgcn_implicitarg_ptr() + HEAP) + 1;
}
