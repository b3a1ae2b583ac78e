// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine of one softgpud instance, and what all its processes share of it.
//!
//! INVARIANT: the broker reads the device list or topology file once; executors are given what it read, so all agree
//! on every number of every GPU, also when the file is edited meanwhile.

use std::path::Path;

use kfd::transport::machine::{self, FileName};
use queues::target::Target;
use serde::{Deserialize, Serialize};

use super::error::ServeError;
use super::settings;
use crate::client_gpus::Chip;
use crate::client_gpus::clock::ahead_of;
use crate::driver::Ledger;
use crate::driver::ledger::Capacities;
use crate::sysfs::{GpuModel, Host, Machine, SysfsTree, SystemOptions, SystemTree, canonical_spec};

/// Queues that one GPU has for all processes together (`max_num_of_queues_per_device`, KFD's module parameter).
const QUEUES_PER_DEVICE: u64 = 4096;

/// What an executor needs to make the broker's machine again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Source {
    /// The canonical list, or the topology file's name with the hash of its contents.
    spec: String,
    /// Those contents.
    text: Option<String>,
    /// Whether the kernel was built with HSA_AMD_SVM.
    svm: bool,
}

/// The GPUs of an instance.
#[derive(Debug)]
pub(super) struct Devices {
    source: Source,
    machine: Machine,
    targets: Vec<&'static Target>,
}

impl Devices {
    /// Reads a list such as `gfx1100*2,gfx1201`, or a topology file by its name (`kfd::transport::machine`).
    ///
    /// # Errors
    /// [`ServeError::Devices`] when it names something unknown or describes no machine, [`ServeError::Topology`] for
    /// a file that cannot be read, [`ServeError::Edited`] for one that is not what the client read, and
    /// [`ServeError::Target`] for a chip without target.
    pub(super) fn parse(spec: &str) -> Result<Self, ServeError> {
        let source = match FileName::parse(spec) {
            Some(name) => read(&name)?,
            None => {
                let canonical = canonical_spec(spec)
                    .map_err(|source| ServeError::Devices { spec: spec.to_owned(), source })?;
                Source { spec: canonical, text: None, svm: settings::svm() }
            }
        };
        Self::again(source)
    }

    /// The machine that a topology file with this text would describe.
    ///
    /// # Errors
    /// As [`Devices::parse`].
    pub(super) fn of_text(text: &str) -> Result<Self, ServeError> {
        Self::again(Source {
            spec: "a topology file's text".to_owned(),
            text: Some(text.to_owned()),
            svm: false,
        })
    }

    /// The machine that a broker has.
    ///
    /// # Errors
    /// As [`Devices::parse`].
    pub(super) fn again(source: Source) -> Result<Self, ServeError> {
        let machine = match &source.text {
            Some(text) => Machine::of_file(text),
            None => Machine::of_list(&source.spec),
        };
        let machine =
            machine.map_err(|error| ServeError::Devices { spec: source.spec.clone(), source: error })?;
        let machine = if source.svm { machine.with_svm() } else { machine };
        let target =
            |gpu: &GpuModel| Target::by_name(gpu.name()).ok_or(ServeError::Target { name: gpu.name() });
        let targets = machine.gpus().iter().map(target).collect::<Result<_, _>>()?;
        Ok(Self { source, machine, targets })
    }

    /// What it was made of.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// What a client must ask for to mean this machine.
    pub(super) fn spec(&self) -> &str {
        &self.source.spec
    }

    /// What reads through the GPUs' apertures cost, as the text of `kfd::transport::wire::APERTURE_FILE`.
    pub(super) fn aperture(&self) -> String {
        let costs = self.gpus().iter().filter_map(|gpu| Some((gpu.gpu_id(), gpu.aperture_read_cost()?)));
        costs.map(|(id, cost)| format!("{id} {cost}\n")).collect()
    }

    /// The GPUs, in order.
    pub(super) fn gpus(&self) -> &[GpuModel] {
        self.machine.gpus()
    }

