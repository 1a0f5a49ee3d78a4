//! Throughput floor of rollouts, in predicted tokens per second.

use std::collections::BTreeMap;

use super::replica::is_ready;
use rooflet_api::v1alpha1::{CountOrPercent, ModelDeployment, ModelReplica};
use rooflet_roofline::admission::Objectives;
use rooflet_scheduler::{Fleet, ReplicaKey};

/// Relative error of sums of the same numbers in different order.
const TOLERANCE: f64 = 1e-9;

/// Returns the predicted decode tokens per second of all streams, at full context and with the chip
/// for this replica alone. Returns `None` if no prediction exists, for example before admission.
pub(super) fn predicted(replica: &ModelReplica) -> Option<f64> {
    let speed = replica.status.as_ref()?.admission.as_ref()?.speed.as_ref()?;
    let each = speed.tokens_per_second.p50;
    (each.is_finite() && each > 0.0).then(|| each * f64::from(replica.spec.serving.max_concurrency))
}

/// Time of the nodes' chips that other deployments leave to one deployment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chips<'f> {
    fleet: &'f Fleet,
    deployment: &'f ModelDeployment,
}

impl<'f> Chips<'f> {
    pub(crate) fn new(fleet: &'f Fleet, deployment: &'f ModelDeployment) -> Self {
        Self { fleet, deployment }
    }

    /// Returns the share of the chip's time for `count` replicas of the deployment together. For an
    /// unknown node, the share is 1.
    fn left(&self, node: Option<&str>, count: u32) -> f64 {
        let objectives = Objectives::from(&self.deployment.spec.objectives);
        let has_objectives = objectives != Objectives::default();
        let node = node.and_then(|name| self.fleet.node(name));
        node.map_or(1.0, |node| {
            node.left_to(&ReplicaKey::of(self.deployment), has_objectives, count)
        })
    }
}

/// Predicted throughput of Ready replicas.
///
/// Replicas of the deployment on one node share the remaining chip time equally. Their total is
/// therefore the mean of their speeds alone, multiplied by the remaining share of the chip.
#[derive(Debug, Clone)]
pub(crate) struct Throughput<'a> {
    chips: Chips<'a>,
    /// By node: the sum of the predictions of its replicas, and their number.
    nodes: BTreeMap<Option<&'a str>, (f64, u32)>,
    total: f64,
}

impl<'a> Throughput<'a> {
    pub(crate) fn of(chips: Chips<'a>, replicas: impl IntoIterator<Item = &'a ModelReplica>) -> Self {
        let mut all = Self {
            chips,
            nodes: BTreeMap::new(),
            total: 0.0,
        };
        for (node, figure) in replicas.into_iter().filter_map(prediction) {
            let (sum, count) = all.nodes.entry(node).or_default();
            *sum += figure;
            *count += 1;
        }
        let together = |(node, (sum, count)): (&Option<&str>, &(f64, u32))| all.shared(*node, *sum, *count);
        all.total = all.nodes.iter().map(together).sum();
        all
    }

    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    /// Returns the mean per replica, or `None` without predictions.
    pub(super) fn mean(&self) -> Option<f64> {
        let count: u32 = self.nodes.values().map(|(_, count)| count).sum();
        (count > 0).then(|| self.total / f64::from(count))
    }

    pub(super) fn remove(&mut self, replica: &'a ModelReplica) {
        self.total = self.total_without(replica);
        let Some((node, figure)) = prediction(replica) else {
            return;
        };
        match self.nodes.get_mut(&node) {
            Some((sum, count)) if *count > 1 => {
                *sum -= figure;
                *count -= 1;
            }
            Some(_) | None => drop(self.nodes.remove(&node)),
        }
    }

    /// Returns the total without the replica.
    pub(crate) fn total_without(&self, replica: &ModelReplica) -> f64 {
        let Some((node, figure)) = prediction(replica) else {
            return self.total;
        };
        match self.nodes.get(&node) {
            Some((sum, count)) => {
                self.total - self.shared(node, *sum, *count)
                    + self.shared(node, sum - figure, count.saturating_sub(1))
            }
            None => self.total,
        }
    }

    /// Returns the throughput of `count` replicas on one chip.
    fn shared(&self, node: Option<&str>, sum: f64, count: u32) -> f64 {
        match count {
            0 => 0.0,
            _ => sum / f64::from(count) * self.chips.left(node, count),
        }
    }
}

/// Returns the node and the prediction of a Ready replica.
fn prediction(replica: &ModelReplica) -> Option<(Option<&str>, f64)> {
    let figure = predicted(replica).filter(|_| is_ready(replica))?;
    Some((replica.spec.node_name.as_deref(), figure))
}

/// Rounds to one decimal, so that small changes cause no status write.
pub(super) fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// Minimum throughput during a rollout, in predicted tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Floor(f64);

impl Floor {
    /// Returns the floor of the deployment; 0 without a floor. A percentage refers to the
    /// throughput at the last complete rollout, or to `now` before the first one.
    pub(crate) fn of(deployment: &ModelDeployment, now: &Throughput<'_>) -> Self {
        Self(throughput_floor(deployment, now.mean()).unwrap_or_default())
    }

    /// Returns whether the deployment has a floor that cannot be checked: it has Ready replicas,
    /// but no prediction for any of them.
    pub(crate) fn is_unpredictable(
        deployment: &ModelDeployment,
        now: &Throughput<'_>,
        replicas: &[&ModelReplica],
    ) -> bool {
        let has_ready = || replicas.iter().any(|replica| is_ready(replica));
        min_throughput(deployment).is_some() && now.mean().is_none() && has_ready()
    }

    pub(crate) fn tokens_per_second(self) -> f64 {
        self.0
    }

    pub(crate) fn holds(self, throughput: f64) -> bool {
        throughput >= self.0 * (1.0 - TOLERANCE)
    }
}

/// Replacement that the throughput floor forbids, in predicted tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AtFloor {
    pub(super) now: f64,
    /// Throughput without the replica that contributes least.
    pub(super) would_leave: f64,
}

/// Returns the floor of the deployment in tokens per second, or `None` without a floor. `mean` is the
/// throughput per replica if no rollout has completed.
pub(crate) fn throughput_floor(deployment: &ModelDeployment, mean: Option<f64>) -> Option<f64> {
    Some(match min_throughput(deployment)? {
        CountOrPercent::Count(rate) => f64::from(rate),
        CountOrPercent::Percent(percent) => {
            let rollout = deployment.status.as_ref().map(|status| &status.rollout);
            let reference = rollout.and_then(|rollout| rollout.reference_tokens_per_second);
            let replicas = f64::from(deployment.spec.replicas.max(0));
            reference.or(mean).unwrap_or_default() * replicas * f64::from(percent) / 100.0
        }
    })
}

fn min_throughput(deployment: &ModelDeployment) -> Option<CountOrPercent> {
    let spec = &deployment.spec;
    let least = spec.strategy.rolling_update.as_ref()?.min_throughput;
    least.filter(|_| spec.replicas > 0)
}
