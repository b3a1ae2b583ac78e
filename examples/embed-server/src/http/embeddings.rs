// SPDX-License-Identifier: MIT OR Apache-2.0
//! `POST /v1/embeddings`.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::State as Extract;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::aside::{Size, Wanted};
use super::error::ApiError;
use super::input::{self, Packed};
use super::request::{EmbeddingRequest, Encoding, Input, Truncate};
use super::shallow::Most;
use super::state::State;
use super::watch::Tokens;
use crate::batch::{Batcher, Embeddings};
use crate::embedder::Sentence;
use crate::model::{Length, TokenizeError};

/// Rows that are serialised without a copy.
const FEW: usize = 8;

struct Prepared {
    sentences: Vec<Sentence>,
    form: Form,
}

/// How rows are written.
#[derive(Clone, Copy, Debug)]
struct Form {
    encoding: Encoding,
    /// Numbers of a row.
    dimensions: usize,
}

/// Answers a request for embeddings.
pub(super) async fn create(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let batcher = state.admits()?;
    input::check_type(&headers)?;
    let shared = &state.0;
    let body = input::read(&headers, body, shared.limits.body_bytes, &shared.room).await?;
    let (preparing, queue, size) = (state.clone(), batcher.clone(), Size::of(body.weight()));
    let prepared = move |wanted: &Wanted| prepare(&preparing, &queue, &body, wanted);
    let Prepared { sentences, form } = shared.aside.run(size, prepared).await??;
    let tokens = sentences.iter().map(Sentence::tokens).sum();
    let embeddings = batcher.submit(sentences)?.await.inspect_err(|error| {
        // In the request's span: this line connects the request's id with the cause.
        tracing::error!(target: "http", error = error as &dyn std::error::Error, "request failed");
    })?;
    let size = if embeddings.rows().len() > FEW { Size::Medium } else { Size::Small };
    let rendering = state.clone();
    let rendered = move |_: &Wanted| render(rendering.name(), &embeddings, form, tokens);
    let text = shared.aside.run(size, rendered).await?.map_err(|_| ApiError::internal())?;
    let mut response = ([(CONTENT_TYPE, "application/json")], text).into_response();
    response.extensions_mut().insert(Tokens(tokens));
    Ok(response)
}

fn prepare(state: &State, batcher: &Batcher, body: &Packed, wanted: &Wanted) -> Result<Prepared, ApiError> {
    let (limits, tokenizer) = (state.0.limits, &state.0.tokenizer);
    let json = body.unpack(wanted)?;
    // One id more than a sentence may have is kept: it tells that there are too many.
    let most = Most { inputs: limits.inputs, ids: tokenizer.limit() + 1 };
    let request = EmbeddingRequest::parse(&json, most)?;
    state.check_model(&request.model)?;
    let dimensions = dimensions(request.dimensions, batcher.dimensions())?;
    let inputs = request.input.len();
    if inputs > limits.inputs {
        return Err(ApiError::inputs(inputs, limits.inputs));
    }
    let length = length(request.truncate, tokenizer.length(), tokenizer.least())?;
    // A full queue is detected before the tokenizing, not only after it.
    batcher.admits(inputs)?;
    let sentences = match &request.input {
        Input::Texts(texts, _) => {
            let sentence = |text: &Cow<'_, str>| tokenizer.sentence_of(text, length, &|| wanted.is_wanted());
            all(texts.iter().map(sentence), batcher)?
        }
        Input::Tokens(lists, _) => {
            let cut = |count: usize| if request.truncate.is_some() { count.min(length.limit) } else { count };
            let sentence = |list: &super::shallow::Ids| match cut(list.count) {
                tokens if tokens > tokenizer.limit() => {
                    Err(TokenizeError::TooLong { tokens, limit: tokenizer.limit() })
                }
                tokens => tokenizer.tokens(&list.kept[..tokens]),
            };
            all(lists.iter().map(sentence), batcher)?
        }
    };
    Ok(Prepared { sentences, form: Form { encoding: request.encoding, dimensions } })
}

/// Numbers of a row, of those that the model makes.
fn dimensions(asked: Option<u64>, model: usize) -> Result<usize, ApiError> {
    let Some(asked) = asked else {
        return Ok(model);
    };
    usize::try_from(asked).ok().filter(|asked| (1..=model).contains(asked)).ok_or_else(|| {
        let message =
            format!("'dimensions' can be 1 to {model}, the length of this model's embeddings, not {asked}");
        ApiError::invalid("dimensions", message)
    })
}

