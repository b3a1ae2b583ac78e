// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis squash`: a checkpoint that has contents in files of earlier ones, made whole by itself in another directory.
//!
//! INVARIANT: the old checkpoint is not changed, and files are taken from it as a restore takes them: of trusted owners, through no link. The
//! new one does not count before all of it is there: its manifests come last. What has failed leaves nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use stasis::checkpoint::Metadata;
use stasis::criu::{
    CRIU_DIRECTORY, LAYOUT, Manifest, NO_PLUGINS, OpenDirectory, SESSION_DIRECTORY, SessionIndex,
    TREE_LAYOUT, Trust, commit_now, make_private, open_image, prepare, prepare_empty,
};
use stasis::image::{Image, Limit};

use crate::output;
use crate::progress::{mebibytes, spinner};

/// Arguments of `stasis squash`.
#[derive(Debug, Args)]
pub struct SquashArgs {
    /// The directory of a checkpoint, or of a session.
    directory: PathBuf,
    /// Where the whole one goes: must be empty or not exist.
    whole: PathBuf,
    /// Take files of any owner.
    #[arg(long)]
    trust_owner: bool,
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
/// When it is not complete or not as it was written, or the new one cannot be written; nothing is left of that then.
pub fn run(args: &SquashArgs) -> Result<()> {
    let found = &args.directory;
    let directory = found.canonicalize().with_context(|| format!("Cannot find {}", found.display()))?;
    let trust = if args.trust_owner { Trust::Anyone } else { Trust::of_caller() };
    let bar = spinner(args.json);
    let opened = OpenDirectory::open(&directory, trust.clone())?;
    let session = SessionIndex::read_in(&opened)?;
    let trees = match &session {
        Some(session) => session.directories(&directory),
        None => vec![directory.clone()],
    };
    let checked = trees.iter().map(|tree| Checked::open(tree, &trust, session.is_some(), &bar));
    let checked = checked.collect::<Result<Vec<_>>>()?;
    let whole = prepare_empty(&args.whole)?;
    let written = write(&checked, session.as_ref(), &whole, &bar);
    bar.finish_and_clear();
    let squashed = written.inspect_err(|_| {
        // It was empty before.
        if let Err(error) = fs::remove_dir_all(&whole) {
            tracing::warn!(target: "squash", %error, "what was written of {} stays", whole.display());
        }
    })?;
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

/// The checkpoint of one tree, all of whose files are as they were written.
struct Checked {
    opened: OpenDirectory,
    manifest: Manifest,
    images: Vec<(String, Image)>,
}

impl Checked {
    fn open(directory: &Path, trust: &Trust, in_session: bool, bar: &ProgressBar) -> Result<Self> {
        let opened = OpenDirectory::open(directory, trust.clone())?;
        let manifest = Manifest::read_in(&opened)?;
        if manifest.foreign.is_some() || manifest.image_names().next().is_none() {
            bail!("{} has no images of runtimes: it is whole", directory.display());
        }
        if !manifest.is_sealed() {
            bail!(
                "The manifest of {} does not list its files (layout {}), so that a copy could not be known to be right",
                directory.display(),
                manifest.layout
            );
        }
        // First: what an image says of itself says more than a list of hashes. Its contents are checked as they are copied.
        let open = |name: String| Ok((name.clone(), open_image(&opened, &name)?));
        let images = manifest.image_names().map(open).collect::<Result<Vec<_>>>()?;
        bar.set_message("checking the files");
        manifest.check_files(&opened, true, &|_| ())?;
        for (_, image) in images.iter().filter(|_| !in_session) {
            let metadata: Metadata = image.metadata()?;
            let sharing = metadata.sharing.filter(|sharing| !sharing.objects.is_empty());
            let order = sharing.and_then(|sharing| sharing.order);
            let others = order.iter().flat_map(|order| &order.members);
            let is_own =
                |pid: &str| manifest.runtimes(directory).iter().any(|(own, _)| own.to_string() == pid);
            if let Some(other) = others.clone().find(|member| !is_own(&member.name)) {
                bail!(
                    "{} shares memory with process {} of its session: squash the whole session's directory",
                    directory.display(),
                    other.name
                );
            }
        }
        Ok(Self { opened, manifest, images })
    }

    /// Writes all but the manifest, which stays pending.
    fn write(&self, to: &Path, bar: &ProgressBar) -> Result<Squashed> {
        let (from, manifest) = (self.opened.path(), &self.manifest);
        prepare(to)?;
        for member in &manifest.members {
            make_private(&to.join(&member.directory))?;
        }
        for place in [Path::new(SESSION_DIRECTORY), &Path::new(CRIU_DIRECTORY).join(NO_PLUGINS)] {
            if from.join(place).is_dir() {
                make_private(&to.join(place))?;
            }
        }
        bar.set_message("writing whole images");
        let (mut squashed, mut replaced) = (Squashed::default(), Vec::new());
        for (name, image) in &self.images {
            let stats = image.copy_to(&to.join(name), &Limit::none())?;
            let beside =
                |earlier: &str| Path::new(name).with_file_name(earlier).to_string_lossy().into_owned();
            replaced.extend(image.earlier().iter().map(|earlier| beside(&earlier.name)));
            replaced.push(name.clone());
            squashed.images += 1;
            squashed.earlier_files += image.earlier().len() as u64;
            squashed.image_bytes += stats.file_bytes;
        }
        bar.set_message("copying CRIU's images");
        for file in manifest.files.iter().filter(|file| !replaced.contains(&file.path)) {
            let to = to.join(&file.path);
            copy(&mut self.opened.file(&file.path)?, &to)
                .with_context(|| format!("Cannot write {}", to.display()))?;
        }
        let layout = if manifest.members.is_empty() { LAYOUT } else { TREE_LAYOUT };
        Manifest { layout, files: Vec::new(), ..manifest.clone() }.write_pending(to)?;
        Ok(squashed)
    }
}

/// A copy of its own, since what is whole by itself does not change with another directory's files.
fn copy(from: &mut File, to: &Path) -> io::Result<()> {
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(from, &mut to).map(drop)
}

fn write(
    trees: &[Checked],
    session: Option<&SessionIndex>,
    whole: &Path,
    bar: &ProgressBar,
) -> Result<Squashed> {
    let places = match session {
        Some(session) => session.directories(whole),
        None => vec![whole.to_owned()],
    };
    let mut sum = Squashed::default();
    for (tree, place) in trees.iter().zip(&places) {
        let one = tree.write(place, bar)?;
        sum.images += one.images;
        sum.earlier_files += one.earlier_files;
        sum.image_bytes += one.image_bytes;
    }
    if let Some(session) = session {
        make_private(&whole.join(SESSION_DIRECTORY))?;
        session.write(whole)?;
    }
    bar.set_message("hashing");
    places.iter().try_for_each(|place| commit_now(place))?;
    Ok(sum)
}
