//! The machine as a node of the fleet: its FleetNode, its Lease, and the observed state of the
//! machine.

mod conditions;
mod facts;
pub(crate) mod hardware;
pub(crate) mod holder;
pub(crate) mod lease;
pub mod pressure;
pub(crate) mod probe;
pub(crate) mod probe_record;
mod probe_schedule;
pub(crate) mod quiet_hours;
pub(crate) mod reporter;
mod status;
pub(crate) mod wired;

pub use self::facts::NodeFacts;
pub use self::lease::LEASE_PERIOD;
pub use self::probe::{ProbeState, last_report};
pub use self::status::node_status;
