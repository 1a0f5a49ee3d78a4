//! The API server's side of an agent: what it hears from there, what it tells there, and what it says last.

use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::AgentConfig;
use crate::node::reporter::NodeReporter;
use crate::replica::reporter::Reporter;
use crate::reports::Reports;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_base::latest::Latest;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes, Recorder, watch as watch_kind};

/// See the module.
pub(super) struct ControlPlane {
    pub(super) client: Client,
    pub(super) replicas: Cache<ModelReplica>,
    pub(super) nodes: Cache<FleetNode>,
    pub(super) recorder: Recorder,
}

impl ControlPlane {
    pub(super) fn open(
        client: Client,
        tasks: &Tasks,
        clock: &Clock,
        config: &AgentConfig,
        changes: &Changes,
    ) -> Self {
        let bound_here = watcher::Config::default().fields(&format!("spec.nodeName={}", config.node_name));
        let this_node = watcher::Config::default().fields(&format!("metadata.name={}", config.node_name));
        Self {
            replicas: watch_kind(tasks, Api::all(client.clone()), bound_here, changes),
            nodes: watch_kind(tasks, Api::all(client.clone()), this_node, changes),
            recorder: Recorder::spawn(
                tasks,
                client.clone(),
                clock.clone(),
                "rooflet-agent",
                config.node_name.clone(),
            ),
            client,
        }
    }

    /// Starts whatever tells the API server something.
    pub(super) fn report(
        self,
        tasks: &Tasks,
        config: &AgentConfig,
        node: NodeReporter,
        changes: &Changes,
        reports_rx: watch::Receiver<Arc<Reports>>,
        stopping: &CancellationToken,
    ) -> Farewell {
        let (written_tx, written_rx) = watch::channel(Arc::<Reports>::default());
        let reporter = Reporter {
            client: self.client,
            node: config.node_name.clone(),
            cache: self.replicas,
            changes: changes.clone(),
            reports_rx: reports_rx.clone(),
            written_tx,
        };
        tasks.spawn_detached(reporter.run(tasks.stop_token()));
        tasks.spawn_detached(node.lease.clone().renew(tasks.stop_token()));
        // The node is reported as it is until the agent stops, and then once more by the farewell.
        tasks.spawn_detached(node.clone().report(stopping.clone()));
        Farewell {
            node,
            reports_rx,
            written_rx,
            keep_workers: config.keep_workers,
        }
    }
}

/// What is said last.
pub(super) struct Farewell {
    node: NodeReporter,
    reports_rx: watch::Receiver<Arc<Reports>>,
    written_rx: watch::Receiver<Arc<Reports>>,
    keep_workers: bool,
}

impl Farewell {
    pub(super) async fn say(mut self) {
        if self.keep_workers {
            // The next life is expected soon, and its replicas serve on.
            return;
        }
        if let Err(err) = self.node.say_stopping().await {
            warn!(error = %Chain(&err), "the API server does not know that the agent stops");
        }
        let last = self.reports_rx.latest();
        drop(self.written_rx.wait_for(|written| *written == last).await);
    }
}
