//! Types and overloads of the parts of an expression, as the type checker of `cel-go` finds them.
//!
//! This checker reports no errors: a part with a type error has the type [`Type::Error`].

use std::collections::HashMap;

use kube_cel::cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, ListExpr, LiteralValue, SelectExpr,
        operators,
    },
};

use super::{decl::Decl, functions, types::Bindings, types::Object, types::Type};

/// Type names that are variables.
const TYPE_NAMES: [&str; 13] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// Maximum number of parts of a type. Each macro that builds a map of its variable doubles them.
const PARTS_MAX: usize = 1_000;

/// Overload of `a.?b`, which is not in the table because its result depends on the field.
const SELECT_OPTIONAL: &str = "select_optional_field";

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
pub(super) struct Typing<'d> {
    types: HashMap<u64, Type<'d>>,
    calls: HashMap<u64, Call>,
}

impl<'d> Typing<'d> {
    /// Returns the types in a rule or message expression at a node.
    pub(super) fn of(expr: &IdedExpr, node: &'d Decl, optional_old_self: bool) -> Self {
        let own = Type::of(node);
        let old = match optional_old_self {
            true => Type::optional(own.clone()),
            false => own.clone(),
        };
        let mut checker = Checker {
            bindings: Bindings::default(),
            variables: vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)],
            found: Self::default(),
        };
        checker.check(expr);
        let Checker {
            bindings, mut found, ..
        } = checker;
        for type_ in found.types.values_mut() {
            *type_ = bindings.resolve_wholly(type_);
        }
        found
    }

    pub(super) fn type_of(&self, expr: &IdedExpr) -> Type<'d> {
        self.types.get(&expr.id).cloned().unwrap_or(Type::Error)
    }

    /// Returns the call of an expression, or `None` if no overload fits.
    pub(super) fn call(&self, expr: &IdedExpr) -> Option<&Call> {
        self.calls.get(&expr.id)
    }
}

struct Checker<'d> {
    bindings: Bindings<'d>,
    /// Variables in scope, innermost last.
    variables: Vec<(String, Type<'d>)>,
    found: Typing<'d>,
}

impl<'d> Checker<'d> {
    fn check(&mut self, expr: &IdedExpr) -> Type<'d> {
        let found = match &expr.expr {
            Expr::Unspecified => Type::Error,
            Expr::Literal(literal) => of_literal(literal),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(_) if type_name(expr).is_some() => Type::Meta,
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(expr.id, call),
            Expr::List(list) => self.list(list),
            Expr::Map(map) => self.map(&map.entries),
            Expr::Struct(_) => Type::Error,
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

    fn variable(&self, name: &str) -> Type<'d> {
        let mut inner_first = self.variables.iter().rev();
        match inner_first.find(|(known, _)| known == name) {
            Some((_, known)) => known.clone(),
            None if TYPE_NAMES.contains(&name) => Type::Meta,
            None => Type::Error,
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Type<'d> {
        let selected = self.field(&select.operand, &select.field, false);
        if select.test {
            Type::Bool
        } else {
            self.bindings.resolve(&selected)
        }
    }

    fn field(&mut self, operand: &IdedExpr, field: &str, is_optional: bool) -> Type<'d> {
        let operand = self.check(operand);
        let (target, was_optional) = self.bindings.resolve(&operand).unwrapped();
        let selected = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(Object(decl)) => decl.field(field).map_or(Type::Error, Type::of),
            Type::Library(_) => Type::Error,
            Type::Parameter(parameter) => {
                self.bindings.assign(&Type::Dyn, &Type::Parameter(parameter));
                Type::Dyn
            }
            Type::Error
            | Type::Dyn
            | Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Text
            | Type::Bytes
            | Type::Timestamp
            | Type::Duration
            | Type::Meta
            | Type::List(_)
            | Type::Opaque(..) => Type::Dyn,
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
        let mut arguments: Vec<Type<'d>> = call.args.iter().map(|argument| self.check(argument)).collect();
        let name = call.func_name.trim_start_matches('.');
        let Some(target) = call.target.as_deref() else {
            return self.resolve(id, name.to_owned(), false, &arguments);
        };
        let qualified = qualified(target).map(|prefix| format!("{prefix}.{name}"));
        if let Some(qualified) = qualified.filter(|name| functions::overloads(name).is_some()) {
            return self.resolve(id, qualified, false, &arguments);
        }
        let target = self.check(target);
        arguments.insert(0, target);
        self.resolve(id, name.to_owned(), true, &arguments)
    }

