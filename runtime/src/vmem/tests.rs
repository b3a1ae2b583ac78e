// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is refused, what is left of a refusal, and that every call of the driver may be refused once.

use kfd::Errno;

use super::*;
use crate::PoolKind;
use crate::context::registry::state::BoUse;
use crate::testing::faulty::{self, Holdings};
use crate::testing::runtime;

#[test]
fn requests_that_cannot_be_are_refused_with_their_numbers() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let (range, memory) =
        (runtime.reserve(10 * PAGE - 7, 0).unwrap(), agent.vram().physical(3 * PAGE - 1).unwrap());
    assert_eq!((range.len(), memory.len(), range.is_empty()), (10 * PAGE, 3 * PAGE, false));
    assert!(matches!(runtime.reserve(PAGE, 3), Err(VmemError::Alignment { align: 3 })));
    assert!(matches!(runtime.reserve(0, 0), Err(VmemError::Reserve(_))));
    assert!(matches!(runtime.reserve(1 << 50, 0), Err(VmemError::Reserve(_))));
    assert!(runtime.reserve(PAGE, 1 << 30).unwrap().va().is_multiple_of(1 << 30));
    let text = |offset, from, bytes| range.map(offset, &memory, from, bytes).unwrap_err().to_string();
    assert_eq!(text(1, 0, PAGE), "The offset 0x1 is not a multiple of the page of 4096 bytes");
    assert_eq!(text(0, 8, PAGE), "The memory offset 0x8 is not a multiple of the page of 4096 bytes");
    assert_eq!(text(0, 0, PAGE + 1), "The length 0x1001 is not a multiple of the page of 4096 bytes");
    assert_eq!(text(0, 0, 0), "Nothing of 0 bytes can be mapped or given access to");
    assert!(text(9 * PAGE, 0, 2 * PAGE).starts_with("Bytes 0x9000+0x2000 are outside range"));
    assert!(text(u64::MAX - PAGE + 1, 0, PAGE).contains("outside range"));
    assert!(text(0, 2 * PAGE, 2 * PAGE).starts_with("Bytes 0x2000+0x2000 are outside memory"));
    range.map(4 * PAGE, &memory, 0, 2 * PAGE).unwrap();
    let error = range.map(3 * PAGE, &memory, 0, 3 * PAGE).unwrap_err();
    let overlap = matches!(error, VmemError::Overlap { taken_offset: 0x4000, taken_bytes: 0x2000, .. });
    assert!(overlap, "{error}");
    let error = range.unmap(4 * PAGE, 3 * PAGE).unwrap_err();
    assert!(matches!(error, VmemError::NotMapped { offset: 0x6000, .. }), "{error}");
    let error = range.set_access(3 * PAGE, PAGE, &[(&agent, Access::Read)]).unwrap_err();
    assert!(matches!(error, VmemError::NotMapped { offset: 0x3000, .. }), "{error}");
    assert_eq!((range.mappings().len(), kernel.parts()), (1, (0, 0)));
    let (other, _) = crate::testing::runtime(1);
    let foreign = other.agent(0).unwrap();
    assert!(matches!(
        range.set_access(4 * PAGE, PAGE, &[(&foreign, Access::Read)]),
        Err(VmemError::Foreign { what: "agent" })
    ));
    let foreign = other.gtt().physical(PAGE).unwrap();
    assert!(matches!(range.map(0, &foreign, 0, PAGE), Err(VmemError::Foreign { what: "memory" })));
}

