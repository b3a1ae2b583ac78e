// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dispatch, and the state its waves start in (LLVM's "User Guide for AMDGPU Backend", "Initial Kernel
//! Execution State").

use queues::aql::KernelDispatch;
use queues::hsa::{KernelDescriptor, UserSgprs};
use queues::save_area::WaveRecord;
use queues::target::Target;

use crate::env::{Identity, LDS_DWORDS};
use crate::exception::Cause;
use crate::facts::Fact;
use crate::predecode::Shape;
use crate::residency::Residency;
use crate::wave::{Row, SINK, TTMP, VCC, Wave, status};

/// SGPRs that a wave may start with: sixteen of the client's, and the workgroup's numbers behind them.
const STARTING_SGPRS: usize = 32;
/// STATUS bits of a running wave: SCRATCH_EN 29, VALID 16, IN_TG 11.
const STATUS_VALID: u32 = 1 << 16;
const STATUS_IN_GROUP: u32 = 1 << 11;
const STATUS_SCRATCH: u32 = 1 << 29;

/// Scratch memory as `COMPUTE_TMPRING_SIZE` describes it: every shader engine has its slots, one behind another, and the
/// engines' slots follow each other (ROCdbgapi `gfx11_architecture_t::scratch_memory_region`). Each XCC has a part of the
/// memory with such slots of its own, in order (`aql_queue_t::scratch_memory_region`).
///
/// Nothing says how much memory is there. A wave whose slot is not mapped gets it all the same, and faults where it accesses
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// GPU address of the first slot.
    pub base: u64,
    /// Bytes of a slot.
    pub wave_bytes: u64,
    /// Slots of a shader engine.
    pub waves: u32,
    /// Shader engines of an XCC.
    pub engines: u32,
    /// XCCs.
    pub xccs: u32,
    /// Bytes from the first slot of one XCC to that of the next.
    pub xcc_bytes: u64,
}

impl Scratch {
    /// Whether the slots of every XCC end within its own part.
    #[must_use]
    pub fn stays_within_parts(&self) -> bool {
        let slots = u64::from(self.engines.max(1)).saturating_mul(u64::from(self.waves));
        self.xccs <= 1 || slots.saturating_mul(self.wave_bytes) <= self.xcc_bytes
    }
}

/// How the slots of a launch's scratch memory are shared by its workgroups. A workgroup runs on one engine of one XCC, and has
/// as many neighbouring slots as a workgroup can need; it waits until they are free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    scratch: Scratch,
    /// Slots of a workgroup, not 0.
    group: u64,
    /// Workgroups of an engine, not 0.
    per_engine: u64,
    /// The engine of an XCC's first workgroup.
    first: u64,
}

impl Places {
    /// `None` if a workgroup of `group` waves does not fit one engine.
    fn new(scratch: Scratch, group: usize, dispatch_id: u64) -> Option<Places> {
        let group = (group as u64).max(1);
        let engines = u64::from(scratch.engines.max(1));
        let per_engine = u64::from(scratch.waves) / group;
        let scratch = Scratch { engines: scratch.engines.max(1), xccs: scratch.xccs.max(1), ..scratch };
        (per_engine > 0).then_some(Places { scratch, group, per_engine, first: dispatch_id % engines })
    }

    /// Workgroups that have slots at a time.
    fn count(&self) -> u64 {
        let engines = u64::from(self.scratch.engines).saturating_mul(u64::from(self.scratch.xccs));
        self.per_engine.saturating_mul(engines)
    }

    /// The address of wave `index` of the workgroup at a place. Places go round the XCCs, then round the engines of each,
    /// and successive dispatches begin with successive engines, so that each is used although few workgroups run at a time.
    fn address(&self, place: usize, index: usize) -> u64 {
        let (engines, xccs) = (u64::from(self.scratch.engines), u64::from(self.scratch.xccs));
        let (xcc, place) = (place as u64 % xccs, place as u64 / xccs);
        let (engine, group) = ((place + self.first) % engines, place / engines);
        let slot = engine * u64::from(self.scratch.waves) + group * self.group + index as u64;
        let part = self.scratch.base.wrapping_add(xcc.wrapping_mul(self.scratch.xcc_bytes));
        part.wrapping_add(slot.wrapping_mul(self.scratch.wave_bytes))
    }

