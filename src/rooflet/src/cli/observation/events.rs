//! `rooflet events`

mod timeline;

use std::time::Duration;

use anyhow::anyhow;
use camino::Utf8PathBuf;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use self::timeline::{Focus, Objects, Timeline};
use crate::cli::ui::Table;
use crate::cli::ui::duration::positive_duration;
use crate::cli::ui::output::Output;
use crate::cli::{Failure, objects};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::ApiError;

/// Namespace of the events of cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";

/// Arguments of `rooflet events`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of the period before now, such as 90m or 3h.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = positive_duration)]
    since: Duration,
    /// Print only entries about this object and related ones: mdep/NAME with its replicas and their
    /// nodes, mrep/NAME with its deployment and node, or mac/NAME with its replicas.
    #[arg(long, value_name = "KIND/NAME")]
    around: Option<String>,
    /// Namespace. Default: the namespace of the kubeconfig's context.
    #[arg(long, short)]
    namespace: Option<String>,
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let focus = args.around.as_deref().map(focus).transpose()?;
    let client = objects::client(args.kubeconfig).await?;
    let namespace = objects::namespace(args.namespace, &client);
    let found = read(&client, &namespace).await?;
    if let Some(focus) = &focus
        && !found.has(focus)
    {
        let missing = anyhow!("namespace {namespace} has no {focus}, and no event about it");
        return Err(missing.into());
    }
    let now = Clock::System.now();
    let since = now.checked_sub(args.since).unwrap_or(Timestamp::MIN);
    let timeline = Timeline::new(&found, focus.as_ref(), since);
    args.output.print(&timeline, || Ok(text(&timeline)))?;
    Ok(())
}

fn text(timeline: &Timeline) -> String {
    let mut table = Table::new(["TIME", "OBJECT", "FROM", "REASON", "MESSAGE"]);
    for entry in &timeline.entries {
        table.add_row([
            entry.time.to_string(),
            entry.object.clone(),
            entry.from.to_string(),
            entry.reason.clone(),
            entry.message.clone(),
        ]);
    }
    match table.is_empty() {
        true => "No events, changed conditions or exits in this period.\n".to_owned(),
        false => format!("{table}\n"),
    }
}

/// Parses the object of `--around`.
fn focus(text: &str) -> Result<Focus, Failure> {
    let kind = text.split_once('/').map_or("", |(kind, _)| kind);
    let is = |found: Result<&str, Failure>| found.ok().filter(|_| !kind.is_empty()).map(str::to_owned);
    let deployment = is(objects::name_of::<ModelDeployment>(text)).map(Focus::Deployment);
    let replica = || is(objects::name_of::<ModelReplica>(text)).map(Focus::Replica);
    let node = || is(objects::name_of::<FleetNode>(text)).map(Focus::Node);
    deployment.or_else(replica).or_else(node).ok_or_else(|| {
        let wrong = anyhow!("--around {text}: must be mdep/NAME, mrep/NAME or mac/NAME");
        Failure::new(ExitStatus::Usage, wrong)
    })
}

async fn read(client: &Client, namespace: &str) -> Result<Objects, ApiError> {
    let mut events = list::<Event>(Api::namespaced(client.clone(), namespace)).await?;
    if namespace != CLUSTER_NAMESPACE {
        let of_nodes = list::<Event>(Api::namespaced(client.clone(), CLUSTER_NAMESPACE)).await?;
        events.extend(of_nodes.into_iter().filter(timeline::is_about_a_node));
    }
    Ok(Objects {
        deployments: list(Api::namespaced(client.clone(), namespace)).await?,
        replicas: list(Api::namespaced(client.clone(), namespace)).await?,
        nodes: list(Api::all(client.clone())).await?,
        events,
    })
}

async fn list<K>(api: Api<K>) -> Result<Vec<K>, ApiError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(api.list(&ListParams::default()).await?.items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_object_of_a_timeline() {
        let parse = |text| focus(text).map(|focus| focus.to_string());
        assert_eq!(parse("mdep/guide").unwrap(), "ModelDeployment guide");
        assert_eq!(parse("modelreplica/guide-1").unwrap(), "ModelReplica guide-1");
        assert_eq!(parse("mac/mini-1").unwrap(), "FleetNode mini-1");
        for wrong in ["guide", "pod/guide", "mdep/", ""] {
            let failure = parse(wrong).unwrap_err();
            assert_eq!(failure.status, ExitStatus::Usage, "{wrong}");
        }
    }
}
