// SPDX-License-Identifier: MIT OR Apache-2.0
//! What eight embedding servers cost in a store, by what one of them costs: each was started by itself, and has served what no other
//! one was asked.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::restore::{first_embedding, start};
use crate::checkpoint::criu::{criu_is_here, run_stasis};
use crate::figure::{Report, median};

const REPLICAS: u16 = 8;
/// Of the first; the others have those that follow.
const PORT: u16 = 18090;
/// Sentences that each is asked for.
const SENTENCES: u16 = 5;

/// Bytes of all files below a directory.
fn bytes_of(directory: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sum += match entry.file_type()?.is_dir() {
            true => bytes_of(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(sum)
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("stasis-bench-embed-").tempdir()?;
    let path = |name: &str| -> Result<String> {
        Ok(directory.path().join(name).to_str().context("a directory with a strange name")?.to_owned())
    };
    let mut servers = Vec::new();
    for n in 0..REPLICAS {
        servers.push(start(directory.path(), PORT + n)?);
        for sentence in 0..SENTENCES {
            first_embedding(PORT + n, &format!("Sentence {sentence} that only server {n} is asked for."))?;
        }
    }
    // All of each, in a directory, and with each compression in a store.
    let mut written = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        let place = path(&format!("directory-{n}"))?;
        run_stasis(&["checkpoint", "--leave-running", &server.id().to_string(), &place])?;
        written.push((bytes_of(Path::new(&place))?, place));
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let in_directories: u64 = written.iter().map(|(bytes, _)| bytes).sum();
    let case = format!("{REPLICAS} servers");
    for compression in ["none", "zstd"] {
        let store = path(&format!("store-{compression}"))?;
        let (mut new, mut times) = (Vec::new(), Vec::new());
        for (n, (_, place)) in written.iter().enumerate() {
            let arguments =
                ["store", "add", &store, place, &format!("replica-{n}"), "--compress", compression];
            let (seconds, added) = run_stasis(&arguments)?;
            new.push(added["new_bytes"].as_u64().unwrap_or(0));
            times.push(seconds * 1e3);
        }
        let [first, ..] = new[..] else { continue };
        let all: u64 = new.iter().sum();
        let case = format!("{case}, {compression}");
        report.versus(&case, "store_of_replicas", mib(all), "MiB", ("store_of_one", mib(first)));
        report.versus(&case, "store_of_replicas", mib(all), "MiB", ("directories", mib(in_directories)));
        report.plain(&case, "add_the_first", times[0], "ms");
        report.plain(&case, "add_another", median(&times[1..]), "ms");
        let back = path("back")?;
        let (seconds, _) = run_stasis(&["store", "fetch", &store, "replica-7", &back])?;
        report.plain(&case, "fetch_one", seconds * 1e3, "ms");
        fs::remove_dir_all(back)?;
    }
    for (mut server, (_, place)) in servers.into_iter().zip(written) {
        server.kill()?;
        server.wait()?;
        fs::remove_dir_all(place)?;
    }
    Ok(())
}
