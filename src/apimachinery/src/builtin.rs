//! OpenAPI schemas of the built-in kinds, derived from the documented types of `k8s-openapi`.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::{
    Resource,
    api::{
        admissionregistration::v1::{
            MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
            ValidatingAdmissionPolicyBinding,
        },
        authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview},
        authorization::v1::{
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        },
        autoscaling::v1::Scale,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event as CoreEvent, Namespace, Secret, ServiceAccount},
        events::v1::Event,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::{
        apis::meta::v1::{
            APIGroup, APIGroupList, APIResourceList, APIVersions, DeleteOptions, ListMeta, ObjectMeta, Patch,
            Status,
        },
        version::Info,
    },
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// Prefix of references to schemas in an OpenAPI v3 document.
pub(crate) const REFERENCE_PREFIX: &str = "#/components/schemas/";

struct Catalogue {
    /// Texts of the definitions: the parsed form needs several times as much memory.
    definitions: BTreeMap<String, Box<[u8]>>,
    /// Names of definitions, by [`key`].
    kinds: BTreeMap<String, String>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::build);

/// Returns a definition by name, for example `io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta`.
pub(crate) fn definition(name: &str) -> Option<Value> {
    let text = CATALOGUE.definitions.get(name)?;
    Some(serde_json::from_slice(text).expect("`Catalogue::build` has written it"))
}

fn key(group: &str, version: &str, kind: &str) -> String {
    format!("{group}/{version}/{kind}")
}

/// Returns the name of a built-in kind's definition, for example `io.k8s.api.core.v1.ConfigMap`.
pub(crate) fn definition_name(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    CATALOGUE
        .kinds
        .get(&key(group, version, kind))
        .map(String::as_str)
}

impl Catalogue {
    fn build() -> Self {
        let mut generator = SchemaSettings::openapi3()
            .with(|settings| settings.transforms.clear())
            .into_generator();
        let mut names: Vec<((&str, &str, &str), String)> = Vec::new();
        macro_rules! kinds {
            ($($kind:ty),+ $(,)?) => { $( names.push(name_of::<$kind>(&mut generator)); )+ };
        }
        kinds!(
            ConfigMap,
            CoreEvent,
            Namespace,
            Secret,
            ServiceAccount,
            Event,
            Lease,
            CustomResourceDefinition,
            SelfSubjectAccessReview,
            SelfSubjectRulesReview,
            SubjectAccessReview,
            LocalSubjectAccessReview,
            SelfSubjectReview,
            TokenReview,
            TokenRequest,
            Role,
            RoleBinding,
            ClusterRole,
            ClusterRoleBinding,
            CertificateSigningRequest,
            MutatingAdmissionPolicy,
            MutatingAdmissionPolicyBinding,
            ValidatingAdmissionPolicy,
            ValidatingAdmissionPolicyBinding,
            Scale,
            APIGroup,
            APIGroupList,
            APIResourceList,
            APIVersions,
        );
        generator.subschema_for::<ObjectMeta>();
        generator.subschema_for::<ListMeta>();
        generator.subschema_for::<DeleteOptions>();
        generator.subschema_for::<Patch>();
        generator.subschema_for::<Status>();
        generator.subschema_for::<Info>();
        let mut definitions: BTreeMap<String, Value> =
            generator.take_definitions(false).into_iter().collect();
        for definition in definitions.values_mut() {
            wrap_references(definition);
        }
        mark_merges(&mut definitions);
        let mut kinds = BTreeMap::new();
        for (gvk, name) in names {
            let (group, version, kind) = gvk;
            if let Some(Value::Object(definition)) = definitions.get_mut(&name) {
                let marker = json!([{"group": group, "version": version, "kind": kind}]);
                definition.insert("x-kubernetes-group-version-kind".to_owned(), marker);
            }
            kinds.insert(key(group, version, kind), name);
        }
        let text = |definition: &Value| {
            let text = serde_json::to_vec(definition).expect("serialising a JSON value cannot fail");
            text.into_boxed_slice()
        };
        let definitions = definitions
            .iter()
            .map(|(name, definition)| (name.clone(), text(definition)))
            .collect();
        Self { definitions, kinds }
    }
}

