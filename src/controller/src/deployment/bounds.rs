//! Limits of a rollout from a deployment's spec: replica counts and the progress deadline.

use std::time::Duration;

use rooflet_api::v1alpha1::{ModelDeploymentSpec, StrategyType};

/// Replica counts that `spec.replicas` and `spec.strategy` permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// `spec.replicas`.
    pub(crate) desired: usize,
    /// Minimum number of Ready replicas.
    pub(crate) min_available: usize,
    /// Maximum number of replicas, including surge replicas.
    pub(crate) max_total: usize,
}

impl Bounds {
    pub(crate) fn of(spec: &ModelDeploymentSpec) -> Self {
        let desired = usize::try_from(spec.replicas).unwrap_or(0);
        match spec.strategy.kind {
            StrategyType::Recreate => Self {
                desired,
                min_available: 0,
                max_total: desired,
            },
            StrategyType::RollingUpdate | StrategyType::Canary => {
                let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
                let surge = rolling.max_surge.of_rounded_up(desired);
                let mut unavailable = rolling.max_unavailable.of_rounded_down(desired);
                if surge == 0 && unavailable == 0 {
                    // Percentages of a small count may both round to 0. Then no replica could ever
                    // be replaced.
                    unavailable = 1;
                }
                Self {
                    desired,
                    min_available: desired.saturating_sub(unavailable),
                    max_total: desired.saturating_add(surge),
                }
            }
        }
    }

    /// Returns the number of replicas permitted beyond the desired count.
    pub(super) fn surge(self) -> usize {
        self.max_total.saturating_sub(self.desired)
    }

    /// Returns the number of replicas of the new revision that serve `weight` percent of the
    /// requests: at least one, and at least one replica of the stable revision remains.
    pub(super) fn canaries(self, weight: u8) -> usize {
        let share = self.desired.saturating_mul(usize::from(weight)).div_ceil(100);
        match (weight, self.desired) {
            (0, _) | (_, 0) => 0,
            (100.., _) => self.desired,
            (_, 1) => 1,
            (_, desired) => share.clamp(1, desired - 1),
        }
    }
}

/// Returns the maximum time without progress, from `spec.progressDeadlineSeconds`.
pub(super) fn progress_deadline(spec: &ModelDeploymentSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.progress_deadline_seconds).unwrap_or(0))
}
