// SPDX-License-Identifier: MIT OR Apache-2.0
// A kernel that looks for the hostcall buffer, as HIP's printf and assert do; compiled by the test that uses it.

/// Where code object v5 has the buffer's address among the hidden arguments.
#define HOSTCALL_BUFFER 80

__attribute__((amdgpu_kernel, visibility("protected")))
void hosted(__attribute__((address_space(1))) unsigned long *out)
{
    typedef const __attribute__((address_space(4))) char *hidden;
    typedef const __attribute__((address_space(4))) unsigned long *address;
    *out = *(address)((hidden)__builtin_amdgcn_implicitarg_ptr() + HOSTCALL_BUFFER) + 1;
}
