// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects that clang made a moment ago, whole and damaged.

mod compile;
mod fuzz;
mod kernargs;

use super::*;
use compile::Source;
use queues::target::Target;

fn parse(bytes: &[u8]) -> CodeObject {
    CodeObject::parse(bytes).unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

fn target(name: &str) -> &'static Target {
    Target::by_name(name).expect("a known target")
}

fn u64_at(image: &[u8], offset: u64) -> u64 {
    let start = usize::try_from(offset).unwrap();
    u64::from_le_bytes(image[start..start + 8].try_into().unwrap())
}

#[test]
fn parse_reads_versions_4_5_and_6() {
    let versions = [(4, CodeObjectVersion::V4), (5, CodeObjectVersion::V5), (6, CodeObjectVersion::V6)];
    for (number, version) in versions {
        let object = parse(&Source::axpy().version(number).compile());
        assert_eq!(object.version(), version);
        assert_eq!(object.isa().to_string(), "gfx1100");
        assert_eq!(object.isa().target().map(|target| target.name), Some("gfx1100"));
        assert_eq!(object.kernels().len(), 2);
        let kernel = object.kernel("axpy").unwrap();
        assert_eq!(kernel.metadata.wavefront_size, 32);
        assert_eq!(kernel.metadata.max_flat_workgroup_size, 1024);
        let arguments = &kernel.metadata.arguments[..4];
        let places: Vec<_> = arguments.iter().map(|a| (a.offset, a.bytes)).collect();
        assert_eq!(places, [(0, 8), (8, 8), (16, 4), (20, 4)]);
        assert_eq!(arguments[0].kind, ValueKind::GlobalBuffer);
        assert_eq!(arguments[0].address_space.as_deref(), Some("global"));
        assert_eq!(arguments[2].kind, ValueKind::ByValue);
    }
}

#[test]
fn parse_other_targets_and_their_features() {
    for (cpu, shown) in [
        ("gfx1030", "gfx1030"),
        ("gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"),
        ("gfx906", "gfx906"),
        ("gfx1201", "gfx1201"),
    ] {
        let object = parse(&Source::axpy().cpu(cpu).compile());
        assert_eq!(object.isa().to_string(), shown);
    }
}

#[test]
fn parse_file_linked_from_two_objects_has_the_kernels_of_both() {
    let object = parse(
        &Source::axpy().define("API=__attribute__((visibility(\"default\")))").with_another().compile(),
    );
    let names: Vec<_> = object.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["axpy", "group", "load"]);
}

#[test]
fn check_agent_generic_object_runs_on_the_family_only() {
    let object = parse(&Source::axpy().cpu("gfx11-generic").version(6).compile());
    assert_eq!(object.isa().name(), "gfx11-generic");
    assert_eq!(object.isa().generic_version(), 1);
    assert!(object.isa().target().is_none());
    assert_eq!(object.check_agent(target("gfx1100"), AgentFeatures::default()), Ok(()));
    let error = object.check_agent(target("gfx1030"), AgentFeatures::default()).unwrap_err();
    assert!(matches!(error, CodeObjectError::WrongTarget { .. }), "{error}");
}

#[test]
fn check_agent_other_target_is_refused_naming_both() {
    let object = parse(&Source::axpy().cpu("gfx1030").compile());
    let text = object.check_agent(target("gfx1100"), AgentFeatures::default()).unwrap_err().to_string();
    assert!(text.contains("gfx1030") && text.contains("gfx1100"), "{text}");
}

#[test]
fn kernel_unknown_name_lists_what_there_is() {
    let object = parse(&Source::axpy().compile());
    let text = object.kernel("axpi").unwrap_err().to_string();
    assert!(text.contains("axpi") && text.contains("axpy, group"), "{text}");
}

#[test]
fn kernel_descriptor_points_at_executable_code() {
    let object = parse(&Source::axpy().compile());
    for kernel in object.kernels() {
        let distance = i64::from_le_bytes(kernel.descriptor[16..24].try_into().unwrap());
        assert_eq!(kernel.entry_offset, kernel.descriptor_offset.wrapping_add_signed(distance));
        let segment = object
            .plan()
            .segments()
            .iter()
            .find(|s| s.offset <= kernel.entry_offset && kernel.entry_offset < s.offset + s.bytes)
            .unwrap();
        assert!(segment.access.execute && !segment.access.write);
    }
    assert_eq!(object.kernel("group").unwrap().metadata.group_bytes, 1024);
}

