// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pause, save and restore of a process.

mod damage;
mod pause;
mod round_trip;
mod running;
mod svm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::harness::*;
use crate::driver::{KfdProcess, Ledger, ProcessOptions, ProcessState};
use crate::persist::{Memories, PersistError};

/// Long enough for every pause that ends.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Pauses and saves.
fn save(client: &Client) -> (ProcessState, Memories) {
    client.process.pause(soon()).unwrap();
    let (state, memories) = client.process.save().unwrap();
    (state, memories.into_iter().collect())
}

/// The client's process restored on new hardware, with a share of this ledger.
fn restore_with(
    client: &Client,
    ledger: &Ledger,
    state: &ProcessState,
    memories: &Memories,
) -> Result<Client, PersistError> {
    let hardware = Arc::new(client.hardware.heir());
    let options = ProcessOptions {
        gpus: Arc::clone(&client.gpus),
        hardware: hardware.clone(),
        slot: ledger.claim(2).unwrap(),
        // The state says which one.
        kernel: crate::driver::KernelModel::V6_12,
        pid: PID,
    };
    let process = KfdProcess::restore(options, state, memories)?;
    let (gpus, ledger) = (Arc::clone(&client.gpus), ledger.clone());
    Ok(Client { process, hardware, ledger, gpus, kfd: client.kfd })
}

/// The same on another machine.
fn restore(client: &Client, state: &ProcessState, memories: &Memories) -> Result<Client, PersistError> {
    restore_with(client, &ledger_of(&client.gpus), state, memories)
}
