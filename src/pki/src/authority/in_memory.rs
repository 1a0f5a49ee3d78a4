//! Authorities whose key and certificate the caller stores, for example in a Secret of a cluster.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;

use super::{Authority, AuthorityKind, Issuing};

/// Error of [`Authority::from_pem`].
#[derive(Debug, thiserror::Error)]
#[error("not a certificate authority: {0}")]
pub struct ParseAuthorityError(String);

impl Authority {
    /// Creates an authority without files. Returns it with its certificate and key in PEM.
    pub fn generate(kind: AuthorityKind, now: Timestamp) -> Result<(Self, String), rcgen::Error> {
        let (pem, issuing) = Issuing::generate(kind, now, None)?;
        Ok((Self::in_memory(kind, issuing), pem))
    }

    /// Parses certificate and key, as [`generate`](Self::generate) returns them.
    pub fn from_pem(kind: AuthorityKind, pem: &str) -> Result<Self, ParseAuthorityError> {
        let (issuing, _) = Issuing::parse(pem).map_err(ParseAuthorityError)?;
        Ok(Self::in_memory(kind, issuing))
    }

    fn in_memory(kind: AuthorityKind, issuing: Issuing) -> Self {
        Self {
            directory: None,
            kind,
            issuing: Arc::new(Mutex::new(Arc::new(issuing))),
            changed: Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn authority_is_restored_from_its_text() {
        let (authority, pem) =
            Authority::generate(AuthorityKind::Node, at(1_767_225_600)).expect("generated");
        let restored = Authority::from_pem(AuthorityKind::Node, &pem).expect("valid");
        assert_eq!(restored.certificate_pem(), authority.certificate_pem());
        let (key, _) = pem.split_once("-----BEGIN PRIVATE KEY").expect("a key");
        for unusable in ["", key, "no PEM"] {
            assert!(
                Authority::from_pem(AuthorityKind::Node, unusable).is_err(),
                "{unusable}"
            );
        }
    }
}
