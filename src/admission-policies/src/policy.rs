//! Compiled policy: match conditions, variables, validations and audit annotations.

use std::cell::LazyCell;

use kube_cel::cel::Value as Cel;
use serde_json::Value;

use crate::condition::{Composed, Expression, Scope};
use crate::matching::Match;
use crate::parameters::ParamKind;
use crate::request::Inputs;
use crate::{items, text};
use rooflet_schema::cel::dynamic::{self, Phase};

/// Maximum length of the text that a `messageExpression` returns.
const MESSAGE_BYTES_MAX: usize = 5 << 10;
/// Maximum length of the value of an audit annotation.
const ANNOTATION_BYTES_MAX: usize = 10 << 10;

/// Compiled ValidatingAdmissionPolicy.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) rules: Match,
    pub(crate) param_kind: Option<ParamKind>,
    /// False if the policy ignores errors.
    pub(crate) fails: bool,
    conditions: Vec<Expression>,
    variables: Vec<(String, Expression)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
}

#[derive(Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

/// Failed validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Position of the validation in the policy.
    pub(crate) index: usize,
    pub(crate) message: String,
    /// Reason of the status, or empty.
    pub(crate) reason: String,
}

/// Result of an evaluation.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    pub(crate) failures: Vec<Failure>,
    pub(crate) annotations: Vec<(String, String)>,
    /// Errors of audit annotations, which deny the request.
    pub(crate) annotation_errors: Vec<String>,
}

impl Policy {
    pub(crate) fn compile(policy: &Value) -> Self {
        let spec = &policy["spec"];
        Self {
            rules: Match::of(&spec["matchConstraints"]),
            param_kind: ParamKind::of(&spec["paramKind"]),
            fails: text(spec, "failurePolicy") != "Ignore",
            conditions: Expression::list(spec, "matchConditions"),
            variables: Expression::named(spec, "variables", "name", "expression"),
            validations: items(spec, "validations").iter().map(Validation::of).collect(),
            annotations: Expression::named(spec, "auditAnnotations", "key", "valueExpression"),
        }
    }

    fn variables(&self) -> impl Iterator<Item = &Expression> + Clone {
        self.variables.iter().map(|(_, expression)| expression)
    }

    pub(crate) fn evaluate(&self, inputs: &Inputs<'_>) -> Evaluation {
        match Scope::meets(&self.conditions, inputs) {
            Ok(true) => {}
            Ok(false) => return Evaluation::default(),
            Err(message) => return self.failed(0, message),
        }
        let composed = Composed::new(&self.variables);
        let validations = self.validations.iter().map(|one| &one.expression);
        let scope = Scope::with_authorizer(self.variables().chain(validations), inputs).with(&composed);
        // Messages cannot depend on permissions, not even by a composed variable.
        let composed_for_messages = Composed::new(&self.variables);
        let messages = self
            .validations
            .iter()
            .filter_map(|one| one.message_expression.as_ref());
        let for_messages = || Scope::new(self.variables().chain(messages.clone()), inputs);
        let for_messages = LazyCell::new(|| for_messages().with(&composed_for_messages));
        dynamic::start(Phase::Expressions);
        let mut result = Evaluation::default();
        for (index, validation) in self.validations.iter().enumerate() {
            match scope.evaluate(&validation.expression) {
                Ok(Cel::Bool(true)) => {}
                Err(message) => result.failures.extend(self.failed(index, message).failures),
                Ok(_) => result.failures.push(Failure {
                    index,
                    message: validation.message(&for_messages),
                    reason: validation.reason.clone(),
                }),
            }
            if dynamic::is_out_of_budget() {
                return result;
            }
        }
        result.annotate(self, inputs);
        result
    }
}

impl Evaluation {
    /// Adds the audit annotations. As in kube-apiserver, they have a budget of their own, and their
    /// evaluation has no permissions.
    fn annotate(&mut self, policy: &Policy, inputs: &Inputs<'_>) {
        if policy.annotations.is_empty() {
            return;
        }
        let composed = Composed::new(&policy.variables);
        let annotations = policy.annotations.iter().map(|(_, expression)| expression);
        let scope = Scope::new(policy.variables().chain(annotations), inputs).with(&composed);
        dynamic::start(Phase::Expressions);
        for (key, expression) in &policy.annotations {
            match annotation(&scope, expression) {
                Ok(value) if value.is_empty() => {}
                Ok(value) => self.annotations.push((key.clone(), value)),
                Err(message) if policy.fails => self.annotation_errors.push(message),
                Err(_) => {}
            }
        }
    }
}

impl Policy {
    /// Returns the failure for an error, if the policy does not ignore errors.
    fn failed(&self, index: usize, message: String) -> Evaluation {
        let failure = Failure {
            index,
            message,
            reason: String::new(),
        };
        Evaluation {
            failures: self.fails.then_some(failure).into_iter().collect(),
            ..Evaluation::default()
        }
    }
}

impl Validation {
    fn of(validation: &Value) -> Self {
        let message_expression = text(validation, "messageExpression");
        Self {
            expression: Expression::compile(text(validation, "expression")),
            message: text(validation, "message").trim().to_owned(),
            message_expression: (!message_expression.is_empty())
                .then(|| Expression::compile(message_expression)),
            reason: text(validation, "reason").to_owned(),
        }
    }

    fn message(&self, scope: &Scope<'_>) -> String {
        let computed = self.message_expression.as_ref().and_then(|expression| {
            let Ok(Cel::String(text)) = scope.evaluate(expression) else {
                return None;
            };
            let text = text.trim();
            let fit = !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
            fit.then(|| text.to_owned())
        });
        computed.unwrap_or_else(|| match self.message.as_str() {
            "" => format!("failed expression: {}", self.expression.source.trim()),
            message => message.to_owned(),
        })
    }
}

/// Returns the value of an audit annotation. An empty value is not recorded.
fn annotation(scope: &Scope<'_>, expression: &Expression) -> Result<String, String> {
    let value = scope.evaluate(expression)?;
    if let Cel::String(text) = &value {
        let text = text.trim();
        Ok(text[..text.floor_char_boundary(ANNOTATION_BYTES_MAX)].to_owned())
    } else if value == Cel::Null {
        Ok(String::new())
    } else {
        Err(format!(
            "valueExpression '{}' resulted in unsupported return type. Return type must be either string or null.",
            expression.source
        ))
    }
}
