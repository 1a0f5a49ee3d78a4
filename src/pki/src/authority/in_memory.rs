//! Authorities whose key and certificate the caller stores, for example in a Secret of a cluster.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;

use super::previous::Previous;
use super::{Authority, AuthorityKind, Issuing};
use rooflet_base::mutex::lock;

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

    /// Parses certificate and key, as [`generate`](Self::generate) returns them. `previous` is the
    /// replaced authority of [`next_generation`](Self::next_generation) until it is retired.
    pub fn from_pem(
        kind: AuthorityKind,
        pem: &str,
        previous: Option<&str>,
    ) -> Result<Self, ParseAuthorityError> {
        Ok(Self::in_memory(kind, parse(pem, previous)?))
    }

    /// Creates the authority that is to replace this one, which stays unchanged. Returns
    /// certificate and key in PEM, and this authority as the replaced one. The caller stores them,
    /// and then calls [`replace`](Self::replace).
    pub fn next_generation(&self, now: Timestamp) -> Result<(String, String), rcgen::Error> {
        let (pem, next) = Issuing::generate(self.kind, now, Some(&self.issuing()))?;
        Ok((
            pem,
            next.previous.as_ref().map(Previous::to_pem).unwrap_or_default(),
        ))
    }

    /// Uses a stored authority in this authority and its clones. Without `previous`, a replaced one
    /// is retired.
    pub fn replace(&self, pem: &str, previous: Option<&str>) -> Result<(), ParseAuthorityError> {
        let next = parse(pem, previous)?;
        *lock(&self.issuing) = Arc::new(next);
        self.changed.send_replace(());
        Ok(())
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

fn parse(pem: &str, previous: Option<&str>) -> Result<Issuing, ParseAuthorityError> {
    let (mut issuing, _) = Issuing::parse(pem).map_err(ParseAuthorityError)?;
    issuing.previous = previous.and_then(|pem| Previous::parse(pem, &issuing.certificate));
    Ok(issuing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn authority_is_restored_from_its_text() {
        let (authority, pem) =
            Authority::generate(AuthorityKind::Node, at(1_767_225_600)).expect("generated");
        let restored = Authority::from_pem(AuthorityKind::Node, &pem, None).expect("valid");
        assert_eq!(restored.certificate_pem(), authority.certificate_pem());
        let (key, _) = pem.split_once("-----BEGIN PRIVATE KEY").expect("a key");
        for unusable in ["", key, "no PEM"] {
            assert!(
                Authority::from_pem(AuthorityKind::Node, unusable, None).is_err(),
                "{unusable}"
            );
        }
    }

    #[test]
    fn replaced_authority_is_trusted_until_it_is_retired() {
        let now = at(1_767_225_600);
        let (authority, first) = Authority::generate(AuthorityKind::Node, now).expect("generated");
        let old = authority.certificate_pem();
        let (second, previous) = authority.next_generation(now).expect("generated");
        assert_eq!(
            (authority.certificate_pem(), authority.has_previous()),
            (old.clone(), false)
        );
        let clone = authority.clone();
        authority.replace(&second, Some(&previous)).expect("valid");
        assert!(clone.has_previous() && clone.certificate_pem().ends_with(&old));
        let restored = Authority::from_pem(AuthorityKind::Node, &second, Some(&previous)).expect("valid");
        assert_eq!(restored.certificate_pem(), clone.certificate_pem());
        // An authority that belongs to another one is not trusted.
        let foreign = Authority::from_pem(AuthorityKind::Node, &first, Some(&previous)).expect("valid");
        assert!(!foreign.has_previous());
        authority.replace(&second, None).expect("valid");
        assert!(!clone.has_previous() && !clone.certificate_pem().contains(&old));
    }
}
