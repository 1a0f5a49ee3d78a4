//! Pure functions of the Kubernetes API: structural schemas, defaulting, pruning, validation, CEL
//! rules, patches, field ownership, selectors, JSONPath, tables, verbs, and typed decoding.
//!
//! The crate does not depend on rooflet's kinds and does no I/O.

pub mod fields;
pub mod jsonpath;
pub mod patch;
pub mod protobuf;
pub mod schema;
pub mod selector;
pub mod table;
pub mod time;
pub mod typed;
pub mod verb;
