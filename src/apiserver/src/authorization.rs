//! Authorization: which user may make which request.
//!
//! The server asks its [`Authorizer`]s in order. The first [`Decision::Allow`] or
//! [`Decision::Deny`] decides; if no authorizer has an opinion, the request is denied. The built-in
//! rules come first: members of `system:masters` may do everything, every user may read health and
//! version, and authenticated users may read discovery and OpenAPI.
//!
//! An authorizer decides by the head of a request, before the body is read. An [`ObjectPolicy`]
//! restricts allowed requests further, by the stored object and by the object that is about to be
//! stored.

mod rules;

use serde_json::Value;

pub use crate::authentication::{BOOTSTRAPPERS, User};
pub use rooflet_apimachinery::verb::Verb;
pub(crate) use rules::{Asked, ObjectPlace, Requestor, Rules};

/// What an [`Authorizer`] decides by.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: Verb,
    pub target: Target<'a>,
}

/// What a request is about.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A path that is not a resource, such as `/metrics`.
    Path(&'a str),
    Resource(ResourceAttributes<'a>),
}

/// A resource, or one object of it.
#[derive(Debug, Clone, Copy)]
pub struct ResourceAttributes<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    /// The plural name.
    pub resource: &'a str,
    pub subresource: Option<&'a str>,
    /// `None` at the cluster scope. A namespace is in itself.
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
    /// The selector as the query has it; may be malformed.
    pub field_selector: &'a str,
}

/// The verdict of one [`Authorizer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// Denied for this reason, whatever later authorizers decide.
    Deny(String),
    /// Left to later authorizers. The reason is shown if none of them allows the request; it may be
    /// empty.
    NoOpinion(String),
}

/// Decides whether a request is allowed, by its head alone.
///
/// Calls are synchronous: an authorizer that depends on stored objects keeps what it needs in
/// memory.
pub trait Authorizer: Send + Sync {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;
}

/// Restricts by the objects themselves what an [`Authorizer`] allowed. Does not apply to members of
/// `system:masters` and to the server's own controllers.
pub trait ObjectPolicy: Send + Sync {
    /// Decides whether the user may learn of the stored object, or that there is none. An error is
    /// the reason why not. A policy that hides objects gives the same reason in both cases.
    fn check_stored(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        stored: Option<&Value>,
    ) -> Result<(), Forbidden>;

    /// Decides whether the user may store `new`; `old` is `None` for a new object. An error is the
    /// reason why not.
    fn check_change(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), Forbidden>;
}

/// The reason why an [`ObjectPolicy`] denies a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Forbidden(pub String);
