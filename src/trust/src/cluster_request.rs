//! Rules for CertificateSigningRequests of a fleet on a Kubernetes cluster. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};

use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_base::clock::since;
use rooflet_client::{FLEET_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use rooflet_pki::{AlternativeNames, CertificateRequest, Identity, Role, SigningPolicy};

const NAME_LABEL: &str = "app.kubernetes.io/name";
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of certificates whose request has no expiration.
const LIFETIME: Duration = Duration::from_secs(90 * DAY.as_secs());
const LIFETIME_MAX: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Time after the deletion of a FleetNode in which requests for its name are rejected:
/// kube-apiserver caches a valid token for 10 s, and kube-controller-manager deletes the Secret of
/// the token after the FleetNode.
const DELETION_HOLD: Duration = Duration::from_secs(20);

/// Signer of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetSigner {
    /// Signs serving certificates of nodes.
    NodeServing,
    /// Signs certificates of gateways and people for connections to agents.
    Client,
}

impl FleetSigner {
    pub(crate) const ALL: [Self; 2] = [Self::NodeServing, Self::Client];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NodeServing => NODE_SERVING_SIGNER,
            Self::Client => FLEET_CLIENT_SIGNER,
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::NodeServing => "server auth",
            Self::Client => "client auth",
        }
    }

    /// Returns whether the signer issues certificates of this role.
    fn issues(self, role: Role) -> bool {
        match role {
            Role::Node => self == Self::NodeServing,
            Role::Gateway | Role::Operator => self == Self::Client,
            Role::Controller => false,
        }
    }

    /// Returns usages and lifetime of a certificate.
    pub(crate) fn policy(self, uri: Option<String>, expiration_seconds: Option<i32>) -> SigningPolicy {
        let requested = expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        SigningPolicy {
            key_usages: vec![KeyUsagePurpose::DigitalSignature],
            extended_key_usages: vec![match self {
                Self::NodeServing => ExtendedKeyUsagePurpose::ServerAuth,
                Self::Client => ExtendedKeyUsagePurpose::ClientAuth,
            }],
            uri,
            lifetime: requested.map_or(LIFETIME, Duration::from_secs).min(LIFETIME_MAX),
        }
    }
}

/// Reason why a signer rejects a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RejectRequestError {
    #[error("the request is invalid: {0}")]
    Malformed(String),
    #[error("usages must be `digital signature` and `{expected}`")]
    Usages { expected: &'static str },
    #[error("the subject must be one common name and one organization of the fleet that {signer} signs")]
    Subject { signer: &'static str },
    #[error("subjectAltNames must be DNS names and IP addresses, and at least one")]
    ServingNames,
    #[error("subjectAltNames are not allowed")]
    Names,
    #[error("ServiceAccount {account} may request certificates only for {}, not for {requested}", permitted.as_ref().map_or("no identity".to_owned(), ToString::to_string))]
    OtherIdentity {
        account: String,
        permitted: Option<Identity>,
        requested: Identity,
    },
    #[error(
        "FleetNode {node} was deleted less than {} s ago, and kube-apiserver may still accept its tokens of before; \
         the agent of a Mac that joined again retries", DELETION_HOLD.as_secs()
    )]
    DeletedLately { node: String },
    #[error("FleetNode {0} does not exist: run `rooflet token create --node {0}`, and join the Mac again")]
    NoNode(String),
}

/// Request that a signer accepts.
pub(crate) struct AcceptedRequest {
    pub(crate) identity: Identity,
    pub(crate) request: CertificateRequest,
}

/// Checks the content of a request, independent of its requestor.
pub(crate) fn check(
    signer: FleetSigner,
    csr: &CertificateSigningRequest,
) -> Result<AcceptedRequest, RejectRequestError> {
    let request = CertificateRequest::from_pem(&csr.spec.request.0)
        .map_err(|err| RejectRequestError::Malformed(err.to_string()))?;
    let usages: BTreeSet<&str> = csr.spec.usages.iter().flatten().map(String::as_str).collect();
    let expected = signer.usage();
    if usages != BTreeSet::from(["digital signature", expected]) {
        return Err(RejectRequestError::Usages { expected });
    }
    let is_plain = request.subject_is_plain() && request.organizations.len() == 1;
    let identity = Identity::of_subject(&request.common_name, &request.organizations)
        .filter(|identity| is_plain && signer.issues(identity.role))
        .ok_or(RejectRequestError::Subject {
            signer: signer.name(),
        })?;
    let AlternativeNames {
        dns,
        ips,
        emails,
        uris,
        others,
    } = &request.names;
    let has_addresses = !dns.is_empty() || !ips.is_empty();
    let has_others = !emails.is_empty() || !uris.is_empty() || *others > 0;
    match signer {
        FleetSigner::NodeServing if has_others || !has_addresses => Err(RejectRequestError::ServingNames),
        FleetSigner::Client if has_others || has_addresses => Err(RejectRequestError::Names),
        FleetSigner::NodeServing | FleetSigner::Client => Ok(AcceptedRequest { identity, request }),
    }
}

