//! Membership of this machine in a fleet: the credentials that `rooflet join` stored in the state
//! directory of the agent.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};

use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::file::if_there;
use rooflet_client::{
    ApiError, ConnectError, KubeconfigSource, client_certificate, cluster_extension, connect, server_of,
};
use rooflet_pki::{AuthorityHash, NodeCertificate};

/// File in the state directory: the node's credentials for the API server.
pub const KUBECONFIG_FILE: &str = "kubeconfig";
/// File in the state directory: the node's serving certificate and the fleet's authorities.
pub const MACHINE_TLS_FILE: &str = "machine-tls.json";

/// Returns the node whose token is in a kubeconfig of `rooflet join`. Returns `None` if a certificate
/// identifies the node, or if the kubeconfig is not that of a node.
pub fn node_of_token(source: &KubeconfigSource) -> Result<Option<String>, ConnectError> {
    let extension = cluster_extension(source, NODE_ANNOTATION)?;
    Ok(extension.and_then(|node| Some(node["name"].as_str()?.to_owned())))
}

/// Credentials of a node that has joined.
pub struct Membership {
    directory: Utf8PathBuf,
    pub node: String,
    /// URL of the API server.
    pub server: String,
    authorities: Vec<AuthorityHash>,
    client: Client,
}

/// Error of [`Membership::leave`].
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    #[error("listing the replicas of the node")]
    List(#[source] ApiError),
    #[error(
        "{count} replicas run on this node: run `rooflet drain {node}` as an administrator first, or pass --force"
    )]
    Busy { count: usize, node: String },
    #[error("deleting the FleetNode")]
    Delete(#[source] ApiError),
    #[error("removing `{path}`")]
    Remove { path: Utf8PathBuf, source: io::Error },
}

impl Membership {
    /// Reads the credentials in `directory`. Returns `None` if they are missing, or not those of a
    /// joined node.
    pub async fn read(directory: &Utf8Path, clock: &Clock) -> Result<Option<Self>, ConnectError> {
        let path = directory.join(KUBECONFIG_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let source = KubeconfigSource::File(path);
        let certificate = client_certificate(&source).await?;
        let node = match certificate {
            Some(pem) => NodeCertificate::read(&pem).and_then(|certificate| certificate.node),
            None => node_of_token(&source)?,
        };
        let Some(node) = node else { return Ok(None) };
        let (url, authorities) = server_of(&source).await?;
        Ok(Some(Self {
            directory: directory.to_owned(),
            node,
            server: url.to_string().trim_end_matches('/').to_owned(),
            authorities: authorities
                .iter()
                .filter_map(|der| AuthorityHash::of(der))
                .collect(),
            client: connect(&source, clock).await?,
        }))
    }

    /// Returns true if the API server with this authority accepts the credentials. Returns an error
    /// if it does not answer.
    pub async fn is_valid(&self, authority: AuthorityHash) -> Result<bool, ApiError> {
        match self.authorities.contains(&authority) {
            true => self.is_accepted().await,
            false => Ok(false),
        }
    }

    /// Returns true if the API server accepts the credentials. Returns an error if it does not answer.
    pub async fn is_accepted(&self) -> Result<bool, ApiError> {
        let own = ListParams::default().fields(&format!("metadata.name={}", self.node));
        let nodes: Api<FleetNode> = Api::all(self.client.clone());
        match nodes.list_metadata(&own).await.map_err(ApiError::from) {
            Ok(_) => Ok(true),
            Err(ApiError::Unauthorized(_) | ApiError::Forbidden(_) | ApiError::Untrusted { .. }) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Deletes the node's FleetNode, which revokes its certificates and tokens. Without `force`, a node with
    /// replicas is an error.
    pub async fn leave(&self, force: bool) -> Result<(), LeaveError> {
        if !force {
            let own = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
            let replicas: Api<ModelReplica> = Api::all(self.client.clone());
            let found = replicas.list_metadata(&own).await;
            let count = found.map_err(|err| LeaveError::List(err.into()))?.items.len();
            if count > 0 {
                let node = self.node.clone();
                return Err(LeaveError::Busy { count, node });
            }
        }
        let nodes: Api<FleetNode> = Api::all(self.client.clone());
        let deleted = nodes.delete(&self.node, &DeleteParams::default()).await;
        match deleted.map_err(ApiError::from) {
            Ok(_) | Err(ApiError::NotFound(_)) => Ok(()),
            Err(err) => Err(LeaveError::Delete(err)),
        }
    }

    /// Removes the credentials from this machine.
    pub fn forget(&self) -> Result<(), LeaveError> {
        for file in [MACHINE_TLS_FILE, KUBECONFIG_FILE] {
            let path = self.directory.join(file);
            if_there(std::fs::remove_file(&path)).map_err(|source| LeaveError::Remove { path, source })?;
        }
        Ok(())
    }
}
