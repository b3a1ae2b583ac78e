// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers to processes that ask for shared memory by name: a thread each, for a device may take its time over an export.
//!
//! INVARIANT: who answers holds a pass from before the export until the other end has closed the connection. So a lock waits for it, no
//! half of a connection is left for CRIU, a process that is not running is not waited for, and a descriptor that was given out is one
//! of the other process's before this one can be checkpointed: its holder is found then.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{Shutdown, shutdown};

use super::listener::reply;
use crate::checkpoint::protocol::Done;
use crate::context::Context;
use crate::context::error::explain;
use crate::share::export_named;

/// TIMEOUT: how long the other end may take to read an answer.
const TAKEN: Duration = Duration::from_millis(200);
/// Most answers at a time; who asks meanwhile is to ask again.
const MOST: usize = 8;

/// Answers under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing(Arc<AtomicUsize>);

/// An answer under way.
struct UnderWay(Sharing);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sharing {
    /// Answers with what has this number among the names. Never blocks.
    pub fn answer(&self, runtime: &Arc<Context>, number: u128, peer: OwnedFd) {
        let others = self.0.fetch_add(1, Ordering::Relaxed);
        let under_way = UnderWay(self.clone());
        if others >= MOST {
            return reply(runtime, &peer, Ok(Done::NotNow), &[]);
        }
        let context = Arc::clone(runtime);
        let answer = move || {
            let _under_way = under_way;
            share(&context, number, peer);
        };
        // Without a thread the connection is closed, and the other end asks again.
        if let Err(error) = std::thread::Builder::new().name("stasis-share".into()).spawn(answer) {
            tracing::warn!(target: "checkpoint", %error, "memory was not shared");
        }
    }
}

fn share(runtime: &Context, number: u128, peer: OwnedFd) {
    let pass = match runtime.gate.try_enter() {
        Err(lost) => return reply(runtime, &peer, Err(explain(&lost)), &[]),
        Ok(None) => return reply(runtime, &peer, Ok(Done::NotNow), &[]),
        Ok(Some(pass)) => pass,
    };
    match export_named(runtime, &pass, number) {
        Ok(Some(file)) => reply(runtime, &peer, Ok(Done::Shared), &[file]),
        Ok(None) => reply(runtime, &peer, Ok(Done::Unknown), &[]),
        Err(error) => reply(runtime, &peer, Err(explain(&error)), &[]),
    }
    wait_until_taken(&peer);
    drop(peer);
    drop(pass);
}

/// Waits until the other end has read the answer, which it closes the connection after.
fn wait_until_taken(peer: &OwnedFd) {
    // Nothing more comes from here: what the other end waits for behind the answer.
    if shutdown(peer.as_raw_fd(), Shutdown::Write).is_ok() {
        let mut fds = [PollFd::new(peer.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, Some(TAKEN));
    }
}