/// How long a text may be, and whether it is cut.
fn length(asked: Option<Truncate>, length: Length, least: usize) -> Result<Length, ApiError> {
    let limit = match asked {
        None => return Ok(length),
        Some(Truncate::ToModel) => length.limit,
        Some(Truncate::To(tokens)) => {
            let fits = |tokens: &usize| (least.max(1)..=length.limit).contains(tokens);
            usize::try_from(tokens).ok().filter(fits).ok_or_else(|| {
                let limit = length.limit;
                let message = format!(
                    "'truncate_prompt_tokens' can be {least} to {limit}, with the tokens that begin and end a \
                     text, or -1 for {limit}, not {tokens}"
                );
                ApiError::invalid("truncate_prompt_tokens", message)
            })?
        }
    };
    Ok(Length { limit, truncate: true })
}

/// The sentences of a request, or the error of the first item that is not a sentence. If the queue would refuse the
/// request, the sentences are not made.
fn all(
    sentences: impl Iterator<Item = Result<Sentence, TokenizeError>>,
    batcher: &Batcher,
) -> Result<Vec<Sentence>, ApiError> {
    let (mut all, mut tokens) = (Vec::with_capacity(sentences.size_hint().0), 0);
    for (index, sentence) in sentences.enumerate() {
        let sentence = sentence.map_err(|why| ApiError::sentence(index, &why))?;
        tokens += sentence.tokens();
        batcher.fits(tokens)?;
        all.push(sentence);
    }
    Ok(all)
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Row<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Row<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'a> {
    Float(Cow<'a, [f32]>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

fn render(model: &str, embeddings: &Embeddings, form: Form, tokens: usize) -> serde_json::Result<Vec<u8>> {
    let row = |(index, numbers)| Row { object: "embedding", index, embedding: write(numbers, form) };
    let data = embeddings.rows().enumerate().map(row).collect();
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    serde_json::to_vec(&List { object: "list", data, model, usage })
}

fn write(numbers: &[f32], form: Form) -> Numbers<'_> {
    let numbers = shorten(numbers, form.dimensions);
    match form.encoding {
        Encoding::Float => Numbers::Float(numbers),
        Encoding::Base64 => {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Numbers::Base64(STANDARD.encode(bytes))
        }
    }
}

/// The first `dimensions` numbers of a row of length 1, of length 1 again.
fn shorten(row: &[f32], dimensions: usize) -> Cow<'_, [f32]> {
    match row.get(..dimensions) {
        Some(part) if dimensions < row.len() => {
            let length = part.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            // CAST: quotients of at most 1, rounded to f32. A row that begins with zeros has no direction.
            let scaled = |x: &f32| if length > 0.0 { (f64::from(*x) / length) as f32 } else { *x };
            Cow::Owned(part.iter().map(scaled).collect())
        }
        _ => Cow::Borrowed(row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_row_has_length_1_and_a_whole_one_its_bits() {
        assert_eq!(shorten(&[0.6, 0.0, 0.8], 3), Cow::Borrowed(&[0.6, 0.0, 0.8]));
        assert_eq!(shorten(&[0.3, 0.4, 0.5], 2), Cow::<[f32]>::Owned(vec![0.6, 0.8]));
        assert_eq!(shorten(&[0.0, 1.0], 1), Cow::<[f32]>::Owned(vec![0.0]));
    }

    #[test]
    fn dimensions_are_1_to_the_models() {
        assert_eq!(dimensions(None, 384), Ok(384));
        assert_eq!(dimensions(Some(1), 384), Ok(1));
        assert_eq!(dimensions(Some(384), 384), Ok(384));
        assert!(dimensions(Some(0), 384).is_err() && dimensions(Some(385), 384).is_err());
        assert!(dimensions(Some(u64::MAX), 384).is_err());
    }

    #[test]
    fn truncation_is_within_the_models_limit() {
        let model = Length { limit: 256, truncate: false };
        let to = |tokens| length(Some(Truncate::To(tokens)), model, 2).map(|length| length.limit);

        assert_eq!(length(None, model, 2), Ok(model));
        assert_eq!(length(Some(Truncate::ToModel), model, 2), Ok(Length { limit: 256, truncate: true }));
        assert_eq!((to(2), to(256)), (Ok(2), Ok(256)));
        assert!(to(1).is_err() && to(257).is_err() && to(u64::MAX).is_err());
    }
}
