// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that allocates, shares, reads and writes memory by orders (`stasis_tests::sharer`). It has one socket,
//! bound to a path and not connected, so that CRIU can dump the process at any moment between two orders.
//!
//! `share-worker SOCKET [NAME=NUMBER]...`: the inherited descriptors and their names.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::SealFlag;
use nix::sys::signal::{SigHandler, signal};
use nix::sys::stat::fstat;
use nix::unistd::{dup, setsid};
use stasis::share::{Item, Received, SharedName};
use stasis::{Buffer, Condition, Queue, QueueOptions, Runtime, Signal, WaitMode};
use stasis_tests::sharer::language::{Answer, Ask, By, Order, Seen, receive, send};

/// TIMEOUT: how long the owner of a name may be locked.
const LIMIT: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Worker {
    runtime: Runtime,
    buffers: BTreeMap<String, Buffer>,
    fds: BTreeMap<String, OwnedFd>,
    signals: BTreeMap<String, Signal>,
    queue: Option<Queue>,
}

fn named(name: Vec<u8>) -> Result<SharedName> {
    Ok(SharedName::from_bytes(name.try_into().map_err(|_| "a name has 20 bytes")?))
}

impl Worker {
    fn signal(&self, name: &str) -> Result<&Signal> {
        self.signals.get(name).ok_or_else(|| format!("no signal {name}").into())
    }

    fn buffer(&self, name: &str) -> Result<&Buffer> {
        self.buffers.get(name).ok_or_else(|| format!("no buffer {name}").into())
    }

    fn fd(&self, name: &str) -> Result<&OwnedFd> {
        self.fds.get(name).ok_or_else(|| format!("no descriptor {name}").into())
    }

