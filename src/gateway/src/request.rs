//! A client's request: what it asks for, and its copy that is sent to replicas.

pub(crate) mod ask;
pub(crate) mod incoming;
