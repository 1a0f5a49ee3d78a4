//! Verbs that take nodes out of service and back: `cordon`, `uncordon` and `drain`.

pub(crate) mod cordon;
pub(crate) mod drain;
