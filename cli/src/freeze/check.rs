// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether programs and files are those of the checkpoint, before CRIU sees any of them.
//!
//! INVARIANT: nothing of the process exists yet, and nothing is changed here.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Result, anyhow, bail};
use indicatif::ProgressBar;
use stasis::checkpoint::Metadata;
use stasis::criu::{Executable, Manifest, OpenDirectory, open_image};
use stasis::image::memory_is_ample;

use crate::progress::mebibytes;

/// How many bytes are checked before the display says so again.
const SAID: u64 = 64 << 20;

/// Makes sure that programs and files are those of the checkpoint, both at a time: each is read from end to end, unless
/// the user is in a hurry. With `lazy` the buffers' contents are left to the processes, which check each part when they read it.
pub fn all(
    manifest: &Manifest,
    directory: &OpenDirectory,
    no_verify: bool,
    lazy: bool,
    bar: &ProgressBar,
) -> Result<()> {
    bar.set_message("checking the files");
    let done = AtomicU64::new(0);
    let progress = |bytes| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        if before / SAID != (before + bytes) / SAID {
            bar.set_message(format!("checking the files: {:.0} MiB", mebibytes(before + bytes)));
        }
    };
    let members = manifest.members.iter().filter_map(|member| member.executable.as_ref());
    let programs = || manifest.executable.iter().chain(members.clone()).try_for_each(Executable::check);
    let files = || {
        // First: what an image says of itself, its version or the place of the damage, says more than a list of hashes.
        manifest.image_names().try_for_each(|name| image(directory, &name, no_verify || lazy))?;
        manifest.check_files(directory, !no_verify, &progress)?;
        Ok(())
    };
    thread::scope(|scope| {
        let thread = memory_is_ample().then(|| thread::Builder::new().spawn_scoped(scope, programs));
        match thread {
            Some(Ok(checking)) => {
                let files = files();
                checking.join().map_err(|_| anyhow!("Checking the programs failed"))??;
                files
            }
            // Without a thread one after the other.
            _ => {
                programs()?;
                files()
            }
        }
    })
}

/// What a restore of a checkpoint without a list of files cannot know.
pub(super) fn unlisted(manifest: &Manifest, directory: &Path) -> String {
    format!(
        "the manifest of {} (layout {}) does not list its files, as those of earlier versions do: whether CRIU's images are \
         as they were written is not known",
        directory.display(),
        manifest.layout
    )
}

/// Makes sure that an image is whole, but for the bytes of the buffers if they are checked `later`, and that its process will find
/// the others of its session.
fn image(directory: &OpenDirectory, name: &str, later: bool) -> Result<()> {
    let path = directory.path().join(name);
    let image = open_image(directory, name)?;
    if !later {
        image.verify()?;
    }
    let metadata: Metadata = image.metadata()?;
    let shared = metadata.sharing.as_ref().filter(|sharing| !sharing.objects.is_empty());
    let order = shared.and_then(|sharing| sharing.order.as_ref()).filter(|order| order.members.len() > 1);
    let (Some(order), Some(parent)) = (order, path.parent()) else { return Ok(()) };
    let meeting = parent.join(&order.from_image);
    if !meeting.is_dir() {
        bail!(
            "{} shares memory with others of its session, and the directory where they meet is not at {}: move the \
             whole session's directory, not a part of it",
            path.display(),
            meeting.display()
        );
    }
    Ok(())
}
