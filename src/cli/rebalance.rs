//! `rooflet rebalance`

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};

use super::{Failure, cordon, ui};
use crate::api::meta::DEPLOYMENT_LABEL;
use crate::api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use crate::client::ApiError;
use crate::controller::min_available;
use crate::scheduler::{Fleet, Move, rebalance};

/// Say which replicas would be better off on other nodes, and what moving them costs.
///
/// Nothing is changed without --apply. With it, one replica after the other is deleted where its deployment can spare it,
/// and the next only when all replicas of the deployment answer again; the scheduler chooses the new node.
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
    /// Which API server to ask. Default: what kubectl would use, else the one that `rooflet up` wrote.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = cordon::client(args.kubeconfig.clone()).await?;
    let everything = ListParams::default();
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let replicas: Api<ModelReplica> = Api::all(client.clone());
    let nodes = nodes.list(&everything).await.map_err(ApiError::from)?;
    let replicas = replicas.list(&everything).await.map_err(ApiError::from)?;
    let mut moves = rebalance(&mut Fleet::new(&nodes.items, &replicas.items));
    let found = moves.len();
    moves.truncate(args.max_moves);
    if moves.is_empty() {
        ui::output("No replica would be so much better off elsewhere that it is worth a move.\n");
        return Ok(());
    }
    ui::output(&table(&moves));
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
    for one in &moves {
        let done = make(&client, one, Duration::from_secs(args.timeout)).await?;
        ui::output(&format!("{}: {done}\n", one.replica));
    }
    Ok(())
}

fn table(moves: &[Move]) -> String {
    let mut text = String::new();
    for one in moves {
        text.push_str(&format!(
            "{}: {} -> {}\n  now:  {}\n  then: {}\n  cost: loads {} on {}; until then its deployment answers with one replica less\n",
            one.replica, one.from, one.to, one.before, one.after, one.load, one.to
        ));
    }
    text
}

/// Makes one move, if it is still one and can be spared. What became of it.
async fn make(client: &Client, one: &Move, timeout: Duration) -> Result<String, Failure> {
    let namespace = &one.replica.namespace;
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), namespace);
    let deployments: Api<ModelDeployment> = Api::namespaced(client.clone(), namespace);
    let name = &one.replica.name;
    let replica = replicas.get_opt(name).await.map_err(ApiError::from)?;
    let Some(replica) = replica.filter(|replica| {
        replica.spec.node_name.as_deref() == Some(&one.from) && replica.metadata.deletion_timestamp.is_none()
    }) else {
        return Ok("skipped: it has changed meanwhile".to_owned());
    };
    let Some(owner) = &one.deployment else {
        return Ok("skipped: it is of no ModelDeployment".to_owned());
    };
    let deployment = deployments.get_opt(&owner.name).await.map_err(ApiError::from)?;
    let Some(deployment) = deployment else {
        return Ok(format!("skipped: ModelDeployment {} is gone", owner.name));
    };
    if !is_whole(&deployment) {
        return Ok(format!(
            "skipped: ModelDeployment {} is not whole as it is",
            owner.name
        ));
    }
    let ready = usize::try_from(deployment.spec.replicas).unwrap_or(0);
    if ready.saturating_sub(1) < min_available(&deployment.spec) {
        return Ok(format!(
            "skipped: ModelDeployment {} may not miss a replica (spec.strategy.rollingUpdate.maxUnavailable)",
            owner.name
        ));
    }
    let uid = replica.uid().unwrap_or_default();
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.clone()),
        resource_version: None,
    });
    replicas.delete(name, &params).await.map_err(ApiError::from)?;
    let whole_again = async {
        await_condition(replicas.clone(), name, conditions::is_deleted(&uid)).await?;
        await_condition(
            deployments.clone(),
            &owner.name,
            |deployment: Option<&ModelDeployment>| deployment.is_none_or(is_whole),
        )
        .await
    };
    match tokio::time::timeout(timeout, whole_again).await {
        Ok(waited) => drop(waited.map_err(anyhow::Error::from)?),
        Err(_elapsed) => {
            return Err(anyhow!(
                "ModelDeployment {} is not whole again {} s after {} was deleted; no more moves are made",
                owner.name,
                timeout.as_secs(),
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
    Ok(newest.map_or_else(
        || "deleted".to_owned(),
        |newest| {
            let node = newest.spec.node_name.as_deref().unwrap_or("no node yet");
            format!("moved; {} is on {node}", newest.name_any())
        },
    ))
}

/// Whether all replicas that are wanted answer.
fn is_whole(deployment: &ModelDeployment) -> bool {
    let status = deployment.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation >= deployment.metadata.generation
            && status.ready_replicas >= deployment.spec.replicas
    })
}
