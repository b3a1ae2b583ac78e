// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executors of clients, as a controller orders them.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use kfd::transport::control::{
    Control, ControlError, ExecutorAnswer, ExecutorOrder, NamedMemory, executor_socket,
};
use kfd::transport::wire::{MAX_FDS, borrow_all};

use nix::errno::Errno;

use crate::error::{ForeignError, system};

type Result<T> = std::result::Result<T, ForeignError>;

/// How long an executor that was just started may take to listen.
const STARTING: Duration = Duration::from_secs(30);
/// How often it is tried.
const LOOK: Duration = Duration::from_millis(2);
/// TIMEOUT: how long an executor may take for an order that moves no memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest state, bytes: a softgpud takes no longer one.
const MAX_STATE_BYTES: u64 = 256 << 20;

/// What a pause found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paused {
    /// Waves in the middle of kernels.
    pub waves: u64,
    /// Calls of WAIT_EVENTS.
    pub waits: u32,
    /// Queues.
    pub queues: u32,
}

/// The state of a device, and the memories that it names.
#[derive(Debug)]
pub struct State {
    /// The state's bytes.
    pub bytes: Vec<u8>,
    /// The memories.
    pub memories: Vec<NamedMemory>,
}

/// The executor of a client.
#[derive(Debug)]
pub struct Executor {
    /// The client.
    pub client: i32,
    control: Control,
}

impl Executor {
    /// Connects to the executor of a client.
    ///
    /// # Errors
    /// As [`Control::connect`].
    pub fn connect(run: &str, client: i32, user: u32) -> Result<Self> {
        let control = Control::connect(&executor_socket(run, client), user)?;
        control.set_limit(PATIENCE).map_err(system("limit how long an executor is waited for"))?;
        Ok(Self { client, control })
    }

