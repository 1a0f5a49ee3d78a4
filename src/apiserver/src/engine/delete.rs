//! Deleting objects: at once, or by marking them until their finalizers are gone.

use std::sync::Arc;

use serde_json::Value;

use super::{Engine, PutError, Shown, Target, WRITE_TIMEOUT};
use crate::builtin::{self, BuiltIn};
use crate::crd;
use crate::endpoints::options::{DeleteOptions, Propagation};
use crate::object;
use crate::object::metadata;
use crate::registry::resource::Resource;
use crate::status::{ApiError, GroupResource};
use rooflet_store::{Expect, Record};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

/// What a delete came to.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Arc<Record>),
    /// The object is marked and waits for its finalizers.
    Pending(Shown),
}

impl Engine {
    pub(crate) async fn delete(&self, target: &Target, options: &DeleteOptions) -> Result<Deleted, ApiError> {
        let resource = &target.resource;
        if resource.is(BuiltIn::Namespace) && IMMORTAL_NAMESPACES.contains(&target.name.as_str()) {
            let why = "this namespace may not be deleted";
            return Err(ApiError::forbidden(&resource.group_resource(), &target.name, why));
        }
        let deadline = self.clock.instant() + WRITE_TIMEOUT;
        loop {
            let stored = self.store.get(&target.key());
            target.check_stored(stored.as_deref())?;
            let Some(record) = stored else {
                return Err(target.not_found());
            };
            check_preconditions(target, record.json(), options)?;
            let outcome = match self.next_state(resource, &record, options) {
                Some(marked) if object::same_content(&resource.stored(marked.clone()), record.json()) => {
                    return Ok(Deleted::Pending(Shown::Record(record)));
                }
                Some(marked) if options.dry_run => return Ok(Deleted::Pending(Shown::Value(marked))),
                Some(marked) => {
                    let put = self.put(resource, record.key.clone(), Expect::At(record.modified), marked);
                    put.await.map(|record| Deleted::Pending(Shown::Record(record)))
                }
                None if options.dry_run => return Ok(Deleted::Gone(record)),
                None => self.remove(resource, &record).await.map(Deleted::Gone),
            };
            match outcome {
                Ok(deleted) => return Ok(deleted),
                Err(PutError::Conflict) if self.clock.instant() < deadline => {}
                Err(PutError::Conflict) => {
                    return Err(ApiError::stale(&resource.group_resource(), &target.name));
                }
                Err(PutError::Refused(err)) => return Err(err),
            }
        }
    }

    /// The object as a delete leaves it; `None` if it leaves nothing.
    fn next_state(&self, resource: &Resource, record: &Record, options: &DeleteOptions) -> Option<Value> {
        let now = self.clock.now();
        let mut object = resource.view(record).into_owned();
        let is_first = !object::is_being_deleted(&object);
        if resource.is(BuiltIn::CustomResourceDefinition) && is_first {
            crd::mark_terminating(&mut object, now);
            return Some(object);
        }
        if resource.is_collected() {
            object::set_finalizers(&mut object, collector_finalizers(record.json(), options));
        }
        let waits_for_content = resource.is(BuiltIn::Namespace) && !BuiltIn::Namespace.may_vanish(&object);
        if object::finalizers(&object).next().is_none() && !waits_for_content {
            return None;
        }
        if resource.is(BuiltIn::Namespace) {
            builtin::mark_terminating(&mut object);
        }
        metadata::mark_deleting(&mut object, now);
        if resource.is(BuiltIn::Namespace) {
            // Namespaces end when they are empty, not after a time.
            object::metadata_mut(&mut object).remove("deletionGracePeriodSeconds");
        }
        Some(object)
    }
}

/// The finalizers of an object once it is deleted with these options: those of the garbage
/// collector come and go.
fn collector_finalizers(object: &Value, options: &DeleteOptions) -> Vec<String> {
    let present: Vec<&str> = object::finalizers(object).collect();
    let wanted = options.propagation.unwrap_or_else(|| {
        let first = present.iter().find(|name| [ORPHAN, FOREGROUND].contains(*name));
        match first.copied() {
            Some(ORPHAN) => Propagation::Orphan,
            Some(_) => Propagation::Foreground,
            None => Propagation::Background,
        }
    });
    let own = match wanted {
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
    let wanted = &options.preconditions;
    // Here the real server names the kind, not the resource.
    let kind = GroupResource::new(&target.resource.group, &target.resource.kind);
    let conflict = |why: String| Err(ApiError::conflict(&kind, &target.name, &why));
    let uid = object::uid(object);
    if let Some(wanted) = wanted.uid.as_deref().filter(|wanted| *wanted != uid) {
        return conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have \
             been deleted and then recreated"
        ));
    }
    let version = object::resource_version(object);
    if let Some(wanted) = wanted
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != version)
    {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
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
    fn the_policy_decides_which_collector_finalizer_stays() {
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
