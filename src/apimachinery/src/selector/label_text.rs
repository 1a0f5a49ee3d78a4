//! Labels as text: the place of `metadata.labels` in the JSON of an object, and the value of a label in
//! it. Both skip values without parsing them.
//!
//! The text must be valid JSON without escaped names of members.

use std::ops::Range;

/// Returns the place of the object `metadata.labels` in the JSON of an object.
pub(super) fn locate(json: &[u8]) -> Option<Range<usize>> {
    let labels = ["metadata", "labels"]
        .into_iter()
        .try_fold(0, |object, name| member(json, object, name))?;
    (json.get(labels) == Some(&b'{')).then_some(labels..after_value(json, labels)?)
}

/// Value of a label in a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Label<'a> {
    Absent,
    Text(&'a str),
    /// A value that needs a parser, because it contains escapes or is not a string.
    Complex,
}

/// Returns the value of a label. `labels` is empty or the JSON of the labels.
pub(super) fn label<'a>(labels: &'a [u8], key: &str) -> Label<'a> {
    let Some(start) = member(labels, 0, key) else {
        return Label::Absent;
    };
    let end = after_value(labels, start).unwrap_or(start);
    let value = labels.get(start..end).unwrap_or_default();
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    match inner.map(std::str::from_utf8) {
        Some(Ok(text)) if !text.contains('\\') => Label::Text(text),
        Some(Ok(_) | Err(_)) | None => Label::Complex,
    }
}

/// Returns the start of a member's value in the object at `object`.
fn member(json: &[u8], object: usize, name: &str) -> Option<usize> {
    let mut at = after_blanks(json, object)?;
    if json[at] != b'{' {
        return None;
    }
    loop {
        at = after_blanks(json, at + 1)?;
        if json[at] != b'"' {
            return None;
        }
        let end = after_string(json, at)?;
        let is_wanted = json.get(at + 1..end - 1) == Some(name.as_bytes());
        let colon = after_blanks(json, end)?;
        let value = after_blanks(json, colon + 1)?;
        if is_wanted {
            return Some(value);
        }
        at = after_blanks(json, after_value(json, value)?)?;
        if json[at] != b',' {
            return None;
        }
    }
}

/// Returns the first position from `at` that is no whitespace.
fn after_blanks(json: &[u8], mut at: usize) -> Option<usize> {
    while json.get(at)?.is_ascii_whitespace() {
        at += 1;
    }
    Some(at)
}

/// Returns the position after the string that starts at `start`.
fn after_string(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the position after the value that starts at `start`.
fn after_value(json: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    loop {
        match json.get(at)? {
            b'"' => at = after_string(json, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            // A number or a literal.
            _ => {
                let rest = json.get(at..)?;
                at += match depth {
                    0 => rest
                        .iter()
                        .position(|byte| b",}]".contains(byte) || byte.is_ascii_whitespace())
                        .unwrap_or(rest.len()),
                    _ => 1,
                };
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    fn located(json: &str) -> Option<&str> {
        locate(json.as_bytes()).map(|place| &json[place])
    }

    #[test]
    fn labels_are_located_behind_values_of_all_kinds() {
        let check = |json: &str, expect: Option<&str>| assert_eq!(located(json), expect, "{json}");
        check(r#"{"metadata":{"labels":{"a":"b"}}}"#, Some(r#"{"a":"b"}"#));
        check(r#"{"metadata":{"labels":{}},"z":1}"#, Some("{}"));
        check(
            r#"{"a":[{"metadata":{"labels":{"no":"1"}}},"\"}",1.5e3,null,true],"metadata":{"annotations":{"labels":"{\\\"x"},"labels":{"a":"}"},"name":"n"}}"#,
            Some(r#"{"a":"}"}"#),
        );
        check(
            "{ \"a\" : -1 , \"metadata\" : { \"labels\" : {\"a\" : \"b\"} } }",
            Some("{\"a\" : \"b\"}"),
        );
        for absent in [
            "",
            "{}",
            "[]",
            "1",
            r#""metadata""#,
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"labels":null}}"#,
            r#"{"metadata":[],"labels":{"a":"b"}}"#,
            r#"{"spec":{"metadata":{"labels":{"a":"b"}}}}"#,
        ] {
            check(absent, None);
        }
    }

    #[test]
    fn value_of_a_label_is_read_or_left_to_the_parser() {
        let labels = br#"{"a":"b","a.io/c":"","d":"\u0041","e":1}"#;
        assert_eq!(label(labels, "a"), Label::Text("b"));
        assert_eq!(label(labels, "a.io/c"), Label::Text(""));
        assert_eq!(label(labels, "b"), Label::Absent, "a value is not a key");
        assert_eq!(
            [label(labels, "d"), label(labels, "e")],
            [Label::Complex, Label::Complex]
        );
        assert_eq!(label(b"", "a"), Label::Absent);
    }

    proptest::proptest! {
        #[test]
        fn located_labels_equal_the_parsed_ones(
            before in proptest::collection::btree_map("[a-z\"\\\\{}\\[\\],:é]{0,6}", "[ -~é]{0,9}", 0..4),
            labels in proptest::collection::btree_map("[a-c]{1,3}", "[a-zA-Z0-9._-]{0,5}", 0..4),
        ) {
            let mut metadata: Map<String, Value> = before.clone().into_iter().map(|(key, text)| (key, json!([text]))).collect();
            metadata.insert("labels".to_owned(), json!(labels));
            let mut object: Map<String, Value> = before.into_iter().map(|(key, text)| (key, Value::from(text))).collect();
            object.insert("metadata".to_owned(), Value::Object(metadata));
            let text = Value::Object(object).to_string();
            let place = locate(text.as_bytes()).expect("an object has labels");
            proptest::prop_assert_eq!(serde_json::from_str::<Value>(&text[place.clone()]).expect("JSON"), json!(labels));
            for (key, value) in &labels {
                proptest::prop_assert_eq!(label(&text.as_bytes()[place.clone()], key), Label::Text(value));
            }
        }

        #[test]
        fn any_text_is_accepted(text in "[{}\\[\\]\",:\\\\ a1]{0,24}") {
            let _ = locate(text.as_bytes());
            let _ = label(text.as_bytes(), "a");
        }
    }
}
