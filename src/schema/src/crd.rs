//! Defaults and validation of CustomResourceDefinitions.
//!
//! The API server handles the status, and name conflicts between CRDs.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    FieldError, accept, compile::compile, field_path, format::Format, gotext, metadata, metadata::NameRule,
    names, node::members, pruning, types::Types,
};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const SELECTABLE_FIELDS_MAX: u64 = 8;
const DEPRECATION_WARNING_BYTES_MAX: usize = 256;
const APPROVAL: &str = "api-approved.kubernetes.io";

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn schema(version: &Value) -> Option<&Value> {
    version
        .pointer("/schema/openAPIV3Schema")
        .filter(|schema| !schema.is_null())
}

fn has_status(version: &Value) -> bool {
    version
        .pointer("/subresources/status")
        .is_some_and(|status| !status.is_null())
}

/// Returns false if the old definition has this version with the same schema. The rules of such a
/// schema may be too expensive, because an older server accepted them.
fn changes_schema(old: Option<&Value>, version: &Value) -> bool {
    let before = old.into_iter().flat_map(versions);
    let mut before = before.filter(|before| text(before, "/name") == text(version, "/name"));
    !before.any(|before| schema(before) == schema(version))
}

/// Applies the defaults of a CRD: list kind, singular name, conversion. Drops unknown fields in the metadata
/// of embedded resources from the defaults in schemas.
pub fn apply_defaults(crd: &mut Value) {
    let kind = text(crd, "/spec/names/kind").to_owned();
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for version in spec
        .get_mut("versions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            prune_defaults(schema);
        }
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut)
        && !kind.is_empty()
    {
        for (key, value) in [
            ("singular", kind.to_lowercase()),
            ("listKind", format!("{kind}List")),
        ] {
            let name = names.entry(key).or_insert(Value::Null);
            if name.as_str().is_none_or(str::is_empty) {
                *name = Value::from(value);
            }
        }
    }
}

fn prune_defaults(schema: &mut Value) {
    if let Some(mut default) = schema.get_mut("default").map(Value::take) {
        pruning::prune_embedded_metadata(&mut default, schema);
        schema["default"] = default;
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get_mut(key) {
            prune_defaults(child);
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .into_iter()
        .flatten()
        .for_each(|(_, property)| prune_defaults(property));
}

/// Validates a new CRD, or an update of `old`, including metadata.
pub fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = match old {
        None => validate_name(crd),
        Some(old) => metadata::validate_update(&crd["metadata"], &old["metadata"], true),
    };
    validate_group_and_scope(crd, &mut errors);
    validate_versions(crd, old, &mut errors);
    validate_names(crd, &mut errors);
    validate_shared(crd, old, &mut errors);
    validate_conversion(crd, &mut errors);
    match old {
        Some(old) => validate_immutable(crd, old, &mut errors),
        None => validate_stored_versions(crd, &mut errors),
    }
    validate_approval(crd, old, &mut errors);
    if crd.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true)) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            &Value::Bool(true),
            detail,
        ));
    }
    errors
}

/// Returns warnings about unknown formats, which are ignored.
pub fn format_warnings(crd: &Value) -> Vec<String> {
    let mut unknown = BTreeSet::new();
    for schema in versions(crd).iter().filter_map(schema) {
        unrecognised_formats(schema, &mut unknown);
    }
    unknown
        .into_iter()
        .map(|format| format!("unrecognized format {}", super::gotext::quote(&format)))
        .collect()
}

fn unrecognised_formats(schema: &Value, unknown: &mut BTreeSet<String>) {
    let Value::Object(fields) = schema else { return };
    if let Some(format) = fields
        .get("format")
        .and_then(Value::as_str)
        .filter(|format| !format.is_empty())
    {
        let types = compile(&json!({"type": fields.get("type")})).types;
        if Format::recognise(types, format).is_none() {
            unknown.insert(format.to_owned());
        }
    }
    members(fields, "properties").for_each(|(_, property)| unrecognised_formats(property, unknown));
    for key in ["items", "additionalProperties", "not"] {
        fields
            .get(key)
            .into_iter()
            .for_each(|child| unrecognised_formats(child, unknown));
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let list = fields.get(key).and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .for_each(|child| unrecognised_formats(child, unknown));
    }
}

