//! Child processes that outlive their parent if they must: started in a group of their own, recognised again after
//! the parent's restart, stopped with SIGTERM and, as the last step, SIGKILL to the whole group. And their logs.
//!
//! Knows nothing of models: the agent decides what runs and when it stops.

mod identity;
pub(crate) mod logs;
pub(crate) mod open_files;
mod spawn;
mod supervise;

pub(crate) use identity::ProcessId;
pub(crate) use spawn::{Command, spawn};
pub(crate) use supervise::{Exit, KILL_PATIENCE, Process, find_by_argument};
