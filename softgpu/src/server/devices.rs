// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device list of one softgpud instance, and what all its processes share of it.
//!
//! Invariant: broker and executors parse the same text, so they agree on every number of every GPU.

use queues::target::Target;

use super::error::ServeError;
use crate::driver::Ledger;
use crate::driver::ledger::Capacities;
use crate::processor::Chip;
use crate::sysfs::{GpuModel, Host, SysfsTree};

/// Queues that one GPU has for all processes together (`max_num_of_queues_per_device`, KFD's module parameter).
const QUEUES_PER_DEVICE: u64 = 4096;

/// The GPUs of an instance.
#[derive(Debug)]
pub(super) struct Devices {
    spec: String,
    gpus: Vec<GpuModel>,
    targets: Vec<&'static Target>,
}

impl Devices {
    /// Reads a list such as `gfx1100,gfx1100`.
    ///
    /// # Errors
    /// [`ServeError::Devices`] when it names something unknown, [`ServeError::Target`] for a chip without target.
    pub(super) fn parse(spec: &str) -> Result<Self, ServeError> {
        let gpus = GpuModel::parse_spec(spec)
            .map_err(|source| ServeError::Devices { spec: spec.to_owned(), source })?;
        let target =
            |gpu: &GpuModel| Target::by_name(gpu.name()).ok_or(ServeError::Target { name: gpu.name() });
        let targets = gpus.iter().map(target).collect::<Result<_, _>>()?;
        Ok(Self { spec: spec.to_owned(), gpus, targets })
    }

    /// The list as it was given.
    pub(super) fn spec(&self) -> &str {
        &self.spec
    }

    /// The GPUs, in order.
    pub(super) fn gpus(&self) -> &[GpuModel] {
        &self.gpus
    }

    /// Their chips, in the same order.
    pub(super) fn chips(&self, errata: bool) -> Vec<Chip> {
        let chip = |(gpu, &target): (&GpuModel, &&'static Target)| {
            let shape = gpu.shape();
            let arrays = shape.array_count.checked_div(shape.num_xcc).unwrap_or(0);
            let engines = arrays.checked_div(shape.simd_arrays_per_engine).unwrap_or(0).max(1);
            Chip { target, arrays, engines, errata }
        };
        self.gpus.iter().zip(&self.targets).map(chip).collect()
    }

    /// The topology on this host.
    pub(super) fn topology(&self) -> SysfsTree {
        SysfsTree::new(&self.gpus)
    }

    /// A fresh ledger for the instance.
    ///
    /// # Errors
    /// [`ServeError::Ledger`].
    pub(super) fn ledger(&self) -> Result<Ledger, ServeError> {
        let host = Host::read();
        let capacities = Capacities {
            vram: self.gpus.iter().map(GpuModel::vram_bytes).collect(),
            queues: QUEUES_PER_DEVICE,
            system: host.system_memory_limit(),
            ttm: host.ttm_limit(),
        };
        Ledger::create(&capacities).map_err(ServeError::Ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_unknown_device_names_the_list() {
        let error = Devices::parse("gfx1100,potato").unwrap_err();
        assert!(matches!(error, ServeError::Devices { ref spec, .. } if spec == "gfx1100,potato"));
    }

    #[test]
    fn parse_two_gpus_gives_two_targets() {
        let devices = Devices::parse("gfx1100,gfx1100").unwrap();
        assert_eq!(
            devices.chips(true).iter().map(|chip| (chip.target.name, chip.arrays)).collect::<Vec<_>>(),
            [("gfx1100", 12), ("gfx1100", 12)]
        );
    }
}
