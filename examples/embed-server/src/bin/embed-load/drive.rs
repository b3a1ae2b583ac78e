// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many clients at once.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::client::{Asked, Client};
use crate::connection::{Failure, Target};
use crate::expect::{Expected, said};
use crate::report::{Line, Outcome, Request, Summary, unix_ms};
use crate::{answer, sentences};

/// How to drive a server.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the server is
    #[arg(long, value_name = "http://HOST:PORT")]
    url: Target,
    /// Sentences, a line each, or all strings of a .json file; a request asks for one to four of them
    #[arg(long, value_name = "FILE")]
    sentences: PathBuf,
    /// What `record` wrote of the same sentences; every embedding must be the same to the bit
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Clients at once, a connection each
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Begin no request after this many seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Nor after this many requests
    #[arg(long)]
    requests: Option<u64>,
    /// Instead of --seconds: until standard input ends
    #[arg(long, conflicts_with = "seconds")]
    until_eof: bool,
    /// Seconds until a request counts as lost, over all attempts
    #[arg(long, default_value_t = 60, value_name = "S")]
    patience_s: u32,
    /// The model's name
    #[arg(long, default_value = "all-MiniLM-L6-v2")]
    model: String,
    /// JSON lines: a request each as it ends, then the summary
    #[arg(long)]
    json: bool,
}

/// The state that the clients share.
struct Shared<'a> {
    options: &'a Options,
    sentences: Vec<String>,
    expected: Option<Expected>,
    /// A part of every id, so that the ids of two runs differ.
    run: String,
    start: Instant,
    begun: AtomicU64,
    /// Connections on which bytes came that were not asked for.
    unasked: AtomicU64,
    over: AtomicBool,
}

/// Drives and reports; fails if anything was lost or wrong.
pub fn run(options: &Options) -> Result<ExitCode> {
    let (sentences, expected) =
        (sentences::read(&options.sentences)?, options.expect.as_deref().map(Expected::read).transpose()?);
    let unix_ms = unix_ms();
    let shared = Shared {
        options,
        sentences,
        expected,
        // CAST: milliseconds since 1970 are positive and below 2^53.
        run: format!("{:x}", unix_ms as u64),
        start: Instant::now(),
        begun: AtomicU64::new(0),
        unasked: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    if options.json {
        print(&Line::Begin { unix_ms, clients: options.clients })?;
    }
    let ended = shared.drive()?;
    // ORDERING: the threads that counted have been joined.
    let (begun, unasked) = (shared.begun.load(Ordering::Relaxed), shared.unasked.load(Ordering::Relaxed));
    let summary = Summary::new(begun, &ended, unasked);
    let clean = summary.is_clean();
    if options.json {
        print(&Line::Summary(summary))?;
    } else {
        let Summary { requests, lost, wrong, retried, sentences, seconds, .. } = summary;
        println!("{requests} requests ({retried} tried more than once), lost {lost}, wrong {wrong}");
        println!("{sentences} sentences in {seconds:.1} s: {:.1}/s", summary.sentences_per_s);
        println!(
            "p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
            summary.p50_ms, summary.p99_ms, summary.max_ms
        );
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(line: &Line) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?).context("Standard output is gone")
}

impl Shared<'_> {
    fn drive(&self) -> Result<Vec<Request>> {
        let mut all = Vec::new();
        thread::scope(|scope| {
            let (ended, ends) = channel();
            for client in 0..self.options.clients {
                let ended = ended.clone();
                scope.spawn(move || self.client(client, &ended));
            }
            drop(ended);
            if self.options.until_eof {
                // This thread is not of the scope: if the requests end first, the scope does not wait for it.
                let (told, hears) = channel();
                thread::spawn(move || {
                    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
                    let _ = told.send(());
                });
                scope.spawn(move || {
                    // ORDERING: a flag by itself.
                    while hears.recv_timeout(Duration::from_millis(50))
                        == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                    {
                        if self.over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    self.over.store(true, Ordering::Relaxed);
                });
            }
            for request in ends {
                if self.options.json {
                    print(&Line::Request(request.clone()))?;
                } else if request.outcome != Outcome::Ok {
                    eprintln!(
                        "{} {:?}: {}",
                        request.id,
                        request.outcome,
                        request.why.as_deref().unwrap_or("")
                    );
                }
                all.push(request);
            }
            self.over.store(true, Ordering::Relaxed);
            anyhow::Ok(())
        })?;
        Ok(all)
    }

    /// Whether one more request may begin; if so it is counted.
    fn begins(&self) -> bool {
        // ORDERING: flags and counts by themselves.
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let time = self.options.until_eof || self.start.elapsed().as_secs_f64() < self.options.seconds;
        let limit = self.options.requests.unwrap_or(u64::MAX);
        let one_more = |begun: u64| (begun < limit).then_some(begun + 1);
        time && self.begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    fn client(&self, number: u32, ended: &Sender<Request>) {
        let mut client = Client::new(self.options.url.clone(), Duration::from_millis(10));
        let mut n = 0;
        while self.begins() {
            let request = self.request(&mut client, number, n);
            n += 1;
            if ended.send(request).is_err() {
                // All threads that counted have ended.
                return;
            }
        }
        if !client.is_quiet() {
            self.unasked.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn request(&self, client: &mut Client, number: u32, n: u64) -> Request {
        let id = format!("load-{}-{number}-{n}", self.run);
        let chosen = sentences::choice(number, n, self.sentences.len());
        let texts: Vec<&str> = chosen.into_iter().map(|index| self.sentences[index].as_str()).collect();
        let body = answer::body(&self.options.model, &texts);
        let start = Instant::now();
        let patience = Duration::from_secs(self.options.patience_s.into());
        let Asked { attempts, setbacks, fresh, answer } = client.ask(&id, &body, start + patience);
        let latency = start.elapsed();
        let (outcome, why) = match answer {
            Ok(answer) => match answer::check(&answer, &id, &texts, self.expected.as_ref()) {
                Ok(_) => (Outcome::Ok, None),
                Err(why) => (Outcome::Wrong, Some(why)),
            },
            Err(failure @ Failure::Foreign(_)) => (Outcome::Wrong, Some(said(&failure))),
            Err(failure) => (Outcome::Lost, Some(said(&failure))),
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Request {
            id,
            client: number,
            sentences: texts.len(),
            start_ms: ms(start - self.start),
            latency_ms: ms(latency),
            attempts,
            setbacks,
            fresh,
            outcome,
            why,
        }
    }
}
