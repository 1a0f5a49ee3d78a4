//! `rooflet logs`

mod agents;
mod deployment;
mod lines;

use std::ops::ControlFlow;

use anyhow::{Context, anyhow, bail};
use camino::Utf8PathBuf;
use futures::{Stream, StreamExt};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use self::agents::Agents;
use self::deployment::Deployment;
use self::lines::prefixed_lines;
use crate::cli::{Failure, default_data_dir, objects, ui};
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_base::error::ExitStatus;
use rooflet_client::ApiError;
use rooflet_process::logs::{From, Log, stream};

/// Name of the gateway as an argument.
const GATEWAY: &str = "gateway";

/// Arguments of `rooflet logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// mrep/NAME or NAME: a replica. mdep/NAME: all replicas of a deployment on all nodes, each line
    /// with the replica's name. `gateway`: the gateway of `rooflet up` on this machine.
    #[arg(value_name = "mrep/NAME|mdep/NAME|gateway")]
    subject: String,
    /// Namespace of the replica or deployment. Default: the namespace of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Keep printing new log lines. With mdep/NAME, also of replicas that are created later.
    #[arg(long, short)]
    follow: bool,
    /// Start with the last N lines of each log; -1 prints the whole log.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    tail: Option<i64>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
    /// With `gateway`: the data directory of `rooflet up` [default: ~/.rooflet].
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
        Subject::Gateway => print_gateway(&args).await?,
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

/// Prints the log of the gateway that `rooflet up` runs on this machine.
async fn print_gateway(args: &Args) -> anyhow::Result<()> {
    let data_dir = args.data_dir.clone().unwrap_or_else(default_data_dir);
    let log = Log::new(data_dir.join("logs/gateway.log"));
    let from = match args.tail.and_then(|lines| usize::try_from(lines).ok()) {
        Some(lines) => From::LastLines(lines),
        None => From::Start,
    };
    let reader = log.read(from).with_context(|| {
        format!(
            "reading `{}`: `rooflet up` writes this file; pass its --data-dir. The gateway of `rooflet server` logs to the \
             server's standard error",
            log.path()
        )
    })?;
    copy(stream(reader, args.follow).map(|chunk| chunk.context("reading the log"))).await
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
    copy(agents.log(&replica, args.follow, args.tail).await?).await
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
        return deployment::follow(of, Agents::new(client), args.tail).await;
    }
    found.sort_by_key(ResourceExt::name_any);
    let agents = Agents::new(client);
    let mut failed = 0;
    let mut logs = Vec::new();
    for replica in &found {
        match agents.log(replica, false, args.tail).await {
            Ok(log) => logs.push(Box::pin(prefixed_lines(replica.name_any(), log))),
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
