// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that an executor holds for its client process: driver, hardware, topology; and the answers to requests.
//!
//! INVARIANT: answers depend on the request and on the driver's state only, never on which connection asks.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use kfd::errno::to_raw;
use kfd::linux;
use kfd::sys::{AMDKFD_IOC_CRIU_OP, ioc_nr, ioc_size};
use kfd::transport::control::ExecutorAnswer;
use kfd::transport::gate::{GATE_NAME, Gate};
use kfd::transport::wire::{
    APERTURE_FILE, COUNTS_FILE, ENGINE_FILE, LostPages, MAX_INLINE_BYTES, PROTOCOL, Reply, Request,
};
use kfd::userfault::WatchedPages;
use nix::errno::Errno;
use nix::unistd::Pid;
use parking_lot::Mutex;

use super::devices::Devices;
use super::error::ServeError;
use super::refusal::with_causes;
use super::saved::{self, GivenMemory, HostState};
use super::settings;
use super::user::{Descriptors, Segments, Written};
use crate::client_gpus::ClientGpus;
use crate::driver::{Caller, KernelModel, KfdProcess, LedgerSlot, OpenFile, ProcessOptions};
use crate::hardware::Interrupts;
use crate::journal::{Journal, Summary};
use crate::names;
use crate::persist::{Memories, Memory};
use crate::sysfs::SysfsTree;

/// Most bytes that a message has of a topology file beside its path and text.
const ENTRY_BYTES: usize = 16;

/// A reply and the descriptors beside it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) fds: Vec<OwnedFd>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, fds: Vec::new() }
    }
}

/// The answer to a request that failed as such.
pub(super) fn error(errno: Errno, message: impl Into<String>) -> Answer {
    Reply::Error { errno: to_raw(errno), message: message.into() }.into()
}

/// Everything an executor holds for its client.
#[derive(Debug)]
pub(super) struct Host {
    client: Pid,
    spec: String,
    process: Arc<KfdProcess>,
    topology: SysfsTree,
    /// The text of [`ENGINE_FILE`].
    engine: String,
    /// The text of [`APERTURE_FILE`].
    aperture: String,
    files: Mutex<HashMap<u64, OpenFile>>,
    gpus: Arc<ClientGpus>,
    /// What the client looks at before each call, and its memory.
    gate: (Gate, OwnedFd),
    /// Calls that were ended since the last pause began, for the client to make them again.
    postponed: AtomicU32,
}

impl Host {
    /// Makes a device of which this client has nothing yet.
    ///
    /// # Errors
    /// [`ServeError::System`] when the hardware's memory or threads cannot be had.
    pub(super) fn new(
        devices: &Devices,
        slot: LedgerSlot,
        client: Pid,
        trace: Option<File>,
    ) -> Result<Self, ServeError> {
        let journal = Arc::new(Journal::new(own_number(client), trace));
        let processor = ClientGpus::with_journal(&devices.chips(settings::errata()), journal)
            .map_err(ServeError::system("making the GPUs"))?;
        let kernel = KernelModel::from_env().map_err(ServeError::Kernel)?;
        let gate = make_gate().map_err(ServeError::system("making the gate"))?;
        Ok(Self::with(devices, slot, client, processor, kernel, gate))
    }

    /// A restored client's device, paused. `given` are the memories that the state names; the clocks of the client are
    /// `clock_offset` nanoseconds ahead of this machine's.
    ///
    /// # Errors
    /// Why the state cannot be restored here.
    pub(super) fn restore(
        devices: &Devices,
        slot: LedgerSlot,
        client: Pid,
        trace: Option<File>,
        state: &HostState,
        given: Vec<GivenMemory>,
        clock_offset: i64,
    ) -> Result<Self, String> {
        if state.spec != devices.spec() {
            return Err(format!("the state is of {}, this softgpud serves {}", state.spec, devices.spec()));
        }
        let plain = |errno: Errno| errno.to_string();
        let (memories, identities) = saved::sort(given).map_err(plain)?;
        let journal = Arc::new(Journal::new(own_number(client), trace));
        let gpus = ClientGpus::restore(&devices.chips(settings::errata()), journal, &state.gpus, &memories);
        let processor = Arc::new(gpus.map_err(|error| with_causes(&error))?);
        let options = ProcessOptions {
            gpus: devices.gpus().into(),
            hardware: Arc::clone(&processor) as _,
            slot,
            kernel: state.process.kernel(),
            pid: own_number(client),
        };
        let process =
            KfdProcess::restore(options, &state.process, &memories).map_err(|error| with_causes(&error))?;
        process.set_clock_offset(clock_offset);
        let gate = memories.get(&state.gate).ok_or("the memory of the gate was not given")?;
        let gate = Gate::map(gate.fd.as_fd()).and_then(|mapped| Ok((mapped, linux::duplicate(&gate.fd)?)));
        let gate = gate.map_err(plain)?;
        // A client that was not stopped looks whether this process lives from now on, and not the one before.
        gate.0.close(own_number_seen_by(client));
        let files = saved::gate_files(state.process.tokens(), &identities);
        gate.0.publish(&files).map_err(|errno| {
            format!(
                "the client has {} open files of the device, more than can be restored ({errno})",
                files.len()
            )
        })?;
        let host = Self::of(devices, client, processor, process, gate);
        host.know_files();
        Ok(host)
    }

