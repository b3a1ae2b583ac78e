// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server's TCP connections through a freeze: kept, closed, or a reason to refuse, depending on the options.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use stasis_tests::criu;
use stasis_tests::worker::{Worker, refused, succeeded};

/// TIMEOUT: for an answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(worker: &Worker) -> Self {
        let log = worker.log();
        let port = log.lines().find_map(|line| line.strip_prefix("port ")).unwrap().parse::<u16>().unwrap();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a line. Returns the answer, or why none came.
    fn ask(&mut self, line: &str) -> std::io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes())?;
        self.hear()
    }

    fn hear(&mut self) -> std::io::Result<String> {
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

/// Whether packets can be kept from a frozen process's connections here.
fn can_lock() -> bool {
    let locked = Command::new(criu()).args(["check", "--feature", "network_lock_nftables"]).output().unwrap();
    if !locked.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&locked.stdout).trim());
    }
    locked.status.success()
}

#[test]
fn established_connection_is_kept_and_what_was_sent_meanwhile_is_answered() {
    if !can_lock() {
        return;
    }
    let mut worker = Worker::start(&["--echo"]);
    let mut client = Client::connect(&worker);
    for generation in 0..2 {
        assert_eq!(client.ask("before").unwrap(), "before");
        let name = format!("images-{generation}");
        succeeded(&worker.checkpoint(&name, &["--tcp-established"]));
        worker.bury();
        client.0.get_mut().write_all(b"to nobody\n").unwrap();
        succeeded(&worker.restore(&name));
        assert_eq!(client.hear().unwrap(), "to nobody");
        assert_eq!(client.ask("after").unwrap(), "after");
    }
    let mut other = Client::connect(&worker);
    assert_eq!(other.ask("another").unwrap(), "another");
    drop((client, other));
    worker.finish();
}

#[test]
fn closed_connection_is_reset_and_the_server_takes_new_ones() {
    let mut worker = Worker::start(&["--echo"]);
    let mut client = Client::connect(&worker);
    assert_eq!(client.ask("before").unwrap(), "before");
    succeeded(&worker.checkpoint("images", &["--tcp-close"]));
    worker.bury();
    succeeded(&worker.restore("images"));
    let answer = client.ask("after").or_else(|_| client.ask("after"));
    assert!(answer.as_ref().map_or(true, String::is_empty), "{answer:?}");
    let mut other = Client::connect(&worker);
    assert_eq!(other.ask("another").unwrap(), "another");
    drop(other);
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn connection_nobody_spoke_of_is_refused_and_goes_on() {
    let worker = Worker::start(&["--echo"]);
    let mut client = Client::connect(&worker);
    assert_eq!(client.ask("before").unwrap(), "before");
    let error = refused(&worker.checkpoint("images", &[]));
    assert!(error.contains("tcp-established") || error.contains("TCP"), "{error}");
    assert_eq!(client.ask("after").unwrap(), "after");
    drop(client);
    worker.finish();
}
