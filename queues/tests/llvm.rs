// SPDX-License-Identifier: MIT OR Apache-2.0
//! The target table and the kernel descriptor against clang 19, run as a process.
//!
//! `STASIS_CLANG` names another clang. Without one these tests fail: the device library cannot be built
//! either.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::process::{Command, Stdio};

use queues::hsa::{KernelDescriptor, UserSgprs};
use queues::target::{TARGETS, Target};

/// Assembles `source` and returns the ELF object, or what clang said.
fn assemble(cpu: &str, source: &str) -> Result<Vec<u8>, String> {
    let clang = std::env::var("STASIS_CLANG").unwrap_or_else(|_| "clang-19".into());
    let mut child = Command::new(&clang)
        .args(["-x", "assembler", "-target", "amdgcn-amd-amdhsa", "-c", "-o", "-", "-"])
        .arg(format!("-mcpu={cpu}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("Cannot run {clang}: {error}"));
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn number<const N: usize>(elf: &[u8], offset: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&elf[offset..offset + N]);
    u64::from_le_bytes(bytes)
}

/// The contents of the section with this name.
fn section<'a>(elf: &'a [u8], name: &str) -> &'a [u8] {
    let index = |value: u64| usize::try_from(value).unwrap();
    let headers = index(number::<8>(elf, 40));
    let (size, count, names) =
        (index(number::<2>(elf, 58)), index(number::<2>(elf, 60)), index(number::<2>(elf, 62)));
    let header = |section: usize| headers + section * size;
    let contents = |section: usize| {
        let offset = index(number::<8>(elf, header(section) + 24));
        &elf[offset..offset + index(number::<8>(elf, header(section) + 32))]
    };
    let named = (0..count).find(|&section| {
        let tail = &contents(names)[index(number::<4>(elf, header(section)))..];
        tail.starts_with(name.as_bytes()) && tail[name.len()] == 0
    });
    contents(named.unwrap_or_else(|| panic!("No section {name}")))
}

/// The descriptor that these directives give.
fn descriptor(cpu: &str, directives: &[&str]) -> KernelDescriptor {
    let source = format!(
        ".text\n.globl k\n.p2align 8\nk:\ns_endpgm\n.rodata\n.p2align 6\n.amdhsa_kernel k\n\
         .amdhsa_next_free_sgpr 8\n{}\n.end_amdhsa_kernel\n",
        directives.join("\n")
    );
    let elf = assemble(cpu, &source).unwrap_or_else(|error| panic!("{cpu}: {error}"));
    let bytes = section(&elf, ".rodata").try_into().unwrap();
    let descriptor = KernelDescriptor::from_bytes(&bytes);
    assert_eq!(descriptor.to_bytes(), bytes);
    descriptor
}

