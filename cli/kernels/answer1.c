// SPDX-License-Identifier: MIT OR Apache-2.0
// One of two code objects that differ in a constant: whichever is loaded second takes the first one's address.
__attribute__((amdgpu_kernel, visibility("protected"))) void answer(__attribute__((address_space(1))) unsigned int *to) { *to = 41; }
