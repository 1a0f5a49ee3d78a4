//! Admission policies and their bindings.

use serde_json::{Value, json};

use super::{CORE, Facts};
use crate::object;
use rooflet_admission_policies::{GROUP, Kind};
use rooflet_schema::FieldError;

/// Key prefixes of policies and bindings in the store.
pub(crate) const ADMISSION_STORAGE: [(Kind, &str); 4] = [
    (
        Kind::MutatingPolicy,
        "/admissionregistration.k8s.io/mutatingadmissionpolicies/",
    ),
    (
        Kind::MutatingBinding,
        "/admissionregistration.k8s.io/mutatingadmissionpolicybindings/",
    ),
    (
        Kind::ValidatingPolicy,
        "/admissionregistration.k8s.io/validatingadmissionpolicies/",
    ),
    (
        Kind::ValidatingBinding,
        "/admissionregistration.k8s.io/validatingadmissionpolicybindings/",
    ),
];

const REGISTRATION: Facts = Facts {
    group: GROUP,
    categories: &["api-extensions"],
    namespaced: false,
    updates_unconditionally: false,
    ..CORE
};

pub(super) const fn facts(kind: Kind) -> Facts {
    match kind {
        Kind::MutatingPolicy => Facts {
            plural: "mutatingadmissionpolicies",
            singular: "mutatingadmissionpolicy",
            kind: "MutatingAdmissionPolicy",
            definition: "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicy",
            storage: ADMISSION_STORAGE[0].1,
            ..REGISTRATION
        },
        Kind::MutatingBinding => Facts {
            plural: "mutatingadmissionpolicybindings",
            singular: "mutatingadmissionpolicybinding",
            kind: "MutatingAdmissionPolicyBinding",
            definition: "io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicyBinding",
            storage: ADMISSION_STORAGE[1].1,
            ..REGISTRATION
        },
        Kind::ValidatingPolicy => Facts {
            plural: "validatingadmissionpolicies",
            singular: "validatingadmissionpolicy",
            kind: "ValidatingAdmissionPolicy",
            subresources: &["status"],
            definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
            storage: ADMISSION_STORAGE[2].1,
            ..REGISTRATION
        },
        Kind::ValidatingBinding => Facts {
            plural: "validatingadmissionpolicybindings",
            singular: "validatingadmissionpolicybinding",
            kind: "ValidatingAdmissionPolicyBinding",
            definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
            storage: ADMISSION_STORAGE[3].1,
            ..REGISTRATION
        },
    }
}

pub(super) fn prepare_create(kind: Kind, object: &mut Value) {
    if kind == Kind::ValidatingPolicy {
        object["status"] = json!({});
    }
    object["metadata"]["generation"] = json!(1);
}

pub(super) fn prepare_update(object: &mut Value, old: &Value, subresource: &str) {
    // Only validating policies have a status.
    let kept = if subresource == "status" { "spec" } else { "status" };
    if let Some(map) = object.as_object_mut() {
        object::set_or_remove(map, kept, old.get(kept).cloned());
    }
    if object["spec"] != old["spec"] {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        object["metadata"]["generation"] = json!(generation);
    }
}

pub(super) fn validate(kind: Kind, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    // An unchanged specification stays valid.
    let is_unchanged = old.is_some_and(|old| old["spec"] == object["spec"]);
    if kind == Kind::ValidatingPolicy && is_unchanged {
        return Vec::new();
    }
    kind.validate(object)
}
