//! Server-side apply: merge of a configuration, removal of fields that the manager no longer
//! applies, and transfer of ownership.

use serde_json::Value;

use super::compare::Comparison;
use super::conflict::Conflicts;
use super::field_set::FieldSet;
use super::last_applied;
use super::manager::{Manager, Operation};
use super::managers::{BEFORE_FIRST_APPLY, Entry, Managers, Tracked};
use super::schema::TypeSchema;
use super::type_fault::TypeFaults;
use super::value;

/// Configuration that a manager applies to an object.
#[derive(Debug, Clone, Copy)]
pub struct Configuration<'a> {
    pub schema: &'a TypeSchema,
    /// Object without its managed fields. An object without fields if it does not exist.
    pub live: &'a Value,
    pub applied: &'a Value,
    pub manager: &'a Manager,
    /// Takes fields of other managers instead of failing with conflicts.
    pub forces: bool,
    /// Fields that the request cannot change, with all fields below them.
    pub ignored: &'a FieldSet,
    /// Current time, RFC 3339 in seconds.
    pub now: &'a str,
}

/// Failure of an apply. The texts are those of kube-apiserver.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("{0}")]
    Conflicts(Conflicts),
    /// Violations of the schema, one per line.
    #[error("{0}")]
    InvalidConfiguration(String),
    #[error("failed to {step}: {reason}")]
    Failed { step: &'static str, reason: String },
}

impl ApplyError {
    fn failed(step: &'static str) -> impl FnOnce(TypeFaults) -> Self {
        move |faults| Self::Failed {
            step,
            reason: faults.to_string(),
        }
    }
}

impl Managers {
    /// Applies a configuration. Returns the new object, or `None` if the object does not change;
    /// the managers may change in both cases. After an error, the managers are unchanged.
    pub fn apply(&mut self, configuration: Configuration<'_>) -> Result<Option<Value>, ApplyError> {
        configuration
            .schema
            .validate(configuration.applied)
            .map_err(|faults| ApplyError::InvalidConfiguration(faults.to_string()))?;
        let mut tracked = self.clone();
        // An object without a uid does not exist yet.
        let exists = configuration.live["metadata"]["uid"].is_string();
        if tracked.is_empty() && exists {
            tracked.start_tracking(configuration);
        }
        let mut managers = tracked.clone();
        let outcome = match managers.try_apply(configuration) {
            Err(ApplyError::Conflicts(conflicts)) => {
                let remaining = last_applied::without_own(configuration, conflicts);
                match remaining {
                    Some(conflicts) => return Err(ApplyError::Conflicts(conflicts)),
                    None => {
                        managers = tracked;
                        managers.try_apply(Configuration {
                            forces: true,
                            ..configuration
                        })?
                    }
                }
            }
            outcome => outcome?,
        };
        *self = managers;
        let object = last_applied::updated(
            configuration,
            outcome.unwrap_or_else(|| configuration.live.clone()),
        );
        Ok(Some(object).filter(|object| !value::same(object, configuration.live)))
    }

    /// Gives all fields of an object without managers to [`BEFORE_FIRST_APPLY`].
    fn start_tracking(&mut self, configuration: Configuration<'_>) {
        let manager = Manager {
            name: BEFORE_FIRST_APPLY.to_owned(),
            operation: Operation::Update,
            ..configuration.manager.clone()
        };
        let empty = Value::Object(serde_json::Map::new());
        self.track(Tracked {
            schema: configuration.schema,
            old: &empty,
            new: configuration.live,
            manager: &manager,
            ignored: configuration.ignored,
            now: configuration.now,
        });
    }

    fn try_apply(&mut self, configuration: Configuration<'_>) -> Result<Option<Value>, ApplyError> {
        let Configuration {
            schema,
            live,
            applied,
            manager,
            forces,
            ignored,
            now,
        } = configuration;
        self.reconcile(schema);
        let merged = schema
            .merge(live, applied)
            .map_err(ApplyError::failed("merge config"))?;
        let fields = schema
            .members(applied)
            .map_err(ApplyError::failed("get field set"))?
            .without(ignored);
        let previous = self.replace(manager, fields);
        let merged = match previous {
            Some(previous) => self.prune(schema, merged, &previous)?,
            None => merged,
        };
        let changes = schema
            .compare(live, &merged)
            .map_err(ApplyError::failed("compare objects"))?
            .without(ignored);
        if !forces {
            self.check_conflicts(manager, &changes)?;
        }
        self.release(&changes, Some(manager));
        self.drop_unowned(manager);
        if value::same(live, &merged) {
            return Ok(None);
        }
        if let Some(entry) = self.entry_mut(manager) {
            entry.time = Some(now.to_owned());
        }
        Ok(Some(merged))
    }

    /// Replaces the fields of an applier. Returns its previous fields.
    fn replace(&mut self, manager: &Manager, fields: FieldSet) -> Option<FieldSet> {
        match self.entry_mut(manager) {
            Some(entry) => {
                entry.manager = manager.clone();
                Some(std::mem::replace(&mut entry.fields, fields))
            }
            None => {
                self.entries.push(Entry {
                    manager: manager.clone(),
                    time: None,
                    fields,
                });
                None
            }
        }
    }

    /// Removes the fields from `merged` that the applier owned before and that no manager owns now.
    fn prune(&self, schema: &TypeSchema, merged: Value, previous: &FieldSet) -> Result<Value, ApplyError> {
        let failed = || ApplyError::failed("prune fields");
        let previous = schema.with_parents(previous);
        let present = schema.with_parents(&schema.members(&merged).map_err(failed())?);
        let owned = self
            .entries
            .iter()
            .fold(FieldSet::default(), |owned, entry| owned.union(&entry.fields));
        let owned = schema.with_parents(&owned);
        let members_of = |object: &Value| {
            schema
                .members(object)
                .map(|fields| schema.with_parents(&fields))
                .map_err(failed())
        };
        // Removing an item removes all of its fields. Items in which another manager owns a field
        // come back, but only with the owned fields.
        let pruned = schema.remove(&merged, &previous);
        let kept = members_of(&pruned)?.union(&owned);
        let pruned = schema.remove(&merged, &present.difference(&kept));
        // Fields without an owner that were not the applier's come back too.
        let removed = present.difference(&members_of(&pruned)?);
        Ok(schema.remove(&merged, &removed.intersection(&previous)))
    }

    /// Fails if other managers own changed fields.
    fn check_conflicts(&self, applier: &Manager, changes: &Comparison) -> Result<(), ApplyError> {
        let written = changes.written();
        let conflicts = self
            .entries
            .iter()
            .filter(|entry| !entry.manager.is(applier))
            .map(|entry| (entry.manager.clone(), entry.fields.intersection(&written)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect();
        match Conflicts::of(conflicts) {
            Some(conflicts) => Err(ApplyError::Conflicts(conflicts)),
            None => Ok(()),
        }
    }

    /// Removes the fields that belong to no manager from an entry.
    fn drop_unowned(&mut self, manager: &Manager) {
        let unowned = Self::unowned();
        if let Some(entry) = self.entry_mut(manager) {
            entry.fields = entry.fields.difference(&unowned);
        }
        self.entries.retain(|entry| !entry.fields.is_empty());
    }
}
