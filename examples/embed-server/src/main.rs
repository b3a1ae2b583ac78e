// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's process: takes options, opens model and agents, and prints `listening on ADDR`. All else goes to the
//! log on stderr.
//!
//! INVARIANT: SIGTERM, SIGINT and SIGHUP end the process: with 0 when every pending request was answered, with 1 when
//! `--shutdown-timeout-s` was too short for that. After the loss of the device the process ends with [`DEVICE_LOST`],
//! or executes itself again.

#![forbid(unsafe_code)]

mod cli;
mod device;
mod restart;
mod signals;

use std::io::{IsTerminal as _, Write as _};
use std::net::TcpListener as StdListener;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser as _;
use embed_server::batch::{BatchMetrics, Batcher};
use embed_server::embedder::OpenAgent;
use embed_server::http::{Port, Served, State, elapse, serve};
use embed_server::model::{Config, Tokenizer};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::cli::{Args, OnDeviceLost};
use crate::device::{Device, PROVEN};
use crate::restart::Losses;

/// The exit status after the loss of the device: `EX_UNAVAILABLE` of `sysexits.h`.
const DEVICE_LOST: u8 = 69;

/// Where the agents come from.
enum Start {
    /// They are open.
    Fresh(Vec<OpenAgent>),
    /// They are opened while the socket is served already.
    Again(Losses, StdListener, Device),
}

/// How the server ended.
enum End {
    /// After a signal, with this status.
    InOrder(ExitCode),
    /// After the loss of the device: the number of its losses, and the listening socket.
    Lost(Losses, Option<StdListener>),
}

/// Why the server is to end.
enum Why {
    Signal,
    Lost { proven: bool },
    NotOpened(anyhow::Error),
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let to_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(to_terminal)
        .with_writer(std::io::stderr)
        .init();
    let config = Config::open(&args.model)?;
    let limit = args.check(&config)?;
    let tokenizer = Tokenizer::open(&args.model, limit, args.truncate)?;
    let device = Device::new(&args);
    let start = match restart::inherited()? {
        Some((losses, listener)) => Start::Again(losses, listener, device),
        None => Start::Fresh(device.open()?),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads)
        // One thread is for a device that is opened again, or for the end of the agents' threads.
        .max_blocking_threads(args.threads + 1)
        .enable_all()
        .build()
        .context("The threads that serve sockets could not be started")?;
    let end = runtime.block_on(run(&args, tokenizer, start));
    // Work that still runs is for requests that were cancelled.
    runtime.shutdown_background();
    match end? {
        End::InOrder(code) => Ok(code),
        End::Lost(losses, Some(listener)) => {
            tracing::warn!(losses = losses.all, "the device was lost: the server begins anew");
            Err(restart::execute(listener, losses)).context("The server could not be begun anew")
        }
        End::Lost(..) => {
            tracing::error!("the device was lost: the server ends, for --on-device-lost is exit");
            Ok(ExitCode::from(DEVICE_LOST))
        }
    }
}

