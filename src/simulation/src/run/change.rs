//! What people change, and what the API server does after them.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;

use crate::run::Run;
use crate::scenario::ChangeWhat;
use crate::world::event::Event;
use rooflet_api::meta::CHANGE_CAUSE_ANNOTATION;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::intent::Version;
use rooflet_controller::is_template_of;

/// What the API server could not do is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Run<'_> {
    pub(crate) fn change(&mut self, index: usize) {
        if self.network.is_out() {
            // People try again.
            self.world.after(TRY_AGAIN, Event::Change { index });
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
                    .expect("the schema has let it through");
                let of = Version::of(found.as_ref());
                let changed = self
                    .world
                    .store
                    .update::<ModelDeployment>(&of, false, |found| found.spec = next);
                debug_assert!(changed.is_ok(), "it was just found");
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
                    debug_assert!(annotated.is_ok(), "it was just found");
                }
            }
            ChangeWhat::Taint { node, taints } => {
                self.world.change_node(&node, |node| node.spec.taints = taints)
            }
        }
        self.told(self.world.store.newest());
    }

    /// The revision of a deployment's template records the deployment's change cause.
    pub(crate) fn check_change_causes(&mut self) {
        let cause =
            |annotations: &BTreeMap<String, String>| annotations.get(CHANGE_CAUSE_ANNOTATION).cloned();
        let deployments: Vec<_> = self.world.store.deployments.values().cloned().collect();
        for deployment in &deployments {
            let Some(wanted) = cause(deployment.annotations()) else {
                continue;
            };
            let mut revisions = self.world.store.revisions.values();
            let revision = revisions.find(|revision| is_template_of(deployment, revision));
            if revision.is_some_and(|revision| cause(revision.annotations()) != Some(wanted.clone())) {
                let message = format!(
                    "the revision of {} has no cause `{wanted}`",
                    deployment.name_any()
                );
                self.break_rule("a revision records its change cause", message);
            }
        }
    }

    /// Objects whose controller is gone go, too.
    pub(crate) fn collect_garbage(&mut self) {
        if self.network.is_out() {
            self.world.after(TRY_AGAIN, Event::CollectGarbage);
            return;
        }
        let owners: Vec<_> = self
            .world
            .store
            .deployments
            .values()
            .filter_map(|deployment| deployment.uid())
            .collect();
        let orphaned = |meta: &kube::api::ObjectMeta| {
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
            .filter(|one| orphaned(&one.metadata))
            .map(|one| Version::of(one.as_ref()))
            .collect();
        let replicas: Vec<_> = self
            .world
            .store
            .replicas
            .values()
            .filter(|one| orphaned(&one.metadata))
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
