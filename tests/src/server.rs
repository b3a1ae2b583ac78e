// SPDX-License-Identifier: MIT OR Apache-2.0
//! The embedding server as a process to freeze, and clients that know the right answers.
//!
//! INVARIANT: an embedding's bits depend on its sentence only, so an answer is right if it equals the answer to the
//! same sentence before any freeze. Answers are compared as base64, never as numbers.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::worker::{Worker, is_alive, wait_until};
use crate::{model, program};

/// TIMEOUT: for an answer, on a busy machine, with a freeze in between.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server on its own port and its own device. It ends with its handle.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Worker,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts a server with these arguments beside those for port and model, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_on(None, arguments)
    }

    /// The same on a device of this description (`STASIS_DEVICE`).
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start_on(device: Option<&str>, arguments: &[&str]) -> Self {
        // A port that was free a moment ago; the server and its restored copies keep it.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).expect("a port");
        let (listen, model) = (port.to_string(), model());
        let model = model.to_str().expect("a path in UTF-8");
        let directory = tempfile::tempdir().expect("a temporary directory");
        // Unoptimised, a full batch takes seconds.
        let own = ["--listen", &listen, "--model", model, "--no-warm-up"];
        let (server, device) =
            (program("embed-server"), device.map(|device| format!("STASIS_DEVICE={device}")));
        let server = server.to_str().expect("a path in UTF-8");
        let variables: Vec<&str> = device.as_deref().into_iter().collect();
        let all = [variables.as_slice(), &[server], &own, arguments].concat();
        let process = Worker::launch(Path::new("env"), directory, &all);
        wait_until("the server's port", || {
            assert!(process.is_alive(), "the server ended: {}", process.log());
            process.log().lines().any(|line| line.starts_with("listening on "))
        });
        Self { process, address: port }
    }

    /// A client with connections of its own.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Whether a process listens on its port.
    #[must_use]
    pub fn is_open(&self) -> bool {
        TcpStream::connect_timeout(&self.address, Duration::from_secs(5)).is_ok()
    }

    /// Waits until the process has ended, its device has ended, and its port is closed.
    ///
    /// # Panics
    /// When it is not.
    pub fn bury(&mut self) {
        self.process.bury();
        wait_until("the end of its device", || self.process.devices().is_empty());
        assert!(!self.is_open(), "somebody still listens on {}", self.address);
    }

    /// Has it end in order.
    ///
    /// # Panics
    /// When it does not.
    pub fn finish(self) {
        let pid = self.process.pid();
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("SIGTERM");
        wait_until("the server's end", || !is_alive(pid));
    }

    /// Where the image `name` is.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.process.path(name)
    }
}

/// Asks a server for embeddings.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    address: SocketAddr,
}

impl Client {
    /// A client of the server at this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        Self { agent: config.build().new_agent(), address }
    }

    /// The embeddings of some sentences as base64, or why there is no answer.
    ///
    /// # Errors
    /// The connection was refused, reset or closed.
    ///
    /// # Panics
    /// When there is an answer that does not belong to these sentences.
    pub fn ask<S: AsRef<str>>(&self, sentences: &[S]) -> Result<Vec<String>, ureq::Error> {
        let input: Vec<&str> = sentences.iter().map(AsRef::as_ref).collect();
        let request = json!({ "model": "all-MiniLM-L6-v2", "input": input, "encoding_format": "base64" });
        let mut answer =
            self.agent.post(format!("http://{}/v1/embeddings", self.address)).send_json(request)?;
        let status = answer.status();
        let body: Value = answer.body_mut().with_config().limit(64 << 20).read_json()?;
        assert_eq!(status, 200, "{body}");
        let list = body["data"].as_array().expect("a list");
        assert_eq!(list.len(), sentences.len(), "{body}");
        Ok(list.iter().map(|item| item["embedding"].as_str().expect("base64").to_owned()).collect())
    }

    /// The status of `/health`; none when the connection was refused, reset or closed.
    #[must_use]
    pub fn health(&self) -> Option<u16> {
        let answer = self.agent.get(format!("http://{}/health", self.address)).call().ok()?;
        Some(answer.status().as_u16())
    }

    /// The status of a request for embeddings of some sentences, likewise.
    #[must_use]
    pub fn status(&self, sentences: &[String]) -> Option<u16> {
        let request = json!({ "model": "all-MiniLM-L6-v2", "input": sentences });
        let url = format!("http://{}/v1/embeddings", self.address);
        Some(self.agent.post(url).send_json(request).ok()?.status().as_u16())
    }

    /// The value of a metric, the sum of its kinds.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub fn metric(&self, name: &str) -> Result<f64, ureq::Error> {
        let url = format!("http://{}/metrics", self.address);
        let text = self.agent.get(url).call()?.body_mut().read_to_string()?;
        let values = text.lines().filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            let of = key.strip_prefix(name)?;
            (of.is_empty() || of.starts_with('{')).then_some(value.parse::<f64>().ok()?)
        });
        Ok(values.sum())
    }
}

