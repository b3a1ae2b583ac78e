// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects, arguments and launches that are wrong: each refused before anything happens, with the numbers.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use stasis::{Arg, CodeObjectError, Executable, KernargError, LaunchError, LoadError, SubmitError};
use stasis_tests::gpu::{Gpu, compile, compute_object, open, values};

fn load_error(object: &[u8]) -> CodeObjectError {
    let agent = open().agent(0).unwrap();
    match Executable::load(&agent, object) {
        Err(LoadError::CodeObject(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn other_target() -> &'static str {
    if open().agent(0).unwrap().name() == "gfx942" { "gfx1100" } else { "gfx942" }
}

#[test]
fn file_that_is_no_elf_is_refused_with_its_first_bytes() {
    let error = load_error(b"not a code object at all");
    assert!(matches!(error, CodeObjectError::NotElf { bytes: 24, .. }), "{error}");
    assert!(error.to_string().contains("[6e, 6f, 74, 20]"), "{error}");
}

#[test]
fn empty_file_is_refused() {
    assert!(matches!(load_error(b""), CodeObjectError::NotElf { bytes: 0, .. }));
}

#[test]
fn truncated_elf_is_refused_with_its_length() {
    let whole = compute_object(open().agent(0).unwrap().name());
    for length in [5, 63, 64, 200, whole.len() / 2, whole.len() - 1] {
        let error = load_error(&whole[..length]);
        let text = error.to_string();
        assert!(text.contains(&format!("{length} bytes")) || text.contains("outside"), "{length}: {text}");
    }
}

#[test]
fn damaged_elf_never_panics_and_leaves_the_device_usable() {
    let gpu = Gpu::new();
    let whole = compute_object(gpu.agent.name());
    let before = gpu.agent.vram_available().unwrap();
    proptest!(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() },
        |(at in 0..whole.len().min(6000), byte: u8, cut in 0..whole.len())| {
        let mut object = whole.to_vec();
        object[at] = byte;
        if byte & 3 == 0 {
            object.truncate(cut);
        }
        drop(Executable::load(&gpu.agent, &object));
    });
    assert_eq!(gpu.agent.vram_available().unwrap(), before, "a refused load left memory behind");
}

#[test]
fn elf_for_the_host_is_refused_as_foreign() {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let error = load_error(&own);
    assert!(matches!(error, CodeObjectError::Foreign { .. }), "{error}");
}

#[test]
fn unlinked_object_is_refused_with_what_to_do() {
    let agent = open().agent(0).unwrap();
    let object = compile("compute.c", agent.name(), &["-std=c17", "-c"]);
    let error = load_error(&object);
    assert!(
        matches!(error, CodeObjectError::NotLinked { found: 1 }) && error.to_string().contains("ld.lld"),
        "{error}"
    );
}

#[test]
fn kernel_for_another_target_is_refused_with_both_names() {
    let agent = open().agent(0).unwrap();
    let error = load_error(compute_object(other_target()));
    let CodeObjectError::WrongTarget { object, agent: here } = &error else { panic!("{error}") };
    assert!(object.contains(other_target()) && here == agent.name(), "{error}");
    assert!(error.to_string().contains(&format!("-mcpu={}", agent.name())), "{error}");
}

#[test]
fn kernel_that_is_not_there_is_answered_with_those_that_are() {
    let gpu = Gpu::new();
    let error = gpu.load(compute_object(gpu.agent.name())).kernel("nothing").unwrap_err();
    let LoadError::CodeObject(CodeObjectError::NoSuchKernel { name, known }) = &error else {
        panic!("{error}")
    };
    assert!(name == "nothing" && known.iter().any(|kernel| kernel == "axpy"), "{error}");
}

#[test]
fn wrong_number_of_arguments_is_refused_with_both_counts() {
    let gpu = Gpu::new();
    let (kernel, buffer) = (gpu.kernel("axpy"), gpu.buffer(&[0f32; 4]));
    for count in [0, 1, 3] {
        let args = vec![Arg::Buffer(&buffer); count];
        let error = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).submit().unwrap_err();
        let SubmitError::Arguments(KernargError::Count { expected: 4, found, .. }) = &error else {
            panic!("{error}")
        };
        assert!(*found == count && error.to_string().contains("axpy"), "{error}");
    }
    assert_eq!(gpu.queue.write_index().unwrap(), 0, "a refused dispatch took a packet");
}

#[test]
fn argument_of_another_size_is_refused_with_index_and_sizes() {
    let gpu = Gpu::new();
    let (kernel, buffer) = (gpu.kernel("axpy"), gpu.buffer(&[0f32; 4]));
    let args = [Arg::Buffer(&buffer), Arg::Buffer(&buffer), Arg::F64(1.0), Arg::U32(4)];
    let error = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).submit().unwrap_err();
    assert!(
        matches!(&error, SubmitError::Arguments(KernargError::Size { index: 2, expected: 4, found: 8, .. })),
        "{error}"
    );
}

