//! Facts from which the node's status and conditions are derived.

use super::probe::ProbeState;
use crate::reports::Reports;
use rooflet_base::units::Bytes;
use rooflet_host::{Disk, Identity, Memory, Power, Presence};

/// Facts from which a node's status is derived.
#[derive(Debug, Clone)]
pub struct NodeFacts<'a> {
    pub identity: &'a Identity,
    pub machine_id: &'a str,
    pub memory: Memory,
    pub disk: Option<Disk>,
    pub power: Power,
    pub presence: Presence,
    /// Wired memory that was not freed after the last worker exited. `None` if the system does not
    /// report it.
    pub leaked: Option<Bytes>,
    /// True during quiet hours.
    pub quiet: bool,
    /// True if the engine has kernels for the matrix units of GPUs. `None` if workers do not compute
    /// on a GPU of this machine.
    pub matrix_unit_kernels: Option<bool>,
    /// True if every client that reaches the machine over the network can send requests.
    pub is_anonymous: bool,
    /// Description of another agent that uses the name and the credentials of the node.
    pub other_agent: Option<String>,
    pub endpoint: &'a str,
    /// True if the agent serves the log of a gateway on this machine.
    pub has_gateway_log: bool,
    pub probe: &'a ProbeState,
    pub reports: &'a Reports,
    pub generation: Option<i64>,
    /// True if the agent is stopping, so that the node must not receive new replicas.
    pub stopping: bool,
}
