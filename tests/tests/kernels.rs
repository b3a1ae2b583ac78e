// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels through clang, the loader, a queue and the device, compared with the same computation in Rust.
#![allow(clippy::unwrap_used)]

use stasis::{Arg, Executable, KernargError, Kernel, QueueOptions, Signal, SubmitError};
use stasis_tests::gpu::{Gpu, Numbers, SOON, compile, floats, skip_on_kernel_driver, values};

/// Each check as a test of its own with the kernels by the device compiler, and all of them with those by the newest.
macro_rules! checks {
    ($($check:ident),* $(,)?) => {
        mod by_the_device_compiler {
            $(
                #[test]
                fn $check() {
                    super::$check(&super::Gpu::new());
                }
            )*
        }

        #[test]
        fn checks_hold_with_the_newest_compiler() {
            if skip_on_kernel_driver("its kernels are for the software device's gfx1100") {
                return;
            }
            let gpu = Gpu::with_the_newest_compiler();
            $($check(&gpu);)*
        }
    };
}

checks! {
    axpy_with_a_partial_last_group_is_exact,
    stencil_in_two_dimensions_is_exact,
    gemm_with_lds_tiles_and_barriers_is_exact,
    reduction_sums_every_value_once,
    atomics_of_all_groups_meet_in_memory,
    arguments_of_every_size_arrive,
    raw_kernarg_block_is_taken_without_the_hidden_part,
    hidden_arguments_tell_the_shape_of_the_launch,
    code_objects_of_versions_4_5_and_6_run,
    relocations_find_the_code_objects_own_memory,
    dynamic_lds_has_the_size_of_the_dispatch,
    scratch_is_each_lanes_own,
    kernel_that_asks_for_x_only_gets_nothing_of_y_and_z,
    unloaded_kernel_stays_usable_through_its_own_handle,
}

fn axpy_with_a_partial_last_group_is_exact(gpu: &Gpu) {
    let (x, y) = (floats(1, 10_007), floats(2, 10_007));
    let (on_x, on_y) = (gpu.buffer(&x), gpu.buffer(&y));
    let args = [Arg::Buffer(&on_x), Arg::Buffer(&on_y), Arg::F32(1.5), Arg::U32(10_007)];
    gpu.run(&gpu.kernel("axpy"), [10_007, 1, 1], [256, 1, 1], &args);
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x.mul_add(1.5, *y)).collect();
    assert_eq!(values::<f32>(&on_y), expected);
}

fn stencil_in_two_dimensions_is_exact(gpu: &Gpu) {
    let (width, height) = (130usize, 67usize);
    let from = floats(3, width * height);
    let (on_from, on_to) = (gpu.buffer(&from), gpu.buffer(&vec![0f32; width * height]));
    let args = [Arg::Buffer(&on_from), Arg::Buffer(&on_to), Arg::U32(width as u32), Arg::U32(height as u32)];
    gpu.run(&gpu.kernel("stencil"), [160, 72, 1], [32, 8, 1], &args);
    let mut expected = from.clone();
    for y in 1..height - 1 {
        for x in 1..width - 1 {
            let i = y * width + x;
            expected[i] = 0.25 * ((from[i - 1] + from[i + 1]) + (from[i - width] + from[i + width]));
        }
    }
    assert_eq!(values::<f32>(&on_to), expected);
}

fn gemm_with_lds_tiles_and_barriers_is_exact(gpu: &Gpu) {
    let n = 96usize;
    let (a, b) = (floats(4, n * n), floats(5, n * n));
    let (on_a, on_b, on_c) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&vec![0f32; n * n]));
    let args = [Arg::Buffer(&on_a), Arg::Buffer(&on_b), Arg::Buffer(&on_c), Arg::U32(n as u32)];
    gpu.run(&gpu.kernel("gemm"), [n as u32, n as u32, 1], [16, 16, 1], &args);
    let cell = |i: usize| {
        let (row, column) = (i / n, i % n);
        (0..n).fold(0f32, |sum, k| a[row * n + k].mul_add(b[k * n + column], sum))
    };
    assert_eq!(values::<f32>(&on_c), (0..n * n).map(cell).collect::<Vec<_>>());
}

