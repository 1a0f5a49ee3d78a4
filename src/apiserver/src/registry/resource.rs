//! Served resource: a kind in a group version, with its conversions and storage keys.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::builtin::BuiltIn;
use crate::object::metadata::FinalizerRule;
use crate::object::{self, managed_fields};
use crate::status::GroupResource;
use rooflet_apimachinery::fields::{FieldSet, TypeSchema};
use rooflet_apimachinery::table::Table;
use rooflet_apimachinery::verb::Verb;
use rooflet_schema::StructuralSchema;
use rooflet_schema::metadata::NameRule;
use rooflet_store::{Key, Record, Revision};

/// Verbs of custom resources, in discovery order.
const CUSTOM_VERBS: [Verb; 8] = [
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Create,
    Verb::Update,
    Verb::Watch,
];

#[derive(Debug)]
pub(crate) struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub table: Table,
    pub origin: Origin,
    /// First members of a serialized built-in object: `{"kind":"…","apiVersion":"…",`.
    type_prefix: Bytes,
}

/// Origin of a resource.
#[derive(Debug)]
pub(crate) enum Origin {
    BuiltIn(BuiltIn),
    Custom(Box<CustomVersion>),
}

/// Version of a CustomResourceDefinition.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    pub definition: DefinitionVersion,
    pub is_served: bool,
    pub schema: Arc<StructuralSchema>,
    /// Schema of the storage version, whose defaults apply to stored objects.
    pub storage_schema: Arc<StructuralSchema>,
    pub type_schema: TypeSchema,
    /// Definition with this version.
    pub record: Arc<Record>,
    pub has_status: bool,
    pub scale: Option<ScalePaths>,
    /// Selectable field paths without the leading dot, as in field selectors.
    pub selectable_fields: Vec<String>,
    pub storage_version: String,
    /// Names of all versions of the definition.
    pub versions: Vec<String>,
    /// Objects modified after this revision are stored in the storage version, pruned and with
    /// defaults.
    pub schema_since: Revision,
    pub is_only_version: bool,
    /// True while the definition is being deleted: creation of objects is rejected.
    pub is_terminating: bool,
    pub deprecation_warning: Option<String>,
    /// Cancelled when the definition changes or is deleted. Ends the watches that use it.
    pub retired: CancellationToken,
}

impl CustomVersion {
    /// Returns the `openAPIV3Schema` of a version. The schema is parsed each time: only documents show it.
    pub(crate) fn open_api_schema(&self, version: &str) -> Value {
        let definition = self.record.json();
        let mut versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let shown = versions.find(|shown| shown["name"] == version);
        shown.map_or(Value::Null, |shown| shown["schema"]["openAPIV3Schema"].clone())
    }
}

/// Name and generation of a CustomResourceDefinition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DefinitionVersion {
    pub name: String,
    uid: String,
    generation: i64,
}

impl DefinitionVersion {
    pub(crate) fn of(definition: &Value) -> Self {
        Self {
            name: object::name(definition).to_owned(),
            uid: object::uid(definition).to_owned(),
            generation: definition["metadata"]["generation"].as_i64().unwrap_or_default(),
        }
    }
}

/// Field paths of the `scale` subresource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: Option<Vec<String>>,
}

/// Subresource of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    Scale,
    Finalize,
    /// Approval or denial of a certificate signing request.
    Approval,
    /// Request for a token of a service account.
    Token,
}

impl Subresource {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
            Self::Approval => "approval",
            Self::Token => "token",
        }
    }
}

impl Resource {
    pub(crate) fn built_in(built_in: BuiltIn) -> Self {
        let facts = built_in.facts();
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self::new(
            Names {
                group: facts.group.to_owned(),
                version: facts.version.to_owned(),
                plural: facts.plural.to_owned(),
                singular: facts.singular.to_owned(),
                kind: facts.kind.to_owned(),
                list_kind: format!("{}List", facts.kind),
                short_names: owned(facts.short_names),
                categories: owned(facts.categories),
            },
            facts.namespaced,
            Table::of_kind(facts.group, facts.kind),
            Origin::BuiltIn(built_in),
        )
    }

