// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes of a run had their device do, in one line.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// What softgpud tells of one process; other fields are not needed here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Client {
    ioctls: u64,
    failed_ioctls: u64,
    dispatches: u64,
    waves: u64,
    instructions: u64,
    copied_bytes: u64,
    pid: u32,
    refused: Option<String>,
}

/// The sum over all processes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    processes: usize,
    sum: Client,
    wall: Duration,
}

impl Total {
    /// The sum of lines of JSON; a line that is none counts as a process that did nothing.
    pub fn of(lines: &str, wall: Duration) -> Self {
        let clients = lines.lines().map(|line| serde_json::from_str(line).unwrap_or_default());
        let mut total = Self { processes: 0, sum: Client::default(), wall };
        for client in clients {
            let (Client { ioctls, failed_ioctls, dispatches, waves, instructions, copied_bytes, .. }, sum) =
                (client, &mut total.sum);
            total.processes += 1;
            sum.ioctls += ioctls;
            sum.failed_ioctls += failed_ioctls;
            sum.dispatches += dispatches;
            sum.waves += waves;
            sum.instructions += instructions;
            sum.copied_bytes += copied_bytes;
        }
        total
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Client { ioctls, failed_ioctls, dispatches, waves, instructions, copied_bytes, .. } = &self.sum;
        write!(f, "processes={} ioctls={ioctls} failed_ioctls={failed_ioctls} ", self.processes)?;
        write!(f, "dispatches={dispatches} waves={waves} instructions={instructions} ")?;
        write!(f, "copied_bytes={copied_bytes} seconds={:.3}", self.wall.as_secs_f64())
    }
}

/// What the device refused and a GPU would not, a line for each process: the program itself sees an invalid packet.
pub fn refusals(lines: &str) -> impl Iterator<Item = String> {
    let clients = lines.lines().filter_map(|line| serde_json::from_str::<Client>(line).ok());
    clients.filter_map(|client| Some(format!("process {}: {}", client.pid, client.refused?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_the_sum_of_all_lines() {
        let lines = concat!(
            r#"{"pid":1,"ioctls":5,"failed_ioctls":1,"dispatches":2,"waves":3,"instructions":40,"copied_bytes":7}"#,
            "\n",
            r#"{"pid":2,"ioctls":1,"something_newer":true}"#,
            "\n",
        );
        let shown = Total::of(lines, Duration::from_millis(1500)).to_string();
        let wanted = "processes=2 ioctls=6 failed_ioctls=1 dispatches=2 waves=3 instructions=40 copied_bytes=7 \
            seconds=1.500";
        assert_eq!(shown, wanted);
    }

    #[test]
    fn refusals_are_of_the_processes_that_had_one() {
        let lines = "{\"pid\":1,\"refused\":null}\nnot JSON\n{\"pid\":2,\"refused\":\"why\"}\n";
        assert_eq!(refusals(lines).collect::<Vec<_>>(), ["process 2: why"]);
    }
}
