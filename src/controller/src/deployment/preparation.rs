//! Downloads of the new model before a replica is replaced in place. Otherwise the replacement
//! would be unavailable for the duration of the download.

use std::collections::BTreeSet;

use super::admission::named;
use super::revision::Current;
use rooflet_api::meta::PREPARE_ANNOTATION;
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_base::units::Bytes;
use rooflet_scheduler::Fleet;

/// Model of the new revision that nodes must download.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preparation<'a> {
    fleet: &'a Fleet,
    /// Name in the nodes' model lists.
    model: &'a str,
    bytes: Bytes,
}

impl<'a> Preparation<'a> {
    /// Returns `None` if the revision needs no download.
    pub(super) fn of(target: &'a Current<'_>, fleet: &'a Fleet) -> Option<Self> {
        let artifact = target.spec.artifact.as_ref()?;
        Some(Self {
            fleet,
            model: &artifact.model.name,
            bytes: Bytes(artifact.download_bytes),
        })
    }

    /// Returns whether waiting is useless: the replica's node has the model, is not Ready, or has
    /// no disk space for the model beside the current one.
    pub(super) fn is_done(&self, replica: &ModelReplica) -> bool {
        let name = replica.spec.node_name.as_deref();
        let Some(node) = name.and_then(|name| self.fleet.node(name)) else {
            return true;
        };
        let has_room = node.node_disk().is_none_or(|disk| self.bytes <= disk.free);
        let has_model = node.models().iter().any(|model| model.name == self.model);
        node.not_ready.is_some() || !has_room || has_model
    }

    /// Returns the model that the replica's agent must download, if any. A request stays until the
    /// replica is deleted.
    pub(super) fn model_for(&self, replica: &ModelReplica, unprepared: &[&ModelReplica]) -> Option<&'a str> {
        let is_requested = requested_model(replica) == Some(self.model);
        let is_new = unprepared.iter().any(|other| std::ptr::eq(*other, replica));
        (is_requested || is_new).then_some(self.model)
    }

    pub(super) fn message(&self, unprepared: &[&ModelReplica]) -> String {
        let nodes = unprepared
            .iter()
            .filter_map(|replica| replica.spec.node_name.clone());
        let nodes: BTreeSet<_> = nodes.collect();
        let (nodes, model) = (named(nodes.into_iter().collect()), self.model);
        format!("the replicas on {nodes} are replaced after {model} is downloaded there")
    }
}

/// Returns the model that the replica's agent was requested to download.
pub(super) fn requested_model(replica: &ModelReplica) -> Option<&str> {
    let annotations = replica.metadata.annotations.as_ref()?;
    annotations.get(PREPARE_ANNOTATION).map(String::as_str)
}
