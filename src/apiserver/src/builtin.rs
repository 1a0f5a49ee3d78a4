//! Built-in kinds: names, decoding, preparation, validation and storage.
//!
//! Built-in objects are stored without `apiVersion` and `kind`, like list items. `Resource` adds
//! these members.

mod admission;
mod certificate_signing_request;
mod config_map;
mod event;
mod lease;
mod namespace;
pub(crate) mod review;
mod role;
mod role_binding;
mod secret;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;

use crate::authentication::User;
use crate::crd;
use crate::object;
use crate::object::metadata::FinalizerRule;
use crate::registry::resource::Subresource;
use rooflet_admission_policies::Kind as Admission;
use rooflet_apimachinery::fields::{FieldSet, TypeSchema};
use rooflet_apimachinery::typed::Types;
use rooflet_apimachinery::verb::Verb;
use rooflet_schema::FieldError;
use rooflet_schema::metadata::NameRule;

use review::Review;
use role_binding::Scope;

pub(crate) use admission::ADMISSION_STORAGE;
pub(crate) use namespace::{initial_namespaces, is_terminating, mark_terminating};

/// Maximum size of the data of a ConfigMap or Secret.
const DATA_MAX_BYTES: usize = 1 << 20;

/// Built-in kind in a group version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BuiltIn {
    Namespace,
    ConfigMap,
    Secret,
    ServiceAccount,
    /// `v1` Event, the form in which events are stored.
    Event,
    /// `events.k8s.io/v1` Event: the same objects with different field names.
    EventsEvent,
    Lease,
    CustomResourceDefinition,
    CertificateSigningRequest,
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
    Admission(Admission),
    /// Kind that is answered, but not stored.
    Review(Review),
}

/// Properties of a built-in kind for discovery and storage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub subresources: &'static [&'static str],
    /// Name of the definition in the upstream OpenAPI document.
    pub definition: &'static str,
    /// Key prefix of the objects in the store.
    pub storage: &'static str,
    /// True if a PUT of a missing object creates it.
    pub creates_on_update: bool,
    /// True if a PUT without resourceVersion overwrites the object.
    pub updates_unconditionally: bool,
}

pub(crate) const CONFIG_MAP_STORAGE: &str = "/core/configmaps/";
pub(crate) const CRD_STORAGE: &str = "/apiextensions.k8s.io/customresourcedefinitions/";
pub(crate) const CSR_STORAGE: &str = "/certificates.k8s.io/certificatesigningrequests/";
/// Prefix of the keys of Secrets in the store.
pub const SECRET_STORAGE: &str = "/core/secrets/";
pub(crate) const NAMESPACE_STORAGE: &str = "/core/namespaces/";
pub(crate) const SERVICE_ACCOUNT_STORAGE: &str = "/core/serviceaccounts/";
pub(crate) const ROLE_STORAGE: &str = "/rbac.authorization.k8s.io/roles/";
pub(crate) const CLUSTER_ROLE_STORAGE: &str = "/rbac.authorization.k8s.io/clusterroles/";
pub(crate) const ROLE_BINDING_STORAGE: &str = "/rbac.authorization.k8s.io/rolebindings/";
pub(crate) const CLUSTER_ROLE_BINDING_STORAGE: &str = "/rbac.authorization.k8s.io/clusterrolebindings/";

const CORE: Facts = Facts {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    subresources: &[],
    definition: "",
    storage: "",
    creates_on_update: false,
    updates_unconditionally: true,
};

const EVENT: Facts = Facts {
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    definition: "io.k8s.api.core.v1.Event",
    storage: "/core/events/",
    creates_on_update: true,
    ..CORE
};

const RBAC: Facts = Facts {
    group: "rbac.authorization.k8s.io",
    creates_on_update: true,
    ..CORE
};

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let kinds = BuiltIn::ALL.into_iter().map(|kind| kind.facts().definition);
    Types::of(kinds.chain([
        "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        Review::TokenRequest.facts().definition,
    ]))
});

/// Returns the upstream types of all built-in kinds.
pub(crate) fn types() -> &'static Types {
    &TYPES
}

