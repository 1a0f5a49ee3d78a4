//! Decision of validating policies on a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::binding::{Binding, Bound, missing_kind};
use crate::policy::{Evaluation, Policy};
use crate::request::{Inputs, Place, Request, Source};

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

/// Decides on a request.
pub(crate) fn decide(policies: &Bound<Policy>, request: &Request<'_>, source: &dyn Source) -> Outcome {
    let mut outcome = Outcome::default();
    for (name, policy, bindings) in policies.iter() {
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
        if let Some(fault) = missing_kind(kind, self.source) {
            return self.misconfigured(None, &fault);
        }
        let mut values: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut annotated = Vec::new();
        for (name, binding) in bindings {
            if !binding.selects(self.request, self.source) {
                continue;
            }
            let parameters = match binding.parameters(kind, self.source) {
                Ok(parameters) => parameters,
                Err(fault) => {
                    self.misconfigured(Some(name), &fault);
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
        self.policy.evaluate(&Inputs {
            request: self.request,
            place: self.place,
            parameter,
            source: self.source,
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
