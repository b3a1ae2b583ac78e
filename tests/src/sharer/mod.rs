// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several `share-worker`s in one process tree on one software device, and the operations of a test on them.
//!
//! INVARIANT: workers act only on orders, and answer when an order is done; so a test always knows which worker holds
//! which object.

mod frozen;
pub mod graph;
pub mod language;
mod pending;

pub use self::pending::Pending;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stasis::checkpoint::{CallError, CheckpointOrder, Done, Objects, Request, call};
use stasis::share::{Member, SessionOrder};
use tempfile::TempDir;

use self::language::{Answer, Ask, Order, receive, send};
use crate::worker::{is_alive, kill, wait_until};
use crate::{detached, program};

/// TIMEOUT: how long anything that is to happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The workers. The first is the root of the tree and starts the others.
#[derive(Debug)]
pub struct Sharers {
    directory: TempDir,
    socket: UnixDatagram,
    root: Child,
    root_name: String,
    pids: BTreeMap<String, i32>,
    parents: BTreeMap<String, String>,
    generations: u32,
    pendings: Cell<u32>,
}

impl Sharers {
    /// Starts workers of these names on a software device of their own.
    ///
    /// # Panics
    /// When one does not start.
    #[must_use]
    pub fn start(device: &str, names: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = UnixDatagram::bind(directory.path().join("driver.sock")).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let instance = format!("sharers-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = detached(directory.path())
            .arg(program("share-worker"))
            .arg(directory.path().join(format!("{}.sock", names[0])))
            .env("STASIS_DEVICE", device)
            .env("STASIS_SOFTGPU_INSTANCE", instance)
            .spawn()
            .expect("setsid (util-linux)");
        let pids = BTreeMap::from([(names[0].to_owned(), root.id().cast_signed())]);
        let mut sharers = Self {
            directory,
            socket,
            root,
            root_name: names[0].to_owned(),
            pids,
            parents: BTreeMap::new(),
            generations: 0,
            pendings: Cell::new(0),
        };
        sharers.wait_for(names[0]);
        for name in &names[1..] {
            sharers.spawn(names[0], name, &[]);
        }
        sharers
    }

    fn wait_for(&self, name: &str) {
        let path = self.socket_of(name);
        wait_until(&format!("the start of {name}"), || {
            assert!(is_alive(self.pid(name)), "{name} ended: {}", self.log());
            path.exists()
        });
    }

    /// Has a worker start another, which inherits these descriptors.
    ///
    /// # Panics
    /// When it does not start.
    pub fn spawn(&mut self, parent: &str, name: &str, inherit: &[&str]) {
        let inherit = inherit.iter().map(|fd| (*fd).to_owned()).collect();
        match self.ask(parent, Ask::Spawn { socket: self.socket_of(name), inherit }) {
            Answer::Pid(pid) => drop(self.pids.insert(name.to_owned(), pid)),
            other => panic!("{other:?}"),
        }
        self.parents.insert(name.to_owned(), parent.to_owned());
        self.wait_for(name);
    }

    /// A path of the test's own.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A worker's socket.
    #[must_use]
    pub fn socket_of(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.sock"))
    }

    /// The log of all workers.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A worker's pid.
    ///
    /// # Panics
    /// When there is no such worker.
    #[must_use]
    pub fn pid(&self, name: &str) -> i32 {
        self.pids[name]
    }

    /// The name of the first worker, which started the others.
    #[must_use]
    pub fn root_name(&self) -> &str {
        &self.root_name
    }

    /// Whether a worker has started others that have not ended.
    #[must_use]
    pub fn has_children(&self, name: &str) -> bool {
        self.parents.values().any(|parent| parent == name)
    }

    /// The workers' names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.pids.keys().cloned().collect()
    }

