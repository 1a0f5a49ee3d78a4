//! Verbs that take nodes out of service and return them to service (`cordon`, `uncordon`, `drain`), and
//! that manage the models on nodes (`models`).

pub(crate) mod cordon;
pub(crate) mod drain;
pub(crate) mod models;
