//! Verbs of API requests.

use std::fmt;

use serde::{Serialize, Serializer};

/// Verb of a request, as in discovery, authorization and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Use of another identity by impersonation headers.
    Impersonate,
    /// POST to a non-resource path.
    Post,
    /// PUT to a non-resource path.
    Put,
    /// HTTP method without a verb.
    Other,
}

impl Verb {
    /// Returns the verb of a resource request with this name, or `None` for other names.
    pub fn of_resource(name: &str) -> Option<Self> {
        Some(match name {
            "get" => Self::Get,
            "list" => Self::List,
            "watch" => Self::Watch,
            "create" => Self::Create,
            "update" => Self::Update,
            "patch" => Self::Patch,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            "impersonate" => Self::Impersonate,
            _ => return None,
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Impersonate => "impersonate",
            Self::Post => "post",
            Self::Put => "put",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
