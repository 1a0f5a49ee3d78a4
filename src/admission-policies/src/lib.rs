//! Admission policies with CEL expressions: ValidatingAdmissionPolicy and its binding.
//!
//! The messages are those of kube-apiserver.

mod check;
mod condition;
mod defaults;
mod matching;
mod parameters;
mod policies;
mod policy;
mod request;
mod types;
mod validate;

pub use defaults::{default_binding, default_policy};
pub use parameters::{ParamKind, ParamQuery};
pub use policies::{Denial, Outcome, Policies};
pub use request::{Operation, Place, Request, Source};
pub use validate::{validate_binding, validate_policy};

use serde_json::Value;

/// API group of the policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// Returns the text at a member, or an empty text.
fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of a list, or none.
fn items<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    let list = value.get(member).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

/// Returns the texts of a list.
fn texts<'a>(value: &'a Value, member: &str) -> Vec<&'a str> {
    items(value, member)
        .iter()
        .map(|item| item.as_str().unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests;
