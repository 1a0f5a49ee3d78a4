//! The sync loop compares desired with running replicas, plans the difference with a pure function,
//! and applies the plan.
//!
//! Inputs: the replicas bound to this node, the manifest directory, the machine, the workers.
//! Outputs: processes, [`Reports`](crate::Reports), events.

mod desired;
mod downloads;
mod last_status;
mod memory_pressure;
mod observed;
mod plan;
mod reports;
mod retained;
mod status;
mod step;
mod sync_loop;

pub use self::desired::{Desired, ResolvedReplica};
pub use self::observed::{Observed, ObservedReplica, WorkerState};
pub use self::plan::{SyncPlan, demand};
pub use self::status::{Facts, replica_status};
pub use self::step::{ANSWER_GRACE, Refusal, RefusalKind, Start, Step, StopCause, Wait};
pub(crate) use self::sync_loop::{Sources, SyncLoop};
