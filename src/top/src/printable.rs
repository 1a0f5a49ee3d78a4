//! Text that cannot control the terminal.

/// Returns the text on one line, with control characters and invisible formatting characters
/// escaped. Names, messages and reasons are written by other machines, so they may contain any
/// character.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() || is_formatting(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Returns whether the character is invisible or changes the direction of other text.
fn is_formatting(c: char) -> bool {
    matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_and_formatting_characters() {
        assert_eq!(
            printable("a\u{1b}[2J\u{7f}\u{9b}1mé 日本"),
            "a\\u{1b}[2J\\u{7f}\\u{9b}1mé 日本"
        );
        assert_eq!(printable("two\nlines\there\r\n"), "two lines here  ");
        assert_eq!(printable("a\u{202e}b\u{200b}c"), "a\\u{202e}b\\u{200b}c");
    }
}
