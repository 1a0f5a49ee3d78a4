//! The parts of the Kubernetes API that are pure functions of values: structural schemas,
//! defaulting, pruning, validation, CEL rules, patches, selectors, JSONPath, tables and verbs.
//!
//! The crate has no knowledge of rooflet's kinds and does no I/O.

pub mod jsonpath;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod table;
pub mod verb;
