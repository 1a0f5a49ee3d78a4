//! Certificates for machines and people: creates a CertificateSigningRequest and waits until it is
//! signed.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::info;

use super::{ApiError, FIELD_MANAGER};

/// Prefix of the user names of ServiceAccounts; namespace and name follow.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const PERIOD: Duration = Duration::from_millis(500);
/// Time that the server has to approve the request of a gateway.
const SERVER_APPROVAL: Duration = Duration::from_secs(2);

/// Signer of serving certificates of nodes, for fleets on a Kubernetes cluster.
pub const NODE_SERVING_SIGNER: &str = "rooflet.dev/node-serving";
/// Signer of certificates for connections to agents, for fleets on a Kubernetes cluster.
pub const FLEET_CLIENT_SIGNER: &str = "rooflet.dev/fleet-client";

/// Kind of certificate. Each has a signer of Kubernetes, or of the controller of a fleet on a Kubernetes cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateKind {
    /// Client certificate of a node.
    NodeClient,
    /// Serving certificate of a node.
    NodeServing,
    /// Client certificate of a person. The request is approved with the credentials of the client, if
    /// they permit it. Otherwise, an administrator must approve it.
    Client { lifetime: Duration },
    /// Client certificate of a gateway. The server approves the request if the client is this gateway.
    /// Otherwise, the request is approved as that of a person.
    Gateway { lifetime: Duration },
    /// Serving certificate of a node. The controller approves and signs the request.
    FleetServing,
    /// Client certificate of a ServiceAccount of the chart. The controller approves and signs the request.
    FleetAccount { lifetime: Duration },
    /// Client certificate of a person. It is approved as [`Client`](Self::Client), and the controller signs it.
    FleetPerson { lifetime: Duration },
}

impl CertificateKind {
    fn signer(self) -> &'static str {
        match self {
            Self::NodeClient => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::NodeServing => "kubernetes.io/kubelet-serving",
            Self::Client { .. } | Self::Gateway { .. } => "kubernetes.io/kube-apiserver-client",
            Self::FleetServing => NODE_SERVING_SIGNER,
            Self::FleetAccount { .. } | Self::FleetPerson { .. } => FLEET_CLIENT_SIGNER,
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::NodeServing | Self::FleetServing => "server auth",
            Self::NodeClient
            | Self::Client { .. }
            | Self::Gateway { .. }
            | Self::FleetAccount { .. }
            | Self::FleetPerson { .. } => "client auth",
        }
    }

    fn expiration_seconds(self) -> Option<i32> {
        match self {
            Self::Client { lifetime }
            | Self::Gateway { lifetime }
            | Self::FleetAccount { lifetime }
            | Self::FleetPerson { lifetime } => i32::try_from(lifetime.as_secs()).ok(),
            Self::NodeClient | Self::NodeServing | Self::FleetServing => None,
        }
    }
}

/// Reason why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error("failed to request a certificate")]
    Api(#[from] ApiError),
    #[error("CertificateSigningRequest {name} is {condition}: {message}")]
    Refused {
        name: String,
        condition: String,
        message: String,
    },
    #[error(
        "CertificateSigningRequest {name} was not signed within {seconds} s; run `kubectl describe csr {name}`"
    )]
    Unsigned { name: String, seconds: u64 },
}