#[test]
fn kernel_hidden_symbol_is_found_through_the_section_headers() {
    let object = parse(&Source::axpy().flag("-fvisibility=hidden").define("API=").compile());
    assert!(object.kernel("axpy").is_ok());
    let stripped = Source::axpy().flag("-fvisibility=hidden").define("API=").flag("-Wl,-s").compile();
    let error = CodeObject::parse(&stripped).unwrap_err();
    assert!(matches!(error, CodeObjectError::NoDescriptor { .. }), "{error}");
    assert!(error.to_string().contains("visibility"), "{error}");
}

#[test]
fn parse_stripped_file_needs_no_section_headers() {
    let mut bytes = Source::axpy().flag("-Wl,-s").compile();
    // e_shoff, e_shnum, e_shstrndx
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    assert_eq!(parse(&bytes).kernels().len(), 2);
}

#[test]
fn parse_finds_symbols_by_either_hash_table() {
    for style in ["gnu", "sysv", "both"] {
        let bytes = Source::axpy().flag("-Wl,-s").flag(&format!("-Wl,--hash-style={style}")).compile();
        let object = parse(&bytes);
        assert_eq!(object.kernels().len(), 2, "{style}");
        assert!(object.globals().iter().any(|global| global.name == "table"), "{style}");
    }
}

#[test]
fn globals_have_name_offset_and_size() {
    let object = parse(&Source::axpy().compile());
    let table = object.globals().iter().find(|global| global.name == "table").unwrap();
    let image = object.plan().relocate(0x1_0000_0000).unwrap();
    assert_eq!(table.bytes, 16);
    assert_eq!(u64_at(&image, table.offset), 1 | 2 << 32);
}

#[test]
fn relocate_writes_addresses_of_the_chosen_place() {
    let object = parse(&Source::axpy().compile());
    let find = |name: &str| object.globals().iter().find(|global| global.name == name).unwrap().offset;
    for base in [0x1_0000_0000_u64, 0x1000_0020_0000] {
        let image = object.plan().relocate(base).unwrap();
        assert_eq!(image.len() as u64, object.plan().image_bytes());
        assert_eq!(u64_at(&image, find("second")), base + find("table") + 4);
    }
}

#[test]
fn relocate_static_pointer_without_symbol() {
    let object = parse(&Source::axpy().flag("-fvisibility=hidden").define("API=").compile());
    let base = 0x7000_0000_u64;
    let image = object.plan().relocate(base).unwrap();
    let pointers = (0..image.len() as u64 / 8).map(|word| u64_at(&image, word * 8));
    let inside = pointers.filter(|value| (base..base + image.len() as u64).contains(value)).count();
    assert_eq!(inside, 1);
}

#[test]
fn relocate_misaligned_or_too_high_address_is_refused() {
    let plan = parse(&Source::axpy().compile()).plan().clone();
    for address in [0x1001, 0x800, u64::MAX - 0xfff] {
        let error = plan.relocate(address).unwrap_err();
        assert!(matches!(error, CodeObjectError::ImageAddress { .. }), "{error}");
    }
}

#[test]
fn relocate_undefined_symbol_is_named_or_resolved() {
    let bytes = Source::outside().flag("-Wl,--unresolved-symbols=ignore-all").compile();
    let object = parse(&bytes);
    assert_eq!(object.plan().undefined().next(), Some("from_outside"));
    let error = object.plan().relocate(0x10_0000).unwrap_err();
    assert_eq!(error, CodeObjectError::UndefinedSymbol { name: "from_outside".to_owned() });
    let resolve = |name: &str| (name == "from_outside").then_some(0x1234_5678_9abc);
    let image = object.plan().relocate_with(0x10_0000, resolve).unwrap();
    let pointer = object.globals().iter().find(|global| global.name == "pointer").unwrap();
    assert_eq!(u64_at(&image, pointer.offset), 0x1234_5678_9abc + 4);
}

#[test]
fn parse_file_without_metadata_is_refused() {
    let bytes = Source::axpy().compile();
    let at = bytes.windows(7).position(|window| window == b"AMDGPU\0").unwrap();
    let mut damaged = bytes.clone();
    damaged[at] = b'X';
    assert_eq!(CodeObject::parse(&damaged).unwrap_err(), CodeObjectError::NoMetadata);
    damaged = bytes;
    // The type precedes the name.
    damaged[at - 4] = 33;
    assert_eq!(CodeObject::parse(&damaged).unwrap_err(), CodeObjectError::NoMetadata);
}

