//! The node agent: one per machine. It registers the machine, runs the replicas bound to it (and those of its manifest
//! directory), each in a worker process of its own, and tells the API server how they fare.
//!
//! Tasks: the sync loop, the reporter of replicas, the reporter of the node, the Lease, the bandwidth probe, the reader
//! of the manifest directory, the HTTP server, one monitor per worker. Nothing of it waits for the API server: with the
//! control plane down the agent keeps running what it was last told, its own restarts included.

mod agent;
pub mod calibrator;
mod config;
mod control_plane;
mod credentials;
mod manifests;
mod metrics;
pub mod models;
pub mod node;
mod parts;
pub mod replica;
mod reports;
mod running;
mod server;
pub mod state;
pub mod sync;
pub mod workers;

pub use agent::{Agent, StartAgentError};
pub use config::{AgentConfig, SimulatedEngine, SimulatedMachine};
pub use credentials::NodeCredentials;
pub use node::LEASE_PERIOD;
pub use node::quiet_hours::{ParseQuietHoursError, QuietHours};
pub use reports::Reports;
pub use running::RunAgentError;
