// SPDX-License-Identifier: MIT OR Apache-2.0
//! softgpud as its clients meet it: the built binary, real sockets, real processes.
#![allow(clippy::unwrap_used)]

mod client;
mod criu;
mod drm;
mod hostile;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use client::Client;
use kfd::ioctl::WaitOutcome;
use kfd::{Kfd, Transport};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use queues::aql::{Barrier, Packet};

/// Set in a process that this test started to be a client.
const CLIENT_VARIABLE: &str = "SOFTGPU_TEST_CLIENT";

/// A softgpud of our own.
struct Server {
    socket: String,
    broker: Child,
}

impl Server {
    fn start() -> Self {
        Self::under("7.3")
    }

    /// The driver of this kernel (`SOFTGPU_KERNEL`).
    fn under(kernel: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let socket = format!("stasis-softgpud.test.{}.{number}", std::process::id());
        let broker = serve(&socket, kernel);
        Self { socket, broker }
    }

    /// Executors with a client.
    fn executors(&self) -> Vec<u32> {
        let has_client = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.starts_with("client "))
        };
        self.children().into_iter().filter(has_client).collect()
    }

    /// Processes whose parent is the broker.
    fn children(&self) -> Vec<u32> {
        let parent = self.broker.id().to_string();
        let is_child = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Behind the name, which may hold anything: state, then the parent.
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            fields.next() != Some("Z") && fields.next() == Some(&parent)
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
    }

    /// How long the broker takes to end by itself, which it must do well.
    fn wait_end(&mut self, limit: Duration) -> Duration {
        let since = Instant::now();
        loop {
            if let Some(status) = self.broker.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return since.elapsed();
            }
            assert!(since.elapsed() < limit, "the broker is still there after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours; its executors end with their clients.
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

fn serve(socket: &str, kernel: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_softgpud"))
        .args(["serve", "--devices", "gfx1100", "--socket", socket])
        .env("SOFTGPU_KERNEL", kernel)
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// Another process of this binary that does what [`be_client`] says; returns once it says that it is ready.
fn spawn_client(socket: &str, what: &str) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "be_client", "--nocapture"])
        .env(CLIENT_VARIABLE, format!("{socket} {what}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")), "the client failed");
    child
}

/// A child that is killed when it goes out of scope.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited 10 s for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Machine code of gfx1100 assembly.
fn assemble(source: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (object, binary) = (directory.path().join("k.o"), directory.path().join("k.bin"));
    let mut assembler = Command::new("llvm-mc-19")
        .args(["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-filetype=obj", "-o"])
        .arg(&object)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    assembler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(assembler.wait().unwrap().success());
    let arguments = ["-O", "binary", "--only-section=.text"];
    assert!(
        Command::new("llvm-objcopy-19").args(arguments).args([&object, &binary]).status().unwrap().success()
    );
    std::fs::read(binary).unwrap()
}

/// Not a test of its own: what a process started by [`spawn_client`] does.
#[test]
fn be_client() {
    let Ok(order) = std::env::var(CLIENT_VARIABLE) else { return };
    let (socket, what) = order.split_once(' ').unwrap();
    let mut client = Client::connect(socket);
    if what == "endless" {
        let (queue, arguments, signal) = (client.queue(), client.data(4096), client.data(64));
        let code = assemble(
            "s_load_b64 s[4:5], s[0:1], 0\n v_mov_b32 v0, 0\n v_mov_b32 v1, 1\n s_waitcnt lgkmcnt(0)\n
             again:\n global_store_b32 v0, v1, s[4:5]\n s_branch again",
        );
        let (kernel, flag) = (client.kernel(&code), client.data(4096));
        arguments.u64(0).store(flag.va, Ordering::Relaxed);
        queue.dispatch(&kernel, arguments.va, &signal);
        eventually("the kernel", || flag.u32(0).load(Ordering::SeqCst) == 1);
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}

#[test]
fn version_topology_and_memory_end_to_end() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let version = client.kfd.get_version().unwrap();
    assert_eq!((version.major, version.minor), (1, 23));
    let before = client.kfd.available_memory(client.gpu).unwrap();
    let buffer = client.data(1 << 20);
    buffer.u64(4096).store(7, Ordering::Relaxed);
    client.kfd.unmap_memory(buffer.handle, &[client.gpu]).unwrap();
    client.kfd.free_memory(buffer.handle).unwrap();
    assert_eq!(client.kfd.available_memory(client.gpu).unwrap(), before);
    assert_eq!(server.executors().len(), 1);
}

#[test]
fn barrier_packet_wakes_a_waiting_host() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let (queue, (signal, event)) = (client.queue(), client.interrupt_signal());
    let mut times = Vec::new();
    for _ in 0..50 {
        signal.u64(8).store(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        let since = Instant::now();
        queue.submit(&Packet::BarrierAnd(Barrier { completion_signal: signal.va, ..Barrier::noop() }));
        let mut events = [event];
        let outcome = client.kfd.wait_events(&mut events, true, Some(Duration::from_secs(10))).unwrap();
        times.push(since.elapsed());
        assert_eq!(outcome, WaitOutcome::Complete);
        assert_eq!(signal.u64(8).load(Ordering::SeqCst), 0, "woken before completion");
    }
    times.sort();
    println!("doorbell, completion, interrupt, WAIT_EVENTS: median {:?}, worst {:?}", times[25], times[49]);
    client.kfd.destroy_queue(queue.id).unwrap();
}