fn validate_name(crd: &Value) -> Vec<FieldError> {
    let mut errors = metadata::validate_create(&crd["metadata"], NameRule::Subdomain, false);
    let name = text(crd, "/metadata/name");
    let expected = format!("{}.{}", text(crd, "/spec/names/plural"), text(crd, "/spec/group"));
    if !name.is_empty() && name != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        let place = errors
            .iter()
            .take_while(|error| error.field == "metadata.name")
            .count();
        errors.insert(place, FieldError::invalid_text("metadata.name", name, detail));
    }
    errors
}

fn validate_group_and_scope(crd: &Value, errors: &mut Vec<FieldError>) {
    let group = text(crd, "/spec/group");
    let details = names::dns_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !details.is_empty() {
        errors.push(FieldError::invalid_text("spec.group", group, &details.join(",")));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(FieldError::invalid_text("spec.group", group, detail));
    }
    let scope = text(crd, "/spec/scope");
    if scope.is_empty() {
        errors.push(FieldError::required("spec.scope", ""));
    } else if !["Cluster", "Namespaced"].contains(&scope) {
        let scope = Value::from(scope);
        errors.push(FieldError::not_supported(
            "spec.scope",
            &scope,
            ["Cluster", "Namespaced"],
        ));
    }
}

/// Returns a part that is equal in all versions. As in kube-apiserver, which stores such parts at
/// the top of the spec, it is checked only once and errors name the top-level field.
fn shared<'a>(crd: &'a Value, pointer: &str) -> Option<&'a Value> {
    let mut parts = versions(crd)
        .iter()
        .map(|version| version.pointer(pointer).filter(|part| !part.is_null()));
    let first = parts.next().flatten()?;
    parts.all(|part| part == Some(first)).then_some(first)
}

fn validate_versions(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let all = versions(crd);
    let (shared_schema, shared_columns) = (shared(crd, "/schema"), shared(crd, "/additionalPrinterColumns"));
    let shared_subresources = shared(crd, "/subresources");
    let shared_selectable = shared(crd, "/selectableFields");
    for (index, version) in all.iter().enumerate() {
        if schema(version).is_none() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(field, ""));
        }
    }
    for (index, version) in all.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "/name");
        let details = names::dns_1035_label(name);
        if !details.is_empty() {
            errors.push(FieldError::invalid_text(
                format!("{at}.name"),
                name,
                &details.join(","),
            ));
        }
        validate_deprecation(&at, version, errors);
        if let Some(schema) = schema(version).filter(|_| shared_schema.is_none()) {
            let at = format!("{at}.schema.openAPIV3Schema");
            let limits_cost = changes_schema(old, version);
            errors.extend(accept::check(&at, schema, has_status(version), limits_cost));
        }
        if let Some(subresources) = version
            .get("subresources")
            .filter(|_| shared_subresources.is_none())
        {
            validate_subresources(&format!("{at}.subresources"), subresources, errors);
        }
        if let Some(columns) = version
            .get("additionalPrinterColumns")
            .filter(|_| shared_columns.is_none())
        {
            validate_columns(&format!("{at}.additionalPrinterColumns"), columns, errors);
        }
        if let Some(fields) = version
            .get("selectableFields")
            .filter(|_| shared_selectable.is_none())
        {
            validate_selectable(&format!("{at}.selectableFields"), schema(version), fields, errors);
        }
    }
    let mut seen = BTreeSet::new();
    let shown = || shown_versions(crd);
    if !all.iter().all(|version| seen.insert(text(version, "/name"))) {
        errors.push(FieldError::invalid_shown(
            "spec.versions",
            &shown(),
            "must contain unique version names",
        ));
    }
    if storage_versions(crd).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid_shown("spec.versions", &shown(), detail));
    }
    // kube-apiserver copies the first version's name to a field of older versions of the kind.
    let first = all.first().map_or("", |version| text(version, "/name"));
    let details = names::dns_1035_label(first);
    if !first.is_empty() && !details.is_empty() {
        errors.push(FieldError::invalid_text(
            "spec.version",
            first,
            &details.join(","),
        ));
    }
}

