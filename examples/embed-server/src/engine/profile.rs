// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long each kernel of a batch takes, by the agent's own clock.

use std::cell::RefCell;
use std::time::Duration;

use stasis::{Agent, AllocError, Runtime, Signal};

use super::Engine;
use super::error::EngineError;
use crate::embedder::{EmbedError, Embedder, Sentence};

/// A kernel's part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// The kernel.
    pub kernel: String,
    /// Its dispatches.
    pub dispatches: u32,
    /// From their first work-group's beginning to their last one's end, added.
    pub time: Duration,
}

/// A signal for each packet of a batch.
#[derive(Debug)]
pub(super) struct Profile {
    signals: Vec<Signal>,
    /// Which kernel each of the first signals is of.
    names: RefCell<Vec<String>>,
}

impl Profile {
    fn new(runtime: &Runtime, packets: usize) -> Result<Self, AllocError> {
        let signals = (0..packets).map(|_| Signal::new(runtime, 0)).collect::<Result<_, _>>()?;
        Ok(Self { signals, names: RefCell::default() })
    }

    /// The next packet's signal.
    pub(super) fn next(&self, kernel: &str) -> Option<&Signal> {
        let mut names = self.names.borrow_mut();
        names.push(kernel.to_owned());
        self.signals.get(names.len() - 1)
    }

    /// What was spent.
    fn spent(&self, agent: &Agent) -> Result<Vec<KernelTime>, AllocError> {
        let mut spent: Vec<KernelTime> = Vec::new();
        for (name, signal) in self.names.borrow_mut().drain(..).zip(&self.signals) {
            let (begin, end) = signal.system_times(agent)?;
            let time = Duration::from_nanos(end.saturating_sub(begin));
            match spent.iter_mut().find(|of| of.kernel == name) {
                Some(of) => {
                    of.dispatches += 1;
                    of.time += time;
                }
                None => spent.push(KernelTime { kernel: name, dispatches: 1, time }),
            }
        }
        Ok(spent)
    }
}

impl Engine {
    /// Embeds a batch with a time stamp at each kernel, which costs a little more than [`Embedder::embed`].
    ///
    /// # Errors
    /// As for [`Embedder::embed`]; [`EngineError::Memory`] and [`EngineError::Clock`] inside of [`EmbedError::Device`].
    pub fn profile(
        &mut self,
        runtime: &Runtime,
        agent: &Agent,
        sentences: &[Sentence],
    ) -> Result<Vec<KernelTime>, EmbedError> {
        let tokens = sentences.iter().map(Sentence::tokens).sum();
        let device = |act| move |source| EmbedError::Device { act, tokens, source };
        let packets = 8 * (self.shape.layers.len() + 1);
        let profile = Profile::new(runtime, packets)
            .map_err(|source| EngineError::Memory { what: "signals", source })
            .map_err(|why| device("taking times")(why.into()))?;
        self.profile = Some(profile);
        let mut out = Vec::new();
        let embedded = self.embed(sentences, &mut out);
        let profile = self.profile.take();
        embedded?;
        let spent = profile.map_or(Ok(Vec::new()), |profile| profile.spent(agent));
        spent.map_err(|why| device("reading its clock")(EngineError::Clock(why.into()).into()))
    }
}
