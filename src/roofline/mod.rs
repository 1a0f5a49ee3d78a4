//! The arithmetic of models on machines, pure: shapes from files, bytes and costs from shapes. Reads no file
//! and no clock.

pub(crate) mod checkpoint;
pub(crate) mod memory;
pub(crate) mod model;
