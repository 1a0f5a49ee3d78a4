//! Removal of secrets from texts. The module is pure.

use serde_json::Value;

const REMOVED: &str = "[removed]";
/// Prefixes of tokens: API keys, tokens of users, of Hugging Face, for joining, and JSON Web Tokens.
const TOKEN_PREFIXES: [&str; 5] = ["sk-", "rooflet_", "hf_", "rf1.", "eyJ"];
/// Names in front of a secret value, in lower case.
const SECRET_NAMES: [&str; 6] = [
    "token",
    "password",
    "secret",
    "authorization",
    "api_key",
    "apikey",
];
/// Length of both parts of a bootstrap token.
const BOOTSTRAP_TOKEN: (usize, usize) = (6, 16);

/// Replaces tokens, keys and passwords.
pub(super) fn redacted(text: &str) -> String {
    let mut lines = Vec::new();
    let mut is_in_key = false;
    for line in text.lines() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            is_in_key = !line.contains("-----END");
            lines.push(REMOVED.to_owned());
            continue;
        }
        if is_in_key {
            is_in_key = !line.contains("-----END");
            continue;
        }
        lines.push(redacted_line(line));
    }
    lines.join("\n") + if text.ends_with('\n') { "\n" } else { "" }
}

fn redacted_line(line: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/' | '~');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    // True if the previous word names a secret, such as `token` in `token=x` and `Bearer` in `Bearer x`.
    let mut is_secret_next = false;
    while !rest.is_empty() {
        if is_secret_next && out.ends_with('"') {
            // A quoted value can contain spaces.
            let end = rest.find('"').unwrap_or(rest.len());
            out.push_str(REMOVED);
            rest = &rest[end..];
            is_secret_next = false;
        }
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let gap_end = tail.find(is_word).unwrap_or(tail.len());
        let (gap, next) = tail.split_at(gap_end);
        let is_scheme = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        if is_secret_next && is_scheme {
            out.push_str(word);
        } else if !word.is_empty() && (is_secret_next || is_token(word)) {
            out.push_str(REMOVED);
            is_secret_next = false;
        } else {
            out.push_str(word);
            let lower = word.to_ascii_lowercase();
            let names = SECRET_NAMES.iter().any(|name| lower.ends_with(name));
            is_secret_next = word == "Bearer" || (names && is_assignment(gap));
        }
        out.push_str(gap);
        rest = next;
    }
    without_passwords(&out)
}

/// Returns whether a gap between two words assigns the second to the first: `=`, `:`, `": "`, `\": \"`.
fn is_assignment(gap: &str) -> bool {
    let is_quote = |c: char| c.is_whitespace() || matches!(c, '"' | '\\');
    matches!(gap.trim_matches(is_quote), "=" | ":")
}

fn is_token(word: &str) -> bool {
    let has_prefix = TOKEN_PREFIXES
        .iter()
        .any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 8));
    let is_bootstrap = word.split_once('.').is_some_and(|(id, secret)| {
        let is_part = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        (id.len(), secret.len()) == BOOTSTRAP_TOKEN && is_part(id) && is_part(secret)
    });
    has_prefix || is_bootstrap
}

/// Removes `USER:PASSWORD` of URLs.
fn without_passwords(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (head, tail) = rest.split_at(at + 3);
        out.push_str(head);
        let authority = tail.find(['/', ' ', '"', '\'']).unwrap_or(tail.len());
        match tail[..authority].rfind('@') {
            Some(user_end) if tail[..user_end].contains(':') => {
                out.push_str(REMOVED);
                rest = &tail[user_end..];
            }
            _ => rest = tail,
        }
    }
    out + rest
}

/// Removes field owners and the last applied manifests, which repeat the objects.
pub(super) fn without_noise(items: &mut Value) {
    for item in items.as_array_mut().into_iter().flatten() {
        let Some(metadata) = item.get_mut("metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_removed_and_other_text_stays() {
        for (line, expect) in [
            (
                "worker started replica=default/a pid=123",
                "worker started replica=default/a pid=123",
            ),
            ("79 tokens, 562.7 tokens/s", "79 tokens, 562.7 tokens/s"),
            ("contextTokens: 4096", "contextTokens: 4096"),
            ("key sk-rf-0123456789abcdef used", "key [removed] used"),
            ("Authorization: Bearer abc.def", "Authorization: Bearer [removed]"),
            ("token=abc next", "token=[removed] next"),
            (
                r#"{"password": "p w", "a": 1}"#,
                r#"{"password": "[removed]", "a": 1}"#,
            ),
            (r#"{\"token\": \"a b\"}"#, r#"{\"token\": \"[removed]"}"#),
            ("jwt eyJhbGciOi.eyJpc3Mi.c2ln used", "jwt [removed] used"),
            ("join abcdef.0123456789abcdef now", "join [removed] now"),
            ("HF hf_abcdefgh1234", "HF [removed]"),
            ("https://user:pass@host/x", "https://[removed]@host/x"),
            ("http://127.0.0.1:7443/a@b", "http://127.0.0.1:7443/a@b"),
            ("hf://o/n@main", "hf://o/n@main"),
        ] {
            assert_eq!(redacted(line), expect);
        }
        let key = "a\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nb\n";
        assert_eq!(redacted(key), "a\n[removed]\nb\n");
    }

    #[test]
    fn repeated_parts_of_objects_are_removed() {
        let mut items = json!([{"metadata": {"name": "a", "managedFields": [], "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "x", "kept": "y"}}}]);
        without_noise(&mut items);
        assert_eq!(
            items,
            json!([{"metadata": {"name": "a", "annotations": {"kept": "y"}}}])
        );
    }
}
