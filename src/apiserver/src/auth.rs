//! Who asks: a certificate, the administrator's token, a bootstrap token, or nobody. And what each of them may see
//! ([`authorize`](mod@authorize), by the head of a request) and do ([`reach`], by the objects themselves).

mod authorize;
mod bootstrap;
mod reach;

use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::Value;
use tracing::debug;

use super::status::ApiError;
use rooflet_base::error::Chain;
use rooflet_pki::{BootstrapToken, UserCertificateError, UserName};

pub(crate) use authorize::{Asked, authorize};
pub(crate) use bootstrap::{is_bootstrap_token, is_expired};
pub(crate) use reach::{Place, Requestor};
pub(crate) use rooflet_pki::{NODE_USER_PREFIX as NODE_PREFIX, NODES_GROUP as NODES};

/// Its members may do everything.
pub(crate) const MASTERS: &str = "system:masters";
/// Those who came with a bootstrap token.
pub(crate) const BOOTSTRAPPERS: &str = "system:bootstrappers";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The user a request acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// Holder of the token in the kubeconfig.
    fn admin() -> Self {
        Self::new("system:admin", [MASTERS, AUTHENTICATED])
    }

    /// No credentials.
    fn anonymous() -> Self {
        Self::new("system:anonymous", [UNAUTHENTICATED])
    }

    fn new<const N: usize>(name: &str, groups: [&str; N]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).into(),
        }
    }

    /// Whom a certificate names: nobody without a common name.
    fn of_certificate(subject: UserName) -> Option<Self> {
        let mut groups = subject.organizations;
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        (!subject.common_name.is_empty()).then_some(Self {
            name: subject.common_name,
            groups,
        })
    }

    #[cfg(test)]
    pub(crate) fn test(name: &str, groups: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        }
    }

    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node whose agent the user is.
    fn node(&self) -> Option<&str> {
        let node = self.name.strip_prefix(NODE_PREFIX)?;
        (self.is_in(NODES) && !node.is_empty()).then_some(node)
    }
}

/// Compares in a time that does not depend on where the texts differ.
fn is_same(own: &str, presented: &str) -> bool {
    let (own, presented) = (own.as_bytes(), presented.as_bytes());
    own.len() == presented.len()
        && own
            .iter()
            .zip(presented)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

/// Finds the user. The first credentials that are good decide, the certificate before the token; who shows only bad
/// ones is refused, who shows none is anonymous. `secret` looks up the Secret of a bootstrap token.
pub(crate) fn authenticate(
    certificate: Option<Result<UserName, UserCertificateError>>,
    headers: &HeaderMap,
    token: &str,
    secret: impl FnOnce(&BootstrapToken) -> Option<Value>,
    now: Timestamp,
) -> Result<User, ApiError> {
    let has_bad_certificate = match certificate {
        None => false,
        Some(Ok(subject)) => match User::of_certificate(subject) {
            Some(user) => return Ok(user),
            None => false,
        },
        Some(Err(err)) => {
            debug!(error = %Chain(&err), "a client's certificate was refused");
            true
        }
    };
    let presented = headers.get(header::AUTHORIZATION).and_then(|credentials| {
        let (scheme, rest) = credentials.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    match presented {
        Some(presented) if is_same(token, presented) => Ok(User::admin()),
        None | Some("") if !has_bad_certificate => Ok(User::anonymous()),
        None => Err(ApiError::unauthorized()),
        Some(presented) => presented
            .parse()
            .ok()
            .and_then(|presented| bootstrap::user_of(&presented, &secret(&presented)?, now))
            .ok_or_else(ApiError::unauthorized),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Certificate = Option<Result<UserName, UserCertificateError>>;

    fn user(certificate: Certificate, authorization: Option<&str>) -> Result<User, http::StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(header::AUTHORIZATION, text.parse().expect("a header value"));
        }
        let secret = |_: &BootstrapToken| None;
        authenticate(
            certificate,
            &headers,
            "secret",
            secret,
            rooflet_base::clock::at(0),
        )
        .map_err(|err| err.code())
    }

    fn subject(name: &str, groups: &[&str]) -> Certificate {
        Some(Ok(UserName {
            common_name: name.to_owned(),
            organizations: groups.iter().map(|group| (*group).to_owned()).collect(),
        }))
    }

    #[test]
    fn a_wrong_token_is_refused_and_none_is_anonymous() {
        let user = |authorization| user(None, authorization);
        assert_eq!(user(None), Ok(User::anonymous()));
        assert_eq!(user(Some("Basic abc")), Ok(User::anonymous()));
        assert_eq!(user(Some("Bearer secret")), Ok(User::admin()));
        assert_eq!(user(Some("bearer  secret")), Ok(User::admin()));
        assert_eq!(user(Some("Bearer secreT")), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(user(Some("Bearer secrets")), Err(http::StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn a_certificate_names_user_and_groups_and_a_bad_one_is_refused() {
        let alice = User::new("alice", ["team-a", AUTHENTICATED]);
        assert_eq!(user(subject("alice", &["team-a"]), None), Ok(alice.clone()));
        assert_eq!(
            user(subject("alice", &["team-a"]), Some("Bearer wrong")),
            Ok(alice),
            "good credentials suffice"
        );
        assert_eq!(user(subject("", &["team-a"]), None), Ok(User::anonymous()));
        let bad = || Some(Err(UserCertificateError::Subject));
        assert_eq!(user(bad(), None), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(
            user(bad(), Some("Bearer wrong")),
            Err(http::StatusCode::UNAUTHORIZED)
        );
        assert_eq!(user(bad(), Some("Bearer secret")), Ok(User::admin()));
    }
}
