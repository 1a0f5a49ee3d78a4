//! Who the API server is and who may speak to it: its certificate authority, serving certificate,
//! bearer token, and the kubeconfig that hands a client all three; the authority of users' certificates.
//!
//! Owns the files of one directory, all of them their owner's alone and each written whole or not at
//! all: `ca.pem` and `client-ca.pem` (key and certificate each) and `token`. Serving certificates are made anew at each
//! start, and while running before they expire; they lie nowhere.

mod authority;
pub(crate) mod kubeconfig;
mod private_file;
mod serving;
mod token;
mod user;

pub(crate) use authority::{Authority, AuthorityKind, OpenAuthorityError};
pub(crate) use serving::{IssueError, ServingCertificate};
pub(crate) use token::{OpenTokenError, Token};
pub(crate) use user::{UserCertificateError, UserCertificates, UserName};

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The crypto of all TLS here, named rather than taken from the process: which other library asks
/// for a default first must not decide it.
pub(crate) fn crypto() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