    /// Has a worker do something.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn try_ask(&self, name: &str, ask: Ask) -> Answer {
        let order = Order { reply: Some(self.path("driver.sock")), ask };
        let sent = send(&self.socket, &self.socket_of(name), &order, None);
        sent.unwrap_or_else(|error| panic!("{name} does not listen ({error}): {}", self.log()));
        match receive(&self.socket) {
            Ok((answer, _)) => answer,
            Err(error) => panic!("{name} does not answer {order:?} ({error}): {}", self.log()),
        }
    }

    /// The same, which is to succeed.
    ///
    /// # Panics
    /// When it fails.
    pub fn ask(&self, name: &str, ask: Ask) -> Answer {
        match self.try_ask(name, ask.clone()) {
            Answer::Failed(why) => panic!("{name} {ask:?}: {why}"),
            answer => answer,
        }
    }

    /// Has a worker end.
    ///
    /// # Panics
    /// When it does not.
    pub fn exit(&mut self, name: &str) {
        self.ask(name, Ask::Exit);
        let pid = self.pids.remove(name).expect("a worker");
        self.parents.remove(name);
        wait_until("a worker's end", || !is_alive(pid));
        if name == self.root_name {
            let _ = self.root.wait();
        }
        let _ = fs::remove_file(self.socket_of(name));
    }

    /// The objects of a worker's runtime.
    ///
    /// # Panics
    /// When it does not say.
    #[must_use]
    pub fn objects(&self, name: &str) -> Objects {
        match call(self.pid(name), &Request::Info, PATIENCE) {
            Ok((_, Done::Info(info))) => info.objects.expect("nobody holds the registry"),
            other => panic!("{other:?}"),
        }
    }

    /// Orders for a checkpoint of these workers in one session, into a new directory.
    ///
    /// # Panics
    /// When that cannot be made.
    pub fn orders(&mut self, names: &[String], patience_ms: u64) -> Vec<(i32, CheckpointOrder)> {
        self.generations += 1;
        let directory = self.path(&format!("generation-{}", self.generations));
        let meeting = directory.join("session");
        fs::create_dir_all(&meeting).expect("a directory");
        let member = |name: &String| Member { name: name.clone(), image: Path::new("..").join(name) };
        let members: Vec<Member> = names.iter().map(member).collect();
        let order = |name: &String| {
            let image = directory.join(name);
            fs::create_dir(&image).expect("a directory");
            let session = Some(SessionOrder {
                id: format!("generation-{}", self.generations),
                directory: meeting.clone(),
                from_image: "../session".into(),
                name: name.clone(),
                members: members.clone(),
                patience_ms,
            });
            (self.pid(name), CheckpointOrder { session, ..CheckpointOrder::into_directory(image) })
        };
        names.iter().map(order).collect()
    }

    /// Checkpoints workers together while their processes live on, and has them resume.
    ///
    /// # Errors
    /// The processes' errors; those that were checkpointed have resumed nevertheless.
    pub fn around(&mut self, names: &[String]) -> Result<(), Vec<CallError>> {
        let orders = self.orders(names, 60_000);
        let mut failed = at_once(&orders, |(pid, order)| {
            call(*pid, &Request::Checkpoint(order.clone()), PATIENCE).map(drop)
        });
        // A process that was not checkpointed runs in any case.
        failed.extend(at_once(&orders, |(pid, _)| {
            call(*pid, &Request::Resume { directory: None, admission: None }, PATIENCE).map(drop)
        }));
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }
}

/// Does something for all at the same time. Returns the failures.
fn at_once<T: Sync, E: Send>(all: &[T], act: impl Fn(&T) -> Result<(), E> + Sync) -> Vec<E> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| act(one))).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic").err()).collect()
    })
}

impl Drop for Sharers {
    fn drop(&mut self) {
        // Restored workers are not children of the test; no other process has these pids while the test has their log.
        for pid in self.pids.values() {
            let ours = fs::read_link(format!("/proc/{pid}/fd/1"));
            if ours.is_ok_and(|log| log == self.path("log")) {
                kill(*pid);
            }
        }
        let _ = self.root.wait();
    }
}
