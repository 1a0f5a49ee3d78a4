//! Logs of the gateways on all machines of the fleet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use camino::Utf8PathBuf;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::agents::Agents;
use super::lines::prefixed_lines;
use super::since::Since;
use crate::cli::ui;
use rooflet_api::v1alpha1::FleetNode;
use rooflet_client::ApiError;
use rooflet_process::logs::{From, Log, stream as log_stream};

/// Delay before a followed log that ended is requested again: the agent or the machine restarts.
const RETRY: Duration = Duration::from_secs(2);

/// Selection of log lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selection {
    pub(super) follow: bool,
    pub(super) tail: Option<i64>,
    pub(super) since: Since,
}

/// Returns the names of the nodes whose agents serve the log of a gateway.
pub(super) async fn nodes_with_gateway(client: &Client) -> Result<Vec<String>, ApiError> {
    let nodes: Api<FleetNode> = Api::all(client.clone());
    let listed = nodes.list(&ListParams::default()).await?;
    Ok(with_gateway(&listed.items))
}

fn with_gateway(nodes: &[FleetNode]) -> Vec<String> {
    let serves = |node: &&FleetNode| node.status.as_ref().is_some_and(|status| status.gateway_log);
    let mut names: Vec<String> = nodes.iter().filter(serves).map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// Prints the logs of these nodes, each line with the name of its node.
pub(super) async fn print(client: Client, nodes: Vec<String>, selection: Selection) -> anyhow::Result<()> {
    let agents = Arc::new(Agents::new(client));
    let count = nodes.len();
    let logs = nodes
        .into_iter()
        .map(|node| lines_of(Arc::clone(&agents), node, selection));
    // Lines of followed logs are printed as they arrive, otherwise one log after the other.
    let mut lines = match selection.follow {
        true => stream::select_all(logs).boxed(),
        false => stream::iter(logs).flatten().boxed(),
    };
    let mut problems = Problems::default();
    while let Some((node, line)) = lines.next().await {
        match line {
            Ok(line) => {
                if super::output(&line)?.is_break() {
                    return Ok(());
                }
            }
            Err(err) => {
                if let Some(message) = problems.add(node, &err) {
                    ui::progress(&message);
                }
            }
        }
    }
    match problems.last.len() {
        0 => Ok(()),
        failed => bail!("{failed} of {count} gateways have no readable log"),
    }
}

/// Last error of each node.
#[derive(Debug, Default)]
struct Problems {
    last: BTreeMap<String, String>,
}

impl Problems {
    /// Returns the message to print, unless the last error of the node was the same.
    fn add(&mut self, node: String, err: &anyhow::Error) -> Option<String> {
        let message = format!("{node}: {err:#}");
        let before = self.last.insert(node, message.clone());
        (before.as_ref() != Some(&message)).then_some(message)
    }
}

type Line = (String, anyhow::Result<Vec<u8>>);

/// Returns the lines of a node's gateway. A followed log continues after an interruption, without
/// the lines that were written meanwhile.
fn lines_of(agents: Arc<Agents>, node: String, selection: Selection) -> BoxStream<'static, Line> {
    let name = node.clone();
    let requests = stream::unfold(Some(selection.tail), move |tail| {
        let (agents, name) = (Arc::clone(&agents), name.clone());
        async move {
            let tail = tail?;
            let log = agents.gateway_log(&name, selection.follow, tail).await;
            let lines = prefixed_lines(name, stream::once(async move { log }).try_flatten());
            let lines = selection.since.filter(lines.boxed());
            let next = selection.follow.then_some(Some(0));
            // The delay follows the last line.
            let pause = stream::once(async move {
                if selection.follow {
                    tokio::time::sleep(RETRY).await;
                }
            })
            .filter_map(|()| async { None });
            Some((lines.chain(pause), next))
        }
    });
    requests.flatten().map(move |line| (node.clone(), line)).boxed()
}

/// Prints the log file of the gateway that `rooflet up` runs on this machine.
pub(super) async fn print_file(path: Utf8PathBuf, selection: Selection) -> anyhow::Result<()> {
    let log = Log::new(path);
    let from = match selection.tail.and_then(|lines| usize::try_from(lines).ok()) {
        Some(lines) => From::LastLines(lines),
        None => From::Start,
    };
    let reader = log
        .read(from)
        .with_context(|| format!("reading `{}`", log.path()))?;
    let bytes = log_stream(reader, selection.follow).map(|chunk| chunk.context("reading the log"));
    super::copy(selection.since.filter_bytes(bytes.boxed())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_that_serve_a_gateway_log_are_read() {
        let node = |name: &str, gateway_log: bool| -> FleetNode {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "rooflet.dev/v1alpha1", "kind": "FleetNode", "metadata": {"name": name}, "spec": {},
                "status": {"gatewayLog": gateway_log},
            }))
            .unwrap()
        };
        let nodes = [node("mini-2", true), node("mini-3", false), node("mini-1", true)];
        assert_eq!(with_gateway(&nodes), ["mini-1", "mini-2"]);
    }

    #[test]
    fn repeated_error_of_a_node_is_printed_once() {
        let mut problems = Problems::default();
        let mut add =
            |node: &str, text: &str| problems.add(node.to_owned(), &anyhow::anyhow!(text.to_owned()));
        assert_eq!(add("a", "refused").as_deref(), Some("a: refused"));
        assert_eq!(add("a", "refused"), None);
        assert_eq!(add("b", "refused").as_deref(), Some("b: refused"));
        assert_eq!(add("a", "reset").as_deref(), Some("a: reset"));
    }
}
