// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis inspect`: what a checkpoint directory or a single image holds, without a device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use stasis::checkpoint::Metadata;
use stasis::criu::{CheckedFiles, Manifest, OpenDirectory, SessionIndex, Trust, open_image};
use stasis::image::{EarlierFile, Image};
use stasis::share::SharedState;

use crate::foreign::Devices;
use crate::output::{self, line};

/// Arguments of `stasis inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A checkpoint directory, or one image in it.
    path: PathBuf,
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
    /// Read all contents and check their hashes.
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, Serialize)]
struct Inspected {
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<Manifest>,
    /// The files that the manifest lists, where they were compared with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<CheckedFiles>,
    images: Vec<InspectedImage>,
    /// The devices of a program under `stasis run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Devices>,
}

/// What is printed of a directory with several checkpoints.
#[derive(Debug, Serialize)]
struct InspectedSession {
    session: SessionIndex,
    trees: Vec<Inspected>,
}

#[derive(Debug, Serialize)]
struct InspectedImage {
    path: PathBuf,
    file_bytes: u64,
    chunks: usize,
    stored_bytes: u64,
    /// The files of earlier images that it has contents in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<Earlier>,
    verified: bool,
    metadata: Metadata,
}

#[derive(Debug, Serialize)]
struct Earlier {
    name: String,
    file_bytes: u64,
    /// Bytes of it that are contents of the image.
    used_bytes: u64,
}

fn earlier(image: &Image) -> Vec<Earlier> {
    let used = image.bytes_by_file().into_iter().skip(1);
    let one = |(file, used_bytes): (&EarlierFile, u64)| Earlier {
        name: file.name.clone(),
        file_bytes: file.bytes,
        used_bytes,
    };
    image.earlier().iter().zip(used).map(one).collect()
}

fn look(path: &Path, image: &Image, verify: bool) -> Result<InspectedImage> {
    if verify {
        image.verify()?;
    }
    Ok(InspectedImage {
        path: path.into(),
        file_bytes: image.file_bytes(),
        chunks: image.chunks().len(),
        stored_bytes: image.chunks().iter().map(|c| c.length).sum(),
        earlier: earlier(image),
        verified: verify,
        metadata: image.metadata()?,
    })
}

