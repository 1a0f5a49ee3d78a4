//! Expressions over values without a schema: those of admission policies.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{CallExpr, Expr, LiteralValue},
    context::VariableResolver,
    objects::{Key, Map as CelMap},
};
use serde_json::{Map, Value, json};

use super::authorizer::{
    self, AUTHORIZER, Authorizer, REQUEST_RESOURCE, REQUEST_RESOURCE_VARIABLE, ResourceAccess,
};
use super::names::MEMBER;
use super::parts::parts_mut;
use super::problem::CompilationError;
use super::{LIBRARY, OUT_OF_BUDGET, budget, error_text, lists, logic, message, pairs, parse, shape};
use crate::node::Node;

/// Variable with the fields of the composed variables of a policy.
pub const COMPOSED: &str = "variables";
/// Error of an expression that is too expensive.
const CANCELLED: &str = "operation cancelled: actual cost limit exceeded";
/// Prefix of the name of a composed variable.
const COMPOSED_PREFIX: &str = "@variables.";

/// Values of an expression, by name.
pub type Variables = Context<'static>;

/// Compiled expression.
#[derive(Debug)]
pub struct Program {
    expr: IdedExpr,
    /// Variables for the comparison of optional values.
    shapes: Vec<(String, Cel)>,
    /// Variables that the expression uses as a whole, and variables of which it uses fields.
    wholes: BTreeSet<String>,
    parents: BTreeSet<String>,
}

/// Node without a type.
static UNTYPED: LazyLock<Node> = LazyLock::new(|| Node::compile(&json!({}), |_, _| Vec::new()));

impl Program {
    /// Compiles an expression. `roots` are the names of its variables.
    pub fn compile(source: &str, roots: &[&str]) -> Result<Self, CompilationError> {
        let mut shapes = lists::Shapes::default();
        let typed = lists::typed(parse(source)?, &UNTYPED, &mut shapes);
        let mut expr = logic::replaced(pairs::replaced(typed));
        let mut rewrite = Rewrite {
            roots,
            bound: Vec::new(),
            wholes: BTreeSet::new(),
            parents: BTreeSet::new(),
        };
        rewrite.visit(&mut expr);
        Ok(Self {
            wholes: rewrite.wholes,
            parents: rewrite.parents,
            expr: budget::metered(expr, roots),
            shapes: shapes.into_variables(),
        })
    }

    /// Returns true if the expression uses the permissions of the user.
    pub fn uses_authorizer(&self) -> bool {
        let names = [AUTHORIZER, REQUEST_RESOURCE_VARIABLE];
        names.iter().any(|name| self.wholes.contains(*name))
    }

    /// Returns true if the expression uses the whole variable, and true if it uses fields.
    pub fn uses(&self, root: &str) -> (bool, bool) {
        (self.wholes.contains(root), self.parents.contains(root))
    }

    /// Evaluates the expression. `composed` returns the value of a composed variable.
    pub fn evaluate(
        &self,
        variables: &Variables,
        composed: &(dyn Fn(&str) -> Option<Result<Cel, String>> + Send + Sync),
    ) -> Result<Cel, String> {
        let composed = Composed(composed);
        let mut scope = variables.new_inner_scope();
        for (name, shape) in &self.shapes {
            scope.add_variable_from_value(name.as_str(), shape.clone());
        }
        scope.set_variable_resolver(&composed);
        let (outcome, is_cancelled) = budget::of_call(|| Cel::resolve(&self.expr, &scope));
        if budget::is_spent() {
            return Err(OUT_OF_BUDGET.to_owned());
        }
        if is_cancelled {
            return Err(CANCELLED.to_owned());
        }
        outcome.map_err(|err| {
            if let ExecutionError::UndeclaredReference(name) = &err {
                composed.failure(name)
            } else {
                error_text(&err)
            }
        })
    }
}

/// Returns true if the last evaluations spent the budget.
pub fn is_out_of_budget() -> bool {
    budget::is_spent()
}

/// Resolves composed variables. The crate has no errors of variables: a variable that fails is
/// undeclared.
struct Composed<'a>(&'a (dyn Fn(&str) -> Option<Result<Cel, String>> + Send + Sync));

impl VariableResolver for Composed<'_> {
    fn resolve(&self, variable: &str) -> Option<Cel> {
        (self.0)(variable.strip_prefix(COMPOSED_PREFIX)?)?.ok()
    }
}

impl Composed<'_> {
    fn failure(&self, variable: &str) -> String {
        let name = variable.strip_prefix(COMPOSED_PREFIX);
        match name.and_then(|name| Some((name, (self.0)(name)?.err()?))) {
            Some((name, reason)) => format!("composited variable {name:?} fails to evaluate: {reason}"),
            None => format!("no such attribute(s): {}", variable.trim_start_matches('@')),
        }
    }
}

/// Expressions that share a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    MatchConditions,
    Expressions,
}

/// Starts a new budget.
pub fn start(phase: Phase) {
    match phase {
        Phase::MatchConditions => budget::refill_for_conditions(),
        Phase::Expressions => budget::refill(),
    }
}

/// Returns new variables.
pub fn variables() -> Variables {
    LIBRARY.new_inner_scope()
}

