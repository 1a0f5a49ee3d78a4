//! Reasons why a rollout pauses, with the condition status, reason and message that report them.

use jiff::Timestamp;

use super::idle::InUse;
use super::maintenance::Closed;
use super::reasons::{
    ANALYSING, ANALYSIS_INCONCLUSIVE, CANARY_PAUSED, OUTSIDE_MAINTENANCE_WINDOW, PAUSED, PREPARING,
    SLOWER_THAN_PREDICTED, THROUGHPUT_FLOOR, WAITING_FOR_IDLE,
};
use super::throughput::{AtFloor, Floor};
use rooflet_api::conditions::Truth;

/// Reason why a rollout replaces no replica in this pass. The progress deadline excludes pauses.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PauseReason {
    Paused,
    CanaryPaused {
        step: usize,
        steps: usize,
        seconds: Option<u64>,
    },
    /// The deployment has no replicas. The canary continues when it has.
    NoReplicas {
        step: usize,
        steps: usize,
    },
    /// The analysis has too few requests. The canary waits for more until `until`.
    Analysing {
        step: usize,
        steps: usize,
        missing: String,
        until: Timestamp,
    },
    /// The analysis still had too few requests at its deadline.
    Inconclusive {
        step: usize,
        steps: usize,
        missing: String,
    },
    /// No maintenance window is open.
    OutsideMaintenanceWindow(Closed),
    /// The next replicas to replace are in use. The wait began at this time.
    WaitingForIdle(InUse, Timestamp),
    /// The nodes of the next replicas download the new model.
    Preparing(String),
    /// A replacement would reduce the throughput below the floor.
    ThroughputFloor(String),
    /// The replicas of the new revision are much slower than predicted.
    SlowerThanPredicted(String),
}

impl PauseReason {
    pub(super) fn at_floor(at: AtFloor, floor: Floor) -> Self {
        Self::ThroughputFloor(format!(
            "no replica can be replaced: {:.1} tokens/s are predicted now and {:.1} without the next replica, but spec.strategy.rollingUpdate.minThroughput requires {:.1}; to continue, permit a surge on a node with room for one more replica, or lower the floor",
            at.now,
            at.would_leave,
            floor.tokens_per_second()
        ))
    }

    /// Returns whether `reason` of the condition Progressing is a pause.
    pub(super) fn is_reason(reason: &str) -> bool {
        [
            PAUSED,
            CANARY_PAUSED,
            ANALYSING,
            ANALYSIS_INCONCLUSIVE,
            OUTSIDE_MAINTENANCE_WINDOW,
            WAITING_FOR_IDLE,
            PREPARING,
            THROUGHPUT_FLOOR,
            SLOWER_THAN_PREDICTED,
        ]
        .contains(&reason)
    }

    pub(super) fn truth(&self) -> Truth {
        match self {
            Self::Paused
            | Self::CanaryPaused { .. }
            | Self::NoReplicas { .. }
            | Self::Inconclusive { .. }
            | Self::OutsideMaintenanceWindow(_)
            | Self::WaitingForIdle(..) => Truth::Unknown,
            Self::Analysing { .. } | Self::Preparing(_) => Truth::True,
            Self::ThroughputFloor(_) | Self::SlowerThanPredicted(_) => Truth::False,
        }
    }

    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Paused => PAUSED,
            Self::CanaryPaused { .. } | Self::NoReplicas { .. } => CANARY_PAUSED,
            Self::Analysing { .. } => ANALYSING,
            Self::Inconclusive { .. } => ANALYSIS_INCONCLUSIVE,
            Self::OutsideMaintenanceWindow(_) => OUTSIDE_MAINTENANCE_WINDOW,
            Self::WaitingForIdle(..) => WAITING_FOR_IDLE,
            Self::Preparing(_) => PREPARING,
            Self::ThroughputFloor(_) => THROUGHPUT_FLOOR,
            Self::SlowerThanPredicted(_) => SLOWER_THAN_PREDICTED,
        }
    }

    pub(super) fn message(&self, deployment: &str) -> String {
        match self {
            Self::Paused => "spec.paused is true: changes of the template are not rolled out".to_owned(),
            Self::CanaryPaused {
                step,
                steps,
                seconds: Some(seconds),
            } => format!("step {} of {steps} of the canary: waits {seconds} s", step + 1),
            Self::CanaryPaused {
                step,
                steps,
                seconds: None,
            } => format!(
                "step {} of {steps} of the canary: waits for `rooflet rollout promote mdep/{deployment}`",
                step + 1
            ),
            Self::NoReplicas { step, steps } => format!(
                "step {} of {steps} of the canary: waits, because spec.replicas is 0",
                step + 1
            ),
            Self::Analysing {
                step,
                steps,
                missing,
                until,
            } => format!(
                "step {} of {steps} of the canary: {missing}; waits until {until}",
                step + 1
            ),
            Self::Inconclusive { step, steps, missing } => format!(
                "step {} of {steps} of the canary: too few requests for a result, {missing}; waits for more or for `rooflet rollout promote mdep/{deployment}`",
                step + 1
            ),
            Self::OutsideMaintenanceWindow(Closed { opens, problem }) => {
                let when = match opens {
                    Some(opens) => {
                        format!("no replica is replaced before {opens}, when a maintenance window opens")
                    }
                    None => "no replica is replaced, because every maintenance window is invalid".to_owned(),
                };
                let problem = problem
                    .iter()
                    .map(|problem| format!("; {problem}"))
                    .collect::<String>();
                format!(
                    "{when}{problem}; to continue now, run `rooflet rollout promote --full mdep/{deployment}`"
                )
            }
            Self::WaitingForIdle(in_use, began) => in_use.message(*began),
            Self::ThroughputFloor(message) | Self::Preparing(message) => message.clone(),
            Self::SlowerThanPredicted(why) => format!(
                "no more replicas are replaced: {why}; run `rooflet rollout undo mdep/{deployment}` to return to the previous revision, or `rooflet rollout promote --full mdep/{deployment}` to continue"
            ),
        }
    }
}
