//! Heartbeat of this machine's node after a sleep: the renewal of its Lease by the agent, as a watch
//! reports it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use kube::{Api, Client};

use crate::Settings;
use rooflet_agent::state::node_name_in;
use rooflet_api::meta::{LEASE_NAMESPACE, lease_name};
use rooflet_base::clock::{Clock, since};
use rooflet_base::error::Chain;
use rooflet_base::task::Tasks;
use rooflet_client::{Cache, Changes, KubeconfigSource, connect, watch};

/// Timeout until the Lease is known before the sleep.
const CONNECT: Duration = Duration::from_secs(10);

/// Watch of the Lease of this machine's node.
pub struct Heartbeat {
    name: String,
    leases: Cache<Lease>,
    changes: Changes,
    clock: Clock,
    tasks: Tasks,
}

/// First renewal of the Lease after a sleep, in times since the end of the sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// Time of the renewal by the agent.
    pub renewed: Duration,
    /// Time at which the watch reported the renewal.
    pub reported: Duration,
}

/// Reason why the heartbeat cannot be watched.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeartbeatError {
    #[error("the control plane cannot be reached")]
    Unreachable,
    #[error("the Lease of the node cannot be watched")]
    Unwatchable,
    #[error("the node has no Lease")]
    NoLease,
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

impl Heartbeat {
    /// Watches the Lease of the agent with this state directory. Returns `None` if no agent has used
    /// the directory.
    pub(super) async fn of_agent(settings: &Settings, clock: &Clock) -> Option<Result<Self, HeartbeatError>> {
        let node = node_name_in(&settings.state_dir).ok()??;
        let given = settings.kubeconfig.clone().map(KubeconfigSource::File);
        let source = given.unwrap_or_else(settings.default_kubeconfig);
        let connecting = tokio::time::timeout(CONNECT, connect(&source, &Clock::System));
        Some(match connecting.await {
            Ok(Ok(client)) => Self::watch(client, &node, clock).await,
            // The error contains paths and addresses, which the report must not contain.
            Ok(Err(err)) => {
                (settings.progress)(&format!("the API server cannot be reached: {}", Chain(&err)));
                Err(HeartbeatError::Unreachable)
            }
            Err(_) => Err(HeartbeatError::Unreachable),
        })
    }

    pub async fn watch(client: Client, node: &str, clock: &Clock) -> Result<Self, HeartbeatError> {
        let (name, tasks, changes) = (lease_name(node), Tasks::new(), Changes::new());
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let leases = watch(
            &tasks,
            Api::namespaced(client, LEASE_NAMESPACE),
            config,
            clock,
            &changes,
        );
        let heartbeat = Self {
            name,
            leases,
            changes,
            clock: clock.clone(),
            tasks,
        };
        let synced = tokio::time::timeout(CONNECT, heartbeat.leases.synced()).await;
        synced.map_err(|_| HeartbeatError::Unwatchable)?;
        match heartbeat.lease().is_some() {
            true => Ok(heartbeat),
            false => Err(HeartbeatError::NoLease),
        }
    }

    fn lease(&self) -> Option<std::sync::Arc<Lease>> {
        self.leases.get(Some(LEASE_NAMESPACE), &self.name)
    }

    fn renewed_at(&self) -> Option<Timestamp> {
        let lease = self.lease()?;
        Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
    }

    /// Waits for the first renewal after the end of a sleep. `None` if there is none in time.
    pub async fn renewal_after(&self, woken: Timestamp, timeout: Duration) -> Option<Renewal> {
        let mut changed_rx = self.changes.subscribe();
        let renewal = async {
            loop {
                let renewed = self.renewed_at().filter(|renewed| *renewed >= woken);
                if let Some(renewed) = renewed {
                    return Renewal {
                        renewed: since(renewed, woken),
                        reported: since(self.clock.now(), woken),
                    };
                }
                if changed_rx.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(timeout, renewal).await.ok()
    }
}
