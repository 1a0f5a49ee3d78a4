//! Certificate signing requests (PKCS #10), with proof of possession of their key, and the
//! certificates that an authority issues for them.
//!
//! Only subject, names and key are taken from a request. The signer determines usages and lifetime.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{PemObject as _, SectionKind};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::X509Name;

use super::authority::{Authority, validity};

/// Length of a serial number in bytes.
const SERIAL_BYTES: usize = 16;
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];
const COMMON_NAME: [u64; 4] = [2, 5, 4, 3];

/// Error of parsing a request.
#[derive(Debug, thiserror::Error)]
pub enum ReadRequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    #[error("the certificate request is invalid: {0}")]
    Malformed(String),
    #[error("the signature does not match the request's key: {0}")]
    Signature(String),
}

/// Error of signing a request.
#[derive(Debug, thiserror::Error)]
pub enum SignRequestError {
    #[error("the subject contains {0} more than once, which is not supported")]
    Repeated(&'static str),
    #[error("the type of the key is not supported; use ECDSA (P-256 or P-384), Ed25519 or RSA")]
    Key(#[source] rcgen::Error),
    #[error("a name is not valid in a certificate")]
    Name(#[source] rcgen::Error),
    #[error("generating a serial number")]
    Random(#[source] rand::rand_core::OsError),
    #[error("signing the certificate")]
    Sign(#[source] rcgen::Error),
}

/// Subject alternative names of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    pub dns: Vec<String>,
    pub ips: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    /// Number of names of other types.
    pub others: usize,
}

/// Request with a verified signature.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    pub organizations: Vec<String>,
    /// Last common name of the subject; empty if there is none.
    pub common_name: String,
    pub names: AlternativeNames,
    /// All attributes of the subject, in order.
    subject: Vec<(Vec<u64>, String)>,
    /// Public key as SubjectPublicKeyInfo in DER.
    key: Vec<u8>,
}

/// Usages and maximum lifetime of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningPolicy {
    pub key_usages: Vec<KeyUsagePurpose>,
    pub extended_key_usages: Vec<ExtendedKeyUsagePurpose>,
    /// URI that the signer adds to the names of the request.
    pub uri: Option<String>,
    pub lifetime: Duration,
}

impl CertificateRequest {
    /// Parses the first PEM block.
    pub fn from_pem(pem: &[u8]) -> Result<Self, ReadRequestError> {
        let (kind, der) =
            <(SectionKind, Vec<u8>)>::from_pem_slice(pem).map_err(|_| ReadRequestError::NotPem)?;
        if kind != SectionKind::Csr {
            return Err(ReadRequestError::NotPem);
        }
        let malformed = |what: &str| ReadRequestError::Malformed(what.to_owned());
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|err| ReadRequestError::Malformed(err.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed("data follows the request"));
        }
        request
            .verify_signature()
            .map_err(|err| ReadRequestError::Signature(err.to_string()))?;
        let info = &request.certification_request_info;
        let subject = attributes(&info.subject).ok_or_else(|| malformed("its subject is not text"))?;
        let mut names = AlternativeNames::default();
        for extension in request.requested_extensions().into_iter().flatten() {
            // All other extensions are ignored.
            if let ParsedExtension::SubjectAlternativeName(requested) = extension {
                for name in &requested.general_names {
                    names.add(name).ok_or_else(|| malformed("an alternative name"))?;
                }
            } else if let ParsedExtension::ParseError { .. } = extension {
                return Err(malformed("an extension"));
            }
        }
        let all = |oid: [u64; 4]| {
            let matching = subject.iter().filter(move |(own, _)| *own == oid);
            matching.map(|(_, text)| text.clone())
        };
        Ok(Self {
            organizations: all(ORGANIZATION).collect(),
            common_name: all(COMMON_NAME).next_back().unwrap_or_default(),
            names,
            key: info.subject_pki.raw.to_vec(),
            subject,
        })
    }

    /// Returns true if the subject consists of organizations and one common name.
    pub fn subject_is_plain(&self) -> bool {
        self.subject.len() == self.organizations.len() + 1 && !self.common_name.is_empty()
    }

    fn distinguished_name(&self) -> Result<DistinguishedName, SignRequestError> {
        let mut name = DistinguishedName::new();
        for (oid, text) in &self.subject {
            let kind = DnType::from_oid(oid);
            if name.get(&kind).is_some() {
                return Err(SignRequestError::Repeated(if kind == DnType::OrganizationName {
                    "an organization (O)"
                } else {
                    "an attribute"
                }));
            }
            let value = if kind == DnType::CountryName {
                text.as_str().try_into().map(DnValue::PrintableString)
            } else {
                Ok(DnValue::Utf8String(text.clone()))
            };
            name.push(kind, value.map_err(SignRequestError::Name)?);
        }
        Ok(name)
    }
}

impl AlternativeNames {
    fn add(&mut self, name: &GeneralName<'_>) -> Option<()> {
        match name {
            GeneralName::DNSName(name) => self.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => self.ips.push(match *bytes {
                [a, b, c, d] => IpAddr::from([*a, *b, *c, *d]),
                bytes => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
            }),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::Invalid(..) => return None,
            GeneralName::OtherName(..)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::RegisteredID(_) => self.others += 1,
        }
        Some(())
    }