fn reduction_sums_every_value_once(gpu: &Gpu) {
    let from: Vec<u32> = Numbers(6).take(100_001).collect();
    let (on_from, sum) = (gpu.buffer(&from), gpu.buffer(&[0u32]));
    let args = [Arg::Buffer(&on_from), Arg::Buffer(&sum), Arg::U32(100_001)];
    gpu.run(&gpu.kernel("reduce"), [100_096, 1, 1], [256, 1, 1], &args);
    assert_eq!(values::<u32>(&sum), [from.iter().fold(0u32, |sum, value| sum.wrapping_add(*value))]);
}

fn atomics_of_all_groups_meet_in_memory(gpu: &Gpu) {
    let from: Vec<u32> = Numbers(7).take(8192).collect();
    let on_from = gpu.buffer(&from);
    let (bins, highest) = (gpu.buffer(&[0u32; 16]), gpu.buffer(&[0u32]));
    let (sum, swapped) = (gpu.buffer(&[0u64]), gpu.buffer(&[0u32]));
    let args = [&on_from, &bins, &highest, &sum, &swapped].map(Arg::Buffer);
    gpu.run(&gpu.kernel("atomics"), [8192, 1, 1], [64, 1, 1], &args);
    let mut expected = [0u32; 16];
    from.iter().for_each(|value| expected[*value as usize % 16] += 1);
    assert_eq!(values::<u32>(&bins), expected);
    assert_eq!(values::<u32>(&highest), [*from.iter().max().unwrap()]);
    let add = |sum: u64, value: &u32| sum.wrapping_add(u64::from(*value) << 20);
    assert_eq!(values::<u64>(&sum), [from.iter().fold(0, add)]);
    assert_eq!(values::<u32>(&swapped), [from.iter().fold(0, |all, value| all ^ value)]);
}

fn arguments_of_every_size_arrive(gpu: &Gpu) {
    let out = gpu.buffer(&[0u64; 7]);
    let mixed: Vec<u8> = [100u32, 20, 3, 77].iter().flat_map(|word| word.to_le_bytes()).collect();
    let args = [
        Arg::Buffer(&out),
        Arg::U8(200),
        Arg::U16(60_000),
        Arg::F32(2.5),
        Arg::F64(3.25),
        Arg::Bytes(&mixed),
        Arg::I64(-9),
    ];
    gpu.run(&gpu.kernel("arguments"), [1, 1, 1], [1, 1, 1], &args);
    assert_eq!(values::<u64>(&out), [200, 60_000, 10, 26, 123, 77, (-9i64).cast_unsigned()]);
}

fn raw_kernarg_block_is_taken_without_the_hidden_part(gpu: &Gpu) {
    let counter = gpu.buffer(&[5u32]);
    let kernel = gpu.kernel("increment");
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let block = counter.va().to_le_bytes();
    let dispatch = gpu.queue.dispatch(&kernel).grid([40, 1, 1]).block([8, 1, 1]).raw_kernarg(&block);
    dispatch.completion(&done).submit().unwrap();
    done.wait_done(SOON).unwrap();
    assert_eq!(values::<u32>(&counter), [45]);
    let short = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).raw_kernarg(&block[..7]).submit();
    assert!(matches!(
        short,
        Err(SubmitError::Arguments(KernargError::RawLength { explicit: 8, found: 7, .. }))
    ));
}

fn hidden_arguments_tell_the_shape_of_the_launch(gpu: &Gpu) {
    let out = gpu.buffer(&[u32::MAX; 17]);
    let kernel = gpu.kernel("shape");
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let args = [Arg::Buffer(&out)];
    let dispatch = gpu.queue.dispatch(&kernel).grid([70, 10, 3]).block([32, 4, 2]).args(&args);
    dispatch.dynamic_lds(512).completion(&done).submit().unwrap();
    done.wait_done(SOON).unwrap();
    let found = values::<u32>(&out);
    // The builtin gives a work-item the size of its own workgroup: the first is a whole one.
    assert_eq!(found[..6], [32, 4, 2, 70, 10, 3]);
    assert_eq!(found[6..9], [2, 2, 1], "whole workgroups");
    assert_eq!(found[9..12], [32, 4, 2], "workgroup size");
    assert_eq!(found[12..15], [6, 2, 1], "size of the partial ones");
    assert_eq!(found[15..], [3, 512], "dimensions and dynamic LDS");
}

