// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches of a GPU as KFD enumerates them (`kfd_topology.c:kfd_fill_cache_non_crat_info`).
//!
//! INVARIANT: level 1 caches are listed kind by kind, walking shader arrays and the CUs in them; levels 2 and 3 once.

use queues::cwsr::NodeShape;

use super::chips::Chip;

/// `type` bits of a cache.
const DATA: u32 = 1;
const INSTRUCTION: u32 = 2;
const HSACU: u32 = 8;

/// One kind of cache of a chip.
#[derive(Debug)]
pub(super) struct Kind {
    level: u32,
    kib: u32,
    line: u32,
    type_bits: u32,
    /// CUs that share one.
    shared_by: u32,
}

/// The caches of a chip.
#[derive(Debug)]
pub(super) struct Caches {
    /// Those that some CUs of a shader array share.
    arrays: &'static [Kind],
    /// Those that all CUs share.
    whole: &'static [Kind],
}

/// Sizes of a chip's caches, KiB; 0 for one that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub vector: u32,
    pub instruction: u32,
    pub scalar: u32,
    /// The shader array's.
    pub array: u32,
    pub level2: u32,
    pub level3: u32,
}

impl Caches {
    /// The size of each kind.
    pub(super) fn sizes(&self) -> Sizes {
        // INVARIANT: the kinds of each chip are listed in the order of `Sizes`.
        let of_array = |at: usize| self.arrays.get(at).map_or(0, |kind| kind.kib);
        let of_whole = |at: usize| self.whole.get(at).map_or(0, |kind| kind.kib);
        Sizes {
            vector: of_array(0),
            instruction: of_array(1),
            scalar: of_array(2),
            array: of_array(3),
            level2: of_whole(0),
            level3: of_whole(1),
        }
    }
}

const fn vector(kib: u32, line: u32) -> Kind {
    Kind { level: 1, kib, line, type_bits: DATA | HSACU, shared_by: 1 }
}

const fn instruction(kib: u32, line: u32) -> Kind {
    Kind { level: 1, kib, line, type_bits: INSTRUCTION | HSACU, shared_by: 2 }
}

const fn scalar() -> Kind {
    Kind { level: 1, kib: 16, line: 64, type_bits: DATA | HSACU, shared_by: 2 }
}

/// The shader array's GL1.
const fn gl1(kib: u32) -> Kind {
    Kind { level: 1, kib, line: 128, type_bits: DATA | HSACU, shared_by: u32::MAX }
}

const fn whole(level: u32, kib: u32, line: u32) -> Kind {
    Kind { level, kib, line, type_bits: DATA | HSACU, shared_by: u32::MAX }
}

/// 7900 XTX, from public sysfs dumps: 206 caches, with GL2 and the Infinity Cache.
pub(super) static NAVI31: Caches = Caches {
    arrays: &[vector(32, 128), instruction(32, 64), scalar(), gl1(256)],
    whole: &[whole(2, 6144, 128), whole(3, 98_304, 64)],
};
/// 7800 XT. Inferred: Navi 31's with the product's GL2 and Infinity Cache.
pub(super) static NAVI32: Caches = Caches {
    arrays: &[vector(32, 128), instruction(32, 64), scalar(), gl1(256)],
    whole: &[whole(2, 4096, 128), whole(3, 65_536, 64)],
};
/// 7600. Inferred: as above.
pub(super) static NAVI33: Caches = Caches {
    arrays: &[vector(32, 128), instruction(32, 64), scalar(), gl1(256)],
    whole: &[whole(2, 2048, 128), whole(3, 32_768, 64)],
};
/// R9700. Inferred: gfx12 has no GL1.
pub(super) static NAVI48: Caches = Caches {
    arrays: &[vector(32, 128), instruction(32, 64), scalar()],
    whole: &[whole(2, 8192, 128), whole(3, 65_536, 64)],
};
/// MI210: 217 caches, of which the kernel's table has the sizes.
pub(super) static ALDEBARAN: Caches =
    Caches { arrays: &[vector(16, 64), instruction(32, 64), scalar()], whole: &[whole(2, 8192, 128)] };
/// MI300X: 626 caches by public sysfs dumps; the sizes are inferred.
pub(super) static MI300X: Caches = Caches {
    arrays: &[vector(32, 128), instruction(64, 128), scalar()],
    whole: &[whole(2, 4096, 128), whole(3, 262_144, 64)],
};
/// Bits KFD prints for each shader array of a sibling map.
const MAP_BITS: u32 = 32;

/// The properties file of every cache of a node of this shape, in KFD's order.
pub(super) fn properties(chip: &Chip, shape: &NodeShape, simd_id_base: u32) -> Vec<String> {
    let mut files = Vec::new();
    let active = active_cus(shape);
    for kind in chip.caches.arrays {
        let mut processor = simd_id_base;
        for &cus in &active {
            let group = kind.shared_by.min(cus).max(1);
            for first in (0..cus).step_by(group as usize) {
                let sharing = group.min(cus - first);
                files.push(print(kind, processor, &sibling_map(&[sharing])));
                processor += sharing;
            }
        }
    }
    for kind in chip.caches.whole {
        files.push(print(kind, simd_id_base, &sibling_map(&active)));
    }
    files
}

/// CUs that work in each shader array; where they do not divide evenly, the first arrays have one more (which arrays
/// of a real card are short differs from card to card).
pub(super) fn active_cus(shape: &NodeShape) -> Vec<u32> {
    let (arrays, cus) = (shape.array_count.max(1), shape.simd_count / shape.simd_per_cu.max(1));
    (0..arrays).map(|array| cus / arrays + u32::from(array < cus % arrays)).collect()
}

/// For each array: as many bits set as it has CUs that share the cache, the rest of the word clear.
fn sibling_map(arrays: &[u32]) -> String {
    let bits =
        arrays.iter().flat_map(|&ones| (0..MAP_BITS).map(move |bit| if bit < ones { "1" } else { "0" }));
    bits.collect::<Vec<_>>().join(",")
}

fn print(kind: &Kind, processor: u32, sibling_map: &str) -> String {
    format!(
        "processor_id_low {processor}\nlevel {}\nsize {}\ncache_line_size {}\ncache_lines_per_tag 0\nassociation 0\n\
         latency 0\ntype {}\nsibling_map {sibling_map}\n",
        kind.level, kind.kib, kind.line, kind.type_bits
    )
}