    /// The executor's own process.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.control.peer().ok()
    }

    /// A pidfd of it.
    pub(crate) fn process(&self) -> std::result::Result<OwnedFd, Errno> {
        self.control.process()
    }

    /// How many queues the client has, if the executor says so within `patience`: it serves one controller at a time.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&mut self, patience: Duration) -> Result<u32> {
        const WHAT: &str = "say how its device is";
        self.control.set_limit(patience).map_err(system("limit how long an executor is waited for"))?;
        match self.order(WHAT, &ExecutorOrder::Status, &[])?.0 {
            ExecutorAnswer::Status { queues, .. } => Ok(queues),
            _ => Err(ControlError::Answer { order: WHAT }.into()),
        }
    }

    /// Connects to one that was just started.
    ///
    /// # Errors
    /// As [`Executor::connect`], when none listens for long.
    pub fn connect_new(run: &str, client: i32, user: u32) -> Result<Self> {
        let begun = Instant::now();
        loop {
            match Self::connect(run, client, user) {
                Err(error) if begun.elapsed() < STARTING && error.is_nobody() => thread::sleep(LOOK),
                connected => return connected,
            }
        }
    }

    fn order(
        &mut self,
        what: &'static str,
        order: &ExecutorOrder,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(ExecutorAnswer, Vec<OwnedFd>)> {
        match self.control.order(what, order, fds)? {
            (ExecutorAnswer::Failed { message }, _) => {
                Err(ControlError::Failed { order: what, message }.into())
            }
            answered => Ok(answered),
        }
    }

    /// Pauses the device.
    ///
    /// # Errors
    /// Why not; the client's work goes on then.
    pub fn pause(&mut self, deadline: Duration, lease: Duration) -> Result<Paused> {
        const WHAT: &str = "pause";
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let order =
            ExecutorOrder::Pause { deadline_ms: milliseconds(deadline), lease_ms: milliseconds(lease) };
        self.control
            .set_limit(deadline + PATIENCE)
            .map_err(system("limit how long an executor is waited for"))?;
        match self.order(WHAT, &order, &[])?.0 {
            ExecutorAnswer::Paused { waves, waits, queues } => Ok(Paused { waves, waits, queues }),
            _ => Err(ControlError::Answer { order: WHAT }.into()),
        }
    }

    /// The state of the paused device.
    ///
    /// # Errors
    /// When it is not paused any more, or the state cannot be had.
    pub fn state(&mut self) -> Result<State> {
        const WHAT: &str = "give its state";
        let (answer, fds) = self.order(WHAT, &ExecutorOrder::State, &[])?;
        let (ExecutorAnswer::State { bytes, memories }, Some(fd)) = (answer, fds.into_iter().next()) else {
            return Err(ControlError::Answer { order: WHAT }.into());
        };
        if bytes > MAX_STATE_BYTES {
            return Err(ForeignError::LongState { bytes });
        }
        let mut state = Vec::new();
        File::from(fd).take(bytes).read_to_end(&mut state).map_err(system("read the state of a device"))?;
        Ok(State { bytes: state, memories })
    }

    /// Descriptors of memories of the state that was given last, in order.
    ///
    /// # Errors
    /// As [`Executor::state`].
    pub fn memories(&mut self, names: &[String]) -> Result<Vec<OwnedFd>> {
        const WHAT: &str = "give its memory";
        let mut all = Vec::new();
        for names in names.chunks(MAX_FDS) {
            let (answer, fds) = self.order(WHAT, &ExecutorOrder::Memories { names: names.to_vec() }, &[])?;
            if answer != ExecutorAnswer::Memories || fds.len() != names.len() {
                return Err(ControlError::Answer { order: WHAT }.into());
            }
            all.extend(fds);
        }
        Ok(all)
    }

    fn plain(&mut self, what: &'static str, order: &ExecutorOrder, wanted: &ExecutorAnswer) -> Result<()> {
        let answer = self.order(what, order, &[])?.0;
        if answer == *wanted { Ok(()) } else { Err(ControlError::Answer { order: what }.into()) }
    }

    /// Makes sure that the device has been paused all the time; its lease begins again.
    ///
    /// # Errors
    /// When it has not.
    pub fn confirm(&mut self) -> Result<()> {
        self.plain("stay paused", &ExecutorOrder::Confirm, &ExecutorAnswer::Confirmed)
    }

    /// Has the device go on.
    ///
    /// # Errors
    /// When it is not paused.
    pub fn resume(&mut self) -> Result<()> {
        self.plain("resume", &ExecutorOrder::Resume, &ExecutorAnswer::Resumed)
    }

    /// Gives a new executor the state of its client; answers the memories that it needs.
    ///
    /// # Errors
    /// When the state is none that it can use.
    pub fn take(&mut self, state: &File) -> Result<Vec<NamedMemory>> {
        const WHAT: &str = "take a state";
        match self.order(WHAT, &ExecutorOrder::Take, &[state.as_fd()])?.0 {
            ExecutorAnswer::Taken { memories } => Ok(memories),
            _ => Err(ControlError::Answer { order: WHAT }.into()),
        }
    }

    /// Gives it memories: name, whether the client has it, descriptor.
    ///
    /// # Errors
    /// When the executor is gone.
    pub fn give(&mut self, memories: Vec<(String, bool, OwnedFd)>) -> Result<()> {
        const WHAT: &str = "take memory";
        let mut rest = memories.into_iter().peekable();
        while rest.peek().is_some() {
            let mut named = Vec::new();
            let mut fds = Vec::new();
            for (name, of_client, fd) in rest.by_ref().take(MAX_FDS) {
                named.push((name, of_client));
                fds.push(fd);
            }
            let (answer, _) =
                self.order(WHAT, &ExecutorOrder::Give { memories: named }, &borrow_all(&fds))?;
            if answer != ExecutorAnswer::Given {
                return Err(ControlError::Answer { order: WHAT }.into());
            }
        }
        Ok(())
    }

    /// Has it make the device, paused.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn restore(&mut self, clock_offset: i64) -> Result<()> {
        self.plain("restore a device", &ExecutorOrder::Restore { clock_offset }, &ExecutorAnswer::Restored)
    }
}
