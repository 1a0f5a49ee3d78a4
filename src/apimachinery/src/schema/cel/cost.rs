//! Estimated cost of expressions, computed when a CustomResourceDefinition is created.
//!
//! The estimate has the cost units of kube-apiserver and is equal to its estimate: the worst case
//! over all objects that the limits of the schema (`maxItems`, `maxLength`, …) and the maximum size
//! of a request allow. The cost of a function depends on the types of its arguments, so `typing`
//! resolves overloads first.

mod calls;
mod decl;
mod estimator;
mod functions;
mod path;
mod size;
mod types;
mod typing;

use kube_cel::cel::IdedExpr;

pub(in crate::schema) use decl::{Decl, limit};

use estimator::Estimator;
use typing::Typing;

/// Returns the estimated cost of one evaluation of an expression at a node with this declaration.
pub(in crate::schema) fn estimate(expr: &IdedExpr, decl: &Decl, optional_old_self: bool) -> u64 {
    let typing = Typing::of(expr, decl, optional_old_self);
    Estimator::new(decl, &typing).cost(expr)
}

#[cfg(test)]
mod tests;
