//! The node agent, one per machine.
//!
//! The agent registers the machine and runs the replicas that are bound to it and the replicas of
//! its manifest directory. Each replica has its own worker process. The agent reports their state
//! to the API server.
//!
//! Tasks: the sync loop, the reporters of replicas and of the node, the restorer of replicas, the
//! Lease, the bandwidth probe, the reader of the manifest directory, the HTTP server, and one monitor
//! per worker.
//!
//! Invariants:
//! - No task waits for the API server. While the control plane is unreachable, the agent keeps
//!   running the last known replicas, across its own restarts too.
//! - The agent never binds a replica to a node. After the control plane was rebuilt, it creates the
//!   objects of its running replicas again, with their former binding. It repeats admission with
//!   live memory before it starts a worker.
//! - A replica's finalizer is removed only after its worker process has exited.

mod agent;
pub mod calibrator;
mod config;
mod connection;
mod control_plane;
mod credentials;
mod fleet;
mod manifests;
mod metrics;
pub mod models;
pub mod node;
mod platform;
pub mod replica;
mod reports;
mod running;
mod server;
pub mod state;
pub mod sync;
pub mod workers;

pub use agent::{Agent, StartAgentError};
pub use config::{AgentConfig, AgentTls, SimulatedEngine, SimulatedMachine};
pub use credentials::{NodeCredentials, NodeToken, TOKEN_LIFETIME};
pub use node::LEASE_PERIOD;
pub use node::quiet_hours::{ParseQuietHoursError, QuietHours};
pub use reports::Reports;
pub use running::RunAgentError;

/// Registers all metrics of the agent without starting it. The reference of metrics lists them.
pub fn register_metrics(registry: &rooflet_base::metrics::Registry) -> rooflet_base::metrics::Result<()> {
    metrics::AgentMetrics::register(registry).map(drop)
}
