//! Authentication of requests by client certificate, administrator token, bootstrap token, token of a
//! service account, or token of an external issuer.

pub(crate) mod account_token;
pub(crate) mod bootstrap;
pub(crate) mod impersonation;
mod user;

use std::time::Duration;

use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::Value;
use tracing::debug;

use crate::status::ApiError;
use account_token::{Referenced, RejectAccountTokenError, TokenUser};
use rooflet_base::error::Chain;
use rooflet_pki::{
    AccountKey, BootstrapToken, RejectIssuedTokenError, TOKEN_NAMESPACE, TokenIssuer, UserCertificateError,
    UserName, claimed_issuer,
};

pub(crate) use bootstrap::{is_bootstrap_token, is_expired};
pub(crate) use user::MASTERS;
pub use user::{BOOTSTRAPPERS, User};

/// Compares two texts in constant time.
fn is_same(own: &str, presented: &str) -> bool {
    let (own, presented) = (own.as_bytes(), presented.as_bytes());
    own.len() == presented.len()
        && own
            .iter()
            .zip(presented)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

/// Audience of tokens for this server.
pub(crate) const API_AUDIENCE: &str = "https://kubernetes.default.svc";

/// Returns the user of a request. A valid certificate has precedence over the token. Invalid
/// credentials are rejected, missing credentials result in the anonymous user. `of_token` returns
/// the user of a bearer token.
pub(crate) fn authenticate(
    certificate: Option<Result<UserName, UserCertificateError>>,
    headers: &HeaderMap,
    of_token: impl FnOnce(&str) -> Result<User, RejectTokenError>,
) -> Result<User, ApiError> {
    let has_bad_certificate = match certificate {
        None => false,
        Some(Ok(subject)) => match user::of_certificate(subject) {
            Some(user) => return Ok(user),
            None => false,
        },
        Some(Err(err)) => {
            debug!(error = %Chain(&err), "client certificate rejected");
            true
        }
    };
    let presented = headers.get(header::AUTHORIZATION).and_then(|credentials| {
        let (scheme, rest) = credentials.to_str().ok()?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
    });
    match presented {
        None | Some("") if !has_bad_certificate => Ok(user::anonymous()),
        None => Err(ApiError::unauthorized()),
        Some(presented) => of_token(presented).map_err(|err| {
            debug!(error = %err, "bearer token rejected");
            match err {
                RejectTokenError::Guessing { wait } => ApiError::too_many_wrong_tokens(wait),
                RejectTokenError::Unknown | RejectTokenError::Account(_) | RejectTokenError::Issued(_) => {
                    ApiError::unauthorized()
                }
            }
        }),
    }
}

/// Error of a bearer token that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectTokenError {
    #[error("invalid bearer token")]
    Unknown,
    #[error("[invalid bearer token, {0}]")]
    Account(RejectAccountTokenError),
    #[error("[invalid bearer token, {0}]")]
    Issued(RejectIssuedTokenError),
    /// The client sent too many wrong bootstrap tokens.
    #[error("too many wrong bootstrap tokens")]
    Guessing { wait: Duration },
}

/// Values that bearer tokens are compared with.
pub(crate) struct TokenSources<'a> {
    /// Token of the administrator.
    pub admin: &'a str,
    /// Key of the tokens of service accounts.
    pub key: Option<&'a AccountKey>,
    /// External issuers of tokens.
    pub issuers: &'a [TokenIssuer],
    /// Returns an object by namespace and name.
    pub stored: &'a dyn Fn(Referenced, &str, &str) -> Option<Value>,
    pub now: Timestamp,
}

