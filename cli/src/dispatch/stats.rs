// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the software device counts about a dispatch, as it writes it (`softgpu/waves/src/observe/`), and as prose.
//!
//! INVARIANT: the names are those of the device's JSON; what `--json` prints is what it wrote.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One run of a grid. A dispatch has one, or more if it was preempted.
#[derive(Debug, Deserialize, Serialize)]
pub struct Stats {
    dispatch_id: u64,
    /// Address of the kernel's descriptor.
    pub kernel_object: u64,
    /// `completed`, `paused`, `aborted` or `exception`.
    outcome: String,
    workgroups: u64,
    waves: u64,
    lanes: u32,
    instructions: Instructions,
    bytes: Bytes,
    vector_instructions: u64,
    average_active_lanes: f64,
    occupancy: Occupancy,
    host: Host,
}

#[derive(Debug, Deserialize, Serialize)]
struct Instructions {
    total: u64,
    valu: u64,
    vopd: u64,
    matrix: u64,
    salu: u64,
    smem: u64,
    vmem_load: u64,
    vmem_store: u64,
    ds: u64,
    atomic: u64,
    branch: u64,
    hint: u64,
    other: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Bytes {
    global: Moved,
    lds: Moved,
    scratch: Moved,
    scalar: Moved,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Moved {
    loaded: u64,
    stored: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct Occupancy {
    vgprs: u32,
    lds_bytes: u64,
    scratch_bytes: u32,
    waves_per_workgroup: u64,
    waves_per_simd: f64,
    slots_per_simd: u32,
    limited_by: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct Host {
    seconds: f64,
    cpu_seconds: f64,
    instructions_per_cpu_second: f64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &self.instructions;
        writeln!(
            f,
            "{}: {} workgroups, {} waves of {} lanes, {} instructions",
            self.outcome, self.workgroups, self.waves, self.lanes, i.total
        )?;
        let classes = [
            ("VALU", i.valu),
            ("VOPD (two operations each)", i.vopd),
            ("matrix", i.matrix),
            ("SALU", i.salu),
            ("SMEM", i.smem),
            ("VMEM loads", i.vmem_load),
            ("VMEM stores", i.vmem_store),
            ("DS", i.ds),
            ("atomics", i.atomic),
            ("branches", i.branch),
            ("waits and hints", i.hint),
            ("others", i.other),
        ];
        for (name, count) in classes.into_iter().filter(|(_, count)| *count > 0) {
            let share = count as f64 * 100.0 / i.total.max(1) as f64;
            writeln!(f, "  {name:26} {count:14}  {share:5.1} %")?;
        }
        let b = &self.bytes;
        for (name, moved) in
            [("global", b.global), ("LDS", b.lds), ("scratch", b.scratch), ("scalar", b.scalar)]
        {
            if moved.loaded > 0 || moved.stored > 0 {
                writeln!(f, "  {name} memory: {} B loaded, {} B stored", moved.loaded, moved.stored)?;
            }
        }
        writeln!(
            f,
            "  active lanes: {:.2} of {} on average in {} vector instructions",
            self.average_active_lanes, self.lanes, self.vector_instructions
        )?;
        let o = &self.occupancy;
        writeln!(
            f,
            "  occupancy: {:.2} of {} waves per SIMD, limited by {}: {} VGPRs, {} B of LDS and {} waves a workgroup, \
             {} B of scratch a work-item",
            o.waves_per_simd,
            o.slots_per_simd,
            o.limited_by,
            o.vgprs,
            o.lds_bytes,
            o.waves_per_workgroup,
            o.scratch_bytes
        )?;
        writeln!(
            f,
            "  host: {:.3} ms, {:.3} ms of CPU time, {:.1} M instructions/s while counting",
            self.host.seconds * 1e3,
            self.host.cpu_seconds * 1e3,
            self.host.instructions_per_cpu_second / 1e6
        )
    }
}