fn sizes_with(gpu: &Gpu, version: &str) -> Kernel {
    let flag = format!("-mcode-object-version={version}");
    let object = compile("compute.c", gpu.agent.name(), &["-std=c17", &flag]);
    gpu.load(&object).kernel("sizes").expect("the object has the kernel")
}

fn code_objects_of_versions_4_5_and_6_run(gpu: &Gpu) {
    for version in ["4", "5", "6"] {
        let out = gpu.buffer(&[0u32; 6]);
        gpu.run(&sizes_with(gpu, version), [48, 6, 2], [16, 3, 2], &[Arg::Buffer(&out)]);
        assert_eq!(values::<u32>(&out), [16, 3, 2, 48, 6, 2], "code object v{version}");
    }
}

fn relocations_find_the_code_objects_own_memory(gpu: &Gpu) {
    let executable = gpu.load(gpu.compute_object());
    let out = gpu.buffer(&[0u32; 3]);
    let kernel = executable.kernel("globals").unwrap();
    for tally in [100, 101] {
        gpu.run(&kernel, [1, 1, 1], [1, 1, 1], &[Arg::Buffer(&out)]);
        assert_eq!(values::<u32>(&out), [11, 22, tally]);
    }
    assert!(executable.global("tally").is_some());
    assert!(executable.global("nothing").is_none());
}

fn dynamic_lds_has_the_size_of_the_dispatch(gpu: &Gpu) {
    let from: Vec<u32> = Numbers(8).take(640).collect();
    let (on_from, on_to) = (gpu.buffer(&from), gpu.buffer(&vec![0u32; 640]));
    let done = Signal::new(&gpu.runtime, 1).unwrap();
    let (kernel, args) = (gpu.kernel("mirror"), [Arg::Buffer(&on_from), Arg::Buffer(&on_to)]);
    let dispatch = gpu.queue.dispatch(&kernel).grid([640, 1, 1]).block([64, 1, 1]).args(&args);
    dispatch.dynamic_lds(256).completion(&done).submit().unwrap();
    done.wait_done(SOON).unwrap();
    let expected: Vec<u32> = from.chunks(64).flat_map(|group| group.iter().rev()).copied().collect();
    assert_eq!(values::<u32>(&on_to), expected);
}

fn scratch_is_each_lanes_own(gpu: &Gpu) {
    let kernel = gpu.kernel("scratch");
    let from: Vec<u32> = Numbers(9).take(1024).collect();
    let (on_from, on_to) = (gpu.buffer(&from), gpu.buffer(&vec![0u32; 1024]));
    let args = [Arg::Buffer(&on_from), Arg::Buffer(&on_to)];
    let options =
        QueueOptions { scratch_lane_bytes: kernel.metadata().private_bytes, ..QueueOptions::default() };
    let queue = stasis::Queue::create(&gpu.agent, options).unwrap();
    let gpu = Gpu { queue, ..gpu.clone() };
    gpu.run(&kernel, [1024, 1, 1], [64, 1, 1], &args);
    let expected = |value: &u32| {
        let array: Vec<u32> = (0..48u32).map(|k| value.wrapping_add(k * k)).collect();
        let at = |k: u32| array[(value.wrapping_add(k * 7) % 48) as usize];
        (0..48u32).fold(0u32, |sum, k| sum.wrapping_mul(31).wrapping_add(at(k)))
    };
    assert_eq!(values::<u32>(&on_to), from.iter().map(expected).collect::<Vec<_>>());
}

fn kernel_that_asks_for_x_only_gets_nothing_of_y_and_z(gpu: &Gpu) {
    let column = gpu.buffer(&[u32::MAX; 32]);
    // ENABLE_VGPR_WORKITEM_ID is 0: the compiler takes all of v0 for x.
    gpu.run(&gpu.kernel("columns"), [32, 4, 2], [32, 4, 2], &[Arg::Buffer(&column)]);
    assert_eq!(values::<u32>(&column), (0..32).collect::<Vec<u32>>());
}

fn unloaded_kernel_stays_usable_through_its_own_handle(gpu: &Gpu) {
    let executable: Executable = gpu.load(gpu.compute_object());
    let kernel = executable.kernel("increment").unwrap();
    drop(executable);
    let counter = gpu.buffer(&[0u32]);
    gpu.run(&kernel, [3, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [3]);
}
