//! The server's own controllers: what a controller manager does beside a real server.

pub(crate) mod certificates;
pub(crate) mod definitions;
pub(crate) mod expiry;
mod follow;
pub(crate) mod gc;
pub(crate) mod namespaces;
