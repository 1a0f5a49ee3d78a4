//! Resources of a definition.

use std::sync::Arc;

use kube::core::Version;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{ESTABLISHED, is_condition_true, storage_version, versions};
use crate::builtin::BuiltIn;
use crate::object;
use crate::registry::resource::{CustomVersion, DefinitionVersion, Names, Origin, Resource, ScalePaths};
use rooflet_apimachinery::fields::TypeSchema;
use rooflet_apimachinery::table::Table;
use rooflet_schema::StructuralSchema;
use rooflet_store::{Record, Revision};

/// Returns the versions of a definition that are served or stored. Returns none before its names
/// are accepted, or if a built-in kind has the name. For `schema_since` see [`CustomVersion`].
pub(crate) fn resources(
    record: &Arc<Record>,
    schema_since: Revision,
    retired: &CancellationToken,
) -> Vec<Resource> {
    let crd = &*record.json();
    if !is_condition_true(crd, "NamesAccepted") && !is_condition_true(crd, ESTABLISHED) {
        return Vec::new();
    }
    let text = |path: &[&str]| object::text(crd, path).to_owned();
    let (plural, kind) = (
        text(&["status", "acceptedNames", "plural"]),
        text(&["status", "acceptedNames", "kind"]),
    );
    let group = text(&["spec", "group"]);
    if BuiltIn::of_group(&group).any(|facts| facts.plural == plural || facts.kind == kind) {
        return Vec::new();
    }
    let names = &crd["status"]["acceptedNames"];
    let list = |key: &str| -> Vec<String> {
        names[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let storage = storage_version(crd).unwrap_or_default().to_owned();
    let is_only_version = versions(crd).count() == 1;
    let is_terminating = object::is_being_deleted(crd) || is_condition_true(crd, "Terminating");
    let is_served = |version: &Value| version["served"] == Value::Bool(true);
    let name_of = |version: &Value| version["name"].as_str().unwrap_or_default().to_owned();
    let mut known: Vec<&Value> = versions(crd)
        .filter(|version| is_served(version) || name_of(version) == storage)
        .collect();
    known.sort_by_key(|version| std::cmp::Reverse(Version::parse(&name_of(version)).priority()));
    let newest = known
        .iter()
        .find(|version| is_served(version) && version["deprecated"] != Value::Bool(true))
        .map(|version| name_of(version));
    let priority = |name: &str| Version::parse(name).priority();
    let compiled = |version: &Value| {
        let open_api = &version["schema"]["openAPIV3Schema"];
        Arc::new(StructuralSchema::trusted(open_api))
    };
    let stored = known.iter().find(|version| name_of(version) == storage);
    let storage_schema = stored.map_or_else(|| compiled(&Value::Null), |version| compiled(version));
    known
        .into_iter()
        .map(|version| {
            let name = name_of(version);
            let newer = newest
                .as_deref()
                .filter(|newest| priority(newest) > priority(&name));
            let advice = newer.map_or_else(String::new, |newer| format!("; use {group}/{newer} {kind}"));
            let kind = kind.clone();
            let deprecation_warning = (version["deprecated"] == Value::Bool(true)).then(|| {
                version["deprecationWarning"].as_str().map_or_else(
                    || format!("{group}/{name} {kind} is deprecated{advice}"),
                    str::to_owned,
                )
            });
            let open_api = &version["schema"]["openAPIV3Schema"];
            let custom = CustomVersion {
                definition: DefinitionVersion::of(crd),
                is_served: is_served(version),
                schema: match name == storage {
                    true => Arc::clone(&storage_schema),
                    false => compiled(version),
                },
                storage_schema: Arc::clone(&storage_schema),
                type_schema: TypeSchema::of_custom_resource(open_api),
                record: Arc::clone(record),
                has_status: version["subresources"]
                    .get("status")
                    .is_some_and(Value::is_object),
                scale: scale_paths(&version["subresources"]["scale"]),
                selectable_fields: selectable_fields(version),
                storage_version: storage.clone(),
                versions: versions(crd).map(name_of).collect(),
                schema_since,
                is_only_version,
                is_terminating,
                deprecation_warning,
                retired: retired.clone(),
            };
            let names = Names {
                group: group.clone(),
                version: name,
                plural: plural.clone(),
                singular: text(&["status", "acceptedNames", "singular"]),
                kind,
                list_kind: text(&["status", "acceptedNames", "listKind"]),
                short_names: list("shortNames"),
                categories: list("categories"),
            };
            let namespaced = object::text(crd, &["spec", "scope"]) == "Namespaced";
            Resource::new(
                names,
                namespaced,
                Table::of_crd_version(version),
                Origin::Custom(Box::new(custom)),
            )
        })
        .collect()
}

fn selectable_fields(version: &Value) -> Vec<String> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    fields
        .filter_map(|field| field["jsonPath"].as_str())
        .map(|path| path.trim_start_matches('.').to_owned())
        .collect()
}

fn scale_paths(scale: &Value) -> Option<ScalePaths> {
    let path = |key: &str| -> Option<Vec<String>> {
        let path = scale[key].as_str().filter(|path| !path.is_empty())?;
        Some(
            path.trim_start_matches('.')
                .split('.')
                .map(str::to_owned)
                .collect(),
        )
    };
    Some(ScalePaths {
        spec_replicas: path("specReplicasPath")?,
        status_replicas: path("statusReplicasPath")?,
        selector: path("labelSelectorPath"),
    })
}
