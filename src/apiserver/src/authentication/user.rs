//! Users of the credentials that the server accepts.

use rooflet_pki::{IssuedUser, UserName};

pub use rooflet_rbac::User;
pub(crate) use rooflet_rbac::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};

/// Group of users that authenticated with a bootstrap token.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Returns the user of the administrator's token.
pub(super) fn admin() -> User {
    User::new("system:admin", &[MASTERS, AUTHENTICATED])
}

/// Returns the user of requests without credentials.
pub(super) fn anonymous() -> User {
    User::new("system:anonymous", &[UNAUTHENTICATED])
}

/// Returns the user of a token of an external issuer.
pub(super) fn of_issuer(IssuedUser { name, mut groups }: IssuedUser) -> User {
    groups.push(AUTHENTICATED.to_owned());
    User {
        name,
        groups,
        ..User::default()
    }
}

/// Returns the user of a certificate, or `None` if it has no common name.
pub(super) fn of_certificate(subject: UserName) -> Option<User> {
    let mut groups = subject.organizations;
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    (!subject.common_name.is_empty()).then_some(User {
        name: subject.common_name,
        groups,
        ..User::default()
    })
}
