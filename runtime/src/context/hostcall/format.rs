// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a kernel's printf: a format string and its arguments in 64-bit words.
//!
//! The string lies first, with zeros up to a whole word; then the arguments, a word each, strings padded as the format is (ROCm's
//! `__ockl_printf_append_string_n` and `__ockl_printf_append_args`). Integers were widened with zeros, floating-point numbers to 64 bits.

use super::conversion::{Conversion, Form, Radix};

/// The arguments that are left.
struct Words<'a>(&'a [u64]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The bytes up to a 0, which is in one of the first `limit` words, or of all of these words.
    fn string(&mut self, limit: usize) -> Vec<u8> {
        let limit = limit.min(self.0.len());
        let mut bytes: Vec<u8> = self.0[..limit].iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut words = limit;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            bytes.truncate(end);
            words = end / 8 + 1;
        }
        self.0 = &self.0[words..];
        bytes
    }
}

/// The sizes of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Char,
    Short,
    Int,
    Long,
}

impl Length {
    /// The low bytes of an integer that was widened with zeros, with its sign.
    fn signed(self, word: u64) -> i64 {
        let unused = match self {
            Self::Char => 56,
            Self::Short => 48,
            Self::Int => 32,
            Self::Long => 0,
        };
        (word << unused).cast_signed() >> unused
    }

    fn unsigned(self, word: u64) -> u64 {
        let mask = match self {
            Self::Char => 0xff,
            Self::Short => 0xffff,
            Self::Int => 0xffff_ffff,
            Self::Long => u64::MAX,
        };
        word & mask
    }
}

/// Bytes of a text at most, so far as whole conversions end there.
pub const MOST_TEXT: usize = 1 << 20;

/// The text of `words`, whose format string takes at most the first `string_limit` of them, if that is known. Where the arguments end
/// before the format does, a conversion is none, or there are [`MOST_TEXT`] bytes, the text ends.
pub fn format(words: &[u64], string_limit: Option<usize>) -> Vec<u8> {
    let mut words = Words(words);
    let format = words.string(string_limit.unwrap_or(usize::MAX));
    let mut text = Vec::new();
    let mut rest = format.as_slice();
    while let Some(percent) = rest.iter().position(|byte| *byte == b'%') {
        text.extend_from_slice(&rest[..percent]);
        rest = &rest[percent + 1..];
        if text.len() >= MOST_TEXT {
            return text;
        }
        if let Some(after) = rest.strip_prefix(b"%") {
            text.push(b'%');
            rest = after;
            continue;
        }
        match convert(&mut rest, &mut words) {
            Some(converted) => text.extend(converted),
            None => return text,
        }
    }
    text.extend_from_slice(rest);
    text
}

