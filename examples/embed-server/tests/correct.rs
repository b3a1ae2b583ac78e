// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's embeddings: equal to those of another implementation, and with the same bits in every batch.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod corpus;

use std::collections::BTreeSet;

use embed_reference::Reference;
use embed_server::embedder::{EmbedError, Embedder, Sentence};
use embed_server::engine::{Engine, Parameters, Precision};
use embed_server::model::{Config, Weights};
use stasis_tests::gpu;

use self::corpus::{GENERATED, corpus, model, tokenizer, words};

/// Tokens of a batch: some fifty short sentences, or two of the longest.
const BUDGET: usize = 1024;

/// The largest error of an embedding: 1 minus the cosine of the angle to the reference's.
const BOUNDS: [(Precision, f64); 2] = [(Precision::F32, 1e-5), (Precision::F16, 1e-3)];

/// The model on the device that the suite is run over.
fn open(precision: Precision) -> Engine {
    let runtime = gpu::open();
    let agent = runtime.agent(0).unwrap();
    let config = Config::open(&model()).unwrap();
    let weights = Weights::open(&model()).unwrap();
    let parameters = Parameters::new(&config, &weights, precision).unwrap();
    Engine::open(&runtime, &agent, &parameters, BUDGET).unwrap()
}

#[test]
fn batches_allocate_nothing_on_the_device_and_have_a_time_for_every_kernel() {
    let runtime = gpu::open();
    let agent = runtime.agent(0).unwrap();
    let (config, weights) = (Config::open(&model()).unwrap(), Weights::open(&model()).unwrap());
    let parameters = Parameters::new(&config, &weights, Precision::F16).unwrap();
    let mut engine = Engine::open(&runtime, &agent, &parameters, BUDGET).unwrap();
    let tokenizer = tokenizer();
    let sentences = [3, 200, 1].map(|count| tokenizer.sentence(&words(count)).unwrap());
    embed(&mut engine, &sentences[..1]);
    let before = format!("{:?}", runtime.memory_stats());
    for n in 0..12 {
        embed(&mut engine, &sentences[n % 3..]);
    }
    assert_eq!(format!("{:?}", runtime.memory_stats()), before);

    let times = engine.profile(&runtime, &agent, &sentences).unwrap();
    let dispatches: u32 = times.iter().map(|kernel| kernel.dispatches).sum();
    assert_eq!((times.len(), dispatches), (8, 50), "{times:?}");
    assert!(times.iter().all(|kernel| !kernel.time.is_zero()), "{times:?}");
    // The profiled engine computes the same.
    embed(&mut engine, &sentences);
}

/// One batch's embeddings: one for each sentence.
fn embed(embedder: &mut dyn Embedder, batch: &[Sentence]) -> Vec<Vec<f32>> {
    let mut out = vec![f32::NAN; 3];
    embedder.embed(batch, &mut out).unwrap();
    let dimensions = embedder.dimensions();
    assert_eq!(out.len(), batch.len() * dimensions);
    out.chunks_exact(dimensions).map(<[f32]>::to_vec).collect()
}

/// Embeddings of all sentences, in batches as full as their order allows.
fn embed_all(embedder: &mut dyn Embedder, sentences: &[Sentence]) -> Vec<Vec<f32>> {
    let (mut all, mut batch, mut tokens) = (Vec::new(), Vec::new(), 0);
    for sentence in sentences {
        if tokens + sentence.tokens() > embedder.max_batch_tokens() {
            all.extend(embed(embedder, &batch));
            batch.clear();
            tokens = 0;
        }
        batch.push(sentence.clone());
        tokens += sentence.tokens();
    }
    all.extend(embed(embedder, &batch));
    all
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot: f64 = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    1.0 - dot / (length(a) * length(b))
}

/// Texts of the corpus as sentences, and one sentence of all the positions that the model has, twice the tokenizer's
/// limit. One text of each kind or language is used, with `STASIS_EVERY_SENTENCE=1` all; all generated texts are always
/// used.
fn sentences() -> Vec<(String, Sentence)> {
    let tokenizer = tokenizer();
    let every = std::env::var("STASIS_EVERY_SENTENCE").is_ok_and(|value| value == "1");
    let mut kinds = BTreeSet::new();
    let mut all: Vec<(String, Sentence)> = corpus()
        .into_iter()
        .filter(|(kind, _)| kinds.insert(kind.clone()) || every || kind == GENERATED)
        .map(|(kind, text)| (format!("{kind}: {text:?}"), tokenizer.sentence(&text).unwrap()))
        .collect();
    let longest: Vec<u32> = (0..512).map(|position| 1000 + 37 * position).collect();
    all.push(("every position".to_owned(), Sentence::new(longest)));
    all
}