    /// The place of a workgroup of which a wave has its slot at `address`. The numbers may be anybody's: then it is any.
    fn place(&self, address: u64) -> usize {
        let Scratch { base, wave_bytes, waves, engines, xccs, xcc_bytes } = self.scratch;
        let (engines, waves, xccs) = (u64::from(engines), u64::from(waves), u64::from(xccs));
        let offset = address.wrapping_sub(base);
        let (xcc, offset) = match xcc_bytes {
            bytes if bytes > 0 && xccs > 1 => (offset / bytes % xccs, offset % bytes),
            _ => (0, offset),
        };
        let slot = offset.checked_div(wave_bytes).unwrap_or(0);
        let (engine, group) = (slot / waves % engines, slot % waves / self.group);
        ((group * engines + (engine + engines - self.first) % engines) * xccs + xcc) as usize
    }
}

/// Everything a kernel dispatch needs.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The chip.
    pub target: &'static Target,
    /// Compute units that its workgroups are spread over, of all XCCs.
    pub compute_units: u32,
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
    /// Whether its waves have `STATUS.PRIV` (`COMPUTE_PGM_RSRC1.PRIV`).
    pub privileged: bool,
}

impl Launch {
    /// Workgroups that may be resident (started, not finished) at a time, as far as its registers, its LDS and the chip's wave
    /// slots tell; at least 1. Scratch may be the lower limit.
    #[must_use]
    pub fn resident_workgroups(&self) -> u64 {
        Residency::new(self).workgroups(self.compute_units)
    }
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
    /// If waves have private memory.
    places: Option<Places>,
    pub max_resident: usize,
    pub identity: Identity,
    pub priority: u32,
    status: u32,
    first: [u32; 3],
    grid: [u32; 3],
    group: [u32; 3],
    /// What SGPRs start with, but for the workgroup's numbers, and how many are started.
    sgprs: [u32; STARTING_SGPRS],
    sgpr_count: usize,
    /// The same of the scalars from VCC on, but for what TTMPs say of the workgroup.
    special: [u32; SINK - VCC],
    layout: UserSgprs,
    mode: u32,
    work_item_dimensions: u32,
    /// What work-items' numbers are like in whole workgroups.
    items: Option<Fact>,
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
        // A wave that starts without SCRATCH_EN has no slot, whatever the packet says.
        let places = match private_bytes {
            bytes if bytes > 0 && d.enable_private_segment() => {
                Some(places(launch, u64::from(bytes) * lanes, max_waves)?)
            }
            _ => None,
        };
        let mut sgprs = [0; STARTING_SGPRS];
        sgprs[..16].copy_from_slice(&launch.user_data.unwrap_or_else(|| user_sgprs(launch, &layout)));
        let mut special = [0; SINK - VCC];
        special[TTMP + 6 - VCC] = launch.dispatch_id as u32 & 0x1FF_FFFF;
        let by_scratch = places.map_or(u64::MAX, |places| places.count());
        Ok(Plan {
            entry: launch.entry,
            shape: Shape { halves, vgprs: d.vgpr_count(wave32) as usize },
            workgroups,
            // A client may ask for more than can be counted. Saturating is safe: such a grid cannot finish.
            total: workgroups.iter().fold(1, |total: u64, &n| total.saturating_mul(u64::from(n))),
            lds_bytes: (packet.group_segment_bytes.div_ceil(512) * 512).min(LDS_DWORDS as u32 * 4),
            private_bytes,
            places,
            // CAST: below 2^32 compute units times 2^13 wave slots.
            max_resident: launch.resident_workgroups().min(by_scratch).max(1) as usize,
            identity: Identity { doorbell: launch.doorbell, dispatch_id: launch.dispatch_id, trap_memory: 0 },
            priority: launch.priority,
            status: STATUS_VALID | STATUS_IN_GROUP | if launch.privileged { status::PRIV } else { 0 },
            first: launch.first_workgroup,
            grid: packet.grid,
            group: packet.workgroup.map(u32::from),
            sgprs,
            sgpr_count: starting_sgprs(&layout),
            special,
            layout,
            mode: d.initial_mode(),
            work_item_dimensions: d.workitem_id_dimensions(),
            items: Fact::of_items(packet.workgroup.map(u32::from), asked(d.workitem_id_dimensions())),
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

    /// Shader engines of all XCCs, as far as they matter: places follow each other round them.
    pub(crate) fn engines(&self) -> usize {
        self.places.map_or(1, |places| places.scratch.engines as usize * self.xccs())
    }

    /// XCCs, as far as they matter: the places of one follow each other at this distance.
    pub(crate) fn xccs(&self) -> usize {
        self.places.map_or(1, |places| places.scratch.xccs as usize)
    }

    /// The place in the scratch of a workgroup of which this is a wave.
    pub(crate) fn place_of(&self, w: &Wave) -> usize {
        self.places.map_or(0, |places| places.place(w.flat_scratch))
    }

    /// Puts `waves` into the state in which those of workgroup `id` start; `place` is the workgroup's in the scratch. SGPRs and
    /// VGPRs that are not part of that state keep what the last wave of this process left in them, as in hardware.
    pub(crate) fn start(&self, waves: &mut [Wave], id: [u32; 3], place: usize) {
        let extent = self.extent(id).map(|n| n.clamp(1, 1024));
        // Of each wave for itself: an array of all, made piece by piece, could not be read at once.
        let [x, y, z] = self.layout.workgroup_id;
        let numbers =
            [(x, id[0]), (y, id[1]), (z, id[2]), (self.layout.workgroup_info, waves.len() as u32 & 0x3F)];
        let items = self.items.filter(|_| extent == self.group.map(|n| n.clamp(1, 1024)));
        // At most 1,024³.
        let present: u32 = extent.iter().product();
        let lanes = self.shape.halves as u32 * 32;
        let is_line = extent[1] == 1 && extent[2] == 1;
        let mut first = 0;
        for (index, w) in waves.iter_mut().enumerate() {
            if self.sgpr_count <= 16 {
                w.s[..16].copy_from_slice(&self.sgprs[..16]);
            } else {
                w.s[..STARTING_SGPRS].copy_from_slice(&self.sgprs);
            }
            w.s[VCC..SINK].copy_from_slice(&self.special);
            for (place, number) in numbers {
                if let Some(place) = place.filter(|place| (*place as usize) < STARTING_SGPRS) {
                    w.s[place as usize] = number;
                }
            }
            w.s[TTMP + 8..TTMP + 11].copy_from_slice(&id);
            w.s[TTMP + 11] = index as u32 & 0x3F;
            w.scc = 0;
            w.cause = None;
            w.leave = None;
            w.in_handler = false;
            w.hint = 0;
            w.pc = self.entry;
            w.mode = self.mode;
            w.trapsts = 0;
            w.state = crate::wave::WaveStatus::Ready;
            w.group = id;
            w.wave_in_group = index as u32;
            w.lds_bytes = self.lds_bytes;
            w.status = self.status;
            w.flat_scratch = 0;
            if let Some(places) = self.places {
                w.status |= STATUS_SCRATCH;
                w.flat_scratch = places.address(place, index);
            }
            let in_wave = present.saturating_sub(first).min(lanes);
            w.set_exec(if in_wave >= 64 { u64::MAX } else { (1 << in_wave) - 1 });
            w.items = items.filter(|_| in_wave == lanes);
            if is_line {
                // Lanes that do not exist are never active; giving them numbers too keeps the loop simple.
                for (half, row) in w.v.iter_mut().enumerate().take(self.shape.halves) {
                    count_up(row, first + 32 * half as u32);
                }
            } else {
                self.work_item_ids(w, extent, first, in_wave);
            }
            first += lanes;
        }
    }

    /// v0 = x | y << 10 | z << 20 of the `present` work-items from number `first` on, as far as the kernel asked for (compilers
    /// leave a mask out where it asked for x only).
    fn work_item_ids(&self, w: &mut Wave, [nx, ny, _]: [u32; 3], first: u32, present: u32) {
        let asked = asked(self.work_item_dimensions);
        let [mut x, mut y, mut z] = [first % nx, first / nx % ny, first / nx / ny];
        if nx % 32 == 0 && present == w.lanes() as u32 {
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

/// How many SGPRs a wave starts with: the client's, and the workgroup's numbers behind them.
fn starting_sgprs(layout: &UserSgprs) -> usize {
    let numbers = layout.workgroup_id.into_iter().chain([layout.workgroup_info]).flatten();
    numbers.map(|place| place as usize + 1).max().unwrap_or(0).max(16)
}

/// The bits of work-items' numbers that a kernel with so many dimensions asks for, less one.
fn asked(dimensions: u32) -> u32 {
    match dimensions {
        0 => 0x3FF,
        1 => 0xF_FFFF,
        _ => u32::MAX,
    }
}

/// The places of a launch whose waves need `wave_bytes`, and its workgroups `group` waves.
fn places(launch: &Launch, wave_bytes: u64, group: usize) -> Result<Places, Cause> {
    let fitting = launch.scratch.filter(|scratch| scratch.wave_bytes >= wave_bytes);
    fitting.and_then(|scratch| Places::new(scratch, group, launch.dispatch_id)).ok_or_else(|| {
        let available = launch.scratch.map_or(0, |s| s.wave_bytes.saturating_mul(u64::from(s.waves)));
        Cause::ScratchTooSmall { needed: wave_bytes.saturating_mul(group as u64), available }
    })
}

/// The numbers of lanes.
static NUMBERS: Row = Row([
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
]);

/// `first` and the numbers behind it, a lane each.
fn count_up(row: &mut Row, first: u32) {
    // A compiler that knows the numbers leaves the first one out, and then stores across cache lines.
    let numbers = std::hint::black_box(&NUMBERS).0.as_chunks::<4>().0;
    for (lanes, [a, b, c, d]) in row.0.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *lanes = [a, b, c, d].map(|n| first.wrapping_add(*n));
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
        self.record_in(Vec::new())
    }

    /// The same; the vector registers in this memory.
    pub(crate) fn record_in(&self, mut vgprs: Vec<u32>) -> WaveRecord {
        let rows = self.vgprs() * self.halves;
        let mut sgprs = [0u32; 128];
        sgprs[..108].copy_from_slice(&self.s[..108]);
        let mut ttmp = [0u32; 16];
        ttmp.copy_from_slice(&self.s[TTMP..TTMP + 16]);
        vgprs.clear();
        vgprs.reserve_exact(rows * 32);
        self.v[..rows].iter().for_each(|row| vgprs.extend_from_slice(&row.0));
        WaveRecord {
            lanes: self.lanes() as u32,
            vgprs,
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
        let rows = self.vgprs() * self.halves;
        self.v[..rows].fill(crate::wave::Row::ZERO);
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
        self.state = crate::wave::WaveStatus::Ready;
        self.cause = None;
        self.leave = None;
        self.in_handler = false;
        self.items = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRATCH: Scratch =
        Scratch { base: 0x10_0000, wave_bytes: 256, waves: 7, engines: 3, xccs: 1, xcc_bytes: 0 };
    const TWO_XCCS: Scratch = Scratch { xccs: 2, xcc_bytes: 24 * 256, ..SCRATCH };

    #[test]
    fn workgroups_go_round_the_engines_and_every_wave_has_its_own_slot() {
        // Two workgroups of 3 waves on each engine; the 7th slot is of no use.
        let places = Places::new(SCRATCH, 3, 4).unwrap();
        assert_eq!(places.count(), 6);
        let slot = |place, index| (places.address(place, index) - SCRATCH.base) / 256;
        assert_eq!([0, 1, 2, 3, 4, 5].map(|place| slot(place, 0)), [7, 14, 0, 10, 17, 3]);
        assert_eq!(slot(1, 2), 16);
        for place in 0..6 {
            for index in 0..3 {
                assert_eq!(places.place(places.address(place, index)), place);
            }
        }
    }

    #[test]
    fn workgroups_go_round_the_xccs_whose_slots_lie_in_their_own_parts() {
        let places = Places::new(TWO_XCCS, 3, 4).unwrap();
        assert_eq!(places.count(), 12);
        let slot = |place, index| (places.address(place, index) - SCRATCH.base) / 256;
        // As with one XCC, each twice; the second XCC's part begins 24 slots behind, 3 more than there are.
        assert_eq!([0, 2, 4, 6, 8, 10].map(|place| slot(place, 0)), [7, 14, 0, 10, 17, 3]);
        assert_eq!([1, 3, 5, 7, 9, 11].map(|place| slot(place, 0)), [31, 38, 24, 34, 41, 27]);
        for place in 0..12 {
            for index in 0..3 {
                assert_eq!(places.place(places.address(place, index)), place);
            }
        }
        assert!(TWO_XCCS.stays_within_parts());
        assert!(!Scratch { xcc_bytes: 21 * 256 - 1, ..TWO_XCCS }.stays_within_parts());
        assert!(Scratch { xcc_bytes: 21 * 256, ..TWO_XCCS }.stays_within_parts());
    }

    #[test]
    fn workgroups_that_fit_no_engine_have_no_place() {
        assert!(Places::new(SCRATCH, 8, 0).is_none());
        assert!(Places::new(Scratch { waves: 0, ..SCRATCH }, 0, 0).is_none());
        let whole = Places::new(SCRATCH, 7, 0).unwrap();
        assert_eq!((whole.count(), whole.address(2, 6)), (3, 0x10_0000 + 20 * 256));
    }

    #[test]
    fn any_address_has_some_place() {
        let places = Places::new(SCRATCH, 3, 1).unwrap();
        let of_two = Places::new(TWO_XCCS, 3, 1).unwrap();
        for address in [0, 1, SCRATCH.base - 1, u64::MAX] {
            assert!(places.place(address) < 9, "{address:x}");
            assert!(of_two.place(address) < 18, "{address:x}");
        }
    }
}
