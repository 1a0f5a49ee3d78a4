//! Spellings that the parser of the `cel` crate does not read as `cel-go` does.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Returns an equal expression without texts in triple quotes, and without escaped quotes and backslashes in byte
/// strings. Places after such a text differ from those of the source.
pub(super) fn plain(source: &str) -> Cow<'_, str> {
    let is_special = ["'''", "\"\"\"", "\\"];
    if !is_special.iter().any(|spelling| source.contains(spelling)) {
        return Cow::Borrowed(source);
    }
    let mut written = String::with_capacity(source.len());
    for (place, token) in Tokens::new(source) {
        match token {
            Token::Text(text) => text.write(&mut written),
            Token::Comment(length) | Token::Name(length) => written.push_str(&source[place..place + length]),
            Token::Other(character) => written.push(character),
        }
    }
    Cow::Owned(written)
}

/// Returns an equal [`plain`] expression in which spaces replace repeated negations: `!!a` is `a`. The crate reads
/// an even number of signs as one sign, and visits their operand twice. An expression with a syntax error keeps it.
pub(super) fn without_double_negations(source: &str) -> Cow<'_, str> {
    if source.matches(['!', '-']).count() < 2 {
        return Cow::Borrowed(source);
    }
    let mut signs = Signs::default();
    for (place, token) in Tokens::new(source) {
        let rest = &source[place..];
        match token {
            Token::Comment(_) => {}
            Token::Text(_) => signs.end(true, true),
            Token::Name(length) => signs.end(true, &rest[..length] != "in"),
            Token::Other(character) if character.is_whitespace() => {}
            Token::Other('!') if !rest.starts_with("!=") => signs.add('!', place, false),
            Token::Other('-') => signs.add('-', place, starts_number(&rest[1..])),
            Token::Other(character) => signs.end("([{.".contains(character), ")]}".contains(character)),
        }
    }
    signs.end(false, false);
    let mut spelled = source.to_owned();
    for place in signs.superfluous {
        spelled.replace_range(place..=place, " ");
    }
    Cow::Owned(spelled)
}

fn starts_number(source: &str) -> bool {
    let digits = source.trim_start().trim_start_matches('.');
    digits.starts_with(|first: char| first.is_ascii_digit())
}

/// Signs before an operand.
#[derive(Default)]
struct Signs {
    /// Kind and places of the last signs, if no operand follows them yet.
    last: Option<(char, Vec<usize>)>,
    /// Set if the last signs are a syntax error.
    are_misplaced: bool,
    follows_operand: bool,
    /// Places of the signs to remove.
    superfluous: Vec<usize>,
}

impl Signs {
    fn add(&mut self, sign: char, place: usize, starts_number: bool) {
        if let Some((last, places)) = &mut self.last
            && *last == sign
        {
            places.push(place);
            return;
        }
        let are_misplaced = self.last.is_some() || self.follows_operand;
        // The only sign that may follow other signs is that of a number.
        self.end(starts_number, false);
        // After an operand or other signs, `-` is an operator with two operands or part of a number.
        if sign == '!' || !are_misplaced {
            self.are_misplaced = are_misplaced;
            self.last = Some((sign, vec![place]));
        }
    }

    /// Ends the last signs at a token, which may begin an operand, and may end one.
    fn end(&mut self, begins_operand: bool, ends_operand: bool) {
        self.follows_operand = ends_operand;
        let Some((_, places)) = self.last.take() else {
            return;
        };
        if places.len().is_multiple_of(2) {
            // The first sign preserves a syntax error.
            let kept = usize::from(self.are_misplaced || !begins_operand);
            self.superfluous.extend(places.into_iter().skip(kept));
        }
    }
}

/// Token of an expression, as far as the spelling depends on it.
enum Token<'a> {
    Text(Text<'a>),
    /// Comment up to the end of its line, with its length in bytes.
    Comment(usize),
    /// Name, keyword, number or name in backticks, with its length in bytes.
    Name(usize),
    Other(char),
}

/// Tokens of an expression with their places.
struct Tokens<'a> {
    source: &'a str,
    place: usize,
    /// For each kind of quotes, the place before which no quotes end a text.
    unclosed: BTreeMap<(&'static str, bool), usize>,
}

impl<'a> Tokens<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            place: 0,
            unclosed: BTreeMap::new(),
        }
    }

    /// Returns the text or byte string at the current place.
    fn text(&mut self) -> Option<Text<'a>> {
        let source = &self.source[self.place..];
        let letters = source.bytes().take_while(|byte| b"bBrR".contains(byte));
        let (prefix, rest) = source.split_at(letters.take(3).count());
        if prefix.len() > 2 {
            return None;
        }
        let quotes = ["'''", "\"\"\"", "'", "\""]
            .into_iter()
            .find(|quotes| rest.starts_with(quotes))?;
        let kind = (quotes, is_raw(prefix));
        let inside = &rest[quotes.len()..];
        let begin = self.place + prefix.len() + quotes.len();
        // The earlier search passed these quotes, so that it read the same escapes.
        if self.unclosed.get(&kind).is_some_and(|place| begin <= *place) {
            return None;
        }
        match end(inside, quotes, kind.1) {
            Ok(end) => Some(Text {
                prefix,
                quotes,
                content: &inside[..end],
                length: prefix.len() + quotes.len() + end + quotes.len(),
            }),
            Err(searched) => {
                self.unclosed.insert(kind, begin + searched);
                None
            }
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = (usize, Token<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let place = self.place;
        let rest = &self.source[place..];
        let first = rest.chars().next()?;
        let (length, token) = if let Some(text) = self.text() {
            (text.length, Token::Text(text))
        } else if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            (length, Token::Comment(length))
        } else if let Some(length) = name(rest) {
            (length, Token::Name(length))
        } else {
            (first.len_utf8(), Token::Other(first))
        };
        self.place += length;
        Some((place, token))
    }
}

