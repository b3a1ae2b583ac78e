// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance tests, and every errno that can be reached, with hardware that only records what it is asked.

mod buffers;
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
mod persist;
mod queues;
mod rocr;
mod several_xccs;
mod sharing;
mod smi;
mod svm;
