//! Line breaks between words.

use crate::table::width;

/// Breaks a text into lines of at most `to` terminal cells. Lines after the first start with
/// `indent` spaces. A word that is longer than a line is broken.
pub(super) fn wrap(text: &str, to: usize, indent: usize) -> Vec<String> {
    let to = to.max(2);
    let indent = if indent + 8 < to { indent } else { 0 };
    let mut lines = vec![String::new()];
    let mut used = 0;
    for (index, word) in text.split(' ').enumerate() {
        let space = usize::from(index > 0);
        let long = width(word);
        if used + space + long <= to {
            push(&mut lines, &" ".repeat(space));
            push(&mut lines, word);
            used += space + long;
            continue;
        }
        if lines.last().is_some_and(|line| !line.trim().is_empty()) {
            lines.push(" ".repeat(indent));
            used = indent;
        }
        for c in word.chars() {
            let one = width(c.encode_utf8(&mut [0; 4]));
            if used + one > to {
                lines.push(" ".repeat(indent));
                used = indent;
            }
            push(&mut lines, c.encode_utf8(&mut [0; 4]));
            used += one;
        }
    }
    lines
}

fn push(lines: &mut [String], text: &str) {
    if let Some(line) = lines.last_mut() {
        line.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_between_words_with_an_indent() {
        assert_eq!(wrap("one two three", 20, 2), ["one two three"]);
        assert_eq!(wrap("one two three four", 12, 2), ["one two", "  three four"]);
        assert_eq!(wrap("a   b", 20, 0), ["a   b"]);
        assert_eq!(wrap("", 20, 2), [""]);
    }

    #[test]
    fn breaks_words_longer_than_a_line() {
        assert_eq!(wrap("abcdef", 4, 0), ["abcd", "ef"]);
        assert_eq!(wrap("日本語", 4, 0), ["日本", "語"]);
        assert_eq!(wrap("ab", 0, 9), ["ab"]);
    }
}
