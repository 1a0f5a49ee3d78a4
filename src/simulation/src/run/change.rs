//! Changes by users, and garbage collection.

use std::time::Duration;

use kube::ResourceExt;

use crate::run::Run;
use crate::scenario::ChangeWhat;
use crate::world::event::Event;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::intent::Version;

/// Delay before a change or a garbage collection is repeated after an outage of the API server.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl Run<'_> {
    pub(crate) fn change(&mut self, index: usize) {
        if self.network.is_out() {
            // The user repeats the change.
            self.world.after(RETRY_DELAY, Event::Change { index });
            return;
        }
        let what = self.world.scenario.changes[index].what.clone();
        let namespaced = |name: &String| (Some("default".to_owned()), name.clone());
        match what {
            ChangeWhat::Patch { deployment, spec } => {
                let Some(found) = self
                    .world
                    .store
                    .deployments
                    .get(&namespaced(&deployment))
                    .cloned()
                else {
                    return;
                };
                let mut next = serde_json::to_value(&found.spec).expect("a spec has only string keys");
                json_patch::merge(&mut next, &spec);
                let next = serde_json::from_value(self.world.policy.placed(next))
                    .expect("the spec is valid for the schema");
                let of = Version::of(found.as_ref());
                let changed = self
                    .world
                    .store
                    .update::<ModelDeployment>(&of, false, |found| found.spec = next);
                debug_assert!(changed.is_ok(), "the object exists");
            }
            ChangeWhat::Delete { deployment } => {
                if let Some(found) = self
                    .world
                    .store
                    .deployments
                    .get(&namespaced(&deployment))
                    .cloned()
                {
                    let now = self.world.clock();
                    drop(
                        self.world
                            .store
                            .delete::<ModelDeployment>(&Version::of(found.as_ref()), now),
                    );
                }
            }
            ChangeWhat::Cordon { node, cordoned } => {
                self.world
                    .change_node(&node, |node| node.spec.unschedulable = cordoned);
            }
            ChangeWhat::Drain { node, drain } => {
                self.world.change_node(&node, |node| node.spec.drain = drain)
            }
            ChangeWhat::Orphan { deployment } => self.world.orphan(&deployment),
            ChangeWhat::Annotate {
                deployment,
                key,
                value,
            } => {
                if let Some(found) = self
                    .world
                    .store
                    .deployments
                    .get(&namespaced(&deployment))
                    .cloned()
                {
                    let of = Version::of(found.as_ref());
                    let annotated = self.world.store.update::<ModelDeployment>(&of, false, |found| {
                        found.annotations_mut().insert(key, value);
                    });
                    debug_assert!(annotated.is_ok(), "the object exists");
                }
            }
            ChangeWhat::Taint { node, taints } => {
                self.world.change_node(&node, |node| node.spec.taints = taints)
            }
        }
        self.mark_observed(self.world.store.newest());
    }

    /// Deletes objects whose controller is deleted.
    pub(crate) fn collect_garbage(&mut self) {
        if self.network.is_out() {
            self.world.after(RETRY_DELAY, Event::CollectGarbage);
            return;
        }
        let owners: Vec<_> = self
            .world
            .store
            .deployments
            .values()
            .filter_map(|deployment| deployment.uid())
            .collect();
        let has_lost_owner = |meta: &kube::api::ObjectMeta| {
            let owner = meta
                .owner_references
                .iter()
                .flatten()
                .find(|owner| owner.controller == Some(true));
            owner.is_some_and(|owner| !owners.contains(&owner.uid)) && meta.deletion_timestamp.is_none()
        };
        let revisions: Vec<_> = self
            .world
            .store
            .revisions
            .values()
            .filter(|one| has_lost_owner(&one.metadata))
            .map(|one| Version::of(one.as_ref()))
            .collect();
        let replicas: Vec<_> = self
            .world
            .store
            .replicas
            .values()
            .filter(|one| has_lost_owner(&one.metadata))
            .map(|one| Version::of(one.as_ref()))
            .collect();
        let now = self.world.clock();
        for of in revisions {
            drop(self.world.store.delete::<ModelRevision>(&of, now));
        }
        for of in replicas {
            drop(self.world.store.delete::<ModelReplica>(&of, now));
        }
    }
}
