//! Parameters of policies.

use serde_json::Value;

use crate::text;
use rooflet_apimachinery::selector::LabelSelector;

/// Kind of the parameters of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamKind {
    pub api_version: String,
    pub kind: String,
}

impl ParamKind {
    pub(crate) fn of(kind: &Value) -> Option<Self> {
        kind.is_object().then(|| Self {
            api_version: text(kind, "apiVersion").to_owned(),
            kind: text(kind, "kind").to_owned(),
        })
    }

    /// Returns the form of kube-apiserver in messages.
    pub(crate) fn shown(&self) -> String {
        let (group, version) = self.group_version();
        format!("{group}/{version}, Kind={}", self.kind)
    }

    pub(crate) fn group_version(&self) -> (&str, &str) {
        let parts = self.api_version.split_once('/');
        parts.unwrap_or(("", &self.api_version))
    }
}

/// `paramRef` of a binding.
#[derive(Debug)]
pub(crate) struct ParamRef {
    name: String,
    namespace: String,
    selector: LabelSelector,
    denies_missing: bool,
}

/// Search for the parameters of a binding.
#[derive(Debug)]
pub struct ParamQuery<'a> {
    pub kind: &'a ParamKind,
    /// Name of the parameter. If empty, the selector decides.
    pub name: &'a str,
    pub selector: &'a LabelSelector,
    /// Namespace that the binding names, or empty.
    pub namespace: &'a str,
}

impl ParamRef {
    pub(crate) fn of(reference: &Value) -> Option<Self> {
        reference.is_object().then(|| Self {
            name: text(reference, "name").to_owned(),
            namespace: text(reference, "namespace").to_owned(),
            // Stored selectors are valid.
            selector: reference
                .get("selector")
                .and_then(|selector| LabelSelector::of_object(selector).ok())
                .unwrap_or_default(),
            denies_missing: text(reference, "parameterNotFoundAction") == "Deny",
        })
    }

    /// Finds the parameters. The error is the fault of the binding's configuration.
    pub(crate) fn find(
        &self,
        kind: &ParamKind,
        find: impl Fn(&ParamQuery<'_>) -> Result<Vec<Value>, String>,
    ) -> Result<Vec<Value>, String> {
        let found = find(&ParamQuery {
            kind,
            name: &self.name,
            selector: &self.selector,
            namespace: &self.namespace,
        })?;
        if found.is_empty() && self.denies_missing {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(found)
    }
}
