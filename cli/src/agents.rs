// SPDX-License-Identifier: MIT OR Apache-2.0
//! `stasis agents`: what is here, as we see it and, if asked, as the vendor's runtime does.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use hsa_sys::{SearchOptions, VendorRuntime};
use serde::Serialize;
use stasis::{Agent, LeftOut, LinkMatrix, PathKind, Place, Runtime};

use crate::output::{self, line};

/// Arguments of `stasis agents`.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// Print one JSON object instead of prose.
    #[arg(long)]
    json: bool,
    /// Say who reaches whose memory: agents and the host's NUMA nodes, in both directions.
    #[arg(long)]
    links: bool,
    /// Also ask the vendor's libhsa-runtime64 (searched in STASIS_LIBHSA_PATH, then by its sonames).
    #[arg(long)]
    vendor: bool,
    /// The vendor's library, or a directory with it.
    #[arg(long, value_name = "PATH", requires = "vendor")]
    libhsa: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct AgentRow {
    index: usize,
    uuid: String,
    target: &'static str,
    name: String,
    gpu_id: u32,
    compute_units: u32,
    vram_bytes: u64,
    vram_available: u64,
    host_visible: bool,
    caches: Vec<CacheRow>,
    links: Vec<LinkRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct CacheRow {
    level: u32,
    kib: u32,
    count: usize,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    to_node: u32,
    kind: &'static str,
    weight: u32,
}

#[derive(Debug, Serialize)]
struct VendorRow {
    name: String,
    product: String,
    uuid: String,
    isas: Vec<String>,
}

/// One direction between two places.
#[derive(Debug, Serialize)]
struct PathRow {
    from: String,
    to: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hops: Option<u32>,
    weight: u32,
    /// MB/s, 0 if unknown.
    min_bandwidth: u32,
    max_bandwidth: u32,
    /// Why an agent does not reach another.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

#[derive(Debug, Serialize)]
struct LeftOutRow {
    ordinal: usize,
    uuid: String,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Listing {
    device: String,
    /// What executes waves on a software device.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<BTreeMap<String, String>>,
    agents: Vec<AgentRow>,
    left_out: Vec<LeftOutRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Vec<PathRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vendor: Option<Result<Vec<VendorRow>, String>>,
}

fn row(agent: &Agent) -> Result<AgentRow> {
    let mut caches: Vec<CacheRow> = Vec::new();
    for cache in agent.caches() {
        match caches.iter_mut().find(|c| (c.level, c.kib) == (cache.level, cache.size)) {
            Some(same) => same.count += 1,
            None => caches.push(CacheRow { level: cache.level, kib: cache.size, count: 1 }),
        }
    }
    let kind = |link: u32| match link {
        1 => "HyperTransport",
        2 => "PCIe",
        5 => "QPI",
        11 => "XGMI",
        _ => "other",
    };
    Ok(AgentRow {
        index: agent.index(),
        uuid: agent.uuid().to_owned(),
        target: agent.name(),
        name: agent.node().name.clone(),
        gpu_id: agent.gpu_id().0,
        compute_units: agent.compute_units(),
        vram_bytes: agent.vram_bytes(),
        vram_available: agent.vram_available()?,
        host_visible: agent.vram().is_visible(),
        caches,
        links: agent
            .links()
            .map(|l| LinkRow { to_node: l.node_to, kind: kind(l.kind), weight: l.weight })
            .collect(),
    })
}

fn paths(runtime: &Runtime, matrix: &LinkMatrix) -> Vec<PathRow> {
    let name = |place: &Place| match place {
        Place::Agent { index, .. } => format!("agent {index}"),
        Place::Host { node } => format!("host {node}"),
    };
    let why_not = |from: &Place, to: &Place| match (from, to) {
        (Place::Agent { index: from, .. }, Place::Agent { index: to, .. }) => {
            let (from, to) = (runtime.agent(*from)?, runtime.agent(*to)?);
            from.reach(&to).err().map(|error| error.why.to_string())
        }
        _ => None,
    };
    let row = |(from, to, path): (&Place, &Place, stasis::Path)| PathRow {
        from: name(from),
        to: name(to),
        kind: match path.kind {
            PathKind::Same => "same",
            PathKind::Xgmi { .. } => "XGMI",
            PathKind::Pcie => "PCIe",
            PathKind::Socket => "socket",
            PathKind::None => "none",
            _ => "other",
        },
        hops: match path.kind {
            PathKind::Xgmi { hops } => Some(hops),
            _ => None,
        },
        weight: path.weight,
        min_bandwidth: path.min_bandwidth,
        max_bandwidth: path.max_bandwidth,
        why_not: why_not(from, to),
    };
    matrix.pairs().map(row).collect()
}

fn left_out(left: &LeftOut) -> LeftOutRow {
    LeftOutRow { ordinal: left.ordinal, uuid: left.uuid.clone(), reason: left.reason.to_string() }
}

fn vendor(libhsa: Option<PathBuf>) -> Result<Vec<VendorRow>> {
    let agents = VendorRuntime::open(&SearchOptions::from_env(libhsa))?.agents()?;
    Ok(agents
        .into_iter()
        .map(|a| VendorRow { name: a.name, product: a.product, uuid: a.uuid, isas: a.isas })
        .collect())
}

/// The `key value` lines that a software device says of its engine.
fn engine(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| line.split_once(' ').map(|(key, value)| (key.to_owned(), value.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// Lists the agents.
pub fn run(args: &AgentsArgs) -> Result<()> {
    let runtime = Runtime::open_default()?;
    let agents =
        runtime.agents().iter().map(row).collect::<Result<Vec<_>>>().context("Cannot ask the device")?;
    let vendor = args.vendor.then(|| vendor(args.libhsa.clone()).map_err(|e| format!("{e:#}")));
    let matrix = args.links.then(|| runtime.links());
    let listing = Listing {
        device: runtime.transport_name().to_string(),
        engine: runtime.engine().context("Cannot ask the device for its engine")?.as_deref().map(engine),
        agents,
        left_out: runtime.left_out().iter().map(left_out).collect(),
        links: matrix.as_ref().map(|matrix| paths(&runtime, matrix)),
        vendor,
    };
    if args.json {
        output::show(serde_json::to_string_pretty(&listing)? + "\n");
        return Ok(());
    }
    output::show(describe(&listing, matrix.as_ref()));
    Ok(())
}

fn describe(listing: &Listing, matrix: Option<&LinkMatrix>) -> String {
    let mut text = String::new();
    line!(text, "Device {}", listing.device);
    if let Some(engine) = &listing.engine {
        let of = |key| engine.get(key).map_or("?", String::as_str);
        let better = if of("cpu") == of("cpu_best") { "" } else { " as SOFTGPU_CPU asks" };
        line!(
            text,
            "  waves by engine {} with {}{better}, {} workers",
            of("engine"),
            of("cpu"),
            of("workers")
        );
    }
    for a in &listing.agents {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        line!(
            text,
            "  {} {} {}: {} compute units, {:.1} of {:.1} GiB free{}",
            a.index,
            a.uuid,
            a.target,
            a.compute_units,
            gib(a.vram_available),
            gib(a.vram_bytes),
            if a.host_visible { ", visible to the host" } else { "" }
        );
        let caches: Vec<_> =
            a.caches.iter().map(|c| format!("{} × L{} {} KiB", c.count, c.level, c.kib)).collect();
        line!(text, "    caches: {}", caches.join(", "));
        for link in &a.links {
            line!(text, "    {} to node {}, weight {}", link.kind, link.to_node, link.weight);
        }
    }
    for left in &listing.left_out {
        line!(text, "  left out: {} {}: {}", left.ordinal, left.uuid, left.reason);
    }
    if let (Some(matrix), Some(paths)) = (matrix, &listing.links) {
        describe_links(&mut text, matrix, paths);
    }
    match &listing.vendor {
        None => {}
        Some(Err(reason)) => line!(text, "The vendor's runtime: {reason}"),
        Some(Ok(rows)) => {
            line!(text, "The vendor's runtime");
            for row in rows {
                line!(text, "  {} {} ({})", row.name, row.product, row.isas.join(", "));
            }
        }
    }
    text
}

fn describe_links(text: &mut String, matrix: &LinkMatrix, paths: &[PathRow]) {
    line!(text, "A row reaches the memory of a column over (with KFD's weight):");
    matrix.to_string().lines().for_each(|line| line!(text, "  {line}"));
    for path in paths.iter().filter(|path| path.max_bandwidth > 0) {
        let PathRow { from, to, min_bandwidth, max_bandwidth, .. } = path;
        line!(text, "  {from} to {to}: {min_bandwidth} to {max_bandwidth} MB/s");
    }
    for path in paths {
        if let Some(why) = &path.why_not {
            line!(text, "  {} does not reach the memory of {}: {why}", path.from, path.to);
        }
    }
}
