//! Macros that the `cel` crate does not expand: those with two variables, `optMap`, `optFlatMap` and `sortBy`.
//!
//! The identifier of a new part has the identifier of the call in its lower half, which gives errors
//! their place.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapExpr, operators},
};

use super::keywords::RESERVED;
use super::parts::parts_mut;

/// Variable in which a macro accumulates its result.
pub(super) const ACCUMULATOR: &str = "@result";
/// Variable of a comprehension without items.
const UNUSED: &str = "#unused";
/// Sorts a list by the list of the keys of its items.
pub(super) const SORT_BY_KEYS: &str = "@sortByAssociatedKeys";
/// Variable for the list that `sortBy` sorts.
const SORTED: &str = "@__sortBy_input__";
/// Adds entries to a map: those of another map, or a key and a value.
pub(super) const MAP_INSERT: &str = "cel.@mapInsert";

/// Error of a name in backticks: at the first field of an object literal, or at the name of a selected field.
pub(super) const QUOTED_NAME: &str = "unsupported syntax: '`'";

/// Part of the expression and the reason why it is rejected.
type Problem = (u64, String);

/// Returns the identifier of the part of the source that an expression stems from.
pub(super) fn origin(id: u64) -> u64 {
    id & u64::from(u32::MAX)
}

/// Expands the macros of a parsed expression. Returns the problems of their arguments.
pub(super) fn expand(expr: &mut IdedExpr) -> Vec<Problem> {
    let mut expander = Expander {
        made: 0,
        problems: Vec::new(),
    };
    expander.visit(expr);
    expander.problems
}

struct Expander {
    /// Number of new parts.
    made: u64,
    problems: Vec<Problem>,
}

/// Comprehension without its range.
struct Loop {
    variables: [String; 2],
    start: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

impl Expander {
    fn visit(&mut self, expr: &mut IdedExpr) {
        for part in parts_mut(&mut expr.expr) {
            self.visit(part);
        }
        if let Expr::Ident(name) = &expr.expr {
            self.check_name(expr.id, name);
        } else if has_quoted_name(&expr.expr) {
            self.problems.push((expr.id, QUOTED_NAME.to_owned()));
        }
        let Expr::Call(call) = &mut expr.expr else { return };
        if call.target.is_none() {
            self.check_name(expr.id, &call.func_name);
        }
        let has_target = call.target.is_some();
        let expansion = match (call.func_name.as_str(), call.args.len()) {
            ("all" | "exists" | "existsOne" | "exists_one", 3)
            | ("transformList" | "transformMap" | "transformMapEntry", 3 | 4)
                if has_target =>
            {
                let call = std::mem::take(call);
                self.of_pairs(expr.id, call)
            }
            ("optMap" | "optFlatMap", 2) if has_target => {
                let call = std::mem::take(call);
                self.of_optional(expr.id, call)
            }
            ("sortBy", 2) if has_target => {
                let call = std::mem::take(call);
                self.sort_by(expr.id, call)
            }
            _ => return,
        };
        match expansion {
            Ok(expansion) => expr.expr = expansion,
            Err(problem) => self.problems.push(problem),
        }
    }

    /// Reports names of variables and functions that are keywords.
    fn check_name(&mut self, part: u64, name: &str) {
        let name = name.trim_start_matches('.');
        if RESERVED.contains(&name) {
            self.problems.push((part, format!("reserved identifier: {name}")));
        }
    }

    fn part(&mut self, at: u64, expr: Expr) -> IdedExpr {
        self.made += 1;
        IdedExpr {
            id: origin(at) | self.made << 32,
            expr,
        }
    }

    fn accumulator(&mut self, at: u64) -> IdedExpr {
        self.part(at, Expr::Ident(ACCUMULATOR.to_owned()))
    }

    /// Returns a copy with new identifiers.
    fn copy(&mut self, expr: &IdedExpr) -> IdedExpr {
        let mut copy = expr.clone();
        self.renew(&mut copy);
        copy
    }

    fn renew(&mut self, expr: &mut IdedExpr) {
        self.made += 1;
        expr.id = origin(expr.id) | self.made << 32;
        for part in parts_mut(&mut expr.expr) {
            self.renew(part);
        }
    }

