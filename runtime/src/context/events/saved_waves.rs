// SPDX-License-Identifier: MIT OR Apache-2.0
//! The waves in a stopped queue's save area, of all XCCs.
//!
//! INVARIANT: all waves are known, or none: a queue is blamed or cleared only by somebody who saw every wave of it.
//!
//! Each XCC has an area of its own, `ctx_save_restore_size` bytes behind that of the one before, with a header that the
//! driver fills in; the numbers that its answer has are those of XCC 0 (`kfd_mqd_manager_v9.c`:
//! `get_wave_state_v9_4_3`).

use kfd::ioctl::WaveStateSizes;
use queues::cwsr::{CwsrGeometry, HEADER_BYTES};
use queues::save_area::{SaveAreaHeader, Standing, read_standings};
use queues::target::Target;
use queues::words::{count, size};

use crate::context::queue::fault::WavesUnread;

/// Reads where the waves of a queue stand. `read` copies bytes of the save area, which has those of the geometry.
///
/// # Errors
/// [`WavesUnread::Header`], [`WavesUnread::Area`].
pub(super) fn read_save_area(
    target: &Target,
    geometry: &CwsrGeometry,
    sizes: WaveStateSizes,
    read: impl Fn(u64, &mut [u8]),
) -> Result<Vec<Standing>, WavesUnread> {
    let mut waves = Vec::new();
    for xcc in 0..geometry.num_xcc {
        let Some(offset) = geometry.area_offset(xcc) else { break };
        let mut header = [0; HEADER_BYTES];
        read(offset, &mut header);
        let state = SaveAreaHeader::from_bytes(&header).wave_state;
        let (found, told) = (
            [state.control_stack_size, state.wave_state_size],
            [sizes.control_stack_bytes, sizes.wave_state_bytes],
        );
        if xcc == 0 && found != told {
            return Err(WavesUnread::Header { found, told });
        }
        // The records end at the offset, behind everything else; an offset outside the area is found by the reader.
        let used = state.wave_state_offset.min(geometry.save_bytes).max(count(HEADER_BYTES));
        let mut area = vec![0; size(u64::from(used))];
        read(offset, &mut area);
        let standings = read_standings(target, &area).map_err(|reason| WavesUnread::Area { xcc, reason })?;
        waves.extend(standings);
    }
    Ok(waves)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use queues::cwsr::NodeShape;
    use queues::save_area::{SaveAreaError, WaveRecord, write_waves};
    use queues::target::TARGETS;

    use super::*;

    /// A chip with two XCCs.
    fn two_xccs() -> CwsrGeometry {
        CwsrGeometry { num_xcc: 2, control_stack_bytes: 4096, save_bytes: 65_536, ..geometry() }
    }

    fn geometry() -> CwsrGeometry {
        let node = NodeShape {
            gfx_target_version: 110_000,
            simd_count: 4,
            simd_per_cu: 2,
            num_xcc: 1,
            array_count: 2,
            simd_arrays_per_engine: 2,
            lds_size_in_kb: 64,
            ..NodeShape::default()
        };
        CwsrGeometry::for_node(&node).unwrap()
    }

    fn wave(pc: u64) -> WaveRecord {
        WaveRecord { trapsts: 1 << 8, ..WaveRecord::alone(pc) }
    }

    /// A save area with these waves in its XCCs, and what the driver says of it: the sizes of XCC 0.
    fn saved(geometry: &CwsrGeometry, xccs: &[&[WaveRecord]]) -> (Vec<u8>, WaveStateSizes) {
        let stride = size(u64::from(geometry.save_bytes));
        let mut memory = vec![0; stride * xccs.len()];
        let states: Vec<_> = (memory.chunks_exact_mut(stride).zip(xccs))
            .map(|(area, waves)| {
                write_waves(area, geometry.control_stack_bytes, geometry.save_bytes, waves).unwrap()
            })
            .collect();
        let sizes = WaveStateSizes {
            control_stack_bytes: states[0].control_stack_size,
            wave_state_bytes: states[0].wave_state_size,
        };
        (memory, sizes)
    }

    fn gfx1100() -> &'static Target {
        Target::by_name("gfx1100").unwrap()
    }

    fn read(
        geometry: &CwsrGeometry,
        sizes: WaveStateSizes,
        memory: &[u8],
    ) -> Result<Vec<Standing>, WavesUnread> {
        read_save_area(gfx1100(), geometry, sizes, |offset, to| {
            to.copy_from_slice(&memory[size(offset)..size(offset) + to.len()]);
        })
    }

    #[test]
    fn waves_of_every_xcc_are_read_at_its_stride() {
        let geometry = two_xccs();
        let (memory, sizes) = saved(&geometry, &[&[wave(0x100)], &[wave(0x200), wave(0x300), wave(0x400)]]);
        let pcs: Vec<u64> =
            read(&geometry, sizes, &memory).unwrap().iter().map(|standing| standing.pc).collect();
        assert_eq!(pcs, [0x100, 0x200, 0x300, 0x400]);
        let (memory, sizes) = saved(&geometry, &[&[], &[wave(0x500)]]);
        assert_eq!(read(&geometry, sizes, &memory).unwrap()[0].pc, 0x500, "XCC 0 has none");
    }

    #[test]
    fn one_unreadable_xcc_leaves_no_wave_known() {
        let geometry = two_xccs();
        let (mut memory, sizes) = saved(&geometry, &[&[wave(0x100)], &[wave(0x200)]]);
        let second = size(u64::from(geometry.save_bytes));
        memory[second + 8] += 4;
        let refused = read(&geometry, sizes, &memory).unwrap_err();
        let WavesUnread::Area { xcc: 1, reason: SaveAreaError::WaveArea { .. } } = refused else {
            panic!("{refused:?}")
        };
    }

    #[test]
    fn header_that_is_not_what_the_driver_says_is_not_believed() {
        let geometry = two_xccs();
        let (memory, sizes) = saved(&geometry, &[&[wave(0x100)], &[]]);
        let told = WaveStateSizes { wave_state_bytes: sizes.wave_state_bytes + 4, ..sizes };
        assert_eq!(
            read(&geometry, told, &memory),
            Err(WavesUnread::Header {
                found: [sizes.control_stack_bytes, sizes.wave_state_bytes],
                told: [told.control_stack_bytes, told.wave_state_bytes],
            })
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_headers_never_panic(
            target in prop::sample::select(TARGETS.iter().collect::<Vec<_>>()),
            headers in any::<[[u32; 4]; 2]>(),
            near in any::<bool>(),
            fill in any::<u8>(),
        ) {
            let geometry = two_xccs();
            let stride = size(u64::from(geometry.save_bytes));
            let mut memory = vec![fill; 2 * stride];
            let headers = headers.map(|words| words.map(|word| if near { word % 70_000 } else { word }));
            for (area, words) in memory.chunks_exact_mut(stride).zip(headers) {
                for (bytes, word) in area.chunks_exact_mut(4).zip(words) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
            }
            let [_, control_stack_bytes, _, wave_state_bytes] = headers[0];
            let sizes = WaveStateSizes { control_stack_bytes, wave_state_bytes };
            let _ = read_save_area(target, &geometry, sizes, |offset, to| {
                to.copy_from_slice(&memory[size(offset)..size(offset) + to.len()]);
            });
        }
    }
}
