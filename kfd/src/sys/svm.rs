// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of the shared virtual memory ioctl.

abi_struct! {
    /// One attribute of a range.
    kfd_ioctl_svm_attribute: 8 {
        /// `KFD_IOCTL_SVM_ATTR_*`.
        0 => type_: u32,
        /// Its value.
        4 => value: u32,
    }
}

abi_struct! {
    /// Head of SVM's argument; `nattr` [`kfd_ioctl_svm_attribute`] follow, and the command's size field
    /// counts them (see [`super::svm_command`]).
    kfd_ioctl_svm_args: 24 {
        /// First address, page aligned, in.
        0 => start_addr: u64,
        /// Bytes, a multiple of pages, in.
        8 => size: u64,
        /// `KFD_IOCTL_SVM_OP_*`, in.
        16 => op: u32,
        /// Number of attributes, in.
        20 => nattr: u32,
    }
}
