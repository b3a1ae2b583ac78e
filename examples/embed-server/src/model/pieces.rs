// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts a long text so that its pieces have the same tokens as the whole.
//!
//! INVARIANT: a cut is made only before a character that is a word boundary for the tokenizer, independently of the
//! preceding text, and that no added token contains. So no word, added token or composed letter is on both sides of a
//! cut. `Tokenizer`'s tests compare the pieces' tokens with the whole's.

use serde_json::Value;

/// Which characters end a word, by the tokenizer's own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// BERT's: white space, punctuation, and each ideograph if `ideographs`.
    Bert {
        /// Whether ideographs are words by themselves.
        ideographs: bool,
    },
    /// Only white space.
    Spaces,
    /// Unknown rules: a text is one piece.
    Whole,
}

/// Cuts texts into pieces.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    rule: Rule,
    /// Characters of added tokens, which the tokenizer looks for before it looks for words.
    added: String,
    /// The most bytes of a piece, if there is a place to cut.
    target: usize,
    /// Bytes that a piece has at most.
    longest: usize,
}

/// A text has so many bytes without a place to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uncut(pub(super) usize);

impl Pieces {
    /// Pieces by the rules of this `tokenizer.json`: of `target` bytes, or up to `longest` where there is no place to
    /// cut.
    pub(super) fn new(tokenizer: &Value, target: usize, longest: usize) -> Self {
        let kind = |part: &str| tokenizer[part]["type"].as_str().unwrap_or_default();
        let cleans = tokenizer["normalizer"]["clean_text"] == true;
        let rule = match (kind("normalizer"), kind("pre_tokenizer"), kind("model")) {
            ("BertNormalizer", "BertPreTokenizer", "WordPiece") if cleans => {
                Rule::Bert { ideographs: tokenizer["normalizer"]["handle_chinese_chars"] == true }
            }
            ("", "WhitespaceSplit", "WordLevel" | "WordPiece") => Rule::Spaces,
            _ => Rule::Whole,
        };
        let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
        let added = added.filter_map(|token| token["content"].as_str()).collect();
        Self { rule, added, target, longest }
    }

    /// Splits the next piece off a text. Returns the piece and the rest.
    pub(super) fn next<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str), Uncut> {
        if text.len() <= self.target {
            return Ok((text, ""));
        }
        let (near, far) = (text.ceil_char_boundary(self.target + 1), text.floor_char_boundary(self.longest));
        let before = text[..near].char_indices().rev().find(|&(at, c)| at > 0 && self.is_boundary(c));
        let after = || {
            let mut behind = text[near..].char_indices().map(|(at, c)| (near + at, c));
            behind.find(|&(at, c)| at > 0 && self.is_boundary(c)).filter(|(at, _)| *at <= far)
        };
        match before.or_else(after) {
            Some((at, _)) => Ok(text.split_at(at)),
            None if text.len() <= self.longest => Ok((text, "")),
            None => Err(Uncut(self.longest)),
        }
    }

    /// Whether a text can be cut in front of this character.
    fn is_boundary(&self, c: char) -> bool {
        let ends = match self.rule {
            Rule::Bert { ideographs } => {
                is_space(c) || c.is_ascii_punctuation() || (ideographs && is_ideograph(c))
            }
            Rule::Spaces => is_space(c),
            Rule::Whole => false,
        };
        // A tokenizer may take any space for any other.
        ends && !self.added.contains(|other| other == c || (is_space(c) && is_space(other)))
    }
}

/// White space that no normalizer removes as a control character.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r') || (c.is_whitespace() && !c.is_control())
}

/// The ideographs that BERT's normalizer puts spaces around.
fn is_ideograph(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pieces(target: usize, longest: usize) -> Pieces {
        let bert = json!({
            "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {"type": "WordPiece"},
            "added_tokens": [{"content": "[MASK]"}],
        });
        Pieces::new(&bert, target, longest)
    }

    fn cut<'a>(pieces: &Pieces, mut rest: &'a str) -> Result<Vec<&'a str>, Uncut> {
        let mut all = Vec::new();
        while !rest.is_empty() {
            let piece;
            (piece, rest) = pieces.next(rest)?;
            all.push(piece);
        }
        Ok(all)
    }

    #[test]
    fn next_cuts_before_spaces_punctuation_and_ideographs() {
        let pieces = pieces(6, 12);

        assert_eq!(cut(&pieces, "ab cd ef gh"), Ok(vec!["ab cd", " ef gh"]));
        assert_eq!(cut(&pieces, "abcdefgh,ij"), Ok(vec!["abcdefgh", ",ij"]));
        assert_eq!(cut(&pieces, "東京都庁"), Ok(vec!["東京", "都庁"]));
        assert_eq!(cut(&pieces, "abc\u{3000}de"), Ok(vec!["abc", "\u{3000}de"]));
    }

    #[test]
    fn next_cuts_no_added_token_and_no_long_word() {
        let pieces = pieces(6, 12);

        assert_eq!(cut(&pieces, "ab [MASK] cd"), Ok(vec!["ab", " [MASK]", " cd"]));
        assert_eq!(cut(&pieces, "abcdefghijkl"), Ok(vec!["abcdefghijkl"]));
        assert_eq!(cut(&pieces, "abcdefghijklm"), Err(Uncut(12)));
        assert_eq!(cut(&pieces, "ééééééé éé"), Err(Uncut(12)));
    }

    #[test]
    fn next_of_unknown_rules_cuts_nothing() {
        let other = json!({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE"}});

        assert_eq!(cut(&Pieces::new(&other, 2, 6), "a b c"), Ok(vec!["a b c"]));
        assert_eq!(cut(&Pieces::new(&other, 2, 6), "a b c d"), Err(Uncut(6)));
    }
}
