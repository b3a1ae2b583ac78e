// SPDX-License-Identifier: MIT OR Apache-2.0
//! HSA status codes with their names.

use crate::raw;
use std::fmt;

/// What an HSA function returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub raw::hsa_status_t);

macro_rules! names {
    ($($name:ident)*) => {
        const NAMES: &[(raw::hsa_status_t, &str)] = &[$((raw::$name, stringify!($name))),*];
    };
}

names! {
    HSA_STATUS_SUCCESS
    HSA_STATUS_INFO_BREAK
    HSA_STATUS_ERROR
    HSA_STATUS_ERROR_INVALID_ARGUMENT
    HSA_STATUS_ERROR_INVALID_QUEUE_CREATION
    HSA_STATUS_ERROR_INVALID_ALLOCATION
    HSA_STATUS_ERROR_INVALID_AGENT
    HSA_STATUS_ERROR_INVALID_REGION
    HSA_STATUS_ERROR_INVALID_SIGNAL
    HSA_STATUS_ERROR_INVALID_QUEUE
    HSA_STATUS_ERROR_OUT_OF_RESOURCES
    HSA_STATUS_ERROR_INVALID_PACKET_FORMAT
    HSA_STATUS_ERROR_RESOURCE_FREE
    HSA_STATUS_ERROR_NOT_INITIALIZED
    HSA_STATUS_ERROR_REFCOUNT_OVERFLOW
    HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS
    HSA_STATUS_ERROR_INVALID_INDEX
    HSA_STATUS_ERROR_INVALID_ISA
    HSA_STATUS_ERROR_INVALID_ISA_NAME
    HSA_STATUS_ERROR_INVALID_CODE_OBJECT
    HSA_STATUS_ERROR_INVALID_EXECUTABLE
    HSA_STATUS_ERROR_FROZEN_EXECUTABLE
    HSA_STATUS_ERROR_INVALID_SYMBOL_NAME
    HSA_STATUS_ERROR_VARIABLE_ALREADY_DEFINED
    HSA_STATUS_ERROR_VARIABLE_UNDEFINED
    HSA_STATUS_ERROR_EXCEPTION
}

impl Status {
    /// Whether the call did what was asked.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.0 == raw::HSA_STATUS_SUCCESS
    }

    /// The name in `hsa.h`.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(status, _)| *status == self.0).map(|(_, name)| *name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_name_and_number() {
        assert_eq!(Status(0x1008).to_string(), "HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)");
        assert_eq!(Status(0x9999).to_string(), "0x9999");
    }
}
