// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request for embeddings, parsed from JSON field by field.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use super::error::ApiError;
use super::shallow::{Ids, List, Most, Read, Shallow};

/// The input: the items that are kept, and how many the client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input<'a> {
    /// Texts.
    Texts(Vec<Cow<'a, str>>, usize),
    /// Token ids, a list a sentence.
    Tokens(Vec<Ids>, usize),
}

impl Input<'_> {
    /// How many sentences the client sent.
    pub(super) fn len(&self) -> usize {
        match self {
            Input::Texts(_, count) | Input::Tokens(_, count) => *count,
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

/// Tokens that a client wants to be kept of a longer text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truncate {
    /// As many as the model takes.
    ToModel,
    /// So many.
    To(u64),
}

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EmbeddingRequest<'a> {
    /// The model asked for.
    pub(super) model: Cow<'a, str>,
    /// What is to be embedded.
    pub(super) input: Input<'a>,
    /// How rows are written.
    pub(super) encoding: Encoding,
    /// Numbers a row, if the client said.
    pub(super) dimensions: Option<u64>,
    /// `truncate_prompt_tokens`, if the client said.
    pub(super) truncate: Option<Truncate>,
}

impl<'a> EmbeddingRequest<'a> {
    /// Parses a body. Unknown fields, and `user`, are ignored.
    pub(super) fn parse(body: &'a [u8], most: Most) -> Result<Self, ApiError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let fields = json.deserialize_map(FieldsVisitor(most)).map_err(|why| ApiError::json(&why))?;
        json.end().map_err(|why| ApiError::json(&why))?;
        let model = match fields.model {
            Shallow::Text(model) => model,
            Shallow::Null => return Err(missing("model")),
            _ => return Err(ApiError::invalid("model", "'model' must be a string".to_owned())),
        };
        let input = match fields.input {
            Shallow::Null => return Err(missing("input")),
            Shallow::Text(text) => Input::Texts(vec![text], 1),
            Shallow::List(List::Texts(texts, count)) => Input::Texts(texts, count),
            Shallow::List(List::Ids(ids)) => Input::Tokens(vec![ids], 1),
            Shallow::List(List::Lists(lists, count)) => Input::Tokens(lists, count),
            _ => return Err(shape()),
        };
        let encoding = match fields.encoding_format {
            Shallow::Null => Encoding::Float,
            Shallow::Text(name) if name == "float" => Encoding::Float,
            Shallow::Text(name) if name == "base64" => Encoding::Base64,
            other => {
                let message = format!("'encoding_format' must be 'float' or 'base64', not {other}");
                return Err(ApiError::invalid("encoding_format", message));
            }
        };
        let dimensions = match fields.dimensions {
            Shallow::Null => None,
            value => Some(value.as_u64().ok_or_else(|| not_positive("dimensions", &value))?),
        };
        let truncate = match fields.truncate {
            Shallow::Null => None,
            value if value.as_i64() == Some(-1) => Some(Truncate::ToModel),
            value => {
                let tokens = value.as_u64().ok_or_else(|| not_positive("truncate_prompt_tokens", &value))?;
                Some(Truncate::To(tokens))
            }
        };
        Ok(Self { model, input, encoding, dimensions, truncate })
    }
}

fn missing(field: &'static str) -> ApiError {
    ApiError::invalid(field, format!("The request has no '{field}'"))
}

fn not_positive(field: &'static str, value: &Shallow<'_>) -> ApiError {
    ApiError::invalid(field, format!("'{field}' must be a positive integer, not {value}"))
}

fn shape() -> ApiError {
    let message = "'input' must be a string, a list of strings, a list of token ids or a list of such lists, and \
                   not empty";
    ApiError::invalid("input", message.to_owned())
}

#[derive(Debug, Default)]
struct Fields<'a> {
    model: Shallow<'a>,
    input: Shallow<'a>,
    encoding_format: Shallow<'a>,
    dimensions: Shallow<'a>,
    truncate: Shallow<'a>,
}

struct FieldsVisitor(Most);

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        let read = Read { most: self.0, depth: 0 };
        while let Some(key) = map.next_key_seed(read)? {
            let Shallow::Text(key) = key else {
                continue;
            };
            let field = match &*key {
                "model" => &mut fields.model,
                "input" => &mut fields.input,
                "encoding_format" => &mut fields.encoding_format,
                "dimensions" => &mut fields.dimensions,
                "truncate_prompt_tokens" => &mut fields.truncate,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = map.next_value_seed(read)?;
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { inputs: 16, ids: 16 };

    fn with<R>(field: &str, value: &str, see: impl FnOnce(Result<EmbeddingRequest<'_>, ApiError>) -> R) -> R {
        let body = format!(r#"{{"model":"m","input":"a","{field}":{value},"user":"me","more":[1,{{}}]}}"#);
        see(EmbeddingRequest::parse(body.as_bytes(), MOST))
    }

    fn assert_input(json: &str, expected: &Input<'_>) {
        with("input", json, |request| assert_eq!(&request.unwrap().input, expected, "{json}"));
    }

    #[test]
    fn input_has_four_shapes() {
        let texts = |texts: &[&'static str]| {
            Input::Texts(texts.iter().map(|text| Cow::Borrowed(*text)).collect(), texts.len())
        };
        let tokens = |lists: &[&[u32]]| {
            let ids = |list: &&[u32]| Ids { kept: list.to_vec(), count: list.len() };
            Input::Tokens(lists.iter().map(ids).collect(), lists.len())
        };

        assert_input(r#""b""#, &texts(&["b"]));
        assert_input(r#""""#, &texts(&[""]));
        assert_input(r#"["b",""]"#, &texts(&["b", ""]));
        assert_input("[1,2]", &tokens(&[&[1, 2]]));
        assert_input("[[1],[2,4294967295]]", &tokens(&[&[1], &[2, u32::MAX]]));
        assert_input("[[1],[]]", &tokens(&[&[1], &[]]));
    }

    fn assert_refused(field: &str, value: &str) {
        with(field, value, |request| {
            let error = format!("{:?}", request.expect_err(value));
            assert!(error.contains(&format!("param: Some({field:?})")), "{value}: {error}");
        });
    }

    #[test]
    fn fields_of_other_shapes_are_refused_by_name() {
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
            assert_refused("input", input);
        }
        for model in ["null", "1", "[]"] {
            assert_refused("model", model);
        }
        for number in ["-2", "1.5", r#""4""#, "[4]", "{}"] {
            assert_refused("dimensions", number);
            assert_refused("truncate_prompt_tokens", number);
        }
        assert_refused("encoding_format", "1");
    }

    #[test]
    fn truncation_is_a_number_or_the_models() {
        let truncate = |value: &str| with("truncate_prompt_tokens", value, |r| r.unwrap().truncate);

        assert_eq!(truncate("null"), None);
        assert_eq!(truncate("-1"), Some(Truncate::ToModel));
        assert_eq!(truncate("16"), Some(Truncate::To(16)));
    }

    #[test]
    fn body_that_is_no_object_is_refused() {
        for body in ["", "[]", "1", "{", r#"{"model":"m"} x"#, "\u{fffd}"] {
            assert!(EmbeddingRequest::parse(body.as_bytes(), MOST).is_err(), "{body}");
        }
        assert!(EmbeddingRequest::parse(b"{\"model\":\"\xff\",\"input\":\"a\"}", MOST).is_err());
    }
}
