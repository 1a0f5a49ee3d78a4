//! Report of one replica.

use super::DesiredReplica;
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};

/// Status of one replica that the agent reports to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub replica: DesiredReplica,
    pub status: ModelReplicaStatus,
    /// True if the object is being deleted and its worker has exited, so that the finalizer can be
    /// removed.
    pub release: bool,
}

impl Report {
    /// Returns true if the report describes an older generation than `object` has. Such a report is
    /// not written: it would overwrite the status of the newer generation. The next sync pass
    /// creates a new report.
    pub fn is_outdated(&self, object: &ModelReplica) -> bool {
        let reported = self.status.observed_generation;
        reported.is_some() && reported < object.metadata.generation
    }
}
