//! `rooflet rebalance`

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::{Failure, objects, ui};
use rooflet_api::meta::{DEPLOYMENT_LABEL, MOVE_ANNOTATION};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_client::ApiError;
use rooflet_controller::Mobility;
use rooflet_scheduler::{Fleet, Move, ReplicaKey, ReplicaRequest, rebalance};

/// Say which replicas would be better off on other nodes or make room for one that has none, and what moving them costs.
///
/// Nothing is changed without --apply. With it, one replica after the other is moved where its deployment is whole: where
/// its strategy has a surge, its replacement answers requests before it goes, else one may have to be missing meanwhile.
/// The next one follows when all replicas of the deployment answer again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Make the moves.
    #[arg(long)]
    apply: bool,
    /// Propose at most N moves.
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_moves: usize,
    /// Seconds to wait until a deployment is whole again after a move.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// What the controller was given as --reserve-node-failures, so that no move is proposed which it would not make.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3))]
    reserve_node_failures: u8,
    /// Which API server to ask. Default: what kubectl would use, else the one that `rooflet up` wrote.
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
            "No replica would be so much better off elsewhere, or make room for another, that it is worth a move.\n",
        );
        return Ok(());
    }
    ui::output(&table(&moves, &deployments.items));
    if found > moves.len() {
        ui::output(&format!(
            "{} more are not shown (--max-moves).\n",
            found - moves.len()
        ));
    }
    if !args.apply {
        ui::output("Nothing was changed; --apply makes these moves one after the other.\n");
        return Ok(());
    }
    // Some of the moves for a replica make it no room.
    let mut in_vain: Option<&ReplicaKey> = None;
    for one in &moves {
        let waiting = one.makes_room_for.as_ref();
        if let Some(waiting) = waiting.filter(|waiting| in_vain == Some(*waiting)) {
            ui::output(&format!(
                "{}: skipped: without the move before it makes no room for {waiting}\n",
                one.replica
            ));
            continue;
        }
        match make(&client, one, Duration::from_secs(args.timeout)).await? {
            Outcome::Moved(done) => ui::output(&format!("{}: {done}\n", one.replica)),
            Outcome::Skipped(why) => {
                ui::output(&format!("{}: skipped: {why}\n", one.replica));
                in_vain = waiting;
            }
        }
    }
    Ok(())
}

/// What became of a move.
enum Outcome {
    Moved(String),
    Skipped(String),
}

/// Replicas without a node, in the order in which the scheduler looks at them.
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
    for one in moves {
        let spec = one.deployment.as_ref().and_then(|owner| {
            let of_owner = |one: &&ModelDeployment| ReplicaKey::of(*one) == *owner;
            deployments.iter().find(of_owner)
        });
        let meanwhile = match spec.map(|deployment| Mobility::of(&deployment.spec)) {
            Some(Mobility::Surge) => "its replacement answers before it goes",
            Some(Mobility::Spare) => "until then its deployment answers with one replica less",
            Some(Mobility::None) | None => "its deployment cannot spare it, so --apply leaves it where it is",
        };
        let reason = one
            .makes_room_for
            .as_ref()
            .map_or_else(String::new, |waiting| format!(", makes room for {waiting}"));
        let cost = match &one.arrival {
            Some(arrival) => format!("{} {arrival}", one.to),
            None => format!("{} has the model in memory", one.to),
        };
        text.push_str(&format!(
            "{}: {} -> {}{reason}\n  now:  {}\n  then: {}\n  cost: {cost}; {meanwhile}\n",
            one.replica, one.from, one.to, one.before, one.after
        ));
    }
    text
}

/// Makes one move, if it is still one and can be spared.
async fn make(client: &Client, one: &Move, timeout: Duration) -> Result<Outcome, Failure> {
    let skipped = |why| Ok(Outcome::Skipped(why));
    let namespace = &one.replica.namespace;
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<ModelDeployment> = Api::namespaced(client.clone(), namespace);
    let name = &one.replica.name;
    let replica = replicas.get_opt(name).await.map_err(ApiError::from)?;
    let Some(replica) = replica.filter(|replica| {
        replica.spec.node_name.as_deref() == Some(&one.from) && replica.metadata.deletion_timestamp.is_none()
    }) else {
        return skipped("it has changed meanwhile".to_owned());
    };
    let Some(owner) = &one.deployment else {
        return skipped("it is of no ModelDeployment".to_owned());
    };
    let deployment = deployments.get_opt(&owner.name).await.map_err(ApiError::from)?;
    let Some(deployment) = deployment else {
        return skipped(format!("ModelDeployment {} is gone", owner.name));
    };
    if !is_whole(&deployment) {
        return skipped(format!("ModelDeployment {} is not whole as it is", owner.name));
    }
    if Mobility::of(&deployment.spec) == Mobility::None {
        return skipped(format!(
            "ModelDeployment {} may neither miss a replica nor have one more (maxUnavailable and maxSurge of \
             spec.strategy.rollingUpdate)",
            owner.name
        ));
    }
    annotate(&replicas, name, Some(&one.to)).await?;
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
                true => "is still where it was, and may stay",
                false => "has left, but its ModelDeployment is not whole again",
            };
            let seconds = timeout.as_secs();
            return Err(anyhow!(
                "{} {state} after {seconds} s (--timeout); no more moves are made",
                one.replica
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

/// Asks the controller to move the replica, or no longer.
async fn annotate(replicas: &Api<ModelReplica>, name: &str, to: Option<&str>) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { MOVE_ANNOTATION: to } } });
    let patched = replicas
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map(drop).map_err(|error| ApiError::from(error).into())
}

/// Whether all replicas that are wanted answer.
fn is_whole(deployment: &ModelDeployment) -> bool {
    let status = deployment.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation >= deployment.metadata.generation
            && status.ready_replicas >= deployment.spec.replicas
    })
}
