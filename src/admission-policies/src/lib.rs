//! Admission policies with CEL expressions: ValidatingAdmissionPolicy, MutatingAdmissionPolicy and their
//! bindings.
//!
//! The messages are those of kube-apiserver.

mod binding;
mod condition;
mod declarations;
mod defaults;
mod literal;
mod matching;
mod mutating;
mod mutation;
mod parameters;
mod policies;
mod policy;
mod request;
mod type_checking;
mod validate;
mod validate_mutating;
mod validating;

pub use mutating::MutateError;
pub use parameters::{ParamKind, ParamQuery};
pub use policies::{Kind, Policies};
pub use request::{Operation, Place, Request, Source, Subject};
pub use type_checking::{GroupVersionKind, Schemas, expression_warnings};
pub use validating::{Denial, Outcome};

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
