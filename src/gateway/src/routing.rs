//! Choice of a replica for a request: routing table, load estimates, health and prefix affinity.

pub(crate) mod affinity;
pub(crate) mod choice;
pub(crate) mod estimate;
mod facts;
pub(crate) mod health;
pub(crate) mod index;
pub(crate) mod length;
pub(crate) mod starts;
pub(crate) mod table;
