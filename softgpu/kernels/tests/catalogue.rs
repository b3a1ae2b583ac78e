// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every kernel of the catalogue on the software GPU, with waves of 32 and of 64 lanes, interpreted and as generated code,
//! against the host's build of it.

use std::collections::BTreeSet;

use softgpu_kernels::{Device, Engine, Host, WaveSize, case, cases};

/// Runs one case on the GPU and on the host.
fn check(name: &str, size: WaveSize) {
    let case = case(name).unwrap_or_else(|| panic!("no case {name}"));
    let problem = (case.problem)(size);
    let want = Host::new(size).expect("host library").run(&problem).expect("host run");
    for engine in [softgpu_waves::Engine::Interp, softgpu_waves::Engine::Jit, softgpu_waves::Engine::Quick] {
        let device = Device::with_engine(size, 2, engine).expect("device");
        let got = Engine::run(&device, &problem).unwrap_or_else(|e| panic!("{name}, {engine:?}: {e}"));
        problem.compare(&got, &want).unwrap_or_else(|e| panic!("{engine:?}: {e}"));
    }
}

/// A test for each kernel and wave size.
macro_rules! kernels {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn wave32() {
                crate::check(stringify!($name), crate::WaveSize::W32);
            }
            #[test]
            fn wave64() {
                crate::check(stringify!($name), crate::WaveSize::W64);
            }
        })*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

kernels! {
    gemm_naive gemm_lds gemm_4x4 gemm_8x8 gemm_dot4 gemm_dot2 dot_products
    softmax layernorm activations rope attention conv2d
    reduce_dpp argmax_bpermute reduce_lds lane_exchanges histogram transpose scan scan_lds bitonic_sort gather_scatter
    compact
    atomics_global_32_own atomics_global_64_own atomics_flat_32_own atomics_flat_64_own atomics_lds_32_own
    atomics_lds_64_own atomics_global_32_shared atomics_global_64_shared atomics_flat_32_shared atomics_flat_64_shared
    atomics_lds_32_shared atomics_lds_64_shared atomics_float_own atomics_float_shared atomics_csub spin_lock
    hash int32 int64 bits bytes_and_shorts packed_shorts saturating byte_instructions
    float32 float32_finite transcendental float64 float16 float16_near packed_halves quantise
    mandelbrot collatz nested_loops early_end private_array forced_spills recursion function_table stack_arguments
    flat_addresses shape extremes write_lanes memory_widths uniform rounding_modes denormal_modes register_index
    gemm_wmma_f16 gemm_wmma_bf16 gemm_wmma_iu8 gemm_wmma_iu4 gemm_wmma_f16_f16 gemm_wmma_bf16_bf16
}

#[test]
fn every_case_is_tested_and_every_kernel_has_a_case() {
    let cases: BTreeSet<&str> = cases().map(|case| case.name).collect();
    assert_eq!(TESTED.iter().copied().collect::<BTreeSet<_>>(), cases);
    let device = Device::new(WaveSize::W32, 1).expect("device");
    assert_eq!(device.kernels().collect::<BTreeSet<_>>(), cases);
}
