//! Syntax errors of JSON in the words of Go's decoder, which clients of Kubernetes show.

use serde_json::Value;

/// Returns Go's name of a JSON value's type.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the first syntax error of a JSON text, or `None` if the text is well-formed.
pub fn syntax_error(text: &[u8]) -> Option<String> {
    let mut scanner = Scanner { text, at: 0 };
    let result = scanner.value(0).and_then(|()| {
        scanner.skip_space();
        match scanner.peek() {
            None => Ok(()),
            Some(_) => scanner.fail("after top-level value"),
        }
    });
    result.err()
}

/// Maximum nesting depth: the limit of serde_json, which parses the bodies. Go permits 10,000; the
/// recursion of this parser would exhaust the stack before.
const DEPTH_MAX: usize = 128;

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Fails at the current byte, or at the end of the text.
    fn fail<T>(&self, context: &str) -> Result<T, String> {
        Err(match self.peek() {
            None => "unexpected end of JSON input".to_owned(),
            Some(byte) => format!("invalid character {} {context}", quote(byte)),
        })
    }

    fn value(&mut self, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err("exceeded max depth".to_owned());
        }
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.fail("looking for beginning of value"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), String> {
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return self.fail("looking for beginning of object key string");
            }
            self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return self.fail("after object key");
            }
            self.at += 1;
            self.value(depth + 1)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail("after object key:value pair"),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), String> {
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail("after array element"),
            }
        }
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                    return self.fail("in \\u hexadecimal character escape");
                                }
                                self.at += 1;
                            }
                        }
                        _ => return self.fail("in string escape code"),
                    }
                }
                None | Some(..0x20) => return self.fail("in string literal"),
                Some(_) => self.at += 1,
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                let context = format!("in literal {word} (expecting {})", quote(expected));
                return self.fail(&context);
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else if !self.digits() {
            return self.fail("in numeric literal");
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !self.digits() {
                return self.fail("after decimal point in numeric literal");
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if !self.digits() {
                return self.fail("in exponent of numeric literal");
            }
        }
        Ok(())
    }
}

/// Quotes a byte like a character of Go.
fn quote(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => "'\\\\'".to_owned(),
        b'\n' => "'\\n'".to_owned(),
        b'\r' => "'\\r'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        byte => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_match_go_wording() {
        let check = |text: &str, expect: &str| {
            assert_eq!(syntax_error(text.as_bytes()).as_deref(), Some(expect), "{text}");
        };
        check("", "unexpected end of JSON input");
        check("{\"a\": 1", "unexpected end of JSON input");
        check("hello", "invalid character 'h' looking for beginning of value");
        check("{\"a\" 1}", "invalid character '1' after object key");
        check(
            "{\"a\":1 \"b\"}",
            "invalid character '\"' after object key:value pair",
        );
        check(
            "{a}",
            "invalid character 'a' looking for beginning of object key string",
        );
        check("[1 2]", "invalid character '2' after array element");
        check("{} x", "invalid character 'x' after top-level value");
        check("nope", "invalid character 'o' in literal null (expecting 'u')");
        check("\"a\n\"", "invalid character '\\n' in string literal");
        check("\"\\x\"", "invalid character 'x' in string escape code");
        check("-x", "invalid character 'x' in numeric literal");
        check(
            "1.x",
            "invalid character 'x' after decimal point in numeric literal",
        );
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for open in ["[", "{\"a\":"] {
            let error = syntax_error(open.repeat(100_000).as_bytes());
            assert_eq!(error.as_deref(), Some("exceeded max depth"), "{open}");
        }
    }

    #[test]
    fn accepts_well_formed_text() {
        for text in [
            " {\"a\": [1, -0.5e+3, true, null, \"\\u00e9\\n\"]} ",
            "[]",
            "{}",
            "0",
        ] {
            assert_eq!(syntax_error(text.as_bytes()), None, "{text}");
        }
    }
}
