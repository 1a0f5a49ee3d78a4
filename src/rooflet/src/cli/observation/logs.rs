//! `rooflet logs`

mod agents;
mod deployment;
mod gateways;
mod lines;
mod since;

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use camino::Utf8PathBuf;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use self::agents::Agents;
use self::deployment::Deployment;
use self::gateways::Selection;
use self::lines::prefixed_lines;
use self::since::Since;
use crate::cli::ui::duration::positive_duration;
use crate::cli::{Failure, default_data_dir, objects, ui};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::ApiError;

/// Name of the gateway as an argument.
const GATEWAY: &str = "gateway";

/// Arguments of `rooflet logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// mrep/NAME or NAME: a replica. mdep/NAME: all replicas of a deployment on all nodes, each line
    /// with the replica's name. `gateway`: the gateways on all nodes, each line with the node's name.
    #[arg(value_name = "mrep/NAME|mdep/NAME|gateway")]
    subject: String,
    /// Namespace of the replica or deployment. Default: the namespace of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Keep printing new log lines. With mdep/NAME, also of replicas that are created later. With
    /// mdep/NAME or `gateway`, a log continues after an interruption, for example a restart of the
    /// agent. Lines that are written during the interruption are not printed.
    #[arg(long, short)]
    follow: bool,
    /// Start with the last N lines of each log; -1 prints the whole log.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    tail: Option<i64>,
    /// Print only lines that are not older than this duration, such as 15m.
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    since: Option<Duration>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
    /// With `gateway`: read only the gateway's log in this data directory of `rooflet up`. If no API
    /// server answers, the default is ~/.rooflet.
    #[arg(long, value_name = "DIR", env = "ROOFLET_DATA_DIR", value_parser = crate::cli::directory("ROOFLET_DATA_DIR"))]
    data_dir: Option<Utf8PathBuf>,
}

/// Process whose log is printed.
#[derive(Debug, PartialEq, Eq)]
enum Subject {
    Replica(String),
    Deployment(String),
    Gateway,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let connection = |args: &Args| objects::client(args.kubeconfig.clone());
    match subject(&args.subject)? {
        Subject::Gateway => print_gateways(&args).await?,
        Subject::Deployment(name) => print_deployment(&args, connection(&args).await?, &name).await?,
        Subject::Replica(name) => print_replica(&args, connection(&args).await?, &name).await?,
    }
    Ok(())
}

fn subject(text: &str) -> Result<Subject, Failure> {
    if text == GATEWAY {
        return Ok(Subject::Gateway);
    }
    if text.contains('/')
        && let Ok(name) = objects::name_of::<ModelDeployment>(text)
    {
        return Ok(Subject::Deployment(name.to_owned()));
    }
    match objects::name_of::<ModelReplica>(text) {
        Ok(name) => Ok(Subject::Replica(name.to_owned())),
        Err(_) => Err(Failure::new(
            ExitStatus::Usage,
            anyhow!(
                "`{text}` has no log: use mrep/NAME, mdep/NAME or gateway; `kubectl get mdep,mrep` lists names"
            ),
        )),
    }
}

/// Prints the logs of the gateways on all nodes, or of the gateway that `rooflet up` runs on this machine.
async fn print_gateways(args: &Args) -> anyhow::Result<()> {
    let selection = Selection {
        follow: args.follow,
        tail: args.tail,
        since: since(args),
    };
    let file = |data_dir: Utf8PathBuf| data_dir.join("logs/gateway.log");
    if let (Some(data_dir), None) = (&args.data_dir, &args.kubeconfig) {
        let path = file(data_dir.clone());
        if !path.exists() {
            bail!("`{path}` does not exist: --data-dir must be the data directory of `rooflet up`");
        }
        return gateways::print_file(path, selection).await;
    }
    let listed = match objects::client(args.kubeconfig.clone()).await {
        Ok(client) => gateways::nodes_with_gateway(&client)
            .await
            .map(|nodes| (client, nodes))
            .map_err(anyhow::Error::from),
        Err(failure) => Err(failure.error),
    };
    let own = file(default_data_dir());
    match listed {
        Ok((client, nodes)) if !nodes.is_empty() => gateways::print(client, nodes, selection).await,
        Ok(_) if own.exists() && args.kubeconfig.is_none() => gateways::print_file(own, selection).await,
        Ok(_) => bail!(
            "no node serves the log of a gateway: start the agent beside the gateway with --gateway-log FILE; the log \
             of a gateway in a pod is in `kubectl logs`"
        ),
        Err(err) if own.exists() && args.kubeconfig.is_none() => {
            ui::progress(&format!(
                "showing the gateway of this machine only, because the API server did not list the nodes: {err:#}"
            ));
            gateways::print_file(own, selection).await
        }
        Err(err) => Err(err),
    }
}

