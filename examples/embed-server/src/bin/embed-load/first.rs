// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures when the first answer comes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::json;

use crate::answer;
use crate::client::Client;
use crate::connection::Target;
use crate::expect::{Expected, said};
use crate::report::unix_ms;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// How to wait.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the server is or will be
    #[arg(long, value_name = "http://HOST:PORT", required_unless_present = "log")]
    url: Option<Target>,
    /// The server's log: the address is what it says it is listening on
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    log: Option<PathBuf>,
    /// What to ask for
    #[arg(long, default_value = "The first one.")]
    sentence: String,
    /// What `record` wrote, with this sentence in it
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// The model's name
    #[arg(long, default_value = "all-MiniLM-L6-v2")]
    model: String,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 60, value_name = "S")]
    patience_s: u32,
}

/// The address of the line that the server prints when it listens.
fn listening(log: &Path, deadline: Instant) -> Result<Target> {
    loop {
        let text = fs::read_to_string(log).unwrap_or_default();
        // A line without its end may be incomplete.
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        if let Some(address) = whole.filter_map(|line| line.strip_prefix("listening on ")).next_back() {
            return format!("http://{address}").parse().map_err(|why| anyhow!("{}: {why}", log.display()));
        }
        ensure!(Instant::now() < deadline, "{} names no address", log.display());
        sleep(PAUSE);
    }
}

/// Waits for the first answer, and prints when it came.
pub fn run(options: &Options) -> Result<ExitCode> {
    let expected = options.expect.as_deref().map(Expected::read).transpose()?;
    let deadline = Instant::now() + Duration::from_secs(options.patience_s.into());
    let target = match (&options.url, &options.log) {
        (Some(url), _) => url.clone(),
        (None, Some(log)) => listening(log, deadline)?,
        (None, None) => anyhow::bail!("Say --url or --log"),
    };
    let (id, sentences) = (format!("first-{:x}", std::process::id()), [options.sentence.as_str()]);
    let asked =
        Client::new(target.clone(), PAUSE).ask(&id, &answer::body(&options.model, &sentences), deadline);
    let unix_ms = unix_ms();
    let answer = asked.answer.map_err(|failure| anyhow!("No first answer: {}", said(&failure)))?;
    let checked = answer::check(&answer, &id, &sentences, expected.as_ref());
    let mut checked = checked.map_err(|why| anyhow!("The first answer is wrong: {why}"))?;
    let embedding = checked.rows.pop().context("The first answer has no embedding")?;
    let line = json!({
        "unix_ms": unix_ms,
        "url": target.to_string(),
        "attempts": asked.attempts,
        "setbacks": asked.setbacks,
        "embedding": STANDARD.encode(embedding),
    });
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_whole_line_names_the_address() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let soon = || Instant::now() + Duration::from_millis(5);
        fs::write(&path, "hello\nlistening on 127.0.0.1:1").unwrap();
        assert!(listening(&path, soon()).is_err());

        fs::write(&path, "listening on 127.0.0.1:1\nlistening on 127.0.0.1:22\nmore\n").unwrap();
        assert_eq!(listening(&path, soon()).unwrap().to_string(), "http://127.0.0.1:22");
    }
}
