// SPDX-License-Identifier: MIT OR Apache-2.0
//! The batcher with fake embedders, whose batches begin and end when the test wants.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../tests/common/fake.rs"]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use self::fake::{Control, FAIL, Fake, LOSE, NAN, PANIC, row};
use super::*;
use crate::embedder::{EmbedError, Embedder, ReopenError};

const DIMENSIONS: usize = 4;
const BUDGET: usize = 16;

fn options() -> BatchOptions {
    BatchOptions { queue_tokens: 64, queue_sentences: 8, wait: Duration::ZERO, backoff: quick() }
}

/// Enough attempts for a test, without long waits.
fn quick() -> Backoff {
    Backoff { attempts: 4, first: Duration::from_millis(1), longest: Duration::from_millis(4) }
}

fn start(agents: usize, options: BatchOptions) -> (Batcher, Arc<Control>) {
    let control = Arc::new(Control::default());
    let embedders: Vec<_> = (0..agents).map(|_| Fake::boxed(&control, DIMENSIONS, BUDGET)).collect();
    (Batcher::start(embedders, options).unwrap(), control)
}

/// A sentence of so many tokens, different from all others.
fn sentence(name: u32, tokens: usize) -> Sentence {
    Sentence::new(vec![1000 + name; tokens])
}

fn special(token: u32) -> Sentence {
    Sentence::new(vec![token])
}

fn assert_rows(embeddings: &Embeddings, sentences: &[Sentence]) {
    let expected: Vec<_> = sentences.iter().map(|s| row(s.ids(), DIMENSIONS)).collect();
    assert_eq!(embeddings.rows().collect::<Vec<_>>(), expected);
}

/// Occupies the only agent: later requests stay in line until a batch has passed.
fn occupy(batcher: &Batcher, control: &Control) -> Pending {
    control.hold();
    let first = batcher.submit(vec![sentence(999, 1)]).unwrap();
    control.await_begun(1);
    first
}

#[tokio::test]
async fn request_gets_its_rows_in_order() {
    let (batcher, _) = start(1, options());
    let sentences = vec![sentence(1, 3), sentence(2, 1), sentence(1, 3)];

    let rows = batcher.submit(sentences.clone()).unwrap().await.unwrap();

    assert_rows(&rows, &sentences);
}

#[tokio::test]
async fn request_without_sentences_is_answered_at_once() {
    let (batcher, control) = start(1, options());

    assert_eq!(batcher.submit(vec![]).unwrap().await.unwrap().rows().len(), 0);
    assert!(control.begun().is_empty());
}

#[tokio::test]
async fn batches_are_prefixes_within_the_budget_and_split_requests() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);
    let requests =
        [vec![sentence(1, 6), sentence(2, 6), sentence(3, 6)], vec![sentence(4, 9)], vec![sentence(5, 1)]];
    let pending: Vec<_> = requests.iter().map(|r| batcher.submit(r.clone()).unwrap()).collect();

    control.release();
    first.await.unwrap();
    for (pending, sentences) in pending.into_iter().zip(&requests) {
        assert_rows(&pending.await.unwrap(), sentences);
    }

    let batches: Vec<Vec<usize>> =
        control.begun().iter().map(|b| b.iter().map(Sentence::tokens).collect()).collect();
    assert_eq!(batches, [vec![1], vec![6, 6], vec![6, 9, 1]]);
}

#[tokio::test]
async fn full_queue_refuses_whole_requests_until_there_is_room() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);
    let six = batcher.submit((0..6).map(|i| sentence(i, 1)).collect()).unwrap();

    let refused = batcher.submit((0..3).map(|i| sentence(i, 1)).collect()).unwrap_err();
    assert!(
        matches!(refused, SubmitError::Full { sentences: 3, waiting_sentences: 6, queue_sentences: 8, .. }),
        "{refused:?}"
    );
    assert!(matches!(batcher.admits(3), Err(SubmitError::Full { .. })));
    assert_eq!(batcher.metrics().queued(), 6);
    let two = batcher.submit(vec![sentence(7, 1), sentence(8, 1)]).unwrap();

    control.release();
    first.await.unwrap();
    assert_eq!(six.await.unwrap().rows().len(), 6);
    assert_eq!(two.await.unwrap().rows().len(), 2);
    batcher.submit((0..3).map(|i| sentence(i, 1)).collect()).unwrap().await.unwrap();
}