    pub(crate) fn new(names: Names, namespaced: bool, table: Table, origin: Origin) -> Self {
        let Names {
            group,
            version,
            plural,
            singular,
            kind,
            list_kind,
            short_names,
            categories,
        } = names;
        let api_version = api_version(&group, &version);
        let type_prefix = Bytes::from(format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\","));
        Self {
            group,
            version,
            plural,
            singular,
            kind,
            list_kind,
            short_names,
            categories,
            namespaced,
            table,
            origin,
            type_prefix,
        }
    }

    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }

    pub(crate) fn verbs(&self) -> &[Verb] {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.verbs(),
            Origin::Custom(_) => &CUSTOM_VERBS,
        }
    }

    pub(crate) fn custom(&self) -> Option<&CustomVersion> {
        match &self.origin {
            Origin::BuiltIn(_) => None,
            Origin::Custom(custom) => Some(custom),
        }
    }

    /// Returns true if clients can access the resource.
    pub(crate) fn is_served(&self) -> bool {
        self.custom().is_none_or(|custom| custom.is_served)
    }

    /// Returns false for kinds that are answered, but not stored.
    pub(crate) fn has_storage(&self) -> bool {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.is_stored(),
            Origin::Custom(_) => true,
        }
    }

    /// Returns true for the storage version of a kind that is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.has_storage()
            && self
                .custom()
                .is_none_or(|custom| custom.storage_version == self.version)
    }

    pub(crate) fn is(&self, built_in: BuiltIn) -> bool {
        matches!(&self.origin, Origin::BuiltIn(own) if *own == built_in)
    }

    /// Returns the subresource with this name if the resource has it.
    pub(crate) fn subresource(&self, name: &str) -> Option<Subresource> {
        let candidate = match name {
            "status" => Subresource::Status,
            "scale" => Subresource::Scale,
            "finalize" => Subresource::Finalize,
            "approval" => Subresource::Approval,
            "token" => Subresource::Token,
            _ => return None,
        };
        self.subresources().contains(&candidate).then_some(candidate)
    }

    pub(crate) fn subresources(&self) -> Vec<Subresource> {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in
                .facts()
                .subresources
                .iter()
                .map(|name| match *name {
                    "finalize" => Subresource::Finalize,
                    "approval" => Subresource::Approval,
                    "token" => Subresource::Token,
                    _ => Subresource::Status,
                })
                .collect(),
            Origin::Custom(custom) => custom
                .has_status
                .then_some(Subresource::Status)
                .into_iter()
                .chain(custom.scale.is_some().then_some(Subresource::Scale))
                .collect(),
        }
    }

    pub(crate) fn name_rule(&self) -> NameRule {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.name_rule(),
            Origin::Custom(_) => NameRule::Subdomain,
        }
    }

    pub(crate) fn finalizer_rule(&self) -> FinalizerRule {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.finalizer_rule(),
            Origin::Custom(_) => FinalizerRule::Warn,
        }
    }

    pub(crate) fn creates_on_update(&self) -> bool {
        matches!(&self.origin, Origin::BuiltIn(built_in) if built_in.facts().creates_on_update)
    }

    pub(crate) fn updates_unconditionally(&self) -> bool {
        matches!(&self.origin, Origin::BuiltIn(built_in) if built_in.facts().updates_unconditionally)
    }

    /// Returns true if a deletion may wait for, or orphan, dependents.
    pub(crate) fn is_collected(&self) -> bool {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.is_collected(),
            Origin::Custom(_) => true,
        }
    }

    /// Returns the key prefix of all objects of the kind. Keys sort in list order.
    pub(crate) fn prefix(&self) -> Cow<'static, str> {
        match &self.origin {
            Origin::BuiltIn(built_in) => Cow::Borrowed(built_in.facts().storage),
            Origin::Custom(_) => Cow::Owned(format!("/{}/{}/", self.group, self.plural)),
        }
    }

    /// Returns the key prefix of one namespace, or of all if `None`.
    pub(crate) fn prefix_in(&self, namespace: Option<&str>) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{}{namespace}/", self.prefix()),
            None => self.prefix().into_owned(),
        }
    }

    pub(crate) fn key(&self, namespace: Option<&str>, name: &str) -> Key {
        Key::new(format!("{}{name}", self.prefix_in(namespace)))
    }

    /// Returns namespace and name in a key of this kind. The namespace is empty for cluster-scoped kinds.
    pub(crate) fn namespace_and_name<'a>(&self, key: &'a Key) -> (&'a str, &'a str) {
        let below = key.as_str().strip_prefix(&*self.prefix()).unwrap_or_default();
        below.split_once('/').unwrap_or(("", below))
    }

    /// Returns true if the stored bytes equal the served bytes, except for type members.
    pub(crate) fn is_verbatim(&self, record: &Record) -> bool {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.is_stored_form(),
            Origin::Custom(custom) => {
                record.modified > custom.schema_since
                    && custom.is_only_version
                    && custom.storage_version == self.version
            }
        }
    }

    /// Returns the object as a list item of this version. Items of built-in kinds have no
    /// `apiVersion` and `kind`.
    pub(crate) fn item_bytes(&self, record: &Record) -> Bytes {
        if self.is_verbatim(record) {
            record.value.clone()
        } else {
            let mut item = self.converted(Value::clone(&record.json()));
            managed_fields::expand(&mut item);
            to_bytes(&item)
        }
    }

    /// Returns the object as a single object of this version.
    pub(crate) fn object_bytes(&self, record: &Record) -> Bytes {
        let item = self.item_bytes(record);
        match &self.origin {
            Origin::Custom(_) => item,
            Origin::BuiltIn(_) => {
                let mut bytes = Vec::with_capacity(self.type_prefix.len() + item.len());
                bytes.extend_from_slice(&self.type_prefix);
                bytes.extend_from_slice(item.get(1..).unwrap_or_default());
                Bytes::from(bytes)
            }
        }
    }

    /// Returns the object in working form: this version's form for custom resources, the stored
    /// form without type members for built-in kinds.
    pub(crate) fn view(&self, record: &Record) -> Arc<Value> {
        match &self.origin {
            Origin::BuiltIn(_) => record.json(),
            Origin::Custom(_) if self.is_verbatim(record) => record.json(),
            Origin::Custom(_) => Arc::new(self.converted(Value::clone(&record.json()))),
        }
    }

    /// Converts an object from the stored form to this version's list item form.
    fn converted(&self, mut stored: Value) -> Value {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.served_form(stored),
            Origin::Custom(custom) => {
                custom.storage_schema.apply_defaults(&mut stored);
                if let Some(map) = stored.as_object_mut() {
                    map.insert("apiVersion".to_owned(), Value::from(self.api_version()));
                }
                custom.schema.prune(&mut stored);
                stored
            }
        }
    }

    /// Returns the types of the fields of an object in this version.
    pub(crate) fn type_schema(&self) -> &TypeSchema {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.type_schema(),
            Origin::Custom(custom) => &custom.type_schema,
        }
    }

    /// Returns true if the kind has this API version.
    pub(crate) fn has_version(&self, version: &str) -> bool {
        match &self.origin {
            Origin::BuiltIn(_) => true,
            Origin::Custom(custom) => custom
                .versions
                .iter()
                .any(|known| api_version(&self.group, known) == version),
        }
    }

    /// Returns the fields that a request for this subresource, or the object, cannot change.
    pub(crate) fn ignored_fields(&self, subresource: Option<Subresource>) -> FieldSet {
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.ignored_fields(subresource),
            Origin::Custom(custom) => match subresource {
                None if custom.has_status => FieldSet::of_fields(&[&["status"]]),
                Some(Subresource::Status) => FieldSet::of_fields(&[&["metadata"], &["spec"]]),
                _ => FieldSet::default(),
            },
        }
    }

    /// Converts an object from the working form to the fields of this version.
    pub(crate) fn versioned<'a>(&self, working: &'a Value) -> Cow<'a, Value> {
        match &self.origin {
            Origin::BuiltIn(built_in) if !built_in.is_stored_form() => {
                Cow::Owned(built_in.served_form(working.clone()))
            }
            Origin::BuiltIn(_) | Origin::Custom(_) => Cow::Borrowed(working),
        }
    }

    /// Converts an object from the working form to the stored form.
    pub(crate) fn stored(&self, mut working: Value) -> Value {
        if let Origin::Custom(custom) = &self.origin
            && let Some(map) = working.as_object_mut()
        {
            let stored = api_version(&self.group, &custom.storage_version);
            map.insert("apiVersion".to_owned(), Value::from(stored));
        }
        working
    }

    /// Converts an object from the working form to the form of requests and responses.
    pub(crate) fn external(&self, working: Value) -> Value {
        let mut object = match &self.origin {
            Origin::BuiltIn(built_in) => built_in.served_form(working),
            Origin::Custom(_) => working,
        };
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::from(self.api_version()));
            map.insert("kind".to_owned(), Value::from(self.kind.as_str()));
        }
        managed_fields::expand(&mut object);
        object
    }

    /// Returns the value of a selectable field of an object in working form.
    pub(crate) fn selectable_field<'a>(&self, working: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        match field {
            "metadata.name" => return Some(Cow::Borrowed(object::name(working))),
            "metadata.namespace" if self.namespaced => {
                return Some(Cow::Borrowed(object::namespace(working)));
            }
            _ => {}
        }
        match &self.origin {
            Origin::BuiltIn(built_in) => built_in.selectable_field(working, field),
            Origin::Custom(custom) => {
                if !custom.selectable_fields.iter().any(|known| known == field) {
                    return None;
                }
                let value = field.split('.').try_fold(working, |value, key| value.get(key));
                Some(match value {
                    None | Some(Value::Null) => Cow::Borrowed(""),
                    Some(Value::String(text)) => Cow::Borrowed(text),
                    Some(other) => Cow::Owned(other.to_string()),
                })
            }
        }
    }

    pub(crate) fn is_selectable(&self, field: &str) -> bool {
        self.selectable_field(&Value::Null, field).is_some()
    }

    /// Returns the error of a field selector with another field.
    pub(crate) fn unselectable(&self, field: &str) -> String {
        let has_own_fields = match &self.origin {
            Origin::BuiltIn(built_in) => built_in.has_own_selectable_fields(),
            Origin::Custom(_) => true,
        };
        if has_own_fields {
            return format!("field label not supported: {field}");
        }
        format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }

    /// Returns the group that validation errors name.
    pub(crate) fn error_group(&self) -> &str {
        if self.is(BuiltIn::EventsEvent) {
            ""
        } else {
            &self.group
        }
    }

    /// Returns the object of a bookmark event:
    /// `{"apiVersion":…,"kind":…,"metadata":{"resourceVersion":…}}`.
    pub(crate) fn bookmark(&self, version: Revision, ends_initial_events: bool) -> Value {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({"kind": self.kind, "apiVersion": self.api_version(), "metadata": metadata})
    }
}

