//! Estimated cost of expressions, computed when a CustomResourceDefinition is created.
//!
//! The estimate has the cost units of kube-apiserver and is equal to its estimate: the worst case
//! over all objects that the limits of the schema (`maxItems`, `maxLength`, …) and the maximum size
//! of a request allow. The cost of a function depends on the types of its arguments, so the checker
//! resolves overloads first.

mod calls;
mod estimator;
mod path;
mod size;

use kube_cel::cel::IdedExpr;

use super::checker::{Decl, Typing};
use estimator::Estimator;

/// Returns the estimated cost of one evaluation of a checked expression at a node with this
/// declaration.
pub(crate) fn estimate(expr: &IdedExpr, decl: &Decl, typing: &Typing<'_>) -> u64 {
    Estimator::new(decl, typing).cost(expr)
}

#[cfg(test)]
mod tests;
