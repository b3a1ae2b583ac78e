// SPDX-License-Identifier: MIT OR Apache-2.0
//! The FIFO of requests, and the rule by which a batch is taken from its front.
//!
//! INVARIANT: sentences leave in the order in which they came, each once; a batch is the longest prefix within its
//! budget. So no sentence overtakes another, and none starves. The counts are those of the sentences that are still in
//! line.

use std::collections::VecDeque;
use std::time::Instant;

use crate::embedder::Sentence;

/// Requests in line, each with an owner that gets its rows.
#[derive(Debug)]
pub(super) struct Line<T> {
    /// Ids ascend.
    waiting: VecDeque<Waiting<T>>,
    next: u64,
    sentences: usize,
    tokens: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    id: u64,
    owner: T,
    /// The sentences not taken yet; before them were `taken` others.
    rest: VecDeque<Sentence>,
    taken: usize,
    arrived: Instant,
}

/// Sentences of one request in a batch.
#[derive(Debug)]
pub(super) struct Share<T> {
    /// The request.
    pub(super) id: u64,
    /// The owner of the request.
    pub(super) owner: T,
    /// Index in the request of the first of them.
    pub(super) first: usize,
    /// How many.
    pub(super) count: usize,
}

/// What is embedded at once.
#[derive(Debug)]
pub(super) struct Batch<T> {
    /// Sentences of all shares, in their order.
    pub(super) sentences: Vec<Sentence>,
    /// The owner of the request.
    pub(super) shares: Vec<Share<T>>,
    /// Tokens of all sentences.
    pub(super) tokens: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), next: 0, sentences: 0, tokens: 0 }
    }
}

impl<T: Clone> Line<T> {
    /// Sentences in line.
    pub(super) fn sentences(&self) -> usize {
        self.sentences
    }

    /// Tokens in line.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// When the first in line came.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.arrived)
    }

    /// Puts a request at the end of the line. Its id is the argument of [`Line::remove`].
    pub(super) fn push(&mut self, owner: T, sentences: Vec<Sentence>, arrived: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        if !sentences.is_empty() {
            self.sentences += sentences.len();
            self.tokens += sentences.iter().map(Sentence::tokens).sum::<usize>();
            self.waiting.push_back(Waiting { id, owner, rest: sentences.into(), taken: 0, arrived });
        }
        id
    }

    /// Takes a batch of at most `budget` tokens from the front. It is empty only if the line is, or if the first
    /// sentence alone exceeds the budget.
    pub(super) fn take(&mut self, budget: usize) -> Batch<T> {
        let mut batch = Batch { sentences: Vec::new(), shares: Vec::new(), tokens: 0 };
        while let Some(front) = self.waiting.front_mut() {
            let first = front.taken;
            while let Some(sentence) = front.rest.pop_front_if(|s| batch.tokens + s.tokens() <= budget) {
                batch.tokens += sentence.tokens();
                batch.sentences.push(sentence);
                front.taken += 1;
            }
            let count = front.taken - first;
            if count > 0 {
                batch.shares.push(Share { id: front.id, owner: front.owner.clone(), first, count });
            }
            if !front.rest.is_empty() {
                break;
            }
            self.waiting.pop_front();
        }
        self.sentences -= batch.sentences.len();
        self.tokens -= batch.tokens;
        batch
    }

    /// Empties the line. Returns the owners of the requests that were in it.
    pub(super) fn clear(&mut self) -> Vec<T> {
        (self.sentences, self.tokens) = (0, 0);
        self.waiting.drain(..).map(|waiting| waiting.owner).collect()
    }

    /// Removes the waiting sentences of a request from the line. Returns whether there were any.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Ok(at) = self.waiting.binary_search_by_key(&id, |waiting| waiting.id) else {
            return false;
        };
        let Some(gone) = self.waiting.remove(at) else {
            return false;
        };
        self.sentences -= gone.rest.len();
        self.tokens -= gone.rest.iter().map(Sentence::tokens).sum::<usize>();
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Act {
        Push(Vec<usize>),
        Take(usize),
        Remove(usize),
    }

    const LONGEST: usize = 20;

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => prop::collection::vec(1..=LONGEST, 0..8).prop_map(Act::Push),
            3 => (LONGEST..60).prop_map(Act::Take),
            1 => (0..30usize).prop_map(Act::Remove),
        ]
    }

    proptest! {
        /// Compares with a model that keeps each sentence separately: which sentences come out, in which order, and the
        /// counts.
        #[test]
        fn line_takes_longest_prefixes_in_order(acts in prop::collection::vec(act(), 1..60)) {
            let mut line = Line::default();
            // Request, index in it, tokens.
            let mut model: VecDeque<(u64, usize, usize)> = VecDeque::new();
            for act in acts {
                match act {
                    Act::Push(lengths) => {
                        let sentences = lengths.iter().map(|n| Sentence::new(vec![0; *n])).collect();
                        let id = line.push((), sentences, Instant::now());
                        model.extend(lengths.iter().enumerate().map(|(i, n)| (id, i, *n)));
                    }
                    Act::Take(budget) => {
                        let batch = line.take(budget);
                        prop_assert!(batch.tokens <= budget);
                        let rows: Vec<_> = batch
                            .shares
                            .iter()
                            .flat_map(|s| (s.first..s.first + s.count).map(|i| (s.id, i)))
                            .zip(&batch.sentences)
                            .map(|((id, i), s)| (id, i, s.tokens()))
                            .collect();
                        prop_assert_eq!(rows.len(), batch.sentences.len());
                        prop_assert_eq!(batch.tokens, rows.iter().map(|r| r.2).sum::<usize>());
                        for row in &rows {
                            prop_assert_eq!(Some(*row), model.pop_front());
                        }
                        // One more would not have fitted.
                        if let Some(next) = model.front() {
                            prop_assert!(batch.tokens + next.2 > budget);
                        }
                    }
                    Act::Remove(id) => {
                        let before = model.len();
                        model.retain(|row| row.0 != id as u64);
                        prop_assert_eq!(line.remove(id as u64), model.len() < before);
                    }
                }
                prop_assert_eq!(line.sentences(), model.len());
                prop_assert_eq!(line.tokens(), model.iter().map(|r| r.2).sum::<usize>());
                prop_assert_eq!(line.oldest().is_none(), model.is_empty());
            }
        }
    }

    #[test]
    fn take_sentence_over_budget_is_empty_and_keeps_it() {
        let mut line = Line::default();
        line.push((), vec![Sentence::new(vec![1; 9])], Instant::now());

        assert!(line.take(8).sentences.is_empty());
        assert_eq!(line.take(9).sentences.len(), 1);
    }
}
