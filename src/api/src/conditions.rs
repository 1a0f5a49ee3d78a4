//! Condition types, reasons, and how a condition changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition types of all kinds. One list, so that a word means the same everywhere.
pub mod condition_type {
    /// The model can be served: its source resolves and its shape is one the engine knows.
    pub const ADMITTED: &str = "Admitted";
    /// Every wanted replica has a node.
    pub const SCHEDULED: &str = "Scheduled";
    /// The model's files are on the node and whole.
    pub const ARTIFACTS_READY: &str = "ArtifactsReady";
    /// The worker has the weights in memory.
    pub const LOADED: &str = "Loaded";
    /// Requests are answered.
    pub const READY: &str = "Ready";
    /// A rollout is under way or has ended well.
    pub const PROGRESSING: &str = "Progressing";
    /// Enough replicas are ready.
    pub const AVAILABLE: &str = "Available";
    /// Something is wrong although requests may still be answered.
    pub const DEGRADED: &str = "Degraded";
    /// Another deployment of the namespace is served under the same name.
    pub const NAME_SHARED: &str = "NameShared";
    /// Measured speed holds what `spec.objectives` asks for.
    pub const OBJECTIVES_MET: &str = "ObjectivesMet";
    /// Measured speed lies within the interval that was predicted for requests like those measured.
    pub const PREDICTION_ACCURATE: &str = "PredictionAccurate";
    /// The autoscaler may change the number of replicas.
    pub const ABLE_TO_SCALE: &str = "AbleToScale";
    /// The autoscaler has a figure to follow.
    pub const SCALING_ACTIVE: &str = "ScalingActive";
    /// A bound keeps the autoscaler from the number that is called for.
    pub const SCALING_LIMITED: &str = "ScalingLimited";
    /// A published claim was checked and no fault found.
    pub const PLAUSIBLE: &str = "Plausible";
    /// The node's free memory is low.
    pub const MEMORY_PRESSURE: &str = "MemoryPressure";
    /// The disk with the models is nearly full.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// The machine is hot enough to be slowed down.
    pub const THERMAL_PRESSURE: &str = "ThermalPressure";
    /// The machine runs on its battery.
    pub const ON_BATTERY: &str = "OnBattery";
    /// The machine's lid is closed.
    pub const LID_CLOSED: &str = "LidClosed";
    /// Somebody uses the machine.
    pub const USER_PRESENT: &str = "UserPresent";
    /// It is a time of day at which the machine is not to serve.
    pub const QUIET_HOURS: &str = "QuietHours";
    /// Memory of workers that are gone is still wired in the kernel.
    pub const WIRED_MEMORY_LEAKED: &str = "WiredMemoryLeaked";
    /// Only a restart helps the machine.
    pub const REBOOT_REQUIRED: &str = "RebootRequired";
    /// The replica is to leave its node, and its replacement comes first.
    pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
    /// No replica is left on a node that is being drained.
    pub const DRAINED: &str = "Drained";
    /// The agent's version and the control plane's are further apart than is tried.
    pub const VERSION_SKEW: &str = "VersionSkew";
    /// The node's bandwidth figure is measured and not too old.
    pub const PROBE_FRESH: &str = "ProbeFresh";
    /// The machines of a CapacityPlan carry its demand.
    pub const FEASIBLE: &str = "Feasible";
}

/// The reason of a node's Ready condition: its agent was stopped in order, and its workers with it.
pub const AGENT_STOPPED: &str = "AgentStopped";
/// Reason of [`condition_type::PROBE_FRESH`]: the figures are too old to be sure of.
pub const PROBE_EXPIRED: &str = "Expired";

/// Reason of [`condition_type::PROBE_FRESH`] and [`condition_type::PREDICTION_ACCURATE`]: the node's machine does not exist,
/// so that nothing that is measured there tells how fast it is.
pub const SIMULATED_CHIP: &str = "SimulatedChip";

/// Reason of [`condition_type::ADMITTED`], and of an event: `rooflet.dev/admission` let in what the numbers speak against.
pub const ADMISSION_OVERRIDDEN: &str = "AdmissionOverridden";

/// Reason of [`condition_type::ADMITTED`], and of an event: it runs, and its node cannot hold what is promised any more.
pub const OVERCOMMITTED: &str = "Overcommitted";

/// Reason of a replica's [`condition_type::ADMITTED`]: it was stopped because the machine's owner needs its memory.
pub const NODE_MEMORY_PRESSURE: &str = "NodeMemoryPressure";

/// Reason of a replica's [`condition_type::READY`]: its worker runs and did not answer as it has to.
pub const GOLDEN_PROMPT_FAILED: &str = "GoldenPromptFailed";

/// Three-valued truth of a condition.
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

/// Sets the condition of type `kind`; `lastTransitionTime` moves only when the status does. Says whether anything changed.
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

/// Whether the condition of type `kind` is there and `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// metav1.Time has whole seconds on the wire; keeping more would make every comparison with a read object differ.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_base::clock::at;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
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
