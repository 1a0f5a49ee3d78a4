//! Authorization of requests.
//!
//! The server calls its [`Authorizer`]s in order, and then evaluates the stored roles and bindings
//! (crate `rbac`). The first [`Decision::Allow`] or [`Decision::Deny`] applies. If no authorizer and no
//! role allows a request, the request is denied. Two rules precede: members of `system:masters`
//! have all permissions, and every user may read health and version.
//!
//! An authorizer decides by the attributes of a request, before the body is read. An
//! [`ObjectPolicy`] restricts allowed requests by the stored object and the object to be stored.

mod grants;
mod impersonation;
mod rules;
mod signers;
pub(crate) mod stored;

use serde_json::Value;

pub use crate::authentication::{BOOTSTRAPPERS, User};
pub use rooflet_apimachinery::verb::Verb;
pub use rooflet_rbac::{Attributes, ResourceAttributes, Target};
pub(crate) use rules::{ObjectPlace, RequestHead, Requestor, Rules, Verdict};

/// Decision of an [`Authorizer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// Denies the request with this reason. Later authorizers are not called.
    Deny(String),
    /// Defers to later authorizers. If none allows the request, the reason is part of the message.
    /// The reason may be empty.
    NoOpinion(String),
}

/// Authorizer of requests by their attributes.
///
/// Calls are synchronous. An authorizer that depends on stored objects must cache them in memory.
pub trait Authorizer: Send + Sync {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision;

    /// Returns a message if the authorizer allows the user requests that no role contains. Lists of
    /// the user's permissions are then incomplete.
    fn unlisted(&self, _user: &User) -> Option<String> {
        None
    }
}

/// Restriction of allowed requests by the content of objects. Does not apply to members of
/// `system:masters` and to the server's own controllers.
pub trait ObjectPolicy: Send + Sync {
    /// Returns false if the policy allows all requests of the user. Their objects are then not parsed.
    fn restricts(&self, _user: &User) -> bool {
        true
    }

    /// Checks whether the user may read the stored object. `None` stands for a missing object. To
    /// hide the existence of objects, return the same reason in both cases.
    fn check_stored(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        stored: Option<&Value>,
    ) -> Result<(), Forbidden>;

    /// Checks whether the user may store `new`. `old` is `None` for a new object.
    fn check_change(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), Forbidden>;
}

/// Reason why an [`ObjectPolicy`] denies a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Forbidden(pub String);
