// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flag bits, enumerators and limits under their C names.

macro_rules! constants {
    ($( $(#[$doc:meta])* $name:ident: $ty:ty = $value:expr; )*) => {
        $( $(#[$doc])* pub const $name: $ty = $value; )*
    };
}

constants! {
    /// PM4 compute queue.
    KFD_IOC_QUEUE_TYPE_COMPUTE: u32 = 0;
    /// Copy engine queue.
    KFD_IOC_QUEUE_TYPE_SDMA: u32 = 1;
    /// AQL compute queue.
    KFD_IOC_QUEUE_TYPE_COMPUTE_AQL: u32 = 2;
    /// Copy engine queue towards XGMI peers.
    KFD_IOC_QUEUE_TYPE_SDMA_XGMI: u32 = 3;
    /// Copy engine queue on a named engine (since 1.17).
    KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID: u32 = 4;
    /// Highest queue percentage.
    KFD_MAX_QUEUE_PERCENTAGE: u32 = 100;
    /// Highest queue priority.
    KFD_MAX_QUEUE_PRIORITY: u32 = 15;
    /// Smallest ring in bytes; smaller ones are raised to it.
    KFD_MIN_QUEUE_RING_SIZE: u32 = 1024;

    /// Cache policy of SET_MEMORY_POLICY.
    KFD_IOC_CACHE_POLICY_COHERENT: u32 = 0;
    /// Cache policy of SET_MEMORY_POLICY.
    KFD_IOC_CACHE_POLICY_NONCOHERENT: u32 = 1;
    /// Process flag of SET_MEMORY_POLICY (since 1.18).
    KFD_PROC_FLAG_MFMA_HIGH_PRECISION: u32 = 1;

    /// Device memory.
    KFD_IOC_ALLOC_MEM_FLAGS_VRAM: u32 = 1 << 0;
    /// System memory owned by the driver.
    KFD_IOC_ALLOC_MEM_FLAGS_GTT: u32 = 1 << 1;
    /// System memory owned by the process.
    KFD_IOC_ALLOC_MEM_FLAGS_USERPTR: u32 = 1 << 2;
    /// The process' doorbell slice.
    KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL: u32 = 1 << 3;
    /// The remapped register page.
    KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP: u32 = 1 << 4;
    /// Physically contiguous (since 1.16).
    KFD_IOC_ALLOC_MEM_FLAGS_CONTIGUOUS: u32 = 1 << 23;
    /// Coherent across devices.
    KFD_IOC_ALLOC_MEM_FLAGS_EXT_COHERENT: u32 = 1 << 24;
    /// Not cached by the GPU.
    KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED: u32 = 1 << 25;
    /// Coherent with the CPU.
    KFD_IOC_ALLOC_MEM_FLAGS_COHERENT: u32 = 1 << 26;
    /// Mapped twice, back to back (gfx7 and gfx8 rings).
    KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM: u32 = 1 << 27;
    /// Fail rather than fall back to another kind.
    KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE: u32 = 1 << 28;
    /// Device memory the CPU can map.
    KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC: u32 = 1 << 29;
    /// The GPU may fetch instructions from it.
    KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE: u32 = 1 << 30;
    /// The GPU may write to it.
    KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE: u32 = 1 << 31;

    /// Line of SMI_EVENTS: a memory fault. A mask of events has bit `event - 1` of each.
    KFD_SMI_EVENT_VMFAULT: u32 = 1;
    /// Line of SMI_EVENTS: a reset begins.
    KFD_SMI_EVENT_GPU_PRE_RESET: u32 = 3;
    /// Line of SMI_EVENTS: a reset is over.
    KFD_SMI_EVENT_GPU_POST_RESET: u32 = 4;

    /// Event the GPU can signal through the event page.
    KFD_IOC_EVENT_SIGNAL: u32 = 0;
    /// Node change.
    KFD_IOC_EVENT_NODECHANGE: u32 = 1;
    /// Device state change.
    KFD_IOC_EVENT_DEVICESTATECHANGE: u32 = 2;
    /// GPU reset or hardware error.
    KFD_IOC_EVENT_HW_EXCEPTION: u32 = 3;
    /// System event.
    KFD_IOC_EVENT_SYSTEM_EVENT: u32 = 4;
    /// Debug event; signalled like [`KFD_IOC_EVENT_SIGNAL`].
    KFD_IOC_EVENT_DEBUG_EVENT: u32 = 5;
    /// Profile event.
    KFD_IOC_EVENT_PROFILE_EVENT: u32 = 6;
    /// Queue event.
    KFD_IOC_EVENT_QUEUE_EVENT: u32 = 7;
    /// Memory exception.
    KFD_IOC_EVENT_MEMORY: u32 = 8;
    /// First id of events without a slot in the event page.
    KFD_FIRST_NONSIGNAL_EVENT_ID: u32 = 0x4000_0000;
    /// Slots in the event page.
    KFD_SIGNAL_EVENT_LIMIT: u32 = 4096;
    /// Value of a slot whose event is not signalled.
    UNSIGNALED_EVENT_SLOT: u64 = u64::MAX;
    /// All (or any) events came.
    KFD_IOC_WAIT_RESULT_COMPLETE: u32 = 0;
    /// Time ran out; the ioctl itself succeeds.
    KFD_IOC_WAIT_RESULT_TIMEOUT: u32 = 1;
    /// The wait failed.
    KFD_IOC_WAIT_RESULT_FAIL: u32 = 2;
    /// Reset type of a hardware exception.
    KFD_HW_EXCEPTION_WHOLE_GPU_RESET: u32 = 0;
    /// Reset type of a hardware exception.
    KFD_HW_EXCEPTION_PER_ENGINE_RESET: u32 = 1;
    /// Reset cause of a hardware exception.
    KFD_HW_EXCEPTION_GPU_HANG: u32 = 0;
    /// Reset cause of a hardware exception.
    KFD_HW_EXCEPTION_ECC: u32 = 1;
    /// Error type of a memory exception.
    KFD_MEM_ERR_NO_RAS: u32 = 0;
    /// Error type of a memory exception.
    KFD_MEM_ERR_SRAM_ECC: u32 = 1;
    /// Error type of a memory exception.
    KFD_MEM_ERR_POISON_CONSUMED: u32 = 2;
    /// Error type of a memory exception.
    KFD_MEM_ERR_GPU_HANG: u32 = 3;

    /// RUNTIME_ENABLE mode: enable.
    KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK: u32 = 1;
    /// RUNTIME_ENABLE mode: save TTMPs.
    KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK: u32 = 2;

    /// CRIU_OP operation.
    KFD_CRIU_OP_PROCESS_INFO: u32 = 0;
    /// CRIU_OP operation.
    KFD_CRIU_OP_CHECKPOINT: u32 = 1;
    /// CRIU_OP operation.
    KFD_CRIU_OP_UNPAUSE: u32 = 2;
    /// CRIU_OP operation.
    KFD_CRIU_OP_RESTORE: u32 = 3;
    /// CRIU_OP operation.
    KFD_CRIU_OP_RESUME: u32 = 4;
    /// Version of CRIU_OP's private blob (`KFD_CRIU_PRIV_VERSION`, since 1.7 to 7.3).
    KFD_CRIU_PRIV_VERSION: u32 = 1;
    /// Object in the blob: a queue.
    KFD_CRIU_OBJECT_TYPE_QUEUE: u32 = 0;
    /// Object in the blob: an event.
    KFD_CRIU_OBJECT_TYPE_EVENT: u32 = 1;
    /// Object in the blob: a range of shared virtual memory.
    KFD_CRIU_OBJECT_TYPE_SVM_RANGE: u32 = 2;
    /// Queue type in the blob (the driver's own number): compute, PM4 or AQL.
    KFD_QUEUE_TYPE_COMPUTE: u32 = 0;
    /// Queue type in the blob: SDMA, whichever way its engine was chosen.
    KFD_QUEUE_TYPE_SDMA: u32 = 1;
    /// Packet language in the blob.
    KFD_QUEUE_FORMAT_PM4: u32 = 0;
    /// Packet language in the blob.
    KFD_QUEUE_FORMAT_AQL: u32 = 1;
    /// GPUs that a buffer object's entry in the blob has room for (`MAX_GPU_INSTANCE`).
    KFD_CRIU_MAX_GPUS: usize = 64;

    /// SVM operation.
    KFD_IOCTL_SVM_OP_SET_ATTR: u32 = 0;
    /// SVM operation.
    KFD_IOCTL_SVM_OP_GET_ATTR: u32 = 1;
    /// SVM location: system memory.
    KFD_IOCTL_SVM_LOCATION_SYSMEM: u32 = 0;
    /// SVM location: none chosen.
    KFD_IOCTL_SVM_LOCATION_UNDEFINED: u32 = u32::MAX;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_PREFERRED_LOC: u32 = 0;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_PREFETCH_LOC: u32 = 1;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_ACCESS: u32 = 2;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE: u32 = 3;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_NO_ACCESS: u32 = 4;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_SET_FLAGS: u32 = 5;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_CLR_FLAGS: u32 = 6;
    /// SVM attribute.
    KFD_IOCTL_SVM_ATTR_GRANULARITY: u32 = 7;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_HOST_ACCESS: u32 = 1;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_COHERENT: u32 = 2;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_HIVE_LOCAL: u32 = 4;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_GPU_RO: u32 = 8;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_GPU_EXEC: u32 = 0x10;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_GPU_READ_MOSTLY: u32 = 0x20;
    /// SVM flag (since 1.11).
    KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED: u32 = 0x40;
    /// SVM flag.
    KFD_IOCTL_SVM_FLAG_EXT_COHERENT: u32 = 0x80;

    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_ENABLE: u32 = 0;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_DISABLE: u32 = 1;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT: u32 = 2;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED: u32 = 3;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE: u32 = 4;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE: u32 = 5;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SUSPEND_QUEUES: u32 = 6;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_RESUME_QUEUES: u32 = 7;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH: u32 = 8;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH: u32 = 9;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_SET_FLAGS: u32 = 10;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT: u32 = 11;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO: u32 = 12;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT: u32 = 13;
    /// DBG_TRAP operation.
    KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT: u32 = 14;
    /// SUSPEND_QUEUES wrote this bit into an id whose queue failed.
    KFD_DBG_QUEUE_ERROR_BIT: u32 = 30;
    /// SUSPEND_QUEUES wrote this bit into an id that names no queue it can suspend.
    KFD_DBG_QUEUE_INVALID_BIT: u32 = 31;

    /// PROFILER operation.
    KFD_IOC_PROFILER_PMC: u32 = 0;
    /// PROFILER operation.
    KFD_IOC_PROFILER_VERSION: u32 = 2;
    /// PROFILER operation.
    KFD_IOC_PROFILER_PTL_CONTROL: u32 = 3;

    /// The errno that CREATE_QUEUE leaks for an unknown queue type (the kernel's internal ENOTSUPP).
    ENOTSUPP: i32 = 524;
}
