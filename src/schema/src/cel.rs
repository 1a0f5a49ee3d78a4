//! `x-kubernetes-validations`: CEL rules, compiled once and evaluated for each object.
//!
//! The `cel` and `kube-cel` crates parse, evaluate and provide the Kubernetes function library.
//! This module binds `self` and `oldSelf` at each node, selects rules, applies ratcheting, and
//! formats the causes.

pub mod authorizer;
mod budget;
pub mod checker;
mod compile;
pub(super) mod cost;
pub mod dynamic;
mod keywords;
mod library;
mod lists;
mod logic;
mod macros;
pub mod message;
mod names;
mod pairs;
mod parts;
mod problem;
mod reads;
mod rule;
mod shape;
mod spelling;
mod template;
mod time_zone;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, Value as Cel,
    objects::{Key, Map as CelMap, OptionalValue},
    parser::Parser,
};
use serde_json::{Map, Number, Value};

use super::{
    CauseReason, FieldError, correlate, field_path,
    format::{self, Format},
    node::{Additional, Node},
    path::Path,
    types::Types,
};

pub use keywords::RESERVED;
pub use problem::CompilationError;

pub(super) use compile::compile_rules;
pub(super) use keywords::escape;
pub(super) use rule::Rule;

/// Maximum length of the text that a `messageExpression` returns.
const MESSAGE_BYTES_MAX: usize = 5 << 10;

/// Maximum length of an expression, the default of `cel-go`.
const CODE_POINTS_MAX: usize = 100_000;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Parses an expression with the syntax and the macros that Kubernetes enables.
fn parse(source: &str) -> Result<IdedExpr, CompilationError> {
    let code_points = source.chars().count();
    if code_points > CODE_POINTS_MAX {
        return Err(CompilationError::too_long(code_points, CODE_POINTS_MAX));
    }
    let spelled = spelling::plain(source);
    let parser = Parser::default().enable_optional_syntax(true);
    let parsed = parser.parse(&spelling::without_double_negations(&spelled));
    let mut expr = parsed.map_err(|err| problem::syntax_error(&spelled, &err))?;
    let problems = macros::expand(&mut expr);
    if !problems.is_empty() {
        return Err(CompilationError::new(source, problems));
    }
    Ok(expr)
}

/// Function library. Built once, because building it takes longer than evaluating most rules.
static LIBRARY: LazyLock<Context<'static>> = LazyLock::new(library::context);

/// Values that decide whether ratcheting ignores an error, as in Kubernetes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ratchet<'a> {
    /// New and old value of this node, if they correlate.
    current: Option<(&'a Value, &'a Value)>,
    /// New and old value of the nearest correlated ancestor.
    parent: Option<(&'a Value, &'a Value)>,
}

impl<'a> Ratchet<'a> {
    pub(super) fn update(new: &'a Value, old: Option<&'a Value>) -> Self {
        Self {
            current: old.map(|old| (new, old)),
            parent: None,
        }
    }

    /// Returns whether errors of rules of `node`, which is the node of the current value, are ignored.
    fn ignores_errors(&self, node: &Node) -> bool {
        match self.current {
            Some((new, old)) => correlate::is_unchanged(node, new, old),
            // Items of lists other than list maps do not correlate: the whole list decides.
            None => self.parent.is_some_and(|(new, old)| new == old),
        }
    }

    fn key(self, name: &str) -> Self {
        match self.current {
            None => self,
            // Type metadata is not ratcheted: both objects are read as the same type.
            Some(_) if self.parent.is_none() && (name == "apiVersion" || name == "kind") => Self::default(),
            Some((new, old)) => Self {
                current: new.get(name).zip(old.get(name)),
                parent: self.current,
            },
        }
    }

    fn item(self, new: &'a Value, old: Option<&'a Value>) -> Self {
        match self.current {
            None => self,
            Some(_) => Self {
                current: old.map(|old| (new, old)),
                parent: self.current,
            },
        }
    }
}

/// Evaluates the rules of a node and its descendants within the cost budget.
pub(super) fn validate<'a>(
    node: &'a Node,
    value: &'a Value,
    old: Option<&'a Value>,
    ratchet: Ratchet<'a>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    budget::refill();
    walk(node, value, old, ratchet, path, errors);
}

