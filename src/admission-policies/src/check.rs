//! Compilation checks of an expression: syntax, names, fields and the type of the result.
//!
//! The checker reports only certain errors. Other wrong operands are errors of the evaluation.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, MapExpr, StructExpr, operators,
    },
};

use crate::operands;
use crate::types::{
    BOOL, BYTES, DOUBLE, DURATION, Declarations, INT, NULL, OBJECT, PATCH, STRING, TIMESTAMP, Type, UINT,
};
use rooflet_apimachinery::schema::cel;
use rooflet_apimachinery::schema::cel::problem::{CompilationError, syntax_error};

/// Prefix of the functions of JSON patches.
const PATCH_FUNCTIONS: &str = "jsonpatch";

/// Result that an expression must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Bool,
    Text,
    TextOrNull,
    /// Configuration of an object.
    Object,
    /// Operations of a JSON patch.
    Patches,
    Any,
}

/// Checks an expression. Returns its type, or the reason why it is rejected.
pub(crate) fn check(source: &str, declared: &Declarations, wanted: Wanted) -> Result<Type, String> {
    let program = cel::parse(source).map_err(|err| syntax_error(source, &err).to_string())?;
    let mut walk = Walk {
        declared,
        loops: Vec::new(),
        problems: Vec::new(),
    };
    let found = walk.visit(&program);
    if !walk.problems.is_empty() {
        return Err(CompilationError::new(source, walk.problems).to_string());
    }
    let literal = |name: &str| Type::Literal(name.to_owned());
    let accepted = match wanted {
        Wanted::Any => return Ok(found),
        Wanted::Bool => vec![BOOL],
        Wanted::Text => vec![STRING],
        Wanted::TextOrNull => vec![STRING, NULL],
        Wanted::Object => vec![literal(OBJECT)],
        Wanted::Patches => vec![Type::list_of(literal(PATCH))],
    };
    if accepted.iter().any(|accepted| found.may_be(accepted)) {
        return Ok(found);
    }
    let expected = match &accepted[..] {
        [one] => one.to_string(),
        several => {
            let names: Vec<String> = several.iter().map(Type::to_string).collect();
            format!("one of [{}]", names.join(" "))
        }
    };
    Err(format!("must evaluate to {expected} but got {found}"))
}

struct Walk<'a> {
    declared: &'a Declarations,
    /// Variables of loops, innermost last.
    loops: Vec<(String, Type)>,
    /// Problems by the identifier of the part.
    problems: Vec<(u64, String)>,
}