    /// Expands a macro with two variables.
    fn of_pairs(&mut self, at: u64, call: CallExpr) -> Result<Expr, Problem> {
        let CallExpr {
            func_name,
            target,
            mut args,
        } = call;
        let variables = variables(&args)?;
        let body = args.split_off(2);
        let parts = match func_name.as_str() {
            "all" | "exists" => self.quantifier(at, func_name == "all", variables, body),
            "existsOne" | "exists_one" => self.exists_one(at, variables, body),
            _ => self.transform(at, &func_name, variables, body),
        };
        let [first, second] = parts.variables;
        let comprehension = ComprehensionExpr {
            iter_range: target.map_or_else(IdedExpr::default, |target| *target),
            iter_var: first,
            iter_var2: Some(second),
            accu_var: ACCUMULATOR.to_owned(),
            accu_init: self.part(at, parts.start),
            loop_cond: self.part(at, parts.condition),
            loop_step: self.part(at, parts.step),
            result: self.part(at, parts.result),
        };
        Ok(Expr::Comprehension(Box::new(comprehension)))
    }

    fn quantifier(&mut self, at: u64, is_all: bool, variables: [String; 2], body: Vec<IdedExpr>) -> Loop {
        let mut continues = self.accumulator(at);
        if !is_all {
            let negated = operation(operators::LOGICAL_NOT, vec![continues]);
            continues = self.part(at, negated);
        }
        let operator = if is_all {
            operators::LOGICAL_AND
        } else {
            operators::LOGICAL_OR
        };
        let operands = std::iter::once(self.accumulator(at)).chain(body).collect();
        Loop {
            variables,
            start: boolean(is_all),
            condition: operation(operators::NOT_STRICTLY_FALSE, vec![continues]),
            step: operation(operator, operands),
            result: Expr::Ident(ACCUMULATOR.to_owned()),
        }
    }

    fn exists_one(&mut self, at: u64, variables: [String; 2], body: Vec<IdedExpr>) -> Loop {
        let sum = vec![self.accumulator(at), self.part(at, integer(1))];
        let sum = operation(operators::ADD, sum);
        let mut choice = body;
        choice.push(self.part(at, sum));
        choice.push(self.accumulator(at));
        let compared = vec![self.accumulator(at), self.part(at, integer(1))];
        Loop {
            variables,
            start: integer(0),
            condition: boolean(true),
            step: operation(operators::CONDITIONAL, choice),
            result: operation(operators::EQUALS, compared),
        }
    }

    fn transform(&mut self, at: u64, name: &str, variables: [String; 2], mut body: Vec<IdedExpr>) -> Loop {
        let transformed: Vec<IdedExpr> = body.pop().into_iter().collect();
        let mut added = vec![self.accumulator(at)];
        let (start, step) = match name {
            "transformList" => {
                added.push(self.part(at, Expr::List(ListExpr::new(transformed))));
                let step = operation(operators::ADD, added);
                (Expr::List(ListExpr::new(Vec::new())), step)
            }
            name => {
                if name == "transformMap" {
                    added.push(self.part(at, Expr::Ident(variables[0].clone())));
                }
                added.extend(transformed);
                let step = operation(MAP_INSERT, added);
                (Expr::Map(MapExpr::default()), step)
            }
        };
        let step = match body.pop() {
            Some(filter) => {
                let choice = vec![filter, self.part(at, step), self.accumulator(at)];
                operation(operators::CONDITIONAL, choice)
            }
            None => step,
        };
        Loop {
            variables,
            start,
            condition: boolean(true),
            step,
            result: Expr::Ident(ACCUMULATOR.to_owned()),
        }
    }

    /// Expands `optMap` or `optFlatMap`.
    fn of_optional(&mut self, at: u64, call: CallExpr) -> Result<Expr, Problem> {
        let CallExpr {
            func_name,
            target,
            mut args,
        } = call;
        let target = target.map_or_else(IdedExpr::default, |target| *target);
        let body = args.pop().unwrap_or_default();
        let Expr::Ident(name) = &args[0].expr else {
            let text = format!("{func_name}() variable name must be a simple identifier");
            return Err((args[0].id, text));
        };
        let copy = self.copy(&target);
        let mut method = |name: &str, target: IdedExpr, args: Vec<IdedExpr>| {
            let call = CallExpr {
                func_name: name.to_owned(),
                target: Some(Box::new(target)),
                args,
            };
            self.part(at, Expr::Call(call))
        };
        let value = method("value", copy, Vec::new());
        let has_value = method("hasValue", target, Vec::new());
        let bound = self.bind(at, name, value, body);
        let mut result = self.part(at, bound);
        if func_name == "optMap" {
            result = self.of_optional_type(at, "of", vec![result]);
        }
        let none = self.of_optional_type(at, "none", Vec::new());
        Ok(operation(operators::CONDITIONAL, vec![has_value, result, none]))
    }

