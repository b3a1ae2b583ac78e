// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's files: the tokens of texts, and the errors for files that are not a model's.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod corpus;

use std::error::Error;
use std::fs;
use std::path::Path;

use embed_server::embedder::Sentence;
use embed_server::model::{Config, ModelError, TokenizeError, Tokenizer, Weights};
use tempfile::TempDir;

use self::corpus::{corpus, model, tokenizer, words};

/// The tokens of texts by the model's own tokenizer, in Python.
const KNOWN: [(&str, &[u32]); 18] = [
    ("", &[101, 102]),
    ("   \t\n", &[101, 102]),
    ("This is an example sentence", &[101, 2023, 2003, 2019, 2742, 6251, 102]),
    ("Hello, world!", &[101, 7592, 1010, 2088, 999, 102]),
    ("HELLO, WORLD!", &[101, 7592, 1010, 2088, 999, 102]),
    ("unaffable", &[101, 14477, 20961, 3468, 102]),
    ("café", &[101, 7668, 102]),
    ("東京", &[101, 1879, 1755, 102]),
    ("🙂", &[101, 100, 102]),
    ("[MASK]", &[101, 103, 102]),
    ("[mask]", &[101, 1031, 7308, 1033, 102]),
    ("don't 3.14", &[101, 2123, 1005, 1056, 1017, 1012, 2403, 102]),
    ("Ёжик", &[101, 1185, 29743, 10325, 23925, 102]),
    ("a\0b", &[101, 11113, 102]),
    ("straße", &[101, 2358, 27807, 102]),
    ("กุญแจ", &[101, 100, 102]),
    ("x\t\ny", &[101, 1060, 1061, 102]),
    ("##ing", &[101, 1001, 1001, 13749, 102]),
];

#[test]
fn texts_become_the_ids_of_the_models_own_tokenizer() {
    let tokenizer = tokenizer();
    for (text, ids) in KNOWN {
        assert_eq!(tokenizer.sentence(text).unwrap().ids(), ids, "{text:?}");
    }
}

#[test]
fn a_word_of_more_than_a_hundred_letters_is_unknown() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.sentence(&"a".repeat(100)).unwrap().tokens(), 52);
    assert_eq!(tokenizer.sentence(&"a".repeat(101)).unwrap().ids(), [101, 100, 102]);
}

#[test]
fn every_text_of_the_corpus_is_a_sentence_within_the_limit() {
    let tokenizer = tokenizer();
    let texts = corpus();
    assert!(texts.len() >= 220, "{} texts", texts.len());
    let longest = texts
        .iter()
        .map(|(kind, text)| {
            let sentence = tokenizer.sentence(text).unwrap_or_else(|why| panic!("{kind}, {text:?}: {why}"));
            assert_eq!((sentence.ids()[0], sentence.ids().last()), (101, Some(&102)), "{text:?}");
            sentence.tokens()
        })
        .max();
    assert_eq!(longest, Some(256));
}

#[test]
fn a_text_at_the_limit_is_taken_and_one_beyond_is_refused_with_both_numbers() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.limit(), 256);
    assert_eq!(tokenizer.sentence(&words(254)).unwrap().tokens(), 256);
    assert_eq!(
        tokenizer.sentence(&words(255)).unwrap_err(),
        TokenizeError::TooLong { tokens: 257, limit: 256 }
    );
    assert_eq!(
        tokenizer.sentence(&words(5000)).unwrap_err().to_string(),
        "The text has 5002 tokens, the model's limit is 256: shorten it or split it"
    );
}

#[test]
fn a_text_that_is_cut_keeps_its_beginning_and_the_token_that_ends_it() {
    let cutting = Tokenizer::open(&model(), 16, true).unwrap();
    let whole = tokenizer().sentence(&words(40)).unwrap();
    let cut = cutting.sentence(&words(40)).unwrap();
    assert_eq!(cut.ids(), [&whole.ids()[..15], &[102]].concat());
    let (fits, beyond) = (cutting.sentence(&words(14)).unwrap(), cutting.sentence(&words(15)).unwrap());
    assert_eq!((fits.tokens(), beyond.tokens()), (16, 16));
    assert_eq!(fits, tokenizer().sentence(&words(14)).unwrap());
}