#[test]
fn mapped_memory_and_mapped_ranges_are_not_freed() {
    let (runtime, kernel) = runtime(1);
    let agent = runtime.agent(0).unwrap();
    let begin = kernel.counts().0;
    let (range, memory) = (runtime.reserve(1 << 20, 0).unwrap(), agent.vram().physical(PAGE).unwrap());
    let mapping = range.map(0, &memory, 0, PAGE).unwrap();
    range.set_access(0, PAGE, &[(&agent, Access::ReadWrite)]).unwrap();
    for error in [range.free().unwrap_err(), memory.free().unwrap_err()] {
        assert!(
            matches!(error, FreeError::InUse { user: BoUse::Mapping(key), .. } if key == mapping.key),
            "{error}"
        );
    }
    assert!(memory.is_alive() && range.buffer().is_alive());
    assert!(matches!(range.buffer().allow(&agent), Err(crate::AllocError::Range { .. })));
    // The last handle does not end the mapping; the mapping's end ends the memory.
    drop(memory);
    assert_eq!((kernel.counts().0, kernel.parts()), (begin + 1, (1, 1)));
    let clone = range.clone();
    drop(range);
    assert_eq!(kernel.parts(), (1, 1));
    drop(clone);
    assert_eq!((kernel.counts().0, kernel.parts()), (begin, (0, 0)));
    assert_eq!(runtime.memory_stats().reserved, 0);
}

#[test]
fn driver_that_cannot_map_parts_is_named() {
    let transport = crate::testing::TestTransport::new(1);
    let kernel = std::sync::Arc::clone(&transport.kernel);
    kernel.set_version(Some((1, 14)));
    let runtime = Runtime::from_context(&crate::context::open::open(transport, None).unwrap());
    let agent = runtime.agent(0).unwrap();
    let (range, memory) = (runtime.reserve(PAGE, 0).unwrap(), runtime.gtt().physical(PAGE).unwrap());
    range.map(0, &memory, 0, PAGE).unwrap();
    range.write(0, b"the CPU needs no driver").unwrap();
    let error = range.set_access(0, PAGE, &[(&agent, Access::Read)]).unwrap_err();
    let text = crate::explain(&error);
    assert!(text.contains("interface 1.14 has no mappings by parts: it came with 1.15"), "{text}");
    assert_eq!((range.mappings()[0].access.len(), kernel.parts()), (0, (0, 0)));
}

#[test]
fn one_handle_serves_all_mappings_of_a_memory_on_an_agent() {
    let (runtime, kernel) = runtime(2);
    let (first, second) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let (range, memory) = (runtime.reserve(1 << 20, 0).unwrap(), runtime.gtt().physical(8 * PAGE).unwrap());
    for at in [0, 16, 32] {
        range.map(at * PAGE, &memory, 0, 8 * PAGE).unwrap();
        let both = [(&first, Access::ReadWrite), (&second, Access::Read)];
        range.set_access(at * PAGE, 8 * PAGE, &both).unwrap();
    }
    assert_eq!(kernel.parts(), (2, 6));
    range.unmap(2 * PAGE, 4 * PAGE).unwrap();
    assert_eq!(kernel.parts(), (2, 8));
    range.set_access(16 * PAGE, 8 * PAGE, &[(&second, Access::None)]).unwrap();
    assert_eq!(kernel.parts(), (2, 7));
    for (at, pages) in [(0, 2), (6, 2), (16, 8)] {
        range.unmap(at * PAGE, pages * PAGE).unwrap();
    }
    assert_eq!(kernel.parts(), (2, 2));
    range.unmap(32 * PAGE, 8 * PAGE).unwrap();
    assert_eq!(kernel.parts(), (0, 0));
    memory.free().unwrap();
}

