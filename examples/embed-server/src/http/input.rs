// SPDX-License-Identifier: MIT OR Apache-2.0
//! The body of a request for embeddings: read within its limit, and taken apart field by field.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};

use super::ApiError;

/// Bytes of a body over the limit that are read and thrown away. A response that is sent while the client is still
/// writing is lost to most clients, who see a reset connection instead.
const DISCARDED: usize = 32 << 20;

/// Checks that the body calls itself JSON, or nothing at all.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let text = value.to_str().unwrap_or("not text");
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    if json { Ok(()) } else { Err(ApiError::media(text)) }
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let announced = headers.get(CONTENT_LENGTH).and_then(number);
    if announced.is_some_and(|bytes| bytes > limit.saturating_add(DISCARDED)) {
        return Err(ApiError::too_large(limit));
    }
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(limit));
    let mut over = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|why| ApiError::body(&why))?.into_data() else {
            continue;
        };
        if over > 0 || bytes.len() + data.len() > limit {
            over += data.len();
            if over > DISCARDED {
                break;
            }
        } else {
            bytes.extend_from_slice(&data);
        }
    }
    if over > 0 { Err(ApiError::too_large(limit)) } else { Ok(bytes.into()) }
}

fn number(value: &HeaderValue) -> Option<usize> {
    value.to_str().ok()?.parse().ok()
}

/// What is to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Texts.
    Texts(Vec<String>),
    /// Token ids, a list a sentence.
    Tokens(Vec<Vec<u32>>),
}

impl Input {
    /// How many sentences.
    pub(super) fn len(&self) -> usize {
        match self {
            Input::Texts(texts) => texts.len(),
            Input::Tokens(lists) => lists.len(),
        }
    }
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A list of numbers.
    Float,
    /// Base64 of little-endian f32.
    Base64,
}

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EmbeddingRequest {
    /// The model asked for.
    pub(super) model: String,
    /// What is to be embedded.
    pub(super) input: Input,
    /// How rows are written.
    pub(super) encoding: Encoding,
    /// Numbers a row, if the client said.
    pub(super) dimensions: Option<u64>,
}

impl EmbeddingRequest {
    /// Takes a body apart. Fields that are not known, and `user`, are ignored.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|why| ApiError::json(&why))?;
        let model = match fields.remove("model") {
            Some(Value::String(model)) => model,
            None | Some(Value::Null) => return Err(missing("model")),
            Some(_) => return Err(ApiError::invalid("model", "'model' must be a string".to_owned())),
        };
        let input = match fields.remove("input") {
            None | Some(Value::Null) => return Err(missing("input")),
            Some(value) => input(value)?,
        };
        let encoding = match fields.remove("encoding_format") {
            None | Some(Value::Null) => Encoding::Float,
            Some(Value::String(name)) if name == "float" => Encoding::Float,
            Some(Value::String(name)) if name == "base64" => Encoding::Base64,
            Some(other) => {
                let message = format!("'encoding_format' must be 'float' or 'base64', not {other}");
                return Err(ApiError::invalid("encoding_format", message));
            }
        };
        let dimensions = match fields.remove("dimensions") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or_else(|| {
                ApiError::invalid(
                    "dimensions",
                    format!("'dimensions' must be a positive integer, not {value}"),
                )
            })?),
        };
        Ok(Self { model, input, encoding, dimensions })
    }
}

fn missing(field: &'static str) -> ApiError {
    ApiError::invalid(field, format!("The request has no '{field}'"))
}

fn input(value: Value) -> Result<Input, ApiError> {
    let shape = || {
        let message = "'input' must be a string, a list of strings, a list of token ids or a list of such \
                       lists, and not empty";
        ApiError::invalid("input", message.to_owned())
    };
    let items = match value {
        Value::String(text) => return Ok(Input::Texts(vec![text])),
        Value::Array(items) => items,
        _ => return Err(shape()),
    };
    let input = match items.first() {
        Some(Value::String(_)) => items.into_iter().map(text).collect::<Option<_>>().map(Input::Texts),
        Some(Value::Number(_)) => ids(&items).map(|list| Input::Tokens(vec![list])),
        Some(Value::Array(_)) => {
            let lists = items.iter().map(|item| ids(item.as_array()?));
            lists.collect::<Option<_>>().map(Input::Tokens)
        }
        _ => None,
    };
    input.ok_or_else(shape)
}

fn text(value: Value) -> Option<String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

fn ids(items: &[Value]) -> Option<Vec<u32>> {
    items.iter().map(|item| u32::try_from(item.as_u64()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(input: &str) -> Result<Input, ApiError> {
        let body = format!(r#"{{"model":"m","input":{input},"user":"me","more":[1]}}"#);
        EmbeddingRequest::parse(body.as_bytes()).map(|request| request.input)
    }

    #[test]
    fn input_has_four_shapes() {
        let texts = |texts: &[&str]| Ok(Input::Texts(texts.iter().map(ToString::to_string).collect()));

        assert_eq!(parsed(r#""a""#), texts(&["a"]));
        assert_eq!(parsed(r#""""#), texts(&[""]));
        assert_eq!(parsed(r#"["a",""]"#), texts(&["a", ""]));
        assert_eq!(parsed("[1,2]"), Ok(Input::Tokens(vec![vec![1, 2]])));
        assert_eq!(parsed("[[1],[2,4294967295]]"), Ok(Input::Tokens(vec![vec![1], vec![2, u32::MAX]])));
        // An empty list of tokens is a list; that it is no sentence is the tokenizer's to say.
        assert_eq!(parsed("[[1],[]]"), Ok(Input::Tokens(vec![vec![1], vec![]])));
    }

    #[test]
    fn input_of_other_shapes_is_refused() {
        for input in [
            "[]",
            "null",
            "1",
            "true",
            "{}",
            r#"["a",1]"#,
            r#"[1,"a"]"#,
            "[[1],2]",
            "[[[1]]]",
            "[-1]",
            "[1.5]",
            "[4294967296]",
            "[null]",
        ] {
            let error = parsed(input).expect_err(input);
            assert!(format!("{error:?}").contains(r#"param: Some("input")"#), "{input}: {error:?}");
        }
    }

    #[test]
    fn types_that_are_json() {
        let check = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            check_type(&headers).is_ok()
        };

        assert!(check_type(&HeaderMap::new()).is_ok());
        assert!(check("application/json") && check("Application/JSON; charset=utf-8"));
        assert!(check("application/vnd.api+json"));
        assert!(!check("text/plain") && !check("application/x-www-form-urlencoded") && !check(""));
    }

    #[tokio::test]
    async fn body_is_read_up_to_its_limit() {
        let read = |text: &'static str, limit| async move {
            read(&HeaderMap::new(), Body::from(text), limit).await.map(|bytes| bytes.len())
        };

        assert_eq!(read("12345", 5).await, Ok(5));
        assert_eq!(read("123456", 5).await, Err(ApiError::too_large(5)));
    }
}
