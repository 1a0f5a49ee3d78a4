//! CustomResourceDefinition: what one must look like, what it turns into (resources), and its life (conditions,
//! removal of its objects).

mod lifecycle;

use jiff::Timestamp;
use kube::core::Version;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::builtin::BuiltIn;
use super::object;
use super::resource::{CustomVersion, DefinitionVersion, Names, Origin, Resource, ScalePaths};
use rooflet_apimachinery::schema::crd as rules;
use rooflet_apimachinery::schema::{FieldError, StructuralSchema};
use rooflet_apimachinery::table::Table;
use rooflet_store::Revision;

pub(crate) use lifecycle::{
    CLEANUP_FINALIZER, ESTABLISHED, is_condition_true, mark_terminating, next_status, set_condition,
    taken_names,
};

/// Defaults that the real server fills in.
pub(crate) fn default(crd: &mut Value) {
    rules::apply_defaults(crd);
    // Always false in v1 and then not shown.
    if let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut)
        && spec.get("preserveUnknownFields") == Some(&Value::Bool(false))
    {
        spec.remove("preserveUnknownFields");
    }
}

/// Checks a definition; its metadata excepted on create, where only the name has rules of its own.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = rules::validate(crd, old);
    // One that lacks a stored version already can still be changed otherwise, and deleted.
    let stored = |crd: &Value| crd["status"]["storedVersions"].clone();
    let names =
        |crd: &Value| -> Vec<Value> { versions(crd).map(|version| version["name"].clone()).collect() };
    if let Some(old) = old
        && (stored(crd) != stored(old) || names(crd) != names(old))
    {
        check_stored_versions(crd, &mut errors);
    }
    // A webhook that would never be called must not be accepted as if it were.
    if object::text(crd, &["spec", "conversion", "strategy"]) == "Webhook" {
        let detail = "this server does not call conversion webhooks; serve one version, or use strategy None";
        errors.push(FieldError::forbidden("spec.conversion.strategy", detail));
    }
    errors
}

/// Objects may lie in the store in every version that ever was the storage version: none of them can be dropped.
fn check_stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let at = "status.storedVersions";
    let stored = crd["status"]["storedVersions"].as_array();
    let names: Vec<&str> = stored.into_iter().flatten().filter_map(Value::as_str).collect();
    for (index, name) in names.iter().enumerate() {
        if !versions(crd).any(|version| version["name"] == *name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {name} and removes {name} from {at}"
            );
            errors.push(FieldError::invalid_text(format!("{at}[{index}]"), name, &detail));
        }
    }
    if let Some(storage) = storage_version(crd).filter(|storage| !names.contains(storage)) {
        let detail = format!("must have the storage version {storage}");
        errors.push(FieldError::invalid(at, &json!(names), &detail));
    }
}

/// Formats that schemas name and nobody knows, unless `old` named them too.
pub(crate) fn warnings(crd: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(rules::format_warnings).unwrap_or_default();
    let mut new = rules::format_warnings(crd);
    new.retain(|warning| !known.contains(warning));
    new
}

/// The versions of a definition, as they stand in its spec.
pub(crate) fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

fn storage_version(crd: &Value) -> Option<&str> {
    versions(crd)
        .find(|version| version["storage"] == Value::Bool(true))
        .and_then(|version| version["name"].as_str())
}

fn note_storage_version(crd: &mut Value) {
    let Some(storage) = storage_version(crd).map(str::to_owned) else {
        return;
    };
    let stored = &mut crd["status"]["storedVersions"];
    match stored.as_array_mut() {
        Some(versions) if versions.iter().any(|version| *version == storage.as_str()) => {}
        Some(versions) => versions.push(Value::from(storage)),
        None => *stored = json!([storage]),
    }
}

pub(crate) fn prepare_create(crd: &mut Value) {
    crd["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null});
    note_storage_version(crd);
    object::metadata_mut(crd).insert("generation".to_owned(), json!(1));
}

pub(crate) fn prepare_update(crd: &mut Value, old: &Value, subresource: &str) {
    let Some(map) = crd.as_object_mut() else { return };
    if subresource == "status" {
        object::set_or_remove(map, "spec", old.get("spec").cloned());
        let labels_and_such = ["labels", "annotations", "finalizers", "ownerReferences"];
        for field in labels_and_such {
            let value = old["metadata"].get(field).cloned();
            object::set_or_remove(object::metadata_mut(crd), field, value);
        }
        return;
    }
    object::set_or_remove(map, "status", old.get("status").cloned());
    if crd["spec"] != old["spec"] {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        object::metadata_mut(crd).insert("generation".to_owned(), json!(generation));
    }
    note_storage_version(crd);
}

/// The versions of a definition that are served or stored now; none before its names are accepted, none beside a built-in
/// kind. `fresh_since`: see [`CustomVersion`].
pub(crate) fn resources(crd: &Value, fresh_since: Revision, retired: &CancellationToken) -> Vec<Resource> {
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
    known
        .into_iter()
        .map(|version| {
            let name = name_of(version);
            let kind = kind.clone();
            let deprecation_warning = (version["deprecated"] == Value::Bool(true)).then(|| {
                version["deprecationWarning"]
                    .as_str()
                    .map_or_else(|| format!("{group}/{name} {kind} is deprecated"), str::to_owned)
            });
            let open_api = &version["schema"]["openAPIV3Schema"];
            let custom = CustomVersion {
                definition: DefinitionVersion::of(crd),
                is_served: is_served(version),
                schema: std::sync::Arc::new(StructuralSchema::trusted(open_api)),
                spec: version.clone(),
                has_status: version["subresources"]
                    .get("status")
                    .is_some_and(Value::is_object),
                scale: scale_paths(&version["subresources"]["scale"]),
                selectable_fields: selectable_fields(version),
                storage_version: storage.clone(),
                fresh_since,
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

/// A condition of a definition.
pub(crate) struct Condition {
    pub kind: &'static str,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

impl Condition {
    fn to_json(&self, now: Timestamp) -> Value {
        json!({
            "lastTransitionTime": super::typed::format_time(now),
            "message": self.message,
            "reason": self.reason,
            "status": if self.status { "True" } else { "False" },
            "type": self.kind,
        })
    }
}
