// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a code object was compiled for: processor, generic family, xnack and sramecc settings.
//!
//! Numbers are `EF_AMDGPU_*` of LLVM's `ELF.h` and its AMDGPU usage guide. The table is wider than the targets
//! that `queues` knows, so that a file for another chip is refused by its name.

use super::error::CodeObjectError;
use super::target_id::TargetId;
use queues::target::Target;
use std::fmt;

const MACH_MASK: u32 = 0xff;
const XNACK_SHIFT: u32 = 8;
const SRAMECC_SHIFT: u32 = 10;
const GENERIC_VERSION_SHIFT: u32 = 24;

/// The version of the code object format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CodeObjectVersion {
    /// `EI_ABIVERSION` 2.
    V4,
    /// `EI_ABIVERSION` 3.
    V5,
    /// `EI_ABIVERSION` 4, the first with generic targets.
    V6,
}

impl CodeObjectVersion {
    pub(super) fn from_abi_version(found: u8) -> Result<Self, CodeObjectError> {
        match found {
            2 => Ok(Self::V4),
            3 => Ok(Self::V5),
            4 => Ok(Self::V6),
            _ => Err(CodeObjectError::AbiVersion { found }),
        }
    }
}

/// How a feature that changes code generation was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// The processor has no such setting.
    Unsupported,
    /// The code runs with either setting.
    Any,
    /// The code runs with the feature off only.
    Off,
    /// The code runs with the feature on only.
    On,
}

impl Feature {
    fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Unsupported,
            1 => Self::Any,
            2 => Self::Off,
            _ => Self::On,
        }
    }

    pub(super) fn accepts(self, setting: bool) -> bool {
        match self {
            Self::Unsupported | Self::Any => true,
            Self::Off => !setting,
            Self::On => setting,
        }
    }

    fn suffix(self) -> Option<char> {
        match self {
            Self::Unsupported | Self::Any => None,
            Self::Off => Some('-'),
            Self::On => Some('+'),
        }
    }
}

/// How an agent is set up where code depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentFeatures {
    /// Page faults are retried.
    pub xnack: bool,
    /// ECC on the SRAMs.
    pub sramecc: bool,
}

/// The instruction set of a code object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isa {
    name: &'static str,
    generic_version: u8,
    xnack: Feature,
    sramecc: Feature,
}

impl Isa {
    pub(super) fn from_flags(flags: u32, version: CodeObjectVersion) -> Result<Self, CodeObjectError> {
        let mach = flags & MACH_MASK;
        let name = PROCESSORS
            .iter()
            .find(|(number, _)| *number == mach)
            .map(|(_, name)| *name)
            .ok_or(CodeObjectError::UnknownProcessor { mach, flags })?;
        let generic_version = flags.to_le_bytes()[(GENERIC_VERSION_SHIFT / 8) as usize];
        let generic = members(name).is_some();
        if generic && (version < CodeObjectVersion::V6 || generic_version == 0) {
            return Err(CodeObjectError::GenericVersion { name, found: generic_version });
        }
        Ok(Self {
            name,
            generic_version: if generic { generic_version } else { 0 },
            xnack: Feature::from_bits(flags >> XNACK_SHIFT),
            sramecc: Feature::from_bits(flags >> SRAMECC_SHIFT),
        })
    }

    /// The processor or generic target, `gfx1100` or `gfx11-generic`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The version of the generic target, 0 for a processor.
    #[must_use]
    pub fn generic_version(&self) -> u8 {
        self.generic_version
    }

