//! The user that a request acts as.

use rooflet_pki::UserName;

/// Members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Users that authenticated with a bootstrap token.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The user a request acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    pub fn new(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The holder of the token in the kubeconfig.
    pub(super) fn admin() -> Self {
        Self::new("system:admin", &[MASTERS, AUTHENTICATED])
    }

    /// The user of a request without credentials.
    pub(super) fn anonymous() -> Self {
        Self::new("system:anonymous", &[UNAUTHENTICATED])
    }

    /// The user that a certificate names. A certificate without a common name has none.
    pub(super) fn of_certificate(subject: UserName) -> Option<Self> {
        let mut groups = subject.organizations;
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        (!subject.common_name.is_empty()).then_some(Self {
            name: subject.common_name,
            groups,
        })
    }
}
