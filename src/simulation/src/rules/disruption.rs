//! Invariants: planned removals (rollouts and drains) keep `maxUnavailable` and `minThroughput`.
//!
//! A replica that was lost without the controller's knowledge counts as serving until the
//! controller could have observed the loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use crate::rules::Rules;
use crate::rules::bounds::{
    Bounds, LostReplica, PreviousBounds, Removal, evicts_unconditionally, is_serving,
};
use crate::world::World;
use crate::world::store::key;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{ModelDeployment, ModelReplica};
use rooflet_controller::intent::Deletion;

/// Age at which every process has observed a change.
const RETENTION: Duration = Duration::from_secs(900);

/// Relative difference of sums in another order and of figures rounded for display.
const TOLERANCE: f64 = 0.01;

/// Returns the predicted tokens per second of the serving replicas. Replicas on one chip share it.
/// Other workers are ignored, because the controller may not have observed them.
fn throughput<'a>(replicas: impl IntoIterator<Item = &'a Arc<ModelReplica>>) -> f64 {
    let mut chips: BTreeMap<Option<&str>, (f64, f64)> = BTreeMap::new();
    for replica in replicas.into_iter().filter(|replica| is_serving(replica)) {
        let admission = replica
            .status
            .as_ref()
            .and_then(|status| status.admission.as_ref());
        let Some(speed) = admission.and_then(|admission| admission.speed.as_ref()) else {
            continue;
        };
        let streams = f64::from(replica.spec.serving.max_concurrency);
        let (sum, count) = chips.entry(replica.spec.node_name.as_deref()).or_default();
        *sum += speed.tokens_per_second.p50 * streams;
        *count += 1.0;
    }
    chips.values().map(|(sum, count)| sum / count).sum()
}

impl Rules {
    /// Removes replicas that started to serve after `observed` and slow down a shared chip.
    fn without_newcomers(
        &self,
        mut replicas: Vec<Arc<ModelReplica>>,
        observed: Duration,
    ) -> Vec<Arc<ModelReplica>> {
        let new = self.serving_since.iter().filter(|(_, at)| **at >= observed);
        for (uid, _) in new {
            let without = replicas
                .iter()
                .filter(|replica| replica.uid().as_ref() != Some(uid));
            let without: Vec<_> = without.cloned().collect();
            if throughput(&without) > throughput(&replicas) {
                replicas = without;
            }
        }
        replicas
    }

    /// Records the previous bounds of a changed deployment.
    pub(super) fn note_bounds(&mut self, now: Duration, before: &ModelDeployment, after: &ModelDeployment) {
        let bounds = Bounds::of(before);
        if bounds != Bounds::of(after) {
            let previous = self.previous_bounds.entry(after.name_any()).or_default();
            previous.retain(|earlier| now.saturating_sub(earlier.until) < RETENTION);
            previous.push(PreviousBounds { until: now, bounds });
        }
    }

    /// Records a replica that stopped serving without the controller's knowledge.
    pub(crate) fn note_lost_replica(&mut self, now: Duration, replica: &Arc<ModelReplica>) {
        let lost = &mut self.lost_replicas;
        lost.retain(|lost| now.saturating_sub(lost.at) < RETENTION);
        lost.push(LostReplica {
            at: now,
            replica: replica.clone(),
        });
    }

    /// Returns true if the bounds protect the replica from an eviction: as far as the controller
    /// had observed, its node did not evict unconditionally.
    fn is_protected(&self, world: &World<'_>, replica: &ModelReplica, observed: Duration) -> bool {
        let name = replica.spec.node_name.clone().unwrap_or_default();
        let history = world
            .by_name
            .get(&name)
            .and_then(|index| self.node_history.get(index));
        let evicted_before =
            history.is_some_and(|history| history.evicting_until.is_some_and(|at| at >= observed));
        let node = world.store.nodes.get(&(None, name));
        !evicted_before && node.is_some_and(|node| !evicts_unconditionally(node))
    }

    /// Checks a removal that was planned with all changes before `observed`. With `acknowledged`,
    /// the controller receives the response.
    pub(crate) fn check_removal(
        &mut self,
        world: &World<'_>,
        observed: Duration,
        removal: &Removal,
        acknowledged: bool,
    ) {
        let replica = &removal.replica;
        if acknowledged {
            self.own_deletes.insert(replica.uid().unwrap_or_default());
        }
        let since = replica.uid().and_then(|uid| self.serving_since.get(&uid));
        if since.is_some_and(|at| *at >= observed) {
            // The replica started to serve after the plan.
            return;
        }
        if removal.why == Deletion::Eviction && !self.is_protected(world, replica, observed) {
            return;
        }
        let Some(name) = replica.labels().get(DEPLOYMENT_LABEL).cloned() else {
            return;
        };
        let Some(deployment) = world.store.deployments.get(&(replica.namespace(), name.clone())) else {
            return;
        };
        let is_ours = |replica: &&Arc<ModelReplica>| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name);
        let unobserved = self.lost_replicas.iter().filter(|lost| lost.at >= observed);
        let still_lost = |lost: &&LostReplica| {
            let found = world.store.replicas.get(&key(lost.replica.as_ref()));
            !found.is_some_and(|found| is_serving(found))
        };
        let serving = world
            .store
            .replicas
            .values()
            .filter(|replica| is_serving(replica));
        let left: Vec<_> = serving
            .chain(unobserved.filter(still_lost).map(|lost| &lost.replica))
            .filter(is_ours)
            .filter(|left| left.uid() != replica.uid())
            .cloned()
            .collect();
        let previous = self.previous_bounds.get(&name).into_iter().flatten();
        let previous = previous.filter(|previous| previous.until >= observed);
        let bounds: Vec<_> = previous
            .map(|previous| previous.bounds.clone())
            .chain([Bounds::of(deployment)])
            .collect();
        let min_available = bounds.iter().map(Bounds::min_available).min().unwrap_or(0);
        if left.len() < min_available {
            let message = format!(
                "the removal of {} of {name} ({:?}) leaves {} serving replicas; the minimum is {min_available}",
                replica.name_any(),
                removal.why,
                left.len()
            );
            self.report(world.now, "planned changes keep maxUnavailable", message);
        }
        let floors = bounds.iter().map(Bounds::throughput_floor);
        let floor = floors.fold(f64::INFINITY, f64::min);
        let left = self.without_newcomers(left, observed);
        let after = throughput(&left);
        let before = throughput(left.iter().chain([replica]));
        if after < floor * (1.0 - TOLERANCE) && after < before * (1.0 - TOLERANCE) {
            let message = format!(
                "the removal of {} of {name} ({:?}) leaves {after:.1} of {before:.1} tokens/s; the floor is {floor:.1}",
                replica.name_any(),
                removal.why
            );
            self.report(world.now, "planned changes keep minThroughput", message);
        }
    }
}