#[test]
fn a_clients_own_tokens_are_taken_as_they_are_within_vocabulary_and_limit() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.tokens(&[101, 30521, 0, 102]).unwrap(), Sentence::new([101, 30521, 0, 102]));
    assert_eq!(tokenizer.tokens(&[7]).unwrap().tokens(), 1);
    assert_eq!(tokenizer.tokens(&[]).unwrap_err(), TokenizeError::Empty);
    assert_eq!(
        tokenizer.tokens(&[101, 30522, u32::MAX]).unwrap_err(),
        TokenizeError::Unknown { id: 30522, vocabulary: 30522 }
    );
    assert_eq!(tokenizer.tokens(&[0; 256]).unwrap().tokens(), 256);
    assert_eq!(tokenizer.tokens(&[0; 257]).unwrap_err(), TokenizeError::TooLong { tokens: 257, limit: 256 });
}

#[test]
fn the_models_own_configuration_and_weights_are_what_its_files_say() {
    let config = Config::open(&model()).unwrap();
    assert_eq!((config.hidden_size, config.intermediate_size, config.num_hidden_layers), (384, 1536, 6));
    assert_eq!((config.vocab_size, config.max_position_embeddings, config.max_seq_length), (30522, 512, 256));
    let weights = Weights::open(&model()).unwrap();
    let words = weights.tensor("embeddings.word_embeddings.weight", &[30522, 384]).unwrap();
    assert_eq!(words.len(), 30522 * 384);
    // `[PAD]`'s row begins so in the file.
    assert_eq!(words[..3], PAD_ROW);
}

/// Read from the file by other means.
const PAD_ROW: [f32; 3] = [-0.019_989_014, -0.003_402_71, -0.014_678_955];

/// A directory with copies of the model's small files, to be spoiled.
fn copy_of_small_files() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "sentence_bert_config.json", "tokenizer.json"] {
        fs::copy(model().join(name), directory.path().join(name)).unwrap();
    }
    directory
}

/// An error's text with those of its causes, which must name the file.
fn said(error: &ModelError, file: &str) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    assert!(text.contains(file), "{text} does not name {file}");
    text
}

#[test]
fn files_that_are_missing_are_named_with_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    let at = empty.path();
    for (error, file) in [
        (Config::open(at).unwrap_err(), "config.json"),
        (Tokenizer::open(at, 256, false).unwrap_err(), "tokenizer.json"),
        (Weights::open(at).unwrap_err(), "model.safetensors"),
    ] {
        assert!(matches!(error, ModelError::Read { .. }), "{error:?}");
        let text = said(&error, file);
        assert!(text.contains("cargo xtask setup") && text.contains("No such file"), "{text}");
    }
    fs::copy(model().join("config.json"), at.join("config.json")).unwrap();
    said(&Config::open(at).unwrap_err(), "sentence_bert_config.json");
}

#[test]
fn files_that_are_not_json_are_named_with_where_they_go_wrong() {
    let directory = copy_of_small_files();
    let at = directory.path();
    for spoiled in [&b"{\"hidden_size\": 384,"[..], b"", b"[]", b"\xff\xfe", b"{}"] {
        for name in ["config.json", "sentence_bert_config.json"] {
            let whole = fs::read(at.join(name)).unwrap();
            fs::write(at.join(name), spoiled).unwrap();
            let error = Config::open(at).unwrap_err();
            assert!(matches!(error, ModelError::Json { .. }), "{error:?}");
            said(&error, name);
            fs::write(at.join(name), whole).unwrap();
        }
        fs::write(at.join("tokenizer.json"), spoiled).unwrap();
        let error = Tokenizer::open(at, 256, false).unwrap_err();
        assert!(matches!(error, ModelError::Tokenizer { .. }), "{error:?}");
        said(&error, "tokenizer.json");
    }
    Config::open(at).unwrap();
}