/// Returns the names of the versions marked as storage version.
fn storage_versions(crd: &Value) -> impl Iterator<Item = &str> {
    let all = versions(crd).iter();
    let stored = all.filter(|version| version.get("storage") == Some(&Value::Bool(true)));
    stored.map(|version| text(version, "/name"))
}

/// Returns the versions as kube-apiserver shows its internal type. Parts that all versions share are
/// not in the versions there.
fn shown_versions(crd: &Value) -> String {
    let part = |version: &Value, name: &str| match shared(crd, &format!("/{name}")) {
        Some(_) => Value::Null,
        None => version.get(name).cloned().unwrap_or_default(),
    };
    let flag = |version: &Value, name: &str| version.get(name) == Some(&Value::Bool(true));
    let shown = versions(crd).iter().map(|version| {
        json!({
            "Name": version.get("name"), "Served": flag(version, "served"), "Storage": flag(version, "storage"),
            "Deprecated": flag(version, "deprecated"), "DeprecationWarning": version.get("deprecationWarning"),
            "Schema": part(version, "schema"), "Subresources": part(version, "subresources"),
            "AdditionalPrinterColumns": part(version, "additionalPrinterColumns"),
            "SelectableFields": part(version, "selectableFields"),
        })
    });
    let order = [
        "Name",
        "Served",
        "Storage",
        "Deprecated",
        "DeprecationWarning",
        "Schema",
        "Subresources",
        "AdditionalPrinterColumns",
        "SelectableFields",
    ];
    gotext::json_in_order(&shown.collect(), &order)
}

/// Validates `status.storedVersions` of a new definition, which the server sets to the first storage
/// version.
fn validate_stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    const FIELD: &str = "status.storedVersions";
    let (first, last) = (storage_versions(crd).next(), storage_versions(crd).last());
    match (first, last) {
        (Some(first), Some(last)) if first != last => {
            let detail = format!("must have the storage version {last}");
            errors.push(FieldError::invalid(FIELD, &json!([first]), &detail));
        }
        (Some(_), _) => {}
        (None, _) => {
            let detail = "must have at least one stored version";
            errors.push(FieldError::invalid(FIELD, &Value::Null, detail));
        }
    }
}

fn validate_shared(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let shared_schema = shared(crd, "/schema").and_then(|schema| schema.get("openAPIV3Schema"));
    if let Some(schema) = shared_schema.filter(|schema| !schema.is_null()) {
        let has_status = versions(crd).iter().any(has_status);
        errors.extend(accept::check(
            "spec.validation.openAPIV3Schema",
            schema,
            has_status,
            versions(crd)
                .first()
                .is_none_or(|first| changes_schema(old, first)),
        ));
    }
    if let Some(subresources) = shared(crd, "/subresources") {
        validate_subresources("spec.subresources", subresources, errors);
    }
    if let Some(columns) = shared(crd, "/additionalPrinterColumns") {
        validate_columns("spec.additionalPrinterColumns", columns, errors);
    }
    if let Some(fields) = shared(crd, "/selectableFields") {
        match shared_schema.filter(|schema| !schema.is_null()) {
            Some(schema) => validate_selectable("spec.selectableFields", Some(schema), fields, errors),
            None if versions(crd).iter().all(|version| schema(version).is_none()) => {
                let detail = "may only be set when validations.schema is included";
                errors.push(FieldError::invalid_text("spec.selectableFields", "", detail));
            }
            None => {
                let schema = versions(crd).first().and_then(schema);
                validate_selectable("spec.selectableFields", schema, fields, errors);
            }
        }
    }
}

