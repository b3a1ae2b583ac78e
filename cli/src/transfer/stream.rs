// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis send` and `stasis receive`: a checkpoint over a stream, gone on with when the connection breaks.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use stasis::criu::Trust;
use stasis_store::{
    Address, Checkpoint, Codec, Connection, Grain, Listener, Received, Receiver, Sender, Sent, Stage,
    StoreError,
};

use super::args::{KeyArgs, NetworkArgs, WriteArgs};
use crate::output;
use crate::progress::{bar, mebibytes, on};

/// Between two attempts to go on.
const PAUSE: Duration = Duration::from_millis(200);
/// A connection that lasted longer has carried something: the time to wait for another begins anew.
const LASTING: Duration = Duration::from_secs(1);

/// Arguments of `stasis send`.
#[derive(Debug, Args)]
pub struct SendArgs {
    /// The directory of a checkpoint, or of a session. It stays.
    directory: PathBuf,
    /// Where a `stasis receive` or `stasis restore --from` listens: tcp://HOST:PORT, unix:PATH, or - for the standard output.
    address: Address,
    #[command(flatten)]
    write: WriteArgs,
    #[command(flatten)]
    network: NetworkArgs,
    /// Take files of any user, and files that others can write.
    #[arg(long)]
    trust_owner: bool,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// Arguments of `stasis receive`.
#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// Where to listen: tcp://HOST:PORT, unix:PATH, or - for the standard input.
    address: Address,
    /// Where the checkpoint goes: must be empty or not exist. What an attempt that ended has left is used.
    directory: PathBuf,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    network: NetworkArgs,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// Sends a checkpoint.
///
/// # Errors
/// Why the receiver does not have it.
pub fn send(args: &SendArgs) -> Result<()> {
    let trust = if args.trust_owner { Trust::Anyone } else { Trust::of_caller() };
    let codec = args.write.codec()?;
    let way = Way { address: &args.address, codec: &codec, network: &args.network, quiet: args.json };
    let sent = way.send(&args.directory, &trust, Stage::Last(None), None)?;
    let text = match args.json {
        true => json!(sent).to_string() + "\n",
        false => format!("Sent {:.1} of {:.1} MiB\n", mebibytes(sent.sent_bytes), mebibytes(sent.file_bytes)),
    };
    match args.address.is_answered() {
        true => output::report(text),
        false => output::complain(text),
    }
    Ok(())
}

/// Receives a checkpoint.
///
/// # Errors
/// Why it is not here.
pub fn receive(args: &ReceiveArgs) -> Result<()> {
    let received = receive_all(&args.directory, &args.address, &args.key.codec()?, &args.network, args.json)?;
    match args.json {
        true => output::report(json!(received).to_string() + "\n"),
        false => output::report(format_args!(
            "{} is complete: {:.1} of {:.1} MiB came\n",
            received.directory.display(),
            mebibytes(received.received_bytes),
            mebibytes(received.file_bytes),
        )),
    }
    Ok(())
}

/// How a checkpoint gets to its receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'w> {
    pub(super) address: &'w Address,
    pub(super) codec: &'w Codec,
    pub(super) network: &'w NetworkArgs,
    pub(super) quiet: bool,
}

impl Way<'_> {
    /// Sends a checkpoint over the connection that there is, and over another one when it breaks.
    pub(super) fn send(
        &self,
        directory: &Path,
        trust: &Trust,
        stage: Stage,
        mut connected: Option<Sender>,
    ) -> Result<Sent> {
        let bar = bar(self.quiet, "cutting the files");
        let checkpoint = Checkpoint::open(directory, trust.clone(), Grain::Table, &on(&bar))?;
        bar.set_message("sending chunks");
        let mut until = Instant::now() + self.network.wait();
        let sent = loop {
            let mut sender = match connected.take().map_or_else(|| self.connect_by(until), Ok) {
                Ok(sender) => sender,
                Err(error) => break Err(error),
            };
            let (began, before) = (Instant::now(), sender.sent_chunks());
            match sender.send(&checkpoint, stage, &on(&bar)) {
                Err(StoreError::Broken { act, source }) if self.address.is_answered() => {
                    // A connection that carried something, or lasted, was a good one: the time to wait for another begins anew.
                    if sender.sent_chunks() > before || began.elapsed() > LASTING {
                        until = Instant::now() + self.network.wait();
                    }
                    if Instant::now() >= until {
                        break Err(StoreError::Broken { act, source });
                    }
                    thread::sleep(PAUSE);
                }
                sent => break sent,
            }
        };
        bar.finish_and_clear();
        Ok(sent?)
    }

    /// Connects to the receiver, and waits for it if it does not listen yet.
    pub(super) fn connect(&self) -> Result<Sender, StoreError> {
        self.connect_by(Instant::now() + self.network.wait())
    }

    fn connect_by(&self, until: Instant) -> Result<Sender, StoreError> {
        loop {
            let channel = self.address.connect(self.codec, self.network.trust_network, until)?;
            match Sender::new(channel, self.codec.clone()) {
                Err(StoreError::Broken { .. }) if Instant::now() < until => thread::sleep(PAUSE),
                sender => return sender,
            }
        }
    }
}

/// Receives a checkpoint, over another connection when one breaks.
pub(super) fn receive_all(
    directory: &Path,
    address: &Address,
    codec: &Codec,
    network: &NetworkArgs,
    quiet: bool,
) -> Result<Received> {
    // First: what cannot be received is not waited for.
    let mut receiver = Receiver::new(directory)?;
    let listener = Listener::bind(address, codec, network.trust_network)?;
    let bar = bar(quiet, "receiving chunks");
    if !quiet && address.is_answered() {
        output::complain(format_args!("Listening at {}\n", listener.address()));
    }
    let mut until = Instant::now() + network.wait();
    let received = loop {
        let connection =
            listener.accept(until).and_then(|channel| Connection::accept(channel, codec.clone()));
        let mut connection = match connection {
            Ok(connection) => connection,
            // Of somebody else: the sender may still come.
            Err(error) if address.is_answered() && Instant::now() < until => {
                tracing::warn!(target: "receive", %error, "a connection was of no use");
                continue;
            }
            Err(error) => break Err(error),
        };
        match receiver.receive(&mut connection, &on(&bar)) {
            Err(StoreError::Broken { .. }) if address.is_answered() => {
                until = Instant::now() + network.wait();
            }
            received => break received,
        }
    };
    bar.finish_and_clear();
    Ok(received?)
}
