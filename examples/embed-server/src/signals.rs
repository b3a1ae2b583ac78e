// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that end the server in order.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts SIGTERM, SIGINT and SIGHUP from now on.
///
/// SIGHUP comes when a terminal closes, and ends the server as the others do, unless the process was started with
/// SIGHUP ignored, as `nohup` does.
///
/// # Errors
/// A handler could not be installed.
pub fn count() -> io::Result<watch::Receiver<u32>> {
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
    if !ignores_hang_up() {
        kinds.push(SignalKind::hangup());
    }
    let (sender, receiver) = watch::channel(0);
    for kind in kinds {
        let mut signals = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                sender.send_modify(|count| *count += 1);
            }
        });
    }
    Ok(receiver)
}

/// Waits until so many signals have come.
pub async fn reach(mut signals: watch::Receiver<u32>, count: u32) {
    if signals.wait_for(|now| *now >= count).await.is_err() {
        // The sender was dropped: the runtime ends.
        std::future::pending::<()>().await;
    }
}

fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status).is_some_and(|mask| mask & 1 != 0)
}

/// The signals that `/proc/PID/status` says are ignored, from bit 0, which is signal 1, on.
fn ignored(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tembed-server\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";

        assert_eq!(ignored(status), Some(0x1001));
        assert_eq!(ignored("Name:\tx\n"), None);
    }
}
