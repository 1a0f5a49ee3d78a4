//! `rooflet drain`
//!
//! The controller drains the node. This command requests the drain and prints its progress; it can
//! be interrupted and repeated.

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use futures::StreamExt;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::cordon;
use crate::cli::objects::preview::{DryRun, lines};
use crate::cli::ui::duration::duration;
use crate::cli::{Failure, objects, ui};
use rooflet_api::conditions::condition_type;
use rooflet_api::meta::{DEPLOYMENT_LABEL, MIRROR_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_client::ApiError;
use rooflet_controller::{ChangedObject, Course, ReplicaPreview};

/// Arguments of `rooflet drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the node. `kubectl get mac` lists the nodes.
    #[arg(value_parser = cordon::node_name)]
    node: String,
    /// Also delete replicas that fit no other node or that a disruption budget protects. Until
    /// another node has capacity, their models have fewer or no ready replicas. `--force --dry-run` prints these replicas.
    #[arg(long)]
    force: bool,
    /// Maximum wait until the node has no replicas, such as 90s or 5m; 0 waits without limit. The
    /// drain continues after the timeout.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    dry: DryRun,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig.clone()).await?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let name = &args.node;
    let node = cordon::node(&nodes, name).await?;
    let already = if node.spec.unschedulable { "already " } else { "" };
    let patch = json!({"spec": {"unschedulable": true, "drain": true}});
    if args.dry.dry_run {
        return preview(&client, &args, already, patch).await;
    }
    let requested = cordon::patch(&nodes, name, &patch).await?;
    ui::output(&format!("fleetnode.rooflet.dev/{name} {already}cordoned\n"));
    let waiting = async {
        let remaining = delete_unmanaged(&client, &args).await?;
        until_drained(&nodes, name, requested.metadata.generation).await?;
        Ok::<_, Failure>(remaining)
    };
    let remaining = match args.timeout {
        Duration::ZERO => waiting.await?,
        timeout => tokio::time::timeout(timeout, waiting)
            .await
            .map_err(|_elapsed| {
                anyhow!(
                    "{name} is not drained after {} s; the drain continues. `kubectl describe mac {name}` shows its progress, \
                    and `rooflet uncordon {name}` ends it",
                    timeout.as_secs_f64()
                )
            })??,
    };
    if !remaining.is_empty() {
        return Err(anyhow!(
            "{name} still has replicas without a controller: {}; delete them, or pass --force",
            remaining.join(", ")
        )
        .into());
    }
    ui::output(&format!("fleetnode.rooflet.dev/{name} drained\n"));
    Ok(())
}

/// Prints the consequences of the drain. Fails if a replica would stay on the node.
async fn preview(client: &Client, args: &Args, already: &str, patch: Value) -> Result<(), Failure> {
    let name = &args.node;
    let object = ChangedObject::Node(name.clone());
    let preview = args.dry.preview(client, object, patch, args.force).await?;
    ui::output(&format!(
        "fleetnode.rooflet.dev/{name} {already}cordoned (dry run)\n{}",
        lines(&preview)
    ));
    let stays = |replica: &&ReplicaPreview| matches!(replica.course, Course::Stays { .. });
    match preview.replicas.iter().filter(stays).count() {
        0 => {
            ui::output(&format!("fleetnode.rooflet.dev/{name} drained (dry run)\n"));
            Ok(())
        }
        left if args.force => Err(anyhow!(
            "{name} would not be drained: replicas that would stay: {left}; remove their manifests from the node"
        )
        .into()),
        left => Err(anyhow!(
            "{name} would not be drained: replicas that would stay: {left}; add capacity, or pass --force \
             (`--force --dry-run` shows the consequences)"
        )
        .into()),
    }
}

/// Deletes replicas that the controller does not evict, if --force is set. Returns the names of
/// those that remain.
async fn delete_unmanaged(client: &Client, args: &Args) -> Result<Vec<String>, Failure> {
    let replicas: Api<ModelReplica> = Api::all(client.clone());
    let here = ListParams::default().fields(&format!("spec.nodeName={}", args.node));
    let (mut remaining, mut of_manifests) = (Vec::new(), Vec::new());
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
            remaining.push(shown);
        }
    }
    if !of_manifests.is_empty() {
        let names = of_manifests.join(", ");
        ui::progress(&format!(
            "ignoring replicas of the node's manifest directory: {names}"
        ));
    }
    Ok(remaining)
}

/// Waits until the controller reports the node as drained, and prints its messages.
async fn until_drained(nodes: &Api<FleetNode>, name: &str, generation: Option<i64>) -> Result<(), Failure> {
    let changes = watch_object(nodes.clone(), name).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let mut printed = String::new();
    while let Some(change) = changes.next().await {
        // The watch retries with backoff.
        let Ok(node) = change else { continue };
        let node = node.ok_or_else(|| anyhow!("FleetNode {name} was deleted"))?;
        if !node.spec.drain {
            return Err(anyhow!("the drain of {name} was cancelled").into());
        }
        let conditions = node.status.map(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| {
            condition.type_ == condition_type::DRAINED && condition.observed_generation >= generation
        });
        match condition {
            Some(condition) if condition.status == "True" => return Ok(()),
            Some(condition) if condition.message != printed => {
                ui::progress(&condition.message);
                printed = condition.message;
            }
            Some(_) | None => {}
        }
    }
    Err(anyhow!("the watch of FleetNode {name} ended").into())
}
