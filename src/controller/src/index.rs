//! Index of the objects that the reconcilers read, updated by the changes of the caches. One change
//! updates one entry, and wakes only the reconcilers whose plans may differ.

use std::collections::{BTreeSet, HashMap};

use super::deployment::{Affected, DeploymentIndex, is_leaving, labelled, refusal};
use super::fleet::{FollowedFleet, placement};
use super::node_lifecycle::{concerns_lifecycle, moves_to};
use super::queue::Priority;
use rooflet_api::conditions::{condition_type, is_true};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision, ReplicaPhase};
use rooflet_client::{Change, ObjectKey};

/// Objects by their relations; see the module documentation.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) fleet: FollowedFleet,
    pub(super) deployments: DeploymentIndex,
    /// Replicas on each node.
    residents: HashMap<String, BTreeSet<ObjectKey>>,
    /// Nodes whose state or replicas may require a step of the node lifecycle.
    eventful_nodes: BTreeSet<String>,
    /// Nodes that exist.
    nodes: BTreeSet<String>,
}

/// Reconcilers whose plans may differ after changes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Effects {
    pub(super) deployments: Affected,
    /// True if a fact changed on which the plan of any deployment can depend.
    pub(super) fleet: bool,
    pub(super) binder: bool,
    pub(super) autoscaler: bool,
    pub(super) node_lifecycle: bool,
}

impl Effects {
    fn add(&mut self, affected: Affected) {
        for (key, priority) in affected {
            let known = self.deployments.entry(key).or_insert(priority);
            *known = priority.min(*known);
        }
    }
}

impl Index {
    /// Creates an empty index. `reserve_node_failures` as in [`FollowedFleet::new`].
    pub(super) fn new(reserve_node_failures: usize) -> Self {
        Self {
            fleet: FollowedFleet::new(reserve_node_failures),
            deployments: DeploymentIndex::default(),
            residents: HashMap::new(),
            eventful_nodes: BTreeSet::new(),
            nodes: BTreeSet::new(),
        }
    }

    pub(super) fn apply_node(&mut self, change: &Change<FleetNode>, effects: &mut Effects) {
        let Change { key, object } = change;
        let was_eventful = self.eventful_nodes.contains(&key.name);
        let is_eventful = object.as_deref().is_some_and(concerns_lifecycle);
        let existed = self.nodes.contains(&key.name);
        match object {
            Some(_) => self.nodes.insert(key.name.clone()),
            None => self.nodes.remove(&key.name),
        };
        match is_eventful {
            true => self.eventful_nodes.insert(key.name.clone()),
            false => self.eventful_nodes.remove(&key.name),
        };
        // A new or deleted node can have replicas, and a new one has no Lease yet.
        effects.node_lifecycle |= was_eventful || is_eventful || existed != object.is_some();
        if self.fleet.set_node(key, object.as_ref()) {
            effects.fleet = true;
            effects.binder |= self.fleet.is_any_waiting();
            self.neighbours(&key.name, Priority::Dependent, effects);
        }
    }

    pub(super) fn apply_deployment(&mut self, change: &Change<ModelDeployment>, effects: &mut Effects) {
        let was_autoscaled = self.deployments.is_autoscaled(&change.key);
        let was_missing = self.deployments.are_replicas_missing();
        effects.add(
            self.deployments
                .set_deployment(&change.key, change.object.as_ref()),
        );
        effects.autoscaler |= was_autoscaled || self.deployments.is_autoscaled(&change.key);
        // Bindings may be delayed until the replicas exist, and evictions may wait for a
        // deployment's budget.
        effects.binder |= was_missing && !self.deployments.are_replicas_missing();
        effects.node_lifecycle |= !self.eventful_nodes.is_empty();
    }

    pub(super) fn apply_revision(&mut self, change: &Change<ModelRevision>, effects: &mut Effects) {
        effects.add(self.deployments.set_revision(&change.key, change.object.as_ref()));
    }

    pub(super) fn apply_replica(&mut self, change: &Change<ModelReplica>, effects: &mut Effects) {
        let Change { key, object } = change;
        let Some(before) = self.fleet.set_replica(key, object.as_ref()) else {
            return;
        };
        let was_missing = self.deployments.are_replicas_missing();
        let (old, new) = (before.as_deref(), object.as_deref());
        let affected = self.deployments.set_replica(key, object.as_ref());
        let priority = match old.map(milestone) == new.map(milestone) {
            true => Priority::Progress,
            false => Priority::Dependent,
        };
        let affected = affected.into_keys().map(|deployment| (deployment, priority));
        effects.add(affected.collect());
        effects.binder |= was_missing && !self.deployments.are_replicas_missing();
        let node = |replica: Option<&ModelReplica>| replica.and_then(|one| one.spec.node_name.clone());
        let (left, entered) = (node(old), node(new));
        if left != entered {
            if let Some(left) = &left
                && let Some(residents) = self.residents.get_mut(left)
            {
                residents.remove(key);
                if residents.is_empty() {
                    self.residents.remove(left);
                }
            }
            if let Some(entered) = &entered {
                let residents = self.residents.entry(entered.clone()).or_default();
                residents.insert(key.clone());
            }
        }
        let is_placement_changed = old.map(placement) != new.map(placement);
        if is_placement_changed {
            effects.binder |= self.fleet.is_any_waiting();
            for node in left.iter().chain(&entered) {
                self.neighbours(node, Priority::Resync, effects);
            }
        }
        let deployments = [old, new].into_iter().flatten().filter_map(labelled);
        effects.autoscaler |= deployments
            .into_iter()
            .any(|deployment| self.deployments.is_autoscaled(&deployment));
        let is_eventful = |replica: &ModelReplica| {
            is_leaving(replica)
                || moves_to(replica).is_some()
                || replica
                    .spec
                    .node_name
                    .as_ref()
                    .is_some_and(|node| !self.nodes.contains(node))
        };
        effects.node_lifecycle |=
            !self.eventful_nodes.is_empty() || [old, new].into_iter().flatten().any(is_eventful);
    }

    /// Adds the deployments with replicas on the node. They share its chip.
    fn neighbours(&self, node: &str, priority: Priority, effects: &mut Effects) {
        let residents = self.residents.get(node).into_iter().flatten();
        let replicas = residents.filter_map(|key| self.fleet.replicas().get(key));
        let deployments = replicas.filter_map(|replica| labelled(replica.as_ref()));
        effects.add(deployments.map(|deployment| (deployment, priority)).collect());
    }
}

/// Returns the facts about a replica after whose change its deployment must act. All others are steps
/// of a start.
fn milestone(replica: &ModelReplica) -> impl PartialEq {
    let status = replica.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    let meta = &replica.metadata;
    (
        (&meta.uid, &meta.labels, &meta.owner_references, &meta.annotations),
        meta.deletion_timestamp.is_some(),
        is_true(conditions, condition_type::READY),
        is_leaving(replica),
        refusal(replica).is_some(),
        status.map(|status| (status.phase == ReplicaPhase::Failed, status.restarts)),
    )
}

#[cfg(test)]
mod tests;
