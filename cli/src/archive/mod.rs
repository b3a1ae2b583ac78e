// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis archive`: the archives in which kubelet and podman keep checkpoints of containers.
//!
//! ```text
//!  config.dump       JSON: id, name, image and runtime of the container, and when it was made
//!  spec.dump         JSON: its configuration, as runc has it (config.json of a bundle)
//!  checkpoint/       CRIU's images
//!  rootfs-diff.tar, deleted.files, network.status, bind.mounts, stats-dump, dump.log, ...
//! ```
//! The archive is a tar, as CRI-O writes it, or one that gzip or zstd has compressed, as podman does (checkpointctl's
//! `lib/metadata.go` has the names).
//!
//! INVARIANT: of an archive only regular files and directories with plain names are unpacked, into a directory that was not there.

mod contents;
mod pack;
mod unpack;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::json;

use self::contents::Contents;
use self::pack::PackArgs;
use crate::output::{self, line};
use crate::progress::mebibytes;

/// The container's own data.
const CONFIG: &str = "config.dump";
/// Its configuration.
const SPEC: &str = "spec.dump";
/// What CRIU's images are below.
const IMAGES: &str = "checkpoint";

/// Arguments of `stasis archive`.
#[derive(Debug, Args)]
pub struct ArchiveArgs {
    #[command(subcommand)]
    act: Act,
    /// Print one JSON object instead of prose.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Say whose checkpoint an archive is, and what it has. Exits with 1 if something is missing.
    Show {
        /// The archive.
        archive: PathBuf,
    },
    /// Make a directory of an archive: runc restores what is below `checkpoint`, with `spec.dump` as the bundle's config.json.
    Unpack {
        /// The archive.
        archive: PathBuf,
        /// Where it goes: must not exist.
        directory: PathBuf,
    },
    /// Make an archive of a checkpoint by runc, or of what was unpacked.
    Pack(PackArgs),
}

/// Does what is asked of an archive.
///
/// # Errors
/// Why it was not done; a new directory or archive is not there then.
pub fn run(args: &ArchiveArgs) -> Result<()> {
    let (value, text) = match &args.act {
        Act::Show { archive } => {
            let contents = Contents::read(archive)?;
            contents.check()?;
            (json!(contents), prose(&contents))
        }
        Act::Unpack { archive, directory } => {
            let contents = unpack::unpack(archive, directory)?;
            (
                json!({ "directory": directory }),
                format!("{} is in {}\n", contents.title(), directory.display()),
            )
        }
        Act::Pack(pack) => {
            let bytes = pack::pack(pack)?;
            let text = format!("{} has {:.1} MiB\n", pack.archive.display(), mebibytes(bytes));
            (json!({ "archive": pack.archive, "bytes": bytes }), text)
        }
    };
    match args.json {
        true => output::report(format_args!("{value}\n")),
        false => output::report(text),
    }
    Ok(())
}

/// The directory in which a path is to be made, which must not be there.
fn above_new(path: &Path) -> Result<&Path> {
    ensure!(fs::symlink_metadata(path).is_err(), "{} is there already", path.display());
    Ok(path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

fn prose(contents: &Contents) -> String {
    let mut text = String::new();
    line!(text, "{}", contents.title());
    for (what, said) in [
        ("image", &contents.image),
        ("runtime", &contents.runtime),
        ("made", &contents.created),
        ("checkpointed", &contents.checkpointed),
    ] {
        if let Some(said) = said {
            line!(text, "  {what:12}  {said}");
        }
    }
    let (images, all) = (mebibytes(contents.image_bytes), mebibytes(contents.bytes));
    line!(text, "  CRIU's images {images:.1} MiB in {} files, {all:.1} MiB in all", contents.images);
    for member in &contents.others {
        line!(text, "  {member}");
    }
    // Names are of whoever made the archive.
    text.chars().filter(|c| !c.is_control() || *c == '\n').collect()
}
