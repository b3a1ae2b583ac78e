// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of the event ioctls.

abi_struct! {
    /// CREATE_EVENT.
    kfd_ioctl_create_event_args: 32 {
        /// Handle of the event page with the first event, else 0, in; mmap cookie, out.
        0 => event_page_offset: u64,
        /// What the GPU is to send, out.
        8 => event_trigger_data: u32,
        /// `KFD_IOC_EVENT_*`, in.
        12 => event_type: u32,
        /// Non-zero: a wait consumes the signal, in.
        16 => auto_reset: u32,
        /// Ignored, in.
        20 => node_id: u32,
        /// Event number, out.
        24 => event_id: u32,
        /// Index in the event page, out.
        28 => event_slot_index: u32,
    }
}

abi_struct! {
    /// DESTROY_EVENT.
    kfd_ioctl_destroy_event_args: 8 {
        /// Event number, in.
        0 => event_id: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// SET_EVENT.
    kfd_ioctl_set_event_args: 8 {
        /// Event number, in.
        0 => event_id: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// RESET_EVENT.
    kfd_ioctl_reset_event_args: 8 {
        /// Event number, in.
        0 => event_id: u32,
        /// Zero.
        4 => pad: u32,
    }
}

abi_struct! {
    /// Why an address could not be accessed.
    kfd_memory_exception_failure: 16 {
        /// The page is not mapped.
        0 => NotPresent: u32,
        /// A write to a read-only page.
        4 => ReadOnly: u32,
        /// An instruction fetch from a page without execute permission.
        8 => NoExecute: u32,
        /// The address may not be exact.
        12 => imprecise: u32,
    }
}

abi_struct! {
    /// Payload of a MEMORY event.
    kfd_hsa_memory_exception_data: 32 {
        /// Reason.
        0 => failure: kfd_memory_exception_failure,
        /// Faulting address, page aligned.
        16 => va: u64,
        /// GPU.
        24 => gpu_id: u32,
        /// `KFD_MEM_ERR_*`.
        28 => ErrorType: u32,
    }
}

abi_struct! {
    /// Payload of a HW_EXCEPTION event.
    kfd_hsa_hw_exception_data: 16 {
        /// `KFD_HW_EXCEPTION_WHOLE_GPU_RESET` or `..._PER_ENGINE_RESET`.
        0 => reset_type: u32,
        /// `KFD_HW_EXCEPTION_GPU_HANG` or `..._ECC`.
        4 => reset_cause: u32,
        /// Whether device memory was lost.
        8 => memory_lost: u32,
        /// GPU.
        12 => gpu_id: u32,
    }
}

abi_struct! {
    /// One element of WAIT_EVENTS' array.
    kfd_event_data: 48 {
        /// The C union: memory exception, hardware exception, or (first word) the last seen event age.
        0 => payload: [u64; 4],
        /// Unused extension pointer.
        32 => kfd_event_data_ext: u64,
        /// Event number, in.
        40 => event_id: u32,
        /// Zero.
        44 => pad: u32,
    }
}

impl kfd_event_data {
    /// An element that waits for `event_id`; `last_event_age` 0 means no age is compared.
    pub fn new(event_id: u32, last_event_age: u64) -> Self {
        Self { payload: [last_event_age, 0, 0, 0], event_id, ..Self::default() }
    }

    /// The union as a memory exception (events of type `KFD_IOC_EVENT_MEMORY`).
    pub fn memory_exception_data(&self) -> kfd_hsa_memory_exception_data {
        bytemuck::cast(self.payload)
    }

    /// Stores a memory exception in the union.
    pub fn set_memory_exception_data(&mut self, data: kfd_hsa_memory_exception_data) {
        self.payload = bytemuck::cast(data);
    }

    /// The union as a hardware exception (events of type `KFD_IOC_EVENT_HW_EXCEPTION`).
    pub fn hw_exception_data(&self) -> kfd_hsa_hw_exception_data {
        bytemuck::cast([self.payload[0], self.payload[1]])
    }

    /// Stores a hardware exception in the first 16 bytes of the union.
    pub fn set_hw_exception_data(&mut self, data: kfd_hsa_hw_exception_data) {
        let words: [u64; 2] = bytemuck::cast(data);
        self.payload[..2].copy_from_slice(&words);
    }

    /// The union as the age of a signal event (since 1.14).
    pub fn last_event_age(&self) -> u64 {
        self.payload[0]
    }

    /// Stores the age of a signal event.
    pub fn set_last_event_age(&mut self, age: u64) {
        self.payload[0] = age;
    }
}

abi_struct! {
    /// WAIT_EVENTS.
    kfd_ioctl_wait_events_args: 24 {
        /// Address of `num_events` [`kfd_event_data`], in and out.
        0 => events_ptr: u64,
        /// Number of elements, in.
        8 => num_events: u32,
        /// Non-zero: all of them, in.
        12 => wait_for_all: u32,
        /// Milliseconds, 0 polls, `u32::MAX` waits for ever, in; what remains after a signal, out.
        16 => timeout: u32,
        /// `KFD_IOC_WAIT_RESULT_*`, out.
        20 => wait_result: u32,
    }
}
