//! Authorities of a fleet on a Kubernetes cluster. Their keys are in a Secret, which the chart creates empty.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::fleet_trust::FleetTrust;
use rooflet_base::error::Chain;
use rooflet_client::{ApiError, FIELD_MANAGER};
use rooflet_pki::{Authority, AuthorityKind, ParseAuthorityError};

/// Secret in the namespace of the controller: certificate and key of each authority.
const SECRET: &str = "rooflet-fleet-authorities";
const CLIENTS: &str = "client-ca.pem";
const NODES: &str = "node-ca.pem";
/// Replaced authorities, without their keys, until they are retired.
const PREVIOUS_CLIENTS: &str = "client-ca-previous.pem";
const PREVIOUS_NODES: &str = "node-ca-previous.pem";

/// Error of a rotation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RotateClusterError {
    #[error("creating a certificate authority")]
    Generate(#[from] rcgen::Error),
    #[error("storing the authorities in Secret {SECRET}")]
    Store(#[from] ApiError),
    #[error("reading the stored authority")]
    Parse(#[from] ParseAuthorityError),
}

/// Authorities whose keys are in the Secret.
#[derive(Clone)]
pub struct ClusterAuthorities {
    /// Signs certificates for connections to agents.
    pub(crate) clients: Authority,
    /// Signs serving certificates of nodes.
    pub(crate) nodes: Authority,
}

impl ClusterAuthorities {
    /// Reads the Secret. If it is empty, creates the authorities and stores them.
    pub(crate) async fn open(client: &Client, now: Timestamp) -> Result<Self, ApiError> {
        let secrets: Api<Secret> = Api::default_namespaced(client.clone());
        let Some(mut secret) = secrets.get_opt(SECRET).await? else {
            return Err(ApiError::NotFound(format!(
                "Secret {}/{SECRET}; run `helm upgrade`, or apply the manifests again",
                client.default_namespace()
            )));
        };
        if let Some(stored) = secret.data.as_ref().filter(|data| !data.is_empty()) {
            return Self::parse(stored).map_err(|what| {
                ApiError::Invalid(format!(
                    "Secret {}/{SECRET}: {what}; restore the Secret from a backup, or delete its data to create \
                     new authorities",
                    client.default_namespace()
                ))
            });
        }
        let (created, data) = Self::generate(now).map_err(|err| {
            let what = Chain(&err).to_string();
            ApiError::Invalid(format!("creating a certificate authority: {what}"))
        })?;
        secret.data = Some(data);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        // The resourceVersion is that of the empty Secret: of two concurrent writers, one succeeds.
        secrets.replace(SECRET, &params, &secret).await?;
        Ok(created)
    }

    fn generate(now: Timestamp) -> Result<(Self, BTreeMap<String, ByteString>), rcgen::Error> {
        let (clients, client_pem) = Authority::generate(AuthorityKind::Client, now)?;
        let (nodes, node_pem) = Authority::generate(AuthorityKind::Node, now)?;
        let stored = |name: &str, pem: String| (name.to_owned(), ByteString(pem.into_bytes()));
        let data = BTreeMap::from([stored(CLIENTS, client_pem), stored(NODES, node_pem)]);
        Ok((Self { clients, nodes }, data))
    }

    fn parse(data: &BTreeMap<String, ByteString>) -> Result<Self, String> {
        let authority = |name: &str, previous: &str, kind| {
            let ByteString(pem) = data.get(name).ok_or_else(|| format!("{name} is missing"))?;
            let pem = std::str::from_utf8(pem).map_err(|err| format!("{name}: {err}"))?;
            let previous = data
                .get(previous)
                .and_then(|ByteString(pem)| std::str::from_utf8(pem).ok());
            Authority::from_pem(kind, pem, previous).map_err(|err| format!("{name}: {err}"))
        };
        Ok(Self {
            clients: authority(CLIENTS, PREVIOUS_CLIENTS, AuthorityKind::Client)?,
            nodes: authority(NODES, PREVIOUS_NODES, AuthorityKind::Node)?,
        })
    }

    fn all(&self) -> [(&Authority, &'static str, &'static str); 2] {
        [
            (&self.clients, CLIENTS, PREVIOUS_CLIENTS),
            (&self.nodes, NODES, PREVIOUS_NODES),
        ]
    }

    pub(crate) fn have_previous(&self) -> bool {
        self.all().iter().any(|(authority, ..)| authority.has_previous())
    }

    /// Replaces the authorities that a previous attempt has not replaced. They are stored before
    /// they are used.
    pub(crate) async fn rotate(&self, client: &Client, now: Timestamp) -> Result<(), RotateClusterError> {
        for (authority, current, previous) in self.all() {
            if authority.has_previous() {
                continue;
            }
            let (pem, replaced) = authority.next_generation(now)?;
            store(client, |data| {
                data.insert(current.to_owned(), ByteString(pem.clone().into_bytes()));
                data.insert(previous.to_owned(), ByteString(replaced.clone().into_bytes()));
            })
            .await?;
            authority.replace(&pem, Some(&replaced))?;
        }
        Ok(())
    }

    /// Ends the trust in the replaced authorities.
    pub(crate) async fn retire(&self, client: &Client) -> Result<(), RotateClusterError> {
        let stored = store(client, |data| {
            data.remove(PREVIOUS_CLIENTS);
            data.remove(PREVIOUS_NODES);
        })
        .await?;
        for (authority, current, _) in self.all() {
            let pem = stored
                .get(current)
                .map(|ByteString(pem)| String::from_utf8_lossy(pem));
            authority.replace(&pem.unwrap_or_default(), None)?;
        }
        Ok(())
    }

    pub(crate) fn trust(&self, revoked: BTreeMap<String, Timestamp>) -> FleetTrust {
        FleetTrust {
            servers: String::new(),
            clients: self.clients.certificate_pem(),
            nodes: self.nodes.certificate_pem(),
            revoked,
            has_own_signers: true,
        }
    }
}

/// Changes the data of the Secret. Returns the stored data.
async fn store(
    client: &Client,
    change: impl FnOnce(&mut BTreeMap<String, ByteString>),
) -> Result<BTreeMap<String, ByteString>, ApiError> {
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let mut secret = secrets.get(SECRET).await?;
    let data = secret.data.get_or_insert_default();
    change(data);
    let changed = data.clone();
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    // The resourceVersion is that of the Secret that was read: a concurrent change is a conflict.
    secrets.replace(SECRET, &params, &secret).await?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn stored_authorities_are_those_that_were_created() {
        let (created, data) = ClusterAuthorities::generate(at(1_767_225_600)).expect("generated");
        let read = ClusterAuthorities::parse(&data).expect("complete");
        let trust = |authorities: &ClusterAuthorities| authorities.trust(BTreeMap::new());
        assert_eq!(trust(&read), trust(&created));
        assert_ne!(trust(&read).clients, trust(&read).nodes);
    }

    #[test]
    fn incomplete_secret_is_named_and_not_replaced() {
        let (_, data) = ClusterAuthorities::generate(at(1_767_225_600)).expect("generated");
        let fault =
            |data: &BTreeMap<String, ByteString>| ClusterAuthorities::parse(data).err().unwrap_or_default();
        let mut incomplete = data.clone();
        incomplete.remove(NODES);
        assert_eq!(fault(&incomplete), "node-ca.pem is missing");
        let mut invalid = data;
        invalid.insert(CLIENTS.to_owned(), ByteString(b"x".to_vec()));
        assert!(
            fault(&invalid).starts_with("client-ca.pem: not a certificate authority"),
            "{}",
            fault(&invalid)
        );
    }
}
