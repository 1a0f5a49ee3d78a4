//! The sync loop: what is wanted against what runs, planned by a pure function and carried out.
//!
//! Inputs: the replicas bound to this node, the manifest directory, the machine, the workers. Outputs: processes,
//! [`Reports`](crate::Reports), events.

mod desired;
mod downloads;
mod give_way;
mod observed;
mod plan;
mod reports;
mod said;
mod status;
mod step;
mod sync_loop;

pub use self::desired::{Desired, Wanted};
pub use self::observed::{Observed, Seen, WorkerState};
pub use self::plan::{SyncPlan, demand};
pub use self::status::{Facts, replica_status};
pub use self::step::{ANSWER_GRACE, Ground, Refusal, Start, Step, StopCause, Wait};
pub(crate) use self::sync_loop::{Sources, SyncLoop};