/// Returns the time of the first line to print.
fn since(args: &Args) -> Since {
    let now = Clock::System.now();
    Since(
        args.since
            .map(|age| now.checked_sub(age).unwrap_or(Timestamp::MIN)),
    )
}

async fn print_replica(args: &Args, client: Client, name: &str) -> anyhow::Result<()> {
    let namespace = objects::namespace(args.namespace.clone(), &client);
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), &namespace);
    let replica = replicas.get_opt(name).await.map_err(ApiError::from)?;
    let replica = replica.ok_or_else(|| {
        anyhow!(
            "no ModelReplica {name} in namespace {namespace}; `kubectl get mrep -A` lists them, and \
             `rooflet logs mdep/NAME` prints all replicas of a deployment"
        )
    })?;
    let agents = Agents::new(client);
    let log = agents.log(&replica, args.follow, args.tail).await?;
    copy(since(args).filter_bytes(log)).await
}

/// Prints the logs of all replicas of a deployment.
async fn print_deployment(args: &Args, client: Client, name: &str) -> anyhow::Result<()> {
    let namespace = objects::namespace(args.namespace.clone(), &client);
    let replicas: Api<ModelReplica> = Api::namespaced(client.clone(), &namespace);
    let of_deployment = ListParams::default().labels(&format!("{DEPLOYMENT_LABEL}={name}"));
    let found = replicas.list(&of_deployment).await.map_err(ApiError::from)?;
    let mut found = found.items;
    if found.is_empty() {
        bail!(
            "ModelDeployment {name} in namespace {namespace} has no replicas; `kubectl get mdep -A` lists deployments"
        );
    }
    if args.follow {
        let of = Deployment {
            name: name.to_owned(),
            deployments: Api::namespaced(client.clone(), &namespace),
            replicas,
        };
        return deployment::follow(of, Agents::new(client), args.tail, since(args)).await;
    }
    found.sort_by_key(ResourceExt::name_any);
    let agents = Agents::new(client);
    let mut failed = 0;
    let mut logs = Vec::new();
    for replica in &found {
        match agents.log(replica, false, args.tail).await {
            Ok(log) => logs.push(since(args).filter(prefixed_lines(replica.name_any(), log).boxed())),
            Err(err) => {
                failed += 1;
                ui::progress(&format!("{}: {err:#}", replica.name_any()));
            }
        }
    }
    copy(futures::stream::iter(logs).flatten()).await?;
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} replicas have no readable log", found.len()),
    }
}

/// Prints bytes as they arrive.
async fn copy<B: AsRef<[u8]>>(bytes: impl Stream<Item = anyhow::Result<B>>) -> anyhow::Result<()> {
    let mut bytes = std::pin::pin!(bytes);
    while let Some(chunk) = bytes.next().await {
        if output(chunk?.as_ref())?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Prints bytes. Breaks if standard output is closed.
fn output(bytes: &[u8]) -> anyhow::Result<ControlFlow<()>> {
    ui::output_bytes(bytes).context("writing to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_a_replica_a_deployment_or_the_gateway() {
        let parse = |text| subject(text).map_err(|failure| failure.error.to_string());
        assert_eq!(parse("guide-x"), Ok(Subject::Replica("guide-x".to_owned())));
        assert_eq!(parse("mrep/guide-x"), Ok(Subject::Replica("guide-x".to_owned())));
        assert_eq!(parse("mdep/guide"), Ok(Subject::Deployment("guide".to_owned())));
        let long = "modeldeployment.rooflet.dev/guide";
        assert_eq!(parse(long), Ok(Subject::Deployment("guide".to_owned())));
        assert_eq!(parse("gateway"), Ok(Subject::Gateway));
        for wrong in ["pod/x", "mdep/", "mrep/"] {
            let message = parse(wrong).unwrap_err();
            assert!(
                message.contains("use mrep/NAME, mdep/NAME or gateway"),
                "{message}"
            );
        }
    }
}
