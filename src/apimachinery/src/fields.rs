//! Field ownership for server-side apply: sets of fields, the merge of an applied configuration,
//! and the managers of an object.
//!
//! Pure functions over `serde_json::Value`. [`TypeSchema`] states how the values of a kind merge,
//! [`FieldSet`] holds fields, and [`Managers`] holds the fields of every manager
//! (`metadata.managedFields`). Behaviour and texts are those of kube-apiserver.

mod apply;
mod compare;
mod conflict;
mod field_set;
mod fields_v1;
mod item;
mod last_applied;
mod manager;
mod managers;
mod members;
mod merge;
mod mutation;
mod path_element;
mod reconcile;
mod remove;
mod scale;
mod schema;
mod schema_build;
mod type_fault;
mod validate;
mod value;

pub use apply::{ApplyError, Configuration};
pub use conflict::{Conflict, Conflicts};
pub use field_set::FieldSet;
pub use manager::{Manager, Operation};
pub use managers::{DecodeManagersError, Managers, Tracked};
pub use mutation::MutationError;
pub use schema::TypeSchema;

#[cfg(test)]
mod tests;
