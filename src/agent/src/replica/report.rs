//! What is to be said of one replica.

use super::DesiredReplica;
use rooflet_api::v1alpha1::{ModelReplica, ModelReplicaStatus};

/// What is to be said of one replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub replica: DesiredReplica,
    pub status: ModelReplicaStatus,
    /// Nothing of it runs any more and it is being deleted: its finalizer may go.
    pub release: bool,
}

impl Report {
    /// It was made before the object became what it is now; the next pass makes another one. Written nevertheless, it
    /// would undo what was said of a higher generation.
    pub fn is_outdated(&self, object: &ModelReplica) -> bool {
        let made_for = self.status.observed_generation;
        made_for.is_some() && made_for < object.metadata.generation
    }
}