/// Returns the identity for which a ServiceAccount of the chart may request certificates.
pub(crate) fn identity_of(account: &ServiceAccount) -> Option<Identity> {
    let label = |name: &str| account.labels().get(name).map(String::as_str);
    if label(NAME_LABEL) != Some("rooflet") {
        return None;
    }
    match label(COMPONENT_LABEL)? {
        "agent" => {
            let node = account.annotations().get(NODE_ANNOTATION)?;
            Some(Identity::new(Role::Node, node))
        }
        "gateway" => Some(Identity::new(Role::Gateway, &account.name_any())),
        "web" => Some(Identity::new(Role::Operator, &account.name_any())),
        _ => None,
    }
}

/// Checks that the requestor is the subject of the certificate.
pub(crate) fn check_requestor(
    account: &str,
    found: Option<&ServiceAccount>,
    requested: &Identity,
) -> Result<(), RejectRequestError> {
    let permitted = found.and_then(identity_of);
    match permitted.as_ref() == Some(requested) {
        true => Ok(()),
        false => Err(RejectRequestError::OtherIdentity {
            account: account.to_owned(),
            permitted,
            requested: requested.clone(),
        }),
    }
}

/// Checks that a node did not request the certificate with a token of a FleetNode that was deleted.
/// `revoked` is the time of the deletion.
pub(crate) fn check_deletion(
    identity: &Identity,
    csr: &CertificateSigningRequest,
    revoked: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), RejectRequestError> {
    let created = csr.creation_timestamp().map_or(now, |Time(created)| created);
    // The clock of the API server may be ahead of that of this controller.
    let is_late = revoked.is_none_or(|revoked| since(now.min(created), revoked) >= DELETION_HOLD);
    match is_late || identity.role != Role::Node {
        true => Ok(()),
        false => Err(RejectRequestError::DeletedLately {
            node: identity.name.clone(),
        }),
    }
}

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestState {
    Pending,
    Approved,
    /// Signed, denied or failed.
    Finished,
}

