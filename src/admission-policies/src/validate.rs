//! Validation of policies and bindings.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::declarations::{Declarations, Wanted};
use crate::{items, text, texts};
use rooflet_schema::FieldError;
use rooflet_schema::cel::checker::Type;
use rooflet_schema::names::{self, label_selector};

pub(crate) const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
const CONDITIONS_MAX: u64 = 64;
const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_EXPRESSION_BYTES_MAX: usize = 5 << 10;

/// Validates a ValidatingAdmissionPolicy, except its metadata.
pub(crate) fn validate_policy(policy: &Value) -> Vec<FieldError> {
    let spec = &policy["spec"];
    let mut errors = Vec::new();
    check_choice(
        spec,
        "failurePolicy",
        "spec.failurePolicy",
        &FAILURE_POLICIES,
        &mut errors,
    );
    let has_params = spec["paramKind"].is_object();
    if has_params {
        check_param_kind(&spec["paramKind"], &mut errors);
    }
    check_constraints(spec, &mut errors);
    let mut declared = Declarations::new(has_params);
    check_conditions(spec, &declared, &mut errors);
    check_variables(spec, &mut declared, &mut errors);
    check_validations(spec, &declared, &mut errors);
    let name = text(&policy["metadata"], "name");
    check_annotations(spec, name, &declared, &mut errors);
    errors
}

/// Validates a ValidatingAdmissionPolicyBinding, except its metadata.
pub(crate) fn validate_binding(binding: &Value) -> Vec<FieldError> {
    let spec = &binding["spec"];
    let mut errors = Vec::new();
    check_binding(spec, &mut errors);
    let field = "spec.validationActions";
    let actions = texts(spec, "validationActions");
    for (index, action) in actions.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if actions[..index].contains(action) {
            errors.push(FieldError::duplicate(&at, &Value::from(*action)));
        }
        if !ACTIONS.contains(action) {
            errors.push(FieldError::not_supported(at, &Value::from(*action), ACTIONS));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                      response and headers serves no purpose)";
        errors.push(FieldError::invalid(field, &spec["validationActions"], detail));
    }
    if actions.is_empty() {
        errors.push(FieldError::required(
            field,
            "at least one validation action is required",
        ));
    }
    errors
}

/// Checks the fields of bindings of all kinds.
pub(crate) fn check_binding(spec: &Value, errors: &mut Vec<FieldError>) {
    match text(spec, "policyName") {
        "" => errors.push(FieldError::required("spec.policyName", "")),
        name => reject("spec.policyName", name, names::dns_subdomain(name), errors),
    }
    if spec["paramRef"].is_object() {
        check_param_ref(&spec["paramRef"], "spec.paramRef", errors);
    }
    if spec["matchResources"].is_object() {
        check_match(&spec["matchResources"], "spec.matchResources", errors);
    }
}

/// Checks the rules of a policy.
pub(crate) fn check_constraints(spec: &Value, errors: &mut Vec<FieldError>) {
    let constraints = &spec["matchConstraints"];
    if constraints.is_object() {
        check_match(constraints, "spec.matchConstraints", errors);
        if items(constraints, "resourceRules").is_empty() {
            errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
        }
    } else {
        errors.push(FieldError::required("spec.matchConstraints", ""));
    }
}

fn reject(field: &str, value: &str, faults: Vec<String>, errors: &mut Vec<FieldError>) {
    for fault in faults {
        errors.push(FieldError::invalid_text(field, value, &fault));
    }
}

pub(crate) fn check_choice(
    object: &Value,
    member: &str,
    field: &str,
    choices: &[&str],
    errors: &mut Vec<FieldError>,
) {
    match text(object, member) {
        "" => errors.push(FieldError::required(field, "")),
        chosen if choices.contains(&chosen) => {}
        other => errors.push(FieldError::not_supported(field, &Value::from(other), choices)),
    }
}

