//! Attributes of a request, by which authorizers decide.

use crate::User;

/// Attributes of a request.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// Verb of the request; see [`Verb`](rooflet_apimachinery::verb::Verb). Access reviews may contain other verbs.
    pub verb: &'a str,
    pub target: Target<'a>,
}

/// Target of a request.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// Non-resource path, such as `/metrics`.
    Path(&'a str),
    Resource(ResourceAttributes<'a>),
}

/// Resource, or an object of it.
#[derive(Debug, Clone, Copy)]
pub struct ResourceAttributes<'a> {
    /// API group. Empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    /// Plural name.
    pub resource: &'a str,
    pub subresource: Option<&'a str>,
    /// `None` for cluster-scoped resources. For a Namespace, its own name.
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
    /// Field selector of the query. May be malformed.
    pub field_selector: &'a str,
}
