// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis store`: checkpoints that share their chunks.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use stasis::criu::Trust;
use stasis_store::{CollectOptions, Kept, Store, StorePlace};

use super::args::{ChunkArgs, KeyArgs, WriteArgs};
use super::deliver::add;
use crate::output::{self, line};
use crate::progress::{bar, mebibytes, on};

/// Arguments of `stasis store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    act: Act,
    /// Take files of any user, and files that others can write.
    #[arg(long, global = true)]
    trust_owner: bool,
    /// Print one JSON object instead of prose.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Add the checkpoint in a directory; chunks that the store has are not written again. The store is made if it is not there.
    Add {
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        /// The checkpoint's.
        directory: PathBuf,
        /// What it is called in the store.
        name: String,
        #[command(flatten)]
        chunks: ChunkArgs,
        #[command(flatten)]
        write: WriteArgs,
    },
    /// Make the directory of a checkpoint again.
    Fetch {
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        /// What it is called in the store.
        name: String,
        /// Where it goes: must be empty or not exist. What an attempt that ended has left is used.
        directory: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// What checkpoints there are, and what each has that no other one has.
    List {
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Take a checkpoint out. Its chunks stay until they are collected.
    Remove {
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        /// What it is called in the store.
        name: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Remove what no checkpoint has.
    Collect {
        /// Of a store in a bucket: take processes for dead that add to it or collect it. Those that are not dead fail.
        #[arg(long)]
        abandon: bool,
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Read every chunk that a checkpoint has, and compare its hash.
    Verify {
        /// The store: a directory, or s3://BUCKET/PREFIX.
        store: StorePlace,
        #[command(flatten)]
        key: KeyArgs,
    },
}

/// Does what is asked of a store.
///
/// # Errors
/// Why it was not done; the store is as it was then, but for chunks that a later addition uses, or a collection removes.
pub fn run(args: &StoreArgs) -> Result<()> {
    let trust = if args.trust_owner { Trust::Anyone } else { Trust::of_caller() };
    let (value, text) = match &args.act {
        Act::Add { store, directory, name, chunks, write } => {
            let store = Store::create(store, write.codec()?, trust.clone(), chunks.bytes())?;
            store.check_free(name)?;
            let added = add(&store, name, directory, trust, args.json)?;
            let (new, all) = (mebibytes(added.new_bytes), mebibytes(added.file_bytes));
            (json!(added), format!("{name}: {new:.1} MiB are new of {all:.1} MiB\n"))
        }
        Act::Fetch { store, name, directory, key } => {
            let bar = bar(args.json, "fetching chunks");
            let fetched = Store::open(store, key.codec()?, trust)?.fetch(name, directory, &on(&bar));
            bar.finish_and_clear();
            let place = fetched?;
            (json!({ "directory": place }), format!("{name} is in {}\n", place.display()))
        }
        Act::List { store, key } => {
            let kept = Store::open(store, key.codec()?, trust)?.list()?;
            (json!({ "checkpoints": kept }), table(&kept))
        }
        Act::Remove { store, name, key } => {
            Store::open(store, key.codec()?, trust)?.remove(name)?;
            (
                json!({ "removed": name }),
                format!("{name} is out; `stasis store collect` frees what it had alone\n"),
            )
        }
        Act::Collect { abandon, store, key } => {
            let options = CollectOptions { abandon: *abandon };
            let done = Store::open(store, key.codec()?, trust)?.collect(options)?;
            let (freed, left) = (mebibytes(done.removed_bytes), mebibytes(done.left_bytes));
            let text = format!(
                "{} packs and files of {freed:.1} MiB are gone, {} of {left:.1} MiB stay\n",
                done.removed, done.left
            );
            (json!(done), text)
        }
        Act::Verify { store, key } => {
            let bar = bar(args.json, "reading chunks");
            let verified = Store::open(store, key.codec()?, trust)?.verify(&on(&bar));
            bar.finish_and_clear();
            let (chunks, bytes) = verified?;
            let text = format!("{chunks} chunks of {:.1} MiB are as they were written\n", mebibytes(bytes));
            (json!({ "chunks": chunks, "bytes": bytes }), text)
        }
    };
    match args.json {
        true => output::report(format_args!("{value}\n")),
        false => output::report(text),
    }
    Ok(())
}

fn table(kept: &[Kept]) -> String {
    let mut text = String::new();
    if kept.is_empty() {
        line!(text, "No checkpoint");
    }
    let longest = kept.iter().map(|kept| kept.name.len()).max().unwrap_or(0);
    for Kept { name, file_bytes, chunk_bytes, own_bytes } in kept {
        line!(
            text,
            "{name:longest$}  {:9.1} MiB of files, {:9.1} MiB in chunks, {:9.1} MiB in no other",
            mebibytes(*file_bytes),
            mebibytes(*chunk_bytes),
            mebibytes(*own_bytes)
        );
    }
    text
}
