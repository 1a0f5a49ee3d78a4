//! Calls of `format` whose template and items are literals.

use kube_cel::cel::{
    IdedExpr,
    common::ast::{CallExpr, EntryExpr, Expr, LiteralValue},
};

use super::Typing;
use super::show::{Root, shown};
use super::types::{OPTIONAL, Type};
use crate::cel::template::{Clause, Fault, fill};

/// Template with its items.
#[derive(Debug)]
pub(super) struct Template {
    /// Identifier of the call.
    call: u64,
    text: String,
    items: Vec<IdedExpr>,
}

impl Template {
    /// Returns the template of a call, if the call has literals.
    pub(super) fn of(id: u64, call: &CallExpr) -> Option<Self> {
        let target = call.target.as_deref()?;
        let (Expr::Literal(LiteralValue::String(text)), [items]) = (&target.expr, &call.args[..]) else {
            return None;
        };
        let Expr::List(items) = &items.expr else {
            return None;
        };
        Some(Self {
            call: id,
            text: text.inner().to_owned(),
            items: items.elements.clone(),
        })
    }

    /// Adds the problem of the template, if it has one.
    pub(super) fn check(&self, typing: &Typing<'_>, roots: &[Root<'_>], problems: &mut Vec<(u64, String)>) {
        let accepted = |index: usize, clause| match misfit(&self.items[index], clause, typing) {
            None => Ok(String::new()),
            Some(part) => Err((part.id, clause.mismatch(&name(&typing.type_of(part), roots)))),
        };
        problems.extend(match fill(&self.text, self.items.len(), accepted) {
            Ok((_, used)) if used < self.items.len() => {
                let given = self.items.len();
                let text =
                    format!("too many arguments supplied to string.format (expected {used}, got {given})");
                Some((self.call, text))
            }
            Ok(_) => None,
            Err(Fault::Template(text)) => Some((self.call, text)),
            Err(Fault::Item(_, (part, text))) => Some((part, format!("error during formatting: {text}"))),
        });
    }
}

/// Returns the part of an item that a clause does not accept.
fn misfit<'e>(item: &'e IdedExpr, clause: Clause, typing: &Typing<'_>) -> Option<&'e IdedExpr> {
    if !accepts(clause, &typing.type_of(item)) {
        return Some(item);
    }
    if clause != Clause::Text {
        return None;
    }
    match &item.expr {
        Expr::List(list) => list.elements.iter().find_map(|part| misfit(part, clause, typing)),
        Expr::Map(map) => map.entries.iter().find_map(|entry| {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return None;
            };
            misfit(&entry.key, clause, typing).or_else(|| misfit(&entry.value, clause, typing))
        }),
        Expr::Unspecified
        | Expr::Call(_)
        | Expr::Comprehension(_)
        | Expr::Ident(_)
        | Expr::Literal(_)
        | Expr::Select(_)
        | Expr::Struct(_) => None,
    }
}

fn accepts(clause: Clause, of: &Type<'_>) -> bool {
    match of {
        Type::Dyn | Type::Error | Type::Parameter(_) => true,
        Type::Int | Type::Uint => !matches!(clause, Clause::Fixed(_) | Clause::Scientific),
        Type::Bool => matches!(clause, Clause::Text | Clause::Binary),
        Type::Double => matches!(clause, Clause::Text | Clause::Fixed(_) | Clause::Scientific),
        Type::Text => !matches!(clause, Clause::Decimal | Clause::Binary | Clause::Octal),
        Type::Bytes => matches!(clause, Clause::Text | Clause::Hex { .. }),
        Type::Null | Type::Timestamp | Type::Duration | Type::Meta(_) | Type::List(_) | Type::Map(_) => {
            clause == Clause::Text
        }
        Type::Library(_) | Type::Object(_) | Type::Record(_) | Type::Literal(_) | Type::Opaque(..) => false,
    }
}

/// Returns the name of a type without its parameters.
fn name(of: &Type<'_>, roots: &[Root<'_>]) -> String {
    match of {
        Type::List(_) => "list".to_owned(),
        Type::Map(_) => "map".to_owned(),
        Type::Meta(_) => "type".to_owned(),
        Type::Null => "null_type".to_owned(),
        Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
        Type::Duration => "google.protobuf.Duration".to_owned(),
        Type::Opaque(OPTIONAL, _) => "optional_type".to_owned(),
        Type::Error
        | Type::Dyn
        | Type::Bool
        | Type::Int
        | Type::Uint
        | Type::Double
        | Type::Text
        | Type::Bytes
        | Type::Library(_)
        | Type::Object(_)
        | Type::Record(_)
        | Type::Literal(_)
        | Type::Opaque(..)
        | Type::Parameter(_) => shown(of, roots),
    }
}