/// Adds the variables with the permissions of the user. `resource` is the resource of the request.
pub fn add_authorizer(variables: &mut Variables, authorizer: &Arc<dyn Authorizer>, resource: ResourceAccess) {
    variables.add_variable_from_value(AUTHORIZER, authorizer::value(authorizer));
    let resource = authorizer::resource_value(authorizer, resource);
    variables.add_variable_from_value(REQUEST_RESOURCE_VARIABLE, resource);
}

/// Adds a variable for a program that uses it.
pub fn add(variables: &mut Variables, root: &str, value: &Value, uses: (bool, bool)) {
    let value = to_cel(value);
    if uses.1 {
        // A null has no fields.
        let fields = if let Cel::Map(_) = &value {
            value.clone()
        } else {
            object_to_cel(&Map::new())
        };
        variables.add_variable_from_value(fields_of(root), fields);
    }
    if uses.0 {
        variables.add_variable_from_value(root, value);
    }
}

/// Returns the name of the variable with the fields of a root.
fn fields_of(root: &str) -> String {
    format!("@{root}")
}

/// Converts a value. Names of fields are not escaped.
fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => object_to_cel(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => super::to_cel(value, None),
    }
}

fn object_to_cel(fields: &Map<String, Value>) -> Cel {
    let entry = |(name, field): (&String, &Value)| (Key::String(Arc::new(name.clone())), to_cel(field));
    Cel::Map(CelMap {
        map: Arc::new(fields.iter().map(entry).collect()),
    })
}

/// Replacement of selections.
struct Rewrite<'a> {
    roots: &'a [&'a str],
    /// Variables of the loops around the expression.
    bound: Vec<String>,
    wholes: BTreeSet<String>,
    parents: BTreeSet<String>,
}

impl Rewrite<'_> {
    fn visit(&mut self, expr: &mut IdedExpr) {
        let id = expr.id;
        match &mut expr.expr {
            Expr::Comprehension(comprehension) => {
                self.visit(&mut comprehension.iter_range);
                self.visit(&mut comprehension.accu_init);
                let outer = self.bound.len();
                self.bound.push(comprehension.iter_var.clone());
                self.bound.extend(comprehension.iter_var2.clone());
                self.bound.push(comprehension.accu_var.clone());
                self.visit(&mut comprehension.loop_cond);
                self.visit(&mut comprehension.loop_step);
                self.visit(&mut comprehension.result);
                self.bound.truncate(outer);
            }
            Expr::Select(select) => {
                let name = if let Expr::Ident(name) = &select.operand.expr {
                    Some(name)
                } else {
                    None
                };
                let free = name.filter(|name| !self.bound.contains(name)).map(String::as_str);
                match free {
                    Some(COMPOSED) if select.test => {
                        expr.expr = Expr::Literal(LiteralValue::Boolean(true.into()));
                    }
                    Some(COMPOSED) => expr.expr = Expr::Ident(format!("{COMPOSED_PREFIX}{}", select.field)),
                    Some(AUTHORIZER) if select.field == REQUEST_RESOURCE => {
                        self.wholes.insert(REQUEST_RESOURCE_VARIABLE.to_owned());
                        expr.expr = Expr::Ident(REQUEST_RESOURCE_VARIABLE.to_owned());
                    }
                    Some(name) if self.roots.contains(&name) => {
                        self.parents.insert(name.to_owned());
                        select.operand.expr = Expr::Ident(fields_of(name));
                    }
                    _ => {
                        self.visit(&mut select.operand);
                        if !select.test {
                            let field = LiteralValue::String(select.field.as_str().into());
                            let field = IdedExpr {
                                id,
                                expr: Expr::Literal(field),
                            };
                            let operand = std::mem::take(&mut *select.operand);
                            expr.expr = Expr::Call(CallExpr {
                                func_name: MEMBER.to_owned(),
                                target: None,
                                args: vec![operand, field],
                            });
                        }
                    }
                }
            }
            Expr::Ident(name) => {
                if !self.bound.contains(name) {
                    self.wholes.insert(name.clone());
                }
            }
            other @ (Expr::Unspecified
            | Expr::Call(_)
            | Expr::List(_)
            | Expr::Literal(_)
            | Expr::Map(_)
            | Expr::Struct(_)) => {
                parts_mut(other).into_iter().for_each(|part| self.visit(part));
                if let Expr::Struct(literal) = other {
                    *other = Expr::Call(message::call(id, std::mem::take(literal)));
                }
            }
        }
    }
}

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(MEMBER, member);
}

fn member(object: Cel, field: Arc<String>) -> ResolveResult {
    if let Cel::Map(map) = &object {
        let found = map.map.get(&Key::String(Arc::clone(&field)));
        found.cloned().ok_or(ExecutionError::NoSuchKey(field))
    } else if let Cel::Opaque(_) = &object {
        shape::select(object, field)
    } else if let Cel::List(_) = &object {
        let text = "unsupported index type 'string' in list";
        Err(ExecutionError::function_error("select", text))
    } else {
        Err(ExecutionError::NoSuchKey(field))
    }
}
