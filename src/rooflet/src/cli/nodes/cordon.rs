//! `rooflet cordon` and `rooflet uncordon`

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cli::objects::preview::{DryRun, lines};
use crate::cli::{Failure, objects, ui};
use rooflet_api::v1alpha1::FleetNode;
use rooflet_client::{ApiError, FIELD_MANAGER};
use rooflet_controller::ChangedObject;

/// Arguments of `rooflet cordon` and `rooflet uncordon`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of the nodes. `kubectl get mac` lists them.
    #[arg(required = true, value_name = "NODE", value_parser = node_name)]
    nodes: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

/// Parses the name of a node.
pub(super) fn node_name(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Err("the name is empty; `kubectl get mac` lists the nodes"),
        name => Ok(name.to_owned()),
    }
}

/// Marks nodes as unschedulable.
pub(crate) async fn cordon(args: Args) -> Result<(), Failure> {
    let wanted = json!({"spec": {"unschedulable": true}});
    change(args, "cordoned", wanted, |node| node.spec.unschedulable).await
}

/// Marks nodes as schedulable and ends a drain. Replicas that are still on the node stay.
pub(crate) async fn uncordon(args: Args) -> Result<(), Failure> {
    let wanted = json!({"spec": {"unschedulable": false, "drain": false}});
    change(args, "uncordoned", wanted, |node| {
        !node.spec.unschedulable && !node.spec.drain
    })
    .await
}

async fn change(args: Args, done: &str, wanted: Value, is_so: fn(&FleetNode) -> bool) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig).await?;
    let nodes: Api<FleetNode> = Api::all(client.clone());
    for name in &args.nodes {
        let already = if is_so(&node(&nodes, name).await?) {
            "already "
        } else {
            ""
        };
        if args.dry.dry_run {
            let object = ChangedObject::Node(name.clone());
            let preview = args.dry.preview(&client, object, wanted.clone(), false).await?;
            let consequences = lines(&preview);
            ui::output(&format!(
                "fleetnode.rooflet.dev/{name} {already}{done} (dry run)\n{consequences}"
            ));
            continue;
        }
        if already.is_empty() {
            patch(&nodes, name, &wanted).await?;
        }
        ui::output(&format!("fleetnode.rooflet.dev/{name} {already}{done}\n"));
    }
    Ok(())
}

pub(crate) async fn node(nodes: &Api<FleetNode>, name: &str) -> Result<FleetNode, Failure> {
    let node = nodes.get_opt(name).await.map_err(ApiError::from)?;
    Ok(node.ok_or_else(|| anyhow!("no FleetNode {name}; `kubectl get mac` lists them"))?)
}

pub(crate) async fn patch(nodes: &Api<FleetNode>, name: &str, patch: &Value) -> Result<FleetNode, ApiError> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    Ok(nodes.patch(name, &params, &Patch::Merge(patch)).await?)
}
