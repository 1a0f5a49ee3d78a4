//! `rooflet models`: the models on the nodes, their downloads, prefetch and deletion.

mod rows;

use anyhow::{anyhow, bail};
use camino::Utf8PathBuf;
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use self::rows::{Row, is_requested, rows};
use crate::cli::ui::output::Output;
use crate::cli::ui::{self, Table};
use crate::cli::{Failure, objects};
use rooflet_api::model_requests::ModelRequests;
use rooflet_api::v1alpha1::{FleetNode, HubModel, ModelReplica, NodeModel};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::units::Bytes;
use rooflet_client::{ApiError, FIELD_MANAGER};

/// Maximum number of attempts after write conflicts.
const MAX_TRIES: usize = 5;

/// Arguments of `rooflet models`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<Utf8PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List the models on the nodes: size, last use, replicas, downloads in progress.
    List {
        /// List the models of this node only.
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[arg(long, short, value_enum, default_value_t)]
        output: Output,
    },
    /// Request that nodes download a model of a hub and keep it, before a deployment uses it.
    Prefetch(Target),
    /// Request that nodes delete a downloaded model and no longer keep it. A model that a replica uses
    /// stays until the replica is gone.
    Delete(Target),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// Model: hf://OWNER/NAME or hf://OWNER/NAME@REVISION.
    #[arg(value_parser = hub_model)]
    model: HubModel,
    /// Node; repeat the flag for several nodes.
    #[arg(long, value_name = "NODE", required = true)]
    node: Vec<String>,
}

fn hub_model(text: &str) -> Result<HubModel, String> {
    text.parse()
        .map_err(|err| format!("{err}; models of --model-dir are managed on the node itself"))
}

/// Change of a node's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Keep,
    Delete,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig).await?;
    match args.verb {
        Verb::List { node, output } => list(&client, node.as_deref(), output).await,
        Verb::Prefetch(target) => request(&client, &target, Change::Keep).await,
        Verb::Delete(target) => request(&client, &target, Change::Delete).await,
    }
}

async fn list(client: &Client, only: Option<&str>, output: Output) -> Result<(), Failure> {
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client.clone());
    let all = ListParams::default();
    let mut nodes = nodes.list(&all).await.map_err(ApiError::from)?.items;
    let replicas = replicas.list(&all).await.map_err(ApiError::from)?.items;
    if let Some(only) = only {
        nodes.retain(|node| node.name_any() == only);
        if nodes.is_empty() {
            return Err(no_node(only));
        }
    }
    let rows = rows(&nodes, &replicas);
    output.print(&rows, || Ok(text(&rows)))?;
    Ok(())
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(["MODEL", "NODE", "SIZE", "LAST-USED", "STATE"]);
    for row in rows {
        let size = row.bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
        let used = row.last_used.map_or("-".to_owned(), |time| time.to_string());
        table.add_row([row.model.clone(), row.node.clone(), size, used, row.state.clone()]);
    }
    match table.is_empty() {
        true => "No node has a model.\n".to_owned(),
        false => format!("{table}\n"),
    }
}

async fn request(client: &Client, target: &Target, change: Change) -> Result<(), Failure> {
    let nodes: Api<FleetNode> = Api::all(client.clone());
    for name in &target.node {
        let done = request_from(&nodes, name, &target.model, change).await?;
        ui::output(&format!(
            "fleetnode.rooflet.dev/{name} {}: {done}\n",
            target.model
        ));
    }
    Ok(())
}

