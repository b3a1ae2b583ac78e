// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client had its device do: totals, and where a person asked for it a line of JSON for each ioctl and dispatch.
//!
//! INVARIANT: without a file to write to, an event costs an addition.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use queues::aql::KernelDispatch;
use serde::Serialize;

/// What one client process has done, as `stasis run --verbose` adds it up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The client, as it sees itself.
    pub pid: u32,
    /// Its ioctls.
    pub ioctls: u64,
    /// Those of them that failed.
    pub failed_ioctls: u64,
    /// Dispatches that were begun.
    pub dispatches: u64,
    /// Waves that have ended.
    pub waves: u64,
    /// Instructions that waves have executed.
    pub instructions: u64,
    /// Bytes that copy engines have copied or filled.
    pub copied_bytes: u64,
    /// For how long it had a device.
    pub milliseconds: u64,
    /// The first kernel that this device cannot execute and a GPU could: the client only sees an invalid packet.
    pub refused: Option<String>,
}

/// The journal of one client.
#[derive(Debug)]
pub struct Journal {
    pid: u32,
    since: Instant,
    lines: Option<Mutex<File>>,
    ioctls: AtomicU64,
    failed_ioctls: AtomicU64,
    copied_bytes: AtomicU64,
    refused: OnceLock<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Event<'a> {
    Ioctl {
        name: &'a str,
        result: i32,
    },
    Dispatch {
        gpu: usize,
        kernel: String,
        workgroup: [u16; 3],
        grid: [u32; 3],
        private_bytes: u32,
        group_bytes: u32,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    /// Microseconds since the client had its device.
    at_us: u64,
    pid: u32,
    took_us: u64,
    #[serde(flatten)]
    event: Event<'a>,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new(0, None)
    }
}

impl Journal {
    /// For the client of this number, with lines to a file that is open for appending.
    pub fn new(pid: u32, lines: Option<File>) -> Self {
        Self {
            pid,
            since: Instant::now(),
            lines: lines.map(Mutex::new),
            ioctls: AtomicU64::default(),
            failed_ioctls: AtomicU64::default(),
            copied_bytes: AtomicU64::default(),
            refused: OnceLock::new(),
        }
    }

    /// An ioctl was answered; `result` is negative for an error.
    pub(crate) fn ioctl(&self, name: &str, result: i32, took: Duration) {
        self.ioctls.fetch_add(1, Ordering::Relaxed);
        self.failed_ioctls.fetch_add(u64::from(result < 0), Ordering::Relaxed);
        self.write(|| took, || Event::Ioctl { name, result });
    }

    /// A dispatch has ended.
    pub(crate) fn dispatch(&self, gpu: usize, packet: &KernelDispatch, took: impl FnOnce() -> Duration) {
        self.write(took, || Event::Dispatch {
            gpu,
            kernel: format!("{:#x}", packet.kernel_object),
            workgroup: packet.workgroup,
            grid: packet.grid,
            private_bytes: packet.private_segment_bytes,
            group_bytes: packet.group_segment_bytes,
        });
    }

    /// A copy engine has copied or filled so many bytes.
    pub(crate) fn copied(&self, bytes: u64) {
        self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A kernel was refused because this device has no engine for its machine code; the first one is kept.
    pub(crate) fn refused(&self, why: impl FnOnce() -> String) {
        self.refused.get_or_init(why);
    }

    fn write<'a>(&self, took: impl FnOnce() -> Duration, event: impl FnOnce() -> Event<'a>) {
        let Some(lines) = &self.lines else { return };
        let (at_us, took_us) = (micros(self.since.elapsed()), micros(took()));
        let line = Line { at_us: at_us.saturating_sub(took_us), pid: self.pid, took_us, event: event() };
        let Ok(mut text) = serde_json::to_string(&line) else { return };
        text.push('\n');
        // One write a line: the file is open for appending in several processes.
        if let Err(error) = lines.lock().write_all(text.as_bytes()) {
            tracing::warn!(target: "server", %error, "a line of the trace is lost");
        }
    }

    /// The totals; the waves' are `counts`.
    pub(crate) fn summary(&self, counts: softgpu_waves::Counts) -> Summary {
        Summary {
            pid: self.pid,
            ioctls: self.ioctls.load(Ordering::Relaxed),
            failed_ioctls: self.failed_ioctls.load(Ordering::Relaxed),
            dispatches: counts.dispatches,
            waves: counts.waves,
            instructions: counts.instructions,
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            milliseconds: micros(self.since.elapsed()) / 1000,
            refused: self.refused.get().cloned(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use queues::aql::{Header, PacketKind};

    use super::*;

    #[test]
    fn lines_are_json_and_totals_are_sums() {
        let mut file = tempfile::tempfile().unwrap();
        let journal = Journal::new(7, Some(file.try_clone().unwrap()));
        journal.ioctl("GET_VERSION", 0, Duration::ZERO);
        journal.ioctl("ALLOC_MEMORY_OF_GPU", -12, Duration::ZERO);
        let packet = KernelDispatch {
            header: Header::new(PacketKind::KernelDispatch),
            dimensions: 1,
            workgroup: [64, 1, 1],
            grid: [640, 1, 1],
            private_segment_bytes: 0,
            group_segment_bytes: 0,
            kernel_object: 0x1000,
            kernarg_address: 0,
            completion_signal: 0,
        };
        journal.dispatch(1, &packet, || Duration::from_micros(5));
        journal.copied(100);
        journal.refused(|| "the first".to_owned());
        journal.refused(|| "the second".to_owned());
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["ioctl"]["name"], "GET_VERSION");
        assert_eq!(lines[1]["ioctl"]["result"], -12);
        assert_eq!((&lines[2]["pid"], &lines[2]["dispatch"]["kernel"]), (&7.into(), &"0x1000".into()));
        assert_eq!(lines[2]["took_us"], 5);
        let counts = softgpu_waves::Counts { dispatches: 1, waves: 2, instructions: 3 };
        let summary = journal.summary(counts);
        assert_eq!((summary.ioctls, summary.failed_ioctls, summary.copied_bytes), (2, 1, 100));
        assert_eq!((summary.dispatches, summary.waves, summary.instructions), (1, 2, 3));
        assert_eq!(summary.refused.as_deref(), Some("the first"));
    }
}
