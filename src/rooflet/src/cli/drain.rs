//! `rooflet drain`
//!
//! The controller drains: this asks for it, tells how far it is, and may be stopped and started again.

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use futures::StreamExt;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{Failure, cordon, objects, ui};
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ApiError;

/// Arguments of `rooflet drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node's name. `kubectl get mac` lists them.
    node: String,
    /// Delete what no other node takes, or what its deployment cannot spare, as well: those models are served less, or
    /// not at all, until there is room.
    #[arg(long)]
    force: bool,
    /// Seconds to wait until no replica is left; 0 waits as long as it takes. The node goes on being drained afterwards.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    /// Which API server to ask. Default: what kubectl would use, else the one that `rooflet up` wrote.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig.clone()).await?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let name = &args.node;
    let node = cordon::node(&nodes, name).await?;
    let already = if node.spec.unschedulable { "already " } else { "" };
    let asked = cordon::patch(
        &nodes,
        name,
        &json!({"spec": {"unschedulable": true, "drain": true}}),
    )
    .await?;
    ui::output(&format!("fleetnode.rooflet.dev/{name} {already}cordoned\n"));
    let waiting = async {
        let staying = delete_by_hand(&client, &args).await?;
        until_drained(&nodes, name, asked.metadata.generation).await?;
        Ok::<_, Failure>(staying)
    };
    let staying = match args.timeout {
        0 => waiting.await?,
        seconds => tokio::time::timeout(Duration::from_secs(seconds), waiting)
            .await
            .map_err(|_elapsed| {
                anyhow!(
                    "{name} is not drained after {seconds} s; it goes on being drained, `kubectl describe mac {name}` says how \
                     far it is, and `rooflet uncordon {name}` ends it"
                )
            })??,
    };
    if !staying.is_empty() {
        return Err(anyhow!(
            "{name} still has replicas that no deployment would make again: {}; delete them, or say --force",
            staying.join(", ")
        )
        .into());
    }
    ui::output(&format!("fleetnode.rooflet.dev/{name} drained\n"));
    Ok(())
}

/// Deletes what the controller leaves alone, if it may; returns the names of what it may not.
async fn delete_by_hand(client: &Client, args: &Args) -> Result<Vec<String>, Failure> {
    let replicas: Api<ModelReplica> = Api::all(client.clone());
    let here = ListParams::default().fields(&format!("spec.nodeName={}", args.node));
    let (mut staying, mut of_manifests) = (Vec::new(), Vec::new());
    for replica in replicas.list(&here).await.map_err(ApiError::from)? {
        let namespace = replica.namespace().unwrap_or_default();
        let shown = format!("{namespace}/{}", replica.name_any());
        if replica.annotations().contains_key(MIRROR_ANNOTATION) {
            of_manifests.push(shown);
        } else if args.force {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: replica.uid(),
                resource_version: None,
            });
            let api: Api<ModelReplica> = Api::namespaced(client.clone(), &namespace);
            match api
                .delete(&replica.name_any(), &params)
                .await
                .map_err(ApiError::from)
            {
                Ok(_) | Err(ApiError::NotFound(_) | ApiError::Conflict(_)) => {}
                Err(err) => return Err(err.into()),
            }
            ui::output(&format!("evicting replica {shown}\n"));
        } else if !replica.labels().contains_key(DEPLOYMENT_LABEL) {
            staying.push(shown);
        }
    }
    if !of_manifests.is_empty() {
        let names = of_manifests.join(", ");
        ui::progress(&format!("ignoring replicas of the node's own manifests: {names}"));
    }
    Ok(staying)
}

/// Waits for the controller, and tells what it says.
async fn until_drained(nodes: &Api<FleetNode>, name: &str, generation: Option<i64>) -> Result<(), Failure> {
    let changes = watch_object(nodes.clone(), name).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let mut told = String::new();
    while let Some(change) = changes.next().await {
        // Its backoff tries again.
        let Ok(node) = change else { continue };
        let node = node.ok_or_else(|| anyhow!("FleetNode {name} was deleted meanwhile"))?;
        if !node.spec.drain {
            return Err(anyhow!("somebody ended it: {name} is not being drained any more").into());
        }
        let conditions = node.status.map(|status| status.conditions).unwrap_or_default();
        let condition = conditions
            .into_iter()
            .find(|one| one.type_ == condition_type::DRAINED && one.observed_generation >= generation);
        match condition {
            Some(condition) if condition.status == "True" => return Ok(()),
            Some(condition) if condition.message != told => {
                ui::progress(&condition.message);
                told = condition.message;
            }
            Some(_) | None => {}
        }
    }
    Err(anyhow!("watching FleetNode {name} has ended").into())
}
