//! Type checker: types and overloads of the parts of an expression, and its type errors, as
//! `cel-go` finds them.
//!
//! A part with a type error has the type [`Type::Error`], which fits everywhere, so that each cause is
//! reported once.

mod aggregate;
mod decl;
mod environment;
mod functions;
mod names;
mod show;
mod templates;
mod types;

use std::collections::HashMap;

use kube_cel::cel::{
    IdedExpr, Value as Cel,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, SelectExpr,
        StructExpr, operators,
    },
};

use super::problem::CompilationError;
use super::{LIBRARY, parse};
use crate::pattern;
use aggregate::{Aggregate, mismatch};
use environment::PATCH;
use names::{qualified, type_of_name};
use show::{shown, signature};
use templates::Template;
use types::{Bindings, Object};

pub(crate) use decl::limit;
pub(super) use decl::{ITEMS, KEYS, VALUES};
pub(super) use names::type_name;
pub use {
    decl::Decl,
    environment::Environment,
    types::{Record, Type},
};

/// Maximum number of parts of a type. Each macro that builds a map of its variable doubles them.
const PARTS_MAX: usize = 1_000;

/// Overload of `a.?b`, which is not in the table because its result depends on the field.
const SELECT_OPTIONAL: &str = "select_optional_field";

/// Name of the type of `self`. kube-apiserver adds a random number, so that clients do not depend on the name.
const SELF: &str = "selfType";
/// Resolved call of a function.
#[derive(Debug)]
pub(super) struct Call {
    /// Name with its prefix, as in `sets.contains`.
    pub(super) function: String,
    pub(super) overloads: Vec<&'static str>,
    pub(super) is_method: bool,
}

/// Types and calls by the identifier of the part.
#[derive(Debug, Default)]
pub(crate) struct Typing<'d> {
    types: HashMap<u64, Type<'d>>,
    calls: HashMap<u64, Call>,
}

impl<'d> Typing<'d> {
    pub(super) fn type_of(&self, expr: &IdedExpr) -> Type<'d> {
        self.types.get(&expr.id).cloned().unwrap_or(Type::Error)
    }

    /// Returns the call of an expression, or `None` if no overload fits.
    pub(super) fn call(&self, expr: &IdedExpr) -> Option<&Call> {
        self.calls.get(&expr.id)
    }
}

/// Expression without errors.
#[derive(Debug)]
pub struct Checked<'d> {
    pub(crate) program: IdedExpr,
    pub(crate) typing: Typing<'d>,
}

impl<'d> Checked<'d> {
    /// Parses and checks a rule or message expression at a node.
    pub(crate) fn new(
        source: &str,
        node: &'d Decl,
        optional_old_self: bool,
    ) -> Result<Self, CompilationError> {
        let own = Type::of(node);
        let old = match optional_old_self {
            true => Type::optional(own),
            false => own,
        };
        let environment = Environment::default().with_decl("self", node, SELF);
        Self::of(source, &environment.with("oldSelf", old))
    }

    /// Parses and checks an expression.
    pub fn of(source: &str, environment: &Environment<'d>) -> Result<Self, CompilationError> {
        let program = parse(source)?;
        let mut checker = Checker {
            environment,
            bindings: Bindings::default(),
            locals: Vec::new(),
            found: Typing::default(),
            problems: Vec::new(),
            literals: Vec::new(),
            aggregates: Vec::new(),
            templates: Vec::new(),
            in_format: 0,
        };
        checker.check(&program);
        let Checker {
            bindings,
            mut found,
            mut problems,
            literals,
            aggregates,
            templates,
            ..
        } = checker;
        for type_ in found.types.values_mut() {
            *type_ = bindings.resolve_wholly(type_);
        }
        if problems.is_empty() {
            problems = literals;
            for aggregate in aggregates {
                aggregate.check(&found, &environment.roots, &mut problems);
            }
            for template in templates {
                template.check(&found, &environment.roots, &mut problems);
            }
        }
        if !problems.is_empty() {
            return Err(CompilationError::new(source, problems));
        }
        Ok(Self {
            program,
            typing: found,
        })
    }

