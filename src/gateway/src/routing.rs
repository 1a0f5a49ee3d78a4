//! Which replica a request goes to: the routing table, and the choice from what is known of each replica.

pub(crate) mod affinity;
pub(crate) mod choice;
pub(crate) mod estimate;
pub(crate) mod health;
pub(crate) mod length;
pub(crate) mod starts;
pub(crate) mod table;
