//! Simplified Rust tokenizer: identifiers and punctuation.

/// Token with its line number, starting at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Returns the words and the punctuation of `text`, without comments, strings and characters. `::`,
/// `->` and `=>` are one token each.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    let starts = |at: usize, with: &str| {
        with.chars()
            .enumerate()
            .all(|(i, c)| chars.get(at + i) == Some(&c))
    };
    while at < chars.len() {
        let begin = at;
        let c = chars[at];
        if c.is_whitespace() {
            at += 1;
        } else if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            while at < chars.len() && !starts(at, "*/") {
                at += 1;
            }
            at += 2;
        } else if let Some(end) = raw_string(&chars, at) {
            at = end;
        } else if c == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if c == '\'' {
            at = character(&chars, at);
        } else if c.is_alphanumeric() || c == '_' {
            while at < chars.len() && (chars[at].is_alphanumeric() || chars[at] == '_') {
                at += 1;
            }
            // The prefix of a string, as in b"…" and c"…", is not a token.
            if !(at == begin + 1 && chars.get(at) == Some(&'"')) {
                let text = chars[begin..at].iter().collect();
                found.push(Token { text, line });
            }
        } else {
            at += if starts(at, "::") || starts(at, "->") || starts(at, "=>") {
                2
            } else {
                1
            };
            let text = chars[begin..at].iter().collect();
            found.push(Token { text, line });
        }
        let end = at.min(chars.len());
        line += chars[begin..end].iter().filter(|c| **c == '\n').count();
    }
    found
}

/// Returns the end of the raw string at `at`, if there is one.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let mut next = at;
    if chars.get(next) == Some(&'b') {
        next += 1;
    }
    if chars.get(next) != Some(&'r') {
        return None;
    }
    next += 1;
    let hashes = chars[next..].iter().take_while(|c| **c == '#').count();
    next += hashes;
    if chars.get(next) != Some(&'"') {
        return None;
    }
    next += 1;
    while next < chars.len() {
        let closes = chars[next] == '"'
            && chars[next + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes;
        if closes {
            return Some(next + 1 + hashes);
        }
        next += 1;
    }
    Some(next)
}

/// Returns the end of the character literal at `at`, or of the quote of a lifetime.
fn character(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let mut next = at + 3;
            while next < chars.len() && chars[next] != '\'' {
                next += 1;
            }
            next + 1
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at + 1,
    }
}

/// Removes the items that exist only in test builds.
pub(super) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is("#") && tokens.get(at + 1).is_some_and(|token| token.is("[")) {
            let end = closing(tokens, at + 1);
            let attribute = &tokens[at + 2..end];
            let is_test = match attribute {
                [cfg, _, condition, ..] if cfg.is("cfg") => condition.is("test"),
                [.., last] => last.is("test"),
                [] => false,
            };
            if is_test {
                at = item_end(tokens, end + 1);
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// Returns the index of the bracket that closes the one at `open`.
pub(super) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return index;
                }
            }
            _ => {}
        }
    }
    tokens.len() - 1
}

/// Returns the index after the item at `at`: after its semicolon or its block.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" | "," => return at + 1,
            "{" => return closing(tokens, at) + 1,
            "}" => return at,
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(tokens: &[Token]) -> String {
        let words: Vec<_> = tokens.iter().map(|token| token.text.as_str()).collect();
        words.join(" ")
    }

    #[test]
    fn omits_comments_strings_characters_and_lifetimes() {
        let text =
            "fn f<'a>(x: &'a str) { /* g() */ let y = \"h::i\"; let z = r#\"j\"k\"#; '\\''; 'l' } // m";
        assert_eq!(
            words(&tokens(text)),
            "fn f < a > ( x : & a str ) { let y = ; let z = ; ; }"
        );
    }

    #[test]
    fn omits_items_of_test_builds() {
        let text = "use a::B; #[cfg(test)] mod tests { fn x() {} } #[cfg(test)] use c; #[test] fn t() {} #[cfg(unix)] fn u() {}";
        assert_eq!(
            words(&without_tests(&tokens(text))),
            "use a :: B ; # [ cfg ( unix ) ] fn u ( ) { }"
        );
    }
}
