// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a verb shows of its progress.

use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use stasis::image::memory_is_ample;

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(100);

/// Milliseconds since then.
pub fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A spinner on the terminal; hidden for a script.
pub fn spinner(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    if memory_is_ample() {
        turn(&bar);
    }
    bar
}

/// Has a spinner turn, if a thread for it can be had: indicatif's own gives no such choice.
fn turn(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let _ = thread::Builder::new().spawn(move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(TURN);
        }
    });
}

/// Bytes as mebibytes.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A display of how much is done, where somebody may look.
pub fn bar(quiet: bool, message: &'static str) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg}: {bar} {bytes} of {total_bytes} ({bytes_per_sec})")
    {
        bar.set_style(style);
    }
    bar.with_message(message)
}

/// What has a display say how much is done.
pub fn on(bar: &ProgressBar) -> impl Fn(u64, u64) + Sync {
    |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    }
}
