// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis squash`: a checkpoint that has contents in files of earlier ones, made whole by itself in another directory.
//!
//! INVARIANT: the old checkpoint is not changed, and the new one does not count before it is complete: its manifest comes last.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use stasis::criu::{
    CRIU_DIRECTORY, LAYOUT, Manifest, NO_PLUGINS, OpenDirectory, SESSION_DIRECTORY, SessionIndex,
    TREE_LAYOUT, Trust, commit_now, make_private, prepare, prepare_empty,
};
use stasis::image::Limit;

use crate::freeze::{check_files, mebibytes, open_image, spinner};
use crate::output;

/// Arguments of `stasis squash`.
#[derive(Debug, Args)]
pub struct SquashArgs {
    /// The directory of a checkpoint, or of a session.
    directory: PathBuf,
    /// Where the whole one goes: must be empty or not exist.
    whole: PathBuf,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Squashed {
    /// Images of runtimes.
    images: u64,
    /// Files of earlier images that are no longer needed.
    earlier_files: u64,
    /// Length of the images.
    image_bytes: u64,
}

/// Makes a checkpoint whole.
///
/// # Errors
/// When it is not complete or not as it was written, or the new one cannot be written; that has no manifest then.
pub fn run(args: &SquashArgs) -> Result<()> {
    let found = &args.directory;
    let directory = found.canonicalize().with_context(|| format!("Cannot find {}", found.display()))?;
    let bar = spinner(args.json);
    let session = SessionIndex::read_in(&OpenDirectory::open(&directory, Trust::Anyone)?)?;
    let squashed = match session {
        None => tree(&directory, &args.whole, &bar)?,
        Some(session) => {
            let whole = prepare_empty(&args.whole)?;
            let mut sum = Squashed::default();
            for (from, to) in session.directories(&directory).iter().zip(session.directories(&whole)) {
                let one = tree(from, &to, &bar)?;
                sum.images += one.images;
                sum.earlier_files += one.earlier_files;
                sum.image_bytes += one.image_bytes;
            }
            make_private(&whole.join(SESSION_DIRECTORY))?;
            session.write(&whole)?;
            sum
        }
    };
    bar.finish_and_clear();
    match args.json {
        true => output::report(serde_json::to_string(&squashed)? + "\n"),
        false => output::report(format_args!(
            "{} is whole by itself: {:.1} MiB in {} images that need none of {} earlier files\n",
            args.whole.display(),
            mebibytes(squashed.image_bytes),
            squashed.images,
            squashed.earlier_files,
        )),
    }
    Ok(())
}

/// The checkpoint of one tree.
fn tree(from: &Path, to: &Path, bar: &ProgressBar) -> Result<Squashed> {
    let opened = OpenDirectory::open(from, Trust::Anyone)?;
    let manifest = Manifest::read_in(&opened)?;
    if manifest.foreign.is_some() || manifest.image_names().next().is_none() {
        bail!("{} has no images of runtimes: it is whole", from.display());
    }
    if !manifest.is_sealed() {
        bail!("{} is of an earlier version of Stasis, which knew no parents: it is whole", from.display());
    }
    check_files(&manifest, &opened, false, bar)?;
    let to = prepare(to)?;
    for member in &manifest.members {
        make_private(&to.join(&member.directory))?;
    }
    for place in [Path::new(SESSION_DIRECTORY), &Path::new(CRIU_DIRECTORY).join(NO_PLUGINS)] {
        if from.join(place).is_dir() {
            make_private(&to.join(place))?;
        }
    }
    let (mut squashed, mut replaced) = (Squashed::default(), Vec::new());
    bar.set_message("writing whole images");
    for name in manifest.image_names() {
        let image = open_image(&opened, &name)?;
        let stats = image.copy_to(&to.join(&name), &Limit::none())?;
        let beside = |earlier: &str| Path::new(&name).with_file_name(earlier).to_string_lossy().into_owned();
        replaced.extend(image.earlier().iter().map(|earlier| beside(&earlier.name)));
        squashed.images += 1;
        squashed.earlier_files += image.earlier().len() as u64;
        squashed.image_bytes += stats.file_bytes;
        replaced.push(name);
    }
    for file in manifest.files.iter().filter(|file| !replaced.contains(&file.path)) {
        let (old, new) = (from.join(&file.path), to.join(&file.path));
        // On another file system, or where it is somebody else's, it is copied.
        if fs::hard_link(&old, &new).is_err() {
            fs::copy(&old, &new).with_context(|| format!("Cannot copy {}", old.display()))?;
        }
    }
    let layout = if manifest.members.is_empty() { LAYOUT } else { TREE_LAYOUT };
    Manifest { layout, files: Vec::new(), ..manifest }.write_pending(&to)?;
    commit_now(&to)?;
    Ok(squashed)
}
