//! Patches of objects: JSON merge patch, JSON patch and strategic merge patch. Pure functions; what
//! may be patched, and conflicts between writers, are the API server's.

pub mod json;
#[cfg(test)]
mod merge;
pub mod strategic;
