//! Validation of objects before they are stored.

use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::Warnings;
use crate::builtin::BuiltIn;
use crate::object::{self, metadata};
use crate::registry::resource::{Origin, Resource, ScalePaths, Subresource};
use crate::status::ApiError;
use rooflet_schema::{FieldError, gotext, is_note_on_rules, metadata as rules};

/// Validates a new object in working form.
pub(super) fn create(resource: &Resource, working: &Value, warnings: &mut Warnings) -> Result<(), ApiError> {
    let mut errors = type_errors(resource, working);
    if errors.is_empty() {
        errors = rules::validate_create(&working["metadata"], resource.name_rule(), resource.namespaced);
        if resource.is(BuiltIn::CustomResourceDefinition) {
            errors.clear();
        }
        errors = kind_errors(resource, working, None, None, errors);
    }
    let notes = check_finalizers(resource, working, None, &mut errors);
    reject_invalid(resource, working, &errors)?;
    warnings.extend(notes);
    if let Origin::BuiltIn(built_in) = &resource.origin {
        warnings.extend(built_in.warnings(working, None));
    }
    Ok(())
}

/// Validates an update in working form.
pub(super) fn update(
    resource: &Resource,
    working: &Value,
    old: &Value,
    subresource: Option<Subresource>,
    warnings: &mut Warnings,
) -> Result<(), ApiError> {
    let mut errors = type_errors(resource, working);
    if errors.is_empty() {
        // The rules of CustomResourceDefinitions include metadata.
        if !resource.is(BuiltIn::CustomResourceDefinition) {
            errors = rules::validate_update(
                &working["metadata"],
                &old["metadata"],
                resource.updates_unconditionally(),
            );
        }
        errors = kind_errors(resource, working, Some(old), subresource, errors);
    }
    let mut notes = Vec::new();
    if subresource != Some(Subresource::Status) {
        notes = check_finalizers(resource, working, Some(old), &mut errors);
    }
    reject_invalid(resource, working, &errors)?;
    warnings.extend(notes);
    if let Origin::BuiltIn(built_in) = &resource.origin {
        warnings.extend(built_in.warnings(working, Some(old)));
    }
    Ok(())
}

fn reject_invalid(resource: &Resource, working: &Value, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    // The error names group and kind of a custom resource as the client sent them.
    let kind = match object::text(working, &["kind"]) {
        "" => &resource.kind,
        sent => sent,
    };
    let group = match object::text(working, &["apiVersion"]) {
        "" => resource.error_group(),
        sent => sent.split_once('/').map_or("", |(group, _)| group),
    };
    Err(ApiError::invalid(group, kind, object::name(working), errors))
}

/// Checks that a custom resource has the expected apiVersion and kind.
fn type_errors(resource: &Resource, working: &Value) -> Vec<FieldError> {
    if resource.custom().is_none() {
        return Vec::new();
    }
    let mut errors = Vec::new();
    for (field, expected) in [
        ("kind", resource.kind.clone()),
        ("apiVersion", resource.api_version()),
    ] {
        let given = object::text(working, &[field]);
        if given != expected {
            errors.push(FieldError::invalid_text(
                field,
                given,
                &format!("must be {expected}"),
            ));
        }
    }
    errors
}

fn kind_errors(
    resource: &Resource,
    working: &Value,
    old: Option<&Value>,
    subresource: Option<Subresource>,
    mut earlier: Vec<FieldError>,
) -> Vec<FieldError> {
    match &resource.origin {
        Origin::BuiltIn(built_in) => {
            earlier.extend(built_in.validate(working, old));
            earlier
        }
        Origin::Custom(custom) => {
            let check = || match (subresource, old) {
                (Some(Subresource::Status), Some(old)) => {
                    custom.schema.validate_status(earlier, working, old)
                }
                _ => custom.schema.validate_after(earlier, working, old),
            };
            let mut errors = if custom.schema.has_rules() {
                run_blocking(check)
            } else {
                check()
            };
            if let Some(paths) = &custom.scale {
                // The note on rules that were not checked is last.
                let note = errors.pop_if(|last| is_note_on_rules(last));
                let checks_spec = subresource != Some(Subresource::Status);
                check_scale(paths, working, checks_spec, &mut errors);
                errors.extend(note);
            }
            errors
        }
    }
}

/// Runs slow work without blocking other tasks of this thread, if the runtime has several threads.
pub(crate) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

/// Adds the errors of new finalizers. Returns the warnings.
fn check_finalizers(
    resource: &Resource,
    working: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) -> Vec<String> {
    let (faults, notes) = metadata::check_new_finalizers(working, old, resource.finalizer_rule());
    errors.extend(faults);
    notes
}

/// Returns the integer at a path, or the fault of a value of another type in the words of
/// kube-apiserver.
fn integer_at(working: &Value, path: &[String]) -> Result<Option<i64>, String> {
    let mut value = working;
    for name in path {
        let Some(fields) = value.as_object() else {
            return Err(format!(
                "{} is of the type {}, expected map[string]interface{{}}",
                gotext::plain(value),
                gotext::type_name(value)
            ));
        };
        match fields.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(found) => value = found,
        }
    }
    match value.as_i64() {
        Some(integer) => Ok(Some(integer)),
        None => Err(format!(
            "{} is of the type {}, expected int64",
            gotext::plain(value),
            gotext::type_name(value)
        )),
    }
}

fn check_scale(paths: &ScalePaths, working: &Value, checks_spec: bool, errors: &mut Vec<FieldError>) {
    let counts = [
        (&paths.spec_replicas, checks_spec),
        (&paths.status_replicas, true),
    ];
    for (path, _) in counts.into_iter().filter(|(_, is_checked)| *is_checked) {
        let field = format!(".{}", path.join("."));
        let count = match integer_at(working, path) {
            Ok(None) => continue,
            Ok(Some(count)) => count,
            Err(found) => {
                let detail = format!("{field} accessor error: {found}");
                errors.push(FieldError::invalid(field, &Value::from(0), &detail));
                continue;
            }
        };
        if count < 0 {
            errors.push(FieldError::invalid(
                field,
                &Value::from(count),
                "should be a non-negative integer",
            ));
        } else if i32::try_from(count).is_err() {
            let detail = format!("should be less than or equal to {}", i32::MAX);
            errors.push(FieldError::invalid(field, &Value::from(count), &detail));
        }
    }
}
