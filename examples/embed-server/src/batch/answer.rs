// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects a request's rows from its batches.
//!
//! INVARIANT: the sender is used once: when the last row has come, or at the first error.

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::BatchError;

/// A request's embeddings: one row per sentence, in the request's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    numbers: Vec<f32>,
    dimensions: usize,
}

impl Embeddings {
    /// The rows.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.numbers.chunks_exact(self.dimensions)
    }
}

type Sender = oneshot::Sender<Result<Embeddings, BatchError>>;

/// Collects the rows of one request.
#[derive(Debug)]
pub(super) struct Answer {
    dimensions: usize,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    sender: Sender,
    numbers: Vec<f32>,
    missing: usize,
}

impl Answer {
    /// For a request of so many sentences. Without any it is answered at once.
    pub(super) fn new(
        sentences: usize,
        dimensions: usize,
    ) -> (Self, oneshot::Receiver<Result<Embeddings, BatchError>>) {
        let (sender, receiver) = oneshot::channel();
        let numbers = vec![0.0; sentences * dimensions];
        let answer =
            Self { dimensions, open: Mutex::new(Some(Open { sender, numbers, missing: sentences })) };
        answer.fill(0, &[]);
        (answer, receiver)
    }

    /// Takes the rows from `first` on, and answers when none is missing. Rows for a failed request are dropped.
    pub(super) fn fill(&self, first: usize, rows: &[f32]) {
        let mut open = self.open.lock();
        let Some(state) = open.as_mut() else {
            return;
        };
        let from = first * self.dimensions;
        if let Some(place) = state.numbers.get_mut(from..from + rows.len()) {
            place.copy_from_slice(rows);
            state.missing = state.missing.saturating_sub(rows.len() / self.dimensions);
        }
        if state.missing == 0
            && let Some(Open { sender, numbers, .. }) = open.take()
        {
            // A receiver that was dropped has withdrawn its request.
            let _ = sender.send(Ok(Embeddings { numbers, dimensions: self.dimensions }));
        }
    }

    /// Whether a receiver waits for the rows.
    pub(super) fn is_wanted(&self) -> bool {
        self.open.lock().as_ref().is_some_and(|open| !open.sender.is_closed())
    }

    /// Answers with an error, if it was not answered yet.
    pub(super) fn fail(&self, error: &BatchError) {
        if let Some(Open { sender, .. }) = self.open.lock().take() {
            let _ = sender.send(Err(error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_sent_when_the_last_row_is_in() {
        let (answer, mut receiver) = Answer::new(3, 2);

        answer.fill(1, &[3.0, 4.0, 5.0, 6.0]);
        assert!(receiver.try_recv().is_err());
        answer.fill(0, &[1.0, 2.0]);

        let rows = receiver.try_recv().unwrap().unwrap();
        assert_eq!(rows.rows().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    }

    #[test]
    fn answer_is_wanted_until_it_is_sent_or_its_receiver_is_gone() {
        let (answered, _receiver) = Answer::new(1, 1);
        let (abandoned, receiver) = Answer::new(1, 1);
        assert!(answered.is_wanted() && abandoned.is_wanted());

        answered.fill(0, &[1.0]);
        drop(receiver);

        assert!(!answered.is_wanted() && !abandoned.is_wanted());
    }

    #[test]
    fn answer_fails_once_and_takes_no_more_rows() {
        let (answer, mut receiver) = Answer::new(2, 1);

        answer.fail(&BatchError::Lost);
        answer.fail(&BatchError::Panicked { tokens: 1 });
        answer.fill(0, &[1.0, 2.0]);

        assert!(matches!(receiver.try_recv(), Ok(Err(BatchError::Lost))));
    }
}
