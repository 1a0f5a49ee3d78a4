//! Subexpressions of an expression.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr, IdedEntryExpr},
};

/// Returns the direct subexpressions. The caller must add the variables of a loop to the scope of
/// its subexpressions.
pub(super) fn parts_mut(expr: &mut Expr) -> Vec<&mut IdedExpr> {
    match expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => Vec::new(),
        Expr::Select(select) => vec![&mut *select.operand],
        Expr::Call(call) => {
            let target = call.target.as_deref_mut().into_iter();
            target.chain(&mut call.args).collect()
        }
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map.entries.iter_mut().flat_map(of_entry).collect(),
        Expr::Struct(fields) => fields.entries.iter_mut().flat_map(of_entry).collect(),
        Expr::Comprehension(comprehension) => vec![
            &mut comprehension.iter_range,
            &mut comprehension.accu_init,
            &mut comprehension.loop_cond,
            &mut comprehension.loop_step,
            &mut comprehension.result,
        ],
    }
}

fn of_entry(entry: &mut IdedEntryExpr) -> Vec<&mut IdedExpr> {
    match &mut entry.expr {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}
