// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links between nodes as KFD finds and prints them (`kfd_crat.c`, `kfd_topology.c`).
//!
//! INVARIANT: lists grow as the kernel's do, GPU by GPU: a new one brings its own links, and those that lead back to it
//! are appended to the lists of the nodes that were there before. What a list's position says is thus the same here.
//!
//! A bandwidth of 0 is "not known": KFD knows none between CPUs, so every path across sockets has none either.

use super::machine::Machine;
use super::model::GpuModel;
use super::values::Bandwidth;

/// `CRAT_IOLINK_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Between the sockets of an AMD machine.
    HyperTransport = 1,
    Pcie = 2,
    Xgmi = 11,
}

/// KFD's weight of one PCIe hop.
const PCIE_WEIGHT: u32 = 20;
/// KFD's weight of one XGMI hop.
const XGMI_WEIGHT: u32 = 15;
const ENABLED: u32 = 1;
const NON_COHERENT: u32 = 2;
const UNKNOWN: Bandwidth = Bandwidth { min: 0, max: 0 };

/// A directed link.
#[derive(Clone, Copy, Debug)]
struct Link {
    kind: Kind,
    from: usize,
    to: usize,
    weight: u32,
    bandwidth: Bandwidth,
    /// Which copy engines the kernel recommends.
    engines: u64,
    flags: u32,
}

/// The lists of all nodes.
#[derive(Debug)]
pub(super) struct Links {
    io: Vec<Vec<Link>>,
    p2p: Vec<Vec<Link>>,
}

impl Links {
    /// All links of a machine.
    pub fn of(machine: &Machine) -> Self {
        let nodes = machine.cpu_count() + machine.gpus().len();
        let mut links = Self { io: vec![Vec::new(); nodes], p2p: vec![Vec::new(); nodes] };
        links.between_cpus(machine);
        for gpu in machine.gpus() {
            links.direct(machine, gpu);
            links.across_sockets(machine, gpu);
            for earlier in &machine.gpus()[..gpu.index()] {
                links.between_peers(machine, earlier, gpu);
            }
        }
        links
    }

    /// The files of a node's `io_links`.
    pub fn io(&self, node: usize) -> Vec<String> {
        self.io.get(node).into_iter().flatten().map(Link::print).collect()
    }

    /// The files of a node's `p2p_links`.
    pub fn p2p(&self, node: usize) -> Vec<String> {
        self.p2p.get(node).into_iter().flatten().map(Link::print).collect()
    }

    fn between_cpus(&mut self, machine: &Machine) {
        let cpus = machine.cpu_count();
        for from in 0..cpus {
            for to in (0..cpus).filter(|to| *to != from) {
                let weight = machine.distance(from, to);
                let kind = Kind::HyperTransport;
                self.io[from].push(Link {
                    kind,
                    from,
                    to,
                    weight,
                    bandwidth: UNKNOWN,
                    engines: 0,
                    flags: ENABLED,
                });
            }
        }
    }

    /// To the GPU's own CPU and back, and to the earlier GPUs of its hive and back.
    fn direct(&mut self, machine: &Machine, gpu: &GpuModel) {
        let (node, cpu) = (machine.node_of(gpu), gpu.numa_node());
        let to_cpu = Link {
            kind: Kind::Pcie,
            from: node,
            to: cpu,
            weight: PCIE_WEIGHT,
            bandwidth: gpu.pcie,
            engines: engines(gpu),
            flags: ENABLED,
        };
        self.io[node].push(to_cpu);
        // What the CPU does not see, it has no link to.
        if gpu.large_bar() {
            self.io[cpu].push(Link { flags: ENABLED | NON_COHERENT, ..to_cpu.reversed() });
        }
        for peer in &machine.gpus()[..gpu.index()] {
            let Some(xgmi) = machine.xgmi(gpu.index(), peer.index()) else { continue };
            let link = Link {
                kind: Kind::Xgmi,
                to: machine.node_of(peer),
                weight: XGMI_WEIGHT * xgmi.hops,
                bandwidth: xgmi.bandwidth,
                engines: xgmi_engines(gpu),
                ..to_cpu
            };
            self.io[node].push(link);
            self.io[link.to].push(link.reversed());
        }
    }

    /// From the GPU through its own CPU to the others, and back.
    fn across_sockets(&mut self, machine: &Machine, gpu: &GpuModel) {
        let (node, own) = (machine.node_of(gpu), gpu.numa_node());
        for cpu in (0..machine.cpu_count()).filter(|cpu| *cpu != own) {
            let link = Link {
                kind: Kind::Pcie,
                from: node,
                to: cpu,
                weight: PCIE_WEIGHT + machine.distance(cpu, own),
                bandwidth: least(gpu.pcie, UNKNOWN),
                engines: engines(gpu),
                flags: ENABLED,
            };
            self.p2p[node].push(link);
            if gpu.large_bar() {
                self.p2p[cpu].push(Link { flags: ENABLED | NON_COHERENT, ..link.reversed() });
            }
        }
    }

    /// Both directions of two GPUs that are not in one hive, each if it exists.
    fn between_peers(&mut self, machine: &Machine, earlier: &GpuModel, gpu: &GpuModel) {
        if machine.xgmi(earlier.index(), gpu.index()).is_some() {
            return;
        }
        for (from, to) in [(earlier, gpu), (gpu, earlier)] {
            if from.reaches_registers(to.index()) {
                let link = over_pcie(machine, from, to);
                self.p2p[link.from].push(link);
            }
        }
    }
}

/// The path from one GPU to another: up to its CPU, perhaps to the other's CPU, and down.
fn over_pcie(machine: &Machine, from: &GpuModel, to: &GpuModel) -> Link {
    let mut weight = 2 * PCIE_WEIGHT;
    let mut bandwidth = least(from.pcie, to.pcie);
    if from.numa_node() != to.numa_node() {
        weight += machine.distance(to.numa_node(), from.numa_node());
        bandwidth = least(bandwidth, UNKNOWN);
    }
    Link {
        kind: Kind::Pcie,
        from: machine.node_of(from),
        to: machine.node_of(to),
        weight,
        bandwidth,
        engines: engines(from),
        flags: ENABLED | NON_COHERENT,
    }
}

fn least(a: Bandwidth, b: Bandwidth) -> Bandwidth {
    Bandwidth { min: a.min.min(b.min), max: a.max.min(b.max) }
}

/// All PCIe engines.
fn engines(gpu: &GpuModel) -> u64 {
    (1 << gpu.sdma_engines()) - 1
}

/// All XGMI engines, which come behind the PCIe ones; a chip without any uses the PCIe ones. (For a hive of eight
/// MI300X the kernel recommends one engine for each peer, by a table of the board's wiring; this machine has no board.)
fn xgmi_engines(gpu: &GpuModel) -> u64 {
    match gpu.sdma_xgmi_engines() {
        0 => engines(gpu),
        count => ((1 << count) - 1) << gpu.sdma_engines(),
    }
}

impl Link {
    fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    fn print(&self) -> String {
        let Self { kind, from, to, weight, bandwidth, engines, flags } = *self;
        // CAST: the discriminant is the number that is printed.
        let kind = kind as u32;
        format!(
            "type {kind}\nversion_major 0\nversion_minor 0\nnode_from {from}\nnode_to {to}\nweight {weight}\n\
             min_latency 0\nmax_latency 0\nmin_bandwidth {}\nmax_bandwidth {}\nrecommended_transfer_size 0\n\
             recommended_sdma_engine_id_mask {engines}\nflags {flags}\n",
            bandwidth.min, bandwidth.max,
        )
    }
}
