// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server of S3's interface with one bucket, and a bad line to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::worker::wait_until;
use crate::{criu, program};

/// The server, from its start to its end.
#[derive(Debug)]
pub struct S3Server {
    process: Child,
    address: SocketAddr,
}

/// The Python with the server that `cargo xtask setup --s3` has installed.
fn python() -> PathBuf {
    let named = std::env::var_os("STASIS_S3_PYTHON").map(PathBuf::from);
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/s3/bin/python");
    named
        .into_iter()
        .chain([private])
        .find(|path| path.is_file())
        .expect("no S3 server: run `cargo xtask setup --s3`")
}

impl S3Server {
    /// Starts it, with an empty bucket.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start() -> Self {
        let address =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).expect("a port");
        let mut command = Command::new(python());
        command.args(["-I", "-c", include_str!("s3_server.py"), &address.port().to_string()]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the S3 server");
        let server = Self { process, address };
        wait_until("the S3 server's bucket", || {
            let made = ureq::put(format!("http://{address}/bucket")).send_empty();
            made.is_ok_and(|made| made.status().is_success())
        });
        server
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command `stasis` with a server of S3 at `address`, and a place of its own for what is on its way.
///
/// # Panics
/// When the directory cannot be made.
#[must_use]
pub fn stasis_at(address: SocketAddr, staging: &Path, arguments: &[&str]) -> Command {
    std::fs::create_dir_all(staging).expect("a directory");
    let mut command = Command::new(program("stasis"));
    command.args(arguments).env("STASIS_CRIU", criu()).env_remove("STASIS_DEVICE");
    command.env("STASIS_STAGING", staging).env("AWS_ENDPOINT_URL", format!("http://{address}"));
    command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
    command.env_remove("AWS_ENDPOINT_URL_S3").env_remove("AWS_SESSION_TOKEN");
    command
}

/// The same, to its end.
///
/// # Panics
/// When it cannot be started.
#[must_use]
pub fn run_at(address: SocketAddr, staging: &Path, arguments: &[&str]) -> Output {
    stasis_at(address, staging, arguments).output().expect("stasis")
}

/// A line to a server that breaks connections, after as many bytes as a seed says, or lets none through.
#[derive(Debug)]
pub struct BadLine {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Most bytes of a connection, on average twice what goes through; 0 without a limit.
    most: AtomicU64,
    is_down: AtomicBool,
    drawn: AtomicU64,
    broken: AtomicU64,
}

impl State {
    /// After how many bytes a connection breaks.
    fn draw(&self) -> u64 {
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return u64::MAX;
        }
        let number = self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let hash = blake3::hash(&number.to_le_bytes());
        hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte)) % most
    }
}

impl BadLine {
    /// A line to `server` whose connections break after at most `most` bytes in one direction; 0 without a limit.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn to(server: SocketAddr, most: u64, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            most: most.into(),
            is_down: false.into(),
            drawn: seed.into(),
            broken: 0.into(),
        });
        let shared = Arc::clone(&state);
        // It ends with the process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || carry(&client, server, &state));
            }
        });
        Self { address, state }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing through any more, or everything.
    pub fn set_down(&self, is_down: bool) {
        self.state.is_down.store(is_down, Ordering::Relaxed);
    }

    /// How many connections broke.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.state.broken.load(Ordering::Relaxed)
    }
}

fn carry(client: &TcpStream, server: SocketAddr, state: &State) {
    if state.is_down.load(Ordering::Relaxed) {
        return;
    }
    let Ok(server) = TcpStream::connect(server) else { return };
    thread::scope(|scope| {
        scope.spawn(|| copy(client, &server, state));
        copy(&server, client, state);
    });
}

/// Copies until one end is closed, the line is down, or as many bytes went through as were drawn.
fn copy(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut left = state.draw();
    let mut bytes = [0; 1 << 14];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let through = (length as u64).min(left);
        left -= through;
        let is_broken = left == 0 || state.is_down.load(Ordering::Relaxed);
        if to.write_all(&bytes[..usize::try_from(through).unwrap_or(length)]).is_err() || is_broken {
            state.broken.fetch_add(u64::from(is_broken), Ordering::Relaxed);
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