#[tokio::test]
async fn full_queue_is_full_in_tokens_too() {
    let (batcher, control) = start(1, options());
    let _first = occupy(&batcher, &control);
    let _waiting = batcher.submit(vec![sentence(1, 15); 4]).unwrap();

    let refused = batcher.submit(vec![sentence(2, 5)]).unwrap_err();

    assert!(matches!(refused, SubmitError::Full { tokens: 5, waiting_tokens: 60, .. }), "{refused:?}");
    batcher.submit(vec![sentence(2, 4)]).unwrap();
    control.release();
}

#[test]
fn requests_that_never_fit_are_told_so() {
    let (batcher, _) = start(1, options());

    let many = batcher.submit(vec![sentence(1, 1); 9]).unwrap_err();
    let large = batcher.submit(vec![sentence(1, 13); 5]).unwrap_err();
    let long = batcher.submit(vec![sentence(1, 16), sentence(1, 17)]).unwrap_err();

    assert_eq!(many, SubmitError::TooMany { sentences: 9, limit: 8 });
    assert_eq!(large, SubmitError::TooLarge { tokens: 65, limit: 64 });
    assert_eq!(long, SubmitError::Sentence { index: 1, tokens: 17, limit: 16 });
}

#[tokio::test]
async fn failed_batch_fails_its_requests_only() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);
    // One batch: the end of `before`, and the beginning of `failing`, whose last sentence then leaves the line.
    let before = batcher.submit(vec![sentence(1, 2)]).unwrap();
    let failing = batcher.submit(vec![special(FAIL), sentence(2, 13), sentence(3, 2)]).unwrap();
    let after = batcher.submit(vec![sentence(4, 3)]).unwrap();

    control.release();

    first.await.unwrap();
    assert!(matches!(before.await, Err(BatchError::Failed(_))));
    assert!(matches!(failing.await, Err(BatchError::Failed(_))));
    assert_rows(&after.await.unwrap(), &[sentence(4, 3)]);
    assert!(!control.begun().concat().contains(&sentence(3, 2)), "the rest of a failed request was embedded");
}

#[tokio::test]
async fn worker_outlives_panics_and_wrong_rows() {
    let (batcher, _) = start(1, options());

    let panicked = batcher.submit(vec![special(PANIC)]).unwrap().await;
    let wrong = batcher.submit(vec![special(NAN)]).unwrap().await;
    let right = batcher.submit(vec![sentence(1, 2)]).unwrap().await;

    assert!(matches!(panicked, Err(BatchError::Panicked { tokens: 1 })), "{panicked:?}");
    assert!(matches!(wrong, Err(BatchError::Wrong { sentences: 1, .. })), "{wrong:?}");
    assert_rows(&right.unwrap(), &[sentence(1, 2)]);
}

#[tokio::test]
async fn abandoned_request_leaves_the_queue_unembedded() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);
    let abandoned = batcher.submit(vec![sentence(1, 1); 8]).unwrap();
    assert!(batcher.submit(vec![sentence(2, 1)]).is_err());

    drop(abandoned);
    assert_eq!(batcher.metrics().queued(), 0);
    let next = batcher.submit(vec![sentence(2, 1)]).unwrap();
    control.release();

    first.await.unwrap();
    next.await.unwrap();
    assert_eq!(control.begun().concat(), [sentence(999, 1), sentence(2, 1)]);
}

#[tokio::test]
async fn request_abandoned_in_its_batch_harms_nobody() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);

    drop(first);
    let next = batcher.submit(vec![sentence(1, 2)]).unwrap();
    control.release();

    assert_rows(&next.await.unwrap(), &[sentence(1, 2)]);
}

#[tokio::test]
async fn close_drains_what_was_accepted() {
    let (batcher, control) = start(2, options());
    control.hold();
    let pending: Vec<_> = (0..6).map(|i| batcher.submit(vec![sentence(i, 9)]).unwrap()).collect();

    batcher.close();
    assert_eq!(batcher.submit(vec![sentence(9, 1)]).unwrap_err(), SubmitError::Closed);
    control.release();
    batcher.join();

    control.await_dropped(2);
    for (i, pending) in (0..).zip(pending) {
        assert_rows(&pending.await.unwrap(), &[sentence(i, 9)]);
    }
}