static TYPE_SCHEMAS: LazyLock<BTreeMap<&str, TypeSchema>> = LazyLock::new(|| {
    let definitions = BuiltIn::ALL.into_iter().map(|kind| kind.facts().definition);
    definitions
        .map(|definition| (definition, TypeSchema::of_definition(definition)))
        .collect()
});

/// Returns true if a built-in kind has this version and kind.
pub(crate) fn is_kind(api_version: &str, kind: &str) -> bool {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    BuiltIn::of_group(group).any(|facts| facts.version == version && facts.kind == kind)
}

/// Returns the Go package of the types of a built-in group, which some errors name.
pub(crate) fn go_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

impl BuiltIn {
    /// All kinds in discovery order.
    pub(crate) const ALL: [Self; 23] = [
        Self::ConfigMap,
        Self::Event,
        Self::Namespace,
        Self::Secret,
        Self::ServiceAccount,
        Self::EventsEvent,
        Self::Review(Review::SelfSubject),
        Self::Review(Review::Token),
        Self::Review(Review::LocalSubjectAccess),
        Self::Review(Review::SelfSubjectAccess),
        Self::Review(Review::SelfSubjectRules),
        Self::Review(Review::SubjectAccess),
        Self::CertificateSigningRequest,
        Self::ClusterRoleBinding,
        Self::ClusterRole,
        Self::RoleBinding,
        Self::Role,
        Self::Admission(Admission::MutatingPolicy),
        Self::Admission(Admission::MutatingBinding),
        Self::Admission(Admission::ValidatingPolicy),
        Self::Admission(Admission::ValidatingBinding),
        Self::CustomResourceDefinition,
        Self::Lease,
    ];

    /// Returns the kinds of a group.
    pub(crate) fn of_group(group: &str) -> impl Iterator<Item = Facts> {
        Self::ALL
            .into_iter()
            .map(Self::facts)
            .filter(move |facts| facts.group == group)
    }

    pub(crate) const fn facts(self) -> Facts {
        match self {
            Self::Namespace => Facts {
                plural: "namespaces",
                singular: "namespace",
                kind: "Namespace",
                short_names: &["ns"],
                namespaced: false,
                subresources: &["finalize", "status"],
                definition: "io.k8s.api.core.v1.Namespace",
                storage: NAMESPACE_STORAGE,
                ..CORE
            },
            Self::ConfigMap => Facts {
                plural: "configmaps",
                singular: "configmap",
                kind: "ConfigMap",
                short_names: &["cm"],
                definition: "io.k8s.api.core.v1.ConfigMap",
                storage: CONFIG_MAP_STORAGE,
                ..CORE
            },
            Self::Secret => Facts {
                plural: "secrets",
                singular: "secret",
                kind: "Secret",
                definition: "io.k8s.api.core.v1.Secret",
                storage: SECRET_STORAGE,
                ..CORE
            },
            Self::ServiceAccount => Facts {
                plural: "serviceaccounts",
                singular: "serviceaccount",
                kind: "ServiceAccount",
                short_names: &["sa"],
                subresources: &["token"],
                definition: "io.k8s.api.core.v1.ServiceAccount",
                storage: SERVICE_ACCOUNT_STORAGE,
                ..CORE
            },
            Self::Event => EVENT,
            Self::EventsEvent => Facts {
                group: "events.k8s.io",
                definition: "io.k8s.api.events.v1.Event",
                ..EVENT
            },
            Self::Lease => Facts {
                group: "coordination.k8s.io",
                plural: "leases",
                singular: "lease",
                kind: "Lease",
                definition: "io.k8s.api.coordination.v1.Lease",
                storage: "/coordination.k8s.io/leases/",
                creates_on_update: true,
                updates_unconditionally: false,
                ..CORE
            },
            Self::CertificateSigningRequest => Facts {
                group: "certificates.k8s.io",
                plural: "certificatesigningrequests",
                singular: "certificatesigningrequest",
                kind: "CertificateSigningRequest",
                short_names: &["csr"],
                namespaced: false,
                subresources: &["approval", "status"],
                definition: "io.k8s.api.certificates.v1.CertificateSigningRequest",
                storage: CSR_STORAGE,
                ..CORE
            },
            Self::CustomResourceDefinition => Facts {
                group: "apiextensions.k8s.io",
                plural: "customresourcedefinitions",
                singular: "customresourcedefinition",
                kind: "CustomResourceDefinition",
                short_names: &["crd", "crds"],
                categories: &["api-extensions"],
                namespaced: false,
                subresources: &["status"],
                definition: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
                storage: CRD_STORAGE,
                updates_unconditionally: false,
                ..CORE
            },
            Self::Role => Facts {
                plural: "roles",
                singular: "role",
                kind: "Role",
                definition: "io.k8s.api.rbac.v1.Role",
                storage: ROLE_STORAGE,
                ..RBAC
            },
            Self::ClusterRole => Facts {
                plural: "clusterroles",
                singular: "clusterrole",
                kind: "ClusterRole",
                namespaced: false,
                definition: "io.k8s.api.rbac.v1.ClusterRole",
                storage: CLUSTER_ROLE_STORAGE,
                ..RBAC
            },
            Self::RoleBinding => Facts {
                plural: "rolebindings",
                singular: "rolebinding",
                kind: "RoleBinding",
                definition: "io.k8s.api.rbac.v1.RoleBinding",
                storage: ROLE_BINDING_STORAGE,
                ..RBAC
            },
            Self::ClusterRoleBinding => Facts {
                plural: "clusterrolebindings",
                singular: "clusterrolebinding",
                kind: "ClusterRoleBinding",
                namespaced: false,
                definition: "io.k8s.api.rbac.v1.ClusterRoleBinding",
                storage: CLUSTER_ROLE_BINDING_STORAGE,
                ..RBAC
            },
            Self::Admission(kind) => admission::facts(kind),
            Self::Review(review) => review.facts(),
        }
    }