fn walk<'a>(
    node: &'a Node,
    value: &'a Value,
    old: Option<&'a Value>,
    ratchet: Ratchet<'a>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if !node.contents.rules || value.is_null() || budget::is_spent() {
        return;
    }
    if !node.rules.is_empty() {
        let old = old.filter(|old| !old.is_null());
        run_rules(node, value, old, ratchet, path, errors);
    }
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let old = old.and_then(|old| old.get(name));
                let ratchet = ratchet.key(name);
                match (node.property(name), &node.additional) {
                    (Some(child), _) => walk(child, field, old, ratchet, &path.child(name), errors),
                    (None, Additional::Schema(child)) => {
                        walk(child, field, old, ratchet, &path.key(name), errors);
                    }
                    (None, Additional::Unset | Additional::Any | Additional::Forbidden) => {}
                }
            }
        }
        Value::Array(items) => {
            let Some(child) = node.items.as_deref() else {
                return;
            };
            let correlation = correlate::Items::new(node, old);
            for (index, item) in items.iter().enumerate() {
                let old = correlation.find(item);
                walk(
                    child,
                    item,
                    old,
                    ratchet.item(item, old),
                    &path.index(index),
                    errors,
                );
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn run_rules(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    ratchet: Ratchet<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let this = rules_value(value, node);
    let price = budget::RULE + budget::size(&this);
    let transition = node.rules.iter().any(|rule| rule.uses_old_self);
    let old = old.filter(|_| transition).map(|old| rules_value(old, node));
    for rule in &node.rules {
        if rule.uses_old_self && old.is_none() && !rule.optional_old_self {
            continue;
        }
        let program = match &rule.program {
            Ok(program) => program,
            Err(err) => {
                let detail = format!("rule compile error: {err}");
                errors.push(FieldError::invalid_text(
                    path.field(),
                    &node.types.text(),
                    &detail,
                ));
                continue;
            }
        };
        let mut scope = LIBRARY.new_inner_scope();
        scope.add_variable_from_value("self", this.clone());
        for (name, shape) in &rule.shapes {
            scope.add_variable_from_value(name.as_str(), shape.clone());
        }
        if rule.optional_old_self {
            let old = old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
            scope.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(old)));
        } else if let Some(old) = &old {
            scope.add_variable_from_value("oldSelf", old.clone());
        }
        let outcome = budget::charge(price).and_then(|()| Cel::resolve(program, &scope));
        if budget::is_spent() {
            errors.push(FieldError::invalid_text(
                path.field(),
                &node.types.text(),
                OUT_OF_BUDGET,
            ));
            return;
        }
        match outcome {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => {
                if rule.uses_old_self || !ratchet.ignores_errors(node) {
                    errors.push(failure(rule, node, value, path, &scope));
                }
            }
            Ok(_) => {
                let detail = format!("no such overload evaluating rule: {}", rule.name());
                errors.push(FieldError::invalid_text(
                    path.field(),
                    &node.types.text(),
                    &detail,
                ));
            }
            Err(err) => {
                let detail = evaluation_detail(&err, rule);
                errors.push(FieldError::invalid_text(
                    path.field(),
                    &node.types.text(),
                    &detail,
                ));
            }
        }
    }
}

fn failure(rule: &Rule, node: &Node, value: &Value, path: &Path<'_>, scope: &Context<'_>) -> FieldError {
    let mut field = path.field();
    if let Some(rule_path) = &rule.field_path {
        let normal = field_path::resolve(node, rule_path).unwrap_or_else(|_| rule_path.clone());
        field = if matches!(path, Path::Root) {
            normal
        } else {
            format!("{field}.{normal}")
        };
    }
    let detail = dynamic_message(rule, scope).unwrap_or_else(|| match &rule.message {
        Some(message) => message.trim().to_owned(),
        None => format!("failed rule: {}", rule.source.trim()),
    });
    let omitted = node.types == Types::OBJECT || node.types == Types::ARRAY;
    match rule.reason {
        Some(CauseReason::Forbidden) => FieldError::forbidden(field, &detail),
        Some(CauseReason::Required) => FieldError::required(field, &detail),
        Some(CauseReason::Duplicate) if omitted => FieldError::duplicate_omitted(field),
        Some(CauseReason::Duplicate) => FieldError::duplicate(field, value),
        _ if omitted => FieldError::invalid_omitted(field, &detail),
        _ => FieldError::invalid(field, value, &detail),
    }
}

/// Evaluates `messageExpression`. Returns `None` if it fails or its text is unusable.
fn dynamic_message(rule: &Rule, scope: &Context<'_>) -> Option<String> {
    let Ok(Cel::String(text)) = Cel::resolve(rule.message_program.as_ref()?, scope) else {
        return None;
    };
    let text = text.trim();
    let fit = !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
    fit.then(|| text.to_owned())
}

fn evaluation_detail(err: &ExecutionError, rule: &Rule) -> String {
    let name = rule.name();
    if is_overload_error(err) {
        return format!(
            "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: {name}"
        );
    }
    format!("{} evaluating rule: {name}", error_text(err))
}

