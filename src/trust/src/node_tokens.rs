//! Tokens of nodes on a Kubernetes cluster: of the ServiceAccount that the chart created for the node. The
//! API server accepts them while a Secret exists, which belongs to the FleetNode.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tracing::warn;

use rooflet_api::meta::NODE_ANNOTATION;
use rooflet_api::v1alpha1::{FleetNode, FleetNodeSpec};
use rooflet_base::error::Chain;
use rooflet_client::{ApiError, BoundToken, FIELD_MANAGER, TokenBinding};

/// ServiceAccounts of agents, as the chart labels them.
const AGENTS: &str = "app.kubernetes.io/name=rooflet,app.kubernetes.io/component=agent";
/// Annotations of a node's Secret: time at which `rooflet token create` issued a token last, and
/// its expiry.
const ISSUED_ANNOTATION: &str = "rooflet.dev/token-issued";
const EXPIRES_ANNOTATION: &str = "rooflet.dev/token-expires";

/// Error of [`issue_node_token`].
#[derive(Debug, thiserror::Error)]
pub enum IssueNodeTokenError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "no ServiceAccount of the chart is for node {0}: add {0} to the value agents.nodes, and run `helm upgrade`"
    )]
    NoAccount(String),
    #[error(
        "node {node} has several ServiceAccounts ({accounts}): remove {node} from agents.nodes of all releases but \
         one"
    )]
    SeveralAccounts { node: String, accounts: String },
}

/// Creates what the node needs if it is missing, and issues a token.
pub async fn issue_node_token(
    client: &Client,
    node: &str,
    ttl: Duration,
) -> Result<String, IssueNodeTokenError> {
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
    // The token is valid also if its time is not recorded.
    if let Err(err) = record_issue(client, &binding, &token).await {
        warn!(
            error = %Chain(&err),
            "`rooflet token list` will not show the time of this token"
        );
    }
    Ok(token)
}

/// Records in the Secret when the token was issued and when it expires. The agent's renewals are
/// not recorded.
async fn record_issue(client: &Client, binding: &TokenBinding, token: &str) -> Result<(), ApiError> {
    let Some(token) = BoundToken::read(token) else {
        return Ok(());
    };
    let time = |at: Timestamp| format!("{at:.0}");
    let patch = json!({"metadata": {"uid": binding.secret_uid, "annotations": {
        ISSUED_ANNOTATION: time(token.issued), EXPIRES_ANNOTATION: time(token.expires)}}});
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &binding.namespace);
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = secrets
        .patch_metadata(&binding.secret, &params, &Patch::Merge(patch))
        .await;
    patched.map(drop).map_err(ApiError::from)
}

/// Tokens of a node.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeTokens {
    pub node: String,
    pub account: String,
    /// Texts of the last token that `rooflet token create` issued.
    pub issued: String,
    pub expires: String,
    pub state: &'static str,
}

impl NodeTokens {
    /// Returns the state of a node's tokens. `secret` is the Secret to which they are bound.
    fn of(
        (node, account): (&str, &ServiceAccount),
        secret: Option<&PartialObjectMeta<Secret>>,
        fleet_node: Option<&PartialObjectMeta<FleetNode>>,
        now: Timestamp,
    ) -> Self {
        let text = |name: &str| {
            let found = secret.and_then(|secret| secret.annotations().get(name));
            found.map_or_else(|| "-".to_owned(), Clone::clone)
        };
        let is_bound = secret.zip(fleet_node).is_some_and(|(secret, node)| {
            let owners = secret.owner_references().iter();
            owners
                .map(|owner| Some(owner.uid.as_str()))
                .any(|uid| uid == node.metadata.uid.as_deref())
        });
        let expires = text(EXPIRES_ANNOTATION);
        let is_expired = expires.parse::<Timestamp>().is_ok_and(|expires| expires <= now);
        let state = match secret {
            None => "no token",
            Some(_) if !is_bound => "invalid: the FleetNode was deleted",
            Some(_) if is_expired => "expired, unless the agent has renewed it",
            Some(_) => "valid",
        };
        Self {
            node: node.to_owned(),
            account: format!(
                "{}/{}",
                account.namespace().unwrap_or_default(),
                account.name_any()
            ),
            issued: text(ISSUED_ANNOTATION),
            expires,
            state,
        }
    }
}

