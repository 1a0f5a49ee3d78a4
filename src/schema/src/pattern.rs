//! `pattern` of a schema: Go's RE2 syntax, compiled with the `regex` crate.
//!
//! Both engines descend from RE2. This module translates two differences. Go's Perl classes
//! (`\d \w \s \b`) match ASCII only. Inside a class, Go treats `[`, `&`, `~` and `-` literally,
//! where Rust parses nested classes and set operators.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Maximum memory of a compiled pattern, because patterns are user input.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// Pattern of a schema. It is compiled when a text is first matched: a compiled pattern needs many times the
/// memory of its text, and most patterns are never used.
#[derive(Debug)]
pub(super) struct Pattern {
    text: Box<str>,
    /// `None` if the pattern is invalid.
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            compiled: OnceLock::new(),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if a part of the text matches. An invalid pattern, which only a schema of an older version
    /// can contain, matches every text.
    pub(super) fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| compile(&self.text).ok());
        compiled.as_ref().is_none_or(|regex| regex.is_match(text))
    }
}

pub(super) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translate(pattern))
        .size_limit(PATTERN_BYTES_MAX)
        .build()
}

fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match (c, in_class) {
            ('\\', _) => match chars.next() {
                Some(escaped) => push_escape(&mut out, escaped, in_class),
                None => out.push('\\'),
            },
            ('[', false) => {
                in_class = true;
                out.push('[');
                if chars.peek() == Some(&'^') {
                    out.push('^');
                    chars.next();
                }
                // A leading `]` is a member of the class.
                if chars.peek() == Some(&']') {
                    out.push_str("\\]");
                    chars.next();
                }
            }
            ('[', true) if chars.peek() == Some(&':') => {
                // POSIX class such as [:alpha:], copied up to its end.
                out.push('[');
                let mut previous = '[';
                for inner in chars.by_ref() {
                    out.push(inner);
                    if previous == ':' && inner == ']' {
                        break;
                    }
                    previous = inner;
                }
            }
            ('[' | '&' | '~', true) => {
                out.push('\\');
                out.push(c);
            }
            ('-', true) if chars.peek() == Some(&'-') => out.push_str("\\-"),
            (']', true) => {
                in_class = false;
                out.push(']');
            }
            _ => out.push(c),
        }
    }
    out
}

fn push_escape(out: &mut String, escaped: char, in_class: bool) {
    let ascii = match (escaped, in_class) {
        ('d', false) => "[0-9]",
        ('d', true) => "0-9",
        ('D', _) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('w', true) => "0-9A-Za-z_",
        ('W', _) => "[^0-9A-Za-z_]",
        ('s', false) => r"[\t\n\f\r ]",
        ('s', true) => r"\t\n\f\r ",
        ('S', _) => r"[^\t\n\f\r ]",
        ('b', false) => r"(?-u:\b)",
        ('B', false) => r"(?-u:\B)",
        _ => {
            out.push('\\');
            out.push(escaped);
            return;
        }
    };
    out.push_str(ascii);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perl_classes_are_ascii_and_class_members_are_literal() {
        let check = |pattern: &str, text: &str, expect: bool| {
            assert_eq!(
                compile(pattern).unwrap().is_match(text),
                expect,
                "{pattern} on {text}"
            );
        };
        check(r"^\d+$", "12", true);
        check(r"^\d+$", "١٢", false);
        check(r"^[\w.]+$", "a_b.c", true);
        check(r"^[[&]+$", "[&", true);
        check(r"^[[:alpha:]]+$", "abc", true);
        check(r"^[]a]+$", "a]", true);
        check(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a-b", true);
        check(r"^\S+$", "a b", false);
        check(r"^https?:\/\/", "https://x", true);
    }

    #[test]
    fn rejects_invalid_pattern() {
        assert!(compile("a(").is_err());
        assert!(Pattern::new("a(").matches("b"));
    }

    #[test]
    fn pattern_is_compiled_when_it_is_first_used() {
        let pattern = Pattern::new("^a+$");
        assert!(pattern.compiled.get().is_none());
        assert!(pattern.matches("aa") && !pattern.matches("ab"));
        assert!(pattern.compiled.get().is_some());
    }
}
