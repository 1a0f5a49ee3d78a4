//! Logs of a deployment's replicas, also of replicas that are created later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use futures::{FutureExt, StreamExt, TryStreamExt};
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

impl Deployment {
    /// Returns whether the deployment does not exist or is being deleted.
    async fn is_deleted(&self) -> Result<bool, ApiError> {
        let found = self.deployments.get_opt(&self.name).await?;
        Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
    }
}

/// Delay before a log that ended is requested again: the agent or the worker restarts.
const RETRY: Duration = Duration::from_secs(2);

/// Part of a log.
enum Part {
    /// Line, or the error that ended the log.
    Line(anyhow::Result<Vec<u8>>),
    /// The log ended, with or without an error.
    End,
}

type Uid = String;

/// Log of a replica.
#[derive(Debug)]
struct LogState {
    /// Replica as the watch last reported it. `None` after its deletion.
    replica: Option<ModelReplica>,
    name: String,
    /// True until the log has ended and the delay has passed.
    is_requested: bool,
    /// True if a part of the log was printed.
    has_lines: bool,
    /// True if the replica existed at the first list.
    is_initial: bool,
    /// Last error message.
    printed: String,
}

impl LogState {
    fn new(name: String, is_initial: bool) -> Self {
        Self {
            replica: None,
            name,
            is_requested: false,
            has_lines: false,
            is_initial,
            printed: String::new(),
        }
    }

    /// Returns the number of old lines to print. The lines of a replica that was created later are all new.
    /// After an interruption, the log continues with lines that are written after the request: no position
    /// in the log is known, so lines that were written since the interruption are skipped.
    fn tail(&self, tail: Option<i64>) -> Option<i64> {
        match (self.has_lines, self.is_initial) {
            (true, _) => Some(0),
            (false, true) => tail,
            (false, false) => None,
        }
    }
}

/// Logs of all replicas that the watch has reported.
#[derive(Default)]
struct Logs {
    states: BTreeMap<Uid, LogState>,
    has_list: bool,
}

impl Logs {
    /// Stores what the watch reports. Returns the UID of the replica if its log may be missing.
    fn apply(&mut self, event: Event<ModelReplica>) -> Option<Uid> {
        match event {
            Event::InitApply(replica) | Event::Apply(replica) => {
                let uid = replica.uid().filter(|_| replica.spec.node_name.is_some())?;
                let state = self.states.entry(uid.clone());
                let state = state.or_insert_with(|| LogState::new(replica.name_any(), !self.has_list));
                state.replica = Some(replica);
                Some(uid)
            }
            // The list has all replicas that exist.
            Event::Init => {
                self.states.values_mut().for_each(|state| state.replica = None);
                None
            }
            Event::InitDone => {
                self.has_list = true;
                None
            }
            Event::Delete(replica) => {
                let state = replica.uid().and_then(|uid| self.states.get_mut(&uid));
                state?.replica = None;
                None
            }
        }
    }

    /// Returns the replica and the number of old lines if its log is to be requested now.
    fn due(&mut self, uid: &Uid, tail: Option<i64>) -> Option<(ModelReplica, Option<i64>)> {
        let state = self.states.get_mut(uid).filter(|state| !state.is_requested)?;
        let replica = state.replica.clone()?;
        state.is_requested = true;
        Some((replica, state.tail(tail)))
    }

    /// Records that the log may be requested again.
    fn retry(&mut self, uid: &Uid) {
        if let Some(state) = self.states.get_mut(uid) {
            state.is_requested = false;
        }
    }

