//! Bootstrap tokens: `ID.SECRET`, stored as Secrets, with which a new machine may request a
//! certificate. Pure functions from Secrets to users.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;

use super::is_same;
use super::user::{AUTHENTICATED, BOOTSTRAPPERS, User};
use crate::object;
use rooflet_pki::{BootstrapToken, TOKEN_HASH_KEY, TOKEN_SECRET_TYPE};

const USER_PREFIX: &str = "system:bootstrap:";
const EXTRA_GROUP_PREFIX: &str = "system:bootstrappers:";
const EXTRA_GROUP_BYTES_MAX: usize = 256;

/// Returns the user of the token at `now`, or `None` if the token is not valid.
pub(super) fn user_of(token: &BootstrapToken, secret: &Value, now: Timestamp) -> Option<User> {
    let is_good = !object::is_being_deleted(secret)
        && is_bootstrap_token(secret)
        && has_secret(secret, token)
        && text(secret, "token-id")? == token.id()
        && text(secret, "usage-bootstrap-authentication")? == "true"
        && !is_expired(secret, now);
    if !is_good {
        return None;
    }
    let mut groups = vec![BOOTSTRAPPERS.to_owned()];
    for group in text(secret, "auth-extra-groups")
        .iter()
        .flat_map(|groups| groups.split(','))
        .filter(|group| !group.is_empty())
    {
        if !is_extra_group(group) {
            return None;
        }
        groups.push(group.to_owned());
    }
    groups.push(AUTHENTICATED.to_owned());
    Some(User {
        name: format!("{USER_PREFIX}{}", token.id()),
        groups,
        ..User::default()
    })
}

/// Returns true if the Secret has the token's secret part or its hash.
fn has_secret(secret: &Value, token: &BootstrapToken) -> bool {
    match (text(secret, TOKEN_HASH_KEY), text(secret, "token-secret")) {
        (Some(hash), None) => is_same(&hash, &token.secret_hash()),
        (None, Some(stored)) => is_same(&stored, token.secret()),
        (Some(_), Some(_)) | (None, None) => false,
    }
}

/// Returns the id of the token with which a user authenticated.
pub(crate) fn token_id(user: &str) -> Option<&str> {
    user.strip_prefix(USER_PREFIX)
}

pub(crate) fn is_bootstrap_token(secret: &Value) -> bool {
    object::text(secret, &["type"]) == TOKEN_SECRET_TYPE
}

/// Returns true if the token has expired. An unreadable expiration counts as expired.
pub(crate) fn is_expired(secret: &Value, now: Timestamp) -> bool {
    match text(secret, "expiration").as_deref() {
        None | Some("") => false,
        Some(time) => time.parse::<Timestamp>().map_or(true, |time| time <= now),
    }
}

fn is_extra_group(group: &str) -> bool {
    group.strip_prefix(EXTRA_GROUP_PREFIX).is_some_and(|rest| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (1..=EXTRA_GROUP_BYTES_MAX).contains(&rest.len())
            && rest
                .bytes()
                .all(|byte| is_plain(byte) || byte == b':' || byte == b'-')
            && rest.bytes().last().is_some_and(is_plain)
    })
}

/// Returns a decoded value of the Secret's data.
pub(crate) fn text(secret: &Value, key: &str) -> Option<String> {
    let bytes = BASE64.decode(secret["data"].get(key)?.as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn parses_only_well_formed_tokens() {
        for (text, expect) in [
            (TOKEN, true),
            ("", false),
            ("abcdef", false),
            ("abcde.0123456789abcdef", false),
            ("abcdefg.0123456789abcdef", false),
            ("abcdef.0123456789abcde", false),
            ("abcdef.0123456789abcdefg", false),
            ("Abcdef.0123456789abcdef", false),
            ("abcdef.0123456789abcde!", false),
            ("../def.0123456789abcdef", false),
        ] {
            assert_eq!(text.parse::<BootstrapToken>().is_ok(), expect, "{text}");
        }
    }

    /// Returns the token's Secret with some keys changed or removed.
    fn secret(changes: &[(&str, Option<&str>)]) -> Value {
        let mut secret = json!({"type": TOKEN_SECRET_TYPE, "metadata": {}, "data": {}});
        let sound = [
            ("token-id", Some("abcdef")),
            ("token-secret", Some("0123456789abcdef")),
            ("usage-bootstrap-authentication", Some("true")),
        ];
        for (key, value) in sound.iter().chain(changes) {
            secret["data"][*key] = value.map_or(Value::Null, |value| json!(BASE64.encode(value)));
        }
        secret
    }

    fn groups(secret: &Value) -> Option<String> {
        let now = "2026-06-01T12:00:00Z".parse().expect("a time");
        let user = user_of(&TOKEN.parse().ok()?, secret, now)?;
        assert_eq!(user.name, "system:bootstrap:abcdef");
        Some(user.groups.join(" "))
    }

    #[test]
    fn token_is_valid_only_with_a_valid_secret() {
        let plain = "system:bootstrappers system:authenticated";
        let check = |changes: &[(&str, Option<&str>)], expect: Option<&str>| {
            assert_eq!(groups(&secret(changes)).as_deref(), expect, "{changes:?}");
        };
        check(&[], Some(plain));
        check(&[("token-secret", Some("0123456789abcdeX"))], None);
        check(&[("token-secret", None)], None);
        // The hash was computed with sha256sum.
        let hash = "sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        check(
            &[("token-secret", None), (TOKEN_HASH_KEY, Some(hash))],
            Some(plain),
        );
        check(
            &[("token-secret", None), (TOKEN_HASH_KEY, Some("sha256:9f"))],
            None,
        );
        check(&[(TOKEN_HASH_KEY, Some(hash))], None);
        check(&[("token-id", Some("abcdeg"))], None);
        check(&[("usage-bootstrap-authentication", None)], None);
        check(&[("usage-bootstrap-authentication", Some("false"))], None);
        check(&[("expiration", Some("2026-06-01T12:00:01Z"))], Some(plain));
        check(&[("expiration", Some("2026-06-01T12:00:00Z"))], None);
        check(&[("expiration", Some("2026-06-01T14:00:01+02:00"))], Some(plain));
        check(&[("expiration", Some("tomorrow"))], None);
        check(&[("description", Some("for the rack"))], Some(plain));
        check(
            &[(
                "auth-extra-groups",
                Some("system:bootstrappers:a,system:bootstrappers:b-1"),
            )],
            Some("system:bootstrappers system:bootstrappers:a system:bootstrappers:b-1 system:authenticated"),
        );
        check(&[("auth-extra-groups", Some("system:masters"))], None);
        check(
            &[("auth-extra-groups", Some("system:bootstrappers:a,system:nodes"))],
            None,
        );
        check(&[("auth-extra-groups", Some("system:bootstrappers:"))], None);
        check(&[("auth-extra-groups", Some("system:bootstrappers:a-"))], None);
    }

    #[test]
    fn rejects_secrets_that_are_deleted_or_of_another_type() {
        let mut going = secret(&[]);
        going["metadata"]["deletionTimestamp"] = json!("2026-06-01T00:00:00Z");
        assert_eq!(groups(&going), None);
        let mut opaque = secret(&[]);
        opaque["type"] = json!("Opaque");
        assert_eq!(groups(&opaque), None);
    }
}
