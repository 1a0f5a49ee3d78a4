//! Tokens of service accounts: claims of a new token, and the user of a presented one. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::API_AUDIENCE;
use super::user::{AUTHENTICATED, User};
use crate::object;
use rooflet_rbac::{SERVICE_ACCOUNT_USERS, SERVICE_ACCOUNTS};

/// Issuer of the tokens.
pub(crate) const ISSUER: &str = API_AUDIENCE;

/// Returns the user of a service account, without its UID.
pub(crate) fn service_account(namespace: &str, name: &str) -> User {
    let own = format!("{SERVICE_ACCOUNTS}:{namespace}");
    User::new(
        &format!("{SERVICE_ACCOUNT_USERS}{namespace}:{name}"),
        &[SERVICE_ACCOUNTS, &own],
    )
}

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Private claims of Kubernetes.
const OWN_CLAIMS: &str = "kubernetes.io";
/// Tolerance for clocks of different machines, in seconds.
const LEEWAY_SECONDS: i64 = 60;

/// Error of a token with a valid signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectAccountTokenError {
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("serviceaccounts {name:?} not found")]
    NoAccount { name: String },
    #[error("service account UID ({found}) does not match claim ({claimed})")]
    AccountReplaced { found: String, claimed: String },
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error("secret UID ({found}) does not match service account secret ref claim ({claimed})")]
    SecretReplaced { found: String, claimed: String },
    #[error("token audiences {found:?} is invalid for the target audiences {wanted:?}")]
    Audience { found: Vec<String>, wanted: Vec<String> },
}

/// Token to issue.
#[derive(Debug)]
pub(crate) struct NewToken<'a> {
    pub account: &'a Value,
    pub audiences: &'a [String],
    pub lifetime_seconds: i64,
    /// Secret that the token is bound to.
    pub secret: Option<&'a Value>,
    pub id: &'a str,
}

/// Object that a token refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Referenced {
    Account,
    Secret,
}

/// User of a valid token, and the requested audiences that the token is valid for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TokenUser {
    pub user: User,
    pub audiences: Vec<String>,
}

/// Returns the claims of a new token.
pub(crate) fn claims(token: &NewToken<'_>, now: Timestamp) -> Value {
    let reference = |object: &Value| json!({"name": object::name(object), "uid": object::uid(object)});
    let (namespace, name) = (object::namespace(token.account), object::name(token.account));
    let now = now.as_second();
    let mut own = json!({"namespace": namespace, "serviceaccount": reference(token.account)});
    if let Some(secret) = token.secret {
        own["secret"] = reference(secret);
    }
    json!({
        "aud": token.audiences,
        "exp": now.saturating_add(token.lifetime_seconds),
        "iat": now,
        "iss": ISSUER,
        "jti": token.id,
        OWN_CLAIMS: own,
        "nbf": now,
        "sub": format!("{SERVICE_ACCOUNT_USERS}{namespace}:{name}"),
    })
}

