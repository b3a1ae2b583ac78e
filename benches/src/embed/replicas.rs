// SPDX-License-Identifier: MIT OR Apache-2.0
//! What eight embedding servers cost in a store, by what one of them costs: started one by one, or brought back from one image. Each has
//! served what no other one was asked.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::restore::{end, first_embedding, start};
use crate::checkpoint::criu::{criu_is_here, run_stasis};
use crate::figure::{Report, median};

const REPLICAS: u16 = 8;
/// Of the first; the others have those that follow.
const PORT: u16 = 18090;
/// Sentences that each is asked for.
const SENTENCES: u16 = 5;
/// How chunks are compressed, and how long they are as a rule, KiB.
const STORES: [(&str, &str); 3] = [("none", "64"), ("none", "4"), ("zstd", "4")];

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

fn path(directory: &Path, name: &str) -> Result<String> {
    Ok(directory.join(name).to_str().context("a directory with a strange name")?.to_owned())
}

fn ask(port: u16, replica: u16) -> Result<()> {
    for sentence in 0..SENTENCES {
        first_embedding(port, &format!("Sentence {sentence} that only server {replica} is asked for."))?;
    }
    Ok(())
}

/// Checkpoints of servers that were started one by one.
fn started(directory: &Path) -> Result<Vec<String>> {
    let mut places = Vec::new();
    for n in 0..REPLICAS {
        let mut server = start(directory, PORT + n)?;
        ask(PORT + n, n)?;
        let place = path(directory, &format!("started-{n}"))?;
        run_stasis(&["checkpoint", &server.id().to_string(), &place])?;
        server.wait()?;
        places.push(place);
    }
    Ok(places)
}

/// Checkpoints of copies of one server, each brought back from the same image.
fn restored(directory: &Path) -> Result<Vec<String>> {
    let mut server = start(directory, PORT)?;
    first_embedding(PORT, "What all have been asked for.")?;
    let (image, pid) = (path(directory, "image")?, server.id().cast_signed());
    run_stasis(&["checkpoint", &pid.to_string(), &image])?;
    server.wait()?;
    let mut places = Vec::new();
    for n in 0..REPLICAS {
        run_stasis(&["restore", &image])?;
        ask(PORT, n)?;
        let place = path(directory, &format!("restored-{n}"))?;
        run_stasis(&["checkpoint", "--leave-running", &pid.to_string(), &place])?;
        end(pid)?;
        places.push(place);
    }
    Ok(places)
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("stasis-bench-embed-").tempdir()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    type Make = fn(&Path) -> Result<Vec<String>>;
    let ways: [(&str, Make); 2] = [("restored from one image", restored), ("started one by one", started)];
    for (way, make) in ways {
        let places = make(directory.path())?;
        let in_directories = places.iter().map(|place| bytes_of(Path::new(place))).sum::<Result<u64>>()?;
        for (compression, kib) in STORES {
            let store = path(directory.path(), &format!("store-{compression}-{kib}"))?;
            let (mut new, mut times) = (Vec::new(), Vec::new());
            for (n, place) in places.iter().enumerate() {
                let name = format!("replica-{n}");
                let arguments =
                    ["store", "add", &store, place, &name, "--compress", compression, "--chunk-kib", kib];
                let (seconds, added) = run_stasis(&arguments)?;
                new.push(added["new_bytes"].as_u64().unwrap_or(0));
                times.push(seconds * 1e3);
            }
            let [first, ..] = new[..] else { continue };
            let all: u64 = new.iter().sum();
            let case = format!("{REPLICAS} servers {way}, chunks of {kib} KiB, {compression}");
            report.versus(&case, "store_of_replicas", mib(all), "MiB", ("store_of_one", mib(first)));
            report.versus(&case, "store_of_replicas", mib(all), "MiB", ("directories", mib(in_directories)));
            report.plain(&case, "add_the_first", times[0], "ms");
            report.plain(&case, "add_another", median(&times[1..]), "ms");
            let back = path(directory.path(), "back")?;
            let (seconds, _) = run_stasis(&["store", "fetch", &store, "replica-7", &back])?;
            report.plain(&case, "fetch_one", seconds * 1e3, "ms");
            fs::remove_dir_all(back)?;
            fs::remove_dir_all(store)?;
        }
        places.iter().try_for_each(fs::remove_dir_all)?;
    }
    Ok(())
}
