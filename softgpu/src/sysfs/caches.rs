// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches of a gfx11 GPU as KFD enumerates them (`kfd_topology.c:kfd_fill_cache_non_crat_info`).
//!
//! INVARIANT: level 1 caches are listed kind by kind, walking shader arrays and the CUs in them; levels 2 and 3 once.

use super::model::Chip;

/// `type` bits of a cache.
const DATA: u32 = 1;
const INSTRUCTION: u32 = 2;
const HSACU: u32 = 8;

struct Kind {
    level: u32,
    kib: u32,
    line: u32,
    type_bits: u32,
    /// CUs that share one.
    shared_by: u32,
}

/// First-level caches: vector, scalar instruction, scalar data, and the shader array's GL1.
const LEVEL_1: [Kind; 4] = [
    Kind { level: 1, kib: 32, line: 128, type_bits: DATA | HSACU, shared_by: 1 },
    Kind { level: 1, kib: 32, line: 64, type_bits: INSTRUCTION | HSACU, shared_by: 2 },
    Kind { level: 1, kib: 16, line: 64, type_bits: DATA | HSACU, shared_by: 2 },
    Kind { level: 1, kib: 256, line: 128, type_bits: DATA | HSACU, shared_by: 8 },
];
/// GL2 and the Infinity Cache of Navi 31.
const SHARED: [Kind; 2] = [
    Kind { level: 2, kib: 6144, line: 128, type_bits: DATA | HSACU, shared_by: 8 },
    Kind { level: 3, kib: 98304, line: 64, type_bits: DATA | HSACU, shared_by: 8 },
];
/// Bits KFD prints for each shader array of a sibling map.
const MAP_BITS: u32 = 32;

/// The properties file of every cache, in KFD's order.
pub(super) fn properties(chip: &Chip, simd_id_base: u32) -> Vec<String> {
    let mut files = Vec::new();
    for kind in &LEVEL_1 {
        let mut processor = simd_id_base;
        for _ in 0..chip.shape.array_count {
            for first in (0..chip.cu_per_simd_array).step_by(kind.shared_by as usize) {
                let sharing = kind.shared_by.min(chip.cu_per_simd_array - first);
                files.push(print(kind, processor, &sibling_map(1, sharing)));
                processor += sharing;
            }
        }
    }
    for kind in &SHARED {
        files.push(print(kind, simd_id_base, &sibling_map(chip.shape.array_count, chip.cu_per_simd_array)));
    }
    files
}

/// For each of `arrays`: `ones` bits set, the rest of the word clear.
fn sibling_map(arrays: u32, ones: u32) -> String {
    let bits = (0..arrays).flat_map(|_| (0..MAP_BITS).map(|bit| if bit < ones { "1" } else { "0" }));
    bits.collect::<Vec<_>>().join(",")
}

fn print(kind: &Kind, processor: u32, sibling_map: &str) -> String {
    format!(
        "processor_id_low {processor}\nlevel {}\nsize {}\ncache_line_size {}\ncache_lines_per_tag 0\nassociation 0\n\
         latency 0\ntype {}\nsibling_map {sibling_map}\n",
        kind.level, kind.kib, kind.line, kind.type_bits
    )
}