impl Walk<'_> {
    fn visit(&mut self, expr: &IdedExpr) -> Type {
        match &expr.expr {
            Expr::Unspecified => Type::Unknown,
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => BOOL,
                LiteralValue::Double(_) => DOUBLE,
                LiteralValue::Int(_) => INT,
                LiteralValue::UInt(_) => UINT,
                LiteralValue::String(_) => STRING,
                LiteralValue::Null => NULL,
                LiteralValue::Bytes(_) => BYTES,
            },
            Expr::Ident(name) => self.variable(expr.id, name),
            Expr::Select(select) => {
                let field = self.visit(&select.operand).field(&select.field);
                let field = field.unwrap_or_else(|problem| {
                    self.problems.push((expr.id, problem));
                    Type::Unknown
                });
                if select.test { BOOL } else { field }
            }
            Expr::Call(call) => self.call(expr.id, call),
            Expr::List(list) => {
                let items: Vec<Type> = list.elements.iter().map(|item| self.visit(item)).collect();
                let item = items.into_iter().reduce(Type::join);
                Type::list_of(item.unwrap_or(Type::Dyn))
            }
            Expr::Struct(literal) => self.literal(expr.id, literal),
            Expr::Map(map) => self.map(map),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn variable(&mut self, part: u64, name: &str) -> Type {
        if let Some((_, of)) = self.loops.iter().rev().find(|(known, _)| known == name) {
            return of.clone();
        }
        if let Some(declared) = self.declared.find(name) {
            return declared;
        }
        match name {
            // Type names and the accumulators of macros.
            "bool" | "bytes" | "double" | "duration" | "int" | "list" | "map" | "null_type" | "string"
            | "timestamp" | "type" | "uint" | "optional_type" => Type::Unknown,
            name if name.starts_with('@') || name.starts_with("__") => Type::Unknown,
            "authorizer" => {
                let text = "the variable 'authorizer' is not supported by this server".to_owned();
                self.problems.push((part, text));
                Type::Unknown
            }
            name => {
                self.problems.push((part, undeclared(name)));
                Type::Unknown
            }
        }
    }

    fn map(&mut self, map: &MapExpr) -> Type {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for entry in &map.entries {
            if let EntryExpr::MapEntry(entry) = &entry.expr {
                keys.push(self.visit(&entry.key));
                let value = self.visit(&entry.value);
                values.push(if entry.optional { Type::Unknown } else { value });
            }
        }
        let [key, value] = [keys, values].map(|types| types.into_iter().reduce(Type::join));
        Type::Map(
            Box::new(key.unwrap_or(Type::Dyn)),
            Box::new(value.unwrap_or(Type::Dyn)),
        )
    }

    fn literal(&mut self, part: u64, literal: &StructExpr) -> Type {
        let name = literal.type_name.as_str();
        if !self.declared.has_literal(name) {
            self.problems.push((part, undeclared(name)));
            return Type::Unknown;
        }
        let of = Type::Literal(name.to_owned());
        for entry in &literal.entries {
            let part = entry.id;
            let EntryExpr::StructField(entry) = &entry.expr else {
                continue;
            };
            let given = self.visit(&entry.value);
            let given = if let (Type::Optional(inner), true) = (&given, entry.optional) {
                (**inner).clone()
            } else {
                given
            };
            let field = of.field(&entry.field).unwrap_or(Type::Unknown);
            let is_accepted = [&field, &given]
                .into_iter()
                .any(|of| matches!(of, Type::Unknown | Type::Dyn));
            if !is_accepted && field != given {
                let text = format!(
                    "expected type of field '{}' is '{field}' but provided type is '{given}'",
                    entry.field
                );
                self.problems.push((part, text));
            }
        }
        of
    }

    fn operation(&mut self, part: u64, call: &CallExpr) -> Type {
        let name = call.func_name.as_str();
        let operands: Vec<Type> = call.args.iter().map(|arg| self.visit(arg)).collect();
        if operands::is_logical(name) {
            for (arg, of) in call.args.iter().zip(&operands) {
                let error = operands::logical_error(of).map(|error| (arg.id, error));
                self.problems.extend(error);
            }
            return BOOL;
        }
        match operands::operator_error(name, &operands) {
            Some(error) => {
                self.problems.push((part, error));
                Type::Unknown
            }
            None => result_of(name, None, &operands),
        }
    }

    fn call(&mut self, part: u64, call: &CallExpr) -> Type {
        let name = call.func_name.as_str();
        if call.target.is_none() && operands::is_operator(name) {
            return self.operation(part, call);
        }
        let prefix = match call.target.as_deref().map(|target| &target.expr) {
            Some(Expr::Ident(prefix)) => Some(prefix.as_str()),
            Some(_) | None => None,
        };
        let is_declared = prefix.is_some_and(|prefix| {
            self.declared.find(prefix).is_some() || self.loops.iter().any(|(known, _)| known == prefix)
        });
        // A prefix that is no variable is part of the name of the function.
        let is_namespace = prefix.is_some_and(|prefix| {
            !is_declared && prefix != "authorizer" && self.has_function(name, Some(prefix))
        });
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        let target = call
            .target
            .as_deref()
            .filter(|_| !is_namespace)
            .map(|target| self.visit(target));
        // Only the functions of patches have a prefix that is undeclared elsewhere.
        let is_checked = self.problems.is_empty() || prefix == Some(PATCH_FUNCTIONS);
        if !is_operator && is_checked && !self.has_function(name, prefix) {
            self.problems.push((part, undeclared(name)));
        }
        let args: Vec<Type> = call.args.iter().map(|arg| self.visit(arg)).collect();
        let wrong = match &args[..] {
            [arg] if prefix == Some(PATCH_FUNCTIONS) && is_namespace && !arg.may_be(&STRING) => {
                let function = format!("{PATCH_FUNCTIONS}.{name}");
                Some(operands::error(&function, None, &args)).filter(|_| *arg != Type::Dyn)
            }
            args => operands::call_error(name, target.as_ref(), args),
        };
        if let Some(error) = wrong {
            self.problems.push((part, error));
            return Type::Unknown;
        }
        match (name, &call.args[..]) {
            (operators::OPT_SELECT, [_, field]) => optional_field(&args[0], field),
            _ if is_namespace => Type::Unknown,
            _ => result_of(name, target.as_ref(), &args),
        }
    }

    /// Returns true if the expression can call a function.
    fn has_function(&self, name: &str, prefix: Option<&str>) -> bool {
        let is_known = prefix != Some(PATCH_FUNCTIONS) || self.declared.has_patches;
        is_known && cel::is_function(name, prefix)
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Type {
        let range = self.visit(&comprehension.iter_range);
        let depth = self.loops.len();
        let mut start = self.visit(&comprehension.accu_init);
        if let Expr::List(list) = &comprehension.accu_init.expr
            && list.elements.is_empty()
        {
            // The steps of a macro determine the type of the items.
            start = Type::list_of(Type::Unknown);
        }
        let (first, second) = match &comprehension.iter_var2 {
            Some(second) => (Type::Unknown, Some((second.clone(), range.member()))),
            None => (range.element(), None),
        };
        self.loops.push((comprehension.iter_var.clone(), first));
        self.loops.extend(second);
        self.loops.push((comprehension.accu_var.clone(), start.clone()));
        self.visit(&comprehension.loop_cond);
        let step = self.visit(&comprehension.loop_step);
        let result = self.visit(&comprehension.result);
        self.loops.truncate(depth);
        if result == Type::list_of(Type::Unknown) {
            return step;
        }
        result
    }
}

/// Returns the type of an optional selection.
fn optional_field(object: &Type, field: &IdedExpr) -> Type {
    let Expr::Literal(LiteralValue::String(field)) = &field.expr else {
        return Type::Unknown;
    };
    let of = object.field(field.inner()).unwrap_or(Type::Unknown);
    if let Type::Optional(_) = of {
        of
    } else {
        Type::Optional(Box::new(of))
    }
}

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{name}' (in container '')")
}

