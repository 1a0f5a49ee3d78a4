//! JSON patch (RFC 6902) with the `json-patch` crate, within limits.

use json_patch::{AddOperation, Patch, PatchOperation};
use serde_json::Value;

use rooflet_schema::strict::NESTING_MAX;

/// Maximum operations of a patch, as in kube-apiserver.
pub(crate) const OPERATIONS_MAX: usize = 10_000;

/// Maximum bytes that `copy` operations of a patch may add. Repeated copies grow exponentially.
const COPIED_BYTES_MAX: usize = 3 << 20;

/// Error of a JSON patch. The comments name the status code.
#[derive(Debug, thiserror::Error)]
pub enum JsonPatchError {
    /// 400: not a list of operations.
    #[error("error decoding patch: {0}")]
    Malformed(String),
    /// 413.
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {0}")]
    TooManyOperations(usize),
    /// 422: an unknown operation, or one with missing members.
    #[error("the server rejected our request due to an error in our request")]
    Operation(#[source] serde_json::Error),
    /// 422: a test failed, or a path does not exist.
    #[error("the server rejected our request due to an error in our request")]
    Rejected(#[source] json_patch::PatchError),
    /// 422.
    #[error(
        "unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit {COPIED_BYTES_MAX}"
    )]
    CopiedTooMuch(usize),
    /// 422.
    #[error("the patch would nest values more than {NESTING_MAX} levels deep")]
    TooDeep,
}

/// Parsed patch within the limit of operations. May still fail on a document.
#[derive(Clone, Debug)]
pub struct JsonPatch {
    operations: Patch,
    unknown_members: Vec<String>,
}

impl JsonPatch {
    pub fn parse(patch: &Value) -> Result<Self, JsonPatchError> {
        let operations = patch.as_array().ok_or_else(|| {
            let found = if patch.is_object() { "object" } else { "value" };
            JsonPatchError::Malformed(format!(
                "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
            ))
        })?;
        if operations.len() > OPERATIONS_MAX {
            return Err(JsonPatchError::TooManyOperations(operations.len()));
        }
        let unknown_members = unknown_members(operations);
        serde_json::from_value(patch.clone())
            .map(|operations| Self {
                operations,
                unknown_members,
            })
            .map_err(JsonPatchError::Operation)
    }

    /// Returns the faults of members that no operation has, in the words of kube-apiserver.
    pub fn unknown_members(&self) -> &[String] {
        &self.unknown_members
    }