    /// Their chips, in the same order.
    pub(super) fn chips(&self, errata: bool) -> Vec<Chip> {
        let chip = |(gpu, &target): (&GpuModel, &&'static Target)| {
            let shape = gpu.shape();
            let arrays = shape.array_count.checked_div(shape.num_xcc).unwrap_or(0);
            let engines = arrays.checked_div(shape.simd_arrays_per_engine).unwrap_or(0).max(1);
            let compute_queues = usize::try_from(gpu.compute_queues()).unwrap_or(usize::MAX).max(1);
            Chip {
                target,
                compute_units: shape.simd_count.checked_div(shape.simd_per_cu).unwrap_or(0),
                arrays,
                engines,
                xccs: shape.num_xcc.max(1),
                compute_queues,
                errata,
                counter_ahead: ahead_of(gpu.unique_id()),
            }
        };
        self.gpus().iter().zip(&self.targets).map(chip).collect()
    }

    /// The topology on this host.
    pub(super) fn topology(&self) -> SysfsTree {
        SysfsTree::new(&self.machine)
    }

    /// All files that programs read of the machine on this host.
    pub(super) fn system(&self, options: &SystemOptions<'_>) -> SystemTree {
        SystemTree::new(&self.machine, options)
    }

    /// A fresh ledger for the instance.
    ///
    /// # Errors
    /// [`ServeError::Ledger`].
    pub(super) fn ledger(&self) -> Result<Ledger, ServeError> {
        let host = self.machine.host(&Host::read());
        let capacities = Capacities {
            vram: self.gpus().iter().map(GpuModel::vram_bytes).collect(),
            queues: QUEUES_PER_DEVICE,
            system: host.system_memory_limit(),
            ttm: host.ttm_limit(),
        };
        Ledger::create(&capacities).map_err(ServeError::Ledger)
    }
}

/// Reads a topology file; one that is named without a hash is taken as it is.
fn read(name: &FileName<'_>) -> Result<Source, ServeError> {
    let (path, text) = machine::canonical(Path::new(name.path))
        .and_then(|path| machine::read(&path).map(|text| (path, text)))
        .map_err(|source| ServeError::Topology { path: name.path.to_owned(), source })?;
    let spec = machine::name(&path.to_string_lossy(), text.as_bytes());
    match name.hash {
        Some(wanted) if wanted != machine::hash(text.as_bytes()) => {
            Err(ServeError::Edited { path: name.path.to_owned() })
        }
        _ => Ok(Source { spec, text: Some(text), svm: settings::svm() }),
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

    #[test]
    fn parse_list_has_one_canonical_name() {
        assert_eq!(Devices::parse("gfx1100*2, gfx1201").unwrap().spec(), "gfx1100,gfx1100,gfx1201");
    }

    #[test]
    fn parse_file_is_named_by_its_contents_and_an_edited_one_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("one.toml");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            machine::name(path.to_str().unwrap(), text.as_bytes())
        };
        let first = write("[[gpu]]\nchip = \"gfx1201\"\nvram_bytes = \"16GiB\"\n");
        let devices = Devices::parse(&first).unwrap();
        assert_eq!((devices.spec(), devices.gpus()[0].vram_bytes()), (first.as_str(), 16 << 30));
        assert_eq!(Devices::parse(path.to_str().unwrap()).unwrap().spec(), first);
        // What the broker read is what its executors get.
        let second = write("[[gpu]]\nchip = \"gfx1100\"\n");
        let again = Devices::again(devices.source().clone()).unwrap();
        assert_eq!((again.spec(), again.gpus()[0].name()), (first.as_str(), "gfx1201"));
        assert!(matches!(Devices::parse(&first), Err(ServeError::Edited { .. })));
        assert_eq!(Devices::parse(&second).unwrap().gpus()[0].name(), "gfx1100");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Devices::parse(&second), Err(ServeError::Topology { .. })));
    }
}