/// Returns the length of a name, number or name in backticks at the start.
fn name(source: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    if let Some(quoted) = source.strip_prefix('`') {
        let end = quoted.find(|c: char| !is_part(c) && !"-./ ".contains(c))?;
        return quoted[end..].starts_with('`').then_some(end + 2);
    }
    let length = source.find(|c| !is_part(c)).unwrap_or(source.len());
    (length > 0).then_some(length)
}

/// Text or byte string in the source.
struct Text<'a> {
    prefix: &'a str,
    quotes: &'a str,
    content: &'a str,
    /// Length of all, in bytes.
    length: usize,
}

impl Text<'_> {
    fn write(&self, written: &mut String) {
        let is_raw = is_raw(self.prefix);
        let is_bytes = self.prefix.contains(['b', 'B']);
        if self.quotes.len() == 1 && !(is_bytes && self.content.contains('\\')) {
            for part in [self.prefix, self.quotes, self.content, self.quotes] {
                written.push_str(part);
            }
            return;
        }
        // In bytes, the crate reads no escaped backslash and no escaped quote.
        let (backslash, quote) = match is_bytes {
            true => ("\\x5c", "\\x22"),
            false => ("\\\\", "\\\""),
        };
        written.push_str(if is_bytes { "b\"" } else { "\"" });
        let mut characters = self.content.chars();
        while let Some(character) = characters.next() {
            match character {
                '"' => written.push_str(quote),
                '\n' => written.push_str("\\n"),
                // As in `cel-go`, one character ends each line.
                '\r' => {
                    let rest = characters.as_str();
                    characters = rest.strip_prefix('\n').unwrap_or(rest).chars();
                    written.push_str("\\n");
                }
                '\\' if is_raw => written.push_str(backslash),
                '\\' => match characters.next() {
                    Some('\\') => written.push_str(backslash),
                    Some('"') => written.push_str(quote),
                    Some('\'') => written.push('\''),
                    escaped => {
                        written.push('\\');
                        written.extend(escaped);
                    }
                },
                other => written.push(other),
            }
        }
        written.push('"');
    }
}

fn is_raw(prefix: &str) -> bool {
    prefix.contains(['r', 'R'])
}

/// Returns the length of the content before the quotes that end it. If there are none, the error is the length of
/// the part without them.
fn end(inside: &str, quotes: &str, is_raw: bool) -> Result<usize, usize> {
    let mut is_escaped = false;
    for (place, character) in inside.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if inside[place..].starts_with(quotes) {
            return Ok(place);
        } else if character == '\n' && quotes.len() == 1 {
            return Err(place);
        } else {
            is_escaped = character == '\\' && !is_raw;
        }
    }
    Err(inside.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cel::parse;

    #[test]
    fn repeated_negations_become_spaces() {
        for (source, expect) in [
            ("!!a", "  a"),
            ("!!!a", "!!!a"),
            ("! // c\n !a", "  // c\n  a"),
            ("a--b", "a--b"),
            ("a---b", "a-  b"),
            ("1 in --[a]", "1 in   [a]"),
            ("--1 < - -x", "  1 <    x"),
            ("!!-1 == !!-.5", "  -1 ==   -.5"),
            ("'!!' + r\"--\" // !!a", "'!!' + r\"--\" // !!a"),
            ("self.`a--b` != self.b", "self.`a--b` != self.b"),
            ("a !!= b", "a !!= b"),
            // Syntax errors.
            ("a !!b", "a ! b"),
            ("!!-a", "! -a"),
            ("--!a", "- !a"),
            ("!!", "! "),
            ("!--a", "!--a"),
        ] {
            assert_eq!(without_double_negations(source), expect, "{source}");
            assert_eq!(parse(source).is_ok(), parse(expect).is_ok(), "{source}");
        }
    }

    /// The time of none of these grows with the square of the length.
    #[test]
    fn long_expressions_are_read_in_one_pass() {
        let nested = |open: &str| format!("{}true{}", open.repeat(40), ")".repeat(40));
        for (source, is_valid) in [
            (nested("!!("), true),
            (nested("- -("), true),
            (format!("{}\\", "b".repeat(99_000)), false),
            ("\\\"\"\"x".repeat(16_000), false),
            ("\\'".repeat(45_000), false),
            ("`a".repeat(45_000), false),
        ] {
            let read = without_double_negations(&plain(&source)).into_owned();
            assert!(!is_valid || parse(&source).is_ok(), "{read}");
        }
    }

    #[test]
    fn unclosed_texts_do_not_hide_later_ones() {
        assert_eq!(plain("'a\n'''b'''"), "'a\n\"b\"");
        assert_eq!(plain("\"\"\"a + '''b'''"), "\"\"\"a + \"b\"");
        assert_eq!(plain("bb'''a''' + xb'''a'''"), "b\"a\" + xb\"a\"");
    }

    #[test]
    fn line_ends_of_texts_in_triple_quotes_are_single_characters() {
        let source = "'''a\r\nb\rc\n'''";
        assert_eq!(plain(source), r#""a\nb\nc\n""#);
        assert_eq!(plain("r\"\"\"\r\n\\\"\"\""), r#""\n\\""#);
    }
}