    fn to_sign(&self) -> Result<Vec<SanType>, SignRequestError> {
        let dns = self.dns.iter().map(|name| {
            let name = name.as_str().try_into().map_err(SignRequestError::Name)?;
            Ok(SanType::DnsName(name))
        });
        dns.chain(self.ips.iter().map(|address| Ok(SanType::IpAddress(*address))))
            .collect()
    }
}

/// Returns `None` if an attribute is not text.
fn attributes(name: &X509Name<'_>) -> Option<Vec<(Vec<u64>, String)>> {
    name.iter_attributes()
        .map(|attribute| {
            let oid = attribute.attr_type().iter()?.collect();
            Some((oid, attribute.as_str().ok()?.to_owned()))
        })
        .collect()
}

impl Authority {
    /// Issues a certificate in PEM for the request's subject, DNS names, addresses and key. It is
    /// valid from shortly before `now`, and ends with the authority's certificate at the latest. Until a
    /// replaced authority is retired, the chain leads to it, too.
    pub fn sign(
        &self,
        request: &CertificateRequest,
        policy: &SigningPolicy,
        now: Timestamp,
    ) -> Result<String, SignRequestError> {
        let issuing = self.issuing();
        let key = SubjectPublicKeyInfo::from_der(&request.key).map_err(SignRequestError::Key)?;
        let mut serial = [0; SERIAL_BYTES];
        OsRng
            .try_fill_bytes(&mut serial)
            .map_err(SignRequestError::Random)?;
        serial[0] &= 0x7f;
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = request.distinguished_name()?;
        params.subject_alt_names = request.names.to_sign()?;
        if let Some(uri) = &policy.uri {
            let uri = uri.as_str().try_into().map_err(SignRequestError::Name)?;
            params.subject_alt_names.push(SanType::URI(uri));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages.clone_from(&policy.key_usages);
        params.extended_key_usages.clone_from(&policy.extended_key_usages);
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(now, policy.lifetime);
        if let Some(end) = end_of(&issuing.certificate)
            .and_then(|end| time::OffsetDateTime::from_unix_timestamp(end.as_second()).ok())
        {
            params.not_after = params.not_after.min(end);
        }
        let certificate = params
            .signed_by(&key, &*issuing.issuer)
            .map_err(SignRequestError::Sign)?;
        let cross_signed = issuing.cross_signed();
        let cross_signed = cross_signed.map(|certificate| super::certificate_pem(certificate));
        Ok(format!(
            "{}{}",
            super::certificate_pem(certificate.der()),
            cross_signed.unwrap_or_default()
        ))
    }
}

/// Returns the end of a certificate's validity.
fn end_of(certificate: &[u8]) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

/// Returns the end of the first certificate's validity; `None` if it is invalid.
pub fn end_of_certificate(pem: &[u8]) -> Option<Timestamp> {
    end_of(&CertificateDer::from_pem_slice(pem).ok()?)
}

/// Error of [`check_certificates`]. The texts are those of Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum CheckCertificatesError {
    #[error("{0}")]
    Pem(rustls::pki_types::pem::Error),
    #[error("only CERTIFICATE PEM blocks are allowed")]
    OtherBlock,
    #[error("{0}")]
    Certificate(x509_parser::nom::Err<x509_parser::error::X509Error>),
    #[error("data follows a certificate")]
    TrailingData,
    #[error("must contain at least one CERTIFICATE PEM block")]
    Empty,
}

/// Checks that a text consists of certificates in PEM.
pub fn check_certificates(pem: &[u8]) -> Result<(), CheckCertificatesError> {
    let mut has_any = false;
    for block in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (kind, der) = block.map_err(CheckCertificatesError::Pem)?;
        if kind != SectionKind::Certificate {
            return Err(CheckCertificatesError::OtherBlock);
        }
        let (rest, _) = X509Certificate::from_der(&der).map_err(CheckCertificatesError::Certificate)?;
        if !rest.is_empty() {
            return Err(CheckCertificatesError::TrailingData);
        }
        has_any = true;
    }
    match has_any {
        true => Ok(()),
        false => Err(CheckCertificatesError::Empty),
    }
}
