// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's process: options, model and agents in; `listening on ADDR` out; everything else is log, on stderr.
//!
//! INVARIANT: SIGTERM and SIGINT end it with 0 when every request that was begun has its answer, with 1 when
//! `--shutdown-timeout-s` was too short for that.

#![forbid(unsafe_code)]

mod cli;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Parser as _;
use embed_server::batch::Batcher;
use embed_server::embedder::{Embedder, warm_up};
use embed_server::engine::{Engine, EngineError, Parameters, Precision};
use embed_server::http::{Served, State, elapse, serve};
use embed_server::model::{Config, Tokenizer, Weights};
use stasis::Runtime;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::Args;

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
    let embedders = {
        let weights = Weights::open(&args.model)?;
        embedders(&args, &config, &weights)?
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads)
        .max_blocking_threads(args.threads)
        .enable_all()
        .build()
        .context("The threads that serve sockets could not be started")?;
    let code = runtime.block_on(run(&args, tokenizer, embedders));
    // What is still tokenized is for a request that was given up.
    runtime.shutdown_background();
    code
}

/// An engine on each agent that there are kernels for, loaded and warm.
fn embedders(args: &Args, config: &Config, weights: &Weights) -> anyhow::Result<Vec<Box<dyn Embedder>>> {
    let started = Instant::now();
    let precision = if args.f32 { Precision::F32 } else { Precision::F16 };
    let parameters = Parameters::new(config, weights, precision)?;
    let runtime = Runtime::open_default()?;
    let mut embedders: Vec<Box<dyn Embedder>> = Vec::new();
    for agent in runtime.agents() {
        match Engine::open(&runtime, &agent, &parameters, args.max_batch_tokens) {
            Ok(engine) => {
                let bytes = engine.bytes();
                tracing::info!(agent = agent.index(), name = agent.name(), bytes, "loaded");
                embedders.push(Box::new(engine));
            }
            Err(why @ EngineError::Target { .. }) => {
                tracing::warn!(agent = agent.index(), "left out: {why}");
            }
            Err(why) => return Err(why).with_context(|| format!("Agent {}", agent.index())),
        }
    }
    ensure!(!embedders.is_empty(), "No agent of {} runs the kernels", runtime.transport_name());
    let loaded = started.elapsed();
    if !args.no_warm_up {
        // All at once, as they will serve.
        std::thread::scope(|scope| {
            let warming: Vec<_> = embedders
                .iter_mut()
                .map(|embedder| scope.spawn(|| warm_up(embedder.as_mut(), config.max_seq_length)))
                .collect();
            warming.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())))
        })?;
    }
    let (loaded_ms, warm_up_ms) = (loaded.as_millis(), (started.elapsed() - loaded).as_millis());
    tracing::info!(precision = precision.name(), loaded_ms, warm_up_ms, "ready");
    Ok(embedders)
}

async fn run(
    args: &Args,
    tokenizer: Tokenizer,
    embedders: Vec<Box<dyn Embedder>>,
) -> anyhow::Result<ExitCode> {
    // Before the port is open: whoever sees the line on stdout may send a signal.
    let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let batcher = Arc::new(Batcher::start(embedders, args.batching())?);
    let state = State::new(args.name.clone(), tokenizer, batcher.clone(), args.limits());
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("Cannot listen on {}", args.listen))?;
    writeln!(std::io::stdout(), "listening on {}", listener.local_addr()?)?;
    let shutdown = first(terminate, interrupt);
    let Served { unanswered } = serve(listener, state, shutdown, args.grace()).await?;
    if unanswered > 0 {
        tracing::warn!(
            unanswered,
            "shut down before every request was answered: --shutdown-timeout-s is short"
        );
        return Ok(ExitCode::FAILURE);
    }
    // Every answer is out; an agent may still be in a batch that nobody waits for, and is closed in order if that
    // does not take long.
    let joined = tokio::task::spawn_blocking(move || batcher.join());
    tokio::select! {
        _ = joined => {}
        () = elapse(args.grace()) => tracing::warn!("shut down in the middle of a batch that nobody waits for"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn first(mut terminate: Signal, mut interrupt: Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;
    use crate::common::fake::{Control, Fake};
    use crate::common::{DIMENSIONS, LONGEST, write_tokenizer};

    fn ends_after(name: Signal) {
        let directory = tempfile::tempdir().unwrap();
        write_tokenizer(directory.path());
        let tokenizer = Tokenizer::open(directory.path(), LONGEST, false).unwrap();
        let args = Args::parse_from(["embed-server", "--model", "m", "--listen", "127.0.0.1:0"]);
        let control = Arc::new(Control::default());
        let embedders = vec![Fake::boxed(&control, DIMENSIONS, LONGEST)];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let code = runtime.block_on(async {
            // The server is polled first, up to where it has handlers for signals and waits.
            let signalled = async { kill_process(getpid(), name).unwrap() };
            tokio::join!(biased; run(&args, tokenizer, embedders), signalled).0.unwrap()
        });

        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        control.await_dropped(1);
    }

    #[test]
    fn signals_end_the_server_with_0() {
        ends_after(Signal::TERM);
        ends_after(Signal::INT);
    }
}
