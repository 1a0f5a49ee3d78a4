//! Admission policies and their bindings.

use serde_json::{Value, json};

use super::{CORE, Facts};
use crate::object;
use rooflet_admission_policies as admission;
use rooflet_apimachinery::schema::FieldError;

pub(crate) const POLICY_STORAGE: &str = "/admissionregistration.k8s.io/validatingadmissionpolicies/";
pub(crate) const BINDING_STORAGE: &str = "/admissionregistration.k8s.io/validatingadmissionpolicybindings/";

/// Kind of admission registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Admission {
    Policy,
    Binding,
}

const REGISTRATION: Facts = Facts {
    group: admission::GROUP,
    categories: &["api-extensions"],
    namespaced: false,
    updates_unconditionally: false,
    ..CORE
};

impl Admission {
    pub(super) const fn facts(self) -> Facts {
        match self {
            Self::Policy => Facts {
                plural: "validatingadmissionpolicies",
                singular: "validatingadmissionpolicy",
                kind: "ValidatingAdmissionPolicy",
                subresources: &["status"],
                definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
                storage: POLICY_STORAGE,
                ..REGISTRATION
            },
            Self::Binding => Facts {
                plural: "validatingadmissionpolicybindings",
                singular: "validatingadmissionpolicybinding",
                kind: "ValidatingAdmissionPolicyBinding",
                definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
                storage: BINDING_STORAGE,
                ..REGISTRATION
            },
        }
    }

    pub(super) fn default(self, object: &mut Value) {
        match self {
            Self::Policy => admission::default_policy(object),
            Self::Binding => admission::default_binding(object),
        }
    }

    pub(super) fn prepare_create(self, object: &mut Value) {
        if self == Self::Policy {
            object["status"] = json!({});
        }
        object["metadata"]["generation"] = json!(1);
    }

    pub(super) fn prepare_update(self, object: &mut Value, old: &Value, subresource: &str) {
        // A binding has no status.
        let kept = if subresource == "status" { "spec" } else { "status" };
        if let Some(map) = object.as_object_mut() {
            object::set_or_remove(map, kept, old.get(kept).cloned());
        }
        if object["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
            object["metadata"]["generation"] = json!(generation);
        }
    }

    pub(super) fn validate(self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        match self {
            // An unchanged specification stays valid.
            Self::Policy if old.is_some_and(|old| old["spec"] == object["spec"]) => Vec::new(),
            Self::Policy => admission::validate_policy(object),
            Self::Binding => admission::validate_binding(object),
        }
    }
}