    /// The processor's entry in the target table; absent for generic targets and unsupported processors.
    #[must_use]
    pub fn target(&self) -> Option<&'static Target> {
        Target::by_name(self.name)
    }

    /// The xnack setting.
    #[must_use]
    pub fn xnack(&self) -> Feature {
        self.xnack
    }

    /// The sramecc setting.
    #[must_use]
    pub fn sramecc(&self) -> Feature {
        self.sramecc
    }

    /// The metadata repeats the target; a file where the two differ was tampered with or linked wrongly.
    pub(super) fn agree_with(&self, metadata: Option<&str>) -> Result<(), CodeObjectError> {
        let Some(text) = metadata else { return Ok(()) };
        let target = TargetId::parse(text);
        if target.is_some_and(|target| target.names(self.name, self.sramecc, self.xnack)) {
            return Ok(());
        }
        Err(CodeObjectError::TargetDisagreement { header: self.to_string(), metadata: text.to_owned() })
    }

    pub(super) fn check_agent(&self, target: &Target, agent: AgentFeatures) -> Result<(), CodeObjectError> {
        let runs = match members(self.name) {
            Some(members) => members.contains(&target.name),
            None => self.name == target.name,
        };
        if !runs {
            return Err(CodeObjectError::WrongTarget {
                object: self.to_string(),
                agent: target.name.to_owned(),
            });
        }
        let features = [("xnack", self.xnack, agent.xnack), ("sramecc", self.sramecc, agent.sramecc)];
        for (feature, wanted, found) in features {
            if !wanted.accepts(found) {
                return Err(CodeObjectError::WrongFeature {
                    object: self.to_string(),
                    feature,
                    wanted,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// The target identifier as in `amdhsa.target`: features in alphabetical order, those left open not named.
impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&id_text(self.name, self.sramecc.suffix(), self.xnack.suffix()))
    }
}

/// A processor and its features, each with a sign or left open.
pub(super) fn id_text(processor: &str, sramecc: Option<char>, xnack: Option<char>) -> String {
    let mut id = processor.to_owned();
    for (name, sign) in [("sramecc", sramecc), ("xnack", xnack)] {
        if let Some(sign) = sign {
            id.extend([":", name]);
            id.push(sign);
        }
    }
    id
}

/// The processors a generic target stands for.
pub(super) fn members(generic: &str) -> Option<&'static [&'static str]> {
    Some(match generic {
        "gfx9-generic" => &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"],
        "gfx9-4-generic" => &["gfx940", "gfx941", "gfx942", "gfx950"],
        "gfx10-1-generic" => &["gfx1010", "gfx1011", "gfx1012", "gfx1013"],
        "gfx10-3-generic" => &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"],
        "gfx11-generic" => &[
            "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1154",
        ],
        "gfx11-7-generic" => &["gfx1170", "gfx1171", "gfx1172"],
        "gfx12-generic" => &["gfx1200", "gfx1201"],
        "gfx12-5-generic" => &["gfx1250", "gfx1251"],
        "gfx13-generic" => &["gfx1310"],
        _ => return None,
    })
}

/// `EF_AMDGPU_MACH_AMDGCN_*` by number.
#[rustfmt::skip]
const PROCESSORS: &[(u32, &str)] = &[
    (0x20, "gfx600"), (0x21, "gfx601"), (0x22, "gfx700"), (0x23, "gfx701"), (0x24, "gfx702"),
    (0x25, "gfx703"), (0x26, "gfx704"), (0x28, "gfx801"), (0x29, "gfx802"), (0x2a, "gfx803"),
    (0x2b, "gfx810"), (0x2c, "gfx900"), (0x2d, "gfx902"), (0x2e, "gfx904"), (0x2f, "gfx906"),
    (0x30, "gfx908"), (0x31, "gfx909"), (0x32, "gfx90c"), (0x33, "gfx1010"), (0x34, "gfx1011"),
    (0x35, "gfx1012"), (0x36, "gfx1030"), (0x37, "gfx1031"), (0x38, "gfx1032"), (0x39, "gfx1033"),
    (0x3a, "gfx602"), (0x3b, "gfx705"), (0x3c, "gfx805"), (0x3d, "gfx1035"), (0x3e, "gfx1034"),
    (0x3f, "gfx90a"), (0x40, "gfx940"), (0x41, "gfx1100"), (0x42, "gfx1013"), (0x43, "gfx1150"),
    (0x44, "gfx1103"), (0x45, "gfx1036"), (0x46, "gfx1101"), (0x47, "gfx1102"), (0x48, "gfx1200"),
    (0x49, "gfx1250"), (0x4a, "gfx1151"), (0x4b, "gfx941"), (0x4c, "gfx942"), (0x4e, "gfx1201"),
    (0x4f, "gfx950"), (0x50, "gfx1310"), (0x51, "gfx9-generic"), (0x52, "gfx10-1-generic"),
    (0x53, "gfx10-3-generic"), (0x54, "gfx11-generic"), (0x55, "gfx1152"), (0x57, "gfx1154"),
    (0x58, "gfx1153"), (0x59, "gfx12-generic"), (0x5a, "gfx1251"), (0x5b, "gfx12-5-generic"),
    (0x5c, "gfx1172"), (0x5d, "gfx1170"), (0x5e, "gfx1171"), (0x5f, "gfx9-4-generic"),
    (0x62, "gfx11-7-generic"), (0x63, "gfx13-generic"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn isa(flags: u32) -> Isa {
        Isa::from_flags(flags, CodeObjectVersion::V6).unwrap()
    }

    #[test]
    fn from_flags_names_processor_and_features() {
        assert_eq!(isa(0x41).to_string(), "gfx1100");
        // gfx90a, xnack off (2 << 8), sramecc on (3 << 10)
        assert_eq!(isa(0x3f | 0x200 | 0xc00).to_string(), "gfx90a:sramecc+:xnack-");
        assert_eq!(isa(0x3f | 0x100 | 0x400).to_string(), "gfx90a");
    }

    #[test]
    fn from_flags_unknown_processor_is_named_by_number() {
        assert_eq!(
            Isa::from_flags(0xfe, CodeObjectVersion::V5),
            Err(CodeObjectError::UnknownProcessor { mach: 0xfe, flags: 0xfe })
        );
    }

    #[test]
    fn from_flags_generic_needs_v6_and_a_version() {
        assert!(Isa::from_flags(0x0100_0054, CodeObjectVersion::V6).is_ok());
        assert!(Isa::from_flags(0x0000_0054, CodeObjectVersion::V6).is_err());
        assert!(Isa::from_flags(0x0100_0054, CodeObjectVersion::V5).is_err());
    }

    #[test]
    fn check_agent_generic_accepts_its_members_only() {
        let object = isa(0x0100_0054);
        for (name, fits) in [("gfx1100", true), ("gfx1151", true), ("gfx1030", false), ("gfx1201", false)] {
            let target = Target::by_name(name).unwrap();
            assert_eq!(object.check_agent(target, AgentFeatures::default()).is_ok(), fits, "{name}");
        }
    }

    #[test]
    fn check_agent_features_must_match_what_was_compiled_in() {
        let target = Target::by_name("gfx90a").unwrap();
        let object = isa(0x3f | 0x300 | 0x400);
        let on = AgentFeatures { xnack: true, sramecc: true };
        assert_eq!(object.check_agent(target, on), Ok(()));
        let error = object.check_agent(target, AgentFeatures::default()).unwrap_err();
        assert!(matches!(error, CodeObjectError::WrongFeature { feature: "xnack", .. }), "{error}");
    }

    #[test]
    fn agree_with_refuses_another_processor() {
        assert_eq!(isa(0x41).agree_with(Some("amdgcn-amd-amdhsa--gfx1100")), Ok(()));
        assert_eq!(isa(0x41).agree_with(Some("amdgcn-amd-amdhsa-unknown-gfx1100")), Ok(()));
        assert_eq!(isa(0x41).agree_with(Some("amdgpu11.00-amd-amdhsa-unknown-gfx1100")), Ok(()));
        assert_eq!(isa(0x0100_0054).agree_with(Some("amdgpu11-amd-amdhsa-unknown-gfx11-generic")), Ok(()));
        assert!(isa(0x41).agree_with(Some("amdgpu11.01-amd-amdhsa-unknown-gfx1101")).is_err());
        assert!(isa(0x41).agree_with(Some("amdgcn-amd-amdhsa--gfx1101")).is_err());
        assert!(isa(0x41).agree_with(Some("nonsense")).is_err());
    }

    #[test]
    fn processors_agree_with_the_target_table() {
        for (mach, name) in PROCESSORS {
            // A target without code objects of its own has the number 0.
            if let Some(target) = Target::by_name(name).filter(|target| target.elf_mach != 0) {
                assert_eq!(target.elf_mach, *mach, "{name}");
            }
        }
    }
}
