//! Users of external issuers of tokens (OpenID Connect), configured as in Kubernetes: an
//! `AuthenticationConfiguration` of `apiserver.config.k8s.io`.
//!
//! This module performs no I/O. The owner of the server fetches the keys of each issuer, whenever
//! [`TokenIssuer::wants_keys`] returns.

use std::fmt;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

use super::{VerifyTokenError, WebKeys};
use rooflet_base::mutex::lock;

const GROUP: &str = "apiserver.config.k8s.io/";
const KIND: &str = "AuthenticationConfiguration";
/// Prefixes of users and groups of the control plane, which no issuer may grant.
const RESERVED: [&str; 2] = ["system:", "rooflet:"];
/// Tolerance for clocks of different machines, in seconds.
const LEEWAY_SECONDS: i64 = 60;
const EMAIL: &str = "email";

/// Error of a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseIssuersError {
    #[error("{0}")]
    Syntax(String),
    #[error("{field}: {problem}")]
    Field { field: String, problem: &'static str },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    #[serde(default)]
    jwt: Vec<Jwt>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Jwt {
    issuer: Issuer,
    claim_mappings: ClaimMappings,
    #[serde(default)]
    claim_validation_rules: Vec<ClaimRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Issuer {
    url: String,
    #[serde(rename = "discoveryURL")]
    discovery_url: Option<String>,
    certificate_authority: Option<String>,
    audiences: Vec<String>,
    audience_match_policy: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimMappings {
    username: PrefixedClaim,
    groups: Option<PrefixedClaim>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrefixedClaim {
    claim: String,
    prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimRule {
    claim: String,
    #[serde(default)]
    required_value: String,
}

/// Configured issuer and its keys. Clones share the keys.
#[derive(Clone)]
pub struct TokenIssuer {
    config: Arc<Jwt>,
    keys: Arc<Mutex<WebKeys>>,
    wants_keys: Arc<Notify>,
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenIssuer")
            .field(&self.config.issuer.url)
            .finish()
    }
}

/// User of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedUser {
    pub name: String,
    pub groups: Vec<String>,
}

/// Reason why a token of an issuer is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectIssuedTokenError {
    #[error(transparent)]
    Token(#[from] VerifyTokenError),
    #[error("the token has expired, or has no expiry")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token is for other audiences")]
    Audience,
    #[error("the claim {claim} is missing or has another value than required")]
    Claim { claim: String },
    #[error("the claim email is not verified")]
    Unverified,
    #[error("the user or group {name} is reserved")]
    Reserved { name: String },
}

impl TokenIssuer {
    /// Parses an `AuthenticationConfiguration`.
    pub fn parse(configuration: Value) -> Result<Vec<Self>, ParseIssuersError> {
        let parsed: Configuration = serde_json::from_value(configuration)
            .map_err(|err| ParseIssuersError::Syntax(err.to_string()))?;
        let fault = |field: &str, problem| ParseIssuersError::Field {
            field: field.to_owned(),
            problem,
        };
        if !parsed.api_version.starts_with(GROUP) {
            return Err(fault("apiVersion", "must be apiserver.config.k8s.io/v1"));
        }
        if parsed.kind != KIND {
            return Err(fault("kind", "must be AuthenticationConfiguration"));
        }
        let mut issuers: Vec<Self> = Vec::new();
        for (index, jwt) in parsed.jwt.into_iter().enumerate() {
            if let Some((field, problem)) = jwt.fault() {
                return Err(fault(&format!("jwt[{index}].{field}"), problem));
            }
            if issuers
                .iter()
                .any(|other| other.config.issuer.url == jwt.issuer.url)
            {
                return Err(fault(
                    &format!("jwt[{index}].issuer.url"),
                    "two issuers have the same URL",
                ));
            }
            issuers.push(Self {
                config: Arc::new(jwt),
                keys: Arc::default(),
                wants_keys: Arc::default(),
            });
        }
        Ok(issuers)
    }

    /// Returns the URL that tokens of the issuer name.
    pub fn url(&self) -> &str {
        &self.config.issuer.url
    }

    /// Returns the URL of the issuer's discovery document.
    pub fn discovery_url(&self) -> String {
        let issuer = &self.config.issuer;
        issuer.discovery_url.clone().unwrap_or_else(|| {
            format!(
                "{}/.well-known/openid-configuration",
                issuer.url.trim_end_matches('/')
            )
        })
    }

    /// Returns the authorities of the issuer's certificate in PEM; `None` for those of the system.
    pub fn authority_pem(&self) -> Option<&str> {
        self.config.issuer.certificate_authority.as_deref()
    }

    /// Uses these keys from now on.
    pub fn set_keys(&self, keys: WebKeys) {
        *lock(&self.keys) = keys;
    }

    /// Waits for a token whose key is not known.
    pub async fn wants_keys(&self) {
        self.wants_keys.notified().await;
    }

    /// Returns the user of a token.
    pub fn user_of(&self, token: &str, now: Timestamp) -> Result<IssuedUser, RejectIssuedTokenError> {
        let keys = lock(&self.keys).clone();
        let claims = keys.verify(token).inspect_err(|err| {
            if matches!(err, VerifyTokenError::UnknownKey(_)) {
                self.wants_keys.notify_one();
            }
        })?;
        self.config.user_of(&claims, now)
    }
}

impl Jwt {
    /// Returns the first field that is not valid, and the problem.
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        let issuer = &self.issuer;
        let is_https = |url: &str| url.starts_with("https://");
        let checks = [
            (is_https(&issuer.url), "issuer.url", "must be an https URL"),
            (
                issuer.discovery_url.as_deref().is_none_or(is_https),
                "issuer.discoveryURL",
                "must be an https URL",
            ),
            (
                !issuer.audiences.is_empty(),
                "issuer.audiences",
                "must contain at least one audience",
            ),
            (
                issuer
                    .audience_match_policy
                    .as_deref()
                    .is_none_or(|policy| matches!(policy, "" | "MatchAny")),
                "issuer.audienceMatchPolicy",
                "must be MatchAny",
            ),
            (
                !self.claim_mappings.username.claim.is_empty(),
                "claimMappings.username.claim",
                "must name a claim",
            ),
            (
                self.claim_mappings
                    .groups
                    .as_ref()
                    .is_none_or(|groups| !groups.claim.is_empty()),
                "claimMappings.groups.claim",
                "must name a claim",
            ),
            (
                self.claim_validation_rules
                    .iter()
                    .all(|rule| !rule.claim.is_empty()),
                "claimValidationRules",
                "each rule must name a claim",
            ),
        ];
        checks
            .into_iter()
            .find(|(is_valid, ..)| !is_valid)
            .map(|(_, field, problem)| (field, problem))
    }

    fn user_of(&self, claims: &Value, now: Timestamp) -> Result<IssuedUser, RejectIssuedTokenError> {
        let missing = |claim: &str| RejectIssuedTokenError::Claim {
            claim: claim.to_owned(),
        };
        if claims["iss"] != self.issuer.url.as_str() {
            return Err(missing("iss"));
        }
        // NumericDate may have a fraction (RFC 7519, section 2).
        let seconds = |claim: &str| claims[claim].as_f64().map(|seconds| seconds as i64);
        let now = now.as_second();
        if seconds("exp").is_none_or(|end| end < now - LEEWAY_SECONDS) {
            return Err(RejectIssuedTokenError::Expired);
        }
        if seconds("nbf").is_some_and(|start| start > now + LEEWAY_SECONDS) {
            return Err(RejectIssuedTokenError::NotYet);
        }
        let audiences = texts(&claims["aud"]).unwrap_or_default();
        if !audiences.iter().any(|own| self.issuer.audiences.contains(own)) {
            return Err(RejectIssuedTokenError::Audience);
        }
        for rule in &self.claim_validation_rules {
            if claims[&rule.claim] != rule.required_value.as_str() {
                return Err(missing(&rule.claim));
            }
        }
        let username = &self.claim_mappings.username;
        let name = claims[&username.claim].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| missing(&username.claim))?;
        if username.claim == EMAIL
            && claims
                .get("email_verified")
                .is_some_and(|verified| *verified != true)
        {
            return Err(RejectIssuedTokenError::Unverified);
        }
        let name = format!("{}{name}", username.prefix);
        let mut groups = Vec::new();
        if let Some(mapping) = &self.claim_mappings.groups {
            let claimed = match claims.get(&mapping.claim) {
                None | Some(Value::Null) => Vec::new(),
                Some(claimed) => texts(claimed).ok_or_else(|| missing(&mapping.claim))?,
            };
            groups.extend(claimed.iter().map(|group| format!("{}{group}", mapping.prefix)));
        }
        let mut all = std::iter::once(&name).chain(&groups);
        if let Some(reserved) = all.find(|name| RESERVED.iter().any(|prefix| name.starts_with(prefix))) {
            return Err(RejectIssuedTokenError::Reserved {
                name: reserved.clone(),
            });
        }
        Ok(IssuedUser { name, groups })
    }
}

/// Returns a text or a list of texts; `None` for other values.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;
    use serde_json::json;

    fn configuration() -> Value {
        json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": KIND,
            "jwt": [{
                "issuer": {"url": "https://issuer.example", "audiences": ["rooflet", "other"]},
                "claimMappings": {
                    "username": {"claim": "email", "prefix": "sso:"},
                    "groups": {"claim": "groups", "prefix": "sso:"},
                },
                "claimValidationRules": [{"claim": "hd", "requiredValue": "example.com"}],
            }],
        })
    }

    fn claims() -> Value {
        json!({
            "iss": "https://issuer.example", "aud": "rooflet", "exp": 2000, "nbf": 1000,
            "email": "alice@example.com", "email_verified": true, "groups": ["ops"], "hd": "example.com",
        })
    }

    fn user_of(configuration: Value, claims: &Value) -> Result<IssuedUser, RejectIssuedTokenError> {
        let issuers = TokenIssuer::parse(configuration).expect("a valid configuration");
        issuers[0].config.user_of(claims, at(1500))
    }

    #[test]
    fn claims_are_mapped_to_user_and_groups() {
        let user = user_of(configuration(), &claims()).expect("a valid token");
        assert_eq!(user.name, "sso:alice@example.com");
        assert_eq!(user.groups, ["sso:ops"]);
        let mut one = claims();
        one["groups"] = json!("dev");
        one["aud"] = json!(["x", "other"]);
        let user = user_of(configuration(), &one).expect("a valid token");
        assert_eq!(user.groups, ["sso:dev"]);
        one["groups"] = Value::Null;
        assert_eq!(user_of(configuration(), &one).expect("no groups").groups.len(), 0);
    }

    #[test]
    fn token_with_other_claims_is_rejected() {
        let claim = |claim: &str| RejectIssuedTokenError::Claim {
            claim: claim.to_owned(),
        };
        for (name, value, expect) in [
            ("iss", json!("https://issuer.example/"), claim("iss")),
            ("exp", json!(1439), RejectIssuedTokenError::Expired),
            ("exp", Value::Null, RejectIssuedTokenError::Expired),
            ("nbf", json!(1561), RejectIssuedTokenError::NotYet),
            ("aud", json!("third"), RejectIssuedTokenError::Audience),
            ("aud", Value::Null, RejectIssuedTokenError::Audience),
            ("hd", json!("example.org"), claim("hd")),
            ("hd", json!(["example.com"]), claim("hd")),
            ("email", json!(""), claim("email")),
            ("email", Value::Null, claim("email")),
            ("email_verified", json!(false), RejectIssuedTokenError::Unverified),
            (
                "email_verified",
                json!("true"),
                RejectIssuedTokenError::Unverified,
            ),
            ("groups", json!([1]), claim("groups")),
        ] {
            let mut changed = claims();
            changed[name] = value.clone();
            assert_eq!(user_of(configuration(), &changed), Err(expect), "{name} {value}");
        }
    }

    #[test]
    fn names_of_the_control_plane_are_reserved() {
        let mut without_prefix = configuration();
        without_prefix["jwt"][0]["claimMappings"] = json!({
            "username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""},
        });
        for (sub, group) in [
            ("system:admin", "ops"),
            ("alice", "system:masters"),
            ("alice", "rooflet:gateways"),
        ] {
            let mut changed = claims();
            changed["sub"] = json!(sub);
            changed["groups"] = json!([group]);
            let rejected = user_of(without_prefix.clone(), &changed);
            assert!(
                matches!(rejected, Err(RejectIssuedTokenError::Reserved { .. })),
                "{rejected:?}"
            );
        }
    }

    #[test]
    fn configuration_error_names_the_field() {
        for (pointer, value, expect) in [
            ("/kind", json!("Pod"), "kind: must be"),
            ("/apiVersion", json!("v1"), "apiVersion: must be"),
            (
                "/jwt/0/issuer/url",
                json!("http://a"),
                "jwt[0].issuer.url: must be an https URL",
            ),
            (
                "/jwt/0/issuer/audiences",
                json!([]),
                "jwt[0].issuer.audiences: must contain",
            ),
            (
                "/jwt/0/claimMappings/username",
                json!({"expression": "claims.sub"}),
                "unknown field `expression`",
            ),
            (
                "/jwt/0/claimMappings/username",
                json!({"claim": "sub"}),
                "missing field `prefix`",
            ),
            (
                "/jwt/0/claimMappings/username/claim",
                json!(""),
                "claimMappings.username.claim: must name",
            ),
        ] {
            let mut changed = configuration();
            *changed.pointer_mut(pointer).expect("a field") = value;
            let err = TokenIssuer::parse(changed).expect_err(pointer).to_string();
            assert!(err.contains(expect), "{pointer}: {err}");
        }
        let mut twice = configuration();
        let first = twice["jwt"][0].clone();
        twice["jwt"].as_array_mut().expect("a list").push(first);
        let err = TokenIssuer::parse(twice)
            .expect_err("the same issuer")
            .to_string();
        assert!(err.contains("jwt[1].issuer.url"), "{err}");
    }
}
