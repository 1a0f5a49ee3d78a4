//! User of a request.

use std::collections::BTreeMap;

/// Group with all permissions.
pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of all service accounts. `:NAMESPACE` follows in the group of those of a namespace.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Prefix of the names of service accounts. `NAMESPACE:NAME` follows.
pub const SERVICE_ACCOUNT_USERS: &str = "system:serviceaccount:";

/// User of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    /// Distinguishes users that have the same name at different times. May be empty.
    pub uid: String,
    pub groups: Vec<String>,
    /// Further facts about the user, for example the ID of the credential.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn new(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..Self::default()
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