#[test]
#[cfg_attr(miri, ignore = "runs clang")]
fn elf_mach_is_what_clang_writes() {
    for target in TARGETS.iter().filter(|target| target.elf_mach != 0) {
        let elf = match assemble(target.name, "s_endpgm\n") {
            Ok(elf) => elf,
            // gfx950 came with LLVM 20; its number is AMDGPUUsage's.
            Err(error) if target.name == "gfx950" && error.contains("invalid") => continue,
            Err(error) => panic!("{target}: {error}"),
        };
        let flags = u32::try_from(number::<4>(&elf, 48)).unwrap();
        assert_eq!(flags & 0xff, target.elf_mach, "{target}");
        // Bits 8..10 and 10..12: 0 unsupported, 1 any.
        assert_eq!(flags >> 8 & 3 != 0, target.xnack, "{target} xnack");
        assert_eq!(flags >> 10 & 3 != 0, target.sramecc, "{target} sramecc");
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs clang")]
fn vgpr_fields_count_as_clang_counts() {
    for target in TARGETS.iter().filter(|target| !["gfx950", "gfx1105"].contains(&target.name)) {
        for &lanes in target.wave_sizes {
            let wave_size = format!(".amdhsa_wavefront_size32 {}", u32::from(lanes == 32));
            for wanted in [1, 8, 9, 64, 100, 256] {
                let vgprs = format!(".amdhsa_next_free_vgpr {wanted}");
                let mut directives = vec![vgprs.as_str()];
                if target.vgprs_wave32.is_some() {
                    directives.push(&wave_size);
                }
                if target.vgprs_wave64.total == 512 && target.vgprs_wave32.is_none() {
                    directives.push(".amdhsa_accum_offset 4");
                }
                let descriptor = descriptor(target.name, &directives);
                let file = target.vgprs(lanes == 32);
                let encoded = u32::next_multiple_of(wanted, file.encoding);
                let allocated = encoded.next_multiple_of(file.allocation);
                assert_eq!(descriptor.lanes(), lanes);
                assert_eq!(descriptor.allocated_vgprs(target), allocated, "{target} {wanted}");
                if target.vgprs_wave32.is_some() {
                    assert_eq!(descriptor.vgpr_count(lanes == 32), encoded, "{target} {wanted}");
                }
                descriptor.validate(target).unwrap();
            }
        }
    }
}

/// A directive, and whether its accessor sees it.
type Bit = (&'static str, fn(&KernelDescriptor) -> bool);

#[test]
#[cfg_attr(miri, ignore = "runs clang")]
fn every_single_bit_is_where_clang_puts_it() {
    let bits: &[Bit] = &[
        ("dx10_clamp", KernelDescriptor::dx10_clamp),
        ("ieee_mode", KernelDescriptor::ieee),
        ("fp16_overflow", KernelDescriptor::fp16_ovfl),
        ("workgroup_processor_mode", KernelDescriptor::wgp_mode),
        ("memory_ordered", KernelDescriptor::mem_ordered),
        ("forward_progress", KernelDescriptor::fwd_progress),
        ("enable_private_segment", KernelDescriptor::enable_private_segment),
        ("system_sgpr_workgroup_id_x", KernelDescriptor::enable_workgroup_id_x),
        ("system_sgpr_workgroup_id_y", KernelDescriptor::enable_workgroup_id_y),
        ("system_sgpr_workgroup_id_z", KernelDescriptor::enable_workgroup_id_z),
        ("system_sgpr_workgroup_info", KernelDescriptor::enable_workgroup_info),
        ("user_sgpr_dispatch_ptr", KernelDescriptor::enable_dispatch_ptr),
        ("user_sgpr_queue_ptr", KernelDescriptor::enable_queue_ptr),
        ("user_sgpr_kernarg_segment_ptr", KernelDescriptor::enable_kernarg_segment_ptr),
        ("user_sgpr_dispatch_id", KernelDescriptor::enable_dispatch_id),
        ("user_sgpr_private_segment_size", KernelDescriptor::enable_private_segment_size),
        ("wavefront_size32", KernelDescriptor::wave32),
        ("uses_dynamic_stack", KernelDescriptor::uses_dynamic_stack),
        ("exception_fp_ieee_invalid_op", |kd| kd.exception_enables() & 1 != 0),
        ("exception_fp_denorm_src", |kd| kd.exception_enables() & 2 != 0),
        ("exception_fp_ieee_div_zero", |kd| kd.exception_enables() & 4 != 0),
        ("exception_fp_ieee_overflow", |kd| kd.exception_enables() & 8 != 0),
        ("exception_fp_ieee_underflow", |kd| kd.exception_enables() & 16 != 0),
        ("exception_fp_ieee_inexact", |kd| kd.exception_enables() & 32 != 0),
        ("exception_int_div_zero", |kd| kd.exception_enables() & 64 != 0),
    ];
    for (name, accessor) in bits {
        for set in [false, true] {
            let directive = format!(".amdhsa_{name} {}", u32::from(set));
            let descriptor = descriptor("gfx1100", &[".amdhsa_next_free_vgpr 8", &directive]);
            assert_eq!(accessor(&descriptor), set, "{directive}");
        }
    }
    for (name, accessor) in [
        ("private_segment_buffer", KernelDescriptor::enable_private_segment_buffer as fn(&_) -> bool),
        ("flat_scratch_init", KernelDescriptor::enable_flat_scratch_init),
    ] {
        let directive = format!(".amdhsa_user_sgpr_{name} 1");
        assert!(accessor(&descriptor("gfx906", &[".amdhsa_next_free_vgpr 8", &directive])), "{name}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "runs clang")]
fn every_field_is_where_clang_puts_it() {
    let kd = descriptor(
        "gfx1100",
        &[
            ".amdhsa_next_free_vgpr 8",
            ".amdhsa_group_segment_fixed_size 1024",
            ".amdhsa_private_segment_fixed_size 528",
            ".amdhsa_kernarg_size 72",
            ".amdhsa_user_sgpr_count 13",
            ".amdhsa_system_vgpr_workitem_id 2",
            ".amdhsa_float_round_mode_32 1",
            ".amdhsa_float_round_mode_16_64 2",
            ".amdhsa_float_denorm_mode_32 0",
            ".amdhsa_float_denorm_mode_16_64 3",
        ],
    );
    assert_eq!(kd.group_segment_fixed_size, 1024);
    assert_eq!(kd.private_segment_fixed_size, 528);
    assert_eq!(kd.kernarg_size, 72);
    assert_eq!(kd.user_sgpr_count(), 13);
    assert_eq!(kd.workitem_id_dimensions(), 2);
    assert_eq!(kd.float_mode(), 0b1100_1001);
    // dx10_clamp and ieee are on by default: MODE bits 8 and 9.
    assert_eq!(kd.initial_mode(), 0b11_1100_1001);
    assert_eq!(kd.lds_granules(), 0);

    let preload = [
        ".amdhsa_next_free_vgpr 8",
        ".amdhsa_accum_offset 8",
        ".amdhsa_user_sgpr_kernarg_segment_ptr 1",
        ".amdhsa_user_sgpr_kernarg_preload_length 6",
        ".amdhsa_user_sgpr_kernarg_preload_offset 2",
    ];
    let kd = descriptor("gfx942", &preload);
    assert_eq!((kd.kernarg_preload_length(), kd.kernarg_preload_offset()), (6, 2));
    assert_eq!(kd.accum_offset(), 8);
    let sgprs = UserSgprs::new(&kd, Target::by_name("gfx942").unwrap());
    assert_eq!(sgprs.kernarg_preload, Some(2));
    assert_eq!(sgprs.used, kd.user_sgpr_count());

    let shared = [".amdhsa_next_free_vgpr 8", ".amdhsa_wavefront_size32 0", ".amdhsa_shared_vgpr_count 3"];
    assert_eq!(descriptor("gfx1030", &shared).shared_vgpr_blocks(), 3);
}

#[test]
#[cfg_attr(miri, ignore = "runs clang")]
fn user_sgprs_lie_where_clang_counts_them() {
    for cpu in ["gfx906", "gfx90a", "gfx1030", "gfx1101"] {
        let target = Target::by_name(cpu).unwrap();
        let mut directives = vec![
            ".amdhsa_next_free_vgpr 8",
            ".amdhsa_user_sgpr_dispatch_ptr 1",
            ".amdhsa_user_sgpr_kernarg_segment_ptr 1",
            ".amdhsa_user_sgpr_private_segment_size 1",
            ".amdhsa_system_sgpr_workgroup_id_y 1",
        ];
        if cpu == "gfx90a" {
            directives.push(".amdhsa_accum_offset 4");
        }
        if !target.architected_flat_scratch {
            directives.push(".amdhsa_user_sgpr_flat_scratch_init 1");
        }
        let kd = descriptor(cpu, &directives);
        let sgprs = UserSgprs::new(&kd, target);
        // Without an explicit count the assembler's is the number used.
        assert_eq!(sgprs.used, kd.user_sgpr_count(), "{cpu}");
        assert_eq!((sgprs.dispatch_ptr, sgprs.kernarg_segment_ptr), (Some(0), Some(2)), "{cpu}");
        assert_eq!(sgprs.workgroup_id, [Some(sgprs.used), Some(sgprs.used + 1), None], "{cpu}");
    }
}
