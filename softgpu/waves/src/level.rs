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
            let best = Level::detect();
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

    /// The highest level this CPU has.
    pub fn best() -> Level {
        Level::detect()
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