    /// Returns the type of the result.
    pub fn result(&self) -> Type<'d> {
        self.typing.type_of(&self.program)
    }

    /// Returns whether the result is a truth value.
    pub(crate) fn is_bool(&self) -> bool {
        matches!(self.typing.type_of(&self.program), Type::Bool | Type::Error)
    }

    /// Returns whether the result is a text.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.typing.type_of(&self.program), Type::Text | Type::Error)
    }
}

struct Checker<'e, 'd> {
    environment: &'e Environment<'d>,
    bindings: Bindings<'d>,
    /// Variables of macros in scope, innermost last.
    locals: Vec<(String, Type<'d>)>,
    found: Typing<'d>,
    /// Type errors, by the part of the expression.
    problems: Vec<(u64, String)>,
    /// Invalid literals. They are reported if there are no type errors.
    literals: Vec<(u64, String)>,
    /// Lists and maps. They are checked if there are no type errors.
    aggregates: Vec<Aggregate>,
    /// Calls of `format`. They are checked if there are no type errors.
    templates: Vec<Template>,
    /// Number of enclosing calls of `format`, whose arguments may have any types.
    in_format: usize,
}

impl<'d> Checker<'_, 'd> {
    fn check(&mut self, expr: &IdedExpr) -> Type<'d> {
        let found = match &expr.expr {
            Expr::Unspecified => Type::Error,
            Expr::Literal(literal) => of_literal(literal),
            Expr::Ident(name) => self.variable(expr.id, name),
            Expr::Select(select) => match self.prefixed(expr) {
                Some(known) => known,
                None => self.select(expr.id, select),
            },
            Expr::Call(call) => self.call(expr.id, call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Struct(literal) => self.literal(expr.id, literal),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        };
        let mut parts = PARTS_MAX;
        let found = if found.is_within(&mut parts) {
            found
        } else {
            Type::Error
        };
        self.found.types.insert(expr.id, found.clone());
        found
    }

    fn report(&mut self, part: u64, text: String) {
        self.problems.push((part, text));
    }

    fn undeclared(&mut self, part: u64, name: &str) {
        self.report(
            part,
            format!("undeclared reference to '{name}' (in container '')"),
        );
    }

    fn mismatch(&mut self, part: u64, expected: &Type<'d>, actual: &Type<'d>) {
        let text = mismatch(expected, actual, &self.environment.roots);
        self.report(part, text);
    }

    fn shown(&self, of: &Type<'_>) -> String {
        shown(of, &self.environment.roots)
    }

