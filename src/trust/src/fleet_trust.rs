//! Authorities and revoked nodes of the fleet, which machines read from a ConfigMap of the API
//! server.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;

use rooflet_api::meta::{FLEET_TRUST, FLEET_TRUST_NAMESPACE};
use rooflet_client::{ApiError, FIELD_MANAGER};
use rooflet_pki::{MachineTls, MachineTlsError};

const SERVERS: &str = "server-ca.crt";
const CLIENTS: &str = "client-ca.crt";
const NODES: &str = "node-ca.crt";
const REVOKED: &str = "revoked-nodes.json";
const SIGNERS: &str = "signers";
/// Value of [`SIGNERS`] for signers of the controller.
const OWN_SIGNERS: &str = "rooflet.dev";

/// Certificates and nodes that machines of the fleet trust.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FleetTrust {
    /// Authorities of the API server's certificate, in PEM. Empty if an older version published the trust.
    #[serde(default)]
    pub(crate) servers: String,
    /// Authorities of client certificates, in PEM. The first one issues certificates.
    pub(crate) clients: String,
    /// Authorities of the serving certificates of nodes, in PEM.
    pub(crate) nodes: String,
    /// Time of revocation by node.
    pub(crate) revoked: BTreeMap<String, Timestamp>,
    /// True on a Kubernetes cluster: the controller signs requests for certificates, instead of the API server.
    #[serde(default)]
    pub(crate) has_own_signers: bool,
}

impl FleetTrust {
    /// Parses the ConfigMap; `None` if it is incomplete.
    pub(crate) fn parse(config_map: &ConfigMap) -> Option<Self> {
        let data = config_map.data.as_ref()?;
        Some(Self {
            servers: data.get(SERVERS).cloned().unwrap_or_default(),
            clients: data.get(CLIENTS)?.clone(),
            nodes: data.get(NODES)?.clone(),
            revoked: serde_json::from_str(data.get(REVOKED)?).ok()?,
            has_own_signers: data.get(SIGNERS).is_some_and(|signers| signers == OWN_SIGNERS),
        })
    }

    /// Reads the ConfigMap; `None` if the API server issues no certificates for the fleet.
    pub(crate) async fn read(client: &Client) -> Result<Option<Self>, ApiError> {
        let found = config_maps(client).get_opt(FLEET_TRUST).await?;
        Ok(found.as_ref().and_then(Self::parse))
    }

    pub(crate) async fn publish(&self, client: &Client) -> Result<(), ApiError> {
        let revoked =
            serde_json::to_string(&self.revoked).map_err(|err| ApiError::Invalid(err.to_string()))?;
        let mut data = json!({CLIENTS: self.clients, NODES: self.nodes, REVOKED: revoked});
        match self.has_own_signers {
            true => data[SIGNERS] = json!(OWN_SIGNERS),
            false => data[SERVERS] = json!(self.servers),
        }
        apply(client, FLEET_TRUST, &data).await
    }

    /// Uses this trust in all following handshakes.
    pub(crate) fn apply_to(&self, tls: &MachineTls) -> Result<(), MachineTlsError> {
        tls.revocations().replace(self.revoked.clone());
        tls.set_authorities(&self.clients, &self.nodes)
    }
}

pub(crate) fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), FLEET_TRUST_NAMESPACE)
}

/// Creates or replaces a ConfigMap.
pub(crate) async fn apply(client: &Client, name: &str, data: &serde_json::Value) -> Result<(), ApiError> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    let params = PatchParams::apply(FIELD_MANAGER).force();
    config_maps(client)
        .patch(name, &params, &Patch::Apply(&object))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_config_map_is_ignored() {
        let parse = |data: serde_json::Value| {
            let config_map = serde_json::from_value(json!({ "data": data })).expect("a ConfigMap");
            FleetTrust::parse(&config_map)
        };
        let complete =
            json!({SERVERS: "s", CLIENTS: "c", NODES: "n", REVOKED: r#"{"mini-1": "2026-01-01T00:00:00Z"}"#});
        let parsed = parse(complete).expect("complete");
        assert_eq!((parsed.clients.as_str(), parsed.nodes.as_str()), ("c", "n"));
        assert_eq!(parsed.servers, "s");
        assert!(!parsed.has_own_signers);
        let of_cluster = parse(json!({CLIENTS: "c", NODES: "n", REVOKED: "{}", SIGNERS: "rooflet.dev"}));
        assert!(of_cluster.expect("complete").has_own_signers);
        let of_older_version = parse(json!({CLIENTS: "c", NODES: "n", REVOKED: "{}"}));
        assert_eq!(of_older_version.expect("complete").servers, "");
        assert_eq!(parsed.revoked["mini-1"].to_string(), "2026-01-01T00:00:00Z");
        for incomplete in [
            json!({}),
            json!({CLIENTS: "c", NODES: "n"}),
            json!({CLIENTS: "c", NODES: "n", REVOKED: "no JSON"}),
        ] {
            assert_eq!(parse(incomplete.clone()), None, "{incomplete}");
        }
    }
}
