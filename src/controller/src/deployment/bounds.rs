//! Limits of a rollout that a deployment's spec sets: replica counts and the progress deadline.

use std::time::Duration;

use rooflet_api::v1alpha1::{ModelDeploymentSpec, StrategyType};

/// Replica counts that `spec.replicas` and `spec.strategy` allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) wanted: usize,
    pub(crate) min_available: usize,
    pub(crate) max_total: usize,
}

impl Bounds {
    pub(crate) fn of(spec: &ModelDeploymentSpec) -> Self {
        let wanted = usize::try_from(spec.replicas).unwrap_or(0);
        match spec.strategy.kind {
            StrategyType::Recreate => Self {
                wanted,
                min_available: 0,
                max_total: wanted,
            },
            StrategyType::RollingUpdate | StrategyType::Canary => {
                let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
                let surge = rolling.max_surge.of_rounded_up(wanted);
                let mut unavailable = rolling.max_unavailable.of_rounded_down(wanted);
                if surge == 0 && unavailable == 0 {
                    // Percentages of a small count may both round to 0. Then no replica could ever be replaced.
                    unavailable = 1;
                }
                Self {
                    wanted,
                    min_available: wanted.saturating_sub(unavailable),
                    max_total: wanted.saturating_add(surge),
                }
            }
        }
    }

    /// Number of replicas allowed beyond the wanted number.
    pub(super) fn surge(self) -> usize {
        self.max_total.saturating_sub(self.wanted)
    }

    /// Number of replicas of the new revision that serve `weight` percent of the requests. At least one, and at least one
    /// replica stays of the stable revision.
    pub(super) fn canaries(self, weight: u8) -> usize {
        let share = self.wanted.saturating_mul(usize::from(weight)).div_ceil(100);
        match (weight, self.wanted) {
            (0, _) | (_, 0) => 0,
            (100.., _) => self.wanted,
            (_, 1) => 1,
            (_, wanted) => share.clamp(1, wanted - 1),
        }
    }
}

/// Longest time without progress, from `spec.progressDeadlineSeconds`.
pub(super) fn progress_deadline(spec: &ModelDeploymentSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.progress_deadline_seconds).unwrap_or(0))
}
