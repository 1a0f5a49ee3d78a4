//! The sync loop: what is wanted against what runs, planned by a pure function and carried out.

pub(crate) mod plan;
pub(crate) mod status;