async fn request_from(
    nodes: &Api<FleetNode>,
    name: &str,
    model: &HubModel,
    change: Change,
) -> Result<&'static str, Failure> {
    let mut tries_left = MAX_TRIES;
    loop {
        tries_left -= 1;
        let node = nodes.get_opt(name).await.map_err(ApiError::from)?;
        let node = node.ok_or_else(|| no_node(name))?;
        let requests = changed(&node, model, change)?;
        let done = outcome(&node, &requests, model, change);
        let annotations: serde_json::Map<_, _> = requests
            .annotations()
            .into_iter()
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        // The resourceVersion prevents the loss of a concurrent request.
        let patch = json!({
            "metadata": { "annotations": annotations, "resourceVersion": node.metadata.resource_version },
        });
        let params = PatchParams::apply(FIELD_MANAGER);
        let patched = nodes.patch(name, &params, &Patch::Merge(&patch)).await;
        match patched.map_err(ApiError::from) {
            Err(ApiError::Conflict(_)) if tries_left > 0 => {}
            patched => {
                patched?;
                return Ok(done);
            }
        }
    }
}

/// Returns the description of a change after which the node has these requests.
fn outcome(node: &FleetNode, requests: &ModelRequests, model: &HubModel, change: Change) -> &'static str {
    let is_deleted = || requests.delete.keys().any(|deleted| covers(model, deleted));
    let any_revision = HubModel {
        revision: None,
        ..model.clone()
    };
    match change {
        Change::Keep => "prefetch requested; `rooflet models list` shows the model when it is complete",
        Change::Delete if is_deleted() => {
            "deletion requested; the agent deletes the model when no replica uses it"
        }
        Change::Delete if listed(node, &any_revision).next().is_some() => {
            "no longer kept; not deleted, because no download has this name: pass the commit that \
             `rooflet models list` shows"
        }
        Change::Delete => "no longer kept; nothing of it was downloaded completely",
    }
}

fn no_node(name: &str) -> Failure {
    let problem = anyhow!("FleetNode {name} does not exist; `kubectl get mac` lists the nodes");
    Failure::new(ExitStatus::Failure, problem)
}

/// Returns the requests of a node after a change.
fn changed(node: &FleetNode, model: &HubModel, change: Change) -> anyhow::Result<ModelRequests> {
    let mut requests = ModelRequests::of(node.annotations());
    // Completed requests, and requests for earlier downloads.
    requests
        .delete
        .retain(|model, at| listed(node, model).any(|listed| is_requested(listed, *at)));
    match change {
        Change::Keep => {
            requests.delete.remove(model);
            requests.keep.insert(model.clone());
        }
        Change::Delete => {
            let was_kept = requests.keep.len();
            requests.keep.retain(|kept| !covers(model, kept));
            let present = downloaded(node, model);
            if present.is_empty() && was_kept == requests.keep.len() {
                bail!(
                    "node {} has no downloaded model {model}; `rooflet models list` lists the models",
                    node.name_any()
                );
            }
            requests.delete.extend(present);
        }
    }
    Ok(requests)
}

/// Returns the downloaded copies of a model with the times for requests to delete them: of one revision, or
/// of all without a revision. The times are those of the node, so that the clocks of two machines are never
/// compared. Earlier agents report no time.
fn downloaded(node: &FleetNode, model: &HubModel) -> Vec<(HubModel, Timestamp)> {
    let now = Clock::System.now();
    listed(node, model)
        .filter_map(|listed| {
            let time = listed.downloaded_time.as_ref().map_or(now, |time| time.0);
            Some((listed.name.parse().ok()?, time))
        })
        .collect()
}

fn listed<'a>(node: &'a FleetNode, model: &'a HubModel) -> impl Iterator<Item = &'a NodeModel> {
    let models = node.status.iter().flat_map(|status| &status.models);
    models.filter(|listed| {
        let listed = listed.name.parse::<HubModel>();
        listed.is_ok_and(|listed| covers(model, &listed))
    })
}

