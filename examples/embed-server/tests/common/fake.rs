// SPDX-License-Identifier: MIT OR Apache-2.0
//! An embedder whose rows are hashes of the ids, and whose batches begin and fail when the test wants.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use embed_server::embedder::{EmbedError, Embedder, Sentence};

/// A batch with this token fails as a device does.
pub const FAIL: u32 = 5;
/// A batch with this token makes the embedder panic.
pub const PANIC: u32 = 6;
/// A batch with this token has a row that is no number.
pub const NAN: u32 = 7;
/// A batch with this token loses the device.
pub const LOSE: u32 = 8;
/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The row of a sentence: of length 1, and different for different ids.
pub fn row(ids: &[u32], dimensions: usize) -> Vec<f32> {
    let mut state = ids.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, id| {
        (hash ^ u64::from(*id)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    });
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f32::from(i16::try_from(state % 2001).unwrap() - 1000) + 0.5
    };
    let row: Vec<f32> = (0..dimensions).map(|_| next()).collect();
    let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    row.iter().map(|x| x / length).collect()
}

/// A test's control over its fakes.
#[derive(Debug, Default)]
pub struct Control {
    flow: Mutex<Flow>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Flow {
    held: bool,
    /// Batches go on until no request wants them.
    watched: bool,
    lost: bool,
    begun: Vec<Vec<Sentence>>,
    dropped: usize,
}

impl Control {
    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap()
    }

    /// Batches begin, and end after [`Control::release`].
    pub fn hold(&self) {
        self.flow().held = true;
    }

    /// Batches begin, and end when no request wants them, or after [`Control::release`].
    pub fn watch(&self) {
        self.flow().watched = true;
    }

    /// The device is lost, as an embedder finds when it looks.
    pub fn lose(&self) {
        self.flow().lost = true;
    }

    /// Lets all batches end, now and later.
    pub fn release(&self) {
        let mut flow = self.flow();
        (flow.held, flow.watched) = (false, false);
        drop(flow);
        self.changed.notify_all();
    }

    /// The batches that begun so far.
    pub fn begun(&self) -> Vec<Vec<Sentence>> {
        self.flow().begun.clone()
    }

    /// Waits until so many batches have begun.
    pub fn await_begun(&self, batches: usize) {
        self.wait("batches to begin", |flow| flow.begun.len() >= batches);
    }

    /// Waits until so many embedders are dropped.
    pub fn await_dropped(&self, embedders: usize) {
        self.wait("embedders to be dropped", |flow| flow.dropped >= embedders);
    }

    fn wait(&self, what: &str, reached: impl Fn(&Flow) -> bool) {
        let (_flow, result) =
            self.changed.wait_timeout_while(self.flow(), PATIENCE, |flow| !reached(flow)).unwrap();
        assert!(!result.timed_out(), "waited in vain for {what}");
    }
}

/// The embedder.
#[derive(Debug)]
pub struct Fake {
    pub control: Arc<Control>,
    pub dimensions: usize,
    pub budget: usize,
}

impl Fake {
    /// One with a control of its own.
    pub fn boxed(control: &Arc<Control>, dimensions: usize, budget: usize) -> Box<dyn Embedder> {
        Box::new(Fake { control: control.clone(), dimensions, budget })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.control.flow().dropped += 1;
        self.control.changed.notify_all();
    }
}

impl Embedder for Fake {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn max_batch_tokens(&self) -> usize {
        self.budget
    }

    fn embed(&mut self, sentences: &[Sentence], out: &mut Vec<f32>) -> Result<(), EmbedError> {
        let mut flow = self.control.flow();
        flow.begun.push(sentences.to_vec());
        self.control.changed.notify_all();
        drop(self.control.changed.wait_while(flow, |flow| flow.held).unwrap());
        let tokens = sentences.iter().map(Sentence::tokens).sum();
        if tokens > self.budget {
            return Err(EmbedError::TooLarge { sentences: sentences.len(), tokens, limit: self.budget });
        }
        let has = |token| sentences.iter().any(|s| s.ids().contains(&token));
        if has(LOSE) {
            return Err(EmbedError::Lost { act: "made to be lost", source: "the test's wish".into() });
        }
        if has(FAIL) {
            return Err(EmbedError::Device { act: "made to fail", tokens, source: "the test's wish".into() });
        }
        assert!(!has(PANIC), "the test's wish");
        out.clear();
        for sentence in sentences {
            out.extend(row(sentence.ids(), self.dimensions));
        }
        if has(NAN) {
            out[0] = f32::NAN;
        }
        Ok(())
    }

    fn embed_while(
        &mut self,
        sentences: &[Sentence],
        out: &mut Vec<f32>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), EmbedError> {
        if !self.control.flow().watched {
            return self.embed(sentences, out);
        }
        self.control.flow().begun.push(sentences.to_vec());
        self.control.changed.notify_all();
        while self.control.flow().watched {
            if !wanted() {
                return Err(EmbedError::Abandoned { done: 1, layers: 6 });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        out.clear();
        out.extend(sentences.iter().flat_map(|sentence| row(sentence.ids(), self.dimensions)));
        Ok(())
    }

    fn check(&self) -> Result<(), EmbedError> {
        match self.control.flow().lost {
            true => Err(EmbedError::Lost { act: "looked for", source: "the test's wish".into() }),
            false => Ok(()),
        }
    }
}
