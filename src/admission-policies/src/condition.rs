//! Expression of a policy, compiled once.

use std::sync::OnceLock;

use kube_cel::cel::Value as Cel;
use serde_json::Value;

use crate::request::Inputs;
use crate::{items, text};
use rooflet_schema::cel::dynamic::{self, Phase, Program, Variables};

/// Names of the variables, except the composed ones.
pub(crate) const ROOTS: [&str; 5] = ["object", "oldObject", "request", "params", "namespaceObject"];

/// Expression with its source.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    /// Error of an expression that a former version of the server accepted.
    program: Result<Program, String>,
}

impl Expression {
    pub(crate) fn compile(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            program: Program::compile(source, &ROOTS).map_err(|err| format!("compilation error: {err}")),
        }
    }

    /// Compiles the expressions of a list.
    pub(crate) fn list(spec: &Value, member: &str) -> Vec<Self> {
        let compile = |item| Self::compile(text(item, "expression"));
        items(spec, member).iter().map(compile).collect()
    }

    /// Compiles the expressions of a list of named expressions.
    pub(crate) fn named(spec: &Value, member: &str, name: &str, expression: &str) -> Vec<(String, Self)> {
        let compile = |item| (text(item, name).to_owned(), Self::compile(text(item, expression)));
        items(spec, member).iter().map(compile).collect()
    }

    fn evaluate(&self, scope: &Scope<'_>, composed: &Composed<'_>) -> Result<Cel, String> {
        let program = self.program.as_ref().map_err(Clone::clone)?;
        program.evaluate(&scope.variables, &|name| composed.get(name, scope))
    }
}

/// Composed variables of a policy, evaluated when an expression uses them.
pub(crate) struct Composed<'a> {
    variables: &'a [(String, Expression)],
    results: Vec<OnceLock<Result<Cel, String>>>,
}

impl<'a> Composed<'a> {
    pub(crate) fn new(variables: &'a [(String, Expression)]) -> Self {
        Self {
            variables,
            results: variables.iter().map(|_| OnceLock::new()).collect(),
        }
    }

    fn get(&self, name: &str, scope: &Scope<'_>) -> Option<Result<Cel, String>> {
        let index = self.variables.iter().position(|(known, _)| known == name)?;
        let (_, expression) = &self.variables[index];
        Some(
            self.results[index]
                .get_or_init(|| expression.evaluate(scope, self))
                .clone(),
        )
    }
}

/// Values of an evaluation.
pub(crate) struct Scope<'a> {
    variables: Variables,
    composed: Option<&'a Composed<'a>>,
}

impl<'a> Scope<'a> {
    /// Binds the variables that the expressions use, except the permissions of the user.
    pub(crate) fn new<'e>(
        expressions: impl Iterator<Item = &'e Expression> + Clone,
        inputs: &Inputs<'_>,
    ) -> Self {
        let mut variables = dynamic::variables();
        let programs = expressions.filter_map(|each| each.program.as_ref().ok());
        for root in ROOTS {
            let uses = programs
                .clone()
                .map(|program| program.uses(root))
                .fold((false, false), |one, other| (one.0 || other.0, one.1 || other.1));
            if uses.0 || uses.1 {
                dynamic::add(&mut variables, root, &inputs.value(root), uses);
            }
        }
        Self {
            variables,
            composed: None,
        }
    }

    /// Binds the variables that the expressions use.
    pub(crate) fn with_authorizer<'e>(
        expressions: impl Iterator<Item = &'e Expression> + Clone,
        inputs: &Inputs<'_>,
    ) -> Self {
        let mut scope = Self::new(expressions.clone(), inputs);
        let mut programs = expressions.filter_map(|each| each.program.as_ref().ok());
        if programs.any(Program::uses_authorizer) {
            let authorizer = inputs.source.authorizer();
            let resource = inputs.request.access();
            dynamic::add_authorizer(&mut scope.variables, &authorizer, resource);
        }
        scope
    }

    /// Adds the composed variables.
    pub(crate) fn with(self, composed: &'a Composed<'a>) -> Self {
        Self {
            composed: Some(composed),
            ..self
        }
    }

    /// Evaluates an expression. The error names the expression.
    pub(crate) fn evaluate(&self, expression: &Expression) -> Result<Cel, String> {
        let none = Composed::new(&[]);
        let composed = self.composed.unwrap_or(&none);
        let outcome = expression.evaluate(self, composed);
        outcome.map_err(|err| match dynamic::is_out_of_budget() {
            true => err,
            false => format!("expression '{}' resulted in error: {err}", expression.source),
        })
    }

    /// Returns true if all match conditions are true.
    pub(crate) fn meets(conditions: &[Expression], inputs: &Inputs<'_>) -> Result<bool, String> {
        if conditions.is_empty() {
            return Ok(true);
        }
        let scope = Self::with_authorizer(conditions.iter(), inputs);
        dynamic::start(Phase::MatchConditions);
        let mut errors = Vec::new();
        for condition in conditions {
            match scope.evaluate(condition) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(err) if dynamic::is_out_of_budget() => return Err(err),
                Err(err) => errors.push(err),
            }
        }
        match errors.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}
