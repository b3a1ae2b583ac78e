// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis restore` of a whole session: each tree by a `stasis restore` of its own, all at the same time, as if somebody
//! had called them one by one. The processes find each other by themselves.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use stasis::criu::{Manifest, OpenDirectory, SessionIndex};

use crate::freeze::RestoreArgs;
use crate::progress::milliseconds;
use crate::{beside, foreign, output, transfer};

/// The session that a directory is of, if it is of one.
///
/// # Errors
/// When its index cannot be read, or is not somebody's who is trusted.
pub fn find(args: &RestoreArgs) -> Result<Option<(PathBuf, SessionIndex)>> {
    // What else is wrong is said where single checkpoints are restored.
    let Ok(directory) = args.place().canonicalize() else { return Ok(None) };
    let opened = OpenDirectory::open(&directory, args.trust())?;
    Ok(SessionIndex::read_in(&opened)?.map(|index| (directory, index)))
}

/// Brings all trees of a session back.
///
/// # Errors
/// Before anything is done if one is not complete; else when any fails, and the others run.
pub fn run(args: &RestoreArgs, session: &Path, index: &SessionIndex) -> Result<()> {
    match args.beside {
        true if std::process::id() != 1 => beside::enter(args),
        true => {
            beside::furnish()?;
            beside::stay(&args.finish(restore(args, session, index))?)
        }
        false => args.finish(restore(args, session, index)).map(drop),
    }
}

/// Returns the pids of the roots.
fn restore(args: &RestoreArgs, session: &Path, index: &SessionIndex) -> Result<Vec<i32>> {
    let started = Instant::now();
    let directories = index.directories(session);
    for directory in &directories {
        let manifest = Manifest::read(directory)?;
        if args.beside {
            // The restores do not know that they are beside the originals.
            foreign::hide_directory(args, directory, &manifest)?;
        }
    }
    let restores: Vec<Result<Child>> = directories.iter().map(|directory| start(args, directory)).collect();
    let mut trees = Vec::new();
    let mut failed = Vec::new();
    for (pid, restore) in index.trees.iter().zip(restores) {
        let ended = restore.and_then(|child| Ok(child.wait_with_output()?));
        let outcome = ended.and_then(|output| {
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("Error: "));
            }
            // Warnings.
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout)
                .context("Its restore said something else than JSON")
        });
        match outcome {
            Ok(outcome) => trees.push(outcome),
            Err(error) => failed.push((pid, error)),
        }
    }
    if args.json && failed.is_empty() {
        output::report(format_args!("{}\n", json!({ "restore_ms": milliseconds(started), "trees": trees })));
    }
    if !args.json {
        trees.iter().for_each(print);
    }
    if failed.is_empty() {
        return Ok(index.trees.clone());
    }
    let texts: Vec<_> =
        failed.iter().map(|(pid, text)| format!("the tree of process {pid}: {text:#}")).collect();
    let runs: Vec<_> =
        trees.iter().filter_map(|tree| tree["pid"].as_i64()).map(|pid| pid.to_string()).collect();
    let rest = if runs.is_empty() { String::new() } else { format!(" ({} run again)", runs.join(", ")) };
    bail!("{} of {} trees are not restored{rest}: {}", failed.len(), index.trees.len(), texts.join("; "))
}

/// The same command again, for one of the directories.
fn start(args: &RestoreArgs, directory: &Path) -> Result<Child> {
    let own = std::env::current_exe().context("Cannot find this program's own path")?;
    let mut command = Command::new(own);
    let mut words = std::env::args_os().skip(1);
    command.args(words.next()).arg("--join");
    transfer::hand_on(&mut command, &args.directory, directory);
    if !args.json {
        command.arg("--json");
    }
    command.args(words.filter(|word| word != "--beside"));
    let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    pipes.spawn().context("Cannot start a restore")
}

/// One line a tree.
fn print(tree: &Value) {
    if tree["foreign"] == true {
        return output::report(foreign::restored(tree));
    }
    let number = |name: &str| tree[name].as_f64().unwrap_or(0.0);
    output::report(format_args!(
        "Process {} {}: {:.1} MiB of buffers, {:.0} ms ({:.0} CRIU)\n",
        tree["pid"],
        match tree["ended"].as_str() {
            None => "runs again".to_owned(),
            Some(how) => format!("was restored and has ended since ({how})"),
        },
        number("content_bytes") / f64::from(1 << 20),
        number("restore_ms"),
        number("criu_ms"),
    ));
}
