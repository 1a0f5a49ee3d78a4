//! Simple JSON paths into a schema: `fieldPath` of CEL rules, `selectableFields` of CRDs.

use super::node::{Additional, Node};

/// Error of a path that does not refer to a field. The texts are those of kube-apiserver.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FieldPathError {
    #[error("does not refer to a valid field")]
    NoSuchField,
    #[error("unexpected end of JSON path")]
    UnexpectedEnd,
    #[error("expected single quoted string but got {0}")]
    NotQuoted(String),
    #[error("expected [ or . but got: {0}")]
    NoAccessor(String),
}

/// Converts a path to field path form, for example `.spec['a.b'].c` to `spec.a.b.c`.
pub(super) fn resolve(node: &Node, path: &str) -> Result<String, FieldPathError> {
    find(node, path).map(|(normal, _)| normal)
}

/// Returns the path in field path form, and its node.
pub(super) fn find<'a>(node: &'a Node, path: &str) -> Result<(String, &'a Node), FieldPathError> {
    let mut node = node;
    let mut normal = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let name;
        if let Some(tail) = rest.strip_prefix('.') {
            let end = tail.find(['.', '[', ']']).unwrap_or(tail.len());
            if end == 0 {
                return Err(FieldPathError::UnexpectedEnd);
            }
            name = tail[..end].to_owned();
            rest = &tail[end..];
        } else if let Some(tail) = rest.strip_prefix('[') {
            let quoted = tail
                .strip_prefix('\'')
                .ok_or_else(|| FieldPathError::NotQuoted(tail.chars().take(1).collect()))?;
            let end = closing_quote(quoted).ok_or(FieldPathError::UnexpectedEnd)?;
            name = quoted[..end].replace("\\'", "'").replace("\\\\", "\\");
            rest = quoted[end + 1..]
                .strip_prefix(']')
                .ok_or(FieldPathError::UnexpectedEnd)?;
        } else {
            let end = rest.find(['.', '[', ']']).unwrap_or(rest.len()).max(1);
            return Err(FieldPathError::NoAccessor(rest[..end].to_owned()));
        }
        if node.has_properties() {
            node = node.property(&name).ok_or(FieldPathError::NoSuchField)?;
            if !normal.is_empty() {
                normal.push('.');
            }
            normal.push_str(&name);
        } else if let Additional::Schema(child) = &node.additional {
            node = child;
            normal.push_str(&format!("[{name}]"));
        } else {
            return Err(FieldPathError::NoSuchField);
        }
    }
    Ok((normal, node))
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            '\\' => escaped = !escaped,
            '\'' if !escaped => return Some(index),
            _ => escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use serde_json::json;

    #[test]
    fn resolves_paths_in_the_schema() {
        let node = compile(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a.b": {"type": "string"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}));
        assert_eq!(resolve(&node, ".spec['a.b']"), Ok("spec.a.b".to_owned()));
        assert_eq!(resolve(&node, ".labels.x"), Ok("labels[x]".to_owned()));
        assert_eq!(resolve(&node, ".spec.bogus"), Err(FieldPathError::NoSuchField));
        assert_eq!(
            resolve(&node, "spec"),
            Err(FieldPathError::NoAccessor("spec".to_owned()))
        );
        assert_eq!(
            resolve(&node, ".spec["),
            Err(FieldPathError::NotQuoted(String::new()))
        );
    }
}
