//! Capacity in tokens per second instead of replicas: what is predicted, and the floor under it.

use std::collections::BTreeMap;

use super::replica::is_ready;
use rooflet_api::v1alpha1::{CountOrPercent, ModelDeployment, ModelReplica};
use rooflet_roofline::admission::Objectives;
use rooflet_scheduler::{Fleet, ReplicaKey};

/// Sums of the same figures in another order differ by less.
const TOLERANCE: f64 = 1e-9;

/// Decode tokens per second of all its streams, each at full context, with the chip to itself. `None` where nobody can tell, which is also so
/// before its node has judged it.
pub(super) fn predicted(replica: &ModelReplica) -> Option<f64> {
    let speed = replica.status.as_ref()?.admission.as_ref()?.speed.as_ref()?;
    let each = speed.tokens_per_second.p50;
    (each.is_finite() && each > 0.0).then(|| each * f64::from(replica.spec.serving.max_concurrency))
}

/// What other deployments leave of the nodes' chips.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chips<'f> {
    fleet: &'f Fleet,
    deployment: &'f ModelDeployment,
}

impl<'f> Chips<'f> {
    pub(crate) fn new(fleet: &'f Fleet, deployment: &'f ModelDeployment) -> Self {
        Self { fleet, deployment }
    }

    /// The part of a chip's time that so many replicas of the deployment have together; all of one that is not known.
    fn left(&self, node: Option<&str>, count: u32) -> f64 {
        let objectives = Objectives::from(&self.deployment.spec.objectives);
        let has_objectives = objectives != Objectives::default();
        let node = node.and_then(|name| self.fleet.node(name));
        node.map_or(1.0, |node| {
            node.left_to(&ReplicaKey::of(self.deployment), has_objectives, count)
        })
    }
}

/// What is predicted for replicas that answer. A chip does one thing at a time: those of a deployment on one node share
/// in equal parts what others leave of its time, as nothing else is promised to one of them more than to another, so
/// together they have that part of the mean of what each would have alone.
#[derive(Debug, Clone)]
pub(crate) struct Throughput<'a> {
    chips: Chips<'a>,
    /// By node: the figures of its replicas, summed up, and their number.
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
        for (node, figure) in replicas.into_iter().filter_map(answering) {
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

    /// Of one replica, on average; `None` where no figure is known.
    pub(super) fn mean(&self) -> Option<f64> {
        let count: u32 = self.nodes.values().map(|(_, count)| count).sum();
        (count > 0).then(|| self.total / f64::from(count))
    }

    pub(super) fn remove(&mut self, replica: &'a ModelReplica) {
        self.total = self.total_without(replica);
        let Some((node, figure)) = answering(replica) else {
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

    /// What would be left without the replica.
    pub(crate) fn total_without(&self, replica: &ModelReplica) -> f64 {
        let Some((node, figure)) = answering(replica) else {
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

    /// What so many on one chip have together.
    fn shared(&self, node: Option<&str>, sum: f64, count: u32) -> f64 {
        match count {
            0 => 0.0,
            _ => sum / f64::from(count) * self.chips.left(node, count),
        }
    }
}

/// Its chip and what it would have there alone, if it answers and somebody can tell.
fn answering(replica: &ModelReplica) -> Option<(Option<&str>, f64)> {
    let figure = predicted(replica).filter(|_| is_ready(replica))?;
    Some((replica.spec.node_name.as_deref(), figure))
}

/// Short enough to be shown and to stay the same over small changes.
pub(super) fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// What is never given up, in predicted tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Floor(f64);

impl Floor {
    /// A percentage is of what the deployment had when it was last rolled out, or else has `now`.
    pub(crate) fn of(deployment: &ModelDeployment, now: &Throughput<'_>) -> Self {
        let spec = &deployment.spec;
        let Some(least) = asked(deployment) else {
            return Self::default();
        };
        Self(match least {
            CountOrPercent::Count(rate) => f64::from(rate),
            CountOrPercent::Percent(percent) => {
                let rollout = deployment.status.as_ref().map(|status| &status.rollout);
                let reference = rollout.and_then(|rollout| rollout.reference_tokens_per_second);
                let whole = reference.or(now.mean()).unwrap_or_default() * f64::from(spec.replicas.max(0));
                whole * f64::from(percent) / 100.0
            }
        })
    }

    /// Whether the deployment has a floor, and nobody can tell what it is of, or whether it is kept: replicas answer, and
    /// the speed of none of them can be predicted.
    pub(crate) fn is_blind(
        deployment: &ModelDeployment,
        now: &Throughput<'_>,
        replicas: &[&ModelReplica],
    ) -> bool {
        asked(deployment).is_some() && now.mean().is_none() && replicas.iter().any(|one| is_ready(one))
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

fn asked(deployment: &ModelDeployment) -> Option<CountOrPercent> {
    let spec = &deployment.spec;
    let least = spec.strategy.rolling_update.as_ref()?.min_throughput;
    least.filter(|_| spec.replicas > 0)
}
