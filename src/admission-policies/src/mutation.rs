//! Compiled mutating policy, and its patches of an object.

use json_patch::PatchErrorKind;
use kube_cel::cel::Value as Cel;
use serde_json::{Map, Value};

use crate::condition::{Composed, Expression, Scope};
use crate::literal;
use crate::matching::Match;
use crate::parameters::ParamKind;
use crate::request::{Inputs, Place, Subject};
use crate::{items, text};
use rooflet_apimachinery::patch::json::{JsonPatch, JsonPatchError};
use rooflet_schema::cel::dynamic::{self, Phase};

/// Operations of a JSON patch (RFC 6902).
const OPERATORS: [&str; 6] = ["add", "copy", "move", "remove", "replace", "test"];

/// Compiled MutatingAdmissionPolicy.
#[derive(Debug)]
pub(crate) struct MutatingPolicy {
    pub(crate) rules: Match,
    pub(crate) param_kind: Option<ParamKind>,
    /// False if the policy ignores errors.
    pub(crate) fails: bool,
    /// True if the policy applies again after a patch.
    pub(crate) reinvokes: bool,
    pub(crate) mutations: Vec<Mutation>,
    conditions: Vec<Expression>,
    variables: Vec<(String, Expression)>,
}

#[derive(Debug)]
pub(crate) struct Mutation {
    form: Form,
    expression: Expression,
}

/// Form of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Configuration,
    JsonPatch,
}

/// Failure of a patch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PatchError {
    /// Error of the policy, which the policy may ignore.
    Policy(String),
    /// Error of the request.
    Internal(String),
}

impl Mutation {
    fn of(mutation: &Value) -> Self {
        let (form, member) = match text(mutation, "patchType") {
            "JSONPatch" => (Form::JsonPatch, "jsonPatch"),
            _ => (Form::Configuration, "applyConfiguration"),
        };
        Self {
            form,
            expression: Expression::compile(text(&mutation[member], "expression")),
        }
    }

    /// Returns the error for a patched object that is no object of its kind.
    pub(crate) fn kind_fault(&self, fault: String) -> PatchError {
        match self.form {
            Form::Configuration => PatchError::Policy(fault),
            Form::JsonPatch => PatchError::Internal(fault),
        }
    }
}

impl MutatingPolicy {
    pub(crate) fn compile(policy: &Value) -> Self {
        let spec = &policy["spec"];
        Self {
            rules: Match::of(&spec["matchConstraints"]),
            param_kind: ParamKind::of(&spec["paramKind"]),
            fails: text(spec, "failurePolicy") != "Ignore",
            reinvokes: text(spec, "reinvocationPolicy") == "IfNeeded",
            mutations: items(spec, "mutations").iter().map(Mutation::of).collect(),
            conditions: Expression::list(spec, "matchConditions"),
            variables: Expression::named(spec, "variables", "name", "expression"),
        }
    }

    /// Returns true if the match conditions are true.
    pub(crate) fn matches(&self, inputs: &Inputs<'_>) -> Result<bool, String> {
        Scope::meets(&self.conditions, inputs)
    }

    /// Returns the object after a mutation.
    pub(crate) fn patched(
        &self,
        mutation: &Mutation,
        subject: &dyn Subject,
        inputs: &Inputs<'_>,
    ) -> Result<Value, PatchError> {
        let variables = self.variables.iter().map(|(_, expression)| expression);
        let composed = Composed::new(&self.variables);
        let expressions = variables.chain([&mutation.expression]);
        let scope = Scope::with_authorizer(expressions, inputs).with(&composed);
        dynamic::start(Phase::Expressions);
        let patch = scope.evaluate(&mutation.expression).map_err(PatchError::Policy)?;
        let place = inputs.place;
        let object = subject.object(place);
        let patched = match mutation.form {
            Form::Configuration => configured(&patch, &object, subject, place),
            Form::JsonPatch => operated(&patch, object),
        };
        patched.map_err(PatchError::Policy)
    }
}

/// Merges the configuration of an `Object` literal.
fn configured(patch: &Cel, object: &Value, subject: &dyn Subject, place: &Place) -> Result<Value, String> {
    let Some("Object") = literal::type_of(patch) else {
        return Err("unsupported return type from ApplyConfiguration expression".to_owned());
    };
    literal::check_types(patch, "Object").map_err(|faults| format!("type mismatch: {faults}"))?;
    let mut configuration =
        literal::to_json(patch).map_err(|fault| format!("invalid return type: {fault}"))?;
    for member in ["apiVersion", "kind"] {
        configuration[member] = object[member].clone();
    }
    subject
        .merged(place, object, &configuration)
        .map_err(|fault| format!("error applying patch: {fault}"))
}

/// Applies the operations of a list of `JSONPatch` literals. A failed test leaves the object unchanged.
fn operated(patch: &Cel, object: Value) -> Result<Value, String> {
    let Cel::List(list) = patch else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let operations = list.iter().map(operation).collect::<Result<Vec<_>, _>>()?;
    let operations = Value::Array(operations);
    let parsed = JsonPatch::parse(&operations).map_err(|err| unparsed(&operations, &err))?;
    match parsed.apply(&object) {
        Ok(patched) => Ok(patched),
        Err(JsonPatchError::Rejected(err)) if matches!(err.kind, PatchErrorKind::TestFailed) => Ok(object),
        Err(JsonPatchError::Rejected(err)) => {
            let path = err.path.as_str();
            let failed = items_of(&operations).find(|operation| text(operation, "path") == path);
            let operator = failed.map_or("patch", |failed| text(failed, "op"));
            Err(format!("JSON Patch: {}", rejection(operator, path, &object)))
        }
        Err(fault) => Err(format!("JSON Patch: {fault}")),
    }
}

/// Returns the text of a patch with an unknown operation or without a required member.
fn unparsed(operations: &Value, err: &JsonPatchError) -> String {
    let operators = items_of(operations).map(|operation| text(operation, "op"));
    let unknown = operators
        .into_iter()
        .find(|operator| !OPERATORS.contains(operator));
    match (unknown, err) {
        (Some(operator), JsonPatchError::Operation(_)) => format!("JSON Patch: Unexpected kind: {operator}"),
        (None, JsonPatchError::Operation(cause)) => format!("JSON Patch: {cause}"),
        (_, err) => format!("JSON Patch: {err}"),
    }
}

fn items_of(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the text of an operation whose path does not exist.
fn rejection(operator: &str, path: &str, object: &Value) -> String {
    let (parent, key) = path.rsplit_once('/').unwrap_or_default();
    match (operator, object.pointer(parent)) {
        ("remove", Some(Value::Object(_))) => {
            format!(
                "error in remove for path: '{path}': Unable to remove nonexistent key: {key}: missing value"
            )
        }
        ("add" | "remove", _) => {
            format!("{operator} operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        _ => format!("{operator} operation does not apply: doc is missing path: {path}: missing value"),
    }
}

/// Returns the operation of a `JSONPatch` literal.
fn operation(patch: &Cel) -> Result<Value, String> {
    let fields = literal::fields(patch).filter(|_| literal::type_of(patch) == Some("JSONPatch"));
    let Some(fields) = fields else {
        return Err(
            "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned(),
        );
    };
    let mut operation = Map::new();
    for (name, value) in fields {
        if let (true, Some(root)) = (name == "value", literal::type_of(value)) {
            literal::check_types(value, root).map_err(|faults| format!("type mismatch: {faults}"))?;
        }
        let value = literal::to_json(value).map_err(|fault| {
            format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {fault}")
        })?;
        operation.insert(name.to_owned(), value);
    }
    Ok(Value::Object(operation))
}
