// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMDGPU_INFO (`amdgpu_kms.c:amdgpu_info_ioctl`).
//!
//! INVARIANT: an answer is copied up to the room that the caller has. Queries about what this device has not, such as
//! displays, video and sensors, are refused as by a kernel on a card without it.

use bytemuck::bytes_of;
use kfd::sys::*;
use nix::errno::Errno;

use super::super::Call;
use super::super::files::{Node, OpenFile};
use super::super::ledger::Resource;
use super::super::process::KfdProcess;
use crate::sysfs::{EngineVersion, GpuModel};

/// GB_ADDR_CONFIG among the registers of gfx9 and later: dword offset.
const GB_ADDR_CONFIG: u32 = 0x263e;
/// Most registers of one call.
const MAX_REGISTERS: u32 = 128;
/// Most shader engines and shader arrays that READ_MMR_REG can name (`AMDGPU_GFX_MAX_SE`, `AMDGPU_GFX_MAX_SH_PER_SE`).
const MAX_ENGINES: u32 = 4;
const MAX_ARRAYS: u32 = 2;
/// VRAM that clients cannot have (`AMDGPU_VM_RESERVED_VRAM`).
const RESERVED_VRAM: u64 = 8 << 20;

impl KfdProcess {
    /// AMDGPU_INFO.
    pub(super) fn amdgpu_info(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_info,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        if args.return_size == 0 || args.return_pointer == 0 {
            return Err(Errno::EINVAL);
        }
        let Node::Render { gpu } = file.node() else { return Err(Errno::EINVAL) };
        let model = &self.gpus[gpu];
        let answer = |bytes: &[u8]| {
            let room = bytes.len().min(args.return_size as usize);
            call.memory.write(args.return_pointer, &bytes[..room]).map_err(|_| Errno::EFAULT)
        };
        match args.query {
            AMDGPU_INFO_ACCEL_WORKING => answer(bytes_of(&1u32)),
            AMDGPU_INFO_HW_IP_INFO => {
                let engine = engine_info(model, args.args[0], args.args[1])?;
                answer(&bytes_of(&engine)[..self.kernel.hw_ip_bytes()])
            }
            AMDGPU_INFO_HW_IP_COUNT => answer(bytes_of(&engine_count(args.args[0])?)),
            AMDGPU_INFO_TIMESTAMP => answer(bytes_of(&self.hardware.clock(gpu))),
            AMDGPU_INFO_FW_VERSION => answer(bytes_of(&firmware(model, args.args)?)),
            // The device moves no buffer, so that none was ever lost or touched in the wrong place.
            AMDGPU_INFO_NUM_BYTES_MOVED
            | AMDGPU_INFO_NUM_EVICTIONS
            | AMDGPU_INFO_NUM_VRAM_CPU_PAGE_FAULTS => answer(bytes_of(&0u64)),
            AMDGPU_INFO_VRAM_LOST_COUNTER => answer(bytes_of(&0u32)),
            AMDGPU_INFO_VRAM_USAGE => answer(bytes_of(&self.memory(gpu).vram.heap_usage)),
            AMDGPU_INFO_VIS_VRAM_USAGE => answer(bytes_of(&self.memory(gpu).cpu_accessible_vram.heap_usage)),
            AMDGPU_INFO_GTT_USAGE => answer(bytes_of(&self.memory(gpu).gtt.heap_usage)),
            AMDGPU_INFO_VRAM_GTT => {
                let memory = self.memory(gpu);
                answer(bytes_of(&drm_amdgpu_info_vram_gtt {
                    vram_size: memory.vram.usable_heap_size,
                    vram_cpu_accessible_size: memory.cpu_accessible_vram.usable_heap_size,
                    gtt_size: memory.gtt.usable_heap_size,
                }))
            }
            AMDGPU_INFO_MEMORY => answer(bytes_of(&self.memory(gpu))),
            AMDGPU_INFO_READ_MMR_REG => answer(bytemuck::cast_slice(&registers(model, args.args)?)),
            AMDGPU_INFO_DEV_INFO => {
                answer(&bytes_of(&model.device_info())[..self.kernel.device_info_bytes()])
            }
            // A driver without power management has no sensors.
            AMDGPU_INFO_SENSOR => Err(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    /// What all processes use of the memories, and what there is.
    fn memory(&self, gpu: usize) -> drm_amdgpu_memory_info {
        let (model, ledger) = (&self.gpus[gpu], self.slot.ledger());
        let (vram, visible) = (model.vram_bytes(), model.visible_vram_bytes());
        let used = ledger.used(Resource::Vram(gpu));
        let usable = vram.saturating_sub(RESERVED_VRAM);
        // The driver fills VRAM that the CPU does not see first (`amdgpu_bo_placement_from_domain`).
        let visible_used = used.saturating_sub(vram - visible);
        let gtt = ledger.capacity(Resource::Ttm);
        drm_amdgpu_memory_info {
            vram: heap(vram, usable, used),
            cpu_accessible_vram: heap(visible, visible.min(usable), visible_used),
            gtt: heap(gtt, gtt, ledger.used(Resource::Ttm)),
        }
    }
}

fn heap(total: u64, usable: u64, used: u64) -> drm_amdgpu_heap_info {
    drm_amdgpu_heap_info {
        total_heap_size: total,
        usable_heap_size: usable,
        heap_usage: used,
        max_allocation: usable / 4 * 3,
    }
}

/// HW_IP_INFO, with the alignments of `amdgpu_hw_ip_info` (`amdgpu_kms.c`), which are those of all chips. The engines are there,
/// but no ring takes submissions: this driver has no AMDGPU_CS.
fn engine_info(model: &GpuModel, kind: u32, instance: u32) -> Result<drm_amdgpu_info_hw_ip, Errno> {
    if instance != 0 {
        return Err(Errno::EINVAL);
    }
    let described = |engine: EngineVersion, start, size| drm_amdgpu_info_hw_ip {
        hw_ip_version_major: engine.block.0,
        hw_ip_version_minor: engine.block.1,
        ib_start_alignment: start,
        ib_size_alignment: size,
        ip_discovery_version: engine.packed(),
        ..Default::default()
    };
    match kind {
        AMDGPU_HW_IP_GFX | AMDGPU_HW_IP_COMPUTE => Ok(described(model.compute_engine(), 32, 32)),
        AMDGPU_HW_IP_DMA => Ok(described(model.copy_engine(), 256, 4)),
        // What a card without the engine answers.
        kind if kind < AMDGPU_HW_IP_NUM => Ok(drm_amdgpu_info_hw_ip::default()),
        _ => Err(Errno::EINVAL),
    }
}

/// HW_IP_COUNT. All copy engines are one block of the driver.
fn engine_count(kind: u32) -> Result<u32, Errno> {
    match kind {
        AMDGPU_HW_IP_GFX | AMDGPU_HW_IP_COMPUTE | AMDGPU_HW_IP_DMA => Ok(1),
        kind if kind < AMDGPU_HW_IP_NUM => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// FW_VERSION; 0 for firmware that is not loaded.
fn firmware(
    model: &GpuModel,
    [kind, instance, index, _]: [u32; 4],
) -> Result<drm_amdgpu_info_firmware, Errno> {
    if instance != 0 {
        return Err(Errno::EINVAL);
    }
    let ver = match kind {
        AMDGPU_INFO_FW_GFX_MEC if index == 0 => model.compute_firmware(),
        // The second processor's, which these chips have not, and numbers that there are not.
        AMDGPU_INFO_FW_GFX_MEC if index == 1 => 0,
        AMDGPU_INFO_FW_SDMA if index < model.all_sdma_engines() => model.copy_firmware(),
        AMDGPU_INFO_FW_GFX_MEC | AMDGPU_INFO_FW_SDMA | AMDGPU_INFO_FW_NONE => return Err(Errno::EINVAL),
        AMDGPU_INFO_FW_VCE..=AMDGPU_INFO_FW_LAST => 0,
        _ => return Err(Errno::EINVAL),
    };
    Ok(drm_amdgpu_info_firmware { ver, feature: 0 })
}

/// READ_MMR_REG. The kernel lets clients read a list of registers: GB_ADDR_CONFIG, which libdrm asks for, and those that say
/// which parts of the GPU are busy. This device has none of the latter, and answers for them as for any other register.
fn registers(model: &GpuModel, [first, wanted, place, _]: [u32; 4]) -> Result<Vec<u32>, Errno> {
    let engine = place & AMDGPU_INFO_MMR_INDEX_MASK;
    let array = place >> AMDGPU_INFO_MMR_SH_INDEX_SHIFT & AMDGPU_INFO_MMR_INDEX_MASK;
    let outside = |index, end| index != AMDGPU_INFO_MMR_INDEX_MASK && index >= end;
    if outside(engine, MAX_ENGINES) || outside(array, MAX_ARRAYS) || wanted > MAX_REGISTERS {
        return Err(Errno::EINVAL);
    }
    let read = |at| match first.wrapping_add(at) {
        GB_ADDR_CONFIG => Ok(model.gb_addr_config()),
        _ => Err(Errno::EFAULT),
    };
    (0..wanted).map(read).collect()
}
