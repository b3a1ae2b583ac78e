// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON values as deep as the interface has them, and no more of them than a request may have.
//!
//! INVARIANT: the memory of a value is bounded by its own bytes and by [`Most`]: texts are borrowed where they have no
//! escapes, items beyond the limits are only counted, and nothing is kept of a value of an unknown shape.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Bytes of a client's text that an error repeats.
const REPEATED: usize = 64;

/// How much of a list is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Most {
    /// Texts, or lists of ids.
    pub(super) inputs: usize,
    /// Ids of a list.
    pub(super) ids: usize,
}

/// A list of token ids: those that are kept, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ids {
    /// The first of them.
    pub(super) kept: Vec<u32>,
    /// All of them.
    pub(super) count: usize,
}

impl Ids {
    fn push(&mut self, id: u32, most: Most) {
        self.count += 1;
        if self.kept.len() < most.ids {
            self.kept.push(id);
        }
    }
}

/// A list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum List<'a> {
    /// Of nothing.
    #[default]
    Empty,
    /// Of texts: the first of them, and how many there are.
    Texts(Vec<Cow<'a, str>>, usize),
    /// Of numbers that may be token ids.
    Ids(Ids),
    /// Of lists of those: the first of them, and how many there are.
    Lists(Vec<Ids>, usize),
    /// Of anything else.
    Mixed,
}

/// A value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Shallow<'a> {
    /// `null`, or not there.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(Cow<'a, str>),
    /// A list.
    List(List<'a>),
    /// An object.
    Object,
}

impl Shallow<'_> {
    /// The number, if the value is a whole number and not negative.
    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Shallow::Number(number) = self { number.as_u64() } else { None }
    }

    /// The number, if the value is a whole number.
    pub(super) fn as_i64(&self) -> Option<i64> {
        if let Shallow::Number(number) = self { number.as_i64() } else { None }
    }
}

impl fmt::Display for Shallow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shallow::Null => f.write_str("null"),
            Shallow::Bool(value) => write!(f, "{value}"),
            Shallow::Number(value) => write!(f, "{value}"),
            Shallow::Text(text) if text.len() > REPEATED => write!(f, "a text of {} bytes", text.len()),
            Shallow::Text(text) => write!(f, "{text:?}"),
            Shallow::List(_) => f.write_str("a list"),
            Shallow::Object => f.write_str("an object"),
        }
    }
}

impl<'a> List<'a> {
    fn push(self, item: Shallow<'a>, most: Most) -> Self {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
        match (self, item) {
            (List::Empty, Shallow::Text(text)) => List::Texts(vec![text], 1),
            (List::Texts(mut texts, count), Shallow::Text(text)) => {
                if texts.len() < most.inputs {
                    texts.push(text);
                }
                List::Texts(texts, count + 1)
            }
            (List::Empty, Shallow::List(list)) => List::Lists(Vec::new(), 0).with(list, most),
            (lists @ List::Lists(..), Shallow::List(list)) => lists.with(list, most),
            (list @ (List::Empty | List::Ids(_)), Shallow::Number(_)) => {
                let Some(id) = id else {
                    return List::Mixed;
                };
                let mut ids = if let List::Ids(ids) = list { ids } else { Ids::default() };
                ids.push(id, most);
                List::Ids(ids)
            }
            _ => List::Mixed,
        }
    }

    /// A list of lists with one more.
    fn with(self, list: List<'a>, most: Most) -> Self {
        let ids = match list {
            // An empty list of tokens is a list here; the tokenizer refuses it as a sentence.
            List::Empty => Ids::default(),
            List::Ids(ids) => ids,
            _ => return List::Mixed,
        };
        let List::Lists(mut lists, count) = self else {
            return List::Mixed;
        };
        if lists.len() < most.inputs {
            lists.push(ids);
        }
        List::Lists(lists, count + 1)
    }
}

/// Reads a value that is inside of so many lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// How much is kept.
    pub(super) most: Most,
    /// Lists it is in.
    pub(super) depth: usize,
}

impl<'de> DeserializeSeed<'de> for Read {
    type Value = Shallow<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Read {
    type Value = Shallow<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Shallow::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Shallow::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Shallow::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Shallow::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map_or(Shallow::Null, Shallow::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Shallow::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Shallow::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        // Lists of lists are the deepest nesting.
        if self.depth >= 2 {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Shallow::List(List::Mixed));
        }
        let inner = Self { depth: self.depth + 1, ..self };
        let mut list = List::Empty;
        while let Some(item) = items.next_element_seed(inner)? {
            list = list.push(item, self.most);
        }
        Ok(Shallow::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Shallow::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Shallow<'_> {
        let most = Most { inputs: 2, ids: 3 };
        Read { most, depth: 0 }.deserialize(&mut serde_json::Deserializer::from_str(json)).unwrap()
    }

    #[test]
    fn items_over_the_limits_are_counted_and_not_kept() {
        let ids = |kept: &[u32], count| Ids { kept: kept.to_vec(), count };

        let texts = vec![Cow::Borrowed("a"), Cow::Borrowed("b")];
        assert_eq!(read(r#"["a","b","c","d"]"#), Shallow::List(List::Texts(texts, 4)));
        assert_eq!(read("[1,2,3,4,5]"), Shallow::List(List::Ids(ids(&[1, 2, 3], 5))));
        let lists = vec![ids(&[1], 1), ids(&[], 0)];
        assert_eq!(read("[[1],[],[2,3]]"), Shallow::List(List::Lists(lists, 3)));
    }

    #[test]
    fn values_of_no_known_shape_keep_nothing() {
        for json in ["[[[1]]]", r#"["a",1]"#, "[1.5]", "[[1],2]", "[4294967296]", r#"["a","b","c",{}]"#] {
            assert_eq!(read(json), Shallow::List(List::Mixed), "{json}");
        }
        assert_eq!(read(r#"{"a":[1]}"#), Shallow::Object);
    }

    #[test]
    fn texts_are_borrowed_unless_they_have_escapes() {
        assert!(matches!(read(r#""plain""#), Shallow::Text(Cow::Borrowed("plain"))));
        assert!(matches!(read(r#""a\nb""#), Shallow::Text(Cow::Owned(text)) if text == "a\nb"));
    }
}