    /// Returns true if an operation has a path at or below `pointer`.
    pub fn changes(&self, pointer: &str) -> bool {
        self.operations.0.iter().any(|operation| {
            let path = operation.path().as_str();
            path == pointer
                || path
                    .strip_prefix(pointer)
                    .is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Returns the patched document. After an error, the original is unchanged.
    pub fn apply(&self, document: &Value) -> Result<Value, JsonPatchError> {
        let mut patched = document.clone();
        let mut copied_bytes = 0;
        for operation in &self.operations.0 {
            if built_depth(operation, &patched) > NESTING_MAX {
                return Err(JsonPatchError::TooDeep);
            }
            match operation {
                PatchOperation::Copy(copy) => {
                    copied_bytes += patched.pointer(copy.from.as_str()).map_or(0, size_bytes);
                    if copied_bytes > COPIED_BYTES_MAX {
                        return Err(JsonPatchError::CopiedTooMuch(copied_bytes));
                    }
                }
                // As in kube-apiserver, a test for null passes if the path does not exist.
                PatchOperation::Test(test)
                    if test.value.is_null() && patched.pointer(test.path.as_str()).is_none() =>
                {
                    continue;
                }
                // As in kube-apiserver, an object's member that does not exist is added.
                PatchOperation::Replace(replace)
                    if replaces_missing_member(replace.path.as_str(), &patched) =>
                {
                    let add = AddOperation {
                        path: replace.path.clone(),
                        value: replace.value.clone(),
                    };
                    json_patch::patch_unsafe(&mut patched, &[PatchOperation::Add(add)])
                        .map_err(JsonPatchError::Rejected)?;
                    continue;
                }
                PatchOperation::Test(_)
                | PatchOperation::Add(_)
                | PatchOperation::Remove(_)
                | PatchOperation::Replace(_)
                | PatchOperation::Move(_) => {}
            }
            json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation))
                .map_err(JsonPatchError::Rejected)?;
        }
        Ok(patched)
    }
}

/// Returns true if the last token of the path is no member of an existing object.
fn replaces_missing_member(path: &str, document: &Value) -> bool {
    let Some((parent, _)) = path.rsplit_once('/') else {
        return false;
    };
    document.pointer(path).is_none() && document.pointer(parent).is_some_and(Value::is_object)
}

fn unknown_members(operations: &[Value]) -> Vec<String> {
    let members = operations.iter().enumerate().flat_map(|(index, operation)| {
        let members = operation.as_object().into_iter().flatten();
        members.map(move |(name, _)| (index, name))
    });
    members
        .filter(|(_, name)| !matches!(name.as_str(), "op" | "from" | "path" | "value"))
        .map(|(index, name)| format!("json patch unknown field \"[{index}].{name}\""))
        .collect()
}

/// Returns the nesting depth that an operation creates.
fn built_depth(operation: &PatchOperation, document: &Value) -> usize {
    let levels = |pointer: &str| pointer.matches('/').count();
    let from = |pointer: &str| document.pointer(pointer).map_or(0, depth);
    match operation {
        PatchOperation::Add(add) => levels(add.path.as_str()) + depth(&add.value),
        PatchOperation::Replace(replace) => levels(replace.path.as_str()) + depth(&replace.value),
        PatchOperation::Copy(copy) => levels(copy.path.as_str()) + from(copy.from.as_str()),
        PatchOperation::Move(movement) if levels(movement.path.as_str()) > levels(movement.from.as_str()) => {
            levels(movement.path.as_str()) + from(movement.from.as_str())
        }
        // These operations do not increase the depth, and computing it for large values is slow.
        PatchOperation::Move(_) | PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Estimates the size of a value as JSON text.
fn size_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size_bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields
                .iter()
                .map(|(name, field)| name.len() + size_bytes(field) + 4)
                .sum::<usize>()
                + 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json_patch::PatchErrorKind;
    use proptest::prelude::*;
    use serde_json::json;

    fn patched(document: Value, patch: Value) -> Result<Value, JsonPatchError> {
        JsonPatch::parse(&patch)?.apply(&document)
    }

    #[test]
    fn matches_examples_of_rfc_6902() {
        let check = |document: Value, patch: Value, expect: Value| {
            assert_eq!(patched(document, patch.clone()).unwrap(), expect, "{patch}");
        };
        check(
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux"}]),
            json!({"baz": "qux", "foo": "bar"}),
        );
        check(
            json!({"foo": ["bar", "baz"]}),
            json!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            json!({"foo": ["bar", "qux", "baz"]}),
        );
        // kube-apiserver differs from RFC 6902 here.
        check(
            json!({"foo": {}}),
            json!([{"op": "replace", "path": "/foo/a~1b", "value": 1}]),
            json!({"foo": {"a/b": 1}}),
        );
        check(
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "remove", "path": "/baz"}]),
            json!({"foo": "bar"}),
        );
        check(
            json!({"foo": ["all", "grass", "cows", "eat"]}),
            json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            json!({"foo": ["all", "cows", "eat", "grass"]}),
        );
        check(
            json!({"foo": ["bar"]}),
            json!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            json!({"foo": ["bar", ["abc", "def"]]}),
        );
        check(
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": 10}]),
            json!({"/": 9, "~1": 10}),
        );
        check(
            json!({}),
            json!([{"op": "test", "path": "/a", "value": null}]),
            json!({}),
        );
    }

    #[test]
    fn rejects_invalid_patches() {
        let rejection = |document: Value, patch: Value| patched(document, patch).unwrap_err();
        let failed = rejection(json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 2}]));
        assert!(
            matches!(&failed, JsonPatchError::Rejected(err) if matches!(err.kind, PatchErrorKind::TestFailed)),
            "{failed:?}"
        );
        for patch in [
            json!([{"op": "remove", "path": "/a"}]),
            json!([{"op": "add", "path": "/a/b", "value": 1}]),
        ] {
            let rejected = rejection(json!({}), patch);
            assert!(matches!(rejected, JsonPatchError::Rejected(_)), "{rejected:?}");
        }
        let rejected = rejection(json!({}), json!({"op": "add"}));
        assert!(matches!(rejected, JsonPatchError::Malformed(_)), "{rejected:?}");
        let rejected = rejection(json!({}), json!([{"op": "hop", "path": "/a"}]));
        assert!(matches!(rejected, JsonPatchError::Operation(_)), "{rejected:?}");
        let many = vec![json!({"op": "test", "path": "", "value": {}}); OPERATIONS_MAX + 1];
        let rejected = rejection(json!({}), Value::from(many));
        assert!(
            matches!(rejected, JsonPatchError::TooManyOperations(_)),
            "{rejected:?}"
        );
    }

    #[test]
    fn rejects_copies_beyond_the_size_limit() {
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let patch = Value::from(vec![double; 64]);
        assert!(matches!(
            patched(json!({"a": ["some text"]}), patch),
            Err(JsonPatchError::CopiedTooMuch(bytes)) if bytes > COPIED_BYTES_MAX
        ));
    }

    #[test]
    fn rejects_patches_beyond_the_nesting_limit() {
        let deeper = |level: usize| json!({"op": "add", "path": "/a".repeat(level + 1), "value": {}});
        let nest = |levels: usize| patched(json!({}), (0..levels).map(deeper).collect());
        assert!(nest(NESTING_MAX - 1).is_ok());
        assert!(matches!(nest(NESTING_MAX + 1), Err(JsonPatchError::TooDeep)));
    }

    proptest! {
        #[test]
        fn applying_a_diff_produces_the_other_document(
            a in prop::collection::btree_map("[a-c]", prop::collection::vec(0..3u8, 0..4), 0..3),
            b in prop::collection::btree_map("[a-c]", prop::collection::vec(0..3u8, 0..4), 0..3),
        ) {
            let (a, b) = (json!(a), json!(b));
            let difference = serde_json::to_value(json_patch::diff(&a, &b)).unwrap();
            prop_assert_eq!(patched(a, difference).unwrap(), b);
        }
    }
}