/// Returns whether a request for `model` applies to `other`: without a revision, to all of them.
fn covers(model: &HubModel, other: &HubModel) -> bool {
    (&model.owner, &model.name) == (&other.owner, &other.name)
        && (model.revision.is_none() || model.revision == other.revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(annotations: serde_json::Value) -> FleetNode {
        let object = json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode",
            "metadata": {"name": "mini-1", "annotations": annotations},
            "spec": {},
            "status": {"models": [
                {"name": "guide"}, {"name": "hf://o/m@c0"}, {"name": "hf://o/m@c1"}, {"name": "hf://o/n@c2"},
            ]},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn deletion_covers_all_revisions_and_ends_a_prefetch() {
        let model: HubModel = "hf://o/m".parse().unwrap();
        let kept = node(json!({"rooflet.dev/keep-models": "hf://o/m@main,hf://o/n"}));
        let requests = changed(&kept, &model, Change::Delete).unwrap();
        let deleted: Vec<String> = requests.delete.keys().map(ToString::to_string).collect();
        assert_eq!(deleted, ["hf://o/m@c0", "hf://o/m@c1"]);
        let rest: Vec<String> = requests.keep.iter().map(ToString::to_string).collect();
        assert_eq!(rest, ["hf://o/n"]);
        let absent = "hf://o/absent".parse().unwrap();
        let err = changed(&kept, &absent, Change::Delete).unwrap_err().to_string();
        assert!(
            err.contains("mini-1 has no downloaded model hf://o/absent"),
            "{err}"
        );
    }

    #[test]
    fn deletion_without_a_download_of_this_name_states_what_remains() {
        let done = |model: &str| {
            let model = model.parse().unwrap();
            let kept = "hf://o/m@main,hf://o/incomplete,hf://o/incomplete@c3";
            let node = node(json!({"rooflet.dev/keep-models": kept}));
            let requests = changed(&node, &model, Change::Delete).unwrap();
            outcome(&node, &requests, &model, Change::Delete)
        };
        // `rooflet models list` shows no commit to pass.
        for incomplete in ["hf://o/incomplete", "hf://o/incomplete@c3"] {
            let expect = "no longer kept; nothing of it was downloaded completely";
            assert_eq!(done(incomplete), expect, "{incomplete}");
        }
        assert!(done("hf://o/m@main").starts_with("no longer kept; not deleted"));
        assert!(done("hf://o/m@c0").starts_with("deletion requested"));
        assert!(done("hf://o/m").starts_with("deletion requested"));
    }

    /// The clocks of the node and of this machine may differ by any amount.
    #[test]
    fn deletion_contains_the_time_of_the_node() {
        let model: HubModel = "hf://o/m@c0".parse().unwrap();
        let mut node = node(json!({"rooflet.dev/delete-models": "hf://o/n@c2=2000-01-01T00:00:00Z"}));
        let models = &mut node.status.as_mut().unwrap().models;
        for (index, time) in [(1, "2071-05-05T05:05:05Z"), (3, "2071-05-05T05:05:05Z")] {
            models[index].downloaded_time = serde_json::from_value(json!(time)).unwrap();
        }
        let requests = changed(&node, &model, Change::Delete).unwrap();
        let deleted: Vec<String> = requests
            .delete
            .iter()
            .map(|(model, at)| format!("{model}={at}"))
            .collect();
        // The request for the earlier download of another model has no effect any more.
        assert_eq!(deleted, ["hf://o/m@c0=2071-05-05T05:05:05Z"]);
    }

    #[test]
    fn prefetch_ends_a_deletion_and_old_deletions_are_removed() {
        let model: HubModel = "hf://o/m@c0".parse().unwrap();
        let now = Clock::System.now();
        let deletes = format!("hf://o/m@c0={now},hf://o/old@c9={now}");
        let requests = changed(
            &node(json!({"rooflet.dev/delete-models": deletes})),
            &model,
            Change::Keep,
        );
        let requests = requests.unwrap();
        assert!(requests.delete.is_empty(), "{requests:?}");
        assert!(requests.keep.contains(&model), "{requests:?}");
        let local = hub_model("local://guide").unwrap_err();
        assert!(local.contains("hf://OWNER/NAME"), "{local}");
    }
}