pub(crate) fn check_expression(
    field: &str,
    source: &str,
    declared: &Declarations,
    wanted: Wanted,
    errors: &mut Vec<FieldError>,
) {
    if let Err(fault) = declared.check(source, wanted) {
        errors.push(FieldError::invalid_text(field, source, &fault));
    }
}

pub(crate) fn check_param_kind(kind: &Value, errors: &mut Vec<FieldError>) {
    let field = "spec.paramKind.apiVersion";
    let api_version = text(kind, "apiVersion");
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [""] => errors.push(FieldError::required(field, "")),
        [version] => reject(field, version, joined(names::dns_1035_label(version)), errors),
        [group, version] => {
            if !group.is_empty() {
                reject(field, group, joined(names::dns_subdomain(group)), errors);
            }
            match version {
                "" => errors.push(FieldError::invalid_text(
                    field,
                    api_version,
                    "version must be specified",
                )),
                version => reject(field, version, joined(names::dns_1035_label(version)), errors),
            }
        }
        _ => {
            let detail = format!("unexpected GroupVersion string: {api_version}");
            errors.push(FieldError::invalid_text(field, api_version, &detail));
        }
    }
    let field = "spec.paramKind.kind";
    match text(kind, "kind") {
        "" => errors.push(FieldError::required(field, "")),
        name => {
            let faults = names::dns_1035_label(&name.to_lowercase());
            if !faults.is_empty() {
                let detail = format!(
                    "may have mixed case, but should otherwise match: {}",
                    faults.join(",")
                );
                errors.push(FieldError::invalid_text(field, name, &detail));
            }
        }
    }
}

fn joined(faults: Vec<String>) -> Vec<String> {
    match faults.is_empty() {
        true => faults,
        false => vec![faults.join(",")],
    }
}

fn check_param_ref(reference: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let name = text(reference, "name");
    let selector = reference.get("selector").filter(|selector| selector.is_object());
    let exclusive = "name and selector are mutually exclusive";
    let at = format!("{field}.name");
    reject(&at, name, names::path_segment(name), errors);
    if !name.is_empty() && selector.is_some() {
        errors.push(FieldError::forbidden(at, exclusive));
    }
    if let Some(selector) = selector {
        let at = format!("{field}.selector");
        label_selector::check(selector, &at, errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden(at, exclusive));
        }
    }
    if name.is_empty() && selector.is_none() {
        errors.push(FieldError::required(
            field,
            "one of name or selector must be specified",
        ));
    }
    let at = format!("{field}.parameterNotFoundAction");
    check_choice(
        reference,
        "parameterNotFoundAction",
        &at,
        &["Deny", "Allow"],
        errors,
    );
}

fn check_match(resources: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let at = format!("{field}.matchPolicy");
    check_choice(resources, "matchPolicy", &at, &MATCH_POLICIES, errors);
    for member in ["namespaceSelector", "objectSelector"] {
        label_selector::check(&resources[member], &format!("{field}.{member}"), errors);
    }
    for member in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(resources, member).iter().enumerate() {
            check_rule(rule, &format!("{field}.{member}[{index}]"), errors);
        }
    }
}

fn check_rule(rule: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let rule_names = texts(rule, "resourceNames");
    for (index, name) in rule_names.iter().enumerate() {
        let at = format!("{field}.resourceNames[{index}]");
        reject(&at, name, names::path_segment(name), errors);
        if rule_names[..index].contains(name) {
            errors.push(FieldError::duplicate(at, &Value::from(*name)));
        }
    }
    let operations = check_wildcard(rule, "operations", "operations", field, errors);
    for (index, operation) in operations.iter().enumerate() {
        if !OPERATIONS.contains(operation) {
            let at = format!("{field}.operations[{index}]");
            errors.push(FieldError::not_supported(
                at,
                &Value::from(*operation),
                OPERATIONS,
            ));
        }
    }
    check_wildcard(rule, "apiGroups", "API groups", field, errors);
    let versions = check_wildcard(rule, "apiVersions", "API versions", field, errors);
    for (index, version) in versions.iter().enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(format!("{field}.apiVersions[{index}]"), ""));
        }
    }
    check_resources(rule, &format!("{field}.resources"), errors);
    let scope = text(rule, "scope");
    if !scope.is_empty() && !SCOPES.contains(&scope) {
        let at = format!("{field}.scope");
        errors.push(FieldError::not_supported(at, &Value::from(scope), SCOPES));
    }
}

