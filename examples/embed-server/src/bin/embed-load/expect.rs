// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server's embedding of each sentence alone, to compare with its later embeddings, also in batches with other
//! sentences.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::answer::{self, Checked};
use crate::client::Client;
use crate::connection::{Failure, Target};
use crate::sentences;

/// The pause before a refused connect is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// How to record.
#[derive(Debug, Args)]
pub struct Options {
    /// Where the server is
    #[arg(long, value_name = "http://HOST:PORT")]
    url: Target,
    /// The model's name
    #[arg(long, default_value = "all-MiniLM-L6-v2")]
    model: String,
    /// Sentences, a line each, or all strings of a .json file
    #[arg(long, value_name = "FILE")]
    sentences: PathBuf,
    /// Seconds that an answer may take
    #[arg(long, default_value_t = 60, value_name = "S")]
    patience_s: u32,
    /// The file to write
    into: PathBuf,
}

/// A sentence's embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct One {
    /// Its tokens.
    pub tokens: usize,
    /// The embedding's bytes.
    pub embedding: Vec<u8>,
}

/// The expected embeddings, by sentence.
#[derive(Clone, Debug, Default)]
pub struct Expected(HashMap<String, One>);

impl FromIterator<(String, One)> for Expected {
    fn from_iter<I: IntoIterator<Item = (String, One)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    text: String,
    tokens: usize,
    embedding: String,
}

impl Expected {
    /// The expected embedding of a sentence.
    pub fn of(&self, sentence: &str) -> Option<&One> {
        self.0.get(sentence)
    }

    /// Reads what [`record`] wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))?;
        let one = |line: &str| -> Result<_> {
            let Line { text, tokens, embedding } = serde_json::from_str(line)?;
            let embedding = answer::numbers(&embedding).ok_or_else(|| anyhow!("no finite numbers"))?;
            Ok((text, One { tokens, embedding }))
        };
        let all = text.lines().map(one).collect::<Result<_>>();
        all.with_context(|| format!("{} is not what `embed-load record` writes", path.display()))
    }

    fn text(&self) -> Result<String> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(text, _)| *text);
        let line = |(text, one): (&String, &One)| {
            let embedding = STANDARD.encode(&one.embedding);
            Ok(serde_json::to_string(&Line { text: text.clone(), tokens: one.tokens, embedding })? + "\n")
        };
        all.into_iter().map(line).collect()
    }
}

/// Records every sentence.
pub fn record(options: &Options) -> Result<ExitCode> {
    let mut client = Client::new(options.url.clone(), PAUSE);
    let mut expected = Expected::default();
    for (n, sentence) in sentences::read(&options.sentences)?.into_iter().enumerate() {
        if expected.of(&sentence).is_some() {
            continue;
        }
        let (id, sentences) = (format!("record-{n}"), [sentence.as_str()]);
        let deadline = Instant::now() + Duration::from_secs(options.patience_s.into());
        let asked = client.ask(&id, &answer::body(&options.model, &sentences), deadline);
        let answer =
            asked.answer.map_err(|failure| anyhow!("{sentence:?} was not answered: {}", said(&failure)))?;
        let checked = answer::check(&answer, &id, &sentences, None);
        let Checked { tokens, mut rows } = checked.map_err(|why| anyhow!("{sentence:?}: {why}"))?;
        let embedding = rows.pop().context("The answer has no embedding")?;
        expected.0.insert(sentence, One { tokens, embedding });
    }
    let act = || format!("Cannot write {}", options.into.display());
    fs::write(&options.into, expected.text()?).with_context(act)?;
    println!("{} embeddings recorded", expected.0.len());
    Ok(ExitCode::SUCCESS)
}

/// A failure as text.
pub fn said(failure: &Failure) -> String {
    match failure {
        Failure::Setback(setback) => format!("{setback:?}"),
        Failure::Late => "the time was over".to_owned(),
        Failure::Foreign(why) => why.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_expectations_are_read_again() {
        let one = |number: f32| One { tokens: 3, embedding: number.to_le_bytes().to_vec() };
        let all: Expected = [("b\n\"".to_owned(), one(1.0)), (String::new(), one(2.0))].into_iter().collect();
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::write(&path, all.text().unwrap()).unwrap();

        let read = Expected::read(&path).unwrap();
        assert_eq!(read.0, all.0);
        fs::write(&path, "{\"text\": \"\", \"tokens\": 3, \"embedding\": \"AAA=\"}\n").unwrap();
        assert!(Expected::read(&path).is_err());
    }
}
