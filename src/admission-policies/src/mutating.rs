//! Application of mutating policies to the new object of a request.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::binding::{Bound, missing_kind};
use crate::mutation::{MutatingPolicy, PatchError};
use crate::request::{Inputs, Place, Request, Source, Subject};
use crate::text;

/// Failure of mutating policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MutateError {
    /// Errors of policies that do not ignore errors. Contains at least one message.
    Denied {
        messages: Vec<String>,
        /// True if the first message is an error of an evaluation, false for an error of a
        /// configuration.
        is_invalid: bool,
    },
    /// The patched object is no object of its kind.
    Internal(String),
}

/// Policy with a binding and a parameter.
struct Invocation<'a> {
    policy: &'a MutatingPolicy,
    /// Names of policy and binding, namespace and name of the parameter.
    key: [&'a str; 2],
    parameter: Value,
    place: &'a Place,
}

impl Invocation<'_> {
    fn identity(&self) -> [String; 4] {
        let metadata = &self.parameter["metadata"];
        let [policy, binding] = self.key;
        [
            policy,
            binding,
            text(metadata, "namespace"),
            text(metadata, "name"),
        ]
        .map(str::to_owned)
    }
}

/// Errors of a pass, in the order of their occurrence.
#[derive(Default)]
struct Errors(Vec<(String, bool)>);

impl Errors {
    fn add(&mut self, policy: &MutatingPolicy, message: String, is_invalid: bool) {
        if policy.fails {
            self.0.push((message, is_invalid));
        }
    }

    fn check(self) -> Result<(), MutateError> {
        let Some((_, is_invalid)) = self.0.first() else {
            return Ok(());
        };
        Err(MutateError::Denied {
            is_invalid: *is_invalid,
            messages: self.0.into_iter().map(|(message, _)| message).collect(),
        })
    }
}

/// Applies all policies. If one of them patched the object, applies those again that request it.
/// Returns true if the object was patched.
pub(crate) fn mutate(
    policies: &Bound<MutatingPolicy>,
    request: &Request<'_>,
    subject: &mut dyn Subject,
) -> Result<bool, MutateError> {
    let invoked = pass(policies, request, subject, None)?;
    let Some(reinvocable) = invoked else {
        return Ok(false);
    };
    pass(policies, request, subject, Some(&reinvocable))?;
    Ok(true)
}

/// Applies the policies, or only those of `again`. Returns the identities of the policies that may be
/// invoked again, or `None` if no policy patched the object.
fn pass(
    policies: &Bound<MutatingPolicy>,
    request: &Request<'_>,
    subject: &mut dyn Subject,
    again: Option<&BTreeSet<[String; 4]>>,
) -> Result<Option<BTreeSet<[String; 4]>>, MutateError> {
    let mut errors = Errors::default();
    let mut reinvocable = BTreeSet::new();
    let mut is_patched = false;
    for invocation in invocations(policies, request, &*subject, &mut errors) {
        let Invocation {
            policy,
            key: [name, binding],
            parameter,
            place,
        } = &invocation;
        let denied =
            |fault: &str| format!("policy '{name}' with binding '{binding}' denied request: {fault}");
        let matches = {
            policy.matches(&Inputs {
                request,
                place,
                parameter,
                source: &*subject,
            })
        };
        match matches {
            Ok(true) => {}
            Ok(false) => continue,
            Err(fault) => {
                errors.add(policy, denied(&fault), true);
                continue;
            }
        }
        if again.is_some_and(|again| !again.contains(&invocation.identity())) {
            continue;
        }
        for mutation in &policy.mutations {
            let patched = {
                let inputs = Inputs {
                    request,
                    place,
                    parameter,
                    source: &*subject,
                };
                policy.patched(mutation, &*subject, &inputs)
            };
            let replaced = patched.and_then(|object| {
                let replaced = subject.replace(place, object);
                replaced.map_err(|fault| mutation.kind_fault(fault))
            });
            match replaced {
                Ok(()) => is_patched = true,
                Err(PatchError::Policy(fault)) => errors.add(policy, denied(&fault), true),
                Err(PatchError::Internal(fault)) => return Err(MutateError::Internal(fault)),
            }
        }
        if policy.reinvokes {
            reinvocable.insert(invocation.identity());
        }
    }
    errors.check()?;
    Ok(is_patched.then_some(reinvocable))
}

/// Returns the invocations that the rules of policies and bindings select.
fn invocations<'a>(
    policies: &'a Bound<MutatingPolicy>,
    request: &'a Request<'_>,
    source: &dyn Source,
    errors: &mut Errors,
) -> Vec<Invocation<'a>> {
    let mut found = Vec::new();
    for (name, policy, bindings) in policies.iter() {
        let Some(place) = policy.rules.place(request, source) else {
            continue;
        };
        let kind = policy.param_kind.as_ref();
        if let Some(fault) = missing_kind(kind, source) {
            errors.add(policy, format!("policy {name:?} denied request: {fault}"), false);
            continue;
        }
        for (binding_name, binding) in bindings {
            if !binding.selects(request, source) {
                continue;
            }
            let parameters = match binding.parameters(kind, source) {
                Ok(parameters) => parameters,
                Err(fault) => {
                    let message =
                        format!("policy '{name}' with binding '{binding_name}' denied request: {fault}");
                    errors.add(policy, message, false);
                    continue;
                }
            };
            found.extend(parameters.into_iter().map(|parameter| Invocation {
                policy,
                key: [name, binding_name],
                parameter,
                place,
            }));
        }
    }
    found
}

#[cfg(test)]
mod tests;
