//! Condition types, reasons, and updates of conditions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition types of all kinds, so that a type has the same meaning in every kind.
pub mod condition_type {
    /// The model can be served: its source resolves and the engine supports its architecture.
    pub const ADMITTED: &str = "Admitted";
    /// Every desired replica is scheduled.
    pub const SCHEDULED: &str = "Scheduled";
    /// The model's files are complete on the node.
    pub const ARTIFACTS_READY: &str = "ArtifactsReady";
    /// The worker has the weights in memory.
    pub const LOADED: &str = "Loaded";
    /// Requests are served.
    pub const READY: &str = "Ready";
    /// A rollout is in progress or has completed.
    pub const PROGRESSING: &str = "Progressing";
    /// A rollout has failed and does not continue by itself. Absent otherwise, as kstatus defines.
    pub const STALLED: &str = "Stalled";
    /// Enough replicas are ready.
    pub const AVAILABLE: &str = "Available";
    /// A problem exists, although requests may still be served.
    pub const DEGRADED: &str = "Degraded";
    /// Another deployment of the namespace has the same served name.
    pub const NAME_SHARED: &str = "NameShared";
    /// The measured speed meets `spec.objectives`.
    pub const OBJECTIVES_MET: &str = "ObjectivesMet";
    /// The measured speed is within the predicted interval.
    pub const PREDICTION_ACCURATE: &str = "PredictionAccurate";
    /// The autoscaler may change the number of replicas.
    pub const ABLE_TO_SCALE: &str = "AbleToScale";
    /// The autoscaler has a value of its metric.
    pub const SCALING_ACTIVE: &str = "ScalingActive";
    /// A minimum or maximum limits the number of replicas.
    pub const SCALING_LIMITED: &str = "ScalingLimited";
    /// A published claim was checked without findings.
    pub const PLAUSIBLE: &str = "Plausible";
    /// The node's free memory is low.
    pub const MEMORY_PRESSURE: &str = "MemoryPressure";
    /// The disk with the models is nearly full.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// The machine is throttled because of heat.
    pub const THERMAL_PRESSURE: &str = "ThermalPressure";
    /// The machine runs on its battery.
    pub const ON_BATTERY: &str = "OnBattery";
    /// The machine's lid is closed.
    pub const LID_CLOSED: &str = "LidClosed";
    /// A person uses the machine.
    pub const USER_PRESENT: &str = "UserPresent";
    /// The current time is within the node's quiet hours.
    pub const QUIET_HOURS: &str = "QuietHours";
    /// The kernel still wires memory of workers that have exited.
    pub const WIRED_MEMORY_LEAKED: &str = "WiredMemoryLeaked";
    /// The machine is in low power mode.
    pub const LOW_POWER_MODE: &str = "LowPowerMode";
    /// Less memory is allocatable because the machine has crashed.
    pub const MEMORY_REDUCED: &str = "MemoryReduced";
    /// The GPU has matrix units, and the engine does not use them.
    pub const MATRIX_UNITS_UNUSED: &str = "MatrixUnitsUnused";
    /// Every client that reaches the agent, or a gateway of the deployment, over the network can send requests.
    pub const ANONYMOUS_ACCESS: &str = "AnonymousAccess";
    /// Another agent uses the name and the credentials of the node.
    pub const DUPLICATE_AGENT: &str = "DuplicateAgent";
    /// The machine must be restarted.
    pub const REBOOT_REQUIRED: &str = "RebootRequired";
    /// The replica will be evicted after its replacement is ready.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// A drained node has no replicas.
    pub const DRAINED: &str = "Drained";
    /// The versions of agent and control plane differ by more than is tested.
    pub const VERSION_SKEW: &str = "VersionSkew";
    /// The node's bandwidth was measured recently.
    pub const PROBE_FRESH: &str = "ProbeFresh";
    /// The machines of a CapacityPlan satisfy its demand.
    pub const FEASIBLE: &str = "Feasible";
}

/// Reason of a node's Ready condition: its agent and workers were shut down.
pub const AGENT_STOPPED: &str = "AgentStopped";
/// Reason of [`condition_type::PROBE_FRESH`]: the figures are outdated.
pub const PROBE_EXPIRED: &str = "Expired";

/// Reason of [`condition_type::PROBE_FRESH`] and [`condition_type::PREDICTION_ACCURATE`]: the node
/// is simulated, so its measurements are not real speeds.
pub const SIMULATED_CHIP: &str = "SimulatedChip";

/// Reason of [`condition_type::ADMITTED`], and of an event: `rooflet.dev/admission` admitted a
/// replica that does not fit.
pub const ADMISSION_OVERRIDDEN: &str = "AdmissionOverridden";

/// Reason of [`condition_type::ADMITTED`], and of an event: the replica runs, but its node can no
/// longer satisfy all reservations.
pub const OVERCOMMITTED: &str = "Overcommitted";

/// Reason of a replica's [`condition_type::ADMITTED`]: it was stopped because of memory pressure.
pub const NODE_MEMORY_PRESSURE: &str = "NodeMemoryPressure";

/// Reason of a worker's exit: the device had no memory left.
pub const OUT_OF_MEMORY: &str = "OutOfMemory";

/// Reason of a replica's [`condition_type::READY`]: its worker failed a golden prompt.
pub const GOLDEN_PROMPT_FAILED: &str = "GoldenPromptFailed";

/// Reason of a replica's [`condition_type::READY`] while the agent of its node does not report.
pub const NODE_NOT_READY: &str = "NodeNotReady";

/// Reason of a deployment's [`condition_type::PROGRESSING`]: the rollout would violate its throughput floor.
pub const THROUGHPUT_FLOOR: &str = "ThroughputFloor";

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(truth: bool) -> Self {
        if truth { Self::True } else { Self::False }
    }
}

/// Sets the condition of type `kind`; `lastTransitionTime` changes only with the status. Returns
/// whether anything changed.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    truth: Truth,
    reason: &str,
    message: impl Into<String>,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let message = message.into();
    let mut next = Condition {
        type_: kind.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: Time(whole_seconds(now)),
    };
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        None => {
            conditions.push(next);
            true
        }
        Some(current) => {
            if current.status == next.status {
                next.last_transition_time = current.last_transition_time.clone();
            }
            let changed = *current != next;
            *current = next;
            changed
        }
    }
}

/// Returns whether the condition of type `kind` exists and is `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Truncates to whole seconds, as metav1.Time does on the wire. Otherwise objects would differ from
/// their stored form.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(set_condition(
            &mut conditions,
            "Ready",
            Truth::False,
            "Loading",
            "",
            Some(1),
            at(10)
        ));
        assert!(
            !set_condition(
                &mut conditions,
                "Ready",
                Truth::False,
                "Loading",
                "",
                Some(1),
                at(20)
            ),
            "nothing changed"
        );
        assert!(set_condition(
            &mut conditions,
            "Ready",
            Truth::False,
            "Warming",
            "",
            Some(1),
            at(30)
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert!(set_condition(
            &mut conditions,
            "Ready",
            Truth::True,
            "Serving",
            "",
            Some(1),
            at(40)
        ));
        assert_eq!(conditions[0].last_transition_time.0, at(40));
        assert!(is_true(&conditions, "Ready") && conditions.len() == 1);
    }
}
