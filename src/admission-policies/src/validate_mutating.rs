//! Validation of mutating policies and their bindings.

use serde_json::Value;

use crate::declarations::{Declarations, Wanted};
use crate::validate::{
    FAILURE_POLICIES, check_binding, check_choice, check_conditions, check_constraints, check_expression,
    check_param_kind, check_variables,
};
use crate::{items, text, texts};
use rooflet_schema::FieldError;

const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const PATCH_TYPES: [&str; 2] = ["ApplyConfiguration", "JSONPatch"];
const OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Validates a MutatingAdmissionPolicy, except its metadata.
pub(crate) fn validate_policy(policy: &Value) -> Vec<FieldError> {
    let spec = &policy["spec"];
    let mut errors = Vec::new();
    let field = "spec.failurePolicy";
    check_choice(spec, "failurePolicy", field, &FAILURE_POLICIES, &mut errors);
    let has_params = spec["paramKind"].is_object();
    if has_params {
        check_param_kind(&spec["paramKind"], &mut errors);
    }
    check_constraints(spec, &mut errors);
    check_operations(spec, "matchConstraints", &mut errors);
    let mut declared = Declarations::new(has_params);
    check_conditions(spec, &declared, &mut errors);
    check_variables(spec, &mut declared, &mut errors);
    declared.compose();
    let mutations = items(spec, "mutations");
    if mutations.is_empty() {
        let detail = "mutations must contain at least one item";
        errors.push(FieldError::required("spec.mutations", detail));
    }
    for (index, mutation) in mutations.iter().enumerate() {
        check_mutation(
            mutation,
            &format!("spec.mutations[{index}]"),
            &declared,
            &mut errors,
        );
    }
    let field = "spec.reinvocationPolicy";
    check_choice(
        spec,
        "reinvocationPolicy",
        field,
        &REINVOCATION_POLICIES,
        &mut errors,
    );
    errors
}

/// Validates a MutatingAdmissionPolicyBinding, except its metadata.
pub(crate) fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let spec = &binding["spec"];
    let mut errors = Vec::new();
    check_binding(spec, &mut errors);
    check_operations(spec, "matchResources", &mut errors);
    errors
}

/// Checks that the rules select no deletions.
fn check_operations(spec: &Value, member: &str, errors: &mut Vec<FieldError>) {
    let rules = items(&spec[member], "resourceRules").iter();
    for operation in rules.flat_map(|rule| texts(rule, "operations")) {
        if !OPERATIONS.contains(&operation) {
            let field = format!("spec.{member}.resourceRules.operations");
            errors.push(FieldError::not_supported(
                field,
                &Value::from(operation),
                OPERATIONS,
            ));
        }
    }
}

fn check_mutation(mutation: &Value, field: &str, declared: &Declarations, errors: &mut Vec<FieldError>) {
    let (form, other, wanted) = match text(mutation, "patchType") {
        "" => return errors.push(FieldError::required(format!("{field}.patchType"), "")),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Wanted::Patches),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Wanted::Configuration),
        unknown => {
            let at = format!("{field}.patchType");
            return errors.push(FieldError::not_supported(at, &Value::from(unknown), PATCH_TYPES));
        }
    };
    let patch_type = text(mutation, "patchType");
    let at = format!("{field}.{form}");
    if mutation[form].is_object() {
        let at = format!("{at}.expression");
        match text(&mutation[form], "expression").trim() {
            "" => errors.push(FieldError::required(at, "")),
            source => {
                check_expression(&at, source, declared, wanted, errors);
            }
        }
    } else {
        let detail = format!("must be specified when patchType is {patch_type}");
        errors.push(FieldError::required(at, &detail));
    }
    if mutation[other].is_object() {
        let detail = format!("must not be specified when patchType is {patch_type}");
        let value = format!("{{{other}}}");
        errors.push(FieldError::invalid_text(
            format!("{field}.{other}"),
            &value,
            &detail,
        ));
    }
}
