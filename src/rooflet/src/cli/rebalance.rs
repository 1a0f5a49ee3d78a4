//! `rooflet rebalance`

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::ui::duration::positive_duration;
use super::{Failure, objects, ui};
use rooflet_api::meta::{DEPLOYMENT_LABEL, MOVE_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_client::ApiError;
use rooflet_controller::Mobility;
use rooflet_scheduler::{Fleet, Move, ReplicaKey, ReplicaRequest, rebalance};

/// Propose moves of replicas to better nodes, or to make room for a replica without a node, with
/// the cost of each move.
///
/// Without --apply, the command changes nothing. With --apply, it executes one move after another.
/// If the deployment's strategy allows a surge, the replacement is ready before the old replica
/// stops; otherwise the deployment temporarily has one replica less. The next move starts when all
/// replicas of the deployment are ready.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Execute the moves.
    #[arg(long)]
    apply: bool,
    /// Maximum number of proposed moves.
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_moves: usize,
    /// Maximum wait until a deployment is ready again after a move, such as 15m.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = positive_duration)]
    timeout: Duration,
    /// Value of the controller's --reserve-node-failures, so that every proposed move is possible
    /// for the controller.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    reserve_node_failures: u8,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig.clone()).await?;
    let everything = ListParams::default();
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client.clone());
    let nodes = nodes.list(&everything).await.map_err(ApiError::from)?;
    let replicas = replicas.list(&everything).await.map_err(ApiError::from)?;
    let deployments: Api<ModelDeployment> = Api::all(client.clone());
    let deployments = deployments.list(&everything).await.map_err(ApiError::from)?;
    let mut fleet = Fleet::new(&nodes.items, &replicas.items).with_reserve(args.reserve_node_failures.into());
    let mut moves = rebalance(&mut fleet, &waiting(&replicas.items));
    let found = moves.len();
    moves.truncate(args.max_moves);
    if moves.is_empty() {
        ui::output(
            "No moves are proposed: no replica would gain enough on another node or make room for another replica.\n",
        );
        return Ok(());
    }
    ui::output(&table(&moves, &deployments.items));
    if found > moves.len() {
        ui::output(&format!(
            "{} more moves are not shown (--max-moves).\n",
            found - moves.len()
        ));
    }
    if !args.apply {
        ui::output("Nothing was changed; --apply executes these moves one after another.\n");
        return Ok(());
    }
    // After a skipped move, the remaining moves for the same waiting replica are useless.
    let mut skipped_for: Option<&ReplicaKey> = None;
    for planned in &moves {
        let waiting = planned.makes_room_for.as_ref();
        if let Some(waiting) = waiting.filter(|waiting| skipped_for == Some(*waiting)) {
            ui::output(&format!(
                "{}: skipped: makes no room for {waiting} without the previous move\n",
                planned.replica
            ));
            continue;
        }
        match Box::pin(execute(&client, planned, args.timeout)).await? {
            Outcome::Moved(done) => ui::output(&format!("{}: {done}\n", planned.replica)),
            Outcome::Skipped(reason) => {
                ui::output(&format!("{}: skipped: {reason}\n", planned.replica));
                skipped_for = waiting;
            }
        }
    }
    Ok(())
}

/// Result of a move.
enum Outcome {
    Moved(String),
    Skipped(String),
}

/// Replicas without a node, in the order of the scheduler.
fn waiting(replicas: &[ModelReplica]) -> Vec<ReplicaRequest> {
    let mut waiting: Vec<&ModelReplica> = replicas
        .iter()
        .filter(|replica| replica.spec.node_name.is_none() && replica.metadata.deletion_timestamp.is_none())
        .collect();
    waiting.sort_by_key(|replica| {
        (
            Reverse(replica.spec.priority),
            replica.metadata.creation_timestamp.clone(),
        )
    });
    waiting.into_iter().map(ReplicaRequest::new).collect()
}

