// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPUs a device specification names, e.g. `gfx1100,gfx1100` or `gfx1100*2`.
//!
//! Chip facts are the 7900 XTX column of the topology reference. INVARIANT: the same specification always gives the
//! same GPUs, down to gpu_id, slot and serial number, so that a checkpoint finds its agents again.

use queues::cwsr::{CwsrGeometry, GeometryError, NodeShape};
use thiserror::Error;

use super::gpu_id::{self, Identity};

/// GPUs one specification may name.
pub const MAX_SPEC_GPUS: usize = 16;

/// Why a device specification is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Nothing named.
    #[error("The device list is empty; name at least one of: {}", known())]
    Empty,
    /// A name nobody knows.
    #[error("Unknown device {name:?}; known are: {}", known())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A count that is no number from 1.
    #[error("Bad count in {item:?}; write NAME*COUNT with COUNT from 1 to {MAX_SPEC_GPUS}")]
    BadCount {
        /// The list item.
        item: String,
    },
    /// Too many.
    #[error("{wanted} devices are listed, at most {MAX_SPEC_GPUS} can be")]
    TooMany {
        /// Devices listed.
        wanted: usize,
    },
    /// The chip table contradicts itself.
    #[error("No context save geometry for {name}")]
    Geometry {
        /// The chip.
        name: &'static str,
        /// Why.
        #[source]
        source: GeometryError,
    },
}

/// What all cards of one chip share.
#[derive(Debug)]
pub(super) struct Chip {
    pub name: &'static str,
    pub shape: NodeShape,
    pub cu_per_simd_array: u32,
    pub max_waves_per_simd: u32,
    pub wave_front_size: u32,
    pub device_id: u32,
    pub subsystem: u32,
    pub vram_bytes: u64,
    pub vram_width: u32,
    pub vram_mhz: u32,
    pub max_engine_mhz: u32,
    pub num_gws: u32,
    pub num_sdma_engines: u32,
    pub num_sdma_xgmi_engines: u32,
    /// Queues of an SDMA engine, those reserved for the kernel's own use included.
    pub sdma_queues_per_engine: u32,
    pub reserved_sdma_queues_per_engine: u32,
    pub num_cp_queues: u32,
    pub fw_version: u32,
    pub sdma_fw_version: u32,
    pub capability: u32,
    pub debug_prop: u32,
    pub gb_addr_config: u32,
}

impl Chip {
    pub fn cu_count(&self) -> u32 {
        self.shape.simd_count / self.shape.simd_per_cu
    }
}

/// Bit 27 of the capability word: the SVM ioctl works.
const CAPABILITY_SVM: u32 = 1 << 27;

/// Every chip the device can be.
static CHIPS: [Chip; 1] = [Chip {
    name: "gfx1100",
    shape: NodeShape {
        gfx_target_version: 110_000,
        simd_count: 192,
        simd_per_cu: 2,
        num_xcc: 1,
        array_count: 12,
        simd_arrays_per_engine: 2,
        lds_size_in_kb: 64,
        cwsr_size: None,
        ctl_stack_size: None,
    },
    cu_per_simd_array: 8,
    max_waves_per_simd: 16,
    wave_front_size: 32,
    device_id: 29772,
    subsystem: 0x0e3b_1002,
    vram_bytes: 25_753_026_560,
    vram_width: 384,
    vram_mhz: 1249,
    max_engine_mhz: 2482,
    num_gws: 64,
    num_sdma_engines: 2,
    num_sdma_xgmi_engines: 0,
    sdma_queues_per_engine: 8,
    reserved_sdma_queues_per_engine: 2,
    num_cp_queues: 8,
    fw_version: 2140,
    sdma_fw_version: 20,
    // A kernel built without HSA_AMD_SVM clears the SVM bit, and the SVM ioctl answers like such a kernel here.
    capability: 671_588_992 & !CAPABILITY_SVM,
    debug_prop: 1495,
    // Inferred: 32 pipes, 32 packers, two compressed fragments. Nothing of a compute client depends on it.
    gb_addr_config: 0x545,
}];