/// Returns the nodes of the chart and the state of their tokens.
pub async fn list_node_tokens(client: &Client, now: Timestamp) -> Result<Vec<NodeTokens>, ApiError> {
    let accounts: Api<ServiceAccount> = Api::all(client.clone());
    let found = accounts.list(&ListParams::default().labels(AGENTS)).await?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let mut listed = Vec::new();
    for account in found.items {
        let Some(node) = account.annotations().get(NODE_ANNOTATION) else {
            continue;
        };
        let namespace = account.namespace().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let secret = secrets.get_metadata_opt(&account.name_any()).await?;
        let fleet_node = nodes.get_metadata_opt(node).await?;
        listed.push(NodeTokens::of(
            (node, &account),
            secret.as_ref(),
            fleet_node.as_ref(),
            now,
        ));
    }
    Ok(listed)
}

async fn account_of(client: &Client, node: &str) -> Result<ServiceAccount, IssueNodeTokenError> {
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
        0 => Err(IssueNodeTokenError::NoAccount(node.to_owned())),
        1 => Ok(found.remove(0)),
        _ => Err(IssueNodeTokenError::SeveralAccounts {
            node: node.to_owned(),
            accounts: found.iter().map(named).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Returns the reference to the FleetNode, which is created if it is missing.
async fn fleet_node(client: &Client, node: &str) -> Result<OwnerReference, ApiError> {
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let found = match nodes.get_opt(node).await.map_err(ApiError::from)? {
        Some(found) => found,
        None => {
            let new = FleetNode::new(node, FleetNodeSpec::default());
            nodes.create(&params(), &new).await.map_err(ApiError::from)?
        }
    };
    let reference = found.owner_ref(&());
    reference.ok_or_else(|| ApiError::Invalid(format!("FleetNode {node} has no UID")))
}

/// Returns the Secret of this FleetNode. A Secret of a deleted FleetNode is replaced, so that tokens of
/// before stay invalid.
async fn secret(
    client: &Client,
    namespace: &str,
    name: &str,
    owner: &OwnerReference,
) -> Result<Secret, ApiError> {
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
            Err(err) => return Err(err),
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
    secrets.create(&params(), &new).await.map_err(ApiError::from)
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_valid_while_their_fleet_node_exists() {
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "rooflet"}}))
                .expect("a ServiceAccount");
        let secret: PartialObjectMeta<Secret> = serde_json::from_value(json!({"metadata": {"name": "a",
            "annotations": {ISSUED_ANNOTATION: "2026-03-01T10:00:00Z", EXPIRES_ANNOTATION: "2026-03-02T10:00:00Z"},
            "ownerReferences": [{"apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode", "name": "mini-1", "uid": "1"}]}}))
        .expect("a Secret");
        let node = |uid: &str| -> PartialObjectMeta<FleetNode> {
            serde_json::from_value(json!({"metadata": {"name": "mini-1", "uid": uid}})).expect("a FleetNode")
        };
        let (first, second) = (node("1"), node("2"));
        let now = |text: &str| text.parse::<Timestamp>().expect("a time");
        let of = |secret, node, at: &str| NodeTokens::of(("mini-1", &account), secret, node, now(at));
        let (noon, later) = ("2026-03-01T12:00:00Z", "2026-03-03T00:00:00Z");
        let valid = of(Some(&secret), Some(&first), noon);
        assert_eq!(
            (
                valid.account.as_str(),
                valid.issued.as_str(),
                valid.expires.as_str(),
                valid.state
            ),
            (
                "rooflet/a",
                "2026-03-01T10:00:00Z",
                "2026-03-02T10:00:00Z",
                "valid"
            )
        );
        let state = |secret, node, at| of(secret, node, at).state;
        assert_eq!(
            state(Some(&secret), Some(&first), later),
            "expired, unless the agent has renewed it"
        );
        for other in [None, Some(&second)] {
            assert_eq!(
                state(Some(&secret), other, noon),
                "invalid: the FleetNode was deleted"
            );
        }
        let none = of(None, Some(&first), noon);
        assert_eq!((none.issued.as_str(), none.state), ("-", "no token"));
    }
}