    /// A device of these GPUs, behind this kernel's driver.
    pub(super) fn with(
        devices: &Devices,
        slot: LedgerSlot,
        client: Pid,
        processor: ClientGpus,
        kernel: KernelModel,
        gate: (Gate, OwnedFd),
    ) -> Self {
        let processor = Arc::new(processor);
        let options = ProcessOptions {
            gpus: devices.gpus().into(),
            hardware: Arc::clone(&processor) as _,
            slot,
            kernel,
            pid: own_number(client),
        };
        let process = KfdProcess::new(options);
        Self::of(devices, client, processor, process, gate)
    }

    fn of(
        devices: &Devices,
        client: Pid,
        processor: Arc<ClientGpus>,
        process: Arc<KfdProcess>,
        gate: (Gate, OwnedFd),
    ) -> Self {
        let interrupts: Weak<dyn Interrupts> = Arc::downgrade(&process) as _;
        processor.connect(interrupts);
        let engine = processor.engine();
        Self {
            engine,
            aperture: devices.aperture(),
            client,
            spec: devices.spec().to_owned(),
            process,
            topology: devices.topology(),
            files: Mutex::default(),
            gpus: processor,
            gate,
            postponed: AtomicU32::new(0),
        }
    }

    /// Knows the files by their numbers that the restored driver knows.
    fn know_files(&self) {
        let mut files = self.files.lock();
        files.extend(self.process.open_files().into_iter().map(|file| (file.id(), file)));
    }

    /// Takes the queues off the hardware, ends the client's calls, and lets it make no other.
    ///
    /// # Errors
    /// Why not; the client's work goes on then.
    pub(super) fn pause(&self, deadline: Instant) -> Result<ExecutorAnswer, String> {
        self.postponed.store(0, Ordering::Relaxed);
        let (gate, _) = &self.gate;
        gate.close(own_number_seen_by(self.client));
        let paused = self.process.pause(deadline).map_err(|error| with_causes(&error)).and_then(|()| {
            gate.wait_empty(deadline).map_err(|calls| {
                // Its own failure is not worth a word beside the reason for it.
                let _ = self.process.resume();
                format!("{calls} calls of the client have not ended by the deadline")
            })
        });
        if let Err(message) = paused {
            gate.open();
            return Err(message);
        }
        Ok(ExecutorAnswer::Paused {
            waves: self.process.saved_waves(),
            waits: self.postponed.load(Ordering::Relaxed),
            queues: self.queues(),
        })
    }

    /// Queues of the client.
    pub(super) fn queues(&self) -> u32 {
        u32::try_from(self.process.object_counts().queues).unwrap_or(u32::MAX)
    }

    /// The end of a pause.
    pub(super) fn resume(&self) {
        if let Err(errno) = self.process.resume() {
            tracing::error!(target: "server", %errno, "a queue does not go on");
        }
        self.gate.0.open();
    }

    /// The whole state while the device is paused, and the memories that it names.
    ///
    /// # Errors
    /// Why it cannot be saved.
    pub(super) fn save(&self) -> Result<(HostState, Memories), String> {
        let (gpus, of_gpus) =
            self.gpus.save().map_err(|errno| format!("the GPUs cannot be saved ({errno})"))?;
        let (process, of_process) = self.process.save().map_err(|error| with_causes(&error))?;
        let gate =
            Memory::of(self.gate.1.as_fd()).map_err(|errno| format!("the gate cannot be saved ({errno})"))?;
        let name = gate.name.clone();
        let memories = of_process.into_iter().chain(of_gpus).chain([gate]).collect();
        Ok((HostState { spec: self.spec.clone(), process, gpus, gate: name }, memories))
    }

    /// What the client has done.
    pub(super) fn summary(&self) -> Summary {
        self.gpus.summary()
    }

    /// The driver.
    pub(super) fn process(&self) -> &Arc<KfdProcess> {
        &self.process
    }

