// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command processor stores into `amd_queue_t.queue_inactive_signal` to ask for help.
//!
//! A nonzero value stops the queue until the host has stored the signal's 0 back. Errors without an answer
//! are [`ExceptionCode::inactive_signal_code`](super::ExceptionCode::inactive_signal_code); the values here
//! are the requests that have one. They are read from how ROCr answers them: the firmware is not public.
//!
//! ```text
//! processor: dispatch at read_dispatch_id needs more scratch than the queue has
//!            -> stores insufficient_scratch(..), stops
//! host:      sizes scratch from that packet, rewrites the queue's descriptor and tmpring size, stores 0
//! processor: reads them again and retries the same packet
//! ```
//!
//! INVARIANT: no request shares a bit with an error's code, so a host can tell them apart in one value.

/// A dispatch needs more scratch than the queue has; without [`WAVE32`] its waves have 64 lanes.
pub const INSUFFICIENT_SCRATCH: u64 = 0x1;

/// Set with [`INSUFFICIENT_SCRATCH`] when the dispatch's waves have 32 lanes, which halves what it needs.
///
/// The host also takes the bit alone for the whole request.
pub const WAVE32: u64 = 0x400;

/// The dispatch that scratch was lent to once (`USE_SCRATCH_ONCE` in `queue_properties`) has ended: the host
/// can take the memory back.
pub const RELEASE_USE_ONCE_SCRATCH: u64 = 0x200;

/// Set by the host, never by a processor, to wake its own handler: scratch has become free, or the queue is
/// being destroyed.
pub const HOST_WAKE: u64 = 1 << 63;

/// The request for scratch for waves of 32 or 64 lanes.
#[must_use]
pub const fn insufficient_scratch(wave32: bool) -> u64 {
    if wave32 { INSUFFICIENT_SCRATCH | WAVE32 } else { INSUFFICIENT_SCRATCH }
}

/// Whether a value of the signal asks for scratch.
#[must_use]
pub const fn wants_scratch(code: u64) -> bool {
    code & (INSUFFICIENT_SCRATCH | WAVE32) != 0
}

#[cfg(test)]
mod tests {
    use super::super::ExceptionCode;
    use super::*;

    #[test]
    fn requests_and_errors_share_no_bit() {
        let requests = INSUFFICIENT_SCRATCH | WAVE32 | RELEASE_USE_ONCE_SCRATCH | HOST_WAKE;
        assert_eq!(requests.count_ones(), 4);
        for code in ExceptionCode::ALL {
            assert_eq!(code.inactive_signal_code().unwrap_or(0) & requests, 0, "{code}");
        }
    }

    #[test]
    fn scratch_requests_name_the_wave_size() {
        assert_eq!(insufficient_scratch(false), 1);
        assert_eq!(insufficient_scratch(true), 0x401);
        for code in [1, 0x400, 0x401] {
            assert!(wants_scratch(code));
        }
        for code in [0, 2, RELEASE_USE_ONCE_SCRATCH, 0x8000_0000] {
            assert!(!wants_scratch(code));
        }
    }
}
