// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every embedded object is an AMD GPU shared object with both kernels' code and descriptors.

use object::Object;
use object::ObjectSymbol;
use object::read::elf::ElfFile64;
use queues::target::Target;

#[test]
fn embedded_objects_have_the_kernels_for_their_target() {
    let names: Vec<&str> = device_lib::embedded().collect();
    for wanted in ["gfx900", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1103", "gfx1151", "gfx1201"] {
        assert!(names.contains(&wanted), "{wanted} is not among {names:?}");
    }
    for name in names {
        let bytes = device_lib::object_for(name).unwrap();
        let elf: ElfFile64 = ElfFile64::parse(bytes).unwrap();
        let header = elf.elf_header();
        assert_eq!(header.e_machine.get(elf.endian()), 224, "{name}");
        assert_eq!(
            header.e_flags.get(elf.endian()) & 0xff,
            Target::by_name(name).unwrap().elf_mach,
            "{name}"
        );
        let notes = bytes.windows(14).filter(|window| window == b"amdhsa.kernels").count();
        assert_eq!(notes, 1, "{name} has one metadata note");
        for kernel in [device_lib::FILL, device_lib::COPY] {
            let size = |symbol: &str| {
                elf.dynamic_symbols().find(|found| found.name() == Ok(symbol)).map(|found| found.size())
            };
            assert_eq!(size(&format!("{kernel}.kd")), Some(64), "{name}");
            assert!(size(kernel).is_some_and(|bytes| bytes > 0), "{name}");
        }
    }
}
