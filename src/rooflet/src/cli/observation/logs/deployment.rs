//! Logs of a deployment's replicas, also of replicas that are created later.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};

use super::agents::Agents;
use super::lines::prefixed_lines;
use super::since::Since;
use crate::cli::ui;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_client::ApiError;

/// Objects of a deployment.
pub(super) struct Deployment {
    pub(super) name: String,
    pub(super) deployments: Api<ModelDeployment>,
    pub(super) replicas: Api<ModelReplica>,
}

/// Line of a log, or the error that ended the log.
type Line = (Uid, anyhow::Result<Vec<u8>>);

type Uid = String;

/// Log of a replica.
#[derive(Debug, Default)]
struct LogState {
    name: String,
    /// True until the log ends with an error. A log that ended is not requested again.
    is_requested: bool,
    /// True if a part of the log was printed.
    has_lines: bool,
    /// True if the replica existed at the first list.
    is_initial: bool,
    /// Last error message.
    printed: String,
}

impl LogState {
    /// Returns the number of old lines to print: those of a replica that was created later are all
    /// new, and an interrupted log continues.
    fn tail(&self, tail: Option<i64>) -> Option<i64> {
        match (self.has_lines, self.is_initial) {
            (true, _) => Some(0),
            (false, true) => tail,
            (false, false) => None,
        }
    }
}

/// Prints new lines of all replicas until the deployment is deleted.
pub(super) async fn follow(
    of: Deployment,
    agents: Agents,
    tail: Option<i64>,
    since: Since,
) -> anyhow::Result<()> {
    let selector = watcher::Config::default().labels(&format!("{DEPLOYMENT_LABEL}={}", of.name));
    let mut changes = std::pin::pin!(watcher(of.replicas.clone(), selector).default_backoff());
    let mut logs: SelectAll<BoxStream<'static, Line>> = SelectAll::new();
    let mut states: BTreeMap<Uid, LogState> = BTreeMap::new();
    let (agents, mut is_first_list) = (Arc::new(agents), true);
    loop {
        let change = tokio::select! {
            Some(line) = logs.next() => {
                if print(&mut states, line)? {
                    return Ok(());
                }
                continue;
            }
            change = changes.next() => change,
        };
        match change {
            Some(Ok(Event::InitApply(replica) | Event::Apply(replica))) => {
                let Some(uid) = replica.uid().filter(|_| replica.spec.node_name.is_some()) else {
                    continue;
                };
                let state = states.entry(uid.clone()).or_insert_with(|| LogState {
                    name: replica.name_any(),
                    is_initial: is_first_list,
                    ..LogState::default()
                });
                if !state.is_requested {
                    state.is_requested = true;
                    let tail = state.tail(tail);
                    logs.push(request(uid, Arc::clone(&agents), replica, tail, since));
                }
            }
            Some(Ok(Event::Init)) => {}
            Some(Ok(Event::InitDone)) => is_first_list = false,
            Some(Ok(Event::Delete(_))) => {
                let found = of.deployments.get_opt(&of.name).await;
                let found = found.map_err(ApiError::from)?;
                if found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()) {
                    break;
                }
            }
            Some(Err(err)) => match ApiError::from(&err) {
                // The watch restarts.
                err if err.is_transient() => {}
                err => return Err(err.into()),
            },
            None => break,
        }
    }
    while let Some(line) = logs.next().await {
        if print(&mut states, line)? {
            break;
        }
    }
    Ok(())
}

/// Requests the log of a replica from the agent of its node.
fn request(
    uid: Uid,
    agents: Arc<Agents>,
    replica: ModelReplica,
    tail: Option<i64>,
    since: Since,
) -> BoxStream<'static, Line> {
    let name = replica.name_any();
    let bytes = async move { agents.log(&replica, true, tail).await };
    let bytes = futures::stream::once(bytes).try_flatten();
    since
        .filter(prefixed_lines(name, bytes).boxed())
        .map(move |line| (uid.clone(), line))
        .boxed()
}

/// Prints a line, or an error once. Returns true if standard output is closed.
fn print(states: &mut BTreeMap<Uid, LogState>, (uid, line): Line) -> anyhow::Result<bool> {
    let Some(state) = states.get_mut(&uid) else {
        return Ok(false);
    };
    match line {
        Ok(line) => {
            state.has_lines = true;
            Ok(super::output(&line)?.is_break())
        }
        Err(err) => {
            // The next change of the replica requests the log again.
            state.is_requested = false;
            let message = format!("{}: {err:#}", state.name);
            if state.printed != message {
                ui::progress(&message);
                state.printed = message;
            }
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_of_the_first_list_start_at_the_tail() {
        let mut state = LogState::default();
        assert_eq!(state.tail(Some(5)), None);
        state.is_initial = true;
        assert_eq!(state.tail(Some(5)), Some(5));
        state.has_lines = true;
        assert_eq!(state.tail(Some(5)), Some(0));
    }

    #[test]
    fn interrupted_log_is_requested_again() {
        let state = LogState {
            is_requested: true,
            ..LogState::default()
        };
        let mut states = BTreeMap::from([("u".to_owned(), state)]);
        let line = ("u".to_owned(), Err(anyhow::anyhow!("interrupted")));
        assert!(!print(&mut states, line).unwrap());
        assert!(!states["u"].is_requested);
    }
}
