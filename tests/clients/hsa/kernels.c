// SPDX-License-Identifier: MIT OR Apache-2.0
// The kernel and the variable of `conformance.c`, for `clang --target=amdgcn-amd-amdhsa`.
__attribute__((amdgpu_kernel, visibility("protected"))) void add_one(unsigned *values) {
    unsigned item = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    values[item] += 1;
}

__attribute__((visibility("protected"))) __attribute__((address_space(1))) unsigned variable = 7;