/// Requests a certificate, waits up to `timeout` until it is signed, and returns it in PEM. Signing
/// takes longer if an administrator must approve the request.
pub async fn sign(
    client: &Client,
    kind: CertificateKind,
    request_pem: &str,
    timeout: Duration,
) -> Result<String, SigningError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some(match kind {
                CertificateKind::NodeClient | CertificateKind::NodeServing => "node-csr-".to_owned(),
                CertificateKind::Client { .. } | CertificateKind::Gateway { .. } => "client-csr-".to_owned(),
                CertificateKind::FleetServing
                | CertificateKind::FleetAccount { .. }
                | CertificateKind::FleetPerson { .. } => "rooflet-csr-".to_owned(),
            }),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request_pem.as_bytes().to_vec()),
            signer_name: kind.signer().to_owned(),
            usages: Some(["digital signature", kind.usage()].map(str::to_owned).into()),
            expiration_seconds: kind.expiration_seconds(),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let created = requests.create(&params, &request).await.map_err(ApiError::from)?;
    let name = created.metadata.name.unwrap_or_default();
    match kind {
        CertificateKind::NodeClient
        | CertificateKind::NodeServing
        | CertificateKind::FleetServing
        | CertificateKind::FleetAccount { .. } => {}
        CertificateKind::Client { .. } | CertificateKind::FleetPerson { .. } => {
            approve(&requests, &name).await?;
        }
        CertificateKind::Gateway { .. } => {
            tokio::time::sleep(SERVER_APPROVAL).await;
            let now = requests.get(&name).await.map_err(ApiError::from)?;
            if now.status.is_none_or(|status| status.conditions.is_none()) {
                approve(&requests, &name).await?;
            }
        }
    }
    let signed = async {
        loop {
            let now = requests.get(&name).await.map_err(ApiError::from)?;
            if let Some(certificate) = outcome(&name, &now)? {
                return Ok(certificate);
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    match tokio::time::timeout(timeout, signed).await {
        Ok(outcome) => outcome,
        Err(_) => Err(SigningError::Unsigned {
            seconds: timeout.as_secs(),
            name: name.clone(),
        }),
    }
}

/// Returns the name of the ServiceAccount with which the client authenticates. Returns `None` for other users.
pub async fn own_service_account(client: &Client) -> Result<Option<String>, ApiError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review.status.and_then(|status| status.user_info?.username);
    let account = user
        .as_deref()
        .and_then(|user| user.strip_prefix(SERVICE_ACCOUNT_PREFIX));
    Ok(account.and_then(|account| Some(account.split_once(':')?.1.to_owned())))
}

/// Approves a request. Without permission, the request waits for an administrator.
async fn approve(requests: &Api<CertificateSigningRequest>, name: &str) -> Result<(), SigningError> {
    let condition = json!({
        "type": "Approved",
        "status": "True",
        "reason": "ApprovedByRequestor",
        "message": "The requestor may approve requests of this signer.",
    });
    let patch = json!({"status": {"conditions": [condition]}});
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match requests
        .patch_approval(name, &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            info!(
                request = name,
                "run `kubectl certificate approve {name}` to approve the certificate"
            );
            Ok(())
        }
        Err(err) => Err(ApiError::from(err).into()),
    }
}

/// Returns the certificate, if it has been issued.
fn outcome(name: &str, request: &CertificateSigningRequest) -> Result<Option<String>, SigningError> {
    let Some(status) = &request.status else {
        return Ok(None);
    };
    let is_rejected = |kind: &str| matches!(kind, "Denied" | "Failed");
    let conditions = status.conditions.iter().flatten();
    if let Some(rejection) = conditions.into_iter().find(|one| is_rejected(&one.type_)) {
        return Err(SigningError::Refused {
            name: name.to_owned(),
            condition: rejection.type_.to_lowercase(),
            message: rejection.message.clone().unwrap_or_default(),
        });
    }
    let certificate = status.certificate.as_ref();
    Ok(certificate.map(|ByteString(pem)| String::from_utf8_lossy(pem).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(status: serde_json::Value) -> CertificateSigningRequest {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "node-csr-x"},
            "spec": {"request": "", "signerName": CertificateKind::NodeClient.signer()},
            "status": status,
        }))
        .expect("a request")
    }

    #[test]
    fn request_is_pending_signed_or_denied() {
        let outcome = |status| outcome("node-csr-x", &request(status)).map_err(|err| err.to_string());
        let approved = || serde_json::json!([{"type": "Approved", "status": "True"}]);
        assert_eq!(outcome(serde_json::json!({})), Ok(None));
        assert_eq!(outcome(serde_json::json!({ "conditions": approved() })), Ok(None));
        assert_eq!(
            outcome(serde_json::json!({"conditions": approved(), "certificate": "cGVt"})),
            Ok(Some("pem".to_owned()))
        );
        let denied = serde_json::json!({"conditions": [{"type": "Denied", "status": "True", "message": "unknown node"}]});
        assert_eq!(
            outcome(denied),
            Err("CertificateSigningRequest node-csr-x is denied: unknown node".to_owned())
        );
    }
}