fn known() -> String {
    CHIPS.iter().map(|chip| chip.name).collect::<Vec<_>>().join(", ")
}

/// One GPU of the machine.
#[derive(Clone, Debug)]
pub struct GpuModel {
    pub(super) chip: &'static Chip,
    index: usize,
    gpu_id: u32,
    geometry: CwsrGeometry,
}

impl GpuModel {
    /// The GPUs that `spec` names, in its order.
    ///
    /// # Errors
    /// Every [`SpecError`].
    pub fn parse_spec(spec: &str) -> Result<Vec<Self>, SpecError> {
        let chips = parse(spec)?;
        let mut models: Vec<Self> = Vec::with_capacity(chips.len());
        for (index, chip) in chips.into_iter().enumerate() {
            let geometry = CwsrGeometry::for_node(&chip.shape)
                .map_err(|source| SpecError::Geometry { name: chip.name, source })?;
            let taken: Vec<u32> = models.iter().map(|model| model.gpu_id).collect();
            let mut model = Self { chip, index, gpu_id: 0, geometry };
            model.gpu_id = gpu_id::generate(&model.identity(), &taken);
            models.push(model);
        }
        Ok(models)
    }

    fn identity(&self) -> Identity {
        Identity {
            location_id: self.location_id(),
            domain: 0,
            device_id: self.chip.device_id,
            subsystem: self.chip.subsystem,
            vram_bytes: self.chip.vram_bytes,
            num_xcc: self.chip.shape.num_xcc,
        }
    }