fn table(moves: &[Move], deployments: &[ModelDeployment]) -> String {
    let mut text = String::new();
    for planned in moves {
        let spec = planned.deployment.as_ref().and_then(|owner| {
            let of_owner = |deployment: &&ModelDeployment| ReplicaKey::of(*deployment) == *owner;
            deployments.iter().find(of_owner)
        });
        let meanwhile = match spec.map(|deployment| Mobility::of(&deployment.spec)) {
            Some(Mobility::Surge) => "its replacement is ready before it stops",
            Some(Mobility::Spare) => "during the move its deployment has one replica less",
            Some(Mobility::None) | None => "its deployment does not allow the move, so --apply skips it",
        };
        let reason = planned
            .makes_room_for
            .as_ref()
            .map_or_else(String::new, |waiting| format!(", makes room for {waiting}"));
        let cost = match &planned.arrival {
            Some(arrival) => format!("{} {arrival}", planned.to),
            None => format!("{} has the model in memory", planned.to),
        };
        text.push_str(&format!(
            "{}: {} -> {}{reason}\n  now:  {}\n  then: {}\n  cost: {cost}; {meanwhile}\n",
            planned.replica, planned.from, planned.to, planned.before, planned.after
        ));
    }
    text
}

/// Executes one move, if it is still valid and the deployment allows it.
async fn execute(client: &Client, planned: &Move, timeout: Duration) -> Result<Outcome, Failure> {
    let skipped = |reason| Ok(Outcome::Skipped(reason));
    let namespace = &planned.replica.namespace;
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<ModelDeployment> = Api::namespaced(client.clone(), namespace);
    let name = &planned.replica.name;
    let replica = replicas.get_opt(name).await.map_err(ApiError::from)?;
    let Some(replica) = replica.filter(|replica| {
        replica.spec.node_name.as_deref() == Some(&planned.from)
            && replica.metadata.deletion_timestamp.is_none()
    }) else {
        return skipped("the replica has changed".to_owned());
    };
    let Some(owner) = &planned.deployment else {
        return skipped("the replica has no ModelDeployment".to_owned());
    };
    let deployment = deployments.get_opt(&owner.name).await.map_err(ApiError::from)?;
    let Some(deployment) = deployment else {
        return skipped(format!("ModelDeployment {} is gone", owner.name));
    };
    if !is_whole(&deployment) {
        return skipped(format!("ModelDeployment {} is not fully ready", owner.name));
    }
    if Mobility::of(&deployment.spec) == Mobility::None {
        return skipped(format!(
            "ModelDeployment {} allows neither a missing nor an additional replica (maxUnavailable and maxSurge of \
            spec.strategy.rollingUpdate)",
            owner.name
        ));
    }
    annotate(&replicas, name, Some(&planned.to)).await?;
    let uid = replica.uid().unwrap_or_default();
    let moved = async {
        await_condition(replicas.clone(), name, conditions::is_deleted(&uid)).await?;
        await_condition(
            deployments.clone(),
            &owner.name,
            |deployment: Option<&ModelDeployment>| deployment.is_none_or(is_whole),
        )
        .await
    };
    match tokio::time::timeout(timeout, moved).await {
        Ok(waited) => drop(waited.map_err(anyhow::Error::from)?),
        Err(_elapsed) => {
            let now = replicas.get_opt(name).await.map_err(ApiError::from)?;
            let is_there = now.is_some_and(|replica| replica.metadata.deletion_timestamp.is_none());
            if is_there {
                annotate(&replicas, name, None).await?;
            }
            let state = match is_there {
                true => "has not moved, and the move was cancelled",
                false => "has moved, but its ModelDeployment is not fully ready",
            };
            let seconds = timeout.as_secs();
            return Err(anyhow!(
                "{} {state} after {seconds} s (--timeout); stopping",
                planned.replica
            )
            .into());
        }
    }
    let of_owner = ListParams::default().labels(&format!("{DEPLOYMENT_LABEL}={}", owner.name));
    let now = replicas.list(&of_owner).await.map_err(ApiError::from)?;
    let newest = now
        .into_iter()
        .max_by_key(|replica| replica.metadata.creation_timestamp.clone());
    Ok(Outcome::Moved(newest.map_or_else(
        || "deleted".to_owned(),
        |newest| {
            let node = newest.spec.node_name.as_deref().unwrap_or("no node yet");
            format!("moved; {} is on {node}", newest.name_any())
        },
    )))
}

/// Requests a move from the controller, or cancels the request.
async fn annotate(replicas: &Api<ModelReplica>, name: &str, to: Option<&str>) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { MOVE_ANNOTATION: to } } });
    let patched = replicas
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map(drop).map_err(|error| ApiError::from(error).into())
}

/// Returns true if all desired replicas are ready.
fn is_whole(deployment: &ModelDeployment) -> bool {
    let status = deployment.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation >= deployment.metadata.generation
            && status.ready_replicas >= deployment.spec.replicas
    })
}
