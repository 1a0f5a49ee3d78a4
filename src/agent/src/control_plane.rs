//! The agent's connection to the API server: watches, reporters, and the final report of a stopping
//! agent.

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

/// Watches and event recorder of an agent that has an API server.
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
            replicas: watch_kind(tasks, Api::all(client.clone()), bound_here, clock, changes),
            nodes: watch_kind(tasks, Api::all(client.clone()), this_node, clock, changes),
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

    /// Starts the reporters of replicas and node, and the renewal of the Lease.
    pub(super) fn report(
        self,
        tasks: &Tasks,
        config: &AgentConfig,
        node: NodeReporter,
        changes: &Changes,
        reports_rx: watch::Receiver<Arc<Reports>>,
        stopping: &CancellationToken,
    ) -> FinalReport {
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
        // This task reports the node until the agent stops. The final report then writes once more.
        tasks.spawn_detached(node.clone().report(stopping.clone()));
        FinalReport {
            node,
            reports_rx,
            written_rx,
            keep_workers: config.keep_workers,
        }
    }
}

/// Last write of a stopping agent: the node's Ready condition and the last replica statuses.
pub(super) struct FinalReport {
    node: NodeReporter,
    reports_rx: watch::Receiver<Arc<Reports>>,
    written_rx: watch::Receiver<Arc<Reports>>,
    keep_workers: bool,
}

impl FinalReport {
    pub(super) async fn send(mut self) {
        if self.keep_workers {
            // The next agent process starts soon and adopts the workers.
            return;
        }
        if let Err(err) = self.node.report_stopping().await {
            warn!(error = %Chain(&err), "failed to report to the API server that the agent stops");
        }
        let last = self.reports_rx.latest();
        drop(self.written_rx.wait_for(|written| *written == last).await);
    }
}