fn name_of<K: Resource + JsonSchema>(
    generator: &mut SchemaGenerator,
) -> ((&'static str, &'static str, &'static str), String) {
    generator.subschema_for::<K>();
    ((K::GROUP, K::VERSION, K::KIND), K::schema_name().into_owned())
}

/// Wraps references in `allOf` like kube-apiserver, because OpenAPI 3.0 ignores siblings of `$ref`.
/// JSONSchemaProps has a property named `$ref`; its value is a schema, not a text, and stays.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.len() > 1
                && fields.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = fields.remove("$ref")
            {
                fields.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
            fields.values_mut().for_each(wrap_references);
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds the merge strategies that the generated types lack. All other lists are atomic.
fn mark_merges(definitions: &mut BTreeMap<String, Value>) {
    let by_key = |key: &str| json!({"x-kubernetes-list-map-keys": [key], "x-kubernetes-list-type": "map"});
    let patched_by_key = |key: &str| {
        json!({"x-kubernetes-list-map-keys": [key], "x-kubernetes-list-type": "map",
            "x-kubernetes-patch-merge-key": key, "x-kubernetes-patch-strategy": "merge"})
    };
    let set = json!({"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"});
    let atomic = json!({"x-kubernetes-list-type": "atomic"});
    let lists = [
        ("meta.v1.ObjectMeta", "ownerReferences", patched_by_key("uid")),
        ("meta.v1.ObjectMeta", "finalizers", set),
        ("meta.v1.ObjectMeta", "managedFields", atomic.clone()),
        ("core.v1.NamespaceStatus", "conditions", patched_by_key("type")),
        ("core.v1.ServiceAccount", "secrets", patched_by_key("name")),
        (
            "apiextensions.v1.JSONSchemaProps",
            "x-kubernetes-validations",
            patched_by_key("rule"),
        ),
        (
            "apiextensions.v1.CustomResourceDefinitionStatus",
            "conditions",
            by_key("type"),
        ),
        (
            "admissionregistration.v1.MutatingAdmissionPolicySpec",
            "matchConditions",
            patched_by_key("name"),
        ),
        (
            "admissionregistration.v1.MutatingAdmissionPolicySpec",
            "mutations",
            atomic.clone(),
        ),
        (
            "admissionregistration.v1.MutatingAdmissionPolicySpec",
            "variables",
            atomic,
        ),
        (
            "admissionregistration.v1.ValidatingAdmissionPolicySpec",
            "matchConditions",
            patched_by_key("name"),
        ),
        (
            "admissionregistration.v1.ValidatingAdmissionPolicySpec",
            "variables",
            patched_by_key("name"),
        ),
        (
            "admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec",
            "validationActions",
            json!({"x-kubernetes-list-type": "set"}),
        ),
        (
            "admissionregistration.v1.ValidatingAdmissionPolicyStatus",
            "conditions",
            by_key("type"),
        ),
        (
            "certificates.v1.CertificateSigningRequestStatus",
            "conditions",
            by_key("type"),
        ),
    ];
    for (name, definition) in definitions {
        if ATOMIC_OBJECTS.iter().any(|object| is_named(name, object))
            && let Some(definition) = definition.as_object_mut()
        {
            definition.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
        }
        for (owner, list, mark) in lists.iter().filter(|(owner, ..)| is_named(name, owner)) {
            let property = definition.pointer_mut(&format!("/properties/{list}"));
            if let (Some(Value::Object(property)), Value::Object(mark)) = (property, mark) {
                debug_assert!(property["type"] == "array", "{owner}.{list} is not a list");
                property.extend(mark.clone());
            }
        }
    }
}

/// Objects that merge as a whole.
const ATOMIC_OBJECTS: [&str; 11] = [
    "admissionregistration.v1.MatchResources",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "admissionregistration.v1.Variable",
    "core.v1.LocalObjectReference",
    "core.v1.ObjectReference",
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

/// Compares the name of a definition with a name without the leading packages.
fn is_named(definition: &str, name: &str) -> bool {
    definition
        .strip_suffix(name)
        .is_some_and(|packages| packages.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_kinds_have_documented_schemas() {
        let config_map = definition_name("", "v1", "ConfigMap").unwrap();
        assert_eq!(config_map, "io.k8s.api.core.v1.ConfigMap");
        let schema = definition(config_map).unwrap();
        assert_eq!(
            schema["description"],
            json!("ConfigMap holds configuration data for pods to consume.")
        );
        assert_eq!(
            schema["properties"]["metadata"]["allOf"][0]["$ref"],
            json!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
        );
        assert_eq!(
            schema["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "ConfigMap"}])
        );
        assert!(definition_name("apps", "v1", "Deployment").is_none());
    }

    #[test]
    fn keeps_property_named_ref() {
        let schema =
            definition("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap();
        assert_eq!(schema["properties"]["$ref"]["type"], json!("string"));
        // This property is a list of schemas. kubectl rejects a document in which it is a
        // reference.
        assert_eq!(schema["properties"]["allOf"]["type"], json!("array"));
    }
}