    fn select_optional(&mut self, id: u64, call: &CallExpr) -> Type<'d> {
        let [operand, field] = &call.args[..] else {
            return Type::Error;
        };
        let Expr::Literal(LiteralValue::String(name)) = &field.expr else {
            return Type::Error;
        };
        let selected = self.field(operand, name.inner(), true);
        let resolved = Call {
            function: call.func_name.clone(),
            overloads: vec![SELECT_OPTIONAL],
            is_method: false,
        };
        self.found.calls.insert(id, resolved);
        self.bindings.resolve(&selected)
    }

    /// Finds all overloads that fit. Returns their common result type.
    fn resolve(&mut self, id: u64, function: String, is_method: bool, arguments: &[Type<'d>]) -> Type<'d> {
        let candidates = match is_method {
            true => functions::overloads(&format!(".{function}")),
            false => functions::overloads(&function),
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
        if !overloads.is_empty() {
            let call = Call {
                function,
                overloads,
                is_method,
            };
            self.found.calls.insert(id, call);
        }
        result.unwrap_or(Type::Error)
    }

    fn list(&mut self, list: &ListExpr) -> Type<'d> {
        let mut items = None;
        for (index, item) in list.elements.iter().enumerate() {
            let mut item = self.check(item);
            if list.optional_indices.contains(&index) {
                item = item.unwrapped().0;
            }
            items = Some(self.bindings.join(items, item));
        }
        Type::list(items.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn map(&mut self, entries: &[IdedEntryExpr]) -> Type<'d> {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                continue;
            };
            let key = self.check(&entry.key);
            keys = Some(self.bindings.join(keys, key));
            let mut value = self.check(&entry.value);
            if entry.optional {
                value = value.unwrapped().0;
            }
            values = Some(self.bindings.join(values, value));
        }
        let keys = keys.unwrap_or_else(|| self.bindings.fresh());
        let values = values.unwrap_or_else(|| self.bindings.fresh());
        Type::map(keys, values)
    }

    /// Checks a macro. The parser knows no macros with two variables.
    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Type<'d> {
        let range = self.check(&comprehension.iter_range);
        let start = self.check(&comprehension.accu_init);
        let item = match self.bindings.resolve(&range) {
            Type::List(item) => (*item).clone(),
            Type::Map(entry) => entry.0.clone(),
            Type::Parameter(parameter) => {
                self.bindings.assign(&Type::Dyn, &Type::Parameter(parameter));
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Text
            | Type::Bytes
            | Type::Timestamp
            | Type::Duration
            | Type::Meta
            | Type::Library(_)
            | Type::Object(_)
            | Type::Opaque(..) => Type::Error,
        };
        self.variables
            .push((comprehension.accu_var.clone(), start.clone()));
        self.variables.push((comprehension.iter_var.clone(), item));
        let condition = self.check(&comprehension.loop_cond);
        self.bindings.assign(&Type::Bool, &condition);
        let step = self.check(&comprehension.loop_step);
        self.bindings.assign(&start, &step);
        self.variables.pop();
        let result = self.check(&comprehension.result);
        self.variables.pop();
        self.bindings.resolve(&result)
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

/// Returns the name of a type with a prefix, such as `google.protobuf.Duration`.
pub(super) fn type_name(expr: &IdedExpr) -> Option<String> {
    qualified(expr).filter(|name| name.contains('.') && TYPE_NAMES.contains(&name.as_str()))
}

/// Returns the text of a name such as `a.b`.
fn qualified(expr: &IdedExpr) -> Option<String> {
    if let Expr::Ident(name) = &expr.expr {
        return Some(name.clone());
    }
    let Expr::Select(select) = &expr.expr else {
        return None;
    };
    let prefix = qualified(&select.operand).filter(|_| !select.test)?;
    Some(format!("{prefix}.{}", select.field))
}
