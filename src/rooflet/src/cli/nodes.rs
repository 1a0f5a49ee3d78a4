//! Verbs that take nodes out of service and return them to service: `cordon`, `uncordon` and
//! `drain`.

pub(crate) mod cordon;
pub(crate) mod drain;
