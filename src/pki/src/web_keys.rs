//! Keys of an issuer of tokens (JSON Web Key Set, RFC 7517), and the tokens that they signed (RFC 7515), with
//! RS256 or ES256.

mod issuer;

use std::fmt;

pub use issuer::{IssuedUser, ParseIssuersError, RejectIssuedTokenError, TokenIssuer};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::Value;

const RS256: &str = "RS256";
const ES256: &str = "ES256";
/// Length of a coordinate of P-256 in bytes.
const COORDINATE_BYTES: usize = 32;
/// First byte of an uncompressed point.
const UNCOMPRESSED: u8 = 0x04;
/// Maximum length of a token: more than the headers of a request may have.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// Public keys of an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebKeys(Vec<WebKey>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct WebKey {
    id: Option<String>,
    key: PublicKey,
}

#[derive(Clone, PartialEq, Eq)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256 { point: Vec<u8> },
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm())
    }
}

/// Error of a key set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key set contains no key for RS256 or ES256")]
pub struct ParseWebKeysError;

/// Reason why a token is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyTokenError {
    #[error("the token is not a signed JSON Web Token")]
    Malformed,
    #[error("the algorithm {0} is not supported; use RS256 or ES256")]
    Algorithm(String),
    #[error("the issuer has no key with the id {0:?}")]
    UnknownKey(String),
    #[error("the signature is not valid")]
    Signature,
}

impl PublicKey {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => RS256,
            Self::P256 { .. } => ES256,
        }
    }

    fn verifies(&self, signed: &str, signature: &[u8]) -> bool {
        let signed = signed.as_bytes();
        match self {
            Self::Rsa { modulus, exponent } => RsaPublicKeyComponents {
                n: modulus,
                e: exponent,
            }
            .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
            .is_ok(),
            Self::P256 { point } => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(signed, signature)
                .is_ok(),
        }
    }
}

impl WebKeys {
    /// Parses a key set. Keys of other types and for other uses are skipped.
    pub fn parse(set: &Value) -> Result<Self, ParseWebKeysError> {
        let keys = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let keys: Vec<WebKey> = keys.iter().filter_map(WebKey::parse).collect();
        match keys.is_empty() {
            true => Err(ParseWebKeysError),
            false => Ok(Self(keys)),
        }
    }

    /// Returns the claims of a token that one of the keys signed. Does not check the claims.
    pub fn verify(&self, token: &str) -> Result<Value, VerifyTokenError> {
        let malformed = VerifyTokenError::Malformed;
        let (signed, signature) = token
            .rsplit_once('.')
            .filter(|_| token.len() <= TOKEN_BYTES_MAX)
            .ok_or(malformed.clone())?;
        let (header, claims) = signed.split_once('.').ok_or(malformed.clone())?;
        let header = decoded(header).ok_or(malformed.clone())?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed.clone())?;
        // A verifier must reject extensions that it does not know (RFC 7515, section 4.1.11).
        if !header["crit"].is_null() {
            return Err(malformed);
        }
        let algorithm = header["alg"].as_str().unwrap_or_default();
        if ![RS256, ES256].contains(&algorithm) {
            return Err(VerifyTokenError::Algorithm(algorithm.to_owned()));
        }
        let id = header["kid"].as_str();
        let is_named = |key: &&WebKey| {
            key.key.algorithm() == algorithm
                && id.is_none_or(|id| key.id.as_deref().is_none_or(|own| own == id))
        };
        let mut candidates = self.0.iter().filter(is_named).peekable();
        if candidates.peek().is_none() {
            return Err(VerifyTokenError::UnknownKey(id.unwrap_or_default().to_owned()));
        }
        if !candidates.any(|key| key.key.verifies(signed, &signature)) {
            return Err(VerifyTokenError::Signature);
        }
        decoded(claims).ok_or(malformed)
    }
}

