//! Credentials of a node on a Kubernetes cluster: a token of the ServiceAccount that the chart created for
//! the node. The API server accepts the token while a Secret exists, which belongs to the FleetNode.

use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::cli::{Failure, ui};
use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec};
use rooflet_base::error::ExitStatus;
use rooflet_client::{ApiError, FIELD_MANAGER, TokenBinding};
use rooflet_pki::certificate_pem;
use rooflet_pki::kubeconfig::{self, Credentials};

/// ServiceAccounts of agents, as the chart labels them.
const AGENTS: &str = "app.kubernetes.io/name=rooflet,app.kubernetes.io/component=agent";
/// Shortest lifetime that Kubernetes accepts.
const MIN_TTL: Duration = Duration::from_secs(600);

/// Creates what the node needs if it is missing, and prints a kubeconfig with a token for `rooflet join`.
pub(super) async fn create(
    client: &Client,
    node: &str,
    ttl: Duration,
    (server, authorities): (&str, &[Vec<u8>]),
) -> Result<(), Failure> {
    if ttl < MIN_TTL {
        let what = anyhow!("--ttl: tokens of this cluster expire: pass a duration of at least 10m");
        return Err(Failure::new(ExitStatus::Usage, what));
    }
    let account = account_of(client, node).await?;
    let (namespace, name) = (account.namespace().unwrap_or_default(), account.name_any());
    let owner = fleet_node(client, node).await?;
    let secret = secret(client, &namespace, &name, &owner).await?;
    let binding = TokenBinding {
        namespace,
        account: name,
        secret: secret.name_any(),
        secret_uid: secret.uid().unwrap_or_default(),
    };
    let token = binding.request_token(client, ttl).await?;
    let authorities: String = authorities.iter().map(|der| certificate_pem(der)).collect();
    let text = kubeconfig::text(
        server,
        &authorities,
        Credentials::Token(&token),
        Some((NODE_ANNOTATION, json!({ "name": node }))),
    );
    ui::output(&text.context("encoding the kubeconfig")?);
    ui::progress(&format!(
        "on {node}, pass this kubeconfig to `rooflet join --token-file FILE`, or to standard input of `rooflet join \
         --token-file -`"
    ));
    Ok(())
}

async fn account_of(client: &Client, node: &str) -> Result<ServiceAccount, Failure> {
    let accounts: Api<ServiceAccount> = Api::all(client.clone());
    let found = accounts.list(&ListParams::default().labels(AGENTS)).await;
    let mut found = found.map_err(ApiError::from)?.items;
    found.retain(|account| account.annotations().get(NODE_ANNOTATION).map(String::as_str) == Some(node));
    let named = |account: &ServiceAccount| {
        format!(
            "{}/{}",
            account.namespace().unwrap_or_default(),
            account.name_any()
        )
    };
    match found.len() {
        0 => Err(anyhow!(
            "no ServiceAccount of the chart is for node {node}: add {node} to the value agents.nodes, and run \
             `helm upgrade`"
        )
        .into()),
        1 => Ok(found.remove(0)),
        _ => Err(anyhow!(
            "node {node} has several ServiceAccounts ({}): remove {node} from agents.nodes of all releases but one",
            found.iter().map(named).collect::<Vec<_>>().join(", ")
        )
        .into()),
    }
}

/// Returns the reference to the FleetNode, which is created if it is missing.
async fn fleet_node(client: &Client, node: &str) -> Result<OwnerReference, Failure> {
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let found = match nodes.get_opt(node).await.map_err(ApiError::from)? {
        Some(found) => found,
        None => {
            let new = FleetNode::new(node, FleetNodeSpec::default());
            nodes.create(&params(), &new).await.map_err(ApiError::from)?
        }
    };
    let reference = found.owner_ref(&());
    Ok(reference.context("the FleetNode has no UID")?)
}

/// Returns the Secret of this FleetNode. A Secret of a deleted FleetNode is replaced, so that tokens of
/// before stay invalid.
async fn secret(
    client: &Client,
    namespace: &str,
    name: &str,
    owner: &OwnerReference,
) -> Result<Secret, Failure> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if let Some(found) = secrets.get_opt(name).await.map_err(ApiError::from)? {
        let is_current = found
            .owner_references()
            .iter()
            .any(|owning| owning.uid == owner.uid);
        if is_current && found.meta().deletion_timestamp.is_none() {
            return Ok(found);
        }
        let only_this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: found.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match secrets.delete(name, &only_this).await.map_err(ApiError::from) {
            Ok(_) | Err(ApiError::NotFound(_)) => {}
            Err(err) => return Err(err.into()),
        }
    }
    let new = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    };
    Ok(secrets.create(&params(), &new).await.map_err(ApiError::from)?)
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