#[test]
fn models_of_other_shapes_are_refused_with_the_field_and_what_is_needed() {
    let directory = copy_of_small_files();
    let path = directory.path().join("config.json");
    let whole = fs::read_to_string(&path).unwrap();
    for (from, to, field) in [
        ("\"hidden_size\": 384", "\"hidden_size\": 768", "hidden_size is 768"),
        ("\"num_attention_heads\": 12", "\"num_attention_heads\": 6", "num_attention_heads is 6"),
        ("\"intermediate_size\": 1536", "\"intermediate_size\": 1500", "intermediate_size"),
        ("\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\"", "hidden_act is relu"),
        ("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 0", "num_hidden_layers"),
        ("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 128", "max_seq_length is 256"),
    ] {
        assert!(whole.contains(from), "{from}");
        fs::write(&path, whole.replace(from, to)).unwrap();
        let error = Config::open(directory.path()).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{error:?}");
        let text = said(&error, "config.json");
        assert!(text.contains(field), "{text}");
    }
    fs::write(&path, whole).unwrap();
    for limit in [0, 2, 513, u64::MAX] {
        let text = format!("{{\"max_seq_length\": {limit}}}");
        fs::write(directory.path().join("sentence_bert_config.json"), text).unwrap();
        said(&Config::open(directory.path()).unwrap_err(), "max_seq_length");
    }
}

/// Writes a safetensors file with this header and data.
fn write_safetensors(directory: &Path, header: &str, data: &[u8]) {
    // CAST: a header is a few bytes.
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    fs::write(directory.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn tensors_are_read_in_their_order_and_refused_by_name_shape_and_type() {
    let directory = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}}"#;
    write_safetensors(directory.path(), header, &[0, 0, 128, 63, 0, 0, 0, 192, 0, 60, 0, 60]);
    let weights = Weights::open(directory.path()).unwrap();
    assert_eq!(weights.tensor("a", &[2, 1]).unwrap(), [1.0, -2.0]);
    for (name, shape, found) in [
        ("a", &[1, 2][..], "F32 [2, 1]"),
        ("a", &[2], "F32 [2, 1]"),
        ("a", &[], "F32 [2, 1]"),
        ("b", &[2], "F16 [2]"),
        ("c", &[2], "missing"),
    ] {
        let error = weights.tensor(name, shape).unwrap_err();
        assert!(matches!(error, ModelError::Tensor { .. }), "{error:?}");
        let text = said(&error, "model.safetensors");
        assert!(text.contains(&format!("tensor {name} is {found}")), "{text}");
    }
}

#[test]
fn files_that_are_no_safetensors_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let refused = |what: &str| {
        let error = Weights::open(at).unwrap_err();
        assert!(matches!(error, ModelError::Safetensors { .. }), "{what}: {error:?}");
        said(&error, "model.safetensors");
    };
    for (what, bytes) in [
        ("empty", &b""[..]),
        ("half a length", b"\x08\0\0"),
        ("a length beyond the file", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"),
        ("no JSON", b"\x02\0\0\0\0\0\0\0{x"),
    ] {
        fs::write(at.join("model.safetensors"), bytes).unwrap();
        refused(what);
    }
    let header =
        |end: u32| format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,{end}]}}}}");
    write_safetensors(at, &header(8), &[0; 4]);
    refused("less data than the header says");
    write_safetensors(at, &header(8), &[0; 12]);
    refused("more data than the header says");
    write_safetensors(at, &header(4), &[0; 4]);
    refused("offsets that do not fit the shape");
}

#[test]
fn the_models_own_weights_cut_short_anywhere_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let file = fs::File::create(&path).unwrap();
    let whole = fs::metadata(model().join("model.safetensors")).unwrap().len();
    std::io::copy(&mut fs::File::open(model().join("model.safetensors")).unwrap(), &mut &file).unwrap();
    Weights::open(directory.path()).unwrap();
    for length in [whole - 1, whole / 2, 4096, 9, 7] {
        file.set_len(length).unwrap();
        let error = Weights::open(directory.path()).unwrap_err();
        assert!(matches!(error, ModelError::Safetensors { .. }), "{length}: {error:?}");
    }
}
