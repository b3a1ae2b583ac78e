// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a site is assumed to have. Rates are GiB/s, sizes GiB.

/// What the software does on one core.
#[derive(Clone, Copy, Debug)]
pub struct Software {
    /// An image is written and hashed.
    pub write: f64,
    /// Memory is filled from one, and the hashes checked.
    pub fill: f64,
}

/// A site, and the one job that it has.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub nodes: usize,
    pub gpus: usize,
    /// Cores of a node.
    pub cores: usize,
    /// Device memory in use, of each GPU.
    pub device: f64,
    /// Memory of a node's processes.
    pub host: f64,
    /// Between a GPU and its host.
    pub bus: f64,
    /// A node's network.
    pub link: f64,
    /// A node's own disks.
    pub disks: f64,
    /// The store, for all.
    pub store: f64,
    /// Which part of all nodes' memory is there once only: replicas of a data-parallel job have the same weights.
    pub unique: f64,
    /// Which part changes from one checkpoint to the next.
    pub changed: f64,
    /// Hours between two failures of one node.
    pub mtbf: f64,
    /// Seconds until a scheduler has begun the job again, and processes are there.
    pub begin: f64,
    /// Seconds that a checkpoint and a restore take besides their bytes.
    pub fixed: f64,
}

/// A thousand nodes of eight GPUs, as they are sold.
pub const SITE: Site = Site {
    nodes: 1000,
    gpus: 8,
    cores: 96,
    device: 64.0,
    host: 64.0,
    bus: 50.0,
    link: 46.0,
    disks: 24.0,
    store: 500.0,
    unique: 0.3,
    changed: 0.4,
    mtbf: 10_000.0,
    begin: 120.0,
    fixed: 1.0,
};

impl Site {
    /// What a node has to save.
    pub fn bytes(&self) -> f64 {
        self.gpus as f64 * self.device + self.host
    }

    /// How fast a node's cores and buses let it write.
    pub fn writes(&self, software: Software) -> f64 {
        (software.write * self.cores as f64).min(self.bus * self.gpus as f64)
    }

    /// How fast they let it be filled.
    pub fn fills(&self, software: Software) -> f64 {
        (software.fill * self.cores as f64).min(self.bus * self.gpus as f64)
    }

    /// What a node has of the store while all use it.
    pub fn share(&self) -> f64 {
        self.link.min(self.store / self.nodes as f64)
    }
}