#[test]
fn every_kind_of_sentence_at_either_precision_is_what_the_reference_makes_of_it() {
    let reference = Reference::open(&model()).unwrap();
    let (names, sentences): (Vec<String>, Vec<Sentence>) = sentences().into_iter().unzip();
    let ids: Vec<Vec<u32>> = sentences.iter().map(|sentence| sentence.ids().to_vec()).collect();
    let expected = reference.embed(&ids).unwrap();
    for (precision, bound) in BOUNDS {
        let found = embed_all(&mut open(precision), &sentences);
        assert_eq!(found.len(), expected.len());
        let (mut worst, mut at) = (0.0, "");
        for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
            assert!(found.iter().all(|x| x.is_finite()), "{precision:?}, {name}: {found:?}");
            let length = length(found);
            assert!((length - 1.0).abs() < 1e-5, "{precision:?}, {name}: length {length}");
            let distance = distance(found, expected);
            assert!(distance <= bound, "{precision:?}, {name}: distance {distance:e}, over {bound:e}");
            if distance > worst {
                (worst, at) = (distance, name);
            }
        }
        println!("{precision:?}: {} sentences, at most {worst:e} off: {at}", found.len());
    }
}

/// Sentences of the lengths where tiles begin and end, and some texts.
fn subjects() -> Vec<Sentence> {
    let tokenizer = tokenizer();
    let lengths = [0, 1, 13, 14, 15, 30, 31, 62, 254];
    let texts = ["Где лежит запасной ключ?", "猫がサーバーの上で寝ている。"];
    let lengths = lengths.into_iter().map(words);
    lengths.chain(texts.map(str::to_owned)).map(|text| tokenizer.sentence(&text).unwrap()).collect()
}

/// Batches with every subject, each time with other neighbours and at other rows.
fn batches(subjects: &[Sentence]) -> Vec<Vec<Sentence>> {
    let reversed: Vec<Sentence> = subjects.iter().rev().cloned().collect();
    let tokens: usize = subjects.iter().map(Sentence::tokens).sum();
    // They begin at other rows of a tile.
    let shifted = |by: usize| {
        let filler = (0..by).map(|_| Sentence::new([7592]));
        filler.chain(subjects.iter().cloned()).collect::<Vec<Sentence>>()
    };
    // Full to the last row.
    let mut full = reversed.clone();
    let rest = BUDGET - tokens;
    full.extend((0..rest / 64).map(|index| Sentence::new(vec![2000 + 11 * index as u32; 64])));
    full.push(Sentence::new(vec![2088; rest % 64]));
    let third = full.len() / 3;
    full.rotate_right(third);
    assert_eq!(full.iter().map(Sentence::tokens).sum::<usize>(), BUDGET);
    vec![subjects.to_vec(), reversed, shifted(7), full]
}

#[test]
fn a_sentence_has_the_same_bits_alone_and_among_any_neighbours() {
    let subjects = subjects();
    for (precision, _) in BOUNDS {
        let mut engine = open(precision);
        let bits = |embedding: &[f32]| embedding.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        let alone: Vec<Vec<u32>> = subjects
            .iter()
            .map(|subject| bits(&embed(&mut engine, std::slice::from_ref(subject))[0]))
            .collect();
        for (number, batch) in batches(&subjects).iter().enumerate() {
            let together = embed(&mut engine, batch);
            for (subject, alone) in subjects.iter().zip(&alone) {
                let row = batch.iter().position(|sentence| sentence == subject).unwrap();
                let tokens = subject.tokens();
                assert!(
                    bits(&together[row]) == *alone,
                    "{precision:?}: a sentence of {tokens} tokens is another in batch {number}"
                );
            }
        }
        // The same sentence as often as fits: all embeddings are equal.
        let again = vec![subjects[5].clone(); BUDGET / subjects[5].tokens()];
        assert!(
            embed(&mut engine, &again).iter().all(|embedding| bits(embedding) == alone[5]),
            "{precision:?}"
        );
    }
}

#[test]
fn a_batch_that_is_refused_leaves_nothing_behind() {
    let mut engine = open(Precision::F16);
    let good = [tokenizer().sentence("The ferry left.").unwrap()];
    let expected = embed(&mut engine, &good);
    let full = |tokens: usize| vec![Sentence::new(vec![2088; tokens / 8]); 8];
    let bad: [(&str, Vec<Sentence>); 4] = [
        ("a token too many", [full(BUDGET), good.to_vec()].concat()),
        ("no tokens", vec![good[0].clone(), Sentence::new([])]),
        ("beyond the positions", vec![Sentence::new(vec![2088; 513])]),
        ("beyond the vocabulary", vec![good[0].clone(), Sentence::new([101, 30522, 102])]),
    ];
    for (what, batch) in bad {
        let mut out = vec![1.0; 7];
        let error = engine.embed(&batch, &mut out).unwrap_err();
        match (what, &error) {
            ("a token too many", EmbedError::TooLarge { sentences: 9, limit: BUDGET, .. }) => {}
            ("no tokens" | "beyond the vocabulary", EmbedError::Sentence { index: 1, .. }) => {}
            ("beyond the positions", EmbedError::Sentence { index: 0, .. }) => {}
            _ => panic!("{what}: {error:?}"),
        }
        assert!(out.is_empty(), "{what}");
        assert_eq!(embed(&mut engine, &good), expected, "after {what}");
    }
    assert!(embed(&mut engine, &[]).is_empty());
}
