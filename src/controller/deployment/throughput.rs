//! Capacity in tokens per second instead of replicas: what is predicted, and the floor under it.

use super::replica::is_ready;
use crate::api::v1alpha1::{CountOrPercent, ModelDeploymentSpec, ModelReplica};

/// Sums of the same figures in another order differ by less.
const TOLERANCE: f64 = 1e-9;

/// Decode tokens per second of all its streams, each at full context. `None` where nobody can tell, which is also so
/// before its node has judged it.
pub(super) fn predicted(replica: &ModelReplica) -> Option<f64> {
    let speed = replica.status.as_ref()?.admission.as_ref()?.speed.as_ref()?;
    let each = speed.tokens_per_second.p50;
    (each.is_finite() && each > 0.0).then(|| each * f64::from(replica.spec.serving.max_concurrency))
}

/// What the replica adds to what is available now.
pub(super) fn available(replica: &ModelReplica) -> f64 {
    predicted(replica)
        .filter(|_| is_ready(replica))
        .unwrap_or_default()
}

/// The mean of those that answer and have a figure.
pub(super) fn mean<'a>(replicas: impl Iterator<Item = &'a ModelReplica>) -> Option<f64> {
    let figures: Vec<_> = replicas.map(available).filter(|figure| *figure > 0.0).collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

/// Short enough to be shown and to stay the same over small changes.
pub(super) fn rounded(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// What is never given up, in predicted tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Floor(f64);

impl Floor {
    /// `reference` is what one replica is worth.
    pub(super) fn of(spec: &ModelDeploymentSpec, reference: Option<f64>) -> Self {
        let rolling = spec.strategy.rolling_update.as_ref();
        let least = rolling.and_then(|rolling| rolling.min_throughput);
        let Some(least) = least.filter(|_| spec.replicas > 0) else {
            return Self::default();
        };
        Self(match least {
            CountOrPercent::Count(rate) => f64::from(rate),
            CountOrPercent::Percent(percent) => {
                let whole = reference.unwrap_or_default() * f64::from(spec.replicas.max(0));
                whole * f64::from(percent) / 100.0
            }
        })
    }

    pub(super) fn tokens_per_second(self) -> f64 {
        self.0
    }

    pub(super) fn holds(self, throughput: f64) -> bool {
        throughput >= self.0 * (1.0 - TOLERANCE)
    }
}
