//! Identity of a field manager.

use std::fmt;

/// Kind of request with which a manager took its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Operation {
    Apply,
    /// Create, update, or a patch that is not an apply.
    Update,
}

/// Field manager. Two entries of an object with the same identity are one entry.
#[derive(Debug, Clone)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    /// API version of the request. Not part of the identity for [`Operation::Apply`].
    pub api_version: String,
    /// Subresource of the request. Empty for the object itself.
    pub subresource: String,
}

impl Manager {
    pub(super) fn is(&self, other: &Self) -> bool {
        self.is_named_like(other)
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// Compares the identities without their API versions.
    pub(super) fn is_named_like(&self, other: &Self) -> bool {
        self.name == other.name && self.operation == other.operation && self.subresource == other.subresource
    }

    pub(super) fn sort_key(&self) -> (&str, Operation, &str, &str) {
        (&self.name, self.operation, &self.api_version, &self.subresource)
    }
}

/// Displays the manager as in the message of a conflict.
impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        if self.operation == Operation::Update {
            write!(f, " using {}", self.api_version)?;
        }
        Ok(())
    }
}
