//! Structural schemas: the schemas of CustomResourceDefinitions, compiled once.
//!
//! Pure functions over `serde_json::Value`: defaulting, pruning, validation (types, list
//! uniqueness, CEL rules). Causes and texts of errors are those of kube-apiserver.

mod accept;
pub mod cel;
mod compile;
mod correlate;
pub mod crd;
mod defaulting;
mod embedded;
mod error;
mod field_path;
mod format;
pub mod gotext;
mod list_type;
pub mod metadata;
pub mod names;
mod node;
mod number;
pub mod path;
mod pattern;
mod pruning;
pub mod strict;
mod types;
mod validate;

use serde_json::Value;

pub use error::{CauseReason, FieldError, aggregate};
pub use node::{members, texts};

use node::Node;
use path::Path;

/// Compiled `openAPIV3Schema`.
#[derive(Debug)]
pub struct StructuralSchema {
    root: Node,
}

impl StructuralSchema {
    /// Checks and compiles a version's schema. `at` is the CRD field with the schema; errors name
    /// fields below it. `has_status` is true if the version has the `status` subresource. Rules may
    /// have any cost.
    #[cfg(test)]
    pub fn compile(at: &str, schema: &Value, has_status: bool) -> Result<Self, Vec<FieldError>> {
        let errors = accept::check(at, schema, has_status, false);
        if errors.is_empty() {
            Ok(Self::trusted(schema))
        } else {
            Err(errors)
        }
    }

    /// Compiles a schema without checks: a stored CRD's, or a generated one.
    pub fn trusted(schema: &Value) -> Self {
        Self {
            root: compile::compile(schema),
        }
    }

    /// Compiles the generated schema of the first version of kind `K`.
    pub fn of_kind<K: kube::CustomResourceExt>() -> Self {
        let crd = K::crd();
        let schema = crd
            .spec
            .versions
            .first()
            .and_then(|version| version.schema.as_ref());
        let schema = serde_json::to_value(schema.map(|schema| &schema.open_api_v3_schema));
        Self::trusted(&schema.expect("a generated schema has only string keys"))
    }

    /// Drops nulls that the schema does not allow and applies defaults.
    pub fn apply_defaults(&self, object: &mut Value) {
        defaulting::apply(object, &self.root);
    }

    /// Drops unknown fields. Returns their sorted paths in the notation of strict decoding
    /// (`unknown field "spec.bogus"`).
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        pruning::prune_resource(object, &self.root)
    }

    /// Returns the first fault of a type in the metadata of embedded resources. Such an object cannot be
    /// decoded.
    pub fn embedded_type_fault(&self, object: &Value) -> Option<FieldError> {
        embedded::first_type_fault(&self.root, object, &Path::Root)
    }

    /// Returns true if the schema has CEL rules. Their evaluation may take up to about one second.
    pub fn has_rules(&self) -> bool {
        self.root.contents.rules
    }

    /// Validates a new object, or an update of `old`.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.validate_after(Vec::new(), object, old)
    }

    /// Like [`Self::validate`], but appends to `earlier` errors. CEL rules do not run if an
    /// earlier error means that the object is malformed.
    pub fn validate_after(
        &self,
        earlier: Vec<FieldError>,
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<FieldError> {
        let mut errors = earlier;
        errors.extend(validate::validate("", &self.root, object, old));
        self.validate_lists_and_rules(errors, object, old)
    }

    /// Validates an update of the `status` subresource: the types of `status`, and all rules.
    pub fn validate_status(&self, earlier: Vec<FieldError>, object: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = earlier;
        if let (Some(node), Some(status)) = (self.root.property("status"), object.get("status")) {
            errors.extend(validate::validate("status", node, status, old.get("status")));
        }
        self.validate_lists_and_rules(errors, object, Some(old))
    }

    fn validate_lists_and_rules(
        &self,
        mut errors: Vec<FieldError>,
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<FieldError> {
        errors.extend(embedded::validate(&self.root, object));
        // Ratcheting: lists that had duplicates before may keep them.
        if old.is_none_or(|old| list_type::validate(&self.root, old).is_empty()) {
            errors.extend(list_type::validate(&self.root, object));
        }
        if self.root.contents.rules {
            if errors.iter().any(|error| blocks_rules(error.reason)) {
                errors.push(FieldError::invalid("<nil>", &Value::Null, RULES_NOT_CHECKED));
            } else {
                let ratchet = cel::Ratchet::update(object, old);
                cel::validate(&self.root, object, old, ratchet, &Path::Root, &mut errors);
            }
        }
        errors
    }
}

/// Returns true for the note that rules were not checked because of other errors.
pub fn is_note_on_rules(error: &FieldError) -> bool {
    error.message.ends_with(RULES_NOT_CHECKED)
}

const RULES_NOT_CHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Returns true for errors that prevent CEL evaluation, because rules rely on valid types.
fn blocks_rules(reason: CauseReason) -> bool {
    match reason {
        CauseReason::NotSupported
        | CauseReason::Required
        | CauseReason::TooLong
        | CauseReason::TooMany
        | CauseReason::TypeInvalid => true,
        CauseReason::Duplicate | CauseReason::Invalid | CauseReason::Forbidden => false,
    }
}

#[cfg(test)]
mod tests;
