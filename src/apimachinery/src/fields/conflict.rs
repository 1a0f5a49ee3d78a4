//! Conflicts: fields of an applied configuration that other managers own with another value.

use std::fmt;

use super::field_set::{FieldSet, path_text};
use super::manager::Manager;
use super::path_element::PathElement;

/// Field that another manager owns with another value.
#[derive(Debug, Clone)]
pub struct Conflict {
    pub manager: Manager,
    pub(super) path: Vec<PathElement>,
}

impl Conflict {
    /// Returns the path of the field, for example `.spec.env[name="A"].value`.
    pub fn path(&self) -> String {
        path_text(&self.path)
    }
}

/// Conflicts of an apply. Not empty; sorted by manager.
#[derive(Debug, Clone)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    /// Returns the conflicts with the fields of these managers, or `None` if there are none.
    pub(super) fn of(mut owned: Vec<(Manager, FieldSet)>) -> Option<Self> {
        owned.sort_by(|(a, _), (b, _)| a.sort_key().cmp(&b.sort_key()));
        let conflicts: Vec<Conflict> = owned
            .into_iter()
            .flat_map(|(manager, fields)| {
                fields.paths().into_iter().map(move |path| Conflict {
                    manager: manager.clone(),
                    path,
                })
            })
            .collect();
        (!conflicts.is_empty()).then_some(Self(conflicts))
    }
}

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [conflict] = self.0.as_slice() {
            let Conflict { manager, .. } = conflict;
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {manager}: {}",
                conflict.path()
            );
        }
        write!(f, "Apply failed with {} conflicts:", self.0.len())?;
        let mut separator = ' ';
        for managed in self.0.chunk_by(|a, b| a.manager.is(&b.manager)) {
            write!(f, "{separator}conflicts with {}:", managed[0].manager)?;
            separator = '\n';
            for conflict in managed {
                write!(f, "\n- {}", conflict.path())?;
            }
        }
        Ok(())
    }
}
