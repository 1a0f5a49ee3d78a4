//! Update and patch of objects, including removal if the last finalizer is removed.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::create::{Ownership, resolve_namespace, warn_duplicate_owners};
use super::{
    Engine, PutError, ResultObject, Target, WRITE_TIMEOUT, Warnings, WriteResult, ownership, validate,
};
use crate::admission::Admitted;
use crate::builtin::BuiltIn;
use crate::endpoints::options::WriteOptions;
use crate::object::{self, managed_fields, metadata};
use crate::registry::resource::{Origin, Resource, Subresource};
use crate::status::{ApiError, Reason};
use rooflet_schema::FieldError;
use rooflet_store::{Expect, Record};

/// Function of [`Edit::Own`].
type OwnChange<'a> = dyn Fn(Option<&Value>, &mut Warnings) -> Result<Value, ApiError> + Send + Sync + 'a;

/// Source of the new object.
pub(crate) enum Edit<'a> {
    /// Complete object in working form.
    Replace(Value),
    /// Function from the current to the new object, in working form. May run several times.
    Change(&'a (dyn Fn(&Value, &mut Warnings) -> Result<Value, ApiError> + Send + Sync)),
    /// Like `Change`, but the new object contains its managed fields. The current object is `None`
    /// if it does not exist.
    Own(&'a OwnChange<'a>),
}

impl Engine {
    pub(crate) async fn update(
        &self,
        target: &Target,
        edit: Edit<'_>,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        if let Edit::Replace(working) = &edit {
            check_name(target, working)?;
        }
        target.check_stored(self.store.get(&target.key()).as_deref())?;
        self.check_namespace(target, false)?;
        let deadline = self.clock.instant() + WRITE_TIMEOUT;
        loop {
            // Warnings of a repeated attempt must not be reported twice.
            let mut noted = Warnings::default();
            match self.try_update(target, &edit, options, &mut noted).await {
                Err(err) => {
                    warnings.merge(noted);
                    return Err(err);
                }
                Ok(Attempt::Done(written)) => {
                    warnings.merge(noted);
                    return Ok(written);
                }
                Ok(Attempt::Create(working, ownership)) => {
                    let created = self
                        .create_with(target, working, ownership, options, &mut noted)
                        .await;
                    match created {
                        // Another request created the object first: repeat the apply.
                        Err(err)
                            if ownership == Ownership::Given
                                && err.reason() == Reason::AlreadyExists
                                && self.clock.instant() < deadline => {}
                        created => {
                            warnings.merge(noted);
                            return created;
                        }
                    }
                }
                Ok(Attempt::Conflicted {
                    requires_version: false,
                }) if self.clock.instant() < deadline => {}
                Ok(Attempt::Conflicted { .. }) => {
                    return Err(ApiError::stale(&target.resource.group_resource(), &target.name));
                }
            }
        }
    }

    async fn try_update(
        &self,
        target: &Target,
        edit: &Edit<'_>,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<Attempt, ApiError> {
        let resource = &target.resource;
        let stored = self.store.get(&target.key());
        target.check_stored(stored.as_deref())?;
        let Some(record) = stored else {
            return match edit {
                Edit::Replace(working) if resource.creates_on_update() && target.subresource.is_none() => {
                    let mut working = working.clone();
                    object::metadata_mut(&mut working).remove("resourceVersion");
                    Ok(Attempt::Create(working, Ownership::Tracked))
                }
                Edit::Own(change) if target.subresource.is_none() => {
                    Ok(Attempt::Create(change(None, warnings)?, Ownership::Given))
                }
                Edit::Replace(_) | Edit::Change(_) | Edit::Own(_) => Err(target.not_found()),
            };
        };
        let old = resource.view(&record);
        let mut new = match edit {
            Edit::Replace(working) => working.clone(),
            Edit::Change(change) => change(&old, warnings)?,
            Edit::Own(change) => change(Some(&old), warnings)?,
        };
        check_name(target, &new)?;
        resolve_namespace(target, &mut new)?;
        if matches!(edit, Edit::Replace(_)) {
            check_uid(target, &new, &old)?;
        }
        let requires_version = check_version(target, &new, &record, edit)?;
        warn_duplicate_owners(&mut new, warnings);
        let sent = self.mutates(target).then(|| new.clone());
        metadata::inherit(&mut new, &old);
        let now = self.clock.now();
        let managers = match edit {
            Edit::Own(_) => managed_fields::text(&new),
            Edit::Replace(_) | Edit::Change(_) => ownership::of_updated(target, &new, &old, now),
        };
        if let Some(mut sent) = sent {
            managed_fields::set(&mut sent, managers.clone());
            self.mutate(target, &mut sent, Some(&old), options.dry_run, warnings)?;
            metadata::inherit(&mut sent, &old);
            new = sent;
        }
        prepare(resource, &mut new, &old, target.subresource, now);
        managed_fields::set(&mut new, managers);
        target.check_change(Some(&old), &new)?;
        object::set_resource_version(&mut new, record.modified);
        validate::update(resource, &new, &old, target.subresource, warnings)?;
        let write = Admitted {
            new: Some(&new),
            old: Some(&old),
            is_dry_run: options.dry_run,
        };
        self.admit(target, write, warnings)?;
        if self.is_finished(resource, &new, &old) {
            return self.finish(target, &record, new, options, requires_version).await;
        }
        if object::same_content(&resource.stored(new.clone()), &record.json())
            && ownership::is_same(&new, &record.json())
        {
            return Ok(Attempt::Done(WriteResult {
                object: ResultObject::Record(record),
                created: false,
            }));
        }
        if options.dry_run {
            return Ok(Attempt::Done(WriteResult {
                object: ResultObject::Value(new),
                created: false,
            }));
        }
        match self
            .put(resource, target.key(), Expect::At(record.modified), new)
            .await
        {
            Ok(record) => Ok(Attempt::Done(WriteResult {
                object: ResultObject::Record(record),
                created: false,
            })),
            Err(PutError::Conflict) => Ok(Attempt::Conflicted { requires_version }),
            Err(PutError::Rejected(err)) => Err(err),
        }
    }

    /// Returns true if the update removes the last reason to keep a deleted object.
    fn is_finished(&self, resource: &Resource, new: &Value, old: &Value) -> bool {
        let can_be_removed = match &resource.origin {
            Origin::BuiltIn(built_in) => built_in.can_be_removed(new),
            Origin::Custom(_) => true,
        };
        let grace_is_over = old["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or_default()
            == 0;
        object::is_being_deleted(old)
            && grace_is_over
            && object::finalizers(new).next().is_none()
            && can_be_removed
    }

    async fn finish(
        &self,
        target: &Target,
        record: &Arc<Record>,
        new: Value,
        options: WriteOptions,
        requires_version: bool,
    ) -> Result<Attempt, ApiError> {
        let done = Attempt::Done(WriteResult {
            object: ResultObject::Value(new),
            created: false,
        });
        if options.dry_run {
            return Ok(done);
        }
        match self.remove(&target.resource, record).await {
            Ok(_) => Ok(done),
            Err(PutError::Conflict) => Ok(Attempt::Conflicted { requires_version }),
            Err(PutError::Rejected(err)) => Err(err),
        }
    }
}