/// Checks that a list is not empty, and that `*` is its only item.
fn check_wildcard<'a>(
    rule: &'a Value,
    member: &str,
    plural: &str,
    field: &str,
    errors: &mut Vec<FieldError>,
) -> Vec<&'a str> {
    let list = texts(rule, member);
    let at = format!("{field}.{member}");
    if list.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if list.len() > 1 && list.contains(&"*") {
        let detail = format!("if '*' is present, must not specify other {plural}");
        errors.push(FieldError::invalid(at, &rule[member], &detail));
    }
    list
}

fn check_resources(rule: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let resources = texts(rule, "resources");
    if resources.is_empty() {
        errors.push(FieldError::required(field, ""));
    }
    let mut of_all_subresources = BTreeSet::new();
    let mut of_all_resources = BTreeSet::new();
    for (index, resource) in resources.iter().enumerate() {
        let at = format!("{field}[{index}]");
        if resource.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let Some((name, sub)) = resource.split_once('/') else {
            continue;
        };
        for (is_covered, cover) in [
            (of_all_subresources.contains(name), format!("{name}/*")),
            (of_all_resources.contains(sub), format!("*/{sub}")),
        ] {
            if is_covered {
                let detail = format!("if '{cover}' is present, must not specify {resource}");
                errors.push(FieldError::invalid_text(&at, resource, &detail));
            }
        }
        if sub == "*" {
            of_all_subresources.insert(name);
        }
        if name == "*" {
            of_all_resources.insert(sub);
        }
    }
    let mut conflict = |detail: &str| errors.push(FieldError::invalid(field, &rule["resources"], detail));
    if resources.len() > 1 && resources.contains(&"*/*") {
        conflict("if '*/*' is present, must not specify other resources");
    }
    // Like kube-apiserver, the last resource without a subresource decides.
    let last = resources
        .iter()
        .rfind(|resource| !resource.is_empty() && !resource.contains('/'));
    if resources.contains(&"*") && last.is_some_and(|last| *last != "*") {
        conflict("if '*' is present, must not specify other resources without subresources");
    }
}

pub(crate) fn check_conditions(spec: &Value, declared: &Declarations, errors: &mut Vec<FieldError>) {
    let conditions = items(spec, "matchConditions");
    if conditions.len() as u64 > CONDITIONS_MAX {
        let field = "spec.matchConditions";
        errors.push(FieldError::too_many(field, conditions.len(), CONDITIONS_MAX));
    }
    let mut known = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let field = |member: &str| format!("spec.matchConditions[{index}].{member}");
        match text(condition, "expression").trim() {
            "" => errors.push(FieldError::required(field("expression"), "")),
            source => {
                check_expression(&field("expression"), source, declared, Wanted::Bool, errors);
            }
        }
        match text(condition, "name") {
            "" => errors.push(FieldError::required(field("name"), "")),
            name => {
                reject(&field("name"), name, names::qualified_name(name), errors);
                if !known.insert(name) {
                    errors.push(FieldError::duplicate(field("name"), &Value::from(name)));
                }
            }
        }
    }
}

