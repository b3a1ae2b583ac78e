// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dispatch, and the state its waves start in (LLVM's "User Guide for AMDGPU Backend", "Initial Kernel
//! Execution State").

use queues::aql::KernelDispatch;
use queues::hsa::{KernelDescriptor, UserSgprs};
use queues::save_area::WaveRecord;
use queues::target::Target;

use crate::env::{Identity, LDS_DWORDS};
use crate::exception::Cause;
use crate::predecode::Shape;
use crate::wave::{Row, TTMP, Wave};

/// Bytes one wave's scratch is rounded up to.
const SCRATCH_GRANULE: u64 = 1024;
/// Workgroups that may be resident (started, not finished) at a time: as many as a large chip holds.
const MAX_RESIDENT: usize = 256;
/// STATUS bits of a running wave: SCRATCH_EN 29, VALID 16, IN_TG 11.
const STATUS_VALID: u32 = 1 << 16;
const STATUS_IN_GROUP: u32 = 1 << 11;
const STATUS_SCRATCH: u32 = 1 << 29;

/// Scratch memory of a queue, mapped in the dispatch's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// GPU address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Everything a kernel dispatch needs.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The chip.
    pub target: &'static Target,
    /// The kernel's descriptor, read from `kernel_object`; of a PM4 dispatch, made of its registers.
    pub descriptor: KernelDescriptor,
    /// GPU address of the descriptor.
    pub kernel_object: u64,
    /// GPU address of the first instruction.
    pub entry: u64,
    /// The packet; of a PM4 dispatch, made of its registers.
    pub packet: KernelDispatch,
    /// What user SGPRs start with; `None`: computed from the descriptor and the packet, as for AQL.
    pub user_data: Option<[u32; 16]>,
    /// Id of the first workgroup (`COMPUTE_START_X` to `Z`).
    pub first_workgroup: [u32; 3],
    /// GPU address of the packet in the ring.
    pub packet_address: u64,
    /// GPU address of the `amd_queue_t`.
    pub queue_address: u64,
    /// Index of the packet.
    pub dispatch_id: u64,
    /// The queue's scratch, if it has any.
    pub scratch: Option<Scratch>,
    /// Doorbell id, which `s_sendmsg_rtn GET_DOORBELL` returns.
    pub doorbell: u32,
    /// KFD priority of the queue; workers serve the highest first.
    pub priority: u32,
}

/// What all workgroups of a launch share, computed once.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub entry: u64,
    pub shape: Shape,
    pub workgroups: [u32; 3],
    pub total: u64,
    pub lds_bytes: u32,
    pub private_bytes: u32,
    pub wave_scratch: u64,
    pub scratch: Option<Scratch>,
    pub max_resident: usize,
    pub max_waves: usize,
    pub identity: Identity,
    pub priority: u32,
    first: [u32; 3],
    grid: [u32; 3],
    group: [u32; 3],
    sgprs: [u32; 16],
    layout: UserSgprs,
    mode: u32,
    dispatch_index: u32,
    work_item_dimensions: u32,
}

impl Plan {
    pub(crate) fn new(launch: &Launch) -> Result<Plan, Cause> {
        let d = &launch.descriptor;
        let packet = &launch.packet;
        let wave32 = d.lanes() == 32;
        let halves = if wave32 { 1 } else { 2 };
        let workgroups = packet.workgroups();
        let layout = UserSgprs::new(d, launch.target);
        let lanes = halves as u64 * 32;
        let items: u64 = packet.workgroup_items();
        let max_waves = items.div_ceil(lanes) as usize;
        let private_bytes = packet.private_segment_bytes.div_ceil(4) * 4;
        let wave_scratch = (u64::from(private_bytes) * lanes).div_ceil(SCRATCH_GRANULE) * SCRATCH_GRANULE;
        let group_scratch = wave_scratch * max_waves as u64;
        let available = launch.scratch.map_or(0, |s| s.bytes);
        if group_scratch > available {
            return Err(Cause::ScratchTooSmall { needed: group_scratch, available });
        }
        let by_scratch = available.checked_div(group_scratch).map_or(MAX_RESIDENT, |n| n as usize);
        Ok(Plan {
            entry: launch.entry,
            shape: Shape { halves, vgprs: d.vgpr_count(wave32) as usize },
            workgroups,
            // A client may ask for more than can be counted. Saturating is safe: such a grid cannot finish.
            total: workgroups.iter().fold(1, |total: u64, &n| total.saturating_mul(u64::from(n))),
            lds_bytes: (packet.group_segment_bytes.div_ceil(512) * 512).min(LDS_DWORDS as u32 * 4),
            private_bytes,
            wave_scratch,
            scratch: launch.scratch,
            max_resident: by_scratch.clamp(1, MAX_RESIDENT),
            max_waves,
            identity: Identity { doorbell: launch.doorbell, dispatch_id: launch.dispatch_id, trap_memory: 0 },
            priority: launch.priority,
            first: launch.first_workgroup,
            grid: packet.grid,
            group: packet.workgroup.map(u32::from),
            sgprs: launch.user_data.unwrap_or_else(|| user_sgprs(launch, &layout)),
            layout,
            mode: d.initial_mode(),
            dispatch_index: launch.dispatch_id as u32 & 0x1FF_FFFF,
            work_item_dimensions: d.workitem_id_dimensions(),
        })
    }

