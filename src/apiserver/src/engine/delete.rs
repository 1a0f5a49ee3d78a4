//! Deletion of objects: immediate, or by marking them until their finalizers are removed.

use std::sync::Arc;

use serde_json::Value;

use super::{Engine, PutError, ResultObject, Target, WRITE_TIMEOUT, Warnings};
use crate::admission::Admitted;
use crate::builtin::{self, BuiltIn};
use crate::crd;
use crate::endpoints::options::{DeleteOptions, Propagation};
use crate::object::{self, metadata};
use crate::registry::resource::Resource;
use crate::status::{ApiError, GroupResource};
use rooflet_store::{Expect, Record};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Result of a deletion.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object has been removed. Contains its last state.
    Removed(Arc<Record>),
    /// The object is marked and waits for its finalizers.
    Pending(ResultObject),
}

impl Engine {
    /// Deletes an object for the server itself.
    pub(crate) async fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Deleted, ApiError> {
        let mut warnings = Warnings::default();
        self.delete_with(target, options, &mut warnings).await
    }

    pub(crate) async fn delete_with(
        &self,
        target: &Target,
        options: &DeleteOptions,
        warnings: &mut Warnings,
    ) -> Result<Deleted, ApiError> {
        let resource = &target.resource;
        if resource.is(BuiltIn::Namespace) && IMMORTAL_NAMESPACES.contains(&target.name.as_str()) {
            let reason = "this namespace may not be deleted";
            return Err(ApiError::forbidden(
                &resource.group_resource(),
                &target.name,
                reason,
            ));
        }
        let deadline = self.clock.instant() + WRITE_TIMEOUT;
        loop {
            let stored = self.store.get(&target.key());
            target.check_stored(stored.as_deref())?;
            let Some(record) = stored else {
                return Err(target.not_found());
            };
            check_preconditions(target, &record.json(), options)?;
            let old = resource.view(&record);
            let write = Admitted {
                new: None,
                old: Some(&old),
                is_dry_run: options.dry_run,
            };
            self.admit(target, write, warnings)?;
            let outcome = match self.next_state(resource, &record, options) {
                Some(marked) if object::same_content(&resource.stored(marked.clone()), &record.json()) => {
                    return Ok(Deleted::Pending(ResultObject::Record(record)));
                }
                Some(marked) if options.dry_run => return Ok(Deleted::Pending(ResultObject::Value(marked))),
                Some(marked) => {
                    let put = self.put(resource, record.key.clone(), Expect::At(record.modified), marked);
                    put.await
                        .map(|record| Deleted::Pending(ResultObject::Record(record)))
                }
                None if options.dry_run => return Ok(Deleted::Removed(record)),
                None => self.remove(resource, &record).await.map(Deleted::Removed),
            };
            match outcome {
                Ok(deleted) => return Ok(deleted),
                Err(PutError::Conflict) if self.clock.instant() < deadline => {}
                Err(PutError::Conflict) => {
                    return Err(ApiError::stale(&resource.group_resource(), &target.name));
                }
                Err(PutError::Rejected(err)) => return Err(err),
            }
        }
    }

    /// Returns the object after a deletion request, or `None` if it is removed.
    fn next_state(&self, resource: &Resource, record: &Record, options: &DeleteOptions) -> Option<Value> {
        let now = self.clock.now();
        let mut object = Arc::unwrap_or_clone(resource.view(record));
        let is_first = !object::is_being_deleted(&object);
        if resource.is(BuiltIn::CustomResourceDefinition) && is_first {
            crd::mark_terminating(&mut object, now);
            return Some(object);
        }
        if resource.is_collected() {
            object::set_finalizers(&mut object, collector_finalizers(&record.json(), options));
        }
        let waits_for_content =
            resource.is(BuiltIn::Namespace) && !BuiltIn::Namespace.can_be_removed(&object);
        if object::finalizers(&object).next().is_none() && !waits_for_content {
            return None;
        }
        if resource.is(BuiltIn::Namespace) {
            builtin::mark_terminating(&mut object);
        }
        metadata::mark_deleting(&mut object, now);
        if resource.is(BuiltIn::Namespace) {
            // Termination of a namespace depends on its content, not on a grace period.
            object::metadata_mut(&mut object).remove("deletionGracePeriodSeconds");
        }
        Some(object)
    }
}

/// Returns the finalizers of an object after deletion with these options. Adds and removes those of
/// the garbage collector.
fn collector_finalizers(object: &Value, options: &DeleteOptions) -> Vec<String> {
    let present: Vec<&str> = object::finalizers(object).collect();
    let expected = options.propagation.unwrap_or_else(|| {
        let first = present.iter().find(|name| [ORPHAN, FOREGROUND].contains(*name));
        match first.copied() {
            Some(ORPHAN) => Propagation::Orphan,
            Some(_) => Propagation::Foreground,
            None => Propagation::Background,
        }
    });
    let own = match expected {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    if let Some(own) = own.filter(|own| present.contains(own)) {
        let other = if own == ORPHAN { FOREGROUND } else { ORPHAN };
        return present
            .iter()
            .filter(|name| **name != other)
            .map(|name| (*name).to_owned())
            .collect();
    }
    let others = present
        .iter()
        .copied()
        .filter(|name| ![ORPHAN, FOREGROUND].contains(name));
    others.chain(own).map(str::to_owned).collect()
}

fn check_preconditions(target: &Target, object: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let expected = &options.preconditions;
    // kube-apiserver uses the kind here instead of the resource.
    let kind = GroupResource::new(&target.resource.group, &target.resource.kind);
    let conflict = |reason: String| Err(ApiError::conflict(&kind, &target.name, &reason));
    let uid = object::uid(object);
    if let Some(expected) = expected.uid.as_deref().filter(|expected| *expected != uid) {
        return conflict(format!(
            "the UID in the precondition ({expected}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        ));
    }
    let version = object::resource_version(object);
    if let Some(expected) = expected
        .resource_version
        .as_deref()
        .filter(|expected| *expected != version)
    {
        return conflict(format!(
            "the ResourceVersion in the precondition ({expected}) does not match the ResourceVersion in record \
             ({version}). The object might have been modified"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(present: &[&str], propagation: Option<Propagation>, expect: &[&str]) {
        let object = json!({"metadata": {"finalizers": present}});
        let options = DeleteOptions {
            propagation,
            ..DeleteOptions::default()
        };
        assert_eq!(
            collector_finalizers(&object, &options),
            expect,
            "{present:?} {propagation:?}"
        );
    }

    #[test]
    fn propagation_policy_selects_the_collector_finalizer() {
        check(&[], None, &[]);
        check(&[], Some(Propagation::Foreground), &[FOREGROUND]);
        check(&["a/b"], Some(Propagation::Orphan), &["a/b", ORPHAN]);
        check(&["a/b", FOREGROUND], None, &["a/b", FOREGROUND]);
        check(&[FOREGROUND, "a/b"], Some(Propagation::Background), &["a/b"]);
        check(
            &[ORPHAN, "a/b"],
            Some(Propagation::Foreground),
            &["a/b", FOREGROUND],
        );
    }
}