pub(crate) fn check_variables(spec: &Value, declared: &mut Declarations, errors: &mut Vec<FieldError>) {
    for (index, variable) in items(spec, "variables").iter().enumerate() {
        let field = |member: &str| format!("spec.variables[{index}].{member}");
        let name = text(variable, "name");
        if name.trim().is_empty() {
            errors.push(FieldError::required(field("name"), "name is not specified"));
        } else if !is_identifier(name) {
            let detail = "must be a valid CEL identifier";
            errors.push(FieldError::invalid_text(field("name"), name, detail));
        }
        let source = text(variable, "expression");
        declared.compose();
        if source.trim().is_empty() {
            let detail = "expression is not specified";
            errors.push(FieldError::required(field("expression"), detail));
        } else {
            let found = declared.check_variable(source).unwrap_or_else(|fault| {
                errors.push(FieldError::invalid_text(field("expression"), source, &fault));
                Type::Dyn
            });
            declared.declare(name, found);
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let is_word = name
        .chars()
        .all(|char| char.is_ascii_alphanumeric() || char == '_');
    let starts_well = !name.starts_with(|first: char| first.is_ascii_digit());
    let is_reserved = rooflet_schema::cel::RESERVED.contains(&name);
    is_word && starts_well && !is_reserved
}

fn check_validations(spec: &Value, declared: &Declarations, errors: &mut Vec<FieldError>) {
    let validations = items(spec, "validations");
    if validations.is_empty() && items(spec, "auditAnnotations").is_empty() {
        for field in ["spec.validations", "spec.auditAnnotations"] {
            let detail = "validations or auditAnnotations must contain at least one item";
            errors.push(FieldError::required(field, detail));
        }
    }
    for (index, validation) in validations.iter().enumerate() {
        let field = |member: &str| format!("spec.validations[{index}].{member}");
        match text(validation, "expression") {
            source if source.trim().is_empty() => errors.push(FieldError::required(
                field("expression"),
                "expression is not specified",
            )),
            source => {
                check_expression(&field("expression"), source, declared, Wanted::Bool, errors);
            }
        }
        let blank = "must be non-empty if specified";
        match text(validation, "messageExpression") {
            "" => {}
            source if source.trim().is_empty() => {
                errors.push(FieldError::invalid_text(
                    field("messageExpression"),
                    source,
                    blank,
                ));
            }
            source => {
                check_expression(
                    &field("messageExpression"),
                    source,
                    declared,
                    Wanted::Text,
                    errors,
                );
            }
        }
        match text(validation, "message") {
            "" => {}
            message if message.trim().is_empty() => {
                errors.push(FieldError::invalid_text(field("message"), message, blank));
            }
            message if message.trim().contains(['\n', '\r']) => errors.push(FieldError::invalid_text(
                field("message"),
                message,
                "must not contain line breaks",
            )),
            _ => {}
        }
        if validation.get("reason").is_some() {
            let reason = text(validation, "reason");
            if !REASONS.contains(&reason) {
                errors.push(FieldError::not_supported(
                    field("reason"),
                    &Value::from(reason),
                    REASONS,
                ));
            }
        }
    }
}

fn check_annotations(spec: &Value, policy: &str, declared: &Declarations, errors: &mut Vec<FieldError>) {
    let annotations = items(spec, "auditAnnotations");
    if annotations.len() > ANNOTATIONS_MAX {
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid(
            "spec.auditAnnotations",
            &spec["auditAnnotations"],
            &detail,
        ));
    }
    let mut known = BTreeSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let field = |member: &str| format!("spec.auditAnnotations[{index}].{member}");
        let key = text(annotation, "key");
        let full = format!("{policy}/{key}");
        reject(&field("key"), &full, names::qualified_name(&full), errors);
        if !known.insert(key) {
            errors.push(FieldError::duplicate(field("key"), &Value::from(key)));
        }
        let at = field("valueExpression");
        match text(annotation, "valueExpression").trim() {
            "" => errors.push(FieldError::required(at, "valueExpression is not specified")),
            source if source.len() > ANNOTATION_EXPRESSION_BYTES_MAX => {
                let detail = format!("must not exceed {ANNOTATION_EXPRESSION_BYTES_MAX} bytes in length");
                errors.push(FieldError::required(at, &detail));
            }
            source => {
                let whole = text(annotation, "valueExpression");
                if let Err(fault) = declared.check(source, Wanted::TextOrNull) {
                    errors.push(FieldError::invalid_text(at, whole, &fault));
                }
            }
        }
    }
}
