// SPDX-License-Identifier: MIT OR Apache-2.0
//! `POST /v1/embeddings`.

use axum::body::Body;
use axum::extract::State as Extract;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::aside::aside;
use super::input::{self, EmbeddingRequest, Encoding, Input};
use super::watch::Tokens;
use super::{ApiError, State};
use crate::batch::Embeddings;
use crate::embedder::Sentence;

/// Bytes of a body that are tokenized where they are: a sentence or a few.
const SHORT: usize = 1024;
/// Rows that are written where they are.
const FEW: usize = 8;

struct Prepared {
    sentences: Vec<Sentence>,
    encoding: Encoding,
}

/// Answers a request for embeddings.
pub(super) async fn create(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    state.admits()?;
    input::check_type(&headers)?;
    let body = input::read(&headers, body, state.0.limits.body_bytes).await?;
    let shared = state.clone();
    let Prepared { sentences, encoding } =
        aside(body.len() > SHORT, move || prepare(&shared, &body)).await??;
    let tokens = sentences.iter().map(Sentence::tokens).sum();
    let embeddings = state.0.batcher.submit(sentences)?.await.inspect_err(|error| {
        // In the request's span: this line joins its id to the cause.
        tracing::error!(target: "http", error = error as &dyn std::error::Error, "request failed");
    })?;
    let large = embeddings.rows().len() > FEW;
    let text = aside(large, move || render(&state.0.name, &embeddings, encoding, tokens)).await?;
    let text = text.map_err(|_| ApiError::internal())?;
    let mut response = ([(CONTENT_TYPE, "application/json")], text).into_response();
    response.extensions_mut().insert(Tokens(tokens));
    Ok(response)
}

fn prepare(state: &State, body: &[u8]) -> Result<Prepared, ApiError> {
    let request = EmbeddingRequest::parse(body)?;
    state.check_model(&request.model)?;
    // CAST: usize to u64 is lossless here.
    let dimensions = state.0.batcher.dimensions() as u64;
    if request.dimensions.is_some_and(|asked| asked != dimensions) {
        let message = format!("'dimensions' can only be {dimensions}, the length of this model's embeddings");
        return Err(ApiError::invalid("dimensions", message));
    }
    let (inputs, limit) = (request.input.len(), state.0.limits.inputs);
    if inputs > limit {
        return Err(ApiError::inputs(inputs, limit));
    }
    // A full queue is found out before the work of tokenizing, not only after it.
    state.0.batcher.admits(inputs)?;
    let tokenizer = &state.0.tokenizer;
    let sentences = match &request.input {
        Input::Texts(texts) => all(texts.iter().map(|text| tokenizer.sentence(text)))?,
        Input::Tokens(lists) => all(lists.iter().map(|ids| tokenizer.tokens(ids)))?,
    };
    Ok(Prepared { sentences, encoding: request.encoding })
}

fn all(
    sentences: impl Iterator<Item = Result<Sentence, crate::model::TokenizeError>>,
) -> Result<Vec<Sentence>, ApiError> {
    let named =
        |(index, result): (usize, Result<_, _>)| result.map_err(|why| ApiError::sentence(index, &why));
    sentences.enumerate().map(named).collect()
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
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

fn render(
    model: &str,
    embeddings: &Embeddings,
    encoding: Encoding,
    tokens: usize,
) -> serde_json::Result<Vec<u8>> {
    let row = |(index, numbers)| Row { object: "embedding", index, embedding: write(numbers, encoding) };
    let data = embeddings.rows().enumerate().map(row).collect();
    let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
    serde_json::to_vec(&List { object: "list", data, model, usage })
}

fn write(numbers: &[f32], encoding: Encoding) -> Numbers<'_> {
    match encoding {
        Encoding::Float => Numbers::Float(numbers),
        Encoding::Base64 => {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Numbers::Base64(STANDARD.encode(bytes))
        }
    }
}