/// Returns the text of kube-apiserver for an error. The crate's own texts contain values, which may be
/// secret.
fn error_text(err: &ExecutionError) -> String {
    if let ExecutionError::NoSuchKey(key) = err {
        format!("no such key: {key}")
    } else if let ExecutionError::FunctionError { message, .. } = err {
        message.clone()
    } else if let ExecutionError::IndexOutOfBounds(Cel::Int(index)) = err {
        format!("index out of bounds: {index}")
    } else if let ExecutionError::UndeclaredReference(name) = err {
        format!("no such attribute(s): {name}")
    } else if matches!(err, ExecutionError::DivisionByZero(_)) {
        "division by zero".to_owned()
    } else if matches!(err, ExecutionError::RemainderByZero(_)) {
        "modulus by zero".to_owned()
    } else if let ExecutionError::Overflow(_, one, other) = err {
        overflow_text(one, other).to_owned()
    } else {
        "no such overload".to_owned()
    }
}

fn overflow_text(one: &Cel, other: &Cel) -> &'static str {
    match (one, other) {
        (Cel::UInt(_), _) => "unsigned integer overflow",
        (Cel::Timestamp(_), _) | (_, Cel::Timestamp(_)) => "timestamp overflow",
        (Cel::Duration(_), _) => "duration overflow",
        (_, _) => "integer overflow",
    }
}

fn is_overload_error(err: &ExecutionError) -> bool {
    !matches!(
        err,
        ExecutionError::NoSuchKey(_)
            | ExecutionError::FunctionError { .. }
            | ExecutionError::IndexOutOfBounds(Cel::Int(_))
            | ExecutionError::UndeclaredReference(_)
            | ExecutionError::DivisionByZero(_)
            | ExecutionError::RemainderByZero(_)
            | ExecutionError::Overflow(..)
    )
}

/// Converts a value for the rules of a node. Objects contain only fields that a rule reads.
fn rules_value(value: &Value, node: &Node) -> Cel {
    let Value::Object(fields) = value else {
        return to_cel(value, Some(node));
    };
    let read = |field: &str| node.rules.iter().any(|rule| rule.reads.contains(field));
    object_to_cel(fields, Some(node), read)
}

fn object_to_cel(fields: &Map<String, Value>, node: Option<&Node>, is_read: impl Fn(&str) -> bool) -> Cel {
    let is_map = node.is_some_and(|node| matches!(node.additional, Additional::Schema(_) | Additional::Any));
    // Like kube-apiserver, a null in a declared object is an absent field.
    let drops_null = !is_map && node.is_some_and(|node| node.has_properties());
    let mut map = HashMap::with_capacity(fields.len());
    for (name, field) in fields {
        if drops_null && field.is_null() {
            continue;
        }
        let key = if is_map { name.clone() } else { escape(name) };
        let child = || node.and_then(|node| node.field(name));
        // Rules select a field whose name is a keyword with or without escapes.
        if !is_map && RESERVED.contains(&name.as_str()) && is_read(name) {
            map.insert(Key::String(Arc::new(name.clone())), to_cel(field, child()));
        }
        if is_read(&key) {
            map.insert(Key::String(Arc::new(key)), to_cel(field, child()));
        }
    }
    Cel::Map(CelMap { map: Arc::new(map) })
}

/// Converts a JSON value to a CEL value, typed by its schema.
fn to_cel(value: &Value, node: Option<&Node>) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => number_to_cel(number, node.map(|node| node.types)),
        Value::String(text) => text_to_cel(text, node.and_then(|node| node.format)),
        Value::Array(items) => {
            let child = node.and_then(|node| node.items.as_deref());
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item, child)).collect()))
        }
        Value::Object(fields) => object_to_cel(fields, node, |_| true),
    }
}

fn number_to_cel(number: &Number, types: Option<Types>) -> Cel {
    let float = || Cel::Float(number.as_f64().unwrap_or_default());
    match (types, number.as_i64()) {
        (Some(Types::NUMBER), _) => float(),
        (_, Some(integer)) => Cel::Int(integer),
        (Some(Types::INTEGER), None) => Cel::Int(number.as_f64().unwrap_or_default() as i64),
        (_, None) => float(),
    }
}

fn text_to_cel(text: &str, format: Option<Format>) -> Cel {
    let typed = match format {
        Some(Format::DateTime) => chrono::DateTime::parse_from_rfc3339(text)
            .ok()
            .map(Cel::Timestamp),
        Some(Format::Date) => chrono::DateTime::parse_from_rfc3339(&format!("{text}T00:00:00Z"))
            .ok()
            .map(Cel::Timestamp),
        Some(Format::Duration) => {
            format::parse_duration(text).map(|nanos| Cel::Duration(chrono::Duration::nanoseconds(nanos)))
        }
        Some(Format::Byte) => format::decode_base64(text).map(|bytes| Cel::Bytes(Arc::new(bytes))),
        Some(_) | None => None,
    };
    typed.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

#[cfg(test)]
mod tests;
