// SPDX-License-Identifier: MIT OR Apache-2.0
//! An archive of a checkpoint.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tar::{Builder, EntryType, Header};

use super::contents::{Config, Contents};
use super::{CONFIG, IMAGES, SPEC, above_new};

/// The annotation in which CRI-O has those of the container, as JSON; without it an archive is not restored.
const ANNOTATIONS: &str = "io.kubernetes.cri-o.Annotations";

/// Arguments of `stasis archive pack`.
#[derive(Debug, Args)]
pub(super) struct PackArgs {
    /// The archive: must not exist.
    pub(super) archive: PathBuf,
    /// A directory that `stasis archive unpack` has made.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["images", "bundle", "id", "name", "image", "rootfs_diff"])]
    unpacked: Option<PathBuf>,
    /// The directory of CRIU's images that runc has written (its --image-path).
    #[arg(long, value_name = "DIR", required_unless_present = "unpacked")]
    images: Option<PathBuf>,
    /// The container's bundle, whose config.json becomes spec.dump.
    #[arg(long, value_name = "DIR", required_unless_present = "unpacked")]
    bundle: Option<PathBuf>,
    /// The container's id.
    #[arg(long, required_unless_present = "unpacked")]
    id: Option<String>,
    /// Its name; its id unless given.
    #[arg(long)]
    name: Option<String>,
    /// The image that its root file system is made of, by name.
    #[arg(long, required_unless_present = "unpacked")]
    image: Option<String>,
    /// A tar of the files that it has changed.
    #[arg(long, value_name = "FILE")]
    rootfs_diff: Option<PathBuf>,
}

/// Makes an archive, which only its owner can read; returns its bytes.
///
/// # Errors
/// The archive is there, something cannot be read, or is missing.
pub(super) fn pack(args: &PackArgs) -> Result<u64> {
    let archive = &args.archive;
    let above = above_new(archive)?;
    let own = tempfile::Builder::new().prefix(".stasis-archive-").tempfile_in(above);
    let own = own.with_context(|| format!("Cannot write in {}", above.display()))?;
    let mut tar = Builder::new(BufWriter::new(own.as_file()));
    match (&args.unpacked, &args.images, &args.bundle) {
        (Some(unpacked), ..) => add_all(&mut tar, unpacked, "")?,
        (None, Some(images), Some(bundle)) => {
            add_text(&mut tar, CONFIG, &serde_json::to_vec_pretty(&config(args))?)?;
            add_text(&mut tar, SPEC, &serde_json::to_vec_pretty(&spec(bundle)?)?)?;
            add_all(&mut tar, images, &format!("{IMAGES}/"))?;
            if let Some(diff) = &args.rootfs_diff {
                add_file(&mut tar, diff, "rootfs-diff.tar")?;
            }
        }
        _ => bail!("--unpacked, or --images and --bundle"),
    }
    tar.into_inner()?.flush()?;
    own.as_file().sync_all()?;
    // It is what others will read.
    Contents::read(own.path())?.check()?;
    let bytes = own.as_file().metadata()?.len();
    own.persist_noclobber(archive).with_context(|| format!("Cannot make {}", archive.display()))?;
    Ok(bytes)
}

fn config(args: &PackArgs) -> Config {
    let now = Timestamp::now().to_string();
    let id = args.id.clone().unwrap_or_default();
    Config {
        name: args.name.clone().unwrap_or_else(|| id.clone()),
        id,
        rootfs_image: args.image.clone(),
        rootfs_image_ref: None,
        rootfs_image_name: args.image.clone(),
        runtime: Some("runc".to_owned()),
        created_time: Some(now.clone()),
        checkpointed_time: Some(now),
    }
}

/// The configuration of a bundle, as CRI-O reads it.
fn spec(bundle: &Path) -> Result<Value> {
    let path = bundle.join("config.json");
    let text = fs::read(&path).with_context(|| format!("Cannot read {}", path.display()))?;
    let mut spec: Map<String, Value> =
        serde_json::from_slice(&text).with_context(|| format!("{} is no configuration", path.display()))?;
    let annotations = spec.entry("annotations").or_insert_with(|| Map::new().into());
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    let annotations = annotations.as_object_mut();
    let annotations =
        annotations.with_context(|| format!("The annotations of {} are none", path.display()))?;
    if !annotations.contains_key(ANNOTATIONS) {
        let own = serde_json::to_string(annotations)?;
        annotations.insert(ANNOTATIONS.to_owned(), own.into());
    }
    Ok(spec.into())
}

fn header(kind: EntryType, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(bytes);
    header.set_mode(if kind == EntryType::Directory { 0o700 } else { 0o600 });
    header.set_mtime(0);
    header
}

fn add_text(tar: &mut Builder<impl Write>, name: &str, text: &[u8]) -> Result<()> {
    Ok(tar.append_data(&mut header(EntryType::Regular, text.len() as u64), name, text)?)
}

fn add_file(tar: &mut Builder<impl Write>, path: &Path, name: &str) -> Result<()> {
    let named = || format!("Cannot read {}", path.display());
    let file = File::open(path).with_context(named)?;
    let bytes = file.metadata().with_context(named)?.len();
    tar.append_data(&mut header(EntryType::Regular, bytes), name, file).with_context(named)
}

/// Adds what is in a directory, under names that begin with `prefix`; links are refused.
fn add_all(tar: &mut Builder<impl Write>, directory: &Path, prefix: &str) -> Result<()> {
    let named = || format!("Cannot read {}", directory.display());
    let mut entries =
        fs::read_dir(directory).with_context(named)?.collect::<Result<Vec<_>, _>>().with_context(named)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    if !prefix.is_empty() {
        tar.append_data(&mut header(EntryType::Directory, 0), prefix, std::io::empty())?;
    }
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().with_context(named)?);
        let name =
            entry.file_name().into_string().map_err(|name| anyhow::anyhow!("{name:?} is not UTF-8"))?;
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => add_all(tar, &path, &format!("{prefix}{name}/"))?,
            (_, true) => add_file(tar, &path, &format!("{prefix}{name}"))?,
            // runc leaves one to the images before, which are not there.
            _ => bail!("{} is neither a file nor a directory", path.display()),
        }
    }
    Ok(())
}
