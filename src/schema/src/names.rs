//! Kubernetes name syntaxes. Each check returns the error texts of kube-apiserver, or an empty list
//! if the name is valid.

pub mod label_selector;

const DNS_LABEL_BYTES_MAX: usize = 63;
const DNS_SUBDOMAIN_BYTES_MAX: usize = 253;
const QUALIFIED_NAME_BYTES_MAX: usize = 63;
const LABEL_VALUE_BYTES_MAX: usize = 63;

fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    let mut text = format!("{message} (e.g. ");
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            text.push_str(" or ");
        }
        text.push_str(&format!("'{example}', "));
    }
    text.push_str(&format!("regex used for validation is '{pattern}')"));
    text
}

/// Unit in which kube-apiserver states a maximum length. Both count bytes.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Characters,
}

fn too_long(max: usize, unit: Unit) -> String {
    let unit = match unit {
        Unit::Bytes => "bytes",
        Unit::Characters => "characters",
    };
    format!("must be no more than {max} {unit}")
}

fn is_lower_alphanumeric(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    is_lower_alphanumeric(*first)
        && is_lower_alphanumeric(*last)
        && bytes.iter().all(|c| is_lower_alphanumeric(*c) || *c == b'-')
}

/// Checks an RFC 1123 label, for example a namespace.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_LABEL_BYTES_MAX {
        errors.push(too_long(DNS_LABEL_BYTES_MAX, Unit::Characters));
    }
    if !is_dns_label(text) {
        if text.split('.').all(is_dns_label) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(regex_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

/// Checks an RFC 1123 subdomain, the name of most objects.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    subdomain(text, Unit::Characters)
}

fn subdomain(text: &str, unit: Unit) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_SUBDOMAIN_BYTES_MAX {
        errors.push(too_long(DNS_SUBDOMAIN_BYTES_MAX, unit));
    }
    if !text.split('.').all(is_dns_label) {
        errors.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    errors
}

/// Checks an RFC 1035 label: kinds in lower case, plurals and short names of CRDs.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > DNS_LABEL_BYTES_MAX {
        errors.push(too_long(DNS_LABEL_BYTES_MAX, Unit::Characters));
    }
    if !is_dns_label(text) || !text.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        errors.push(regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// Checks a path segment, the name of RBAC objects.
pub fn path_segment(text: &str) -> Vec<String> {
    match text {
        "." => return vec!["may not be '.'".to_owned()],
        ".." => return vec!["may not be '..'".to_owned()],
        _ => {}
    }
    let mut errors = Vec::new();
    for illegal in ["/", "%"] {
        if text.contains(illegal) {
            errors.push(format!("may not contain '{illegal}'"));
        }
    }
    errors
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

const QUALIFIED_NAME_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const QUALIFIED_NAME_PATTERN: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Checks `prefix/name`: label and annotation keys, finalizers.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    subdomain(prefix, Unit::Bytes)
                        .into_iter()
                        .map(|error| format!("prefix part {error}")),
                );
            }
            *name
        }
        _ => {
            let text = regex_error(
                &format!("a valid label key {QUALIFIED_NAME_TEXT}"),
                QUALIFIED_NAME_PATTERN,
                &["MyName", "my.name", "123-abc"],
            );
            errors.push(format!(
                "{text} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > QUALIFIED_NAME_BYTES_MAX {
        errors.push(format!(
            "name part {}",
            too_long(QUALIFIED_NAME_BYTES_MAX, Unit::Bytes)
        ));
    }
    if !is_qualified_part(name) {
        let text = regex_error(
            QUALIFIED_NAME_TEXT,
            QUALIFIED_NAME_PATTERN,
            &["MyName", "my.name", "123-abc"],
        );
        errors.push(format!("name part {text}"));
    }
    errors
}

/// Checks a label value. It may be empty.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_VALUE_BYTES_MAX {
        errors.push(too_long(LABEL_VALUE_BYTES_MAX, Unit::Bytes));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        errors.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_match_kube_apiserver() {
        assert_eq!(
            dns_subdomain("Bad_Name"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert_eq!(
            label_value("-x"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert_eq!(
            path_segment("a/b%"),
            ["may not contain '/'", "may not contain '%'"]
        );
    }
}