    pub(crate) fn name_rule(self) -> NameRule {
        match self {
            Self::Namespace => NameRule::Label,
            Self::CertificateSigningRequest
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding => NameRule::PathSegment,
            Self::ConfigMap
            | Self::Secret
            | Self::ServiceAccount
            | Self::Event
            | Self::EventsEvent
            | Self::Lease
            | Self::Admission(_)
            | Self::Review(_)
            | Self::CustomResourceDefinition => NameRule::Subdomain,
        }
    }

    pub(crate) fn finalizer_rule(self) -> FinalizerRule {
        match self {
            Self::Namespace | Self::ConfigMap | Self::Secret | Self::ServiceAccount => {
                FinalizerRule::Qualified
            }
            Self::Event
            | Self::EventsEvent
            | Self::Lease
            | Self::CertificateSigningRequest
            | Self::CustomResourceDefinition
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding
            | Self::Admission(_)
            | Self::Review(_) => FinalizerRule::Any,
        }
    }

    /// Returns true if a deletion may wait for, or orphan, dependents.
    pub(crate) fn is_collected(self) -> bool {
        match self {
            Self::Event | Self::EventsEvent | Self::Review(_) => false,
            Self::Namespace
            | Self::ConfigMap
            | Self::Secret
            | Self::ServiceAccount
            | Self::Lease
            | Self::CertificateSigningRequest
            | Self::CustomResourceDefinition
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding
            | Self::Admission(_) => true,
        }
    }

    /// Returns true if objects of the kind are stored.
    pub(crate) fn is_stored(self) -> bool {
        !matches!(self, Self::Review(_))
    }

