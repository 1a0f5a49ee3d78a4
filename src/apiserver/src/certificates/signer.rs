//! Rules of the signers: accepted requests, automatic approval, and certificate lifetimes. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};

use crate::authentication::{BOOTSTRAPPERS, MASTERS};
use rooflet_pki::{
    AlternativeNames, CertificateRequest, Identity, NODE_USER_PREFIX as NODE_PREFIX, NODES_GROUP as NODES,
    Role, SigningPolicy,
};
use rooflet_schema::names;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of certificates whose request has no expiration.
const LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
const LIFETIME_MAX: Duration = Duration::from_secs(365 * DAY.as_secs());

pub(crate) const DIGITAL_SIGNATURE: &str = "digital signature";
pub(crate) const KEY_ENCIPHERMENT: &str = "key encipherment";
pub(crate) const CLIENT_AUTH: &str = "client auth";
pub(crate) const SERVER_AUTH: &str = "server auth";

/// Signer of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signer {
    /// Signs client certificates of nodes for the API server.
    NodeClient,
    /// Signs serving certificates of nodes.
    NodeServing,
    /// Signs client certificates of users for the API server.
    UserClient,
}

/// Reason why a signer rejects a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectRequestError {
    #[error("subject organization is not {NODES}")]
    NodeGroup,
    #[error("subject common name does not begin with {NODE_PREFIX}")]
    NodePrefix,
    #[error("subject common name does not end with a node's name: {fault}")]
    NodeName { fault: String },
    #[error("subject contains more than one organization and one common name")]
    NodeSubject,
    #[error("DNS or IP subjectAltName is required")]
    NoServingName,
    #[error("subject common name is required, because it is the name of the user")]
    NoUser,
    #[error(
        "subject belongs to a node; use the signer kubernetes.io/kube-apiserver-client-kubelet for {NODES}"
    )]
    UserIsNode,
    #[error("subject organization {MASTERS} is not allowed")]
    Masters,
    #[error("{kind} subjectAltNames are not allowed")]
    AlternativeNames { kind: &'static str },
    #[error("usages did not match [{expected}]")]
    Usages { expected: String },
    #[error("invalid usage for client certificate: {usage}")]
    ClientUsage { usage: String },
    #[error("missing required usage for client certificate: {CLIENT_AUTH}")]
    NoClientAuth,
}

/// User that created a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requestor<'a> {
    pub(crate) name: &'a str,
    pub(crate) groups: &'a [&'a str],
}

impl Signer {
    /// Returns the signer with this name, or `None` for signers of other programs.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::NodeClient),
            "kubernetes.io/kubelet-serving" => Some(Self::NodeServing),
            "kubernetes.io/kube-apiserver-client" => Some(Self::UserClient),
            _ => None,
        }
    }

    /// Checks whether the signer accepts the request.
    pub(crate) fn check(
        self,
        request: &CertificateRequest,
        usages: &[&str],
    ) -> Result<(), RejectRequestError> {
        match self {
            Self::NodeClient => {
                check_node(request)?;
                reject_names(&request.names)?;
                check_usages(usages, CLIENT_AUTH)
            }
            Self::NodeServing => {
                check_node(request)?;
                if request.names.dns.is_empty() && request.names.ips.is_empty() {
                    return Err(RejectRequestError::NoServingName);
                }
                reject_names(&AlternativeNames {
                    dns: Vec::new(),
                    ips: Vec::new(),
                    ..request.names.clone()
                })?;
                check_usages(usages, SERVER_AUTH)
            }
            Self::UserClient => {
                check_user(request)?;
                reject_names(&request.names)?;
                check_user_usages(usages)
            }
        }
    }

    /// Returns the reason for automatic approval, or `None` if an administrator must approve.
    pub(crate) fn approves(
        self,
        request: &CertificateRequest,
        usages: &[&str],
        by: Requestor<'_>,
    ) -> Option<&'static str> {
        self.check(request, usages).ok()?;
        let is_same_node = by.name == request.common_name && by.groups.contains(&NODES);
        match self {
            Self::NodeClient if is_same_node => Some("Auto approving self kubelet client certificate."),
            Self::NodeClient if by.groups.contains(&BOOTSTRAPPERS) => {
                Some("Auto approving kubelet client certificate requested with a bootstrap token.")
            }
            Self::NodeServing if is_same_node => Some("Auto approving self kubelet serving certificate."),
            Self::UserClient if is_same_gateway(request, by) => {
                Some("Auto approving self gateway client certificate.")
            }
            Self::NodeClient | Self::NodeServing | Self::UserClient => None,
        }
    }
}

