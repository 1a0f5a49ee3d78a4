//! Patches of objects: JSON merge patch, JSON patch and strategic merge patch. Pure functions; the
//! API server decides which fields may be patched and handles conflicts.

pub mod json;
#[cfg(test)]
mod merge;
pub mod strategic;
