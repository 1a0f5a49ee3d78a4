//! Stored policies and bindings, and their decision on a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::matching::Match;
use crate::parameters::ParamRef;
use crate::policy::{Evaluation, Policy};
use crate::request::{Place, Request, Source};
use crate::{GROUP, text, texts};

/// Compiled policies and bindings.
#[derive(Debug, Default)]
pub struct Policies {
    policies: BTreeMap<String, Policy>,
    /// Bindings by policy, then by name.
    bindings: BTreeMap<String, BTreeMap<String, Binding>>,
}

#[derive(Debug)]
struct Binding {
    rules: Option<Match>,
    parameters: Option<ParamRef>,
    actions: Vec<String>,
}

/// Rejection of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    pub message: String,
    /// Reason of the status: `Forbidden`, `Invalid` or `RequestEntityTooLarge`.
    pub reason: String,
}

/// Decision on a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Rejection by the first policy that denies the request.
    pub denial: Option<Denial>,
    pub warnings: Vec<String>,
    /// Annotations of the audit event.
    pub annotations: BTreeMap<String, String>,
}

impl Policies {
    /// Sets or removes a policy.
    pub fn set_policy(&mut self, name: &str, policy: Option<&Value>) {
        match policy {
            Some(policy) => drop(self.policies.insert(name.to_owned(), Policy::compile(policy))),
            None => drop(self.policies.remove(name)),
        }
    }

    /// Sets or removes a binding.
    pub fn set_binding(&mut self, name: &str, binding: Option<&Value>) {
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
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// Decides on a request.
    pub fn decide(&self, request: &Request<'_>, source: &dyn Source) -> Outcome {
        let mut outcome = Outcome::default();
        // Policies cannot make themselves unchangeable.
        if request.own().group == GROUP {
            return outcome;
        }
        for (name, bindings) in &self.bindings {
            let Some(policy) = self.policies.get(name) else {
                continue;
            };
            let Some(place) = policy.rules.place(request, source) else {
                continue;
            };
            let mut run = Run {
                request,
                source,
                policy,
                name,
                place,
                outcome: &mut outcome,
            };
            run.apply(bindings);
        }
        outcome
    }
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
}

/// Application of a policy to a request.
struct Run<'a> {
    request: &'a Request<'a>,
    source: &'a dyn Source,
    policy: &'a Policy,
    name: &'a str,
    place: &'a Place,
    outcome: &'a mut Outcome,
}

impl Run<'_> {
    fn apply(&mut self, bindings: &BTreeMap<String, Binding>) {
        let kind = self.policy.param_kind.as_ref();
        if let Some(kind) = kind.filter(|kind| !self.source.has_kind(&kind.api_version, &kind.kind)) {
            let fault = format!(
                "failed to configure policy: failed to find resource referenced by paramKind: '{}'",
                kind.shown()
            );
            return self.misconfigured(None, &fault);
        }
        let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut annotated = Vec::new();
        for (name, binding) in bindings {
            let is_selected = |rules: &Match| rules.place(self.request, self.source).is_some();
            if !binding.rules.as_ref().is_none_or(is_selected) {
                continue;
            }
            let parameters = match (kind, &binding.parameters) {
                (Some(kind), Some(reference)) => reference.find(kind, |query| self.source.parameters(query)),
                (_, _) => Ok(vec![Value::Null]),
            };
            let parameters = match parameters {
                Ok(parameters) => parameters,
                Err(fault) => {
                    self.misconfigured(Some(name), &format!("failed to configure binding: {fault}"));
                    continue;
                }
            };
            for parameter in &parameters {
                let evaluation = self.evaluate(parameter);
                annotated.extend(self.enforce(name, binding, evaluation));
            }
        }
        for (key, value) in &annotated {
            let values = values.entry(key).or_default();
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
        for (key, values) in values {
            let key = format!("{}/{key}", self.name);
            self.outcome.annotations.insert(key, values.join(", "));
        }
    }

    fn evaluate(&self, parameter: &Value) -> Evaluation {
        self.policy.evaluate(|root| match root {
            "object" => self.source.object(self.place),
            "oldObject" => self.source.old_object(self.place),
            "request" => self.request.variable(self.place, self.source),
            "namespaceObject" => self.request.namespace_variable(self.source),
            "params" => parameter.clone(),
            _ => Value::Null,
        })
    }

    /// Takes the actions of a binding. Returns the audit annotations of the policy.
    fn enforce(&mut self, name: &str, binding: &Binding, evaluation: Evaluation) -> Vec<(String, String)> {
        for failure in &evaluation.failures {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.deny(Some(name), &failure.message, &failure.reason),
                    "Warn" => self.outcome.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{name}': {}",
                        self.name, failure.message
                    )),
                    _ => {
                        let value = json!([{"message": failure.message, "policy": self.name, "binding": name,
                            "expressionIndex": failure.index, "validationActions": binding.actions}]);
                        let key = "validation.policy.admission.k8s.io/validation_failure";
                        let annotations = &mut self.outcome.annotations;
                        annotations
                            .entry(key.to_owned())
                            .or_insert_with(|| value.to_string());
                    }
                }
            }
        }
        for message in &evaluation.annotation_errors {
            self.deny(Some(name), message, "");
        }
        evaluation.annotations
    }

    fn misconfigured(&mut self, binding: Option<&str>, fault: &str) {
        if self.policy.fails {
            self.deny(binding, fault, "");
        }
    }

    fn deny(&mut self, binding: Option<&str>, message: &str, reason: &str) {
        let by = binding.map(|name| format!(" with binding '{name}'"));
        let denial = || Denial {
            message: format!(
                "ValidatingAdmissionPolicy '{}'{} denied request: {message}",
                self.name,
                by.unwrap_or_default()
            ),
            reason: match reason {
                "" => "Invalid".to_owned(),
                reason => reason.to_owned(),
            },
        };
        self.outcome.denial.get_or_insert_with(denial);
    }
}