#[test]
fn kernel_runs_end_to_end() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let (queue, (signal, event)) = (client.queue(), client.interrupt_signal());
    let (array, arguments) = (client.data(4096), client.data(4096));
    arguments.u64(0).store(array.va, Ordering::Relaxed);
    let kernel = client.kernel(&assemble(
        "s_load_b64 s[4:5], s[0:1], 0\n v_and_b32 v0, 0x3ff, v0\n v_lshlrev_b32 v1, 2, v0\n
         v_mul_u32_u24 v0, 3, v0\n s_waitcnt lgkmcnt(0)\n global_store_b32 v1, v0, s[4:5]\n s_endpgm",
    ));
    queue.dispatch(&kernel, arguments.va, &signal);
    let outcome = client.kfd.wait_events(&mut [event], true, Some(Duration::from_secs(10))).unwrap();
    assert_eq!(outcome, WaitOutcome::Complete);
    let found: Vec<u32> = (0..32).map(|lane| array.u32(4 * lane).load(Ordering::SeqCst)).collect();
    assert_eq!(found, (0..32).map(|lane| 3 * lane).collect::<Vec<_>>());
}

#[test]
fn blocked_wait_does_not_block_other_calls() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let (_, event) = client.interrupt_signal();
    std::thread::scope(|scope| {
        let waiter = scope
            .spawn(|| client.kfd.wait_events(&mut [event], true, Some(Duration::from_secs(10))).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let since = Instant::now();
        client.kfd.get_version().unwrap();
        assert!(since.elapsed() < Duration::from_secs(1));
        client.kfd.set_event(kfd::EventId(event.event_id)).unwrap();
        assert_eq!(waiter.join().unwrap(), WaitOutcome::Complete);
    });
}

#[test]
fn killed_client_leaves_no_executor_and_the_broker_ends() {
    let mut server = Server::start();
    let clients = [spawn_client(&server.socket, "idle"), spawn_client(&server.socket, "endless")];
    assert_eq!(server.executors().len(), 2, "one for each process");
    drop(clients);
    eventually("the executors to end", || server.executors().is_empty());
    let took = server.wait_end(Duration::from_secs(3));
    println!("broker ended {took:?} after its last client was killed");
}

#[test]
fn executor_is_ready_for_a_third_client_also_when_the_ready_one_is_killed() {
    let mut server = Server::start();
    let first = spawn_client(&server.socket, "idle");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.children(), server.executors(), "one client may be all that come");
    let second = spawn_client(&server.socket, "idle");
    let ready = |server: &Server| {
        let with_client = server.executors();
        server.children().into_iter().find(|child| !with_client.contains(child))
    };
    eventually("an executor to be ready", || ready(&server).is_some());
    let used = ready(&server).unwrap();
    let third = spawn_client(&server.socket, "idle");
    assert!(server.executors().contains(&used), "the one that was ready has the client");
    eventually("the next one to be ready", || ready(&server).is_some_and(|other| other != used));
    let killed = Pid::from_raw(ready(&server).unwrap().cast_signed());
    nix::sys::signal::kill(killed, Signal::SIGKILL).unwrap();
    let fourth = spawn_client(&server.socket, "idle");
    assert_eq!(server.executors().len(), 4);
    drop((first, second, third, fourth));
    server.wait_end(Duration::from_secs(3));
    eventually("all to end", || server.children().is_empty());
}

#[test]
fn closing_is_not_ending() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    let executor = server.executors();
    let Client { transport, kfd, .. } = client;
    drop(kfd);
    let _ = transport.close();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.executors(), executor, "KFD keeps a process's state until the process ends");
    let kfd = Kfd::open(&transport).unwrap();
    kfd.get_version().unwrap();
    assert_eq!(server.executors(), executor);
}

#[test]
fn second_instance_leaves_at_once() {
    let server = Server::start();
    drop(Client::connect(&server.socket));
    let since = Instant::now();
    assert!(serve(&server.socket, "7.3").wait().unwrap().success());
    assert!(since.elapsed() < Duration::from_secs(2));
}

#[test]
fn broker_without_clients_ends() {
    let mut server = Server::start();
    let took = server.wait_end(Duration::from_secs(10));
    assert!(took > Duration::from_secs(3), "{took:?}");
}

#[test]
fn dead_broker_leaves_running_clients_alone() {
    let mut server = Server::start();
    let client = Client::connect(&server.socket);
    server.broker.kill().unwrap();
    server.broker.wait().unwrap();
    for _ in 0..20 {
        client.kfd.get_version().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}
