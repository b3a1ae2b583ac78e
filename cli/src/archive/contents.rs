// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an archive has.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType};

use super::{CONFIG, SPEC};

/// Longest of the texts that are read, bytes.
const MAX_TEXT: u64 = 16 << 20;
/// Most members of an archive.
const MAX_MEMBERS: usize = 1 << 20;
/// Most directories on the way to a member.
const MAX_DEPTH: usize = 16;
/// CRIU's image that each checkpoint has.
const INVENTORY: &str = "checkpoint/inventory.img";
/// How that one begins, which does not have the magic of CRIU's other images before its own (`INVENTORY_MAGIC`).
const INVENTORY_MAGIC: [u8; 4] = [0x16, 0x31, 0x31, 0x58];

/// The part of `config.dump` that CRI-O and podman have in common.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Config {
    pub(super) id: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs_image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs_image_ref: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs_image_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checkpointed_time: Option<String>,
}

/// What an archive has.
#[derive(Debug, Default, Serialize)]
pub(super) struct Contents {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) image: Option<String>,
    pub(super) runtime: Option<String>,
    pub(super) created: Option<String>,
    pub(super) checkpointed: Option<String>,
    /// CRIU's images, and their bytes.
    pub(super) images: u64,
    pub(super) image_bytes: u64,
    /// All bytes.
    pub(super) bytes: u64,
    /// The other members.
    pub(super) others: Vec<String>,
    #[serde(skip)]
    has_config: bool,
    #[serde(skip)]
    has_spec: bool,
    #[serde(skip)]
    has_inventory: bool,
}

/// A member of an archive, whose name is plain.
pub(super) struct Member<'e> {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) is_directory: bool,
    pub(super) contents: &'e mut dyn Read,
}

/// Hands out the members of an archive, one after the other.
///
/// # Errors
/// It cannot be read, or has a member that is neither a regular file nor a directory, or whose name leads elsewhere.
pub(super) fn each(archive: &Path, mut take: impl FnMut(Member<'_>) -> Result<()>) -> Result<()> {
    let named = || format!("Cannot read {}", archive.display());
    let mut file = BufReader::new(File::open(archive).with_context(named)?);
    let mut front = [0; 4];
    let begun = std::io::BufRead::fill_buf(&mut file).with_context(named)?;
    let length = begun.len().min(4);
    front[..length].copy_from_slice(&begun[..length]);
    let reader: Box<dyn Read> = match front {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Box::new(zstd::stream::read::Decoder::with_buffer(file).with_context(named)?)
        }
        _ => Box::new(file),
    };
    let mut tar = Archive::new(reader);
    for (n, entry) in tar.entries().with_context(named)?.enumerate() {
        ensure!(n < MAX_MEMBERS, "{} has more than {MAX_MEMBERS} members", archive.display());
        let mut entry = entry.with_context(named)?;
        let path = entry.path().with_context(named)?.into_owned();
        let mut parts = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(part) => {
                    parts.push(part.to_str().with_context(|| format!("{path:?} is not UTF-8"))?)
                }
                Component::CurDir => {}
                _ => bail!("{path:?} of {} leads elsewhere", archive.display()),
            }
        }
        ensure!(parts.len() <= MAX_DEPTH, "{path:?} of {} is too deep", archive.display());
        let is_directory = match entry.header().entry_type() {
            EntryType::Directory => true,
            EntryType::Regular | EntryType::Continuous => false,
            EntryType::XGlobalHeader => continue,
            other => bail!("{path:?} of {} is neither a file nor a directory ({other:?})", archive.display()),
        };
        // The archive's own directory.
        if parts.is_empty() {
            continue;
        }
        let (name, bytes) = (parts.join("/"), entry.size());
        take(Member { name, bytes, is_directory, contents: &mut entry })?;
    }
    // What is behind the last member has the checksum of what was compressed.
    io::copy(&mut tar.into_inner(), &mut io::sink()).with_context(named).map(drop)
}

impl Contents {
    /// What an archive has.
    ///
    /// # Errors
    /// As for [`each`]; a text in it is not as it should be.
    pub(super) fn read(archive: &Path) -> Result<Self> {
        let mut contents = Self::default();
        each(archive, |mut member| contents.note(&mut member))?;
        Ok(contents)
    }

    /// Notes a member, of which the texts are read.
    pub(super) fn note(&mut self, member: &mut Member<'_>) -> Result<()> {
        if member.is_directory {
            return Ok(());
        }
        let bytes = member.bytes;
        self.bytes += bytes;
        match member.name.as_str() {
            CONFIG => {
                let config: Config = text(member)?;
                let Config { id, name, .. } = config;
                let image = [config.rootfs_image_name, config.rootfs_image, config.rootfs_image_ref];
                self.image = image.into_iter().flatten().find(|image| !image.is_empty());
                (self.runtime, self.created) = (config.runtime, config.created_time);
                (self.id, self.name, self.checkpointed) = (id, name, config.checkpointed_time);
                self.has_config = true;
            }
            SPEC => {
                let spec: serde_json::Value = text(member)?;
                ensure!(spec["ociVersion"].is_string(), "{SPEC} is no configuration of a container");
                self.has_spec = true;
            }
            name if name.starts_with("checkpoint/") => {
                (self.images, self.image_bytes) = (self.images + 1, self.image_bytes + bytes);
                if name == INVENTORY {
                    let mut magic = [0; 4];
                    member
                        .contents
                        .read_exact(&mut magic)
                        .with_context(|| format!("{INVENTORY} is too short"))?;
                    ensure!(magic == INVENTORY_MAGIC, "{INVENTORY} does not begin like an image of CRIU");
                    self.has_inventory = true;
                }
            }
            name => self.others.push(name.to_owned()),
        }
        Ok(())
    }

