// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agents and their links, parsed from the text KFD shows in sysfs.
//!
//! INVARIANT: a [`Topology`] is one generation: `generation_id` was the same before and after reading.

mod properties;
mod source;
mod text;

#[cfg(test)]
mod tests;

use std::io;

pub use self::properties::{
    Cache, HEAP_TYPE_FB_PRIVATE, HEAP_TYPE_FB_PUBLIC, HEAP_TYPE_SYSTEM, Link, MemBank, NodeProperties,
};
pub use self::source::{DirSource, MemorySource, SysfsSource};
use crate::ids::{GpuId, NodeId};

/// How often a topology that changes under the reader is read again.
const ATTEMPTS: u32 = 16;

/// All nodes of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// `generation_id`.
    pub generation: u32,
    /// CPU and GPU nodes in the order of their ids.
    pub nodes: Vec<Node>,
    /// Nodes that exist but that this process' device cgroup denies.
    pub denied: Vec<NodeId>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// KFD's id of the GPU, 0 for a CPU node.
    pub gpu_id: GpuId,
    /// The chip's name; empty for a CPU node.
    pub name: String,
    /// Its properties.
    pub properties: NodeProperties,
    /// Its memory banks.
    pub mem_banks: Vec<MemBank>,
    /// Its caches.
    pub caches: Vec<Cache>,
    /// Its direct links.
    pub io_links: Vec<Link>,
    /// Its indirect and peer links.
    pub p2p_links: Vec<Link>,
}

/// Why the topology could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file or directory cannot be read.
    #[error("Cannot read the topology's {file}")]
    Read {
        /// Path below the topology's root.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is longer than any of KFD's.
    #[error("The topology's {file} has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Path below the topology's root.
        file: String,
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A line is not `key value`.
    #[error("Line {line} of the topology's {file} is {text:?}, expected a key and a value")]
    Line {
        /// Path below the topology's root.
        file: String,
        /// From 1.
        line: usize,
        /// The line, shortened.
        text: String,
    },
    /// A key occurs twice.
    #[error("Line {line} of the topology's {file} repeats the key {key}")]
    Repeated {
        /// Path below the topology's root.
        file: String,
        /// From 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// A value is not of its key's type.
    #[error("Line {line} of the topology's {file}: {key} is {value:?}, expected {wanted}")]
    Value {
        /// Path below the topology's root.
        file: String,
        /// From 1.
        line: usize,
        /// The key.
        key: String,
        /// Its value, shortened.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The topology changed at every attempt.
    #[error(
        "The topology changed {attempts} times while it was read (generation {before}, then {after}); try again when no GPU is being added or removed"
    )]
    Unstable {
        /// How often it was read.
        attempts: u32,
        /// Generation before the last attempt.
        before: u32,
        /// Generation after it.
        after: u32,
    },
}

impl Topology {
    /// Reads all nodes.
    ///
    /// # Errors
    /// [`TopologyError`]. If a file vanishes because the topology changes, the topology is read again.
    pub fn read(source: &dyn SysfsSource) -> Result<Self, TopologyError> {
        let whole = source
            .whole()
            .map_err(|source| TopologyError::Read { file: "files, all at once".to_owned(), source })?;
        let source: &dyn SysfsSource = match &whole {
            Some(whole) => whole,
            None => source,
        };
        let mut before = generation(source)?;
        let mut attempts = 0;
        loop {
            let outcome = Self::read_once(source, before);
            let after = generation(source)?;
            if after == before {
                return outcome;
            }
            attempts += 1;
            if attempts == ATTEMPTS {
                return Err(TopologyError::Unstable { attempts, before, after });
            }
            before = after;
        }
    }

    fn read_once(source: &dyn SysfsSource, generation: u32) -> Result<Self, TopologyError> {
        let mut topology = Self { generation, nodes: Vec::new(), denied: Vec::new() };
        for index in numbered(source, "nodes")? {
            match Node::read(source, NodeId(index)) {
                Err(TopologyError::Read { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    topology.denied.push(NodeId(index));
                }
                outcome => topology.nodes.push(outcome?),
            }
        }
        Ok(topology)
    }

    /// The GPU nodes.
    pub fn gpus(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_gpu())
    }

    /// The node with this GPU id; none for 0.
    pub fn gpu(&self, id: GpuId) -> Option<&Node> {
        self.gpus().find(|node| node.gpu_id == id)
    }
}

impl Node {
    fn read(source: &dyn SysfsSource, id: NodeId) -> Result<Self, TopologyError> {
        let base = format!("nodes/{id}");
        let file = format!("{base}/gpu_id");
        let gpu_id = GpuId(text::single_number(&file, &read(source, &file)?)?);
        let name = text::shorten(read(source, &format!("{base}/name"))?.trim());
        let file = format!("{base}/properties");
        let properties = NodeProperties::parse(&file, &read(source, &file)?)?;
        Ok(Self {
            id,
            gpu_id,
            name,
            mem_banks: records(
                source,
                &format!("{base}/mem_banks"),
                properties.mem_banks_count,
                MemBank::parse,
            )?,
            caches: records(source, &format!("{base}/caches"), properties.caches_count, Cache::parse)?,
            io_links: records(source, &format!("{base}/io_links"), properties.io_links_count, Link::parse)?,
            p2p_links: records(
                source,
                &format!("{base}/p2p_links"),
                properties.p2p_links_count,
                Link::parse,
            )?,
            properties,
        })
    }

    /// Whether the node is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu_id != GpuId(0)
    }

    /// Bytes of device memory over all its banks of that kind.
    pub fn vram_bytes(&self) -> u64 {
        let device = |bank: &&MemBank| matches!(bank.heap_type, HEAP_TYPE_FB_PUBLIC | HEAP_TYPE_FB_PRIVATE);
        self.mem_banks.iter().filter(device).fold(0, |sum, bank| sum.saturating_add(bank.size_in_bytes))
    }
}

fn generation(source: &dyn SysfsSource) -> Result<u32, TopologyError> {
    text::single_number("generation_id", &read(source, "generation_id")?)
}

fn read(source: &dyn SysfsSource, file: &str) -> Result<String, TopologyError> {
    source.read(file).map_err(|source| TopologyError::Read { file: file.to_owned(), source })
}

/// The numbered entries of a directory, ascending.
fn numbered(source: &dyn SysfsSource, directory: &str) -> Result<Vec<u32>, TopologyError> {
    let names = source
        .list(directory)
        .map_err(|source| TopologyError::Read { file: directory.to_owned(), source })?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The records in a directory. The files that exist count, whatever number the node's properties announce. A missing
/// directory is an error only if the properties announce records (kernels omit `p2p_links` when there are none).
fn records<T>(
    source: &dyn SysfsSource,
    directory: &str,
    announced: u32,
    parse: fn(&str, &str) -> Result<T, TopologyError>,
) -> Result<Vec<T>, TopologyError> {
    let numbers = match numbered(source, directory) {
        Err(TopologyError::Read { source, .. })
            if announced == 0 && source.kind() == io::ErrorKind::NotFound =>
        {
            return Ok(Vec::new());
        }
        outcome => outcome?,
    };
    let one = |number| {
        let file = format!("{directory}/{number}/properties");
        parse(&file, &read(source, &file)?)
    };
    numbers.into_iter().map(one).collect()
}