/// A number in the format, or an argument for `*`.
fn number(rest: &mut &[u8], words: &mut Words<'_>) -> Option<Option<i64>> {
    if let Some(after) = rest.strip_prefix(b"*") {
        *rest = after;
        return words.next().map(|word| Some(Length::Int.signed(word)));
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    *rest = after;
    let add = |sum: i64, digit: &u8| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    Some((digits > 0).then(|| number.iter().fold(0, add)))
}

/// One conversion, whose `%` is taken already.
fn convert(rest: &mut &[u8], words: &mut Words<'_>) -> Option<Vec<u8>> {
    let mut conversion = Conversion::PLAIN;
    while rest.first().is_some_and(|flag| conversion.add_flag(*flag)) {
        *rest = &rest[1..];
    }
    if let Some(width) = number(rest, words)? {
        conversion.set_width(width);
    }
    if let Some(after) = rest.strip_prefix(b".") {
        *rest = after;
        conversion.set_precision(number(rest, words)?.unwrap_or(0));
    }
    let mut length = Length::Int;
    while let Some((modifier, after)) = rest.split_first() {
        length = match modifier {
            b'h' if length == Length::Short => Length::Char,
            b'h' => Length::Short,
            b'l' | b'j' | b'z' | b't' | b'q' | b'L' => Length::Long,
            _ => break,
        };
        *rest = after;
    }
    let (letter, after) = rest.split_first()?;
    *rest = after;
    let float = |form| move |word| conversion.float(form, f64::from_bits(word));
    let unsigned = |radix| move |word| conversion.unsigned(radix, length.unsigned(word));
    let capitals = letter.is_ascii_uppercase();
    Some(match letter {
        b'd' | b'i' => conversion.signed(length.signed(words.next()?)),
        b'u' => unsigned(Radix::Decimal)(words.next()?),
        b'o' => unsigned(Radix::Octal)(words.next()?),
        b'x' => unsigned(Radix::Hex)(words.next()?),
        b'X' => unsigned(Radix::HexCapitals)(words.next()?),
        b'f' | b'F' => float(Form::Fixed { capitals })(words.next()?),
        b'e' | b'E' => float(Form::Exponent { capitals })(words.next()?),
        b'g' | b'G' => float(Form::General { capitals })(words.next()?),
        b'a' | b'A' => float(Form::Hex { capitals })(words.next()?),
        b'p' => conversion.pointer(words.next()?),
        b'c' => conversion.bytes(&words.next()?.to_le_bytes()[..1]),
        b's' => {
            let mut string = words.string(usize::MAX);
            string.truncate(conversion.precision().map_or(usize::MAX, |most| most as usize));
            conversion.bytes(&string)
        }
        // Writes nothing on a device; its argument is passed over.
        b'n' => {
            words.next()?;
            Vec::new()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::MOST_TEXT;

    /// A string in words, with its 0.
    fn string(text: &str) -> Vec<u64> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    fn text(format: &str, arguments: &[u64]) -> String {
        let words = [string(format), arguments.to_vec()].concat();
        String::from_utf8(super::format(&words, None)).unwrap()
    }

    #[test]
    fn conversions_are_those_of_c() {
        let minus_five = u64::from(u32::MAX - 4);
        for (format, arguments, expected) in [
            ("plain", &[] as &[u64], "plain"),
            ("100%% of %d", &[7], "100% of 7"),
            ("%d %i", &[minus_five, minus_five], "-5 -5"),
            ("%ld", &[minus_five], "4294967291"),
            ("%lld", &[u64::MAX], "-1"),
            ("%hd %hhd", &[0xffff, 0x1fe], "-1 -2"),
            ("%u %hhu", &[u64::MAX, 0x1ff], "4294967295 255"),
            ("%x|%#X|%o|%#lo", &[255, 255, 8, 8], "ff|0XFF|10|010"),
            ("[%5d|%-5d|%05d|%+d|% d]", &[42, 42, 42, 42, 42], "[   42|42   |00042|+42| 42]"),
            ("[%*d|%-*d|%.*d]", &[4, 1, 4, 1, 3, 1], "[   1|1   |001]"),
            ("[%*d]", &[u64::from(u32::MAX - 3), 1], "[1   ]"),
            (
                "%f %.2f %e %g",
                &[1.5f64, 2.345, 1e10, 1e-5].map(f64::to_bits),
                "1.500000 2.35 1.000000e+10 1e-05",
            ),
            ("%F %G", &[f64::INFINITY, f64::NAN].map(f64::to_bits), "INF NAN"),
            (
                "%p|%12p|%-12p|%7p",
                &[0xdead_beef, 0xbeef, 0xbeef, 0],
                "0xdeadbeef|      0xbeef|0xbeef      |  (nil)",
            ),
            ("[%c|%3c|%-3c]", &[65, 66, 67], "[A|  B|C  ]"),
            ("a%nb%d", &[1, 2], "ab2"),
            ("%d %d", &[1], "1 "),
            ("%y %d", &[1], ""),
            ("ends in %", &[1], "ends in "),
        ] {
            assert_eq!(text(format, arguments), expected, "{format}");
        }
    }

    #[test]
    fn strings_take_their_words_and_no_more() {
        let arguments = [string("seven b"), string("eight by"), string(""), vec![9]].concat();
        assert_eq!(text("%s|%s|%s|%d", &arguments), "seven b|eight by||9");
        assert_eq!(text("[%6.2s|%-4s]", &[string("abc"), string("d")].concat()), "[    ab|d   ]");
    }

    #[test]
    fn format_without_a_zero_ends_where_its_calls_do() {
        let words =
            [u64::from_le_bytes(*b"12345%d\n"), u64::from_le_bytes(*b"\x07\x01\x01\x01\x01\x01\x01\x01")];
        assert_eq!(super::format(&words, Some(1)), format!("12345{}\n", 0x0101_0107).into_bytes());
    }

    #[test]
    fn widths_are_bounded() {
        assert_eq!(text("%999999999999999999999d", &[1]).len(), 4096);
        assert!(text("%.999999999f", &[1e308f64.to_bits()]).len() < 5000);
        assert_eq!(text("%*c", &[1 << 30, 65]).len(), 4096);
    }

    #[test]
    fn text_of_many_wide_conversions_is_bounded() {
        let words = [string(&"%4096d".repeat(4096)), vec![1; 4096]].concat();
        assert_eq!(super::format(&words, None).len(), MOST_TEXT);
    }

    proptest! {
        #[test]
        fn any_words_give_some_text(words in proptest::collection::vec(any::<u64>(), 0..64), limit in 0usize..80) {
            let text = super::format(&words, Some(limit));
            prop_assert!(text.len() <= 64 * 8 * 5000);
        }

        /// As the C library would print it.
        #[test]
        fn numbers_are_printed_as_rust_prints_them(signed in any::<i32>(), wide in any::<u64>()) {
            let words = [u64::from(signed.cast_unsigned()), wide];
            prop_assert_eq!(text("%d %lx", &words), format!("{signed} {wide:x}"));
        }
    }
}