fn validate_deprecation(at: &str, version: &Value, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else {
        return;
    };
    let field = format!("{at}.deprecationWarning");
    let mut reject = |detail: &str| errors.push(FieldError::invalid_text(&field, warning, detail));
    if version.get("deprecated") != Some(&Value::Bool(true)) {
        reject("can only be set for deprecated versions");
        return;
    }
    if warning.len() > DEPRECATION_WARNING_BYTES_MAX {
        reject("must be <= 256 characters long");
    }
    if warning.is_empty() {
        reject("must not be an empty string");
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        reject(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
}

fn validate_subresources(at: &str, subresources: &Value, errors: &mut Vec<FieldError>) {
    let Some(scale) = subresources.get("scale").filter(|scale| !scale.is_null()) else {
        return;
    };
    for (key, prefix, detail) in [
        ("specReplicasPath", ".spec.", "should be a json path under .spec"),
        (
            "statusReplicasPath",
            ".status.",
            "should be a json path under .status",
        ),
    ] {
        let field = format!("{at}.scale.{key}");
        let path = scale.get(key).and_then(Value::as_str).unwrap_or_default();
        if path.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if !path.starts_with('.') {
            errors.push(FieldError::invalid_text(
                field,
                path,
                "must be a simple json path starting with .",
            ));
        } else if !path.starts_with(prefix) {
            errors.push(FieldError::invalid_text(field, path, detail));
        }
    }
    let selector = scale
        .get("labelSelectorPath")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let field = format!("{at}.scale.labelSelectorPath");
    if !selector.is_empty() && !selector.starts_with('.') {
        errors.push(FieldError::invalid_text(
            field,
            selector,
            "must be a simple json path starting with .",
        ));
    } else if !selector.is_empty() && !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
        let detail = "should be a json path under either .spec or .status";
        errors.push(FieldError::invalid_text(field, selector, detail));
    }
}

fn validate_columns(at: &str, columns: &Value, errors: &mut Vec<FieldError>) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}[{index}]");
        let get = |key: &str| column.get(key).and_then(Value::as_str).unwrap_or_default();
        if get("name").is_empty() {
            errors.push(FieldError::required(format!("{at}.name"), ""));
        }
        let one_of = |words: &[&str]| format!("must be one of {}", words.join(","));
        let (kind, format, path) = (get("type"), get("format"), get("jsonPath"));
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{at}.type"), &one_of(&COLUMN_TYPES)));
        } else if !COLUMN_TYPES.contains(&kind) {
            errors.push(FieldError::invalid_text(
                format!("{at}.type"),
                kind,
                &one_of(&COLUMN_TYPES),
            ));
        }
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.push(FieldError::invalid_text(
                format!("{at}.format"),
                format,
                &one_of(&COLUMN_FORMATS),
            ));
        }
        if path.is_empty() {
            errors.push(FieldError::required(format!("{at}.JSONPath"), ""));
        } else if !path.starts_with('.') {
            let detail = "must be a simple json path starting with .";
            errors.push(FieldError::invalid_text(format!("{at}.JSONPath"), path, detail));
        }
    }
}

fn validate_selectable(at: &str, schema: Option<&Value>, fields: &Value, errors: &mut Vec<FieldError>) {
    let Some(fields) = fields.as_array().filter(|fields| !fields.is_empty()) else {
        return;
    };
    let node = schema.map(compile).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let at = format!("{at}[{index}].jsonPath");
        let path = field.get("jsonPath").and_then(Value::as_str).unwrap_or_default();
        if path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = if path.contains('[') {
            Err("array notation is not allowed".to_owned())
        } else {
            field_path::find(&node, path).map_err(|err| err.to_string())
        };
        let (normal, target) = match found {
            Ok(found) => found,
            Err(err) => {
                errors.push(FieldError::invalid_text(
                    at,
                    path,
                    &format!("is an invalid path: {err}"),
                ));
                continue;
            }
        };
        if normal == "metadata" || normal.starts_with("metadata.") {
            errors.push(FieldError::invalid_text(
                &at,
                path,
                "must not point to fields in metadata",
            ));
        }
        if ![Types::STRING, Types::BOOLEAN, Types::INTEGER].contains(&target.types) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid_text(&at, path, detail));
        }
        if !seen.insert(normal) {
            errors.push(FieldError::duplicate(at, &Value::from(path)));
        }
    }
    if seen.len() as u64 > SELECTABLE_FIELDS_MAX {
        errors.push(FieldError::too_many(at, seen.len(), SELECTABLE_FIELDS_MAX));
    }
}