impl WebKey {
    fn parse(key: &Value) -> Option<Self> {
        if key["use"].as_str().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str()?).ok();
        let parsed = match (key["kty"].as_str()?, key["crv"].as_str()) {
            ("RSA", _) => PublicKey::Rsa {
                modulus: bytes("n")?,
                exponent: bytes("e")?,
            },
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes("x")?, bytes("y")?);
                if x.len() != COORDINATE_BYTES || y.len() != COORDINATE_BYTES {
                    return None;
                }
                PublicKey::P256 {
                    point: [&[UNCOMPRESSED], x.as_slice(), y.as_slice()].concat(),
                }
            }
            _ => return None,
        };
        let is_for_other = key["alg"].as_str().is_some_and(|alg| alg != parsed.algorithm());
        (!is_for_other).then(|| Self {
            id: key["kid"].as_str().map(str::to_owned),
            key: parsed,
        })
    }
}

/// Returns the issuer that a token names. The token may be forged.
pub fn claimed_issuer(token: &str) -> Option<String> {
    let mut parts = token.split('.').skip(1);
    let claims = decoded(parts.next().filter(|_| token.len() <= TOKEN_BYTES_MAX)?)?;
    claims["iss"].as_str().map(str::to_owned)
}

fn decoded(part: &str) -> Option<Value> {
    let value: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()?;
    value.is_object().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Payload of both examples in RFC 7515, appendix A.2 and A.3.
    const CLAIMS: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const RS256_SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    const ES256_SIGNATURE: &str =
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

    fn set() -> Value {
        json!({"keys": [
            {"kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"},
            {"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},
            {"kty": "oct", "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"},
        ]})
    }

    fn token(header: &Value, signature: &str) -> String {
        format!(
            "{}.{CLAIMS}.{signature}",
            URL_SAFE_NO_PAD.encode(header.to_string())
        )
    }

    #[test]
    fn accepts_the_examples_of_the_standard() {
        let keys = WebKeys::parse(&set()).expect("two keys");
        for (algorithm, signature) in [(RS256, RS256_SIGNATURE), (ES256, ES256_SIGNATURE)] {
            let token = token(&json!({"alg": algorithm}), signature);
            let claims = keys
                .verify(&token)
                .unwrap_or_else(|err| panic!("{algorithm}: {err}"));
            assert_eq!(claims["iss"], "joe");
            assert_eq!(claimed_issuer(&token).as_deref(), Some("joe"));
        }
    }

    #[test]
    fn rejects_changed_tokens_and_other_algorithms() {
        let keys = WebKeys::parse(&set()).expect("two keys");
        let valid = token(&json!({"alg": ES256}), ES256_SIGNATURE);
        let other_claims = valid.replace(CLAIMS, &URL_SAFE_NO_PAD.encode(r#"{"iss":"eve"}"#));
        assert_eq!(keys.verify(&other_claims), Err(VerifyTokenError::Signature));
        assert_eq!(
            keys.verify(&token(&json!({"alg": RS256}), ES256_SIGNATURE)),
            Err(VerifyTokenError::Signature)
        );
        for algorithm in ["none", "HS256", ""] {
            assert_eq!(
                keys.verify(&token(&json!({"alg": algorithm}), "")),
                Err(VerifyTokenError::Algorithm(algorithm.to_owned()))
            );
        }
        let critical = token(&json!({"alg": ES256, "crit": ["exp"]}), ES256_SIGNATURE);
        for malformed in ["", "a", "a.b", "a.b.c", "..", &critical] {
            assert_eq!(
                keys.verify(malformed),
                Err(VerifyTokenError::Malformed),
                "{malformed}"
            );
        }
    }

    #[test]
    fn key_id_selects_the_key() {
        let mut set = set();
        set["keys"][1]["kid"] = json!("new");
        let keys = WebKeys::parse(&set).expect("two keys");
        let of = |id: &str| keys.verify(&token(&json!({"alg": ES256, "kid": id}), ES256_SIGNATURE));
        assert_eq!(of("old"), Err(VerifyTokenError::UnknownKey("old".to_owned())));
        // The example is signed without an id in its header, so its signature does not match this header.
        assert_eq!(of("new"), Err(VerifyTokenError::Signature));
    }

    #[test]
    fn skips_keys_for_other_uses() {
        let mut set = set();
        set["keys"][0]["use"] = json!("enc");
        set["keys"][1]["alg"] = json!("ES384");
        assert_eq!(WebKeys::parse(&set), Err(ParseWebKeysError));
        assert_eq!(WebKeys::parse(&json!({})), Err(ParseWebKeysError));
    }
}
