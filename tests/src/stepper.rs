// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks a command and the agent of a process from system call to system call (ptrace(2)), so that a test can do
//! something at any one of them: kill, or have the call fail.
//!
//! INVARIANT: of the process under test only the agent's threads are traced, and only while no CRIU is at work, because
//! CRIU traces the process itself. The children of `criu restore` are not traced. One thread does all tracing; when it
//! ends it traces no process any more.
//!
//! Two calls use `libc`, because a tracee may stop at a real-time signal, which `nix` cannot name: the waitpid of `nix`
//! would lose the stop, and its ptrace requests cannot pass the signal on.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::linux::prefer;
use crate::worker::kill;

/// Names of the agent's threads.
pub const AGENT_THREADS: [&str; 2] = ["stasis-agent", "stasis-orders"];

/// TIMEOUT: how long one walk may take; a command that hangs is a finding.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a traced thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The command itself.
    Controller,
    /// A program the command or CRIU started: the script that commits, CRIU's wrapper.
    Helper,
    /// CRIU.
    Criu,
    /// A thread of the process's agent, or a thread that the agent started.
    Agent,
}

/// A stop before or after a system call.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Counted from 0 over the whole walk.
    pub number: u64,
    /// The thread.
    pub thread: i32,
    /// What it belongs to.
    pub role: Role,
    /// The number of the system call.
    pub call: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Before the call, not after it.
    pub is_entry: bool,
    /// The CRIU that has been started, if one has.
    pub criu: Option<i32>,
}

/// What is to be done at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Go on to the next stop.
    Step,
    /// Let everything run on undisturbed.
    LetGo,
    /// At an entry: have the call fail with this errno, without an effect.
    Fail(i32),
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Stops seen.
    pub stops: u64,
    /// Whether the command ended with success; `None` if it was killed.
    pub succeeded: Option<bool>,
}

/// Walks `command`, everything it starts, and the agent of `target` before and after CRIU's part, until the command has
/// ended.
///
/// # Panics
/// When the command cannot be traced, or does not end.
pub fn walk(command: &mut Command, target: i32, act: &mut (dyn FnMut(&Stop) -> Act + Send)) -> Walk {
    // SAFETY: between fork and exec, one async-signal-safe system call.
    let command = unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    traced(move |watch| {
        let mut walker = Walker::new(target, watch, act);
        // Every stop costs two switches between processes, and each would have to wait on a busy machine. The command
        // inherits the priority. Without the permission for it the walk is slower.
        prefer();
        walker.start(command);
        walker.seize_agent();
        walker.run()
    })
}

/// Walks the agent's threads of `target` while `work` runs.
///
/// # Panics
/// When the threads cannot be traced, or `work` panics.
pub fn walk_agent<T: Send>(
    target: i32,
    act: &mut (dyn FnMut(&Stop) -> Act + Send),
    work: impl FnOnce() -> T + Send,
) -> T {
    let (ready, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let (readied, finished) = (Arc::clone(&ready), Arc::clone(&done));
        let tracer = scope.spawn(move || {
            traced(move |watch| {
                let mut walker = Walker::new(target, watch, act);
                walker.seize_agent();
                readied.store(true, Ordering::Release);
                walker.run_until(&finished);
            });
        });
        while !ready.load(Ordering::Acquire) && !tracer.is_finished() {
            std::thread::yield_now();
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Release);
        tracer.join().expect("a tracer that does not panic");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs the tracer in a thread of its own: only the tracing thread may control a tracee or wait for it.
fn traced<T: Send>(run: impl FnOnce(&Watch) -> T + Send) -> T {
    let watch = Watch::default();
    std::thread::scope(|scope| {
        scope.spawn(|| watch.bark());
        let tracer = scope.spawn(|| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&watch)));
            watch.end();
            result
        });
        let result = tracer.join().expect("a tracer that catches its panics");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Kills all traced processes when a walk takes too long.
#[derive(Default)]
struct Watch {
    traced: Mutex<Vec<i32>>,
    over: Mutex<bool>,
    ended: Condvar,
    barked: AtomicBool,
}

impl Watch {
    fn bark(&self) {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(over, PATIENCE, |over| !*over);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            self.barked.store(true, Ordering::Release);
            let traced = self.traced.lock().unwrap_or_else(PoisonError::into_inner);
            traced.iter().copied().for_each(kill);
        }
    }

    fn end(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_all();
    }
}