    fn obey(&mut self, socket: &UnixDatagram, ask: Ask, beside: Option<OwnedFd>) -> Result<Answer> {
        match ask {
            Ask::Alloc { buffer, bytes, agent } => {
                let pool = match agent {
                    Some(agent) => self.runtime.agent(agent).ok_or("no such agent")?.vram(),
                    None => self.runtime.gtt(),
                };
                self.buffers.insert(buffer, pool.alloc(bytes)?);
            }
            Ask::Export { buffer, fd } => drop(self.fds.insert(fd, self.buffer(&buffer)?.export()?)),
            Ask::Dup { fd, to } => drop(self.fds.insert(to, dup(self.fd(&fd)?)?)),
            Ask::Close { fd } => drop(self.fds.remove(&fd).ok_or("no such descriptor")?),
            Ask::Send { fd, to } => {
                let take = Order { reply: None, ask: Ask::Take { fd: fd.clone() } };
                send(socket, &to, &take, Some(self.fd(&fd)?.as_fd()))?;
            }
            Ask::Take { fd } => drop(self.fds.insert(fd, beside.ok_or("nothing came beside it")?)),
            Ask::Import { fd, buffer, agent } => {
                let agent = self.runtime.agent(agent).ok_or("no such agent")?;
                let imported = self.runtime.import(self.fd(&fd)?, &agent)?;
                self.buffers.insert(buffer, imported);
            }
            Ask::Free { buffer } => self.buffers.remove(&buffer).ok_or("no such buffer")?.free()?,
            Ask::Write { buffer, offset, bytes, by: By::Cpu } => {
                self.buffer(&buffer)?.write(offset, &bytes)?;
            }
            Ask::Write { buffer, offset, bytes, by: By::Device } => {
                let stage = self.runtime.gtt().alloc(bytes.len() as u64)?;
                stage.write(0, &bytes)?;
                let to = self.buffer(&buffer)?.span(offset, bytes.len() as u64);
                self.runtime.copy(to, stage.all(), &[])?.wait(None)?;
            }
            Ask::Read { buffer, offset, bytes, by } => {
                let mut read = vec![0; bytes];
                let buffer = self.buffer(&buffer)?;
                match by {
                    By::Cpu => buffer.read(offset, &mut read)?,
                    By::Device => {
                        let stage = self.runtime.gtt().alloc(bytes as u64)?;
                        let from = buffer.span(offset, bytes as u64);
                        self.runtime.copy(stage.all(), from, &[])?.wait(None)?;
                        stage.read(0, &mut read)?;
                    }
                }
                return Ok(Answer::Bytes(read));
            }
            Ask::Descriptors => {
                let seen = |fd: &OwnedFd| -> Result<Seen> {
                    Ok(Seen {
                        number: fd.as_raw_fd(),
                        inode: fstat(fd)?.st_ino,
                        is_cloexec: kfd::linux::closes_on_exec(fd)?,
                    })
                };
                let all = self.fds.iter().map(|(name, fd)| Ok((name.clone(), seen(fd)?)));
                return Ok(Answer::Descriptors(all.collect::<Result<_>>()?));
            }
            Ask::Spawn { socket, inherit } => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(socket).stdin(Stdio::null());
                let mut inherited = Vec::new();
                for name in inherit {
                    let fd = dup(self.fd(&name)?)?;
                    command.arg(format!("{name}={}", fd.as_raw_fd()));
                    inherited.push(fd);
                }
                let pid = command.spawn()?.id().cast_signed();
                return Ok(Answer::Pid(pid));
            }
            Ask::Memfd { fd, bytes, is_sealed } => {
                let seals = if is_sealed {
                    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW
                } else {
                    SealFlag::empty()
                };
                let file = kfd::linux::memfd("another-driver", bytes, seals)?;
                self.fds.insert(fd, file);
            }
            Ask::Pair { one, other } => {
                let (near, far) = UnixStream::pair()?;
                self.fds.extend([(one, near.into()), (other, far.into())]);
            }
            Ask::Pass { over, buffers, signals } => {
                let buffers = buffers.iter().map(|name| self.buffer(name)).collect::<Result<Vec<_>>>()?;
                let signals = signals.iter().map(|name| self.signal(name)).collect::<Result<Vec<_>>>()?;
                let signals = signals.into_iter().map(Item::Signal);
                let items: Vec<_> = buffers.into_iter().map(Item::Buffer).chain(signals).collect();
                self.runtime.send(self.fd(&over)?, &items)?;
            }
            Ask::Receive { over, agent, names } => {
                let agent = self.runtime.agent(agent).ok_or("no such agent")?;
                let came = self.runtime.receive(self.fd(&over)?, &agent)?;
                if came.len() != names.len() {
                    return Err(format!("{} objects came", came.len()).into());
                }
                for (name, received) in names.into_iter().zip(came) {
                    match received {
                        Received::Buffer(buffer) => drop(self.buffers.insert(name, buffer)),
                        Received::Signal(signal) => drop(self.signals.insert(name, signal)),
                    }
                }
            }
            Ask::Name { object } => {
                let name = match self.buffers.get(&object) {
                    Some(buffer) => buffer.name()?,
                    None => self.signal(&object)?.name()?,
                };
                return Ok(Answer::Bytes(name.to_bytes().to_vec()));
            }
            Ask::ImportNamed { name, buffer, agent, limit_ms } => {
                let limit = Duration::from_millis(limit_ms);
                let agent = self.runtime.agent(agent).ok_or("no such agent")?;
                let imported = self.runtime.import_named(&named(name)?, &agent, limit)?;
                self.buffers.insert(buffer, imported);
            }
            Ask::ImportNamedSignal { name, signal } => {
                let imported = self.runtime.import_named_signal(&named(name)?, LIMIT)?;
                self.signals.insert(signal, imported);
            }
            Ask::Lead => drop(setsid()?),
            Ask::Speak { over, bytes } => {
                fs::File::from(self.fd(&over)?.try_clone()?).write_all(&bytes)?;
            }
            ask => return self.signalling(ask),
        }
        Ok(Answer::Done)
    }

    /// The orders that concern signals.
    fn signalling(&mut self, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Signal { signal, value, is_shared } => {
                let make = if is_shared { Signal::shared } else { Signal::new };
                self.signals.insert(signal, make(&self.runtime, value)?);
            }
            Ask::ExportSignal { signal, fd } => drop(self.fds.insert(fd, self.signal(&signal)?.export()?)),
            Ask::ImportSignal { fd, signal } => {
                let imported = self.runtime.import_signal(self.fd(&fd)?)?;
                self.signals.insert(signal, imported);
            }
            Ask::DropSignal { signal } => drop(self.signals.remove(&signal).ok_or("no such signal")?),
            Ask::Store { signal, value } => self.signal(&signal)?.store(value)?,
            Ask::Load { signal } => return Ok(Answer::Value(self.signal(&signal)?.load()?)),
            Ask::Await { signal, below, begun } => {
                let signal = self.signal(&signal)?;
                fs::write(begun, "")?;
                let value = signal.wait(Condition::LessThan(below), None, WaitMode::Auto)?;
                return Ok(Answer::Value(value));
            }
            Ask::Produce { buffer, offset, bytes, signal } => {
                if self.queue.is_none() {
                    let agent = self.runtime.agent(0).ok_or("no agent")?;
                    self.queue = Some(Queue::create(&agent, QueueOptions::default())?);
                }
                let queue = self.queue.as_ref().ok_or("no queue")?;
                let stage = self.runtime.gtt().alloc(bytes.len() as u64)?;
                stage.write(0, &bytes)?;
                let to = self.buffer(&buffer)?.span(offset, bytes.len() as u64);
                let copied = self.runtime.copy(to, stage.all(), &[])?;
                queue.barrier(&[copied.signal()], Some(self.signal(&signal)?))?;
                copied.wait(None)?;
            }
            Ask::Consume { buffer, offset, bytes, signal, begun } => {
                let stage = self.runtime.gtt().alloc(bytes as u64)?;
                let from = self.buffer(&buffer)?.span(offset, bytes as u64);
                let copied = self.runtime.copy(stage.all(), from, &[self.signal(&signal)?])?;
                fs::write(begun, "")?;
                copied.wait(None)?;
                let mut read = vec![0; bytes];
                stage.read(0, &mut read)?;
                return Ok(Answer::Bytes(read));
            }
            _ => {}
        }
        Ok(Answer::Done)
    }
}

