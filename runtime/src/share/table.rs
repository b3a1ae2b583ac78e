// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes of a session tell each other of the memory that they hold.

use serde::{Deserialize, Serialize};

use crate::context::registry::state::DmabufId;

/// Memory that a process holds and others may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Which memory.
    pub dmabuf: DmabufId,
    /// Its length.
    pub bytes: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*` it was, or would have to be, allocated with.
    pub flags: u32,
    /// Whether it was made here: then the flags are exact.
    pub is_maker: bool,
    /// The GPU whose memory it is, by its unique id, if that is one of the process's agents.
    pub home: Option<String>,
}

/// What one process holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// The process's name in the session.
    pub name: String,
    /// The process, as it knows itself.
    pub pid: i32,
    /// Its shared memory.
    pub holdings: Vec<Holding>,
}

/// Memory of a session, as all its members see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Which memory it was.
    pub dmabuf: DmabufId,
    /// Its length.
    pub bytes: u64,
    /// `KFD_IOC_ALLOC_MEM_FLAGS_*` to make it with.
    pub flags: u32,
    /// The GPU whose memory it is, if a member knows.
    pub home: Option<String>,
    /// The member in whose image the bytes are.
    pub saver: String,
}

impl Object {
    /// The name of its bytes in an image.
    pub fn extent(&self) -> String {
        extent_of(self.dmabuf)
    }
}

/// The name of shared memory's bytes in an image.
fn extent_of(dmabuf: DmabufId) -> String {
    format!("shared {dmabuf}")
}
