// SPDX-License-Identifier: MIT OR Apache-2.0
//! KFD's exception codes (`enum kfd_dbg_trap_exception_code`, `kfd_ioctl.h` 1.13).
//!
//! INVARIANT: the discriminant is the code; a code's place in every 64-bit exception mask is bit `code - 1`.

use std::fmt;

macro_rules! exception_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why a queue, a device or a process stopped.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ExceptionCode {
            $($(#[$doc])* $name = $code,)*
        }

        impl ExceptionCode {
            /// Every code, ascending.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code with this number.
            #[must_use]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

exception_codes! {
    /// A wave aborted itself.
    WaveAbort = 1,
    /// A wave executed a trap.
    WaveTrap = 2,
    /// A wave raised an enabled floating-point exception.
    WaveMathError = 3,
    /// A wave fetched something that is no instruction.
    WaveIllegalInstruction = 4,
    /// A wave touched memory that it may not.
    WaveMemoryViolation = 5,
    /// A wave used an address outside the apertures.
    WaveApertureViolation = 6,
    /// A dispatch packet's dimensions or grid are wrong.
    PacketDispatchDimInvalid = 16,
    /// A dispatch needs more group segment than the device has.
    PacketDispatchGroupSegmentSizeInvalid = 17,
    /// A dispatch names no code.
    PacketDispatchCodeInvalid = 18,
    /// A packet sets reserved bits.
    PacketReserved = 19,
    /// A packet's kind is not supported.
    PacketUnsupported = 20,
    /// A dispatch's work-group is empty or too large.
    PacketDispatchWorkGroupSizeInvalid = 21,
    /// A dispatch needs more registers than a wave can have.
    PacketDispatchRegisterInvalid = 22,
    /// A vendor packet's format is not supported.
    PacketVendorUnsupported = 23,
    /// The queue could not be preempted.
    PreemptionError = 30,
    /// The queue is new and has not been queried yet.
    QueueNew = 31,
    /// A queue of the device was deleted.
    DeviceQueueDelete = 32,
    /// The device saw a memory violation that no queue owns.
    DeviceMemoryViolation = 33,
    /// The device reported an uncorrectable memory error.
    DeviceRasError = 34,
    /// The device halted.
    DeviceFatalHalt = 35,
    /// The device is new to the debugger.
    DeviceNew = 36,
    /// The process enabled or disabled its runtime.
    ProcessRuntime = 48,
    /// A device of the process was removed.
    ProcessDeviceRemove = 49,
}

impl ExceptionCode {
    /// The number of the code.
    #[must_use]
    pub const fn code(self) -> u32 {
        // CAST: one-byte discriminant, widened.
        self as u32
    }

    /// The code's bit in an exception mask: `1 << (code - 1)`.
    ///
    /// This is what the firmware ORs into the word at the save area's `err_payload_addr`.
    #[must_use]
    pub const fn mask(self) -> u64 {
        1 << (self.code() - 1)
    }

    /// The bit that the firmware stores into `queue_inactive_signal` instead, when the process has not
    /// enabled its runtime: packet errors 16 to 23 are bits 1 to 8 there.
    ///
    /// `None` for codes that the old signal cannot express.
    #[must_use]
    pub const fn inactive_signal_code(self) -> Option<u64> {
        match self {
            Self::WaveTrap => Some(0x8000_0000),
            Self::WaveIllegalInstruction => Some(0x4000_0000),
            Self::WaveApertureViolation => Some(0x2000_0000),
            _ => match self.code() {
                code @ 16..=23 => Some(1 << (code - 15)),
                _ => None,
            },
        }
    }
}

impl fmt::Display for ExceptionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} (EC {})", self.code())
    }
}