    /// Workgroup id of the `index`-th workgroup, x fastest.
    pub(crate) fn group_id(&self, index: u64) -> [u32; 3] {
        let [x, y, _] = self.workgroups.map(|n| u64::from(n.max(1)));
        let [i, j, k] = [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32];
        let [first_x, first_y, first_z] = self.first;
        [first_x.wrapping_add(i), first_y.wrapping_add(j), first_z.wrapping_add(k)]
    }

    /// Items of a workgroup along each axis; the last ones may be partial.
    fn extent(&self, id: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|k| {
            let start = u64::from(id[k].wrapping_sub(self.first[k])) * u64::from(self.group[k]);
            u64::from(self.grid[k]).saturating_sub(start).min(u64::from(self.group[k])) as u32
        })
    }

    /// Waves of workgroup `id`.
    pub(crate) fn wave_count(&self, id: [u32; 3]) -> usize {
        let items: u64 = self.extent(id).iter().map(|&n| u64::from(n)).product();
        items.div_ceil(self.shape.halves as u64 * 32) as usize
    }

    /// Puts `w` into the state wave `index` of workgroup `id` starts in; `slot` is its place in the scratch. VGPRs that are
    /// not part of that state keep what the last wave of this process left in them, as in hardware.
    pub(crate) fn start(&self, w: &mut Wave, id: [u32; 3], index: usize, slot: u64) {
        w.s.fill(0);
        w.scc = 0;
        w.cause = None;
        w.hint = 0;
        w.pc = self.entry;
        w.mode = self.mode;
        w.trapsts = 0;
        w.state = crate::wave::WaveStatus::Ready;
        w.group = id;
        w.wave_in_group = index as u32;
        w.lds_bytes = self.lds_bytes;
        w.private_bytes = self.private_bytes;
        w.status = STATUS_VALID | STATUS_IN_GROUP;
        w.flat_scratch = 0;
        if let (Some(scratch), true) = (self.scratch, self.private_bytes > 0) {
            w.status |= STATUS_SCRATCH;
            w.flat_scratch = scratch.base.wrapping_add(slot * self.wave_scratch);
        }
        w.s[..16].copy_from_slice(&self.sgprs);
        for (place, value) in self.layout.workgroup_id.iter().zip(id) {
            if let Some(place) = place {
                w.set_sgpr(*place as usize, value);
            }
        }
        if let Some(place) = self.layout.workgroup_info {
            w.set_sgpr(place as usize, self.wave_count(id) as u32 & 0x3F);
        }
        w.s[TTMP + 6] = self.dispatch_index;
        w.s[TTMP + 8..TTMP + 11].copy_from_slice(&id);
        w.s[TTMP + 11] = index as u32 & 0x3F;
        self.work_item_ids(w, id, index);
    }

    /// v0 = x | y << 10 | z << 20 as far as the kernel asked for (compilers leave a mask out where it asked for x only), and
    /// EXEC = items present.
    fn work_item_ids(&self, w: &mut Wave, id: [u32; 3], index: usize) {
        let lanes = w.lanes() as u32;
        let [nx, ny, nz] = self.extent(id).map(|n| n.clamp(1, 1024));
        let items = u64::from(nx) * u64::from(ny) * u64::from(nz);
        let first = index as u64 * u64::from(lanes);
        let present = items.saturating_sub(first).min(u64::from(lanes)) as u32;
        w.set_exec(if present >= 64 { u64::MAX } else { (1 << present) - 1 });
        // CAST: `first` is below 1024 items of a workgroup.
        let first = first as u32;
        if ny == 1 && nz == 1 {
            // Lanes that do not exist are never active; giving them numbers too keeps the loop simple.
            for (half, row) in w.v.iter_mut().enumerate().take(w.halves) {
                count_up(row, first + 32 * half as u32);
            }
            return;
        }
        let asked = match self.work_item_dimensions {
            0 => 0x3FF,
            1 => 0xF_FFFF,
            _ => u32::MAX,
        };
        let [mut x, mut y, mut z] = [first % nx, first / nx % ny, first / nx / ny];
        if nx % 32 == 0 && present == lanes {
            // Whole halves lie in one line.
            for row in w.v.iter_mut().take(w.halves) {
                count_up(row, (x | y << 10 | z << 20) & asked);
                x += 32;
                if x == nx {
                    (x, y) = (0, y + 1);
                }
                if y == ny {
                    (y, z) = (0, z + 1);
                }
            }
            return;
        }
        for lane in 0..present as usize {
            w.v[lane / 32].0[lane % 32] = (x | y << 10 | z << 20) & asked;
            x += 1;
            if x == nx {
                (x, y) = (0, y + 1);
            }
            if y == ny {
                (y, z) = (0, z + 1);
            }
        }
    }
}

