//! Identity of the API server and of its clients: certificate authorities, serving certificates,
//! tokens and kubeconfig files.
//!
//! The crate owns the files of one directory: `ca.pem`, `client-ca.pem` and `node-ca.pem` (key and
//! certificate each), their `-previous.pem` during a rotation, `service-account-key.pem` and `token`.
//!
//! Invariants:
//! - Files are readable by their owner only, and each is written completely or not at all.
//! - Serving certificates are only in memory. They are created at each start and renewed before
//!   they expire.

mod account_key;
mod api_key;
mod authority;
mod authority_hash;
mod bootstrap_token;
mod certificate_files;
mod certificate_metrics;
mod certificate_request;
mod client_certificate;
mod discover;
mod identity;
mod join_token;
pub mod kubeconfig;
mod machine_tls;
mod node;
mod private_file;
mod revocations;
mod secrets_key;
mod serving;
mod subject;
mod token;
mod user;
mod web_keys;

pub use account_key::{AccountKey, OpenAccountKeyError, SignTokenError};
pub use api_key::{API_KEY_PREFIX, ApiKeySecret};
pub use authority::{
    Authority, AuthorityKind, OpenAuthorityError, ParseAuthorityError, RotateAuthorityError,
};
pub use authority_hash::AuthorityHash;
pub use bootstrap_token::{
    BootstrapToken, TOKEN_HASH_KEY, TOKEN_NAMESPACE, TOKEN_NODE_KEY, TOKEN_SECRET_PREFIX, TOKEN_SECRET_TYPE,
    TOKEN_USES_KEY,
};
pub use certificate_files::{CertificateFiles, CertificateFilesError};
pub use certificate_metrics::CertificateMetrics;
pub use certificate_request::{
    AlternativeNames, CertificateRequest, SignRequestError, SigningPolicy, check_certificates,
    end_of_certificate,
};
pub use client_certificate::{ClientCertificate, IssueClientError};
pub use discover::{ClockDifference, DiscoverError, discover, presented_authority};
pub use identity::{CONTROLLERS_GROUP, GATEWAYS_GROUP, Identity, Role};
pub use join_token::JoinToken;
pub use machine_tls::{MachineTls, MachineTlsError};
pub use node::{KeyRequest, NODE_USER_PREFIX, NODES_GROUP, NodeCertificate, is_issued_by};
pub use private_file::read as read_private;
pub use revocations::Revocations;
pub use secrets_key::{OpenSecretsKeyError, SealError, SecretsKey};
pub use serving::{IssueError, ServingCertificate, is_ip_or_dns_name};
pub use subject::UserName;
pub use token::{OpenTokenError, Token};
pub use user::{UserCertificateError, UserCertificates};
pub use web_keys::{
    IssuedUser, ParseIssuersError, ParseWebKeysError, RejectIssuedTokenError, TokenIssuer, WebKeys,
    claimed_issuer,
};

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::CryptoProvider;

/// Characters per line (RFC 7468).
const PEM_LINE: usize = 64;

/// Returns the crypto provider of all TLS connections. It is explicit, because another library may
/// set the default of the process.
pub fn crypto() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Converts a certificate from DER to PEM.
pub fn certificate_pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in STANDARD.encode(der).as_bytes().chunks(PEM_LINE) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests;
