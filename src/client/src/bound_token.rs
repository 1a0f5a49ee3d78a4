//! Tokens of ServiceAccounts that an API server accepts only while a Secret exists.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;

use super::{ApiError, FIELD_MANAGER};

/// ServiceAccount, and the Secret to which its tokens are bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBinding {
    pub namespace: String,
    pub account: String,
    /// Name of the Secret.
    pub secret: String,
    pub secret_uid: String,
}

impl TokenBinding {
    /// Requests a token. The cluster may issue it for less than `lifetime`.
    pub async fn request_token(&self, client: &Client, lifetime: Duration) -> Result<String, ApiError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(self.secret.clone()),
                    uid: Some(self.secret_uid.clone()),
                }),
                expiration_seconds: i64::try_from(lifetime.as_secs()).ok(),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let issued = accounts
            .create_token_request(&self.account, &params, &request)
            .await;
        let status = issued.map_err(ApiError::from)?.status;
        let token = status.and_then(|status| status.token);
        token.ok_or_else(|| ApiError::Invalid("the TokenRequest has no token in its status".to_owned()))
    }
}

/// Token with its validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundToken {
    pub binding: TokenBinding,
    pub issued: Timestamp,
    pub expires: Timestamp,
}

#[derive(Deserialize)]
struct Claims {
    iat: i64,
    exp: i64,
    #[serde(rename = "kubernetes.io")]
    bound: BoundClaims,
}

#[derive(Deserialize)]
struct BoundClaims {
    namespace: String,
    serviceaccount: ObjectClaims,
    secret: ObjectClaims,
}

#[derive(Deserialize)]
struct ObjectClaims {
    name: String,
    uid: String,
}

impl BoundToken {
    /// Parses the claims of a token without a check of its signature. Returns `None` for a token that is
    /// not bound to a Secret.
    pub fn read(token: &str) -> Option<Self> {
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let claims: Claims = serde_json::from_slice(&claims).ok()?;
        Some(Self {
            binding: TokenBinding {
                namespace: claims.bound.namespace,
                account: claims.bound.serviceaccount.name,
                secret: claims.bound.secret.name,
                secret_uid: claims.bound.secret.uid,
            },
            issued: Timestamp::from_second(claims.iat).ok()?,
            expires: Timestamp::from_second(claims.exp).ok()?,
        })
    }

    /// Returns the time of the renewal: after two thirds of the lifetime.
    pub fn renew_at(&self) -> Timestamp {
        let lifetime = self.expires.as_second() - self.issued.as_second();
        Timestamp::from_second(self.issued.as_second() + lifetime * 2 / 3).unwrap_or(self.issued)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Claims as in the documentation of Kubernetes, "Managing Service Accounts", bound to a Secret.
    fn claims() -> Value {
        json!({
            "aud": ["https://kubernetes.default.svc"], "exp": 1_731_613_413, "iat": 1_700_077_413,
            "iss": "https://kubernetes.default.svc", "jti": "ea28ed49-2e11-4280-9ec5-bc3d1d84661a",
            "kubernetes.io": {
                "namespace": "kube-system",
                "secret": {"name": "bound", "uid": "58456cb0-dd00-45ed-b797-5578fdceaced"},
                "serviceaccount": {"name": "coredns", "uid": "0a2bb18e-8d0a-4d8a-8d3c-2f1a5b4a3c11"},
            },
            "nbf": 1_700_077_413, "sub": "system:serviceaccount:kube-system:coredns",
        })
    }

    fn token(claims: &Value) -> String {
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        format!("{}.{}.c2ln", encode(&json!({"alg": "RS256"})), encode(claims))
    }

    #[test]
    fn token_of_a_secret_is_renewed_after_two_thirds_of_its_lifetime() {
        let read = BoundToken::read(&token(&claims())).expect("bound to a Secret");
        assert_eq!(
            read.binding,
            TokenBinding {
                namespace: "kube-system".to_owned(),
                account: "coredns".to_owned(),
                secret: "bound".to_owned(),
                secret_uid: "58456cb0-dd00-45ed-b797-5578fdceaced".to_owned(),
            }
        );
        assert_eq!(read.expires.as_second(), 1_731_613_413);
        assert_eq!(read.renew_at().as_second(), 1_700_077_413 + 21_024_000);
    }

    #[test]
    fn other_tokens_are_not_bound() {
        let mut of_pod = claims();
        let bound = of_pod["kubernetes.io"].as_object_mut().expect("an object");
        let pod = bound.remove("secret").expect("a Secret");
        bound.insert("pod".to_owned(), pod);
        for other in [
            token(&of_pod),
            "opaque".to_owned(),
            "a.%.c".to_owned(),
            String::new(),
        ] {
            assert_eq!(BoundToken::read(&other), None, "{other}");
        }
    }
}