    /// Target name, e.g. `gfx1100`.
    pub fn name(&self) -> &'static str {
        self.chip.name
    }

    /// Position among the GPUs, from 0; its topology node is one more.
    pub fn index(&self) -> usize {
        self.index
    }

    /// KFD's 16-bit id.
    pub fn gpu_id(&self) -> u32 {
        self.gpu_id
    }

    /// Minor of the render node.
    pub fn render_minor(&self) -> u32 {
        // CAST: fewer than MAX_SPEC_GPUS.
        128 + self.index as u32
    }

    /// PCI slot, `bus << 8 | devfn`: every card behind its own bridge, three buses apart.
    pub fn location_id(&self) -> u32 {
        // CAST: as above.
        (3 + 3 * self.index as u32) << 8
    }

    /// Serial number: distinct for each position, the same on every machine.
    pub fn unique_id(&self) -> u64 {
        // CAST: widening. The constant is the golden ratio's, so that neighbours differ in all digits.
        11_673_270_660_693_242_239_u64.wrapping_add((self.index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// VRAM in bytes, all of it visible to the CPU.
    pub fn vram_bytes(&self) -> u64 {
        self.chip.vram_bytes
    }

    /// Whether all VRAM is visible through the BAR; so PCIe peers can reach it too.
    pub fn large_bar(&self) -> bool {
        true
    }

    /// What the context save geometry follows from.
    pub fn shape(&self) -> &NodeShape {
        &self.chip.shape
    }

    /// Sizes of the context save area.
    pub fn geometry(&self) -> &CwsrGeometry {
        &self.geometry
    }

    /// PCIe copy engines.
    pub fn sdma_engines(&self) -> u32 {
        self.chip.num_sdma_engines
    }

    /// Copy engines towards XGMI peers.
    pub fn sdma_xgmi_engines(&self) -> u32 {
        self.chip.num_sdma_xgmi_engines
    }

    /// Numbers of the SDMA queues that processes may have: `queue * engines + engine`, the kernel's own taken out.
    pub fn sdma_queue_ids(&self) -> std::ops::Range<u32> {
        let engines = self.chip.num_sdma_engines;
        engines * self.chip.reserved_sdma_queues_per_engine..engines * self.chip.sdma_queues_per_engine
    }

    /// Whether the chip has global wave sync.
    pub fn has_gws(&self) -> bool {
        self.chip.num_gws != 0
    }

    /// The GB_ADDR_CONFIG register.
    pub fn gb_addr_config(&self) -> u32 {
        self.chip.gb_addr_config
    }
}

/// The canonical form of a specification: every GPU by name, separated by commas.
///
/// # Errors
/// As [`GpuModel::parse_spec`].
pub fn canonical_spec(spec: &str) -> Result<String, SpecError> {
    let names: Vec<_> = parse(spec)?.into_iter().map(|chip| chip.name).collect();
    Ok(names.join(","))
}

fn parse(spec: &str) -> Result<Vec<&'static Chip>, SpecError> {
    let mut chips = Vec::new();
    let mut wanted = 0usize;
    if spec.trim().is_empty() {
        return Err(SpecError::Empty);
    }
    for item in spec.split(',').map(str::trim) {
        let (name, count) = match item.split_once('*') {
            None => (item, 1),
            Some((name, count)) => {
                let count: Option<usize> = count.trim().parse().ok().filter(|count| *count > 0);
                (name.trim(), count.ok_or_else(|| SpecError::BadCount { item: item.to_owned() })?)
            }
        };
        let chip = CHIPS.iter().find(|chip| chip.name == name);
        let chip = chip.ok_or_else(|| SpecError::Unknown { name: name.to_owned() })?;
        wanted = wanted.saturating_add(count);
        if wanted <= MAX_SPEC_GPUS {
            chips.extend(std::iter::repeat_n(chip, count));
        }
    }
    if wanted > MAX_SPEC_GPUS {
        return Err(SpecError::TooMany { wanted });
    }
    Ok(chips)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parse_spec_accepts_lists_and_counts() {
        assert_eq!(GpuModel::parse_spec("gfx1100").unwrap().len(), 1);
        assert_eq!(canonical_spec("gfx1100*2").unwrap(), "gfx1100,gfx1100");
        assert_eq!(canonical_spec(" gfx1100 , gfx1100 * 2 ").unwrap(), "gfx1100,gfx1100,gfx1100");
    }

    #[test]
    fn parse_spec_errors_name_the_culprit_and_the_known() {
        let unknown = GpuModel::parse_spec("gfx1100,gfx9000").unwrap_err().to_string();
        assert_eq!(unknown, "Unknown device \"gfx9000\"; known are: gfx1100");
        assert!(matches!(parse(""), Err(SpecError::Empty)));
        assert!(matches!(parse("gfx1100,"), Err(SpecError::Unknown { name }) if name.is_empty()));
        assert!(matches!(parse("gfx1100*0"), Err(SpecError::BadCount { .. })));
        assert!(matches!(parse("gfx1100*x"), Err(SpecError::BadCount { .. })));
        assert!(matches!(parse("gfx1100*17"), Err(SpecError::TooMany { wanted: 17 })));
        assert!(matches!(parse("gfx1100*99999999999"), Err(SpecError::TooMany { .. })));
    }

    #[test]
    fn gpus_of_one_machine_are_told_apart_and_stay_the_same() {
        let models = GpuModel::parse_spec("gfx1100*16").unwrap();
        let again = GpuModel::parse_spec("gfx1100*16").unwrap();
        for (at, model) in models.iter().enumerate() {
            assert_eq!(model.gpu_id(), again[at].gpu_id());
            assert!(model.gpu_id() > 0 && model.gpu_id() <= 0xffff);
            for other in &models[..at] {
                assert_ne!(model.gpu_id(), other.gpu_id());
                assert_ne!(model.unique_id(), other.unique_id());
                assert_ne!(model.location_id(), other.location_id());
            }
        }
    }

    proptest! {
        #[test]
        fn parse_spec_never_panics(spec in "[gfx1*, 0-9]{0,40}") {
            let _ = GpuModel::parse_spec(&spec);
        }
    }
}
