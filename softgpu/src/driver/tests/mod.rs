// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance vectors of the KFD reference and every errno row that can be reached, against a hardware that
//! only keeps a diary of what it is asked.

mod conformance;
mod criu;
mod device;
mod drm;
mod events;
mod faults;
mod fuzz;
mod harness;
mod memory;
mod peers;
mod queues;
mod sharing;