    /// The process this is for.
    pub(super) fn client(&self) -> Pid {
        self.client
    }

    /// Answers a client's greeting. Returns whether it uses this protocol version and asks for these devices; otherwise the
    /// connection ends.
    pub(super) fn hello(&self, protocol: u32, devices: &str) -> (Answer, bool) {
        if protocol == PROTOCOL && devices != self.spec {
            return (
                error(Errno::ENODEV, format!("this softgpud serves {}, not {devices}", self.spec)),
                false,
            );
        }
        // Another protocol is no error: the client compares, and names both versions.
        (Reply::Welcome { protocol: PROTOCOL }.into(), protocol == PROTOCOL)
    }

    /// Answers any request but Hello. `same_process` says whether the client itself sent it, according to the kernel.
    pub(super) fn answer(&self, request: Request, fds: Vec<OwnedFd>, same_process: bool) -> Answer {
        match request {
            Request::Hello { .. } => error(Errno::EPROTO, "Hello twice"),
            Request::ReadSysfs { path } if path == COUNTS_FILE => Reply::Sysfs(Ok(self.gpus.counts())).into(),
            Request::ReadSysfs { path } if path == ENGINE_FILE => {
                Reply::Sysfs(Ok(self.engine.clone())).into()
            }
            Request::ReadSysfs { path } if path == APERTURE_FILE => {
                Reply::Sysfs(Ok(self.aperture.clone())).into()
            }
            Request::ReadSysfs { path } => {
                Reply::Sysfs(self.topology.read_file(&path).map_err(to_raw)).into()
            }
            Request::ReadTopology { skipped } => self.read_topology(skipped).into(),
            Request::Ioctl { file, cmd, arg, segments, shared, fd_places, pages } => {
                let Some(file) = self.file(file) else { return failed_ioctl(Errno::EBADF) };
                if arg.len() != ioc_size(cmd) {
                    return error(
                        Errno::EBADMSG,
                        format!("{} argument bytes for command {cmd:#x}", arg.len()),
                    );
                }
                let caller = Caller { same_process, checkpoint_restore: self.may_checkpoint(cmd) };
                match Descriptors::sort(&fd_places, shared, pages, fds) {
                    Ok((descriptors, shared)) => {
                        let memory = Segments::new(segments, shared, caller);
                        self.ioctl(&file, cmd, arg, memory, descriptors)
                    }
                    Err(errno) => error(errno, "descriptors and their places do not match"),
                }
            }
            Request::MoreFds => error(Errno::EPROTO, "no descriptors are left"),
            _ if !same_process => error(Errno::EBADF, "the connection belongs to another process"),
            Request::Open { path } => match self.open(&path) {
                Ok((file, token)) => match linux::duplicate(&self.gate.1) {
                    Ok(gate) => Answer { reply: self.opened(file), fds: vec![token, gate] },
                    Err(errno) => error(errno, path),
                },
                Err(errno) => error(errno, path),
            },
            Request::Adopt { path } => {
                let Some(token) = fds.first() else { return error(Errno::EBADF, "no token came with Adopt") };
                match self.process.adopt(&path, token.as_fd()) {
                    Ok(file) => self.opened(file).into(),
                    Err(errno) => error(errno, path),
                }
            }
            Request::ExpectStores { file, offset, address, length } => {
                let Some(file) = self.file(file) else { return error(Errno::EBADF, "no such file") };
                let range = address..address.saturating_add(length);
                let pages = fds.into_iter().next().map(|fd| WatchedPages::new(fd, range));
                match self.process.expect_stores(&file, offset, pages) {
                    Ok(()) => Reply::ExpectsStores.into(),
                    Err(errno) => error(errno, "doorbells"),
                }
            }
            Request::Written { ranges, unit } => self.written(&ranges, unit),
            Request::PagesGone(lost) => {
                let done = match lost {
                    LostPages::Object { handle } => self.process.pages_gone(handle),
                    LostPages::Range { address, bytes } => self.process.svm_unmapped(address, bytes),
                };
                match done {
                    Ok(()) => Reply::PagesAreGone.into(),
                    Err(errno) => error(errno, format!("{lost:?}")),
                }
            }
            // The descriptor's own mode says what may be mapped how.
            Request::Mmap { file, length, offset, prot: _ } => self.mmap(file, length, offset),
        }
    }

    /// What the GPUs have written, if clients are to be told.
    fn written(&self, ranges: &[(u64, u64)], unit: u64) -> Answer {
        if !settings::writes() {
            return Reply::Written(None).into();
        }
        match self.gpus.written(ranges, unit) {
            Ok(units) => Reply::Written(Some(units)).into(),
            Err(errno) => error(errno, "written memory"),
        }
    }

