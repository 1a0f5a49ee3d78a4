//! Verbs that show the running fleet: its logs, its events, and a live view.

pub(super) mod events;
pub(super) mod logs;
pub(super) mod status;
pub(super) mod top;
