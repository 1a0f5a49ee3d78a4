//! Tests of the nodes of a fleet: joining, draining, failure and the placement of their replicas.

mod api_writes;
mod ca_rotation;
mod control_plane_outage;
mod drain;
mod expired_certificate;
pub(crate) mod join;
mod manifest_dir;
pub(crate) mod mutual_tls;
mod network;
mod node_loss;
mod preemption;
mod probe_record;
mod rebalance;
mod rebuilt_control_plane;
mod revocation;
mod silent_node;
mod version_skew;
mod wrong_clock;