    /// Returns `result` with a variable of this value.
    fn bind(&mut self, at: u64, name: &str, value: IdedExpr, result: IdedExpr) -> Expr {
        Expr::Comprehension(Box::new(ComprehensionExpr {
            iter_range: self.part(at, Expr::List(ListExpr::new(Vec::new()))),
            iter_var: UNUSED.to_owned(),
            iter_var2: None,
            accu_var: name.to_owned(),
            accu_init: value,
            loop_cond: self.part(at, boolean(false)),
            loop_step: self.part(at, Expr::Ident(name.to_owned())),
            result,
        }))
    }

    /// Expands `sortBy`: sorts a list by the results of `map` with the same variable and expression.
    fn sort_by(&mut self, at: u64, call: CallExpr) -> Result<Expr, Problem> {
        let list = call.target.map_or_else(IdedExpr::default, |target| *target);
        if let Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_) = &list.expr {
            let text =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err((list.id, text.to_owned()));
        }
        let mut args = call.args;
        let key = args.pop().unwrap_or_default();
        let Expr::Ident(variable) = &args[0].expr else {
            return Err((args[0].id, "argument is not an identifier".to_owned()));
        };
        if variable == ACCUMULATOR || variable == "__result__" {
            let text = "iteration variable overwrites accumulator variable";
            return Err((args[0].id, text.to_owned()));
        }
        let mut input = || self.part(at, Expr::Ident(SORTED.to_owned()));
        let (range, target) = (input(), input());
        let keys = self.part(at, Expr::List(ListExpr::new(vec![key])));
        let added = vec![self.accumulator(at), keys];
        let keys = ComprehensionExpr {
            iter_range: range,
            iter_var: variable.clone(),
            iter_var2: None,
            accu_var: ACCUMULATOR.to_owned(),
            accu_init: self.part(at, Expr::List(ListExpr::new(Vec::new()))),
            loop_cond: self.part(at, boolean(true)),
            loop_step: self.part(at, operation(operators::ADD, added)),
            result: self.accumulator(at),
        };
        let keys = self.part(at, Expr::Comprehension(Box::new(keys)));
        let sorted = CallExpr {
            func_name: SORT_BY_KEYS.to_owned(),
            target: Some(Box::new(target)),
            args: vec![keys],
        };
        let sorted = self.part(at, Expr::Call(sorted));
        Ok(self.bind(at, SORTED, list, sorted))
    }

    fn of_optional_type(&mut self, at: u64, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
        let prefix = self.part(at, Expr::Ident("optional".to_owned()));
        let call = CallExpr {
            func_name: function.to_owned(),
            target: Some(Box::new(prefix)),
            args,
        };
        self.part(at, Expr::Call(call))
    }
}

/// Returns true for a selection of a field, or for an object literal, with a name in backticks.
fn has_quoted_name(expr: &Expr) -> bool {
    if let Expr::Call(call) = expr {
        let field = call.args.last().map(|field| &field.expr);
        return call.func_name == operators::OPT_SELECT
            && matches!(field, Some(Expr::Literal(LiteralValue::String(name))) if name.inner().starts_with('`'));
    }
    if let Expr::Struct(literal) = expr {
        let fields = literal.entries.iter();
        fields
            .map(|entry| &entry.expr)
            .any(|entry| matches!(entry, EntryExpr::StructField(field) if field.field.starts_with('`')))
    } else {
        matches!(expr, Expr::Select(select) if select.field.starts_with('`'))
    }
}

/// Returns the names of the variables, the first two arguments.
fn variables(args: &[IdedExpr]) -> Result<[String; 2], Problem> {
    let name = |argument: &IdedExpr| {
        if let Expr::Ident(name) = &argument.expr {
            Ok(name.clone())
        } else {
            Err((argument.id, "argument must be a simple name".to_owned()))
        }
    };
    let names = [name(&args[0])?, name(&args[1])?];
    if names[0] == names[1] {
        return Err((args[1].id, format!("duplicate variable name: {}", names[0])));
    }
    if let Some(index) = names.iter().position(|name| name == "__result__") {
        let text = "iteration variable overwrites accumulator variable";
        return Err((args[index].id, text.to_owned()));
    }
    Ok(names)
}

fn operation(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    })
}

fn boolean(value: bool) -> Expr {
    Expr::Literal(LiteralValue::Boolean(value.into()))
}

fn integer(value: i64) -> Expr {
    Expr::Literal(LiteralValue::Int(value.into()))
}