fn validate_names(crd: &Value, errors: &mut Vec<FieldError>) {
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(crd, &format!("/spec/names/{key}")).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{key}"), ""));
        }
    }
    for key in ["plural", "singular", "kind", "listKind"] {
        let name = text(crd, &format!("/spec/names/{key}"));
        let mixed_case = key == "kind" || key == "listKind";
        let details = if mixed_case {
            names::dns_1035_label(&name.to_lowercase())
        } else {
            names::dns_1035_label(name)
        };
        if !name.is_empty() && !details.is_empty() {
            let prefix = if mixed_case {
                "may have mixed case, but should otherwise match: "
            } else {
                ""
            };
            let detail = format!("{prefix}{}", details.join(","));
            errors.push(FieldError::invalid_text(
                format!("spec.names.{key}"),
                name,
                &detail,
            ));
        }
    }
    let list = |key: &str| {
        let list = crd
            .pointer(&format!("/spec/names/{key}"))
            .and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    for key in ["shortNames", "categories"] {
        for (index, name) in list(key).into_iter().enumerate() {
            let details = names::dns_1035_label(&name);
            if !details.is_empty() {
                let field = format!("spec.names.{key}[{index}]");
                errors.push(FieldError::invalid_text(field, &name, &details.join(",")));
            }
        }
    }
    let list_kind = text(crd, "/spec/names/listKind");
    if !list_kind.is_empty() && text(crd, "/spec/names/kind") == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid_text("spec.names.listKind", list_kind, detail));
    }
}

/// Rejects conversion webhooks, because the server converts versions only by changing `apiVersion`.
fn validate_conversion(crd: &Value, errors: &mut Vec<FieldError>) {
    let Some(conversion) = crd.pointer("/spec/conversion").and_then(Value::as_object) else {
        return;
    };
    let strategy = conversion
        .get("strategy")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if strategy.is_empty() {
        errors.push(FieldError::required("spec.conversion.strategy", ""));
    } else if strategy != "None" {
        let strategy = Value::from(strategy);
        errors.push(FieldError::not_supported(
            "spec.conversion.strategy",
            &strategy,
            ["None"],
        ));
    } else if conversion
        .get("webhook")
        .is_some_and(|webhook| !is_empty(webhook))
    {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.push(FieldError::forbidden(
            "spec.conversion.webhookClientConfig",
            detail,
        ));
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

fn validate_immutable(crd: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let conditions = old.pointer("/status/conditions").and_then(Value::as_array);
    let established = conditions
        .into_iter()
        .flatten()
        .any(|condition| text(condition, "/type") == "Established" && text(condition, "/status") == "True");
    for (pointer, field, always) in [
        ("/spec/scope", "spec.scope", false),
        ("/spec/names/kind", "spec.names.kind", false),
        ("/spec/group", "spec.group", true),
        ("/spec/names/plural", "spec.names.plural", true),
    ] {
        let (new, old) = (text(crd, pointer), text(old, pointer));
        if new != old && (always || established) {
            errors.push(FieldError::invalid_text(field, new, "field is immutable"));
        }
    }
}

/// Checks the approval annotation of groups that belong to the Kubernetes community.
fn validate_approval(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(crd, "/spec/group");
    let protected = ["k8s.io", "kubernetes.io"]
        .into_iter()
        .any(|domain| group == domain || group.ends_with(&format!(".{domain}")));
    let note = |crd: &Value| {
        let note = crd
            .get("metadata")
            .and_then(|metadata| metadata.get("annotations")?.get(APPROVAL));
        note.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let new = note(crd);
    if !protected || old.is_some_and(|old| note(old) == new) {
        return;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    if new.is_empty() {
        let detail = format!(
            "protected groups must have approval annotation \"{APPROVAL}\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        errors.push(FieldError::required(field, &detail));
    } else if !new.starts_with("unapproved") && !new.starts_with("https://") {
        let detail = format!(
            "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        errors.push(FieldError::invalid_text(field, &new, &detail));
    }
}

#[cfg(test)]
mod tests;