#[test]
fn parse_header_and_metadata_of_different_targets_is_refused() {
    let mut bytes = Source::axpy().compile();
    bytes[48] = 0x46; // e_flags: gfx1101
    let error = CodeObject::parse(&bytes).unwrap_err();
    assert!(matches!(error, CodeObjectError::TargetDisagreement { .. }), "{error}");
}

#[test]
fn parse_foreign_files_are_refused_by_the_field_that_differs() {
    let error = |bytes: &[u8]| CodeObject::parse(bytes).unwrap_err();
    assert!(matches!(error(b""), CodeObjectError::NotElf { bytes: 0, .. }));
    assert!(matches!(error(b"#!/bin/sh\n"), CodeObjectError::NotElf { bytes: 10, .. }));
    assert!(matches!(error(b"\x7fELF"), CodeObjectError::Unreadable { bytes: 4, .. }));
    assert!(matches!(error(b"\x7fELF\x01"), CodeObjectError::Foreign { field: "EI_CLASS", .. }));
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(matches!(error(&own), CodeObjectError::Foreign { field: "e_machine", found: 62 | 183, .. }));
    let good = Source::axpy().compile();
    let mutate = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        CodeObject::parse(&bytes).unwrap_err()
    };
    assert!(matches!(mutate(4, 1), CodeObjectError::Foreign { field: "EI_CLASS", .. }));
    assert!(matches!(mutate(5, 2), CodeObjectError::Foreign { field: "EI_DATA", .. }));
    assert!(matches!(mutate(7, 0), CodeObjectError::Foreign { field: "EI_OSABI", .. }));
    assert!(matches!(mutate(8, 1), CodeObjectError::AbiVersion { found: 1 }));
    assert!(matches!(mutate(8, 5), CodeObjectError::AbiVersion { found: 5 }));
    assert!(matches!(mutate(16, 1), CodeObjectError::NotLinked { found: 1 }));
    assert!(matches!(mutate(48, 0xff), CodeObjectError::UnknownProcessor { mach: 0xff, .. }));
}

#[test]
fn parse_object_file_says_that_it_must_be_linked() {
    let error = CodeObject::parse(&Source::axpy().flag("-c").compile()).unwrap_err();
    assert!(matches!(error, CodeObjectError::NotLinked { .. }), "{error}");
    assert!(error.to_string().contains("ld.lld"), "{error}");
}

#[test]
fn check_launch_refuses_what_the_kernel_was_not_compiled_for() {
    let object = parse(&Source::axpy().compile());
    let kernel = object.kernel("group").unwrap();
    let check = |grid, workgroup, dynamic| {
        let geometry = Geometry { dynamic_lds_bytes: dynamic, ..Geometry::new(grid, workgroup) };
        kernel.check_launch(&geometry, 0x10000)
    };
    assert_eq!(check([512, 1, 1], [64, 1, 1], 0), Ok(()));
    assert_eq!(check([512, 1, 1], [64, 1, 1], 0x10000 - 1024), Ok(()));
    assert!(matches!(check([512, 1, 1], [64, 1, 1], 0x10000 - 1023), Err(LaunchError::Lds { .. })));
    assert!(matches!(check([512, 1, 1], [64, 1, 1], u32::MAX), Err(LaunchError::Lds { .. })));
    assert!(matches!(check([512, 0, 1], [64, 1, 1], 0), Err(LaunchError::Empty { dimension: 1, .. })));
    assert!(matches!(
        check([512, 32, 1], [64, 32, 1], 0),
        Err(LaunchError::WorkgroupTooLarge { found: 2048, limit: 1024, .. })
    ));
}

#[test]
fn parse_opencl_kernel_has_names_and_a_required_workgroup() {
    let object = parse(&Source::opencl().compile());
    let kernel = object.kernel("scale").unwrap();
    let layout = KernargLayout::new(&kernel.metadata).unwrap();
    let names: Vec<_> = layout.explicit().iter().filter_map(|argument| argument.name.as_deref()).collect();
    assert_eq!(names, ["values", "by", "scratch"]);
    assert_eq!(layout.explicit()[2].kind, ValueKind::DynamicSharedPointer);
    let check = |workgroup| kernel.check_launch(&Geometry::new([64, 64, 1], workgroup), 0x10000);
    assert_eq!(check([16, 4, 1]), Ok(()));
    assert!(matches!(check([4, 16, 1]), Err(LaunchError::WorkgroupRequired { required: [16, 4, 1], .. })));
}
