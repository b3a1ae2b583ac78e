// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU levels, and the macro that instantiates lane-wise handlers once per level.
//!
//! INVARIANT: a handler of a level is given out only after the CPU was found to have that level's features, which is
//! what makes calling it through a plain function pointer sound.

use std::sync::OnceLock;

/// The instruction sets handlers are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every x86-64 (or other) host has.
    Baseline,
    /// AVX2, FMA, F16C, BMI, LZCNT, POPCNT.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, which every server CPU since Skylake has. Lane-wise handlers are the AVX2 ones: compiled for
    /// AVX-512 they were 0 to 12 % slower on Zen 4, since store forwarding stalls on rows that are written in 64-byte
    /// pieces and read in others. Generated code and
    /// matrix handlers use it.
    Avx512,
}

impl Level {
    /// The level in use: the highest this CPU has, or a lower one that `SOFTGPU_CPU=baseline|avx2|avx512` asks for.
    pub fn current() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let best = Level::best();
            match std::env::var("SOFTGPU_CPU").as_deref() {
                Ok("baseline") => Level::Baseline,
                Ok("avx2") => best.min(Level::Avx2),
                _ => best,
            }
        })
    }

    /// As `SOFTGPU_CPU` names it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// The highest level that all cores have.
    pub fn best() -> Level {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Level::detect().min(Level::of_unequal_cores()))
    }

    /// The highest level that all cores have, where they are of several kinds: a worker may run on any of them, and CPUID
    /// tells of one. Linux has this directory on such CPUs only (`arch/x86/events/intel/core.c:intel_pmu_init`).
    fn of_unequal_cores() -> Level {
        if !std::path::Path::new("/sys/devices/cpu_atom").exists() {
            return Level::Avx512;
        }
        std::fs::read_to_string("/proc/cpuinfo").map_or(Level::Avx2, |text| Level::of_all(&text))
    }

    /// The highest level that each processor of `/proc/cpuinfo` has; the highest of all if it names none.
    fn of_all(cpuinfo: &str) -> Level {
        let flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':'));
        flags.map(|(_, flags)| Level::of_flags(flags)).min().unwrap_or(Level::Avx512)
    }

    fn of_flags(flags: &str) -> Level {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let has = |names: &[&str]| names.iter().all(|name| flags.contains(name));
        // Linux calls LZCNT `abm`.
        if !has(&["bmi1", "bmi2", "abm", "popcnt", "avx2", "fma", "f16c"]) {
            Level::Baseline
        } else if !has(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]) {
            Level::Avx2
        } else {
            Level::Avx512
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn detect() -> Level {
        use std::arch::is_x86_feature_detected as has;
        // Each feature that `leveled` enables.
        let bits = has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt");
        let avx2 = bits && has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Level {
        Level::Baseline
    }
}

/// Defines a function for the baseline and one for AVX2 and more around one body, and picks by `$level`.
macro_rules! leveled {
    ($level:expr, |$w:ident, $e:ident, $s:ident| $body:expr) => {{
        fn baseline(
            $w: &mut $crate::wave::Wave,
            $e: &mut $crate::env::Env<'_>,
            $s: &$crate::step::Step,
        ) -> $crate::step::Flow {
            $body
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2(
            $w: &mut $crate::wave::Wave,
            $e: &mut $crate::env::Env<'_>,
            $s: &$crate::step::Step,
        ) -> $crate::step::Flow {
            $body
        }
        #[cfg(target_arch = "x86_64")]
        let handler = match $level {
            $crate::level::Level::Baseline => baseline as $crate::step::Handler,
            _ => avx2 as $crate::step::Handler,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let handler = {
            let _ = $level;
            baseline as $crate::step::Handler
        };
        handler
    }};
}
pub(crate) use leveled;

/// A table of lane-wise handlers: `OP = shape { closures }`.
macro_rules! lane_table {
    ($(#[$doc:meta])* $table:ident: $($op:ident = $shape:path $({ $($f:expr),+ $(,)? })?;)*) => {
        $(#[$doc])*
        pub(crate) fn $table(level: $crate::level::Level, op: softgpu_isa::Op) -> Option<$crate::step::Handler> {
            let _ = level;
            Some(match op {
                $(softgpu_isa::Op::$op => $crate::level::leveled!(level, |w, _e, s| {
                    $shape(w, s $(, $($f),+)?);
                    $crate::step::Flow::Next
                }),)*
                _ => return None,
            })
        }
    };
}
pub(crate) use lane_table;

#[cfg(test)]
mod tests {
    use super::*;

    const AVX2: &str = "fpu sse2 abm popcnt bmi1 avx2 bmi2 fma f16c";
    const AVX512: &str = "avx512f avx512dq avx512cd avx512bw avx512vl";

    #[test]
    fn level_of_unequal_cores_is_that_of_the_least() {
        let core = |number: u32, flags: &str| {
            format!(
                "processor\t: {number}\nmodel name\t: flags of a kind\nflags\t\t: {flags}\nvmx flags\t: avx512f\n\n"
            )
        };
        let both = format!("{AVX2} {AVX512}");
        let of = |cores: &[&str]| {
            Level::of_all(
                &cores.iter().zip(0..).map(|(flags, number)| core(number, flags)).collect::<String>(),
            )
        };
        assert_eq!(of(&[&both, &both]), Level::Avx512);
        assert_eq!(of(&[&both, AVX2]), Level::Avx2);
        assert_eq!(of(&[AVX2, &both, "fpu sse2"]), Level::Baseline);
        // AVX-512 without one of its parts, and an abbreviation that is another flag's beginning.
        assert_eq!(of(&[&both.replace("avx512dq", "avx512_dq")]), Level::Avx2);
        assert_eq!(of(&[&AVX2.replace("bmi1", "bmi10")]), Level::Baseline);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn linux_and_the_cpu_name_the_same_level() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        assert_eq!(Level::of_all(&text), Level::detect(), "on a machine whose cores are all alike");
    }

    #[test]
    fn what_linux_does_not_say_limits_nothing() {
        assert_eq!(Level::of_all(""), Level::Avx512);
        assert_eq!(Level::of_all("flags\nprocessor\t: 0\n"), Level::Avx512);
    }
}
