//! Pure functions of the Kubernetes API: patches, field ownership, OpenAPI documents, selectors,
//! JSONPath, tables, verbs, and typed decoding.
//!
//! The crate does not depend on rooflet's kinds and does no I/O.

mod builtin;
pub mod fields;
pub mod jsonpath;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod selector;
pub mod table;
pub mod time;
pub mod typed;
pub mod verb;
