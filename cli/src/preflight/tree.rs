// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes a checkpoint takes, each read once from /proc: what the other modules judge.
//!
//! INVARIANT: reading touches nothing: no process is stopped, traced or asked, and no descriptor of theirs is used.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stasis::checkpoint::ProcessInfo;
use stasis_criu_foreign::{Mapping, members};
use thiserror::Error;

/// What `/proc` writes behind the name of a file that has none any more.
pub const DELETED: &str = " (deleted)";

/// Most processes of a tree that are looked at.
const MOST: usize = 4096;

/// Why a tree cannot be looked at.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TreeError {
    /// There is no such process.
    #[error("There is no process {pid}")]
    Gone {
        /// The process.
        pid: i32,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// It is not something a checkpoint is made for.
    #[error("Process {pid} has more than {MOST} descendants")]
    Large {
        /// The root.
        pid: i32,
    },
}

/// What identifies a file: its device and inode.
pub type FileId = (u64, u64);

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its pid, as this program sees it.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// `/proc/PID/status`.
    pub status: String,
    /// Session and terminal, and the letter of its state.
    pub stat: Stat,
    /// Its descriptors, or why they cannot be read.
    pub fds: Result<Vec<Descriptor>, io::ErrorKind>,
    /// Its mappings, or why they cannot be read.
    pub maps: Result<Vec<Mapping>, io::ErrorKind>,
    /// Ids of the mounts it sees; empty if they cannot be read.
    pub mounts: Vec<String>,
    /// What its runtime says, if it has one of ours.
    pub runtime: Option<Runtime>,
}

/// A runtime of ours in a process.
#[derive(Debug)]
pub enum Runtime {
    /// It answered.
    Known(Box<ProcessInfo>),
    /// It is there but did not say more.
    Silent(String),
}

/// The fields of `/proc/PID/stat` that count here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// Its session.
    pub session: i32,
    /// Its controlling terminal, 0 for none.
    pub terminal: i32,
}

/// An open file.
#[derive(Clone, Debug, Default)]
pub struct Descriptor {
    /// Its number.
    pub number: i32,
    /// What its link says.
    pub link: String,
    /// What stat says of the file behind it.
    pub file: File,
    /// `/proc/PID/fdinfo/N`; empty for sockets.
    pub info: String,
}

/// What stat says of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Device and inode.
    pub id: FileId,
    /// Type and permissions (`st_mode`).
    pub mode: u32,
    /// Names it has.
    pub links: u64,
    /// Number of the device it is (`st_rdev`).
    pub device: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// What it takes, bytes.
    pub allocated: u64,
}

impl From<&Metadata> for File {
    fn from(found: &Metadata) -> Self {
        Self {
            id: (found.dev(), found.ino()),
            mode: found.mode(),
            links: found.nlink(),
            device: found.rdev(),
            bytes: found.size(),
            // `st_blocks` counts 512 bytes whatever the file system does.
            allocated: found.blocks() * 512,
        }
    }
}

impl File {
    /// The type bits of the mode: 0o100000 regular, 0o020000 character device, 0o060000 block device.
    pub fn kind(&self) -> u32 {
        self.mode & 0o170_000
    }
}

impl Descriptor {
    /// A line of its fdinfo.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.info, name)
    }

    /// The flags it was opened with.
    pub fn flags(&self) -> u32 {
        self.field("flags").and_then(|octal| u32::from_str_radix(octal, 8).ok()).unwrap_or(0)
    }

    /// `fd 7`.
    pub fn place(&self) -> String {
        format!("fd {}", self.number)
    }
}

/// What stat says of the file behind a mapping of a process.
pub fn mapped_file(mapping: &Mapping, pid: i32) -> Option<File> {
    fs::metadata(mapping.link(pid)?).ok().as_ref().map(File::from)
}

/// `name: value` among lines.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

impl Process {
    /// Reads a process. A part that cannot be read is noted, not fatal: it may be another user's, or a zombie.
    ///
    /// # Errors
    /// When it is gone.
    pub fn read(pid: i32) -> io::Result<Self> {
        let root = format!("/proc/{pid}");
        let status = fs::read_to_string(format!("{root}/status"))?;
        let stat = fs::read_to_string(format!("{root}/stat"))?;
        Ok(Self {
            pid,
            name: field(&status, "Name").unwrap_or_default().to_owned(),
            stat: Stat::parse(&stat).unwrap_or_default(),
            status,
            fds: descriptors(&root).map_err(|error| error.kind()),
            maps: mappings(&root).map_err(|error| error.kind()),
            mounts: mounts(&root),
            runtime: None,
        })
    }