/// Returns the type of the result of a call.
fn result_of(function: &str, target: Option<&Type>, args: &[Type]) -> Type {
    let boxed = |inner: &Type| Type::Optional(Box::new(inner.clone()));
    match (function, target, args) {
        (
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::IN
            | operators::NOT_STRICTLY_FALSE,
            None,
            _,
        )
        | ("matches" | "startsWith" | "endsWith" | "contains" | "hasValue", Some(_), _)
        | ("bool", None, [_]) => BOOL,
        (operators::CONDITIONAL, None, [_, one, other]) => one.clone().join(other.clone()),
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO,
            None,
            [left, right],
        ) => match (left, right) {
            (Type::Dyn, Type::Dyn) => Type::Dyn,
            (Type::Dyn, known) | (known, Type::Dyn) if is_plain(known) => known.clone(),
            (left, right) if left == right && is_plain(left) => left.clone(),
            (Type::List(left), Type::List(right)) if left == right || **left == Type::Unknown => {
                Type::List(right.clone())
            }
            (_, _) => Type::Unknown,
        },
        (operators::NEGATE, None, [of]) => of.clone(),
        (operators::INDEX, None, [of, _]) => of.member(),
        (operators::OPT_INDEX, None, [of, _]) => boxed(&of.member()),
        ("orValue", Some(Type::Optional(inner)), [other]) => (**inner).clone().join(other.clone()),
        ("value", Some(Type::Optional(inner)), []) => (**inner).clone(),
        ("size", _, _) | ("indexOf" | "lastIndexOf", Some(_), _) | ("int", None, [_]) => INT,
        ("uint", None, [_]) => UINT,
        ("double", None, [_]) => DOUBLE,
        ("bytes", None, [_]) => BYTES,
        ("string", None, [_])
        | (
            "charAt" | "format" | "join" | "lowerAscii" | "replace" | "substring" | "trim" | "upperAscii",
            Some(_),
            _,
        ) => STRING,
        ("split", Some(_), _) => Type::list_of(STRING),
        ("timestamp", None, [_]) => TIMESTAMP,
        ("duration", None, [_]) => DURATION,
        ("dyn", None, [_]) => Type::Dyn,
        (_, _, _) => Type::Unknown,
    }
}

/// Returns true for types of which the operands of an operator have the same.
fn is_plain(of: &Type) -> bool {
    [INT, UINT, DOUBLE, STRING, BYTES].contains(of)
}