#[test]
fn another_agents_memory_is_refused_by_name_where_there_is_no_link() {
    let transport = crate::testing::TestTransport::new(2);
    transport.sysfs.remove("nodes/1/p2p_links");
    transport.sysfs.remove("nodes/2/p2p_links");
    let kernel = std::sync::Arc::clone(&transport.kernel);
    let runtime = Runtime::from_context(&crate::context::open::open(transport, None).unwrap());
    let (first, second) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let range = runtime.reserve(1 << 20, 0).unwrap();
    for kind in [PoolKind::Vram, PoolKind::FineVram] {
        let pool = first.pools().into_iter().find(|pool| pool.kind() == kind).unwrap();
        let memory = pool.physical(2 * PAGE).unwrap();
        range.map(0, &memory, 0, 2 * PAGE).unwrap();
        let calls = kernel.calls();
        let error =
            range.set_access(PAGE, PAGE, &[(&first, Access::Read), (&second, Access::Read)]).unwrap_err();
        let VmemError::NoPath { agent, owner, memory: named } = &error else { panic!("{error}") };
        assert!(agent.contains(second.uuid()) && owner.contains(first.uuid()), "{error}");
        assert_eq!((*named, kernel.calls(), range.mappings().len()), (memory.key(), calls, 1));
        range.set_access(0, PAGE, &[(&first, Access::Read), (&second, Access::None)]).unwrap();
        range.unmap(0, 2 * PAGE).unwrap();
    }
    let host = runtime.gtt().physical(PAGE).unwrap();
    range.map(0, &host, 0, PAGE).unwrap();
    range.set_access(0, PAGE, &[(&first, Access::Read), (&second, Access::Read)]).unwrap();
}

#[test]
fn every_call_of_the_driver_can_be_refused_once() {
    let (runtime, kernel, faults) = faulty::runtime(2);
    let (first, second) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let (begin, mut refused, mut rounds) = (Holdings::of(&kernel), 0, 0);
    for n in 0.. {
        faults.arm(n, Errno::EIO);
        let mut attempt =
            |what: &str, act: &dyn Fn() -> Result<(), VmemError>, look: &dyn Fn() -> Vec<Mapping>| {
                let (before, parts) = (look(), kernel.parts());
                if let Err(error) = act() {
                    let call = faults.taken().unwrap_or_else(|| panic!("{what}: {error}"));
                    let same = |a: &[Mapping], b: &[Mapping]| {
                        // A cut is no difference.
                        let pages = |all: &[Mapping]| {
                            let page = |m: &Mapping| {
                                let pages = 0..m.bytes / PAGE;
                                let m = m.clone();
                                pages.map(move |n| {
                                    (m.offset + n * PAGE, m.memory_offset + n * PAGE, m.access.clone())
                                })
                            };
                            all.iter().flat_map(page).collect::<Vec<_>>()
                        };
                        pages(a) == pages(b)
                    };
                    assert!(same(&before, &look()), "{what}, refused {call}: {:?} and {before:?}", look());
                    let cuts = look().len() - before.len();
                    assert!(kernel.parts().1 <= parts.1 + 2 * cuts, "{what}, refused {call}");
                    refused += 1;
                    act().unwrap_or_else(|error| panic!("{what} after {call}: {error}"));
                }
            };
        let range = runtime.reserve(1 << 20, 0).unwrap();
        faults.disarm();
        let memory = runtime.gtt().physical(8 * PAGE).unwrap();
        faults.arm(n, Errno::EIO);
        let look = || range.mappings();
        attempt("map", &|| range.map(0, &memory, 0, 8 * PAGE).map(drop), &look);
        let both = [(&first, Access::ReadWrite), (&second, Access::Read)];
        attempt("access", &|| range.set_access(0, 8 * PAGE, &both), &look);
        let other = [(&first, Access::Read), (&second, Access::None)];
        attempt("other access", &|| range.set_access(2 * PAGE, 3 * PAGE, &other), &look);
        attempt("unmap", &|| range.unmap(4 * PAGE, PAGE), &look);
        let struck = faults.taken().is_some();
        faults.disarm();
        range.unmap(0, 4 * PAGE).unwrap();
        range.unmap(5 * PAGE, 3 * PAGE).unwrap();
        drop((range, memory));
        assert_eq!((Holdings::of(&kernel), kernel.parts()), (begin.clone(), (0, 0)), "round {n}");
        rounds = n;
        if !struck {
            break;
        }
    }
    assert!(rounds > 8 && refused > rounds / 2, "{refused} of {rounds}");
}
