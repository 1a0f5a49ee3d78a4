//! Role-based access control: the permissions of users by roles and bindings.
//!
//! [`Policy`] holds all roles and bindings and decides as a pure function of the [`Attributes`] of
//! a request. [`impersonate`] decides as which user a request runs. `escalation` checks that nobody
//! grants permissions that they lack, `aggregation` computes the rules of aggregated ClusterRoles,
//! and `defaults` and `reconcile` provide the roles that every server has. Rules and messages are
//! those of kube-apiserver.

pub mod aggregation;
mod attributes;
pub mod defaults;
pub mod escalation;
mod impersonation;
mod policy;
pub mod reconcile;
pub mod rule;
mod user;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use attributes::{Attributes, ResourceAttributes, Target};
pub use impersonation::{Checks, Impersonated, Mode, impersonate};
pub use policy::{Evaluation, HeldRules, Kind, MissingRole, Policy, RoleRef, aggregate};
pub use user::{AUTHENTICATED, MASTERS, SERVICE_ACCOUNT_USERS, SERVICE_ACCOUNTS, UNAUTHENTICATED, User};

/// API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns the text at a path of members, or an empty text.
fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    let found = path.iter().try_fold(object, |value, key| value.get(key));
    found.and_then(Value::as_str).unwrap_or_default()
}