    /// Prints a line, or an error once. Returns true if standard output is closed.
    fn print(&mut self, uid: &Uid, line: anyhow::Result<Vec<u8>>) -> anyhow::Result<bool> {
        let Some(state) = self.states.get_mut(uid) else {
            return Ok(false);
        };
        match line {
            Ok(line) => {
                state.has_lines = true;
                Ok(super::output(&line)?.is_break())
            }
            Err(err) => {
                let message = format!("{}: {err:#}", state.name);
                if state.printed != message {
                    ui::progress(&message);
                    state.printed = message;
                }
                Ok(false)
            }
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
    let mut parts: SelectAll<BoxStream<'static, (Uid, Part)>> = SelectAll::new();
    let mut delays: FuturesUnordered<BoxFuture<'static, Uid>> = FuturesUnordered::new();
    let mut logs = Logs::default();
    let agents = Arc::new(agents);
    loop {
        let uid = tokio::select! {
            Some((uid, part)) = parts.next() => {
                match part {
                    Part::Line(line) => if logs.print(&uid, line)? {
                        return Ok(());
                    },
                    Part::End => delays.push(async move {
                        tokio::time::sleep(RETRY).await;
                        uid
                    }.boxed()),
                }
                None
            }
            Some(uid) = delays.next() => {
                logs.retry(&uid);
                Some(uid)
            }
            change = changes.next() => match change {
                Some(Ok(event)) => {
                    let is_deletion = matches!(event, Event::Delete(_));
                    let uid = logs.apply(event);
                    if is_deletion && of.is_deleted().await? {
                        break;
                    }
                    uid
                }
                Some(Err(err)) => match ApiError::from(&err) {
                    // The watch restarts.
                    err if err.is_transient() => None,
                    err => return Err(err.into()),
                },
                None => break,
            },
        };
        if let Some((uid, (replica, tail))) = uid.and_then(|uid| logs.due(&uid, tail).map(|due| (uid, due))) {
            parts.push(request(uid, Arc::clone(&agents), replica, tail, since));
        }
    }
    while let Some((uid, part)) = parts.next().await {
        if let Part::Line(line) = part
            && logs.print(&uid, line)?
        {
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
) -> BoxStream<'static, (Uid, Part)> {
    let name = replica.name_any();
    let bytes = async move { agents.log(&replica, true, tail).await };
    let bytes = stream::once(bytes).try_flatten();
    since
        .filter(prefixed_lines(name, bytes).boxed())
        .map(Part::Line)
        .chain(stream::once(async { Part::End }))
        .map(move |part| (uid.clone(), part))
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(uid: &str) -> ModelReplica {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "rooflet.dev/v1alpha1", "kind": "ModelReplica", "metadata": {"name": uid, "uid": uid},
            "spec": {"model": {"source": "local://guide"}, "serving": {"name": "guide"}, "nodeName": "mini"},
        }))
        .unwrap()
    }

    /// Returns the tail of a request that is due.
    fn due(logs: &mut Logs, uid: &str) -> Option<Option<i64>> {
        logs.due(&uid.to_owned(), Some(5)).map(|(_, tail)| tail)
    }

    #[test]
    fn only_replicas_of_the_first_list_start_at_the_tail() {
        let mut logs = Logs::default();
        logs.apply(Event::Init);
        assert_eq!(logs.apply(Event::InitApply(replica("a"))).as_deref(), Some("a"));
        logs.apply(Event::InitDone);
        assert_eq!(logs.apply(Event::Apply(replica("b"))).as_deref(), Some("b"));
        assert_eq!(due(&mut logs, "a"), Some(Some(5)));
        assert_eq!(due(&mut logs, "b"), Some(None));
        let mut unplaced = replica("c");
        unplaced.spec.node_name = None;
        assert_eq!(logs.apply(Event::Apply(unplaced)), None);
    }

    /// An agent that restarts ends the log without an error.
    #[test]
    fn ended_log_is_requested_again_while_the_replica_exists() {
        let mut logs = Logs::default();
        logs.apply(Event::InitDone);
        logs.apply(Event::Apply(replica("a")));
        assert_eq!(due(&mut logs, "a"), Some(None));
        logs.states.get_mut("a").unwrap().has_lines = true;
        logs.apply(Event::Apply(replica("a")));
        assert_eq!(due(&mut logs, "a"), None, "one request at a time");
        logs.print(&"a".to_owned(), Err(anyhow::anyhow!("interrupted")))
            .unwrap();
        logs.retry(&"a".to_owned());
        assert_eq!(due(&mut logs, "a"), Some(Some(0)), "the log continues");
        logs.apply(Event::Delete(replica("a")));
        logs.retry(&"a".to_owned());
        assert_eq!(due(&mut logs, "a"), None);
        // A deletion that the watch has missed.
        logs.apply(Event::Apply(replica("b")));
        logs.apply(Event::Init);
        logs.apply(Event::InitDone);
        assert_eq!(due(&mut logs, "b"), None);
    }
}