    /// As many files as fit a message, and at least one if there are any.
    fn read_topology(&self, skipped: u32) -> Reply {
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (path, text) in self.topology.entries_from(usize::try_from(skipped).unwrap_or(usize::MAX)) {
            bytes += path.len() + text.map_or(0, str::len) + ENTRY_BYTES;
            if bytes > MAX_INLINE_BYTES && !entries.is_empty() {
                return Reply::Topology { entries, more: true };
            }
            entries.push((path.to_owned(), text.map(str::to_owned)));
        }
        Reply::Topology { entries, more: false }
    }

    fn file(&self, id: u64) -> Option<OpenFile> {
        self.files.lock().get(&id).copied()
    }

    /// Opens a file, and forgets those that the client has closed since: it says nothing of that.
    fn open(&self, path: &str) -> Result<(OpenFile, OwnedFd), Errno> {
        for file in self.process.forget_closed() {
            self.files.lock().remove(&file.id());
        }
        self.process.open(path)
    }

    fn opened(&self, file: OpenFile) -> Reply {
        self.files.lock().insert(file.id(), file);
        Reply::Opened { file: file.id() }
    }

    fn ioctl(
        &self,
        file: &OpenFile,
        cmd: u32,
        mut arg: Vec<u8>,
        memory: Segments,
        descriptors: Descriptors,
    ) -> Answer {
        let before = arg.clone();
        let begun = Instant::now();
        let outcome = self.process.ioctl(file, cmd, &mut arg, &memory, &descriptors);
        if outcome == Err(Errno::ERESTART) {
            self.postponed.fetch_add(1, Ordering::Relaxed);
            return Reply::Later { arg }.into();
        }
        let (fd_places, fds) = match outcome {
            Ok(_) => descriptors.into_outgoing(),
            // A failed ioctl installs nothing.
            Err(_) => (Vec::new(), Vec::new()),
        };
        let result = match outcome {
            Ok(value) => i32::try_from(value).unwrap_or(i32::MAX),
            Err(errno) => -to_raw(errno),
        };
        self.gpus.journal().ioctl(&file.command_name(cmd), result, begun.elapsed());
        // The driver leaves the argument alone where the kernel would copy nothing back.
        let copy_back = arg != before || !fd_places.is_empty();
        let Written { segments, shared: written } = memory.into_written();
        Answer { reply: Reply::Ioctl { result, arg, segments, written, fd_places, copy_back }, fds }
    }

    fn mmap(&self, file: u64, length: u64, offset: u64) -> Answer {
        let Some(file) = self.file(file) else { return error(Errno::EBADF, "no such file") };
        match self.process.mmap(&file, length, offset) {
            Ok(mapped) => {
                let fds = std::iter::once(mapped.fd).chain(mapped.parked).collect();
                Answer { reply: Reply::Mapped { offset: mapped.offset }, fds }
            }
            Err(errno) => error(errno, "mmap"),
        }
    }

    /// Whether the client may issue this command if it is the one that needs a capability.
    fn may_checkpoint(&self, cmd: u32) -> bool {
        ioc_nr(cmd) == ioc_nr(AMDKFD_IOC_CRIU_OP) && has_checkpoint_capability(self.client)
    }
}

fn failed_ioctl(errno: Errno) -> Answer {
    let (arg, segments, written, fd_places) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let result = -to_raw(errno);
    Reply::Ioctl { result, arg, segments, written, fd_places, copy_back: false }.into()
}

/// An open gate, and its memory.
pub(super) fn make_gate() -> Result<(Gate, OwnedFd), Errno> {
    Gate::create(&names::unique(GATE_NAME)?)
}

/// This process's number as a client sees it; 0 if it does not, from another PID namespace.
fn own_number_seen_by(client: Pid) -> u32 {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let ours = namespace("self");
    if ours.is_some() && ours == namespace(&client.to_string()) { std::process::id() } else { 0 }
}

/// The process's number in the innermost PID namespace it is in, which is the number that it sees itself.
fn own_number(pid: Pid) -> u32 {
    let pid = pid.as_raw();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let innermost = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    innermost.unwrap_or(pid.unsigned_abs())
}

/// `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`, in this process's user namespace.
fn has_checkpoint_capability(pid: Pid) -> bool {
    const WANTED: u64 = 1 << 40 | 1 << 21;
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let pid = pid.to_string();
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let ours = namespace("self");
    effective & WANTED != 0 && ours.is_some() && namespace(&pid) == ours
}