#[test]
fn dropped_batcher_ends_its_threads() {
    let (batcher, control) = start(3, options());

    drop(batcher);

    control.await_dropped(3);
}

#[tokio::test]
async fn agents_embed_beside_each_other() {
    let (batcher, control) = start(2, options());
    control.hold();
    let sentences = [sentence(1, 9), sentence(2, 9)];

    let [one, other] = sentences.clone().map(|s| batcher.submit(vec![s]).unwrap());
    // Neither can end before the other has begun.
    control.await_begun(2);
    control.release();

    assert_rows(&one.await.unwrap(), &sentences[..1]);
    assert_rows(&other.await.unwrap(), &sentences[1..]);
}

#[tokio::test]
async fn many_requests_of_all_sizes_get_their_own_rows() {
    let (batcher, _) =
        start(3, BatchOptions { queue_tokens: 1 << 20, queue_sentences: 1 << 20, ..options() });
    let request = |i: u32| -> Vec<_> {
        let count = i % 7 + 1;
        (0..count).map(|j| sentence(i * 7 + j, 1 + (i * j % 16) as usize)).collect()
    };

    let pending: Vec<_> = (0..500).map(|i| batcher.submit(request(i)).unwrap()).collect();

    for (i, pending) in (0..).zip(pending) {
        assert_rows(&pending.await.unwrap(), &request(i));
    }
}

#[tokio::test]
async fn batch_waits_to_fill_until_full_or_closed() {
    let (batcher, control) = start(1, BatchOptions { wait: Duration::from_secs(3600), ..options() });

    let pending: Vec<_> = (0..4).map(|i| batcher.submit(vec![sentence(i, 4)]).unwrap()).collect();
    for pending in pending {
        pending.await.unwrap();
    }
    assert_eq!(control.begun().len(), 1);
    let last = batcher.submit(vec![sentence(9, 1)]).unwrap();
    batcher.join();

    last.await.unwrap();
}

#[tokio::test]
async fn batch_waits_no_longer_than_it_may() {
    let (batcher, _) = start(1, BatchOptions { wait: Duration::from_millis(5), ..options() });

    assert_rows(&batcher.submit(vec![sentence(1, 1)]).unwrap().await.unwrap(), &[sentence(1, 1)]);
}

#[test]
fn start_needs_embedders_of_one_model() {
    let control = Arc::new(Control::default());
    let fakes = |dimensions: &[usize]| -> Vec<Box<dyn Embedder>> {
        dimensions.iter().map(|n| Fake::boxed(&control, *n, 8)).collect()
    };

    assert!(matches!(Batcher::start(Vec::<OpenAgent>::new(), options()), Err(StartError::NoEmbedders)));
    assert!(matches!(Batcher::start(fakes(&[0]), options()), Err(StartError::NoDimensions)));
    let odd = Batcher::start(fakes(&[4, 8]), options());
    assert!(matches!(odd, Err(StartError::Dimensions { first: 4, other: 8 })));
}

/// An agent that is opened again with the results that a test gives.
fn reopened(
    control: &Arc<Control>,
    mut answers: impl FnMut() -> Result<(), ReopenError> + Send + 'static,
) -> OpenAgent {
    let again = control.clone();
    let reopen: crate::embedder::Reopen =
        Box::new(move || answers().map(|()| Fake::boxed(&again, DIMENSIONS, BUDGET)));
    OpenAgent { embedder: Fake::boxed(control, DIMENSIONS, BUDGET), reopen: Some(reopen) }
}

async fn reach(batcher: &Batcher, agents: Agents) {
    let mut seen = batcher.agents();
    let reached = seen.wait_for(|now| *now == agents);
    tokio::time::timeout(fake::PATIENCE, reached).await.expect("the agents did not get there").unwrap();
}

const NONE: Agents = Agents { serving: 0, reopening: 0, ended: 1 };

