//! User of a request.

use std::collections::BTreeMap;

use rooflet_pki::{IssuedUser, UserName};

/// Group with all permissions.
pub(crate) const MASTERS: &str = "system:masters";
/// Group of users that authenticated with a bootstrap token.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";

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

    /// Returns the user of the administrator's token.
    pub(super) fn admin() -> Self {
        Self::new("system:admin", &[MASTERS, AUTHENTICATED])
    }

    /// Returns the user of requests without credentials.
    pub(super) fn anonymous() -> Self {
        Self::new("system:anonymous", &[UNAUTHENTICATED])
    }

    /// Returns the user of a token of an external issuer.
    pub(super) fn of_issuer(IssuedUser { name, mut groups }: IssuedUser) -> Self {
        groups.push(AUTHENTICATED.to_owned());
        Self {
            name,
            groups,
            ..Self::default()
        }
    }

    /// Returns the user of a certificate, or `None` if it has no common name.
    pub(super) fn of_certificate(subject: UserName) -> Option<Self> {
        let mut groups = subject.organizations;
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        (!subject.common_name.is_empty()).then_some(Self {
            name: subject.common_name,
            groups,
            ..Self::default()
        })
    }
}
