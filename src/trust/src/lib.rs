//! Trust between the machines of a fleet: which authorities they trust, which certificates they
//! present, and which nodes are revoked.
//!
//! The server publishes authorities and revocations in a ConfigMap. Agents and gateways watch it,
//! request certificates, and renew them. On a Kubernetes cluster, the leading controller publishes them, and
//! approves and signs the requests ([`ClusterIssuer`]).
//!
//! Invariant: a certificate that was issued to a node before its FleetNode was deleted is revoked,
//! also if the server did not run at the time of the deletion.

mod authority_rotation;
mod cluster_authorities;
mod cluster_issuer;
mod cluster_request;
mod cluster_rotation;
mod fleet_decisions;
mod fleet_trust;
mod machine_certificate;
mod membership;
mod node_ledger;
mod node_tokens;
mod published_trust;

pub use authority_rotation::{
    AuthorityRotation, FleetAuthorities, RequestRotationError, RotationPhase, RotationStatus,
    request_retirement, request_rotation, rotation_status,
};
pub use cluster_authorities::ClusterAuthorities;
pub use cluster_issuer::ClusterIssuer;
pub use fleet_decisions::{CertificateChain, FleetDecisionError, TrustMachine, TrustServer};
pub use machine_certificate::{
    MachineCertificate, OPERATOR_LIFETIME, OperatorTlsError, Purpose, operator_tls, stored_certificate,
};
pub use membership::{KUBECONFIG_FILE, LeaveError, MACHINE_TLS_FILE, Membership, node_of_token};
pub use node_ledger::{PublishedAuthorities, TrustPublisher};
pub use node_tokens::{IssueNodeTokenError, NodeTokens, issue_node_token, list_node_tokens};
pub use published_trust::{ClientAuthorities, PublishedTrust};