impl RequestState {
    pub(crate) fn of(csr: &CertificateSigningRequest) -> Self {
        let Some(status) = &csr.status else {
            return Self::Pending;
        };
        let conditions = status.conditions.iter().flatten();
        let mut kinds = conditions.map(|condition| condition.type_.as_str());
        let is_finished = kinds.clone().any(|kind| matches!(kind, "Denied" | "Failed"));
        match (
            is_finished || status.certificate.is_some(),
            kinds.any(|kind| kind == "Approved"),
        ) {
            (true, _) => Self::Finished,
            (false, true) => Self::Approved,
            (false, false) => Self::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rooflet_pki::KeyRequest;
    use serde_json::{Value, json};

    fn csr(signer: FleetSigner, request_pem: &str, usages: &[&str]) -> CertificateSigningRequest {
        let mut csr: CertificateSigningRequest = serde_json::from_value(json!({"metadata": {"name": "a"},
            "spec": {"request": "", "signerName": signer.name(), "usages": usages}}))
        .expect("a request");
        csr.spec.request = ByteString(request_pem.as_bytes().to_vec());
        csr
    }

    fn checked(signer: FleetSigner, request: Result<KeyRequest, rcgen::Error>, usages: &[&str]) -> String {
        let request = request.expect("a key");
        match check(signer, &csr(signer, &request.request_pem, usages)) {
            Ok(accepted) => accepted.identity.to_string(),
            Err(err) => err.to_string(),
        }
    }

    #[test]
    fn signer_accepts_only_its_roles_names_and_usages() {
        use FleetSigner::{Client, NodeServing};
        let serving = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            KeyRequest::serving("mini-1", &names)
        };
        let client = |role, name: &str| KeyRequest::client(&Identity::new(role, name));
        let (for_server, for_client) = (
            &["digital signature", "server auth"],
            &["digital signature", "client auth"],
        );
        for (got, expect) in [
            (
                checked(NodeServing, serving(&["192.0.2.7", "mini-1"]), for_server),
                "node/mini-1",
            ),
            (checked(NodeServing, serving(&[]), for_server), "and at least one"),
            (
                checked(NodeServing, serving(&["mini-1"]), for_client),
                "and `server auth`",
            ),
            (
                checked(
                    NodeServing,
                    serving(&["mini-1"]),
                    &["digital signature", "server auth", "cert sign"],
                ),
                "and `server auth`",
            ),
            (
                checked(NodeServing, client(Role::Gateway, "a"), for_server),
                "that rooflet.dev/node-serving signs",
            ),
            (
                checked(Client, client(Role::Gateway, "a"), for_client),
                "gateway/a",
            ),
            (
                checked(Client, client(Role::Operator, "a"), for_client),
                "operator/a",
            ),
            (
                checked(Client, client(Role::Node, "mini-1"), for_client),
                "that rooflet.dev/fleet-client signs",
            ),
            (
                checked(Client, client(Role::Controller, "a"), for_client),
                "that rooflet.dev/fleet-client signs",
            ),
            (
                checked(Client, client(Role::Gateway, ""), for_client),
                "that rooflet.dev/fleet-client signs",
            ),
        ] {
            assert!(got.ends_with(expect), "{got}, not {expect}");
        }
        assert!(check(Client, &csr(Client, "no PEM", for_client)).is_err());
    }

    #[test]
    fn account_may_request_only_its_own_identity() {
        let account = |component: &str, node: Option<&str>| -> ServiceAccount {
            let mut account = json!({"metadata": {"name": "rooflet-x",
                "labels": {NAME_LABEL: "rooflet", COMPONENT_LABEL: component}}});
            if let Some(node) = node {
                account["metadata"]["annotations"] = json!({ NODE_ANNOTATION: node });
            }
            serde_json::from_value(account).expect("a ServiceAccount")
        };
        let permitted = |account: &ServiceAccount| identity_of(account).map(|identity| identity.to_string());
        let agent = account("agent", Some("mini-1"));
        assert_eq!(permitted(&agent).as_deref(), Some("node/mini-1"));
        assert_eq!(
            permitted(&account("gateway", None)).as_deref(),
            Some("gateway/rooflet-x")
        );
        assert_eq!(
            permitted(&account("web", None)).as_deref(),
            Some("operator/rooflet-x")
        );
        assert_eq!(permitted(&account("agent", None)), None);
        assert_eq!(permitted(&account("controller", None)), None);
        let foreign = serde_json::from_value(json!({"metadata": {"name": "rooflet-x",
            "labels": {COMPONENT_LABEL: "gateway"}}}));
        assert_eq!(permitted(&foreign.expect("a ServiceAccount")), None);

        let node = |name: &str| Identity::new(Role::Node, name);
        check_requestor("rooflet-x", Some(&agent), &node("mini-1")).expect("its own node");
        let refused = |found, identity| {
            let refused = check_requestor("rooflet-x", found, &identity).expect_err("another identity");
            refused.to_string()
        };
        assert_eq!(
            refused(Some(&agent), node("mini-2")),
            "ServiceAccount rooflet-x may request certificates only for node/mini-1, not for node/mini-2"
        );
        assert_eq!(
            refused(None, Identity::new(Role::Gateway, "rooflet-x")),
            "ServiceAccount rooflet-x may request certificates only for no identity, not for gateway/rooflet-x"
        );
    }

    #[test]
    fn request_soon_after_the_deletion_of_its_node_is_rejected() {
        let at = rooflet_base::clock::at;
        let node = Identity::new(Role::Node, "mini-1");
        let check = |identity: &Identity, created: i64, now: i64| {
            let mut csr = csr(FleetSigner::NodeServing, "", &[]);
            csr.metadata.creation_timestamp = Some(Time(at(created)));
            check_deletion(identity, &csr, Some(at(1000)), at(now))
        };
        for (created, now) in [(990, 1000), (1000, 1001), (1019, 1500), (1500, 1019)] {
            let refused = check(&node, created, now).expect_err("a token of before may be valid");
            assert!(
                refused
                    .to_string()
                    .starts_with("FleetNode mini-1 was deleted less than 20 s ago")
            );
        }
        check(&node, 1020, 1020).expect("the token of before is invalid");
        check(&Identity::new(Role::Gateway, "mini-1"), 1000, 1000).expect("another role");
        check_deletion(&node, &csr(FleetSigner::NodeServing, "", &[]), None, at(0)).expect("never deleted");
    }

    #[test]
    fn request_is_pending_approved_or_finished() {
        let state = |status: Value| {
            let csr = json!({"metadata": {"name": "a"}, "spec": {"request": "", "signerName": "x"}, "status": status});
            RequestState::of(&serde_json::from_value(csr).expect("a request"))
        };
        let conditions = |kind: &str| json!([{"type": kind, "status": "True"}]);
        assert_eq!(state(json!({})), RequestState::Pending);
        assert_eq!(
            state(json!({"conditions": conditions("Approved")})),
            RequestState::Approved
        );
        for finished in [
            json!({"conditions": conditions("Denied")}),
            json!({"conditions": conditions("Failed")}),
            json!({"conditions": conditions("Approved"), "certificate": "cGVt"}),
        ] {
            assert_eq!(state(finished.clone()), RequestState::Finished, "{finished}");
        }
    }
}
