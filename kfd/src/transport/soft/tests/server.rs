// SPDX-License-Identifier: MIT OR Apache-2.0
//! A softgpud for tests: a thread per connection that speaks the wire protocol.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::SealFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, listen, setsockopt, socket, sockopt,
};
use parking_lot::Mutex;

use crate::transport::gate::Gate;
use crate::transport::wire::{
    self, FdPlace, LostPages, MAX_FDS, PROTOCOL, Reply, Request, Segment, SharedSegment, WireError,
};
use crate::{linux, sys};

/// An ioctl as the device sees it.
#[derive(Debug)]
pub(super) struct Call {
    pub cmd: u32,
    pub arg: Vec<u8>,
    pub segments: Vec<Segment>,
    pub shared: Vec<SharedSegment>,
    pub fd_places: Vec<FdPlace>,
    pub fds: Vec<OwnedFd>,
}

impl Call {
    pub fn args<T: bytemuck::Pod>(&self) -> T {
        bytemuck::pod_read_unaligned(&self.arg)
    }

    /// The segment at `address`, as a device finds user memory.
    pub fn segment(&self, address: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.address == address)
    }
}

/// The elements of an array in user memory.
pub(super) fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// What the device answers; `None` drops the connection.
pub(super) type Answer = Option<(Reply, Vec<OwnedFd>)>;

/// `result` with the argument copied back.
pub(super) fn answer<T: bytemuck::Pod>(result: i32, args: &T, segments: Vec<Segment>) -> Answer {
    with_fds(result, args, segments, vec![], vec![])
}

pub(super) fn with_fds<T: bytemuck::Pod>(
    result: i32,
    args: &T,
    segments: Vec<Segment>,
    fd_places: Vec<FdPlace>,
    fds: Vec<OwnedFd>,
) -> Answer {
    let arg = bytemuck::bytes_of(args).to_vec();
    Some((Reply::Ioctl { result, arg, segments, written: vec![], fd_places, copy_back: true }, fds))
}

/// `result` with nothing copied back.
pub(super) fn bare(result: i32) -> Answer {
    let (arg, segments, written, fd_places) = (vec![], vec![], vec![], vec![]);
    Some((Reply::Ioctl { result, arg, segments, written, fd_places, copy_back: false }, vec![]))
}

pub(super) fn memfd(bytes: u64) -> OwnedFd {
    linux::memfd("fake", bytes, SealFlag::F_SEAL_SHRINK).unwrap()
}

type Handler = dyn Fn(Call) -> Answer + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    /// Doorbell slice and parked page.
    bells: (OwnedFd, OwnedFd),
    sysfs: BTreeMap<String, String>,
    protocol: u32,
    /// Pages that are gone.
    gone: Mutex<Vec<LostPages>>,
    connections: Mutex<Vec<Arc<OwnedFd>>>,
    live: AtomicUsize,
    opened: AtomicUsize,
    /// Nothing is begun while this is set, as in a process that is stopped.
    stalled: AtomicBool,
    stalled_after_replies: AtomicBool,
}

pub(super) struct Server {
    name: String,
    listener: Arc<OwnedFd>,
    shared: Arc<Shared>,
}

