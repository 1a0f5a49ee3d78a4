//! Subject of a certificate: the common name is the user name, the organizations are its groups.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// Subject of a valid certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserName {
    /// Empty if the certificate has no common name.
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// Returns the subject; `None` if it is not valid.
pub(super) fn subject(certificate: &CertificateDer<'_>) -> Option<UserName> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let text = |attribute: &AttributeTypeAndValue<'_>| Some(attribute.as_str().ok()?.to_owned());
    let subject = certificate.subject();
    Some(UserName {
        // The last common name counts, as in Go's x509.
        common_name: match subject.iter_common_name().last() {
            Some(name) => text(name)?,
            None => String::new(),
        },
        organizations: subject.iter_organization().map(text).collect::<Option<_>>()?,
    })
}

/// Returns whether the subject of an authority is the issuer of a certificate. Each authority has a unique name.
pub(super) fn was_issued_by(certificate: &CertificateDer<'_>, authority: &CertificateDer<'_>) -> bool {
    let parsed = X509Certificate::from_der(certificate).ok();
    let authority = X509Certificate::from_der(authority).ok();
    parsed
        .zip(authority)
        .is_some_and(|((_, own), (_, authority))| own.issuer().as_raw() == authority.subject().as_raw())
}