/// A traced thread.
struct Tracee {
    role: Role,
    /// The call it is in, between the stops before and after it.
    within: Option<(u64, [u64; 6])>,
    /// The errno that the call is to return.
    fails: Option<i32>,
    /// Whether it has not yet made the first stop of a new tracee.
    is_new: bool,
}

struct Walker<'a> {
    target: i32,
    watch: &'a Watch,
    act: &'a mut (dyn FnMut(&Stop) -> Act + Send),
    tracees: HashMap<i32, Tracee>,
    root: Option<i32>,
    criu: Option<i32>,
    stops: u64,
    letting_go: bool,
    succeeded: Option<bool>,
}

/// What `waitpid` said.
enum Event {
    Ended {
        succeeded: Option<bool>,
    },
    /// Signal, and the ptrace event beside it.
    Stopped(i32, i32),
}

const FOLLOW: Options =
    Options::PTRACE_O_TRACEFORK.union(Options::PTRACE_O_TRACEVFORK).union(Options::PTRACE_O_TRACECLONE);
const COMMAND: Options =
    Options::PTRACE_O_TRACESYSGOOD.union(Options::PTRACE_O_TRACEEXEC).union(Options::PTRACE_O_EXITKILL);
const AGENT: Options = Options::PTRACE_O_TRACESYSGOOD.union(Options::PTRACE_O_TRACECLONE);

/// Has a tracee go on (PTRACE_CONT, PTRACE_SYSCALL, PTRACE_DETACH) with a signal, or with none (0).
fn resume(request: libc::c_uint, thread: i32, signal: i32) -> io::Result<()> {
    // CAST: the number of a signal.
    // SAFETY: these three requests take numbers and access no memory of this process.
    match unsafe { libc::ptrace(request, thread, 0, signal as usize) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Sets a word of a tracee's `struct user`.
fn write_user(thread: i32, offset: usize, value: i64) -> nix::Result<()> {
    ptrace::write_user(Pid::from_raw(thread), std::ptr::without_provenance_mut(offset), value)
}

/// What goes with an event: the new thread or process.
fn event_message(thread: i32) -> Option<i32> {
    i32::try_from(ptrace::getevent(Pid::from_raw(thread)).ok()?).ok()
}

/// Waits for a child or tracee of the calling thread; `None` if there is none, or if `flags` say not to wait.
fn wait(thread: i32, flags: i32) -> Option<(i32, Event)> {
    let mut status = 0;
    let found = loop {
        // SAFETY: plain system call into a local.
        let found =
            unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::__WNOTHREAD | flags) };
        if found != -1 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break found;
        }
    };
    if found <= 0 {
        return None;
    }
    let event = if libc::WIFSTOPPED(status) {
        Event::Stopped(libc::WSTOPSIG(status), status >> 16)
    } else {
        Event::Ended { succeeded: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) == 0) }
    };
    Some((found, event))
}

/// Offsets of registers in `struct user` (sys/user.h, x86-64).
const RAX: usize = 10 * 8;
const ORIG_RAX: usize = 15 * 8;

impl<'a> Walker<'a> {
    fn new(target: i32, watch: &'a Watch, act: &'a mut (dyn FnMut(&Stop) -> Act + Send)) -> Self {
        let tracees = HashMap::new();
        Self {
            target,
            watch,
            act,
            tracees,
            root: None,
            criu: None,
            stops: 0,
            letting_go: false,
            succeeded: None,
        }
    }

