//! Child processes that outlive their parent if they must: started in a group of their own, recognised again after
//! the parent's restart, stopped with SIGTERM and, as the last step, SIGKILL to the whole group. And their logs.
//!
//! Knows nothing of models: the agent decides what runs and when it stops.

mod identity;
pub mod logs;
pub mod open_files;
mod spawn;
mod supervise;

pub use identity::ProcessId;
pub use spawn::{Command, spawn};
pub use supervise::{Exit, KILL_PATIENCE, Process, find_by_argument};