/// Names of a resource.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

/// Returns `v1` for the core group, otherwise `group/version`.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

pub(crate) fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("serialising a JSON value cannot fail"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_namespace_and_name() {
        let config_maps = Resource::built_in(BuiltIn::ConfigMap);
        assert_eq!(config_maps.key(Some("a"), "b").as_str(), "/core/configmaps/a/b");
        assert_eq!(config_maps.prefix_in(None), "/core/configmaps/");
        let namespaces = Resource::built_in(BuiltIn::Namespace);
        assert_eq!(namespaces.key(Some("a"), "a").as_str(), "/core/namespaces/a");
        for (resource, namespace) in [(&config_maps, "a"), (&namespaces, "")] {
            let key = resource.key(Some("a"), "b");
            assert_eq!(resource.namespace_and_name(&key), (namespace, "b"));
        }
    }

    #[test]
    fn both_event_groups_share_the_storage_prefix() {
        let (core, events) = (
            Resource::built_in(BuiltIn::Event),
            Resource::built_in(BuiltIn::EventsEvent),
        );
        assert_eq!(core.prefix(), events.prefix());
        assert!(core.is_selectable("involvedObject.name") && !events.is_selectable("involvedObject.name"));
        assert!(events.is_selectable("regarding.name") && events.is_selectable("metadata.namespace"));
    }
}