    fn follow(&mut self, thread: i32, role: Role, is_new: bool) {
        self.tracees.insert(thread, Tracee { role, within: None, fails: None, is_new });
        self.watch.traced.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    fn forget(&mut self, thread: i32) {
        self.tracees.remove(&thread);
        self.watch.traced.lock().unwrap_or_else(PoisonError::into_inner).retain(|&traced| traced != thread);
    }

    fn start(&mut self, command: &mut Command) {
        let root = command.spawn().expect("the command to be walked").id().cast_signed();
        let stopped = wait(root, 0);
        assert!(
            matches!(stopped, Some((_, Event::Stopped(libc::SIGTRAP, _)))),
            "it does not stop at its exec"
        );
        ptrace::setoptions(Pid::from_raw(root), COMMAND | FOLLOW).expect("options for the command");
        self.root = Some(root);
        self.follow(root, Role::Controller, false);
        self.go_on(root, 0);
    }

    /// Traces the agent's threads, if there are any and no other process traces them.
    fn seize_agent(&mut self) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.target)).into_iter().flatten().flatten();
        for task in tasks {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let thread = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(thread) = thread.filter(|_| AGENT_THREADS.contains(&name.trim_end())) else { continue };
            if self.tracees.contains_key(&thread) || ptrace::seize(Pid::from_raw(thread), AGENT).is_err() {
                continue;
            }
            self.follow(thread, Role::Agent, false);
            // The thread stops by this request or by a stop of its own; from both it goes on to the next system call.
            let _ = ptrace::interrupt(Pid::from_raw(thread));
        }
    }

    /// Stops tracing the agent's threads.
    fn release_agent(&mut self) {
        let agents: Vec<i32> =
            self.tracees.iter().filter(|(_, t)| t.role == Role::Agent).map(|(&thread, _)| thread).collect();
        for thread in agents {
            let _ = ptrace::interrupt(Pid::from_raw(thread));
            while let Some((_, event)) = wait(thread, 0) {
                let Event::Stopped(signal, event) = event else { break };
                self.finish_failing(thread);
                let is_signal = event == 0 && signal != libc::SIGTRAP && signal != (libc::SIGTRAP | 0x80);
                let signal = if is_signal { signal } else { 0 };
                if resume(libc::PTRACE_DETACH, thread, signal).is_ok() {
                    break;
                }
            }
            self.forget(thread);
        }
    }

    /// A call that was replaced at its entry returns its errno.
    fn finish_failing(&mut self, thread: i32) {
        let fails = self.tracees.get_mut(&thread).and_then(|tracee| tracee.fails.take());
        if let Some(errno) = fails {
            let _ = write_user(thread, RAX, -i64::from(errno));
        }
    }

    fn go_on(&self, thread: i32, signal: i32) {
        // Programs that only prepare the start of CRIU (wrappers, its `--version`) are not walked.
        let is_preparing = self.criu.is_none()
            && self.tracees.get(&thread).is_some_and(|tracee| tracee.role == Role::Helper);
        let walked = !self.letting_go && !is_preparing;
        let request = if walked { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        // The request fails when the thread was killed meanwhile; `wait` then reports its end.
        let _ = resume(request, thread, signal);
    }

    /// Runs until the command and all that it started have ended.
    fn run(mut self) -> Walk {
        while self.tracees.values().any(|tracee| tracee.role != Role::Agent) {
            let Some((thread, event)) = wait(-1, 0) else { break };
            self.take(thread, event);
        }
        self.release_agent();
        assert!(!self.watch.barked.load(Ordering::Acquire), "the command did not end in {PATIENCE:?}");
        Walk { stops: self.stops, succeeded: self.succeeded }
    }

    /// Runs until `done` is set.
    fn run_until(mut self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            match wait(-1, libc::WNOHANG) {
                Some((thread, event)) => self.take(thread, event),
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        self.release_agent();
    }

    fn take(&mut self, thread: i32, event: Event) {
        match event {
            Event::Ended { succeeded } => {
                if self.root == Some(thread) {
                    self.succeeded = succeeded;
                }
                self.forget(thread);
                if self.criu == Some(thread) {
                    self.criu = None;
                    if !self.letting_go {
                        self.seize_agent();
                    }
                }
            }
            Event::Stopped(signal, event) => self.stopped(thread, signal, event),
        }
    }

    fn stopped(&mut self, thread: i32, signal: i32, event: i32) {
        if !self.tracees.contains_key(&thread) {
            self.born(thread);
        }
        if self.tracees.get_mut(&thread).is_some_and(|tracee| std::mem::take(&mut tracee.is_new)) {
            return self.go_on(thread, 0);
        }
        match (signal, event) {
            (signal, 0) if signal == libc::SIGTRAP | 0x80 => return self.at_call(thread),
            (_, libc::PTRACE_EVENT_EXEC) => self.at_exec(thread),
            (_, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => {
                // This event may come before or after the new thread's own first stop.
                if let Some(born) = event_message(thread).filter(|born| !self.tracees.contains_key(born)) {
                    self.born(born);
                }
            }
            // A signal that was sent to the thread.
            (signal, 0) => return self.go_on(thread, signal),
            _ => {}
        }
        self.go_on(thread, 0);
    }

    /// A new thread or process of one that is followed.
    fn born(&mut self, thread: i32) {
        let of_agent = fs::exists(format!("/proc/{}/task/{thread}", self.target)).unwrap_or(false);
        self.follow(thread, if of_agent { Role::Agent } else { Role::Helper }, true);
    }

    /// The program has changed: if it is CRIU now, the process is left to CRIU.
    fn at_exec(&mut self, thread: i32) {
        if !is_criu_at_work(thread) {
            return;
        }
        self.release_agent();
        self.criu = Some(thread);
        if let Some(tracee) = self.tracees.get_mut(&thread) {
            tracee.role = Role::Criu;
        }
        // CRIU's children are not followed: CRIU traces some of them itself, to test the kernel's features, and on a
        // restore they are the process under test.
        let _ = ptrace::setoptions(Pid::from_raw(thread), COMMAND);
    }

    /// Once CRIU traces the process, the programs that it starts are scripts.
    fn follow_scripts(&self, thread: i32, call: u64, arguments: &[u64; 6]) {
        let seizes = [u64::from(libc::PTRACE_SEIZE), self.target as u64];
        if call == libc::SYS_ptrace as u64 && arguments[..2] == seizes {
            let _ = ptrace::setoptions(Pid::from_raw(thread), COMMAND | FOLLOW);
        }
    }

    fn at_call(&mut self, thread: i32) {
        self.finish_failing(thread);
        if self.letting_go {
            return self.go_on(thread, 0);
        }
        let (criu, number) = (self.criu, self.stops);
        let info = ptrace::syscall_info(Pid::from_raw(thread)).ok();
        let Some((info, tracee)) = info.zip(self.tracees.get_mut(&thread)) else {
            return self.go_on(thread, 0);
        };
        let is_entry = info.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
        let (call, arguments) = if is_entry {
            // SAFETY: at an entry the kernel fills this variant.
            let entry = unsafe { info.u.entry };
            tracee.within = Some((entry.nr, entry.args));
            (entry.nr, entry.args)
        } else {
            tracee.within.take().unwrap_or_default()
        };
        let role = tracee.role;
        if role == Role::Criu && is_entry {
            self.follow_scripts(thread, call, &arguments);
        }
        self.stops += 1;
        let stop = Stop { number, thread, role, call, arguments, is_entry, criu };
        match (self.act)(&stop) {
            Act::Step => {}
            Act::Fail(errno) => {
                if write_user(thread, ORIG_RAX, -1).is_ok()
                    && let Some(tracee) = self.tracees.get_mut(&thread)
                {
                    tracee.fails = Some(errno);
                }
            }
            Act::LetGo => {
                self.letting_go = true;
                self.go_on(thread, 0);
                return self.release_agent();
            }
        }
        self.go_on(thread, 0);
    }
}

/// Whether the program that `pid` has become is CRIU (and not a script that will be) and dumps or restores.
fn is_criu_at_work(pid: i32) -> bool {
    const SHELLS: [&str; 4] = ["sh", "dash", "bash", "busybox"];
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    if SHELLS.iter().any(|shell| program.file_name().is_some_and(|name| name == *shell)) {
        return false;
    }
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = arguments.split(|&byte| byte == 0).skip_while(|word| !word.ends_with(b"/criu"));
    arguments.next();
    matches!(arguments.next(), Some(b"dump" | b"restore"))
}
