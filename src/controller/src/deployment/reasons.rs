//! Condition and event reasons that several files of the deployment controller use.

use rooflet_api::conditions::{ADMISSION_OVERRIDDEN, OVERCOMMITTED};
pub(crate) use rooflet_api::conditions::{NODE_NOT_READY, THROUGHPUT_FLOOR};

/// The hub has not answered yet.
pub(super) const ASKING_HUB: &str = "AskingHub";
/// The controller creates no revision while `spec.paused` is true.
pub(super) const PAUSED: &str = "Paused";
/// The scheduler has not processed the replica yet.
pub(super) const NOT_YET_SCHEDULED: &str = "WaitingForScheduler";

/// Reason of Progressing for a complete rollout. The next pass detects a complete rollout by it.
pub(super) const ROLLOUT_COMPLETE: &str = "RolloutComplete";
pub(super) const NO_REPLICAS: &str = "NoReplicas";
pub(super) const ROLLED_BACK: &str = "RolledBack";
pub(super) const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

pub(super) const CANARY_PAUSED: &str = "CanaryPaused";
pub(super) const ANALYSING: &str = "Analysing";
pub(super) const ANALYSIS_INCONCLUSIVE: &str = "AnalysisInconclusive";
pub(super) const OUTSIDE_MAINTENANCE_WINDOW: &str = "OutsideMaintenanceWindow";
pub(super) const WAITING_FOR_IDLE: &str = "WaitingForIdle";
pub(super) const PREPARING: &str = "Preparing";
pub(super) const SLOWER_THAN_PREDICTED: &str = "SlowerThanPredicted";

/// Reasons of replicas that are admitted although the prediction does not permit it.
pub(super) const ADMITTED_DESPITE_PREDICTION: [&str; 2] = [ADMISSION_OVERRIDDEN, OVERCOMMITTED];