/// A descriptor that the parent has left open for this process.
fn inherited(argument: &str) -> Result<(String, OwnedFd)> {
    let (name, number) = argument.split_once('=').ok_or("NAME=NUMBER is wanted")?;
    // SAFETY: the parent has left it open for this process, and no other code of this process knows its number.
    #[allow(unsafe_code)]
    let fd = unsafe { OwnedFd::from_raw_fd(number.parse()?) };
    Ok((name.to_owned(), fd))
}

/// Closes all other inherited descriptors.
fn close_others(mut kept: Vec<i32>) {
    kept.extend([0, 1, 2]);
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| !kept.contains(number)) {
        // Nothing in this process owns it yet. The listing's own is closed already; that error has no consequence.
        let _ = nix::unistd::close(number);
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("where is the socket to be?")?;
    let fds: BTreeMap<_, _> = arguments.map(|argument| inherited(&argument)).collect::<Result<_>>()?;
    close_others(fds.values().map(AsRawFd::as_raw_fd).collect());
    // The kernel reaps ended children by itself.
    // SAFETY: changes a disposition before there are threads or children.
    #[allow(unsafe_code)]
    unsafe {
        signal(nix::sys::signal::Signal::SIGCHLD, SigHandler::SigIgn)?;
    }
    let runtime = Runtime::open_default()?;
    let (buffers, signals) = (BTreeMap::new(), BTreeMap::new());
    let mut worker = Worker { runtime, buffers, fds, signals, queue: None };
    // The socket appears only when the runtime is open.
    let socket = UnixDatagram::bind(Path::new(&path))?;
    loop {
        let (Order { reply, ask }, beside) = receive(&socket)?;
        let (is_last, until) = (
            matches!(ask, Ask::Exit),
            match &ask {
                Ask::Deaf { until } => Some(until.clone()),
                _ => None,
            },
        );
        let answer = worker
            .obey(&socket, ask, beside)
            .unwrap_or_else(|error| Answer::Failed(stasis::explain(&*error)));
        if let Some(reply) = reply {
            send(&socket, &reply, &answer, None)?;
        }
        if is_last {
            return Ok(());
        }
        while until.as_ref().is_some_and(|until| !until.exists()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", stasis::explain(&*error));
            std::process::ExitCode::FAILURE
        }
    }
}
