//! Clients of servers whose certificate an authority of this process signed.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::{ClientConfig, Error, RootCertStore};

use super::Authority;
use super::server_check::{self, Presented};
use crate::crypto;

impl Authority {
    /// Returns the configuration of a client that trusts servers of this authority, also after a rotation.
    pub fn client_config(&self) -> Result<ClientConfig, Error> {
        let authority = self.clone();
        server_check::client_config(move |presented| authority.check(&presented))
    }

    /// Verifies a certificate with the authority as it is now.
    fn check(&self, presented: &Presented<'_>) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.issuing().trusted() {
            roots.add(certificate.clone())?;
        }
        let Presented {
            own,
            rest,
            name,
            ocsp,
            now,
        } = *presented;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crypto())
            .build()
            .map_err(|err| Error::General(err.to_string()))?
            .verify_server_cert(own, rest, name, ocsp, now)
            .map(drop)
    }
}
