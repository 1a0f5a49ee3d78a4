//! Child processes that can outlive their parent, and their logs.
//!
//! A child starts in a process group of its own, is recognised after the parent's restart, and is
//! stopped with SIGTERM, then with SIGKILL to the whole group.
//!
//! Invariant: the crate does not depend on models. The agent decides what runs and when it stops.

mod identity;
pub mod logs;
pub mod open_files;
mod spawn;
mod supervise;

pub use identity::ProcessId;
pub use spawn::{Command, spawn};
pub use supervise::{Exit, KILL_PATIENCE, Process, find_by_argument};
