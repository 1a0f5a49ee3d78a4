//! Percent-encoding, RFC 3986 section 2.1.

/// Decodes a text. Returns `None` if a `%` is not followed by two hexadecimal digits, or if the
/// result is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.extend(hex::decode(digits).ok()?);
            rest = tail;
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_only_complete_escapes() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(decode(text).as_deref(), expect, "{text}");
        check("", Some(""));
        check("a+b", Some("a+b"));
        check("%41%2fb%C3%a9", Some("A/bé"));
        check("é%25", Some("é%"));
        for malformed in ["%", "%4", "a%zz", "%+f", "%-1", "%é", "%ff", "%C3"] {
            check(malformed, None);
        }
    }
}
