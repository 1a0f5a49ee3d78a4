//! Bindings, and the storage of policies with their bindings.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::matching::Match;
use crate::parameters::{ParamKind, ParamRef};
use crate::request::{Request, Source};
use crate::{text, texts};

/// Policies of a kind and their bindings.
#[derive(Debug)]
pub(crate) struct Bound<P> {
    policies: BTreeMap<String, P>,
    /// Bindings by policy, then by name.
    bindings: BTreeMap<String, BTreeMap<String, Binding>>,
}

impl<P> Default for Bound<P> {
    fn default() -> Self {
        Self {
            policies: BTreeMap::new(),
            bindings: BTreeMap::new(),
        }
    }
}

impl<P> Bound<P> {
    /// Sets or removes a policy.
    pub(crate) fn set_policy(&mut self, name: &str, policy: Option<P>) {
        match policy {
            Some(policy) => drop(self.policies.insert(name.to_owned(), policy)),
            None => drop(self.policies.remove(name)),
        }
    }

    /// Sets or removes a binding.
    pub(crate) fn set_binding(&mut self, name: &str, binding: Option<&Value>) {
        for bindings in self.bindings.values_mut() {
            bindings.remove(name);
        }
        if let Some(binding) = binding {
            let spec = &binding["spec"];
            let bindings = self.bindings.entry(text(spec, "policyName").to_owned());
            bindings.or_default().insert(name.to_owned(), Binding::of(spec));
        }
        self.bindings.retain(|_, bindings| !bindings.is_empty());
    }

    /// Returns true if no policy is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// Returns the bound policies, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &P, &BTreeMap<String, Binding>)> {
        self.bindings.iter().filter_map(|(name, bindings)| {
            let policy = self.policies.get(name)?;
            Some((name.as_str(), policy, bindings))
        })
    }
}

#[derive(Debug)]
pub(crate) struct Binding {
    rules: Option<Match>,
    parameters: Option<ParamRef>,
    /// Actions of a ValidatingAdmissionPolicyBinding.
    pub(crate) actions: Vec<String>,
}

impl Binding {
    fn of(spec: &Value) -> Self {
        Self {
            rules: spec
                .get("matchResources")
                .filter(|found| found.is_object())
                .map(Match::of),
            parameters: ParamRef::of(&spec["paramRef"]),
            actions: texts(spec, "validationActions")
                .into_iter()
                .map(str::to_owned)
                .collect(),
        }
    }

    pub(crate) fn selects(&self, request: &Request<'_>, source: &dyn Source) -> bool {
        let is_selected = |rules: &Match| rules.place(request, source).is_some();
        self.rules.as_ref().is_none_or(is_selected)
    }

    /// Returns the parameters of a policy with this kind of parameters: null if it has none. The error
    /// is the fault of the binding's configuration.
    pub(crate) fn parameters(
        &self,
        kind: Option<&ParamKind>,
        source: &dyn Source,
    ) -> Result<Vec<Value>, String> {
        match (kind, &self.parameters) {
            (Some(kind), Some(reference)) => reference
                .find(kind, |query| source.parameters(query))
                .map_err(|fault| format!("failed to configure binding: {fault}")),
            (_, _) => Ok(vec![Value::Null]),
        }
    }
}

/// Returns the fault of a policy whose kind of parameters does not exist.
pub(crate) fn missing_kind(kind: Option<&ParamKind>, source: &dyn Source) -> Option<String> {
    let kind = kind.filter(|kind| !source.has_kind(&kind.api_version, &kind.kind))?;
    Some(format!(
        "failed to configure policy: failed to find resource referenced by paramKind: '{}'",
        kind.shown()
    ))
}
