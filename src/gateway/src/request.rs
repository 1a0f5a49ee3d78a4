//! Client requests: their parsed properties, and the copy that is sent to replicas.

pub(crate) mod client_address;
pub(crate) mod incoming;
pub(crate) mod info;