    /// Returns the verbs in discovery order.
    pub(crate) fn verbs(self) -> &'static [Verb] {
        match self {
            Self::Review(_) => &[Verb::Create],
            Self::Namespace => &[
                Verb::Create,
                Verb::Delete,
                Verb::Get,
                Verb::List,
                Verb::Patch,
                Verb::Update,
                Verb::Watch,
            ],
            Self::ConfigMap
            | Self::Secret
            | Self::ServiceAccount
            | Self::Event
            | Self::EventsEvent
            | Self::Lease
            | Self::CertificateSigningRequest
            | Self::CustomResourceDefinition
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding
            | Self::Admission(_) => &[
                Verb::Create,
                Verb::Delete,
                Verb::DeleteCollection,
                Verb::Get,
                Verb::List,
                Verb::Patch,
                Verb::Update,
                Verb::Watch,
            ],
        }
    }

    /// Returns the types of the fields of an object in this group version.
    pub(crate) fn type_schema(self) -> &'static TypeSchema {
        &TYPE_SCHEMAS[self.facts().definition]
    }

    /// Returns the fields that a request for this subresource, or the object, cannot change.
    pub(crate) fn ignored_fields(self, subresource: Option<Subresource>) -> FieldSet {
        let ignored: &[&[&str]] = match (self, subresource) {
            (Self::Namespace, None | Some(Subresource::Finalize)) => &[&["status"]],
            (
                Self::Namespace | Self::CustomResourceDefinition | Self::Admission(_),
                Some(Subresource::Status),
            ) => &[&["spec"]],
            (Self::CustomResourceDefinition | Self::Admission(Admission::ValidatingPolicy), None) => {
                &[&["status"]]
            }
            (Self::CertificateSigningRequest, None) => &[&["spec"], &["status"]],
            (Self::CertificateSigningRequest, Some(Subresource::Status)) => {
                &[&["spec"], &["status", "conditions"]]
            }
            (Self::CertificateSigningRequest, Some(Subresource::Approval)) => {
                &[&["spec"], &["status", "certificate"]]
            }
            _ => &[],
        };
        FieldSet::of_fields(ignored)
    }

    /// Converts an object from this group version to the stored form.
    pub(crate) fn stored_form(self, object: Value) -> Value {
        if self.is_stored_form() {
            object
        } else {
            event::from_events_v1(object)
        }
    }

    /// Converts an object from the stored form to this group version.
    pub(crate) fn served_form(self, object: Value) -> Value {
        if self.is_stored_form() {
            object
        } else {
            event::to_events_v1(object)
        }
    }

    /// Returns true if the stored form equals the form of this group version.
    pub(crate) fn is_stored_form(self) -> bool {
        self != Self::EventsEvent
    }

    /// Applies the defaults of the kind to an object in stored form. Called for every decoded body.
    pub(crate) fn default(self, object: &mut Value) {
        match self {
            Self::Secret => secret::default(object),
            Self::Admission(kind) => kind.default(object),
            Self::Review(review) => review.default(object),
            Self::Event | Self::EventsEvent => event::default(object),
            Self::Namespace => namespace::default(object),
            Self::CustomResourceDefinition => crd::default(object),
            Self::RoleBinding | Self::ClusterRoleBinding => role_binding::default(object),
            Self::ConfigMap
            | Self::ServiceAccount
            | Self::Lease
            | Self::CertificateSigningRequest
            | Self::Role
            | Self::ClusterRole => {}
        }
    }

    /// Prepares a new object. `by` is its creator, or `None` for the server itself.
    pub(crate) fn prepare_create(self, object: &mut Value, by: Option<&User>) {
        match self {
            Self::CertificateSigningRequest => certificate_signing_request::prepare_create(object, by),
            Self::Namespace => namespace::prepare_create(object),
            Self::Admission(kind) => admission::prepare_create(kind, object),
            Self::CustomResourceDefinition => crd::prepare_create(object),
            Self::ConfigMap
            | Self::Secret
            | Self::ServiceAccount
            | Self::Event
            | Self::EventsEvent
            | Self::Lease
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding
            | Self::Review(_) => {}
        }
    }

    /// Prepares an update. `subresource` is one of [`Facts::subresources`], or empty.
    pub(crate) fn prepare_update(self, object: &mut Value, old: &Value, subresource: &str, now: Timestamp) {
        match self {
            Self::CertificateSigningRequest => {
                certificate_signing_request::prepare_update(object, old, subresource, now);
            }
            Self::Namespace => namespace::prepare_update(object, old, subresource),
            Self::Admission(_) => admission::prepare_update(object, old, subresource),
            Self::CustomResourceDefinition => crd::prepare_update(object, old, subresource),
            Self::ConfigMap
            | Self::Secret
            | Self::ServiceAccount
            | Self::Event
            | Self::EventsEvent
            | Self::Lease
            | Self::Role
            | Self::ClusterRole
            | Self::RoleBinding
            | Self::ClusterRoleBinding
            | Self::Review(_) => {}
        }
    }

    /// Validates all fields except metadata.
    pub(crate) fn validate(self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        match self {
            Self::Namespace | Self::ServiceAccount => Vec::new(),
            Self::ConfigMap => config_map::validate(object, old),
            Self::Secret => secret::validate(object, old),
            Self::Event => event::validate(object, old, event::Form::Core),
            Self::EventsEvent => event::validate(object, old, event::Form::Events),
            Self::Lease => lease::validate(object),
            Self::CertificateSigningRequest => certificate_signing_request::validate(object, old),
            Self::CustomResourceDefinition => crd::validate(object, old),
            Self::Role => role::validate(object),
            Self::ClusterRole => role::validate_cluster_role(object),
            Self::RoleBinding => role_binding::validate(object, old, Scope::Namespace),
            Self::ClusterRoleBinding => role_binding::validate(object, old, Scope::Cluster),
            Self::Admission(kind) => admission::validate(kind, object, old),
            Self::Review(review) => review.validate(object),
        }
    }

    pub(crate) fn warnings(self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if self == Self::CustomResourceDefinition {
            crd::warnings(object, old)
        } else {
            Vec::new()
        }
    }

    /// Returns true if an object without metadata finalizers can be removed during deletion.
    pub(crate) fn can_be_removed(self, object: &Value) -> bool {
        self != Self::Namespace || namespace::spec_finalizers(object).next().is_none()
    }

    pub(crate) fn has_own_selectable_fields(self) -> bool {
        matches!(
            self,
            Self::Namespace
                | Self::Secret
                | Self::Event
                | Self::EventsEvent
                | Self::CertificateSigningRequest
        )
    }

    /// Returns the value of a selectable field, besides name and namespace.
    pub(crate) fn selectable_field<'a>(
        self,
        object: &'a Value,
        field: &str,
    ) -> Option<std::borrow::Cow<'a, str>> {
        use std::borrow::Cow;
        let at = |path: &[&str]| Some(Cow::Borrowed(object::text(object, path)));
        match (self, field) {
            (Self::Namespace, "status.phase") => at(&["status", "phase"]),
            (Self::Secret, "type") => at(&["type"]),
            (Self::CertificateSigningRequest, "spec.signerName") => at(&["spec", "signerName"]),
            (Self::Event, field) => event::selectable_field(event::Form::Core, object, field),
            (Self::EventsEvent, field) => event::selectable_field(event::Form::Events, object, field),
            _ => None,
        }
    }
}

/// Checks the keys of the data of a ConfigMap or Secret.
fn check_data(data: &Value, field: &str, errors: &mut Vec<FieldError>) {
    for key in data.as_object().into_iter().flatten().map(|(key, _)| key) {
        for message in config_key(key) {
            errors.push(FieldError::invalid_text(format!("{field}[{key}]"), key, &message));
        }
    }
}

fn config_key(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > 253 {
        errors.push("must be no more than 253 characters".to_owned());
    }
    if key.is_empty()
        || !key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        errors.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match key {
        "." => errors.push("must not be '.'".to_owned()),
        ".." => errors.push("must not be '..'".to_owned()),
        key if key.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// Returns the number of bytes that a base64 text encodes.
fn decoded_bytes(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// Returns errors for changed fields of an immutable object.
fn check_immutable(object: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    if old["immutable"].as_bool() != Some(true) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    let detail = "field is immutable when `immutable` is set";
    if object["immutable"].as_bool() != Some(true) {
        errors.push(FieldError::forbidden("immutable", detail));
    }
    for field in fields.iter().filter(|field| object[**field] != old[**field]) {
        errors.push(FieldError::forbidden(*field, detail));
    }
    errors
}