#[tokio::test]
async fn lost_agent_fails_its_batch_and_the_line_and_refuses_the_rest() {
    let (batcher, control) = start(1, options());
    let first = occupy(&batcher, &control);
    let lost = batcher.submit(vec![special(LOSE), sentence(1, 15)]).unwrap();
    let behind = batcher.submit(vec![sentence(2, 1)]).unwrap();

    control.release();

    first.await.unwrap();
    assert!(matches!(lost.await, Err(BatchError::Failed(why)) if matches!(*why, EmbedError::Lost { .. })));
    assert!(matches!(behind.await, Err(BatchError::NoAgent)));
    reach(&batcher, NONE).await;
    assert_eq!(batcher.submit(vec![sentence(3, 1)]).unwrap_err(), SubmitError::NoAgent);
    assert_eq!(batcher.admits(1), Err(SubmitError::NoAgent));
    assert_eq!(batcher.metrics().queued(), 0);
}

#[tokio::test]
async fn idle_agent_is_found_lost() {
    let (batcher, control) = start(1, options());

    control.lose();

    reach(&batcher, NONE).await;
    control.await_dropped(1);
}

#[tokio::test]
async fn other_agents_serve_on_when_one_is_lost() {
    let (batcher, _control) = start(2, options());

    let lost = batcher.submit(vec![special(LOSE)]).unwrap().await;

    assert!(matches!(lost, Err(BatchError::Failed(_))), "{lost:?}");
    reach(&batcher, Agents { serving: 1, reopening: 0, ended: 1 }).await;
    for i in 0..8 {
        assert_rows(&batcher.submit(vec![sentence(i, 3)]).unwrap().await.unwrap(), &[sentence(i, 3)]);
    }
}

#[tokio::test]
async fn lost_agent_is_opened_again_after_failures_and_panics() {
    let control = Arc::new(Control::default());
    let mut attempts = 0;
    let agent = reopened(&control, move || {
        attempts += 1;
        match attempts {
            1 => Err(ReopenError::Failed("not yet".into())),
            2 => panic!("the test's wish"),
            _ => Ok(()),
        }
    });
    let batcher = Batcher::start(vec![agent], options()).unwrap();

    assert!(batcher.submit(vec![special(LOSE)]).unwrap().await.is_err());

    // The lost embedder is dropped before another is made.
    control.await_dropped(1);
    reach(&batcher, Agents { serving: 1, reopening: 0, ended: 0 }).await;
    assert_rows(&batcher.submit(vec![sentence(1, 3)]).unwrap().await.unwrap(), &[sentence(1, 3)]);
}

#[tokio::test]
async fn attempts_to_open_an_agent_are_bounded_and_end_where_there_is_no_hope() {
    for (impossible, expected) in [(false, 4), (true, 1)] {
        let control = Arc::new(Control::default());
        let attempts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = attempts.clone();
        let agent = reopened(&control, move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let why = || "the test's wish".into();
            Err(if impossible { ReopenError::Impossible(why()) } else { ReopenError::Failed(why()) })
        });
        let batcher = Batcher::start(vec![agent], options()).unwrap();

        assert!(batcher.submit(vec![special(LOSE)]).unwrap().await.is_err());

        reach(&batcher, NONE).await;
        assert_eq!(attempts.load(std::sync::atomic::Ordering::Relaxed), expected);
        batcher.join();
    }
}

#[tokio::test]
async fn shutdown_does_not_wait_for_an_agent_that_is_opened_again() {
    let control = Arc::new(Control::default());
    let agent = reopened(&control, || Err(ReopenError::Failed("never".into())));
    let backoff = Backoff { attempts: u32::MAX, ..quick() };
    let long = Duration::from_secs(3600);
    let backoff = Backoff { first: long, longest: long, ..backoff };
    let batcher = Batcher::start(vec![agent], BatchOptions { backoff, ..options() }).unwrap();
    assert!(batcher.submit(vec![special(LOSE)]).unwrap().await.is_err());
    reach(&batcher, Agents { serving: 0, reopening: 1, ended: 0 }).await;

    batcher.join();
}

#[tokio::test]
async fn batch_that_nobody_wants_is_given_up() {
    let (batcher, control) = start(1, options());
    control.watch();
    let [one, other] = [1, 2].map(|i| batcher.submit(vec![sentence(i, 3)]).unwrap());
    control.await_begun(1);

    drop(one);
    let next = batcher.submit(vec![sentence(3, 3)]).unwrap();
    drop(other);

    // The batches before it never end by themselves.
    control.await_begun(2);
    control.release();
    assert_rows(&next.await.unwrap(), &[sentence(3, 3)]);
}
