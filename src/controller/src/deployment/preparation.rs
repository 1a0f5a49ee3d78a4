//! Models that come to nodes before what runs there goes: where a replica is replaced in place, its successor would be
//! missing for as long as the download takes.

use std::collections::BTreeSet;

use super::admission::named;
use super::revision::Current;
use rooflet_api::meta::PREPARE_ANNOTATION;
use rooflet_api::v1alpha1::ModelReplica;
use rooflet_base::units::Bytes;
use rooflet_scheduler::Fleet;

/// What replicas are replaced by, where that has to be downloaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preparation<'a> {
    fleet: &'a Fleet,
    /// As nodes list it.
    model: &'a str,
    bytes: Bytes,
}

impl<'a> Preparation<'a> {
    /// `None` where nothing has to be downloaded.
    pub(super) fn of(target: &'a Current<'_>, fleet: &'a Fleet) -> Option<Self> {
        let artifact = target.spec.artifact.as_ref()?;
        Some(Self {
            fleet,
            model: &artifact.model.name,
            bytes: Bytes(artifact.download_bytes),
        })
    }

    /// Whether nothing is gained by waiting: the replica's node has the model, or gets it not while the replica is there.
    pub(super) fn is_done(&self, replica: &ModelReplica) -> bool {
        let name = replica.spec.node_name.as_deref();
        let Some(node) = name.and_then(|name| self.fleet.node(name)) else {
            return true;
        };
        let has_room = node.node_disk().is_none_or(|disk| self.bytes <= disk.free);
        let has_it = node.models().iter().any(|model| model.name == self.model);
        node.not_ready.is_some() || !has_room || has_it
    }

    /// What the replica's agent is to get, if anything: what it was told stands until the replica goes.
    pub(super) fn wanted_by(&self, replica: &ModelReplica, unprepared: &[&ModelReplica]) -> Option<&'a str> {
        let is_told = asked(replica) == Some(self.model);
        let is_new = unprepared.iter().any(|one| std::ptr::eq(*one, replica));
        (is_told || is_new).then_some(self.model)
    }

    pub(super) fn message(&self, unprepared: &[&ModelReplica]) -> String {
        let nodes = unprepared
            .iter()
            .filter_map(|replica| replica.spec.node_name.clone());
        let nodes: BTreeSet<_> = nodes.collect();
        let (nodes, model) = (named(nodes.into_iter().collect()), self.model);
        format!("the replicas of {nodes} stay until {model} is downloaded there")
    }
}

/// What the replica's agent was asked to get.
pub(super) fn asked(replica: &ModelReplica) -> Option<&str> {
    let annotations = replica.metadata.annotations.as_ref()?;
    annotations.get(PREPARE_ANNOTATION).map(String::as_str)
}