    /// A line of its status.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.status, name)
    }

    /// A number of kilobytes in its status, as bytes.
    pub fn kilobytes(&self, name: &str) -> u64 {
        let number = self.field(name).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        number.unwrap_or(0) << 10
    }

    /// A mask of capabilities in its status.
    pub fn capabilities(&self, name: &str) -> u64 {
        self.field(name).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
    }

    /// Whether it has a runtime of ours.
    pub fn is_ours(&self) -> bool {
        self.runtime.is_some()
    }

    /// Its descriptors, as far as they can be read.
    pub fn descriptors(&self) -> &[Descriptor] {
        self.fds.as_deref().unwrap_or_default()
    }

    /// Its mappings, as far as they can be read.
    pub fn mappings(&self) -> &[Mapping] {
        self.maps.as_deref().unwrap_or_default()
    }

    /// Whether something of this name goes away with the device when a checkpoint closes it.
    pub fn gives_up(&self, name: &str) -> bool {
        self.is_ours()
            && (stasis::checkpoint::is_of_device(name)
                // Memory lent to the software device, which ends with it.
                || name.starts_with("/memfd:stasis-")
                || self.is_awaited_image(name))
    }

    /// Whether something of this name is an image from which contents are still to come: the process closes it when they have.
    fn is_awaited_image(&self, name: &str) -> bool {
        let file = name.trim_end_matches(" (deleted)").rsplit('/').next();
        self.info().is_some_and(|info| info.lazy_bytes > 0)
            && file.is_some_and(|file| file.starts_with(stasis::checkpoint::IMAGE_FILE))
    }
}

impl Stat {
    /// Of the text of `/proc/PID/stat`; the name in parentheses may hold anything.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = |skip| fields.nth(skip)?.parse().ok();
        Some(Self { state, session: number(2)?, terminal: number(0)? })
    }
}

/// The descriptors of the process whose /proc directory is `root`.
fn descriptors(root: &str) -> io::Result<Vec<Descriptor>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(format!("{root}/fd"))? {
        let path = entry?.path();
        // One that was closed meanwhile is not there.
        let (Ok(link), Some(name)) = (fs::read_link(&path), path.file_name().and_then(|n| n.to_str())) else {
            continue;
        };
        let (Ok(number), Ok(found)) = (name.parse(), fs::metadata(&path)) else { continue };
        let link = link.to_string_lossy().into_owned();
        let info = match link.starts_with("socket:") {
            true => String::new(),
            false => fs::read_to_string(format!("{root}/fdinfo/{number}")).unwrap_or_default(),
        };
        all.push(Descriptor { number, link, file: (&found).into(), info });
    }
    all.sort_unstable_by_key(|descriptor| descriptor.number);
    Ok(all)
}

fn mappings(root: &str) -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string(format!("{root}/maps"))?.lines().filter_map(Mapping::parse).collect())
}

fn mounts(root: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("{root}/mountinfo")).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// `pid` and all its descendants, parents first.
///
/// # Errors
/// [`TreeError`].
pub fn read(pid: i32) -> Result<Vec<Process>, TreeError> {
    let root = Process::read(pid).map_err(|source| TreeError::Gone { pid, source })?;
    let below = members(pid);
    if below.len() > MOST {
        return Err(TreeError::Large { pid });
    }
    // One that ended meanwhile is no part of it any more.
    let below = below.into_iter().skip(1).filter_map(|pid| Process::read(pid).ok());
    Ok(std::iter::once(root).chain(below).collect())
}

/// Whether both processes are in the same namespace of this kind; `true` if that cannot be flags.
pub fn same_namespace(a: &str, b: &str, kind: &str) -> bool {
    let of = |process: &str| fs::read_link(Path::new("/proc").join(process).join("ns").join(kind)).ok();
    match (of(a), of(b)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn mapping_lines_are_read_with_spaces_in_names() {
        let line =
            "7fba52b98000-7fba52b99000 rw-s 00001000 00:01 2017314                    /memfd:a b (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.shared, mapping.writable), (true, true));
        assert_eq!(mapping.id, (nix::sys::stat::makedev(0, 1), 2_017_314));
        assert_eq!(mapping.name, "/memfd:a b (deleted)");
        assert_eq!(mapping.place(), "mapping 7fba52b98000-7fba52b99000");
        let anonymous = Mapping::parse("7fba44000000-7fba44021000 r--p 00000000 00:00 0 ").unwrap();
        assert_eq!(
            (anonymous.shared, anonymous.writable, anonymous.id, anonymous.name.as_str()),
            (false, false, (0, 0), "")
        );
        assert_eq!(Mapping::parse("nonsense"), None);
    }

    #[test]
    fn stat_survives_a_name_of_parentheses() {
        let stat = Stat::parse("7 (a) b) c) S 1 2 3 34816 5 4194304 0").unwrap();
        assert_eq!(stat, Stat { state: 'S', session: 3, terminal: 34816 });
    }

    #[test]
    fn this_process_is_read_with_its_child() {
        let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
        let pid = std::process::id().cast_signed();
        let all = read(pid).unwrap();
        assert!(members(pid).starts_with(&[pid]) && members(pid).contains(&child.id().cast_signed()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(all[0].pid, pid);
        let sleeper = all.iter().find(|p| p.pid == child.id().cast_signed()).unwrap();
        let stdin = sleeper.descriptors().iter().find(|d| d.number == 0).unwrap();
        assert_eq!((stdin.link.as_str(), stdin.file.kind()), ("/dev/null", 0o020_000));
        assert!(sleeper.mappings().iter().any(|m| m.name == "[stack]"));
        assert!(all[0].kilobytes("VmRSS") > 4096);
        assert_eq!(members(i32::MAX), [i32::MAX]);
    }

    #[test]
    fn nobody_is_nobody() {
        assert!(matches!(read(i32::MAX), Err(TreeError::Gone { pid: i32::MAX, .. })));
    }
}
