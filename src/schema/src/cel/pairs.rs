//! Loops with two variables.
//!
//! The `cel` crate evaluates loops with one variable. Therefore, the compiler replaces the range by
//! the list of its entries, and the variables by selections from an entry.

use std::sync::Arc;

use kube_cel::cel::{
    Context, ExecutionError, IdedExpr, ResolveResult, Value as Cel,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
    extractors::Arguments,
    objects::{Key, Map},
};

use super::budget;
use super::macros::MAP_INSERT;
use super::parts::parts_mut;

/// Returns the entries of a list or map: lists with an index or key, and a value.
const ENTRIES: &str = "@entries";
/// Cost of creating an entry.
const ENTRY: u64 = 32;

pub(super) fn register(context: &mut Context<'static>) {
    context.add_function(ENTRIES, entries);
    context.add_function(MAP_INSERT, insert);
}

/// Replaces the loops with two variables.
pub(super) fn replaced(mut expr: IdedExpr) -> IdedExpr {
    Replacement { scope: Vec::new() }.visit(&mut expr);
    expr
}

struct Replacement {
    /// Variables of the enclosing loops, innermost last. Replaced variables have the entry and the index
    /// in the entry.
    scope: Vec<(String, Option<(String, i64)>)>,
}

impl Replacement {
    fn visit(&mut self, expr: &mut IdedExpr) {
        let id = expr.id;
        match &mut expr.expr {
            Expr::Comprehension(comprehension) => self.visit_loop(id, comprehension),
            Expr::Ident(name) => {
                let mut inner_first = self.scope.iter().rev();
                let known = inner_first.find(|(known, _)| known == name);
                if let Some((_, Some((entry, index)))) = known {
                    expr.expr = item(id, entry, *index);
                }
            }
            other @ (Expr::Unspecified
            | Expr::Call(_)
            | Expr::List(_)
            | Expr::Literal(_)
            | Expr::Map(_)
            | Expr::Select(_)
            | Expr::Struct(_)) => parts_mut(other).into_iter().for_each(|part| self.visit(part)),
        }
    }

    fn visit_loop(&mut self, id: u64, comprehension: &mut ComprehensionExpr) {
        self.visit(&mut comprehension.iter_range);
        self.visit(&mut comprehension.accu_init);
        let outer = self.scope.len();
        self.scope.push((comprehension.accu_var.clone(), None));
        match comprehension.iter_var2.take() {
            Some(second) => {
                let entry = format!("@entry{outer}");
                let first = std::mem::replace(&mut comprehension.iter_var, entry.clone());
                self.scope.push((first, Some((entry.clone(), 0))));
                self.scope.push((second, Some((entry, 1))));
                let range = std::mem::take(&mut comprehension.iter_range);
                comprehension.iter_range = IdedExpr {
                    id,
                    expr: call(ENTRIES, vec![range]),
                };
            }
            None => self.scope.push((comprehension.iter_var.clone(), None)),
        }
        self.visit(&mut comprehension.loop_cond);
        self.visit(&mut comprehension.loop_step);
        self.scope.truncate(outer + 1);
        self.visit(&mut comprehension.result);
        self.scope.truncate(outer);
    }
}

fn item(id: u64, entry: &str, index: i64) -> Expr {
    let part = |expr: Expr| IdedExpr { id, expr };
    let index = Expr::Literal(LiteralValue::Int(index.into()));
    call(
        operators::INDEX,
        vec![part(Expr::Ident(entry.to_owned())), part(index)],
    )
}

fn call(function: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: function.to_owned(),
        target: None,
        args,
    })
}

fn entries(range: Cel) -> ResolveResult {
    let entry = |key: Cel, value: &Cel| Cel::List(Arc::new(vec![key, value.clone()]));
    let entries: Vec<Cel> = if let Cel::List(items) = &range {
        budget::charge(ENTRY.saturating_mul(items.len() as u64))?;
        let indexes = (0..).map(Cel::Int);
        indexes
            .zip(items.iter())
            .map(|(index, item)| entry(index, item))
            .collect()
    } else if let Cel::Map(map) = &range {
        budget::charge(ENTRY.saturating_mul(map.map.len() as u64))?;
        let mut sorted: Vec<(&Key, &Cel)> = map.map.iter().collect();
        sorted.sort_by_key(|(key, _)| *key);
        sorted
            .into_iter()
            .map(|(key, value)| entry(key.into(), value))
            .collect()
    } else {
        return Err(ExecutionError::NoSuchOverload);
    };
    Ok(Cel::List(Arc::new(entries)))
}

/// Adds entries to a map. An existing key is an error.
fn insert(Arguments(args): Arguments) -> ResolveResult {
    let (map, added): (&Map, Vec<(Key, Cel)>) = match &args[..] {
        [Cel::Map(map), Cel::Map(other)] => {
            let entries = other.map.iter();
            (
                map,
                entries.map(|(key, value)| (key.clone(), value.clone())).collect(),
            )
        }
        [Cel::Map(map), key, value] => {
            let key: Result<Key, _> = key.clone().try_into();
            let key = key.map_err(|_| ExecutionError::NoSuchOverload)?;
            (map, vec![(key, value.clone())])
        }
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    let mut entries = map.map.as_ref().clone();
    for (key, value) in added {
        if entries.contains_key(&key) {
            let text = format!("insert failed: key {key} already exists");
            return Err(ExecutionError::function_error("insert", text));
        }
        entries.insert(key, value);
    }
    Ok(Cel::Map(Map {
        map: Arc::new(entries),
    }))
}
