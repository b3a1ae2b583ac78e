// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis inspect`: what a checkpoint directory or a single image holds, without a device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use stasis::checkpoint::Metadata;
use stasis::criu::{Manifest, SessionIndex};
use stasis::image::Image;
use stasis::share::Parked;

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
    images: Vec<InspectedImage>,
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
    verified: bool,
    metadata: Metadata,
}

fn image(path: &Path, verify: bool) -> Result<InspectedImage> {
    let image = Image::inspect(path)?;
    if verify {
        image.verify()?;
    }
    Ok(InspectedImage {
        path: path.into(),
        file_bytes: image.file_bytes(),
        chunks: image.chunks().len(),
        stored_bytes: image.chunks().iter().map(|c| c.length).sum(),
        verified: verify,
        metadata: image.metadata()?,
    })
}

fn checkpoint(directory: &Path, verify: bool) -> Result<Inspected> {
    let manifest = Manifest::read(directory)?;
    let images = manifest.image_paths(directory);
    let images = images.iter().map(|path| image(path, verify)).collect::<Result<_>>()?;
    Ok(Inspected { manifest: Some(manifest), images })
}

/// Prints what is there.
pub fn run(args: &InspectArgs) -> Result<()> {
    let found =
        std::fs::metadata(&args.path).with_context(|| format!("Cannot find {}", args.path.display()))?;
    let session = if found.is_dir() { SessionIndex::read(&args.path)? } else { None };
    if let Some(session) = session {
        let directories = session.directories(&args.path);
        let trees = directories.iter().map(|tree| checkpoint(tree, args.verify)).collect::<Result<_>>()?;
        let inspected = InspectedSession { session, trees };
        match args.json {
            true => output::show(serde_json::to_string_pretty(&inspected)? + "\n"),
            false => output::show(inspected.trees.iter().map(describe).collect::<String>()),
        }
        return Ok(());
    }
    let inspected = match found.is_dir() {
        true => checkpoint(&args.path, args.verify)?,
        false => Inspected { manifest: None, images: vec![image(&args.path, args.verify)?] },
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
    }
    inspected.images.iter().for_each(|image| describe_image(&mut text, image));
    text
}

fn describe_image(text: &mut String, image: &InspectedImage) {
    let (chunks, stored) = (image.chunks, image.stored_bytes);
    line!(text, "{}: {} bytes, {chunks} chunks with {stored} bytes", image.path.display(), image.file_bytes);
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
fn describe_sharing(text: &mut String, sharing: &Parked) {
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
            &Parked { order: Some(order), objects: BTreeMap::from([(dmabuf, object)]) },
        );
        assert_eq!(
            text,
            "  session one, as 7 of 7, 8\n  shared memory 1.23: 4096 bytes of GPU-1, saved by 8\n"
        );
    }
}