pub(super) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("stasis-test.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Server {
    pub fn start(handler: impl Fn(Call) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_as(&unique_name(), PROTOCOL, handler)
    }

    pub fn start_as(
        name: &str,
        protocol: u32,
        handler: impl Fn(Call) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        // Before listen: accepted sockets inherit it, so that even the first message is signed.
        setsockopt(&listener, sockopt::PassCred, &true).unwrap();
        listen(&listener, Backlog::new(16).unwrap()).unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            bells: (memfd(8192), memfd(4096)),
            sysfs: BTreeMap::from([("generation_id".to_owned(), "7\n".to_owned())]),
            protocol,
            gone: Mutex::default(),
            connections: Mutex::default(),
            live: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            stalled: AtomicBool::new(false),
            stalled_after_replies: AtomicBool::new(false),
        });
        let listener = Arc::new(listener);
        let accepting = (Arc::clone(&listener), Arc::clone(&shared));
        std::thread::spawn(move || accept(&accepting.0, &accepting.1));
        Self { name: name.to_owned(), listener, shared }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pages that were said to be gone.
    pub fn gone(&self) -> Vec<LostPages> {
        self.shared.gone.lock().clone()
    }

    /// Connections that were ever accepted.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Stops it, or lets it go on.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Stands still, or no longer, between the reply to each request from now on and the return of its claim.
    pub fn stall_after_replies(&self, stalled: bool) {
        self.shared.stalled_after_replies.store(stalled, Ordering::SeqCst);
    }

    /// Connections that are open.
    pub fn live(&self) -> usize {
        self.shared.live.load(Ordering::SeqCst)
    }

    /// Waits until `count` connections are open.
    pub fn wait_for_live(&self, count: usize) {
        let begun = Instant::now();
        while self.shared.live.load(Ordering::SeqCst) != count {
            assert!(begun.elapsed() < Duration::from_secs(10), "connections stay open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn bells(&self) -> (&OwnedFd, &OwnedFd) {
        (&self.shared.bells.0, &self.shared.bells.1)
    }

    /// Dies as a killed process does: the name is free and all connections are cut.
    pub fn kill(&self) {
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        for connection in self.shared.connections.lock().drain(..) {
            let _ = nix::sys::socket::shutdown(connection.as_raw_fd(), Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn accept(listener: &OwnedFd, shared: &Arc<Shared>) {
    while let Ok(connection) = linux::accept(listener) {
        shared.opened.fetch_add(1, Ordering::SeqCst);
        shared.live.fetch_add(1, Ordering::SeqCst);
        let connection = Arc::new(connection);
        shared.connections.lock().push(Arc::clone(&connection));
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            serve(&connection, &shared);
            let _ = nix::sys::socket::shutdown(connection.as_raw_fd(), Shutdown::Both);
            shared.live.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn serve(connection: &OwnedFd, shared: &Shared) {
    wire::prepare_socket(connection.as_fd()).unwrap();
    let mut buffer = wire::ReceiveBuffer::new();
    let mut left = Vec::new();
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let claim = OwnedFd::from(EventFd::from_value_and_flags(1, flags).unwrap());
    loop {
        let received = match wire::receive::<Request>(connection.as_fd(), &mut buffer) {
            Err(WireError::Closed) => return,
            received => received.unwrap(),
        };
        let sender = received.credentials.expect("SO_PASSCRED names the sender");
        assert_eq!(sender.pid(), nix::unistd::getpid().as_raw());
        while shared.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if nix::unistd::read(&claim, &mut [0; 8][..]).is_err() {
            continue;
        }
        // The claims of requests before are returned.
        let stalls = shared.stalled_after_replies.load(Ordering::SeqCst);
        let is_greeting = matches!(received.message, Request::Hello { .. });
        let (reply, mut fds) = if received.message == Request::MoreFds {
            (Reply::Fds, std::mem::take(&mut left))
        } else {
            let Some(answer) = reply_to(received.message, received.fds, shared) else { return };
            answer
        };
        if is_greeting {
            fds.push(claim.try_clone().unwrap());
        }
        left = fds.split_off(fds.len().min(MAX_FDS));
        if wire::send(connection.as_fd(), &reply, &wire::borrow_all(&fds)).is_err() {
            return;
        }
        while stalls && shared.stalled_after_replies.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        nix::unistd::write(&claim, &1u64.to_ne_bytes()).unwrap();
    }
}

fn reply_to(request: Request, fds: Vec<OwnedFd>, shared: &Shared) -> Answer {
    let plain = |reply| Some((reply, vec![]));
    match request {
        Request::Hello { devices, .. } if devices == "gfx1100" => {
            plain(Reply::Welcome { protocol: shared.protocol })
        }
        Request::Hello { devices, .. } => {
            plain(Reply::Error { errno: 22, message: format!("serves no {devices}") })
        }
        Request::Open { path } if path.starts_with("/dev/") => {
            let (_, gate) = Gate::create("fake").unwrap();
            Some((Reply::Opened { file: 1 }, vec![memfd(0), gate]))
        }
        Request::Open { path } => plain(Reply::Error { errno: 2, message: path }),
        Request::ExpectStores { .. } => plain(Reply::ExpectsStores),
        Request::PagesGone(lost) => {
            shared.gone.lock().push(lost);
            plain(Reply::PagesAreGone)
        }
        Request::Written { .. } => plain(Reply::Written(None)),
        Request::Adopt { .. } if fds.len() == 1 => plain(Reply::Opened { file: 2 }),
        Request::Adopt { .. } => plain(Reply::Error { errno: 22, message: "no token".to_owned() }),
        Request::Ioctl { cmd, arg, segments, shared: large, fd_places, .. } => {
            (shared.handler)(Call { cmd, arg, segments, shared: large, fd_places, fds })
        }
        Request::MoreFds => unreachable!("answered with the descriptors that are left"),
        Request::Mmap { offset, length, .. }
            if offset & sys::KFD_MMAP_TYPE_MASK == sys::KFD_MMAP_TYPE_DOORBELL =>
        {
            assert_eq!(length, 8192);
            let (slice, parked) = (shared.bells.0.try_clone().unwrap(), shared.bells.1.try_clone().unwrap());
            Some((Reply::Mapped { offset: 0 }, vec![slice, parked]))
        }
        Request::Mmap { .. } => plain(Reply::Error { errno: 13, message: "not allowed".to_owned() }),
        Request::ReadSysfs { path } => plain(Reply::Sysfs(shared.sysfs.get(&path).cloned().ok_or(2))),
        // One at a time, as if no more fitted a message.
        Request::ReadTopology { skipped } => {
            let files = shared.sysfs.iter().map(|(path, text)| (path.clone(), Some(text.clone())));
            let mut all = files.chain([("nodes".to_owned(), None)]).skip(skipped as usize);
            let entries = all.next().into_iter().collect();
            plain(Reply::Topology { entries, more: all.next().is_some() })
        }
    }
}
