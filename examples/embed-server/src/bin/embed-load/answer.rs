// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that an answer belongs to its request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;

use crate::connection::Answer;
use crate::expect::{Expected, One};

#[derive(Deserialize)]
struct List {
    data: Vec<Row>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Row {
    index: usize,
    embedding: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
}

/// A checked answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Tokens of all sentences.
    pub tokens: usize,
    /// The embeddings' bytes, as they came in base64.
    pub rows: Vec<Vec<u8>>,
}

/// The body of a request.
pub fn body(model: &str, sentences: &[&str]) -> Vec<u8> {
    json!({"model": model, "input": sentences, "encoding_format": "base64"}).to_string().into_bytes()
}

/// Checks that an answer belongs to this request: complete, in order, and bit for bit as expected.
///
/// # Errors
/// What is wrong with it.
pub fn check(
    answer: &Answer,
    id: &str,
    sentences: &[&str],
    expected: Option<&Expected>,
) -> Result<Checked, String> {
    if answer.id.as_deref() != Some(id) {
        return Err(format!("the answer is to {:?}", answer.id));
    }
    if answer.status != 200 {
        return Err(format!("status {}: {}", answer.status, String::from_utf8_lossy(&answer.body)));
    }
    let list: List = serde_json::from_slice(&answer.body).map_err(|why| format!("not a list: {why}"))?;
    if list.data.len() != sentences.len() {
        return Err(format!("{} embeddings for {} sentences", list.data.len(), sentences.len()));
    }
    let mut rows = Vec::new();
    for (n, row) in list.data.iter().enumerate() {
        if row.index != n {
            return Err(format!("embedding {n} says it is {}", row.index));
        }
        rows.push(numbers(&row.embedding).ok_or_else(|| format!("embedding {n} is no finite numbers"))?);
    }
    let tokens = list.usage.prompt_tokens;
    let Some(expected) = expected else { return Ok(Checked { tokens, rows }) };
    let mut due = 0;
    for (n, (row, sentence)) in rows.iter().zip(sentences).enumerate() {
        let One { tokens, embedding } = expected.of(sentence).ok_or("a sentence nothing is expected of")?;
        if row != embedding {
            return Err(format!("embedding {n} is not to the bit what was recorded"));
        }
        due += tokens;
    }
    if tokens != due {
        Err(format!("{tokens} tokens, {due} were recorded"))
    } else {
        Ok(Checked { tokens, rows })
    }
}

/// The bytes of finite f32.
pub fn numbers(base64: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(base64).ok()?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    let fit = |four: &[u8; 4]| f32::from_le_bytes(*four).is_finite();
    (rest.is_empty() && !numbers.is_empty() && numbers.iter().all(fit)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [f32; 2] = [0.6, 0.8];
    const OTHER: [f32; 2] = [0.8, 0.6];

    fn base64(row: [f32; 2]) -> String {
        STANDARD.encode(row.map(f32::to_le_bytes).concat())
    }

    fn expected() -> Expected {
        [("one", 3, ONE), ("other", 4, OTHER)]
            .into_iter()
            .map(|(text, tokens, row)| {
                (text.to_owned(), One { tokens, embedding: row.map(f32::to_le_bytes).concat() })
            })
            .collect()
    }

    fn answer(rows: &[(usize, String)], tokens: usize) -> Answer {
        let data: Vec<_> = rows.iter().map(|(n, row)| json!({"index": n, "embedding": row})).collect();
        let body = json!({"data": data, "usage": {"prompt_tokens": tokens}}).to_string().into_bytes();
        Answer { status: 200, id: Some("id".into()), body, keep: true }
    }

    fn wrong(answer: &Answer) -> String {
        check(answer, "id", &["one", "other"], Some(&expected())).unwrap_err()
    }

    #[test]
    fn right_answer_is_right() {
        let answer = answer(&[(0, base64(ONE)), (1, base64(OTHER))], 7);

        let checked = check(&answer, "id", &["one", "other"], Some(&expected())).unwrap();
        assert_eq!(checked.tokens, 7);
        assert_eq!(check(&answer, "id", &["never", "recorded"], None).unwrap(), checked);
    }

    #[test]
    fn every_other_answer_is_wrong() {
        let (one, other) = (base64(ONE), base64(OTHER));
        let bit = base64([0.6, f32::from_bits(0.8f32.to_bits() + 1)]);
        let rows = |a: &String, b: &String| [(0, a.clone()), (1, b.clone())];

        assert!(wrong(&answer(&rows(&one, &bit), 7)).contains("embedding 1 is not to the bit"));
        assert!(wrong(&answer(&rows(&other, &one), 7)).contains("embedding 0 is not to the bit"));
        assert!(wrong(&answer(&rows(&one, &other), 8)).contains("8 tokens, 7"));
        assert!(wrong(&answer(&rows(&one, &other)[..1], 3)).contains("1 embeddings for 2"));
        assert!(wrong(&answer(&[(1, one.clone()), (0, other.clone())], 7)).contains("says it is 1"));
        assert!(wrong(&answer(&rows(&one, &base64([f32::NAN, 0.0])), 7)).contains("no finite numbers"));
        assert!(wrong(&answer(&rows(&one, &String::new()), 7)).contains("no finite numbers"));
        let right = answer(&rows(&one, &other), 7);
        assert!(wrong(&Answer { id: Some("di".into()), ..right.clone() }).contains("\"di\""));
        assert!(wrong(&Answer { status: 500, ..right.clone() }).contains("status 500"));
        assert!(wrong(&Answer { body: b"{\"data\": [".to_vec(), ..right }).contains("not a list"));
    }
}
