// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGINT, SIGTERM and SIGHUP. While CRIU is at work these signals are only noted, so that no dump or restore is left
//! half done. At all other times they end the command.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What the handlers share with the command.
#[derive(Debug, Default)]
struct Flags {
    /// A signal ends the command.
    is_idle: Arc<AtomicBool>,
    /// A signal came while signals did not end the command.
    is_told: Arc<AtomicBool>,
}

/// As long as this value lives, such a signal is noted and does nothing else.
#[derive(Debug)]
pub struct Interrupt(&'static Flags);

impl Interrupt {
    /// Begins to note signals.
    ///
    /// # Errors
    /// The system's answer.
    pub fn note() -> io::Result<Self> {
        static FLAGS: OnceLock<Flags> = OnceLock::new();
        let flags = match FLAGS.get() {
            Some(flags) => flags,
            None => {
                let flags = Flags::default();
                install(&flags)?;
                FLAGS.get_or_init(|| flags)
            }
        };
        flags.is_told.store(false, Ordering::SeqCst);
        flags.is_idle.store(false, Ordering::SeqCst);
        Ok(Self(flags))
    }

    /// Whether a signal has come since [`Interrupt::note`].
    pub fn is_told(&self) -> bool {
        self.0.is_told.load(Ordering::SeqCst)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.is_idle.store(true, Ordering::SeqCst);
    }
}

/// Installs the handlers, once in a process. A signal that this process was started to ignore stays ignored.
fn install(flags: &Flags) -> io::Result<()> {
    let ignored = ignored();
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
        flag::register_conditional_default(signal, Arc::clone(&flags.is_idle))?;
        flag::register(signal, Arc::clone(&flags.is_told))?;
    }
    Ok(())
}

/// The signals that this process ignores, one bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::getpid;

    #[test]
    fn signal_is_noted_while_somebody_wants_to_know() {
        for _ in 0..2 {
            let interrupt = Interrupt::note().unwrap();
            assert!(!interrupt.is_told());
            kill(getpid(), Signal::SIGTERM).unwrap();
            while !interrupt.is_told() {
                std::thread::yield_now();
            }
        }
    }
}
