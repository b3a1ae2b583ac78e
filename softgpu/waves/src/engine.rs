// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which engine runs waves.

use std::sync::OnceLock;

/// What executes the instructions of a wave. The results are the same, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The interpreter, always.
    Interp,
    /// Generated code from a program's first wave on, where this CPU has AVX2 or more.
    Jit,
    /// The same, but code that is generated quickly, for waves all of whose lanes are active.
    Quick,
    /// The interpreter until a program has executed enough instructions to be worth compiling, and while it is being compiled
    /// by another thread; then generated code, first the kind that is generated quickly.
    Auto,
}

/// How much is done for code that is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only for waves all of whose lanes are active, and loops one turn at a time: the interpreter does the rest. It takes half as long to
    /// generate, or less.
    Quick,
    /// All that is known to make code faster.
    Full,
}

/// How often a program's steps have been executed on average when [`Engine::Auto`] has a thread of low priority generate quick code:
/// until then the interpreter has taken a small part of the time that compiling takes. If there is a core for that thread,
/// nothing is lost when the program ends before the code is there, and little if the program is long.
pub(crate) const WORTH_TRYING: u64 = 50;
/// The same when another thread compiles it that gives way to nobody, if there was no core for the first one to begin: as long
/// as compiling takes. It may take a core from whoever waits for the waves' results.
pub(crate) const WORTH_COMPILING: u64 = 1000;
/// The same if the first one has begun, but seems to have lost its core.
pub(crate) const WORTH_TWICE: u64 = 5000;
/// How often they have been executed when a thread of low priority generates full code.
pub(crate) const WORTH_IMPROVING: u64 = 5000;
/// The same when another thread does it, if there was no core for the first one.
pub(crate) const WORTH_INSISTING: u64 = 50_000;
/// How often quick code was left because lanes were inactive when full code is worth generating, and when it is worth taking a core.
pub(crate) const MANY_LEFT: [u64; 2] = [64, 1024];
/// Compiling takes as long as for so many steps more.
pub(crate) const FIXED_STEPS: u64 = 32;

impl Engine {
    /// The engine that `SOFTGPU_ENGINE=interp|jit|quick|auto` asks for; [`Engine::Auto`] if it asks for nothing.
    pub fn current() -> Engine {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        *ENGINE.get_or_init(|| match std::env::var("SOFTGPU_ENGINE").as_deref() {
            Ok("interp") => Engine::Interp,
            Ok("jit") => Engine::Jit,
            Ok("quick") => Engine::Quick,
            Ok("auto" | "") | Err(_) => Engine::Auto,
            Ok(other) => {
                tracing::warn!("SOFTGPU_ENGINE={other} is none of interp, jit, quick and auto; auto it is");
                Engine::Auto
            }
        })
    }

    /// Its name in `SOFTGPU_ENGINE`.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Interp => "interp",
            Engine::Jit => "jit",
            Engine::Quick => "quick",
            Engine::Auto => "auto",
        }
    }
}
