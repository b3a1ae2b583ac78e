// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkpoint that another one is made upon: which of its images each process is told of.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use stasis::criu::{Manifest, OpenDirectory, SessionIndex, Trust};
use stasis::image::IMAGE_FILE;

use super::party::{Party, Tree};

/// The directory of an earlier image, by the process that is to use it.
pub(super) type Parents = HashMap<i32, PathBuf>;

/// Finds images for the processes of a party; one without writes everything.
///
/// # Errors
/// When there is no complete checkpoint with such images.
pub(super) fn find(parent: &Path, party: &Party) -> Result<Parents> {
    let parent =
        parent.canonicalize().with_context(|| format!("Cannot find the parent {}", parent.display()))?;
    let session = SessionIndex::read_in(&OpenDirectory::open(&parent, Trust::Anyone)?)?;
    let mut parents = Parents::new();
    for tree in &party.trees {
        let directory = match &session {
            Some(index) if !index.trees.contains(&tree.pid) => continue,
            Some(_) => parent.join(tree.pid.to_string()),
            None => parent.clone(),
        };
        parents.extend(of_tree(&directory, tree)?);
    }
    if parents.is_empty() {
        bail!(
            "The parent {} has no image for any of the processes (a self-contained checkpoint has none): checkpoint without it",
            parent.display()
        );
    }
    Ok(parents)
}

fn of_tree(directory: &Path, tree: &Tree) -> Result<Parents> {
    let manifest = Manifest::read(directory)?;
    if manifest.foreign.is_some() {
        bail!("The parent {} is of a program under `stasis run`, which has no image", directory.display());
    }
    let images: HashMap<i32, PathBuf> = manifest
        .runtimes(directory)
        .into_iter()
        .filter(|(_, place)| place.join(IMAGE_FILE).exists())
        .collect();
    // Contents are found by their hashes: of one process each it need not be the same.
    if let ([member], [only]) = (&tree.members[..], &images.values().collect::<Vec<_>>()[..]) {
        return Ok(Parents::from([(member.pid, (*only).clone())]));
    }
    let of_member = |pid: i32| Some((pid, images.get(&pid)?.clone()));
    Ok(tree.members.iter().filter_map(|member| of_member(member.pid)).collect())
}