    /// Returns the type of a variable or of the name of a type.
    fn named(&self, name: &str) -> Option<Type<'d>> {
        let mut inner_first = self.locals.iter().rev();
        let local = inner_first.find(|(known, _)| known == name);
        let known = local.map(|(_, known)| known);
        if let Some(known) = known.or_else(|| self.environment.variable(name)) {
            return Some(known.clone());
        }
        let of = match self.environment.has_literal(name) {
            true => Some(Type::Literal(name.into())),
            false => type_of_name(name),
        };
        of.or_else(|| self.environment.record(name).map(Type::Record))
            .map(Type::meta)
    }

    fn variable(&mut self, part: u64, name: &str) -> Type<'d> {
        self.named(name).unwrap_or_else(|| {
            self.undeclared(part, name);
            Type::Error
        })
    }

    /// Returns the type of a variable or type whose name has a prefix.
    fn prefixed(&self, expr: &IdedExpr) -> Option<Type<'d>> {
        self.named(&qualified(expr)?)
    }

    /// Checks an object literal.
    fn literal(&mut self, part: u64, literal: &StructExpr) -> Type<'d> {
        let name = literal.type_name.trim_start_matches('.');
        let Some(known) = self.named(name) else {
            self.undeclared(part, name);
            return Type::Error;
        };
        let is_type = matches!(known, Type::Meta(_));
        let is_literal = self.environment.has_literal(name) && is_type;
        let record = self.environment.record(name).filter(|_| is_type);
        let of = if is_literal {
            Type::Literal(name.into())
        } else if let Some(record) = record {
            Type::Record(record)
        } else {
            let text = if is_type {
                format!("'{name}' is not a message type")
            } else if let Type::Object(_) = &known {
                format!("'{}' is not a type", self.shown(&known))
            } else {
                format!("'{known}' is not a type")
            };
            self.report(part, text);
            Type::Error
        };
        for entry in &literal.entries {
            let EntryExpr::StructField(field) = &entry.expr else {
                continue;
            };
            let mut given = self.check(&field.value);
            let known = record.and_then(|record| record.field(&field.field));
            let declared = if is_literal {
                field_of_literal(name, &field.field)
            } else if let Some(known) = known {
                known.clone()
            } else {
                let text = match is_type {
                    true => format!("undefined field '{}'", field.field),
                    false => format!("unexpected failed resolution of '{name}'"),
                };
                self.report(entry.id, text);
                Type::Error
            };
            if field.optional {
                given = self.content(field.value.id, given);
            }
            if !self.bindings.assign(&declared, &given) {
                let text = format!(
                    "expected type of field '{}' is '{}' but provided type is '{}'",
                    field.field,
                    self.shown(&declared),
                    self.shown(&given)
                );
                self.report(entry.id, text);
            }
        }
        of
    }

    fn select(&mut self, part: u64, select: &SelectExpr) -> Type<'d> {
        let selected = self.field(part, &select.operand, &select.field, false);
        if select.test {
            Type::Bool
        } else {
            self.bindings.resolve(&selected)
        }
    }

    fn field(&mut self, part: u64, operand: &IdedExpr, field: &str, is_optional: bool) -> Type<'d> {
        let operand = self.check(operand);
        let (target, was_optional) = self.bindings.resolve(&operand).unwrapped();
        let selected = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(Object(decl)) => match decl.field(field) {
                Some(decl) => Type::of(decl),
                None => {
                    self.report(part, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Record(record) => match record.field(field) {
                Some(declared) => declared.clone(),
                None => {
                    self.report(part, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Literal(name) => field_of_literal(&name, field),
            Type::Library(_) => {
                let name = self.shown(&target);
                self.report(part, format!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            Type::Parameter(parameter) => {
                self.bindings.assign(&Type::Dyn, &Type::Parameter(parameter));
                Type::Dyn
            }
            Type::Error | Type::Dyn => Type::Dyn,
            Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Text
            | Type::Bytes
            | Type::Timestamp
            | Type::Duration
            | Type::Meta(_)
            | Type::List(_)
            | Type::Opaque(..) => {
                let name = self.shown(&target);
                self.report(part, format!("type '{name}' does not support field selection"));
                Type::Dyn
            }
        };
        if is_optional || was_optional {
            Type::optional(selected)
        } else {
            selected
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) -> Type<'d> {
        if call.func_name == operators::OPT_SELECT {
            return self.select_optional(id, call);
        }
        let name = call.func_name.trim_start_matches('.');
        let is_format = name == "format";
        self.in_format += usize::from(is_format);
        let found = self.call_of(id, name, call);
        self.in_format -= usize::from(is_format);
        if is_format {
            self.templates.extend(Template::of(id, call));
        }
        found
    }

    fn call_of(&mut self, id: u64, name: &str, call: &CallExpr) -> Type<'d> {
        let mut arguments: Vec<Type<'d>> = call.args.iter().map(|argument| self.check(argument)).collect();
        self.check_literal(name, call);
        let Some(target) = call.target.as_deref() else {
            return self.resolve(id, name.to_owned(), false, &arguments, &call.args);
        };
        let qualified = qualified(target).map(|prefix| format!("{prefix}.{name}"));
        if let Some(qualified) = qualified.filter(|name| self.environment.has_function(name)) {
            return self.resolve(id, qualified, false, &arguments, &call.args);
        }
        let target = self.check(target);
        arguments.insert(0, target);
        self.resolve(id, name.to_owned(), true, &arguments, &call.args)
    }

    /// Checks the literal argument of a function that parses it.
    fn check_literal(&mut self, function: &str, call: &CallExpr) {
        let Some(argument) = call.args.first() else { return };
        let Expr::Literal(literal) = &argument.expr else {
            return;
        };
        let is_valid = match (function, literal) {
            ("matches", LiteralValue::String(text)) => pattern::compile(text.inner()).is_ok(),
            ("duration" | "timestamp", LiteralValue::String(_) | LiteralValue::Int(_)) => {
                let call = IdedExpr {
                    id: 0,
                    expr: Expr::Call(call.clone()),
                };
                Cel::resolve(&call, &LIBRARY).is_ok()
            }
            (_, _) => true,
        };
        if !is_valid {
            self.literals
                .push((argument.id, format!("invalid {function} argument")));
        }
    }

    fn select_optional(&mut self, id: u64, call: &CallExpr) -> Type<'d> {
        let [operand, field] = &call.args[..] else {
            return Type::Error;
        };
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
            return Type::Error;
        };
        let selected = self.field(id, operand, name.inner(), true);
        let resolved = Call {
            function: call.func_name.clone(),
            overloads: vec![SELECT_OPTIONAL],
            is_method: false,
        };
        self.found.calls.insert(id, resolved);
        self.bindings.resolve(&selected)
    }

    /// Finds all overloads that fit. Returns their common result type. `arguments` start with the
    /// type of the target of a method.
    fn resolve(
        &mut self,
        id: u64,
        function: String,
        is_method: bool,
        arguments: &[Type<'d>],
        parts: &[IdedExpr],
    ) -> Type<'d> {
        if !self.environment.has_function(&function) {
            self.undeclared(id, &function);
            return Type::Error;
        }
        if [operators::LOGICAL_AND, operators::LOGICAL_OR].contains(&function.as_str())
            && !self.are_truth_values(parts, arguments)
        {
            return Type::Error;
        }
        let candidates = match is_method {
            true => self.environment.overloads(&format!(".{function}")),
            false => self.environment.overloads(&function),
        };
        let mut overloads = Vec::new();
        let mut result: Option<Type<'d>> = None;
        for overload in candidates.unwrap_or_default() {
            let (wanted, returned) = overload.instantiate(&mut self.bindings);
            if !self.bindings.assign_all(arguments, &wanted) {
                continue;
            }
            overloads.push(overload.id);
            let returned = self.bindings.resolve(&returned);
            result = Some(match result {
                None => returned,
                Some(Type::Dyn) => Type::Dyn,
                Some(earlier) if earlier == returned => earlier,
                Some(_) => Type::Dyn,
            });
        }
        let Some(result) = result else {
            let arguments: Vec<Type<'d>> = arguments
                .iter()
                .map(|argument| self.bindings.resolve_wholly(argument))
                .collect();
            let signature = signature(&arguments, is_method, &self.environment.roots);
            self.report(
                id,
                format!("found no matching overload for '{function}' applied to '{signature}'"),
            );
            return Type::Error;
        };
        let call = Call {
            function,
            overloads,
            is_method,
        };
        self.found.calls.insert(id, call);
        result
    }

    /// Checks the operands of a logical operator.
    fn are_truth_values(&mut self, parts: &[IdedExpr], operands: &[Type<'d>]) -> bool {
        let before = self.problems.len();
        for (part, operand) in parts.iter().zip(operands) {
            if !self.bindings.assign(operand, &Type::Bool) {
                self.mismatch(part.id, &Type::Bool, operand);
            }
        }
        self.problems.len() == before
    }

    /// Returns the common type of the items of a literal.
    fn join(&mut self, earlier: Option<Type<'d>>, next: Type<'d>) -> Type<'d> {
        match earlier {
            None => next,
            Some(earlier) => self.bindings.join(earlier, next).unwrap_or(Type::Dyn),
        }
    }

    fn add_aggregate(&mut self, items: Vec<(u64, bool)>, is_list: bool) {
        if self.in_format == 0 {
            self.aggregates.push(Aggregate { items, is_list });
        }
    }

    /// Returns the content of an optional item of a literal.
    fn content(&mut self, part: u64, item: Type<'d>) -> Type<'d> {
        let (content, is_optional) = item.unwrapped();
        if !is_optional && content != Type::Dyn {
            self.mismatch(part, &Type::optional(content.clone()), &content);
        }
        content
    }

    fn list(&mut self, list: &ListExpr) -> Type<'d> {
        let mut items = None;
        let mut parts = Vec::new();
        for (index, item) in list.elements.iter().enumerate() {
            let mut found = self.check(item);
            let is_optional = list.optional_indices.contains(&index);
            if is_optional {
                found = self.content(item.id, found);
            }
            parts.push((item.id, is_optional));
            items = Some(self.join(items, found));
        }
        self.add_aggregate(parts, true);
        Type::list(items.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Type<'d> {
        let (mut keys, mut values) = (None, None);
        let (mut key_parts, mut value_parts) = (Vec::new(), Vec::new());
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            let key = self.check(&entry.key);
            keys = Some(self.join(keys, key));
            let mut value = self.check(&entry.value);
            if entry.optional {
                value = self.content(entry.value.id, value);
            }
            values = Some(self.join(values, value));
            key_parts.push((entry.key.id, false));
            value_parts.push((entry.value.id, entry.optional));
        }
        self.add_aggregate(key_parts, false);
        self.add_aggregate(value_parts, false);
        let keys = keys.unwrap_or_else(|| self.bindings.fresh());
        let values = values.unwrap_or_else(|| self.bindings.fresh());
        Type::map(keys, values)
    }

    /// Checks a macro.
    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Type<'d> {
        let range = self.check(&comprehension.iter_range);
        let start = self.check(&comprehension.accu_init);
        let range = self.bindings.resolve(&range);
        // Types of the variable, and of the first and second of two variables.
        let (item, first, second) = match &range {
            Type::List(item) => ((**item).clone(), Type::Int, (**item).clone()),
            Type::Map(entry) => (entry.0.clone(), entry.0.clone(), entry.1.clone()),
            Type::Parameter(_) | Type::Dyn | Type::Error => {
                self.bindings.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn, Type::Dyn)
            }
            Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Text
            | Type::Bytes
            | Type::Timestamp
            | Type::Duration
            | Type::Meta(_)
            | Type::Library(_)
            | Type::Object(_)
            | Type::Record(_)
            | Type::Literal(_)
            | Type::Opaque(..) => {
                let name = self.shown(&range);
                self.report(
                    comprehension.iter_range.id,
                    format!(
                        "expression of type '{name}' cannot be range of a comprehension (must be list, map, or \
                         dynamic)"
                    ),
                );
                (Type::Error, Type::Error, Type::Error)
            }
        };
        let outer = self.locals.len();
        self.locals.push((comprehension.accu_var.clone(), start.clone()));
        let variable = comprehension.iter_var.clone();
        match &comprehension.iter_var2 {
            Some(name) => self.locals.extend([(variable, first), (name.clone(), second)]),
            None => self.locals.push((variable, item)),
        }
        self.check_type(&comprehension.loop_cond, &Type::Bool);
        self.check_type(&comprehension.loop_step, &start);
        self.locals.truncate(outer + 1);
        let result = self.check(&comprehension.result);
        self.locals.truncate(outer);
        self.bindings.resolve(&result)
    }
}

impl<'d> Checker<'_, 'd> {
    /// Checks a part that must have a type.
    fn check_type(&mut self, part: &IdedExpr, wanted: &Type<'d>) {
        let found = self.check(part);
        if !self.bindings.assign(wanted, &found) {
            self.mismatch(part.id, wanted, &found);
        }
    }
}

/// Returns the type of a field of an object literal.
fn field_of_literal<'d>(name: &str, field: &str) -> Type<'d> {
    match (name, field) {
        (PATCH, "op" | "path" | "from") => Type::Text,
        (_, _) => Type::Dyn,
    }
}

fn of_literal<'d>(literal: &LiteralValue) -> Type<'d> {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::Text,
        LiteralValue::UInt(_) => Type::Uint,
    }
}
