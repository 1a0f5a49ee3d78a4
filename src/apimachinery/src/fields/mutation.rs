//! Merge of a configuration into an object without field managers.

use serde_json::Value;

use super::path_element::PathElement;
use super::schema::{ListMerge, TypeId, TypeSchema};
use super::type_fault::TypeFaults;

/// Failure of a merge. The texts are those of kube-apiserver.
#[derive(Debug, thiserror::Error)]
pub enum MutationError {
    #[error("failed to convert patch object to typed object: {0}")]
    Configuration(String),
    /// Paths of values that merge as a whole.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {0}")]
    Atomic(String),
    #[error("failed to merge patch: {0}")]
    Merge(String),
}

impl TypeSchema {
    /// Merges a configuration into an object, as server-side apply does. The configuration must not
    /// contain lists or objects that merge as a whole, because the merge would remove their other
    /// fields.
    pub fn mutate(&self, object: &Value, configuration: &Value) -> Result<Value, MutationError> {
        self.validate(configuration)
            .map_err(|faults: TypeFaults| MutationError::Configuration(faults.to_string()))?;
        let mut atomics = Vec::new();
        self.find_atomics(self.root, configuration, "", &mut atomics);
        if !atomics.is_empty() {
            return Err(MutationError::Atomic(atomics.join(", ")));
        }
        self.merge(object, configuration)
            .map_err(|faults| MutationError::Merge(faults.to_string()))
    }

    /// Adds the paths of values that merge as a whole.
    fn find_atomics(&self, id: TypeId, value: &Value, path: &str, found: &mut Vec<String>) {
        let declared = self.get(id);
        match value {
            Value::Object(fields) => {
                let Some(map) = &declared.map else { return };
                if map.is_atomic {
                    found.push(path.to_owned());
                }
                for (name, field) in fields {
                    if let Some(declared) = map.fields.get(name) {
                        let path = format!("{path}{}", PathElement::field(name));
                        self.find_atomics(declared.type_id, field, &path, found);
                    }
                }
            }
            Value::Array(items) => {
                let Some(list) = &declared.list else { return };
                if list.merge == ListMerge::Atomic {
                    found.push(path.to_owned());
                }
                for (index, item) in (0..).zip(items) {
                    let path = format!("{path}{}", PathElement::Index(index));
                    self.find_atomics(list.items, item, &path, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
