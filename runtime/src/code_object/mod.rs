// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code objects: ELF files with kernels for one GPU target, versions 4 to 6 of AMD's format; and [`bundle`]s of them.
//!
//! INVARIANT: everything a file claims is checked in [`CodeObject::parse`], so that what follows (placing the
//! image, building kernargs, filling packets) works on numbers that fit together. No byte sequence makes this
//! module panic or allocate more than a bounded multiple of the file plus [`MAX_IMAGE_BYTES`] (and, of a compressed bundle, the
//! decoder's window of at most 128 MiB).
//!
//! ```text
//! file -- bundle --> the agent's entry, if it is a bundle: bytes
//! bytes -- elf --> header, segments, symbols, relocations -+-> LoadPlan -- relocate(va) --> image bytes
//!            \-- note -- metadata --> kernels, arguments --+-> Kernel --> KernargLayout --> kernarg bytes
//! ```

pub mod bundle;
mod elf;
mod error;
mod isa;
mod kernarg;
mod kernel;
mod loader;
mod metadata;
mod target_id;
#[cfg(test)]
mod tests;

pub use bundle::Bundle;
pub use bundle::BundleError;
pub use error::CodeObjectError;
pub use error::KernargError;
pub use error::LaunchError;
pub use isa::AgentFeatures;
pub use isa::CodeObjectVersion;
pub use isa::Feature;
pub use isa::Isa;
pub use kernarg::ExplicitArgument;
pub use kernarg::Geometry;
pub use kernarg::KernargBuilder;
pub use kernarg::KernargLayout;
pub(crate) use kernarg::{axes, put};
pub use kernel::Kernel;
pub use loader::Access;
pub use loader::LoadPlan;
pub use loader::MAX_IMAGE_BYTES;
pub use loader::Segment;
pub use metadata::Argument;
pub use metadata::HiddenKind;
pub use metadata::KernelMetadata;
pub use metadata::ValueKind;

use elf::Elf;
use queues::target::Target;
use std::collections::BTreeMap;

/// A global variable that the file exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// The symbol's name.
    pub name: String,
    /// Bytes from the start of the image.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A checked code object, ready to be placed in an agent's memory.
#[derive(Debug, Clone)]
pub struct CodeObject {
    version: CodeObjectVersion,
    isa: Isa,
    kernels: Vec<Kernel>,
    globals: Vec<Global>,
    plan: LoadPlan,
}

impl CodeObject {
    /// Checks a file and takes out what a runtime needs; `bytes` are not kept.
    ///
    /// # Errors
    /// A variant of [`CodeObjectError`] for the first thing that is wrong with the file. An undefined symbol is
    /// no error here but in [`LoadPlan::relocate`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CodeObjectError> {
        let elf = Elf::open(bytes)?;
        let version = CodeObjectVersion::from_abi_version(elf.abi_version())?;
        let isa = Isa::from_flags(elf.flags(), version)?;
        let segments = elf.segments()?;
        let symbols = elf.symbols(&segments)?;
        let mut described = Vec::new();
        for note in elf.metadata_notes()? {
            let metadata = metadata::parse(note)?;
            isa.agree_with(metadata.target.as_deref())?;
            described.extend(metadata.kernels);
        }
        let plan = LoadPlan::new(&elf, segments, &symbols)?;
        let kernels = kernel::collect(described, &symbols, &plan)?;
        let globals = globals(&symbols, &plan);
        Ok(Self { version, isa, kernels, globals, plan })
    }

    /// The version of the format.
    #[must_use]
    pub fn version(&self) -> CodeObjectVersion {
        self.version
    }

    /// What the code was compiled for.
    #[must_use]
    pub fn isa(&self) -> &Isa {
        &self.isa
    }

    /// All kernels, in the metadata's order.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of that name, without the `.kd` of its descriptor's symbol.
    ///
    /// # Errors
    /// [`CodeObjectError::NoSuchKernel`] with the names there are.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, CodeObjectError> {
        self.kernels.iter().find(|kernel| kernel.name == name).ok_or_else(|| CodeObjectError::NoSuchKernel {
            name: name.to_owned(),
            known: self.kernels.iter().map(|kernel| kernel.name.clone()).collect(),
        })
    }

    /// All exported variables.
    #[must_use]
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// How the file lies in memory.
    #[must_use]
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// Judges whether an agent of `target` with these features can run the code.
    ///
    /// # Errors
    /// [`CodeObjectError::WrongTarget`] with both names, or [`CodeObjectError::WrongFeature`].
    pub fn check_agent(&self, target: &Target, features: AgentFeatures) -> Result<(), CodeObjectError> {
        self.isa.check_agent(target, features)
    }
}

fn globals(symbols: &BTreeMap<String, elf::Symbol>, plan: &LoadPlan) -> Vec<Global> {
    symbols
        .iter()
        .filter(|(name, symbol)| symbol.object && symbol.exported && !name.ends_with(".kd"))
        .filter_map(|(name, symbol)| {
            let offset = plan.offset_of(symbol.value, symbol.size)?;
            Some(Global { name: name.clone(), offset, bytes: symbol.size })
        })
        .collect()
}
