//! Page of the kinds and their fields, from the CustomResourceDefinitions.

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

use super::markdown::{NOTICE, wrapped};
use rooflet_api::crd;

const INTRO: &str = "\
# Kinds

All kinds of the API group `rooflet.dev`, version `v1alpha1`. `kubectl explain KIND.FIELD` prints the
same texts. `manifests/crds.yaml` contains the definitions, and [examples](../../examples) has
manifests. A field that is not marked as required may be omitted. `[]` marks the items of a list,
`{}` the values of a map.
";

pub(super) fn page() -> anyhow::Result<String> {
    let mut page = format!("{NOTICE}{INTRO}");
    for definition in crd::all() {
        page.push_str(&kind(&definition)?);
    }
    Ok(page)
}

fn kind(definition: &CustomResourceDefinition) -> anyhow::Result<String> {
    let names = &definition.spec.names;
    let version = definition.spec.versions.first();
    let version = version.with_context(|| format!("{} has no version", names.kind))?;
    let schema = version.schema.as_ref();
    let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
    let schema = schema.with_context(|| format!("{} has no schema", names.kind))?;

    let mut text = format!("\n## {}\n\n", names.kind);
    text.push_str(&wrapped("", schema.description.as_deref().unwrap_or_default()));
    text.push('\n');
    let short = names.short_names.iter().flatten().map(|name| format!("`{name}`"));
    let all = [format!("`{}`", names.plural)]
        .into_iter()
        .chain(short)
        .collect::<Vec<_>>();
    text.push_str(&wrapped(
        "",
        &format!("Scope: {}. Names: {}.", definition.spec.scope, all.join(", ")),
    ));
    text.push_str(&columns(version));
    for (name, part) in schema.properties.iter().flatten() {
        if ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        text.push_str(&format!("\n### {} `{name}`\n\n", names.kind));
        let mut items = Vec::new();
        let mut rules = Vec::new();
        fields(name, part, &mut items, &mut rules);
        items.iter().for_each(|item| text.push_str(&wrapped("- ", item)));
        if !rules.is_empty() {
            text.push_str("\nRules:\n\n");
            rules.iter().for_each(|rule| text.push_str(&wrapped("- ", rule)));
        }
    }
    Ok(text)
}

fn columns(version: &CustomResourceDefinitionVersion) -> String {
    let columns = version.additional_printer_columns.iter().flatten();
    let names: Vec<_> = columns
        .map(|column| match column.priority {
            Some(priority) if priority > 0 => format!("{} (wide)", column.name),
            _ => column.name.clone(),
        })
        .collect();
    if names.is_empty() {
        return String::new();
    }
    wrapped("", &format!("Columns of `kubectl get`: {}.", names.join(", ")))
}

/// Appends the fields below `path`, depth first, and the validation rules.
fn fields(path: &str, schema: &JSONSchemaProps, items: &mut Vec<String>, rules: &mut Vec<String>) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let message = rule.message.as_deref().unwrap_or(&rule.rule);
        rules.push(format!("`{path}`: {message}"));
    }
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        items.push(item(&path, field, required.contains(name)));
        fields(&path, field, items, rules);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        fields(&format!("{path}[]"), item, items, rules);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
        fields(&format!("{path}{{}}"), value, items, rules);
    }
}

/// Returns the list item of a field: path, type, default, description and constraints.
fn item(path: &str, field: &JSONSchemaProps, is_required: bool) -> String {
    let mut facts = Vec::from_iter(Some(type_of(field)).filter(|kind| !kind.is_empty()));
    match &field.default {
        Some(default) => facts.push(format!("default `{}`", default.0)),
        None if is_required => facts.push("required".to_owned()),
        None => {}
    }
    let facts = match facts.join(", ") {
        facts if facts.is_empty() => facts,
        facts => format!(" ({facts})"),
    };
    let mut text = format!(
        "`{path}`{facts}: {}",
        field.description.as_deref().unwrap_or_default()
    );
    for constraint in constraints(field) {
        text.push(' ');
        text.push_str(&constraint);
    }
    text
}

fn type_of(field: &JSONSchemaProps) -> String {
    if field.x_kubernetes_int_or_string == Some(true) {
        return "integer or string".to_owned();
    }
    let item = |item: &JSONSchemaProps| match type_of(item) {
        kind if kind.is_empty() => "any".to_owned(),
        kind => kind,
    };
    match (field.type_.as_deref(), &field.items, &field.additional_properties) {
        (Some("array"), Some(JSONSchemaPropsOrArray::Schema(of)), _) => format!("list of {}", item(of)),
        (Some("object"), _, Some(JSONSchemaPropsOrBool::Schema(of))) => format!("map of {}", item(of)),
        (kind, ..) => kind.unwrap_or_default().to_owned(),
    }
}

fn constraints(field: &JSONSchemaProps) -> Vec<String> {
    let mut found = Vec::new();
    let values = field.enum_.iter().flatten();
    let values: Vec<_> = values
        .filter(|value| !value.0.is_null())
        .map(|value| {
            format!(
                "`{}`",
                value
                    .0
                    .as_str()
                    .map_or_else(|| value.0.to_string(), str::to_owned)
            )
        })
        .collect();
    if !values.is_empty() {
        found.push(format!("One of {}.", values.join(", ")));
    }
    let bound = |found: &mut Vec<String>, name: &str, value: Option<String>| {
        if let Some(value) = value {
            found.push(format!("{name}: {value}."));
        }
    };
    bound(
        &mut found,
        "Minimum",
        field.minimum.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Maximum",
        field.maximum.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Minimum length",
        field.min_length.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Maximum length",
        field.max_length.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Minimum items",
        field.min_items.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Maximum items",
        field.max_items.map(|value| value.to_string()),
    );
    bound(
        &mut found,
        "Pattern",
        field.pattern.as_ref().map(|pattern| format!("`{pattern}`")),
    );
    found
}
