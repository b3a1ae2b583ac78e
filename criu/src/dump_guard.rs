// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of a dump: a process beside this command that ends the CRIUs if this command is killed, so that the tasks go on at
//! once. CRIU by itself would copy all their memory before it sees that nobody waits for it.
//!
//! INVARIANT: the guard acts only while no commit was said: from then on CRIU ends the tasks, and their checkpoint counts.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use stasis::checkpoint::Process;

use crate::order::{Dumps, Ordered};
use crate::release::release;

/// TIMEOUT: how long CRIU's code may stay in a task.
const PATIENCE: Duration = Duration::from_secs(10);
/// What lets the guard go.
const DONE: &[u8] = b"done";

/// A guard at work.
#[derive(Debug)]
pub(crate) struct DumpGuard {
    child: Child,
    /// The guard takes a hang-up of this pipe for the end of this command.
    life: Option<ChildStdin>,
}

impl DumpGuard {
    /// Starts one for CRIUs that are each the leader of a process group.
    ///
    /// # Errors
    /// The system's answer.
    pub fn start(criu: &[Process]) -> io::Result<Self> {
        let order = serde_json::to_string(&Ordered::Dumps(Dumps { criu: criu.to_vec() }))?;
        // Not by its path: the program may have been replaced.
        let mut command = Command::new("/proc/self/exe");
        // No signal of the terminal reaches it.
        command.arg0("stasis").arg("guard").arg(order).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let life = child.stdin.take();
        Ok(Self { child, life })
    }

    /// Lets it go: from now on it does nothing if this command is killed.
    pub fn let_go(&mut self) {
        if let Some(mut life) = self.life.take() {
            // One that was killed needs no word.
            let _ = life.write_all(DONE);
        }
    }
}

impl Drop for DumpGuard {
    fn drop(&mut self) {
        self.let_go();
        let _ = self.child.wait();
    }
}

/// `stasis guard` of dumps: waits until it is let go, or its command has ended.
pub(crate) fn run(dumps: &Dumps) {
    let mut said = Vec::new();
    let heard = io::stdin().lock().read_to_end(&mut said);
    if heard.is_ok() && said == DONE {
        return;
    }
    let ends = dumps.criu.iter().map(|criu| {
        let criu = *criu;
        thread::spawn(move || release(criu, PATIENCE))
    });
    // One that cannot be ended ends by itself, at its gate.
    ends.collect::<Vec<_>>().into_iter().for_each(|end| drop(end.join()));
}
