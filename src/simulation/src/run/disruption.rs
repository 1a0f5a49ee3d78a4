//! The rules that what is planned, rollouts and drains alike, keeps a deployment's bounds: never
//! more replicas missing than `maxUnavailable`, never less predicted than `minThroughput`. What was
//! lost otherwise, and not known when it was decided, counts as still there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use crate::rules::bounds::{Before, HeldTo, Missed, Taken, floor, serves};
use crate::run::Run;
use rooflet_api::meta::DEPLOYMENT_LABEL;
use rooflet_api::v1alpha1::{
    CountOrPercent, ModelDeployment, ModelDeploymentSpec, ModelReplica, StrategyType,
};
use rooflet_controller::intent::Deletion;

/// Older losses are known to everybody.
const REMEMBERED: Duration = Duration::from_secs(900);

/// Sums of the same figures in another order, and figures that were rounded to be shown, differ by
/// less.
const TOLERANCE: f64 = 0.01;

fn min_available(spec: &ModelDeploymentSpec) -> usize {
    let wanted = usize::try_from(spec.replicas).unwrap_or(0);
    if spec.strategy.kind == StrategyType::Recreate {
        return 0;
    }
    let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
    let (surge, unavailable) = (&rolling.max_surge, &rolling.max_unavailable);
    let least = match (surge, unavailable) {
        (CountOrPercent::Count(0) | CountOrPercent::Percent(0), _) => 1,
        _ => 0,
    };
    let unavailable = match unavailable {
        CountOrPercent::Count(count) => usize::try_from(*count).unwrap_or(usize::MAX),
        CountOrPercent::Percent(percent) => wanted * usize::try_from(*percent).unwrap_or(usize::MAX) / 100,
    };
    wanted.saturating_sub(unavailable.max(least))
}

/// In predicted tokens per second, as if nothing else ran on the chips: who decides need not know
/// of all that does. The replicas of one chip share it.
fn throughput<'a>(replicas: impl IntoIterator<Item = &'a Arc<ModelReplica>>) -> f64 {
    let mut chips: BTreeMap<Option<&str>, (f64, f64)> = BTreeMap::new();
    for replica in replicas.into_iter().filter(|replica| serves(replica)) {
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

impl Run<'_> {
    /// What began to answer since `known` may make a chip slower that it shares: those are left
    /// out.
    fn without_newcomers(
        &self,
        mut replicas: Vec<Arc<ModelReplica>>,
        known: Duration,
    ) -> Vec<Arc<ModelReplica>> {
        let came = self.rules.gained.iter().filter(|(_, at)| **at >= known);
        for (uid, _) in came {
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

    /// A deployment has changed.
    pub(crate) fn note_spec(&mut self, before: &ModelDeployment, after: &ModelDeployment) {
        let held_to = HeldTo::of(before);
        if held_to != HeldTo::of(after) {
            let at = self.world.now;
            let specs = self.rules.specs.entry(after.name_any()).or_default();
            specs.retain(|before| at.saturating_sub(before.at) < REMEMBERED);
            specs.push(Before { at, held_to });
        }
    }

    /// A replica does not answer any more, and who decides has not been told.
    pub(crate) fn note_missed(&mut self, replica: &Arc<ModelReplica>) {
        let now = self.world.now;
        let missed = &mut self.rules.missed;
        missed.retain(|missed| now.saturating_sub(missed.at) < REMEMBERED);
        missed.push(Missed {
            at: now,
            replica: replica.clone(),
        });
    }

    /// It was taken by who knew all that happened until `known`, and learns what it has done if it
    /// is `told`.
    pub(crate) fn check_taken(&mut self, known: Duration, taken: &Taken, told: bool) {
        let replica = &taken.replica;
        if told {
            self.rules.own_deletes.insert(replica.uid().unwrap_or_default());
        }
        let began = replica.uid().and_then(|uid| self.rules.gained.get(&uid));
        if began.is_some_and(|at| *at >= known) {
            // It began to answer when it was to go already.
            return;
        }
        if taken.why == Deletion::Eviction && !self.world.is_spared(replica, known) {
            return;
        }
        let Some(name) = replica.labels().get(DEPLOYMENT_LABEL).cloned() else {
            return;
        };
        let key = (replica.namespace(), name.clone());
        let Some(deployment) = self.world.store.deployments.get(&key).cloned() else {
            return;
        };
        let ours = |replica: &&Arc<ModelReplica>| replica.labels().get(DEPLOYMENT_LABEL) == Some(&name);
        let unknown = self.rules.missed.iter().filter(|missed| missed.at >= known);
        let lost = |missed: &&Missed| {
            let found = self
                .world
                .store
                .replicas
                .get(&crate::world::store::key(missed.replica.as_ref()));
            !found.is_some_and(|found| serves(found))
        };
        let there = self
            .world
            .store
            .replicas
            .values()
            .filter(|replica| serves(replica));
        let left: Vec<_> = there
            .chain(unknown.filter(lost).map(|missed| &missed.replica))
            .filter(ours)
            .filter(|left| left.uid() != replica.uid())
            .cloned()
            .collect();
        let before = self.rules.specs.get(&name).into_iter().flatten();
        let before = before.filter(|before| before.at >= known);
        let held_to: Vec<_> = before
            .map(|before| before.held_to.clone())
            .chain([HeldTo::of(&deployment)])
            .collect();
        let least = held_to.iter().map(|held_to| min_available(&held_to.spec));
        let least = least.min().unwrap_or(0);
        if left.len() < least {
            let message = format!(
                "{} of {name} is taken ({:?}) and leaves {} that answer; {least} are to stay",
                replica.name_any(),
                taken.why,
                left.len()
            );
            self.break_rule("what is planned keeps maxUnavailable", message);
        }
        let floors = held_to.iter().map(floor);
        let floor = floors.fold(f64::INFINITY, f64::min);
        let left = self.without_newcomers(left, known);
        let after = throughput(&left);
        let now = throughput(left.iter().chain([replica]));
        if after < floor * (1.0 - TOLERANCE) && after < now * (1.0 - TOLERANCE) {
            let message = format!(
                "{} of {name} is taken ({:?}) and leaves {after:.1} tokens/s of {now:.1}; {floor:.1} are to stay",
                replica.name_any(),
                taken.why
            );
            self.break_rule("what is planned keeps minThroughput", message);
        }
    }
}
