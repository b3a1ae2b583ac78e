// SPDX-License-Identifier: MIT OR Apache-2.0
//! The target that a code object's metadata names, `amdhsa.target`: a triple, a processor and its features.
//!
//! ```text
//! amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-           LLVM before July 2026
//! amdgpu11.00-amd-amdhsa-unknown-gfx1100              LLVM since then (its change 206480)
//! ------ ---- --- ------ ------- -------
//! arch   |    |   os     |       processor, features
//!        |    vendor     environment
//!        subarchitecture: the processor's version, or its family's
//! ```
//!
//! The rules are those of LLVM's AMDGPU usage guide ("Target Triples", "Subarchitecture Compatibility", "Target ID") and
//! of its `AMDGPUTargetParser.cpp`: a subarchitecture with all digits (`11.00`) is one processor; one with fewer (`11`,
//! `10.3`) is a family, and compatible with each of its processors and with the family's generic processor.

use super::isa::{AgentFeatures, Feature, members};

/// A target identifier, split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TargetId<'a> {
    /// What follows `amdgpu` in the architecture; `None` for `amdgcn`, which has none, and plain `amdgpu`.
    subarch: Option<&'a str>,
    /// Empty where the subarchitecture alone names it.
    processor: &'a str,
    sramecc: Option<Feature>,
    xnack: Option<Feature>,
}

/// How well code suits a processor: better ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// It is for this processor alone, not for a family's generic one.
    is_exact: bool,
    /// Settings that it names.
    settings: usize,
}

impl<'a> TargetId<'a> {
    /// Splits `text`; `None` if it is not a target identifier for HSA.
    pub fn parse(text: &'a str) -> Option<Self> {
        // The processor may have dashes itself: `gfx11-generic`.
        let mut parts = text.splitn(5, '-');
        let (arch, _vendor, os, _environment) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Self::of(arch, os, parts.next()?)
    }