/// Sentences and their right answers.
#[derive(Clone, Debug)]
pub struct Known {
    sentences: Vec<String>,
    answers: Vec<String>,
}

impl Known {
    /// Asks for some sentences, one at a time.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn of(client: &Client) -> Self {
        let sentences: Vec<String> = (0..24)
            .map(|n| {
                let words = ["frost", "Tau", "水", "rime", "оттепель", "neige"];
                (0..=n).map(|k| words[(n + k) % words.len()]).collect::<Vec<_>>().join(" ")
            })
            .collect();
        let ask = |sentence: &String| client.ask(&[sentence]).expect("an answer").remove(0);
        let answers = sentences.iter().map(ask).collect();
        Self { sentences, answers }
    }

    /// Asks for the sentence with this number and the one after it, and compares.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    ///
    /// # Panics
    /// When the answer is wrong.
    pub fn check(&self, client: &Client, number: usize) -> Result<(), ureq::Error> {
        let pair = [number, number + 1].map(|n| n % self.sentences.len());
        let answers = client.ask(&pair.map(|n| &self.sentences[n]))?;
        assert_eq!(answers, pair.map(|n| self.answers[n].clone()), "wrong answer to {pair:?}");
        Ok(())
    }
}

/// The counts of all clients.
#[derive(Debug, Default)]
pub struct Traffic {
    stop: AtomicBool,
    answered: AtomicUsize,
    broken: AtomicUsize,
}

impl Traffic {
    /// Requests that were answered correctly.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Times that a connection was refused, reset or closed.
    pub fn broken(&self) -> usize {
        self.broken.load(Ordering::Relaxed)
    }

    /// Waits for more answers.
    ///
    /// # Panics
    /// When they do not come.
    pub fn wait_for(&self, more: usize) {
        let wanted = self.answered() + more;
        wait_until("answers", || self.answered() >= wanted);
    }

    /// Lets clients end after their current request.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The loop of a client: one request after the other; a request is repeated when its connection broke.
    ///
    /// # Panics
    /// When an answer is wrong.
    pub fn drive(&self, server: SocketAddr, known: &Known, first: usize) {
        let client = Client::new(server);
        let mut number = first;
        while !self.stop.load(Ordering::Relaxed) {
            match known.check(&client, number) {
                Ok(()) => {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    number += 1;
                }
                Err(_) => {
                    self.broken.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// The network namespace in which a command runs its copy: that of the command's child.
///
/// # Panics
/// When the command has no child.
#[must_use]
pub fn namespace_of_child(command: u32) -> fs::File {
    let children = || fs::read_to_string(format!("/proc/{command}/task/{command}/children"));
    let child = || children().ok()?.split_whitespace().next()?.parse::<u32>().ok();
    wait_until("the copy's init", || child().is_some());
    fs::File::open(format!("/proc/{}/ns/net", child().expect("a child"))).expect("its network namespace")
}