/// `first` and the numbers behind it, a lane each.
fn count_up(row: &mut Row, first: u32) {
    for (lane, x) in row.0.iter_mut().enumerate() {
        *x = first + lane as u32;
    }
}

fn user_sgprs(launch: &Launch, layout: &UserSgprs) -> [u32; 16] {
    let mut s = [0u32; 16];
    let mut put = |place: Option<u32>, value: u64, words: usize| {
        let Some(place) = place else { return };
        for k in 0..words {
            if let Some(d) = s.get_mut(place as usize + k) {
                *d = (value >> (32 * k)) as u32;
            }
        }
    };
    put(layout.dispatch_ptr, launch.packet_address, 2);
    put(layout.queue_ptr, launch.queue_address, 2);
    put(layout.kernarg_segment_ptr, launch.packet.kernarg_address, 2);
    put(layout.dispatch_id, launch.dispatch_id, 2);
    put(layout.private_segment_size, u64::from(launch.packet.private_segment_bytes), 1);
    s
}

impl Wave {
    /// The wave's registers as the save area holds them; LDS and the group flags are the caller's.
    pub(crate) fn record(&self) -> WaveRecord {
        let rows = self.vgprs() * self.halves;
        let mut sgprs = [0u32; 128];
        sgprs[..108].copy_from_slice(&self.s[..108]);
        let mut ttmp = [0u32; 16];
        ttmp.copy_from_slice(&self.s[TTMP..TTMP + 16]);
        WaveRecord {
            lanes: self.lanes() as u32,
            vgprs: self.v[..rows].iter().map(|row| row.0).collect::<Vec<_>>().into_flattened(),
            sgprs,
            m0: self.s[crate::wave::M0],
            pc: self.pc,
            exec: self.exec(),
            status: self.status_word(),
            trapsts: self.trapsts,
            mode: self.mode,
            flat_scratch: self.flat_scratch,
            ttmp,
            lds: None,
            first_in_group: false,
            last_in_group: false,
        }
    }

    /// The inverse of [`Wave::record`]; identity comes from the TTMPs, limits from the plan. VGPRs that the wave does not
    /// have are dropped.
    pub(crate) fn restore(&mut self, plan: &Plan, r: &WaveRecord) {
        self.s.fill(0);
        self.s[..108].copy_from_slice(&r.sgprs[..108]);
        self.s[TTMP..TTMP + 16].copy_from_slice(&r.ttmp);
        self.s[crate::wave::M0] = r.m0;
        self.set_exec(r.exec);
        self.v.fill(crate::wave::Row::ZERO);
        let rows = self.vgprs() * self.halves;
        for (row, words) in self.v[..rows].iter_mut().zip(r.vgprs.chunks_exact(32)) {
            row.0.copy_from_slice(words);
        }
        self.pc = r.pc;
        self.scc = r.status & 1;
        self.status = r.status;
        self.trapsts = r.trapsts;
        self.mode = r.mode;
        self.flat_scratch = r.flat_scratch;
        self.group = [r.ttmp[8], r.ttmp[9], r.ttmp[10]];
        self.wave_in_group = r.ttmp[11] & 0x3F;
        self.lds_bytes = plan.lds_bytes;
        self.private_bytes = plan.private_bytes;
        self.state = crate::wave::WaveStatus::Ready;
        self.cause = None;
    }
}
