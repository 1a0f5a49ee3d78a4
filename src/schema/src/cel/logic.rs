//! Parts of an expression whose errors may not matter.
//!
//! The result of `exists` is true if one item is, although the condition of another item fails; `all` is false
//! likewise. The `cel` crate ends a loop at the first error. Therefore, the compiler replaces the steps of such
//! loops by calls that keep the first error. Alternatives of an optional are evaluated if the optional is empty.

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, FunctionContext, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
    objects::{Opaque, OptionalValue},
};

use super::budget;
use super::macros::ACCUMULATOR;
use super::names::MEMBER;
use super::parts::parts_mut;

/// Combines the results of earlier items with the condition of an item. The last argument is true for `all`.
const COMBINE: &str = "@combine";
/// Returns whether the results so far leave the result open.
const IS_OPEN: &str = "@isOpen";
/// Returns the result of a loop, or its first error.
const OUTCOME: &str = "@outcome";

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(COMBINE, combine);
    context.add_function(IS_OPEN, is_open);
    context.add_function(OUTCOME, outcome);
    context.add_function("or", or);
    context.add_function("orValue", or_value);
}

/// Replaces the steps of loops, and selections from values of any type.
pub(super) fn replaced(mut expr: IdedExpr) -> IdedExpr {
    visit(&mut expr);
    expr
}

fn visit(expr: &mut IdedExpr) {
    parts_mut(&mut expr.expr).into_iter().for_each(visit);
    let id = expr.id;
    if let Expr::Comprehension(comprehension) = &mut expr.expr {
        keep_errors(id, comprehension);
    } else if let Expr::Select(select) = &mut expr.expr
        && !select.test
        && matches!(&select.operand.expr, Expr::Call(call) if ["dyn", MEMBER].contains(&call.func_name.as_str()))
    {
        let field = literal(id, LiteralValue::String(select.field.as_str().into()));
        let operand = std::mem::take(&mut *select.operand);
        expr.expr = call(MEMBER, vec![operand, field]);
    }
}

fn keep_errors(id: u64, comprehension: &mut ComprehensionExpr) {
    if comprehension.accu_var != ACCUMULATOR {
        return;
    }
    let Expr::Call(step) = &mut comprehension.loop_step.expr else {
        return;
    };
    let is_all = match step.func_name.as_str() {
        operators::LOGICAL_AND => true,
        operators::LOGICAL_OR => false,
        _ => return,
    };
    let is_accumulator = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name == ACCUMULATOR);
    if step.args.len() != 2 || !is_accumulator(&step.args[0]) {
        return;
    }
    let kind = || literal(id, LiteralValue::Boolean(is_all.into()));
    let accumulator = || IdedExpr {
        id,
        expr: Expr::Ident(ACCUMULATOR.to_owned()),
    };
    step.func_name = COMBINE.to_owned();
    step.args.push(kind());
    comprehension.loop_cond.expr = call(IS_OPEN, vec![accumulator(), kind()]);
    comprehension.result.expr = call(OUTCOME, vec![accumulator()]);
}

fn literal(id: u64, value: LiteralValue) -> IdedExpr {
    IdedExpr {
        id,
        expr: Expr::Literal(value),
    }
}

fn call(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    })
}

/// Error of an item.
#[derive(Debug)]
struct Failure(ExecutionError);

impl PartialEq for Failure {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Eq for Failure {}

impl Opaque for Failure {
    fn runtime_type_name(&self) -> &str {
        "@failure"
    }
}

fn combine(ftx: &FunctionContext<'_, '_>) -> ResolveResult {
    let [earlier, condition, kind] = ftx.args else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let is_all = Cel::resolve(kind, ftx.ptx)? == Cel::Bool(true);
    let earlier = Cel::resolve(earlier, ftx.ptx)?;
    let found = match Cel::resolve(condition, ftx.ptx) {
        Ok(Cel::Bool(holds)) if holds == is_all => return Ok(earlier),
        Ok(Cel::Bool(holds)) => return Ok(Cel::Bool(holds)),
        Ok(_) => ExecutionError::NoSuchOverload,
        Err(error) => error,
    };
    // Without budget, the loop ends.
    budget::charge(0)?;
    if let Cel::Opaque(_) = earlier {
        return Ok(earlier);
    }
    Ok(Cel::Opaque(Arc::new(Failure(found))))
}

fn is_open(earlier: Cel, is_all: bool) -> ResolveResult {
    let is_decided = matches!(earlier, Cel::Bool(holds) if holds != is_all);
    Ok(Cel::Bool(!is_decided))
}

fn outcome(found: Cel) -> ResolveResult {
    let Cel::Opaque(failure) = &found else {
        return Ok(found);
    };
    match failure.downcast_ref::<Failure>() {
        Some(Failure(error)) => Err(error.clone()),
        None => Ok(found),
    }
}

/// Returns the optional that is the target of a method, and the only argument.
fn target<'c>(ftx: &'c FunctionContext<'_, '_>) -> Result<(&'c OptionalValue, &'c IdedExpr), ExecutionError> {
    let (Some(target), [argument]) = (&ftx.this, ftx.args) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    Ok((target.try_into()?, argument))
}

fn or(ftx: &FunctionContext<'_, '_>) -> ResolveResult {
    let (optional, other) = target(ftx)?;
    match optional.value() {
        Some(value) => Ok(Cel::Opaque(Arc::new(OptionalValue::of(value.clone())))),
        None => Cel::resolve(other, ftx.ptx),
    }
}

fn or_value(ftx: &FunctionContext<'_, '_>) -> ResolveResult {
    let (optional, other) = target(ftx)?;
    match optional.value() {
        Some(value) => Ok(value.clone()),
        None => Cel::resolve(other, ftx.ptx),
    }
}
