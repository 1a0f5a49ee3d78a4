//! Authority that was replaced, and is trusted until it is retired.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::authority_hash::AuthorityHash;

/// Replaced authority. Its key is not kept.
pub(crate) struct Previous {
    /// Certificate of the current authority that the replaced one signed.
    pub(crate) cross_signed: CertificateDer<'static>,
    /// Own certificate of the replaced authority.
    pub(crate) certificate: CertificateDer<'static>,
}

impl Previous {
    /// Parses the content of a file. Returns `None` if it does not belong to the current authority.
    pub(super) fn parse(pem: &str, current: &CertificateDer<'_>) -> Option<Self> {
        let mut certificates = CertificateDer::pem_slice_iter(pem.as_bytes());
        let mut next = || certificates.next()?.ok();
        let (cross_signed, certificate) = (next()?, next()?);
        let key = AuthorityHash::of(&cross_signed)?;
        (AuthorityHash::of(current) == Some(key)).then_some(Self {
            cross_signed,
            certificate,
        })
    }

    pub(super) fn to_pem(&self) -> String {
        [&self.cross_signed, &self.certificate]
            .map(|certificate| crate::certificate_pem(certificate))
            .concat()
    }
}