/// A display of how much is checked, where somebody may look.
fn progress(manifest: &Manifest, args: &InspectArgs) -> ProgressBar {
    if args.json || !args.verify {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(manifest.listed_bytes());
    if let Ok(style) = ProgressStyle::with_template("{bar} {bytes} of {total_bytes} ({bytes_per_sec})") {
        bar.set_style(style);
    }
    bar
}

fn checkpoint(directory: &Path, args: &InspectArgs) -> Result<Inspected> {
    let directory =
        directory.canonicalize().with_context(|| format!("Cannot find {}", directory.display()))?;
    let opened = OpenDirectory::open(&directory, Trust::Anyone)?;
    let manifest = Manifest::read_in(&opened)?;
    let bar = progress(&manifest, args);
    let image = |name: String| {
        let path = directory.join(&name);
        let image = open_image(&opened, &name)?;
        let looked = look(&path, &image, args.verify)?;
        bar.inc(looked.stored_bytes);
        Ok(looked)
    };
    let images = manifest.image_names().map(image).collect::<Result<_>>()?;
    let verified = match args.verify {
        true => Some(manifest.check_files(&opened, true, &|bytes| bar.inc(bytes))?),
        false => None,
    };
    bar.finish_and_clear();
    let devices = Devices::read(&opened, &manifest)?;
    Ok(Inspected { manifest: Some(manifest), verified, images, devices })
}

/// Prints what is there.
pub fn run(args: &InspectArgs) -> Result<()> {
    let found =
        std::fs::metadata(&args.path).with_context(|| format!("Cannot find {}", args.path.display()))?;
    let session = match found.is_dir() {
        true => SessionIndex::read_in(&OpenDirectory::open(&args.path.canonicalize()?, Trust::Anyone)?)?,
        false => None,
    };
    if let Some(session) = session {
        let directories = session.directories(&args.path);
        let trees = directories.iter().map(|tree| checkpoint(tree, args)).collect::<Result<_>>()?;
        let inspected = InspectedSession { session, trees };
        match args.json {
            true => output::show(serde_json::to_string_pretty(&inspected)? + "\n"),
            false => output::show(inspected.trees.iter().map(describe).collect::<String>()),
        }
        return Ok(());
    }
    let inspected = match found.is_dir() {
        true => checkpoint(&args.path, args)?,
        false => {
            let image = look(&args.path, &Image::inspect(&args.path)?, args.verify)?;
            Inspected { manifest: None, verified: None, images: vec![image], devices: None }
        }
    };
    match args.json {
        true => output::show(serde_json::to_string_pretty(&inspected)? + "\n"),
        false => output::show(describe(&inspected)),
    }
    Ok(())
}

fn describe(inspected: &Inspected) -> String {
    let mut text = String::new();
    if let Some(m) = &inspected.manifest {
        line!(text, "Process {}: {}", m.pid, m.command.join(" "));
        line!(text, "  dumped by CRIU {}", m.criu);
        if !m.members.is_empty() {
            let pids: Vec<_> = m.members.iter().map(|member| member.pid.to_string()).collect();
            line!(text, "  runtimes in processes {}", pids.join(", "));
        }
        describe_files(&mut text, m, inspected.verified);
    }
    if let Some(devices) = &inspected.devices {
        devices.describe(&mut text);
    }
    inspected.images.iter().for_each(|image| describe_image(&mut text, image));
    // Names come from files of anybody: none of them is to command the terminal.
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// What the manifest lists.
fn describe_files(text: &mut String, manifest: &Manifest, verified: Option<CheckedFiles>) {
    match verified {
        _ if !manifest.is_sealed() => {
            line!(
                text,
                "  layout {}: it does not list CRIU's files, which cannot be verified",
                manifest.layout
            );
        }
        Some(CheckedFiles { files, bytes, .. }) => {
            line!(text, "  {files} files with {bytes} bytes are as they were written");
        }
        None => line!(text, "  {} files are listed", manifest.files.len()),
    }
}

fn describe_image(text: &mut String, image: &InspectedImage) {
    let (chunks, stored) = (image.chunks, image.stored_bytes);
    line!(text, "{}: {} bytes, {chunks} chunks with {stored} bytes", image.path.display(), image.file_bytes);
    for Earlier { name, file_bytes, used_bytes } in &image.earlier {
        line!(text, "  {used_bytes} of them in {name}, an earlier image's file of {file_bytes} bytes");
    }
    let m = &image.metadata;
    line!(text, "  id {}, process {}, on {}", m.image_id, m.pid, m.transport);
    for agent in &m.agents {
        let target = agent.properties.get("gfx_target_version").copied().unwrap_or(0);
        line!(text, "  agent GPU-{:016x} {} (gfx_target_version {target})", agent.unique_id, agent.name);
    }
    let r = &m.registry;
    line!(
        text,
        "  {} buffer objects, {} queues, {} signals, {} events, {} executables",
        r.bos.entries.len(),
        r.queues.entries.len(),
        r.signals.entries.len(),
        r.events.entries.len(),
        r.executables.entries.len()
    );
    if let Some(sharing) = &m.sharing {
        describe_sharing(text, sharing);
    }
    if image.verified {
        line!(text, "  all contents fit their hashes");
    }
}

/// The session, and all memory that is shared in it.
fn describe_sharing(text: &mut String, sharing: &SharedState) {
    match &sharing.order {
        Some(order) => {
            let members: Vec<_> = order.members.iter().map(|member| member.name.as_str()).collect();
            line!(text, "  session {}, as {} of {}", order.id, order.name, members.join(", "));
        }
        None => line!(text, "  in no session"),
    }
    for object in sharing.objects.values() {
        line!(
            text,
            "  shared memory {}: {} bytes of {}, saved by {}",
            object.dmabuf,
            object.bytes,
            object.home.as_deref().unwrap_or("an agent nobody names"),
            object.saver
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stasis::registry::state::DmabufId;
    use stasis::share::{Member, Object, SessionOrder};

    use super::*;

    #[test]
    fn session_and_shared_memory_are_told() {
        let member = |name: &str| Member { name: name.to_owned(), image: name.into() };
        let order = SessionOrder {
            id: "one".to_owned(),
            directory: "/c/session".into(),
            from_image: "../session".into(),
            name: "7".to_owned(),
            members: ["7", "8"].map(member).into(),
            patience_ms: 1,
        };
        let dmabuf = DmabufId { device: 1, inode: 23 };
        let (home, saver) = (Some("GPU-1".to_owned()), "8".to_owned());
        let object = Object { dmabuf, bytes: 4096, flags: 0, home, saver };
        let mut text = String::new();
        describe_sharing(
            &mut text,
            &SharedState { order: Some(order), objects: BTreeMap::from([(dmabuf, object)]) },
        );
        assert_eq!(
            text,
            "  session one, as 7 of 7, 8\n  shared memory 1.23: 4096 bytes of GPU-1, saved by 8\n"
        );
    }
}
