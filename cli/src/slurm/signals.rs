// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Slurm sends to a job.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// A word of Slurm's, or of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The job is to leave its node (`sbatch --signal=B:USR1@…`).
    Leave,
    /// The job's time is over, it is preempted, or it is cancelled (SIGTERM).
    End,
    /// The program is to be interrupted, by the key of a terminal for instance (SIGINT).
    Interrupt,
}

/// What has come and was not looked at.
#[derive(Debug)]
pub struct Words(Receiver<Word>);

impl Words {
    /// Listens from here on.
    pub fn listen() -> Result<Self> {
        let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT]).context("Cannot handle signals")?;
        let (tell, words) = channel();
        let listen = move || {
            for signal in signals.forever() {
                let word = match signal {
                    SIGUSR1 => Word::Leave,
                    SIGTERM => Word::End,
                    _ => Word::Interrupt,
                };
                if tell.send(word).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(listen).context("Cannot start a thread")?;
        Ok(Self(words))
    }

    /// The next one, if it comes within this time.
    pub fn within(&self, time: Duration) -> Option<Word> {
        match self.0.recv_timeout(time) {
            Ok(word) => Some(word),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(time);
                None
            }
        }
    }
}
