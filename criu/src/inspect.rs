// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis inspect`: what a checkpoint directory or a single image holds, without a device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use stasis::checkpoint::Metadata;
use stasis::image::Image;

use stasis::criu::Manifest;

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

/// Prints what is there.
pub fn run(args: &InspectArgs) -> Result<()> {
    let found =
        std::fs::metadata(&args.path).with_context(|| format!("Cannot find {}", args.path.display()))?;
    let inspected = if found.is_dir() {
        let manifest = Manifest::read(&args.path)?;
        let images =
            manifest.images.iter().map(|n| image(&args.path.join(n), args.verify)).collect::<Result<_>>()?;
        Inspected { manifest: Some(manifest), images }
    } else {
        Inspected { manifest: None, images: vec![image(&args.path, args.verify)?] }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&inspected)?);
        return Ok(());
    }
    if let Some(m) = &inspected.manifest {
        println!("Process {}: {}", m.pid, m.command.join(" "));
        println!("  dumped by CRIU {}", m.criu);
    }
    for i in &inspected.images {
        let m = &i.metadata;
        println!(
            "{}: {} bytes, {} chunks with {} bytes",
            i.path.display(),
            i.file_bytes,
            i.chunks,
            i.stored_bytes
        );
        println!("  id {}, process {}, on {}", m.image_id, m.pid, m.transport);
        for agent in &m.agents {
            println!(
                "  agent GPU-{:016x} {} (gfx_target_version {})",
                agent.unique_id,
                agent.name,
                agent.properties.get("gfx_target_version").copied().unwrap_or(0)
            );
        }
        let r = &m.registry;
        println!(
            "  {} buffer objects, {} queues, {} signals, {} events, {} executables",
            r.bos.entries.len(),
            r.queues.entries.len(),
            r.signals.entries.len(),
            r.events.entries.len(),
            r.executables.entries.len()
        );
        if i.verified {
            println!("  all contents fit their hashes");
        }
    }
    Ok(())
}