    /// Makes sure that all is there that a restore needs.
    ///
    /// # Errors
    /// Something is missing.
    pub(super) fn check(&self) -> Result<()> {
        for (has, name) in [(self.has_config, CONFIG), (self.has_spec, SPEC), (self.has_inventory, INVENTORY)]
        {
            ensure!(has, "The archive has no {name}: it is no checkpoint of a container, or not all of one");
        }
        ensure!(!self.id.is_empty(), "{CONFIG} has no id");
        Ok(())
    }

    /// Name and id.
    pub(super) fn title(&self) -> String {
        let id: String = self.id.chars().take(12).collect();
        format!("{} ({id})", self.name)
    }
}

fn text<T: serde::de::DeserializeOwned>(member: &mut Member<'_>) -> Result<T> {
    ensure!(member.bytes <= MAX_TEXT, "{} has {} bytes, more than are read", member.name, member.bytes);
    let mut text = Vec::new();
    member.contents.read_to_end(&mut text)?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not as it should be", member.name))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tar::{Builder, Header};

    use super::*;
    use crate::archive::unpack::unpack;

    const CONFIG_TEXT: &str = r#"{"id":"0123456789abcdef","name":"embed","rootfsImageName":"here/embed:1",
        "runtime":"runc","createdTime":"2026-11-30T00:00:00Z","newNetworks":{"a":1}}"#;

    /// An archive with these members: kind, name, contents.
    fn tar(members: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (kind, name, contents) in members {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(contents.len() as u64);
            // Names that the library would not write.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            tar.append(&header, *contents).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn whole() -> Vec<(EntryType, &'static str, &'static [u8])> {
        vec![
            (EntryType::Regular, CONFIG, CONFIG_TEXT.as_bytes()),
            (EntryType::Regular, SPEC, br#"{"ociVersion":"1.0.2","process":{}}"#),
            (EntryType::Directory, "checkpoint/", b""),
            (EntryType::Regular, INVENTORY, b"\x1611X...more"),
            (EntryType::Regular, "checkpoint/pages-1.img", &[7; 5000]),
            (EntryType::Regular, "./rootfs-diff.tar", b"diff"),
        ]
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn archives_are_read_however_they_are_compressed() {
        let plain = tar(&whole());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let zstd = zstd::bulk::compress(&plain, 1).unwrap();
        for bytes in [&plain, &gzip.finish().unwrap(), &zstd] {
            let contents = Contents::read(file(bytes).path()).unwrap();
            contents.check().unwrap();
            assert_eq!(contents.title(), "embed (0123456789ab)");
            assert_eq!(contents.image.as_deref(), Some("here/embed:1"));
            assert_eq!((contents.images, contents.image_bytes), (2, 5011));
            assert_eq!(contents.others, ["rootfs-diff.tar"]);
        }
    }

    #[test]
    fn archives_that_lack_something_are_refused_by_its_name() {
        for name in [CONFIG, SPEC, INVENTORY] {
            let mut members = whole();
            members.retain(|(_, member, _)| *member != name);
            let error = Contents::read(file(&tar(&members)).path()).unwrap().check().unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        let mut members = whole();
        members[3].2 = b"nonsense that is long enough";
        assert!(Contents::read(file(&tar(&members)).path()).is_err());
        members = whole();
        members[0].2 = b"{";
        assert!(Contents::read(file(&tar(&members)).path()).is_err());
        let bytes = tar(&whole());
        for end in [0, 1, 100, 600, 2000] {
            let read = Contents::read(file(&bytes[..end]).path());
            assert!(read.is_err() || read.unwrap().check().is_err(), "{end}");
        }
    }

    #[test]
    fn checksum_of_what_was_compressed_is_looked_at() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        gzip.write_all(&tar(&whole())).unwrap();
        let mut bytes = gzip.finish().unwrap();
        let pages = bytes.windows(100).position(|window| window == [7; 100]).unwrap();
        bytes[pages] ^= 1;
        assert!(Contents::read(file(&bytes).path()).is_err());
    }

    #[test]
    fn nothing_of_an_archive_leads_elsewhere() {
        let temporary = tempfile::tempdir().unwrap();
        for (kind, name) in [
            (EntryType::Regular, "../outside"),
            (EntryType::Regular, "/tmp/outside"),
            (EntryType::Regular, "checkpoint/../../outside"),
            (EntryType::Symlink, "checkpoint/link"),
            (EntryType::Link, "checkpoint/link"),
            (EntryType::Fifo, "checkpoint/fifo"),
            (EntryType::GNUSparse, "checkpoint/sparse"),
            (EntryType::Char, "checkpoint/device"),
            // Twice.
            (EntryType::Regular, CONFIG),
            (EntryType::Regular, "checkpoint/pages-1.img/below"),
        ] {
            let mut members = whole();
            members.push((kind, name, b"{}"));
            let to = temporary.path().join("to");
            unpack(file(&tar(&members)).path(), &to).unwrap_err();
            assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "{name}");
        }
    }

    #[test]
    fn directory_has_what_the_archive_has_and_is_made_once() {
        let temporary = tempfile::tempdir().unwrap();
        let (to, archive) = (temporary.path().join("to"), file(&tar(&whole())));
        unpack(archive.path(), &to).unwrap();
        assert_eq!(std::fs::read(to.join("checkpoint/pages-1.img")).unwrap(), [7; 5000]);
        assert_eq!(std::fs::read(to.join(CONFIG)).unwrap(), CONFIG_TEXT.as_bytes());
        assert!(unpack(archive.path(), &to).unwrap_err().to_string().contains("there already"));
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    }
}