enum Attempt {
    Done(WriteResult),
    Create(Value, Ownership),
    /// Concurrent write. `requires_version` is true if the client specified a resourceVersion.
    Conflicted {
        requires_version: bool,
    },
}

/// Checks that an object has the name in the path of the request.
pub(super) fn check_name(target: &Target, object: &Value) -> Result<(), ApiError> {
    let url_name = &target.name;
    match object::name(object) {
        name if name == url_name => Ok(()),
        "" => Err(ApiError::bad_request(format!(
            "the name of the object ({url_name} based on URL) was undeterminable: name must be provided"
        ))),
        name => Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({url_name})"
        ))),
    }
}

fn check_uid(target: &Target, new: &Value, old: &Value) -> Result<(), ApiError> {
    let (given, actual) = (object::uid(new), object::uid(old));
    if given.is_empty() || given == actual {
        return Ok(());
    }
    let key = registry_key(target);
    let reason = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
         failed: UID in precondition: {given}, UID in object meta: {actual}"
    );
    Err(ApiError::conflict(
        &target.resource.group_resource(),
        &target.name,
        &reason,
    ))
}

/// Returns the key of an object in the store of kube-apiserver.
fn registry_key(target: &Target) -> String {
    let resource = &target.resource;
    let has_group = resource.custom().is_some() || resource.is(BuiltIn::CustomResourceDefinition);
    let parts = [
        has_group.then_some(resource.group.as_str()),
        Some(resource.plural.as_str()),
        target.namespace.as_deref(),
        Some(target.name.as_str()),
    ];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    parts.join("/")
}

/// Checks the resourceVersion of the request. Returns true if the client specified one itself.
fn check_version(target: &Target, new: &Value, record: &Record, edit: &Edit<'_>) -> Result<bool, ApiError> {
    let resource = &target.resource;
    let given = object::resource_version(new);
    let invalid = |field: &str, value: Value, detail: &str| {
        let errors = [FieldError::invalid(field, &value, detail)];
        ApiError::invalid(&resource.group, &resource.plural, &target.name, &errors)
    };
    let version: u64 = match given {
        "" => 0,
        text => text
            .parse()
            .map_err(|_| ApiError::untyped(format!("strconv.ParseUint: parsing {text:?}: invalid syntax")))?,
    };
    if version == 0 {
        return if resource.updates_unconditionally() {
            Ok(false)
        } else {
            Err(invalid(
                "metadata.resourceVersion",
                json!(0),
                "must be specified for an update",
            ))
        };
    }
    if version != record.modified.0 {
        return Err(ApiError::stale(&resource.group_resource(), &target.name));
    }
    Ok(matches!(edit, Edit::Replace(_)))
}

fn prepare(
    resource: &Resource,
    new: &mut Value,
    old: &Value,
    subresource: Option<Subresource>,
    now: Timestamp,
) {
    let custom = match &resource.origin {
        Origin::BuiltIn(built_in) => {
            return built_in.prepare_update(new, old, subresource.map_or("", Subresource::as_str), now);
        }
        Origin::Custom(custom) => custom,
    };
    if subresource == Some(Subresource::Status) {
        let status = new.get("status").cloned();
        *new = old.clone();
        if let Some(map) = new.as_object_mut() {
            object::set_or_remove(map, "status", status);
        }
        return;
    }
    if custom.has_status
        && let Some(map) = new.as_object_mut()
    {
        object::set_or_remove(map, "status", old.get("status").cloned());
    }
    let differs = {
        let beside_metadata = |object: &Value| -> Vec<(String, Value)> {
            let members = object
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(key, _)| *key != "metadata");
            members.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        beside_metadata(new) != beside_metadata(old)
    };
    if differs {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
        object::metadata_mut(new).insert("generation".to_owned(), json!(generation));
    }
}
