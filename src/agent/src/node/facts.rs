//! The facts that a node's status and conditions are made from.

use super::probe::ProbeState;
use crate::reports::Reports;
use rooflet_base::units::Bytes;
use rooflet_host::{Disk, Identity, Memory, Power, Presence};

/// What a node's status is made from.
#[derive(Debug, Clone)]
pub struct NodeFacts<'a> {
    pub identity: &'a Identity,
    pub machine_id: &'a str,
    pub memory: Memory,
    pub disk: Option<Disk>,
    pub power: Power,
    pub presence: Presence,
    /// Wired memory that did not come back after the last worker, where the system tells.
    pub stranded: Option<Bytes>,
    /// It is a time of day at which the machine is not to serve.
    pub quiet: bool,
    pub endpoint: &'a str,
    pub probe: &'a ProbeState,
    pub reports: &'a Reports,
    pub generation: Option<i64>,
    /// The agent is stopping: nothing new should come here.
    pub stopping: bool,
}