/// Returns whether a gateway requests a certificate of its own identity and group.
fn is_same_gateway(request: &CertificateRequest, by: Requestor<'_>) -> bool {
    let groups: Vec<String> = by.groups.iter().map(|group| (*group).to_owned()).collect();
    let requestor = Identity::of_subject(by.name, &groups);
    let requested = Identity::of_subject(&request.common_name, &request.organizations);
    requested
        .as_ref()
        .is_some_and(|identity| identity.role == Role::Gateway)
        && request.organizations.len() == 1
        && requestor == requested
}

/// Returns usages and lifetime of the certificate for an accepted request.
pub(crate) fn signing_policy(usages: &[&str], expiration_seconds: Option<i64>) -> SigningPolicy {
    let has = |usage: &str| usages.contains(&usage);
    let key = [
        (DIGITAL_SIGNATURE, KeyUsagePurpose::DigitalSignature),
        (KEY_ENCIPHERMENT, KeyUsagePurpose::KeyEncipherment),
    ];
    let extended = [
        (CLIENT_AUTH, ExtendedKeyUsagePurpose::ClientAuth),
        (SERVER_AUTH, ExtendedKeyUsagePurpose::ServerAuth),
    ];
    let requested = expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    SigningPolicy {
        key_usages: key
            .into_iter()
            .filter(|(name, _)| has(name))
            .map(|(_, usage)| usage)
            .collect(),
        extended_key_usages: extended
            .into_iter()
            .filter(|(name, _)| has(name))
            .map(|(_, usage)| usage)
            .collect(),
        uri: None,
        lifetime: requested.map_or(LIFETIME, Duration::from_secs).min(LIFETIME_MAX),
    }
}

/// Checks that the subject is `system:node:NAME` in `system:nodes`, without further attributes.
fn check_node(request: &CertificateRequest) -> Result<(), RejectRequestError> {
    if request.organizations != [NODES] {
        return Err(RejectRequestError::NodeGroup);
    }
    let Some(name) = request.common_name.strip_prefix(NODE_PREFIX) else {
        return Err(RejectRequestError::NodePrefix);
    };
    match names::dns_subdomain(name).into_iter().next() {
        Some(fault) => Err(RejectRequestError::NodeName { fault }),
        None if request.subject_is_plain() => Ok(()),
        None => Err(RejectRequestError::NodeSubject),
    }
}

fn check_user(request: &CertificateRequest) -> Result<(), RejectRequestError> {
    if request.common_name.is_empty() {
        return Err(RejectRequestError::NoUser);
    }
    if request.common_name.starts_with(NODE_PREFIX) || request.organizations.iter().any(|name| name == NODES)
    {
        return Err(RejectRequestError::UserIsNode);
    }
    if request.organizations.iter().any(|name| name == MASTERS) {
        return Err(RejectRequestError::Masters);
    }
    Ok(())
}

fn reject_names(names: &AlternativeNames) -> Result<(), RejectRequestError> {
    let found = [
        ("DNS", names.dns.len()),
        ("Email", names.emails.len()),
        ("IP", names.ips.len()),
        ("URI", names.uris.len()),
        ("Other", names.others),
    ];
    match found.into_iter().find(|(_, count)| *count > 0) {
        Some((kind, _)) => Err(RejectRequestError::AlternativeNames { kind }),
        None => Ok(()),
    }
}

/// Checks that the usages are digital signature, the purpose, and optionally key encipherment.
fn check_usages(usages: &[&str], purpose: &str) -> Result<(), RejectRequestError> {
    let given: BTreeSet<&str> = usages.iter().copied().collect();
    let without = BTreeSet::from([DIGITAL_SIGNATURE, purpose]);
    let with = BTreeSet::from([DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, purpose]);
    if given == without || given == with {
        return Ok(());
    }
    let expected: Vec<&str> = with.into_iter().collect();
    Err(RejectRequestError::Usages {
        expected: expected.join(" "),
    })
}

fn check_user_usages(usages: &[&str]) -> Result<(), RejectRequestError> {
    let allowed = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(usage)) {
        return Err(RejectRequestError::ClientUsage {
            usage: (*other).to_owned(),
        });
    }
    match usages.contains(&CLIENT_AUTH) {
        true => Ok(()),
        false => Err(RejectRequestError::NoClientAuth),
    }
}