impl TokenSources<'_> {
    /// Returns the user of a bearer token that is valid for one of the audiences in `wanted`.
    pub(crate) fn user_of(&self, presented: &str, wanted: &[String]) -> Result<TokenUser, RejectTokenError> {
        if let Some(claims) = self.key.and_then(|key| key.verify(presented)) {
            return account_token::user_of(&claims, wanted, self.stored, self.now)
                .map_err(RejectTokenError::Account);
        }
        // Other tokens are valid for this server only.
        if !wanted.iter().any(|audience| audience == API_AUDIENCE) {
            return Err(RejectTokenError::Unknown);
        }
        if let Some(issuer) = self.issuer_of(presented) {
            let user = issuer.user_of(presented, self.now);
            return Ok(TokenUser {
                user: user::of_issuer(user.map_err(RejectTokenError::Issued)?),
                audiences: vec![API_AUDIENCE.to_owned()],
            });
        }
        let user = if is_same(self.admin, presented) {
            Some(user::admin())
        } else {
            self.user_of_bootstrap_token(presented)
        };
        Ok(TokenUser {
            user: user.ok_or(RejectTokenError::Unknown)?,
            audiences: vec![API_AUDIENCE.to_owned()],
        })
    }

    /// Returns the configured issuer that a token names.
    fn issuer_of(&self, presented: &str) -> Option<&TokenIssuer> {
        if self.issuers.is_empty() {
            return None;
        }
        let named = claimed_issuer(presented)?;
        self.issuers.iter().find(|issuer| issuer.url() == named)
    }

    fn user_of_bootstrap_token(&self, presented: &str) -> Option<User> {
        let presented: BootstrapToken = presented.parse().ok()?;
        let secret = (self.stored)(Referenced::Secret, TOKEN_NAMESPACE, &presented.secret_name())?;
        bootstrap::user_of(&presented, &secret, self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::user::AUTHENTICATED;
    use super::*;

    type Certificate = Option<Result<UserName, UserCertificateError>>;

    fn user(certificate: Certificate, authorization: Option<&str>) -> Result<User, http::StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(header::AUTHORIZATION, text.parse().expect("a header value"));
        }
        let sources = TokenSources {
            admin: "secret",
            key: None,
            issuers: &[],
            stored: &|_, _, _| None,
            now: rooflet_base::clock::at(0),
        };
        let of_token = |presented: &str| {
            let found = sources.user_of(presented, &[API_AUDIENCE.to_owned()]);
            found.map(|found| found.user)
        };
        authenticate(certificate, &headers, of_token).map_err(|err| err.code())
    }

    fn subject(name: &str, groups: &[&str]) -> Certificate {
        Some(Ok(UserName {
            common_name: name.to_owned(),
            organizations: groups.iter().map(|group| (*group).to_owned()).collect(),
        }))
    }

    #[test]
    fn rejects_wrong_token_and_treats_missing_token_as_anonymous() {
        let user = |authorization| user(None, authorization);
        assert_eq!(user(None), Ok(user::anonymous()));
        assert_eq!(user(Some("Basic abc")), Ok(user::anonymous()));
        assert_eq!(user(Some("Bearer secret")), Ok(user::admin()));
        assert_eq!(user(Some("bearer  secret")), Ok(user::admin()));
        assert_eq!(user(Some("Bearer secreT")), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(user(Some("Bearer secrets")), Err(http::StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn certificate_provides_user_and_groups_unless_invalid() {
        let alice = User::new("alice", &["team-a", AUTHENTICATED]);
        assert_eq!(user(subject("alice", &["team-a"]), None), Ok(alice.clone()));
        assert_eq!(
            user(subject("alice", &["team-a"]), Some("Bearer wrong")),
            Ok(alice),
            "a valid certificate has precedence"
        );
        assert_eq!(user(subject("", &["team-a"]), None), Ok(user::anonymous()));
        let bad = || Some(Err(UserCertificateError::Subject));
        assert_eq!(user(bad(), None), Err(http::StatusCode::UNAUTHORIZED));
        assert_eq!(
            user(bad(), Some("Bearer wrong")),
            Err(http::StatusCode::UNAUTHORIZED)
        );
        assert_eq!(user(bad(), Some("Bearer secret")), Ok(user::admin()));
    }
}
