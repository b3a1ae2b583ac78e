// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver and what it says of the machine.

use anyhow::{Context, Result, ensure};
use queues::cwsr::{CwsrGeometry, NodeShape};

use super::super::bench::Bench;
use super::super::probe::{Grade, Probe, Skip};

/// Major number of the interface that all of this is written for (`KFD_IOCTL_MAJOR_VERSION`).
const MAJOR: u32 = 1;
/// Reads of the clocks.
const READS: u32 = 100;

pub(super) const PROBES: [Probe; 6] = [
    Probe {
        name: "interface",
        grade: Grade::Required,
        expects: "KFD interface 1.x",
        advice: "is the amdgpu module loaded, and may you open /dev/kfd (group render)?",
        run: interface,
    },
    Probe {
        name: "topology",
        grade: Grade::Required,
        expects: "nodes that can be read, one of them a GPU",
        advice: "report the files below /sys/class/kfd/kfd/topology/nodes",
        run: topology,
    },
    Probe {
        name: "agent",
        grade: Grade::Required,
        expects: "an agent of a target that the runtime knows",
        advice: "`stasis agents` says which GPUs were left out, and why",
        run: agent,
    },
    Probe {
        name: "apertures",
        grade: Grade::Required,
        expects: "a range of GPU addresses for every GPU",
        advice: "report what was seen: the driver gave this process no address space",
        run: apertures,
    },
    Probe {
        name: "save-area",
        grade: Grade::Wanted,
        expects: "the kernel's sizes for saved waves are those that the runtime computes",
        advice: "report the node's properties: the runtime uses the kernel's sizes, and one of the two is wrong",
        run: save_area,
    },
    Probe {
        name: "clock",
        grade: Grade::Wanted,
        expects: "a GPU clock that runs",
        advice: "time stamps of dispatches cannot be trusted; report what was seen",
        run: clock,
    },
];

fn interface(bench: &Bench) -> Result<String> {
    let (transport, kfd) = bench.driver()?;
    let version = kfd.get_version()?;
    ensure!(version.major == MAJOR, "KFD {}.{}", version.major, version.minor);
    Ok(format!("KFD {}.{} by {}", version.major, version.minor, transport.name()))
}

fn topology(bench: &Bench) -> Result<String> {
    let topology = bench.topology()?;
    let gpus = topology.gpus().count();
    ensure!(gpus > 0, "{} nodes, none of them a GPU", topology.nodes.len());
    Ok(format!("{} nodes, {gpus} of them GPUs", topology.nodes.len()))
}

fn agent(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let agent = &gpu.agent;
    ensure!(agent.compute_units() > 0 && agent.vram_bytes() > 0, "no compute units or no memory");
    let mib = agent.vram_bytes() >> 20;
    Ok(format!("{}, {} compute units, {mib} MiB", agent.name(), agent.compute_units()))
}

fn apertures(bench: &Bench) -> Result<String> {
    let gpus = bench.topology()?.gpus().count();
    let (_, kfd) = bench.driver()?;
    let apertures = kfd.get_process_apertures_new()?;
    ensure!(apertures.len() >= gpus, "{} ranges for {gpus} GPUs", apertures.len());
    for aperture in &apertures {
        let (base, limit) = (aperture.gpuvm_base, aperture.gpuvm_limit);
        ensure!(base < limit, "GPU {:#x} has {base:#x} to {limit:#x}", aperture.gpu_id);
    }
    Ok(format!("{} ranges", apertures.len()))
}

fn save_area(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let properties = &gpu.agent.node().properties;
    let (Some(save), Some(stack)) = (properties.cwsr_size, properties.ctl_stack_size) else {
        return Err(Skip("this kernel does not say its sizes".to_owned()).into());
    };
    let shape = NodeShape { cwsr_size: None, ctl_stack_size: None, ..properties.shape() };
    let geometry = CwsrGeometry::for_node(&shape).context("The runtime cannot compute them")?;
    ensure!(
        (save, stack) == (geometry.save_bytes, geometry.control_stack_bytes),
        "the kernel says {save} and {stack} bytes, the runtime {} and {}",
        geometry.save_bytes,
        geometry.control_stack_bytes
    );
    Ok(format!("{save} bytes, {stack} of them for the control stack"))
}

fn clock(bench: &Bench) -> Result<String> {
    let gpu = bench.open()?;
    let first = gpu.agent.clocks()?;
    let mut last = first;
    for _ in 0..READS {
        std::thread::sleep(std::time::Duration::from_micros(100));
        let now = gpu.agent.clocks()?;
        ensure!(now.gpu >= last.gpu, "it went back from {} to {}", last.gpu, now.gpu);
        last = now;
    }
    ensure!(last.gpu > first.gpu, "it stands at {}", first.gpu);
    Ok(format!(
        "{} ticks while the system's clock counted {}",
        last.gpu - first.gpu,
        last.system - first.system
    ))
}
