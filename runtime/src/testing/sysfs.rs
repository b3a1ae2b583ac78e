// SPDX-License-Identifier: MIT OR Apache-2.0
//! The topology of a machine with a CPU and some 7900 XTX.

use std::io;

use kfd::topology::SysfsSource;

#[derive(Debug)]
pub(super) struct FakeSysfs {
    pub gpus: u32,
}

/// KFD's id of the n-th GPU.
pub(super) fn gpu_id(n: u32) -> u32 {
    0x1100 + n
}

impl SysfsSource for FakeSysfs {
    fn read(&self, path: &str) -> io::Result<String> {
        let text = match path.split('/').collect::<Vec<_>>()[..] {
            ["generation_id"] => "2\n".to_owned(),
            ["nodes", "0", "gpu_id"] => "0\n".to_owned(),
            ["nodes", n, "gpu_id"] => format!("{}\n", gpu_id(n.parse::<u32>().unwrap() - 1)),
            ["nodes", _, "name"] => "ip discovery\n".to_owned(),
            ["nodes", "0", "properties"] => "cpu_cores_count 2\nsimd_count 0\n".to_owned(),
            ["nodes", n, "properties"] => {
                let n: u32 = n.parse().unwrap();
                format!(
                    "simd_count 192\nmem_banks_count 1\nmax_waves_per_simd 16\nlds_size_in_kb 64\n\
                     wave_front_size 32\narray_count 12\nsimd_arrays_per_engine 2\ncu_per_simd_array 8\n\
                     simd_per_cu 2\ngfx_target_version 110000\ndrm_render_minor {}\ncwsr_size 46047232\n\
                     ctl_stack_size 40960\ncapability 671588992\nunique_id {}\nnum_xcc 1\n\
                     num_sdma_engines 2\nnum_sdma_queues_per_engine 8\n",
                    127 + n,
                    0xa1b2_0000_0000_0000u64 + u64::from(n)
                )
            }
            ["nodes", _, "mem_banks", "0", "properties"] => {
                "heap_type 1\nsize_in_bytes 25753026560\nflags 0\nwidth 384\nmem_clk_max 1249\n".to_owned()
            }
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(text)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        match path {
            "nodes" => Ok((0..=self.gpus).map(|n| n.to_string()).collect()),
            _ if path.ends_with("mem_banks") && !path.starts_with("nodes/0/") => Ok(vec!["0".to_owned()]),
            _ => Ok(Vec::new()),
        }
    }
}