async fn run(args: &Args, tokenizer: Tokenizer, start: Start) -> anyhow::Result<End> {
    // Before the port is open: a process that sees the line on stdout may send a signal.
    let signals = signals::count()?;
    let metrics = BatchMetrics::default();
    let state = State::new(args.service(), tokenizer, &metrics);
    let agents = OnceLock::new();
    let open = |open: Vec<OpenAgent>| -> anyhow::Result<Arc<Batcher>> {
        let batcher = Arc::new(Batcher::start_counted(open, args.batching(), metrics.clone())?);
        state.open(batcher.clone());
        Ok(agents.get_or_init(|| batcher).clone())
    };
    let (losses, listener, device) = match start {
        Start::Fresh(agents) => {
            open(agents)?;
            (Losses::default(), listen(args).await?, None)
        }
        Start::Again(losses, listener, device) => {
            metrics.reopened(losses.all);
            (losses, TcpListener::from_std(listener)?, Some(device))
        }
    };
    // After an execve the process uses the listening socket again.
    let kept = match args.on_device_lost {
        OnDeviceLost::Reopen => Some(StdListener::from(listener.as_fd().try_clone_to_owned()?)),
        OnDeviceLost::Exit => None,
    };
    let lost = async {
        let batcher = match device {
            Some(device) => open(open_again(device, losses, args).await?)?,
            None => agents.get().context("There are no agents")?.clone(),
        };
        let opened = Instant::now();
        // The batcher lives as long as this function does.
        let _ = batcher.agents().wait_for(embed_server::batch::Agents::are_lost).await;
        anyhow::Ok(opened.elapsed() >= PROVEN)
    };
    let mut why = Why::Signal;
    let shutdown = async {
        tokio::select! {
            () = signals::reach(signals.clone(), 1) => Port::Close,
            lost = lost => {
                why = lost.map_or_else(Why::NotOpened, |proven| Why::Lost { proven });
                if kept.is_some() { Port::Keep } else { Port::Close }
            }
        }
    };
    let patience = async {
        // A second signal ends the wait.
        tokio::select! {
            () = elapse(args.grace()) => {}
            () = signals::reach(signals.clone(), 2) => {}
        }
    };
    let served = serve(listener, state.clone(), shutdown, patience).await;
    match why {
        Why::NotOpened(error) => Err(error),
        Why::Lost { proven } => Ok(End::Lost(losses.and_another(proven), kept)),
        Why::Signal => Ok(End::InOrder(finish(args, served, agents.get().cloned()).await)),
    }
}

async fn listen(args: &Args) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(args.listen).await;
    let listener = bound.with_context(|| format!("Cannot listen on {}", args.listen))?;
    writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?)?;
    Ok(listener)
}

/// Ends a server after a signal. Returns its status.
async fn finish(args: &Args, Served { unanswered }: Served, batcher: Option<Arc<Batcher>>) -> ExitCode {
    if unanswered > 0 {
        tracing::warn!(
            unanswered,
            "shut down before every request was answered: --shutdown-timeout-s is short"
        );
        return ExitCode::FAILURE;
    }
    // Every answer was sent. An agent may still run a batch that no request waits for; it is closed in order if that
    // does not take long.
    if let Some(batcher) = batcher {
        let joined = tokio::task::spawn_blocking(move || batcher.join());
        tokio::select! {
            _ = joined => {}
            () = elapse(args.grace()) => tracing::warn!("shut down in the middle of a batch that no request waits for"),
        }
    }
    ExitCode::SUCCESS
}

async fn open_again(device: Device, losses: Losses, args: &Args) -> anyhow::Result<Vec<OpenAgent>> {
    let backoff = args.backoff();
    tokio::task::spawn_blocking(move || device.open_again(losses.row, backoff)).await?
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::getpid;

    use super::*;
    use crate::common::fake::{Control, Fake};
    use crate::common::{DIMENSIONS, LONGEST, write_tokenizer};

    fn ends_after(name: Signal) {
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path());
        let tokenizer = Tokenizer::open(directory.path(), LONGEST, false).unwrap();
        let args = Args::parse_from(["embed-server", "--model", "m", "--listen", "127.0.0.1:0"]);
        let control = Arc::new(Control::default());
        let agents = vec![Fake::boxed(&control, DIMENSIONS, LONGEST).into()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let end = runtime.block_on(async {
            // The server is polled first, until it has installed its signal handlers and waits.
            let signalled = async { kill(getpid(), name).unwrap() };
            tokio::join!(biased; run(&args, tokenizer, Start::Fresh(agents)), signalled).0.unwrap()
        });

        let End::InOrder(code) = end else {
            panic!("the device was not lost");
        };
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        control.await_dropped(1);
    }

    #[test]
    fn signals_end_the_server_with_0() {
        ends_after(Signal::SIGTERM);
        ends_after(Signal::SIGINT);
        ends_after(Signal::SIGHUP);
    }
}