/// Returns the user of a token whose signature is valid. `stored` returns an object by namespace
/// and name. The token must be valid for one of the audiences in `wanted`.
pub(crate) fn user_of(
    claims: &Value,
    wanted: &[String],
    stored: impl Fn(Referenced, &str, &str) -> Option<Value>,
    now: Timestamp,
) -> Result<TokenUser, RejectAccountTokenError> {
    let seconds = |claim: &str| claims[claim].as_i64();
    if seconds("exp").is_none_or(|end| end < now.as_second() - LEEWAY_SECONDS) {
        return Err(RejectAccountTokenError::Expired);
    }
    if seconds("nbf").is_some_and(|start| start > now.as_second() + LEEWAY_SECONDS) {
        return Err(RejectAccountTokenError::NotYet);
    }
    let found: Vec<String> = texts(&claims["aud"]);
    let audiences: Vec<String> = wanted
        .iter()
        .filter(|wanted| found.contains(wanted))
        .cloned()
        .collect();
    if audiences.is_empty() {
        let wanted = wanted.to_vec();
        return Err(RejectAccountTokenError::Audience { found, wanted });
    }
    let own = &claims[OWN_CLAIMS];
    let namespace = object::text(own, &["namespace"]);
    let name = object::text(own, &["serviceaccount", "name"]);
    let uid = object::text(own, &["serviceaccount", "uid"]);
    let account = stored(Referenced::Account, namespace, name);
    let account = account.ok_or_else(|| RejectAccountTokenError::NoAccount {
        name: name.to_owned(),
    })?;
    if object::uid(&account) != uid {
        return Err(RejectAccountTokenError::AccountReplaced {
            found: object::uid(&account).to_owned(),
            claimed: uid.to_owned(),
        });
    }
    if object::is_being_deleted(&account) {
        return Err(RejectAccountTokenError::Invalidated);
    }
    if let Some(secret) = own.get("secret") {
        check_secret(
            secret,
            stored(Referenced::Secret, namespace, object::text(secret, &["name"])),
        )?;
    }
    let mut extra = BTreeMap::new();
    let id = object::text(claims, &["jti"]);
    if !id.is_empty() {
        extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    let user = User {
        name: format!("{SERVICE_ACCOUNT_USERS}{namespace}:{name}"),
        uid: uid.to_owned(),
        groups: vec![
            SERVICE_ACCOUNTS.to_owned(),
            format!("{SERVICE_ACCOUNTS}:{namespace}"),
            AUTHENTICATED.to_owned(),
        ],
        extra,
    };
    Ok(TokenUser { user, audiences })
}

fn check_secret(claimed: &Value, stored: Option<Value>) -> Result<(), RejectAccountTokenError> {
    let stored = stored.filter(|secret| !object::is_being_deleted(secret));
    let stored = stored.ok_or(RejectAccountTokenError::Invalidated)?;
    let claimed = object::text(claimed, &["uid"]);
    if object::uid(&stored) != claimed {
        return Err(RejectAccountTokenError::SecretReplaced {
            found: object::uid(&stored).to_owned(),
            claimed: claimed.to_owned(),
        });
    }
    Ok(())
}

/// Returns `aud`, which may be a text or a list.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, uid: &str) -> Value {
        json!({"metadata": {"namespace": "n", "name": name, "uid": uid}})
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// Returns the claims of a token for 600 seconds, issued at second 1000.
    fn issued(secret: Option<&Value>) -> Value {
        let token = NewToken {
            account: &object("robot", "u-1"),
            audiences: &[API_AUDIENCE.to_owned(), "vault".to_owned()],
            lifetime_seconds: 600,
            secret,
            id: "id-1",
        };
        claims(&token, at(1000))
    }

    fn check(
        claims: &Value,
        audience: &str,
        account: Option<&Value>,
        secret: Option<&Value>,
        second: i64,
    ) -> Result<TokenUser, String> {
        let stored = |kind: Referenced, namespace: &str, _: &str| {
            assert_eq!(namespace, "n");
            match kind {
                Referenced::Account => account.cloned(),
                Referenced::Secret => secret.cloned(),
            }
        };
        let checked = user_of(claims, &[audience.to_owned()], stored, at(second));
        checked.map_err(|err| err.to_string())
    }

    #[test]
    fn token_identifies_its_service_account() {
        let robot = object("robot", "u-1");
        let valid = check(&issued(None), API_AUDIENCE, Some(&robot), None, 1000).expect("valid");
        assert_eq!(valid.audiences, [API_AUDIENCE]);
        assert_eq!(valid.user.name, "system:serviceaccount:n:robot");
        assert_eq!(valid.user.uid, "u-1");
        assert_eq!(
            valid.user.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:n",
                "system:authenticated"
            ]
        );
        assert_eq!(valid.user.extra[CREDENTIAL_ID], ["JTI=id-1"]);
    }

    #[test]
    fn token_is_valid_for_its_audiences_during_its_lifetime() {
        let robot = object("robot", "u-1");
        let check = |audience: &str, second| check(&issued(None), audience, Some(&robot), None, second);
        assert!(check("vault", 1600).is_ok());
        assert_eq!(
            check("other", 1000).expect_err("another audience"),
            "token audiences [\"https://kubernetes.default.svc\", \"vault\"] is invalid for the target audiences [\"other\"]"
        );
        assert_eq!(
            check("vault", 1661).expect_err("expired"),
            "service account token has expired"
        );
        assert_eq!(
            check("vault", 939).expect_err("too early"),
            "service account token is not valid yet"
        );
    }

    #[test]
    fn token_ends_with_its_account_and_its_secret() {
        let robot = object("robot", "u-1");
        let check = |claims: &Value, account, secret| check(claims, "vault", account, secret, 1000);
        let unbound = issued(None);
        assert_eq!(
            check(&unbound, None, None).expect_err("deleted"),
            "serviceaccounts \"robot\" not found"
        );
        let replaced = object("robot", "u-2");
        assert_eq!(
            check(&unbound, Some(&replaced), None).expect_err("replaced"),
            "service account UID (u-2) does not match claim (u-1)"
        );
        let secret = object("key", "s-1");
        let bound = issued(Some(&secret));
        assert!(check(&bound, Some(&robot), Some(&secret)).is_ok());
        assert_eq!(
            check(&bound, Some(&robot), None).expect_err("deleted"),
            "service account token has been invalidated"
        );
        let replaced = object("key", "s-2");
        assert!(check(&bound, Some(&robot), Some(&replaced)).is_err());
    }
}