#[test]
fn workgroup_above_the_kernels_limit_is_refused_with_both() {
    let gpu = Gpu::new();
    let object = compile("limited.cl", gpu.agent.name(), &["-x", "cl"]);
    let executable = gpu.load(&object);
    let (small, exact) = (executable.kernel("small").unwrap(), executable.kernel("exact").unwrap());
    let out = gpu.buffer(&[0u32; 256]);
    let args = [Arg::Buffer(&out)];
    let submit = |kernel, block: [u16; 3]| {
        gpu.queue.dispatch(kernel).grid(block.map(u32::from)).block(block).args(&args).submit()
    };
    let error = submit(&small, [129, 1, 1]).unwrap_err();
    let SubmitError::Launch(LaunchError::WorkgroupTooLarge { found: 129, limit: 128, .. }) = &error else {
        panic!("{error}")
    };
    let error = submit(&exact, [64, 1, 1]).unwrap_err();
    let SubmitError::Launch(LaunchError::WorkgroupRequired { required: [32, 2, 1], .. }) = &error else {
        panic!("{error}")
    };
    gpu.run(&small, [128, 1, 1], [128, 1, 1], &args);
    gpu.run(&exact, [32, 2, 1], [32, 2, 1], &args);
    assert_eq!(values::<u32>(&out)[..129].iter().sum::<u32>(), 128);
}

#[test]
fn launch_without_work_items_is_refused() {
    let gpu = Gpu::new();
    let (kernel, buffer) = (gpu.kernel("increment"), gpu.buffer(&[0u32]));
    let args = [Arg::Buffer(&buffer)];
    let dispatch = || gpu.queue.dispatch(&kernel).args(&args);
    assert!(matches!(dispatch().submit(), Err(SubmitError::NoGrid { .. })));
    let empty = dispatch().grid([4, 0, 1]).submit();
    assert!(matches!(empty, Err(SubmitError::Launch(LaunchError::Empty { dimension: 1, grid: 0, .. }))));
    let empty = dispatch().grid([4, 1, 1]).block([0, 1, 1]).submit();
    assert!(matches!(empty, Err(SubmitError::Launch(LaunchError::Empty { dimension: 0, workgroup: 0, .. }))));
}

#[test]
fn lds_above_64_kib_is_refused_and_64_kib_runs() {
    let gpu = Gpu::new();
    let from = gpu.buffer(&[3u32; 64]);
    let to = gpu.buffer(&[0u32; 64]);
    let (kernel, args) = (gpu.kernel("mirror"), [Arg::Buffer(&from), Arg::Buffer(&to)]);
    let dispatch = |bytes| {
        gpu.queue.dispatch(&kernel).grid([64, 1, 1]).block([64, 1, 1]).args(&args).dynamic_lds(bytes).submit()
    };
    let error = dispatch(65_537).unwrap_err();
    assert!(
        matches!(
            &error,
            SubmitError::Launch(LaunchError::Lds { fixed: 0, dynamic: 65_537, limit: 65_536, .. })
        ),
        "{error}"
    );
    assert!(matches!(dispatch(u32::MAX), Err(SubmitError::Launch(LaunchError::Lds { .. }))));
    dispatch(65_536).unwrap();
    gpu.queue.wait_idle(stasis_tests::gpu::SOON).unwrap();
    assert_eq!(values::<u32>(&to), [3; 64]);
    // The size that is compiled into the kernel counts.
    let gemm = gpu.kernel("gemm");
    let args = [Arg::Buffer(&from), Arg::Buffer(&from), Arg::Buffer(&to), Arg::U32(16)];
    let both = gpu.queue.dispatch(&gemm).grid([16, 16, 1]).block([16, 16, 1]).args(&args).dynamic_lds(65_000);
    let error = both.submit().unwrap_err();
    assert!(
        matches!(error, SubmitError::Launch(LaunchError::Lds { fixed: 2048, dynamic: 65_000, .. })),
        "{error}"
    );
}

#[test]
fn arguments_that_do_not_fit_the_queues_slots_are_refused() {
    let gpu = Gpu::new();
    let options = stasis::QueueOptions { kernarg_slot_bytes: 64, ..stasis::QueueOptions::default() };
    let queue = stasis::Queue::create(&gpu.agent, options).unwrap();
    let (kernel, out) = (gpu.kernel("shape"), gpu.buffer(&[0u32; 17]));
    let error = queue.dispatch(&kernel).grid([1, 1, 1]).args(&[Arg::Buffer(&out)]).submit().unwrap_err();
    assert!(matches!(error, SubmitError::KernargSlot { slot: 64, .. }), "{error}");
}