    /// The same of an entry of an offload bundle, whose triple may have no environment: `amdgcn-amd-amdhsa-gfx906`.
    pub fn parse_in_bundle(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        let (arch, _vendor, os, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let named = if rest.starts_with("gfx") { rest } else { rest.split_once('-')?.1 };
        Self::of(arch, os, named)
    }

    fn of(arch: &'a str, os: &str, named: &'a str) -> Option<Self> {
        let mut named = named.split(':');
        let subarch = match arch.strip_prefix("amdgpu") {
            Some("") => None,
            Some(subarch) => Some(subarch).filter(|subarch| is_subarch(subarch)).map(Some)?,
            None if arch == "amdgcn" => None,
            None => return None,
        };
        if os != "amdhsa" {
            return None;
        }
        let processor = named.next().filter(|processor| !processor.is_empty() || subarch.is_some())?;
        let mut target = Self { subarch, processor, sramecc: None, xnack: None };
        for feature in named {
            let (slot, setting) = match feature {
                "sramecc+" => (&mut target.sramecc, Feature::On),
                "sramecc-" => (&mut target.sramecc, Feature::Off),
                "xnack+" => (&mut target.xnack, Feature::On),
                "xnack-" => (&mut target.xnack, Feature::Off),
                _ => return None,
            };
            if slot.replace(setting).is_some() {
                return None;
            }
        }
        Some(target)
    }

    /// How well code for it suits a processor with these settings; `None` if it does not run there.
    pub fn fit(&self, processor: &str, features: AgentFeatures) -> Option<Fit> {
        let is_exact = match self.processor {
            "" => self.subarch?.split_once('.').is_some_and(|(_, rest)| rest.len() == 2),
            named => named == processor,
        };
        let is_member = match self.processor {
            "" => true,
            named => members(named).is_some_and(|all| all.contains(&processor)),
        };
        let is_family = self.subarch.is_none_or(|subarch| is_compatible(subarch, processor));
        let settings = [(self.sramecc, features.sramecc), (self.xnack, features.xnack)];
        let mut named = settings.into_iter().filter_map(|(named, found)| Some((named?, found)));
        let runs = (is_exact || is_member) && is_family && named.all(|(named, found)| named.accepts(found));
        let settings = [self.sramecc, self.xnack].into_iter().flatten().count();
        runs.then_some(Fit { is_exact, settings })
    }

    /// Whether it names what a header of this processor with these settings does.
    pub fn names(&self, processor: &str, sramecc: Feature, xnack: Feature) -> bool {
        let is_processor = self.processor.is_empty() || self.processor == processor;
        let is_family = self.subarch.is_none_or(|subarch| is_compatible(subarch, processor));
        // A setting that is left open is not named.
        let fits = |named: Option<Feature>, header: Feature| match header {
            Feature::On | Feature::Off => named == Some(header),
            Feature::Any | Feature::Unsupported => named.is_none(),
        };
        is_processor && is_family && fits(self.sramecc, sramecc) && fits(self.xnack, xnack)
    }
}

/// Whether `text` has the form of a subarchitecture: digits, and behind a dot one or two more, the last in hexadecimal.
fn is_subarch(text: &str) -> bool {
    let (major, rest) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = |text: &str| matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_number(major)
        && major.len() <= 2
        && is_short(rest)
        && !rest.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Whether code of a subarchitecture is code for `processor`.
fn is_compatible(subarch: &str, processor: &str) -> bool {
    let (major, rest) = subarch.split_once('.').unwrap_or((subarch, ""));
    if rest.len() == 2 {
        let minor = format!("gfx{major}{rest}");
        return minor == processor || members(processor).is_some_and(|all| all.contains(&&*minor));
    }
    let dash = if rest.is_empty() { "" } else { "-" };
    let generic = format!("gfx{major}{dash}{rest}-generic");
    match members(&generic) {
        Some(all) => generic == processor || all.contains(&processor),
        // A family that no generic processor stands for: its processors have its digits and two (one) more.
        None => {
            let digits =
                processor.strip_prefix("gfx").and_then(|p| p.strip_prefix(major)?.strip_prefix(rest));
            digits.is_some_and(|digits| digits.len() + rest.len() == 2 && !digits.contains('-'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, processor: &str, sramecc: Feature, xnack: Feature) -> bool {
        TargetId::parse(text).is_some_and(|target| target.names(processor, sramecc, xnack))
    }

    /// Of a processor that has neither feature.
    fn names_plain(text: &str, processor: &str) -> bool {
        names(text, processor, Feature::Unsupported, Feature::Unsupported)
    }

    #[test]
    fn names_all_spellings_of_one_target() {
        for text in [
            "amdgcn-amd-amdhsa--gfx1100",
            "amdgcn-amd-amdhsa-unknown-gfx1100",
            "amdgcn-unknown-amdhsa-llvm-gfx1100",
            "amdgpu-amd-amdhsa--gfx1100",
            "amdgpu11.00-amd-amdhsa--gfx1100",
            "amdgpu11.00-amd-amdhsa-unknown-gfx1100",
            "amdgpu11-amd-amdhsa-unknown-gfx1100",
            "amdgpu11.00-amd-amdhsa--",
        ] {
            assert!(names_plain(text, "gfx1100"), "{text}");
            assert!(!names_plain(text, "gfx1101"), "{text}");
        }
    }

    #[test]
    fn names_only_processors_of_its_subarchitecture() {
        for (text, processor, expected) in [
            ("amdgpu11.01-amd-amdhsa--gfx1100", "gfx1100", false),
            ("amdgpu12-amd-amdhsa--gfx1100", "gfx1100", false),
            ("amdgpu11.7-amd-amdhsa--gfx1100", "gfx1100", false),
            ("amdgpu11.7-amd-amdhsa--gfx1170", "gfx1170", true),
            ("amdgpu11-amd-amdhsa--gfx1170", "gfx1170", false),
            ("amdgpu10.3-amd-amdhsa--gfx1031", "gfx1031", true),
            ("amdgpu10.1-amd-amdhsa--gfx1031", "gfx1031", false),
            ("amdgpu9-amd-amdhsa--gfx906", "gfx906", true),
            ("amdgpu9-amd-amdhsa--gfx942", "gfx942", false),
            ("amdgpu9.42-amd-amdhsa--gfx942", "gfx942", true),
            ("amdgpu9.0a-amd-amdhsa--gfx90a", "gfx90a", true),
            ("amdgpu8-amd-amdhsa--gfx803", "gfx803", true),
            ("amdgpu8-amd-amdhsa--gfx1100", "gfx1100", false),
            ("amdgpu1-amd-amdhsa--gfx1100", "gfx1100", false),
        ] {
            assert_eq!(names_plain(text, processor), expected, "{text}");
        }
    }

    #[test]
    fn names_generic_processors_with_their_dashes() {
        for (text, processor, expected) in [
            ("amdgcn-amd-amdhsa--gfx11-generic", "gfx11-generic", true),
            ("amdgpu11-amd-amdhsa-unknown-gfx11-generic", "gfx11-generic", true),
            ("amdgpu11.00-amd-amdhsa--gfx11-generic", "gfx11-generic", true),
            ("amdgpu12-amd-amdhsa--gfx11-generic", "gfx11-generic", false),
            ("amdgpu10.3-amd-amdhsa--gfx10-3-generic", "gfx10-3-generic", true),
            ("amdgpu9.4-amd-amdhsa--gfx9-4-generic", "gfx9-4-generic", true),
            ("amdgcn-amd-amdhsa--gfx11-generic", "gfx1100", false),
        ] {
            assert_eq!(names_plain(text, processor), expected, "{text}");
        }
    }

    #[test]
    fn names_features_that_the_header_sets_and_no_others() {
        use Feature::{Any, Off, On};
        for (text, sramecc, xnack, expected) in [
            ("amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", On, Off, true),
            ("amdgpu9.0a-amd-amdhsa-unknown-gfx90a:sramecc+:xnack-", On, Off, true),
            ("amdgpu9.0a-amd-amdhsa--:xnack-", Any, Off, true),
            ("amdgcn-amd-amdhsa--gfx90a:xnack-:sramecc+", On, Off, true),
            ("amdgcn-amd-amdhsa--gfx90a:xnack+", Any, On, true),
            ("amdgcn-amd-amdhsa--gfx90a:xnack+", Any, Off, false),
            ("amdgcn-amd-amdhsa--gfx90a:xnack+", Any, Any, false),
            ("amdgcn-amd-amdhsa--gfx90a", Any, On, false),
            ("amdgcn-amd-amdhsa--gfx90a", Any, Any, true),
        ] {
            assert_eq!(names(text, "gfx90a", sramecc, xnack), expected, "{text}");
        }
    }

    #[test]
    fn parse_refuses_what_is_no_target_of_hsa() {
        for text in [
            "",
            "nonsense",
            "gfx1100",
            "amdgcn-amd-amdhsa-gfx1100",
            "amdgcn-amd-amdhsa--",
            "amdgpu-amd-amdhsa--",
            "amdgcn-amd-amdpal--gfx1100",
            "amdgcn11.00-amd-amdhsa--gfx1100",
            "amdgpux-amd-amdhsa--gfx1100",
            "amdgpu11.000-amd-amdhsa--gfx1100",
            "amdgpu11.-amd-amdhsa--gfx1100",
            "amdgpu.00-amd-amdhsa--gfx1100",
            "x86_64-amd-amdhsa--gfx1100",
            "amdgcn-amd-amdhsa--gfx90a:xnack",
            "amdgcn-amd-amdhsa--gfx90a:xnack+:xnack+",
            "amdgcn-amd-amdhsa--gfx90a:xnack+:xnack-",
            "amdgcn-amd-amdhsa--gfx90a:ecc+",
            "amdgcn-amd-amdhsa--gfx90a:",
        ] {
            assert_eq!(TargetId::parse(text), None, "{text}");
        }
    }
}
