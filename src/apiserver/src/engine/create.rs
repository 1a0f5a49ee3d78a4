//! Creation of objects.

use serde_json::{Value, json};

use super::update::check_name;
use super::{Engine, PutError, ResultObject, Target, Warnings, WriteResult, ownership, validate};
use crate::admission::Admitted;
use crate::endpoints::options::WriteOptions;
use crate::object::{self, managed_fields, metadata};
use crate::registry::resource::{Origin, Subresource};
use crate::status::ApiError;

/// Origin of the managed fields of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership {
    /// The engine computes them from the change.
    Tracked,
    /// The object contains them.
    Given,
}

/// Field manager of the server's own writes, named as in Kubernetes.
const OWN_MANAGER: &str = "kube-apiserver";

/// Maximum attempts for `metadata.generateName`.
const GENERATE_NAME_ATTEMPTS: usize = 8;

impl Engine {
    /// Creates an object from its working form. `target.name` is the name in the URL, or empty.
    pub(crate) async fn create(
        &self,
        target: &Target,
        working: Value,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        self.create_with(target, working, Ownership::Tracked, options, warnings)
            .await
    }

    /// Sets the managed fields of an object that is answered but not stored.
    pub(crate) fn track_unstored(&self, target: &Target, object: &mut Value) {
        let managers = ownership::of_created(target, object, self.clock.now());
        managed_fields::set(object, managers);
    }

    /// Sets the managed fields of a status that the server itself wrote.
    pub(crate) fn track_own_status(&self, target: &Target, new: &mut Value, old: &Value) {
        let target = Target {
            subresource: Some(Subresource::Status),
            manager: OWN_MANAGER.to_owned(),
            ..target.clone()
        };
        let managers = ownership::of_updated(&target, new, old, self.clock.now());
        managed_fields::set(new, managers);
    }

    pub(super) async fn create_with(
        &self,
        target: &Target,
        working: Value,
        ownership: Ownership,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        let resource = &target.resource;
        let mut working = working;
        resolve_namespace(target, &mut working)?;
        let mut target = target.clone();
        let is_named_by_object = target.name.is_empty();
        let take_name = |target: &mut Target, working: &Value| {
            if is_named_by_object {
                target.name = object::name(working).to_owned();
                return Ok(());
            }
            check_name(target, working)
        };
        take_name(&mut target, &working)?;
        self.check_namespace(&target, true)?;
        if resource.custom().is_some_and(|custom| custom.is_terminating) {
            let reason = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::forbidden(
                &resource.group_resource(),
                &target.name,
                reason,
            ));
        }
        warn_duplicate_owners(&mut working, warnings);
        let mut ownership = ownership;
        if self.mutates(&target) {
            self.mutate_new(&target, &mut working, ownership, options.dry_run, warnings)?;
            take_name(&mut target, &working)?;
            ownership = Ownership::Given;
        }
        let base = object::text(&working, &["metadata", "generateName"]).to_owned();
        let generates = target.name.is_empty() && !base.is_empty();
        let attempts = if generates { GENERATE_NAME_ATTEMPTS } else { 1 };
        let mut outcome = Err(ApiError::generate_name_conflict(
            &resource.group_resource(),
            &base,
        ));
        for _ in 0..attempts {
            let mut candidate = working.clone();
            if generates {
                target.name = metadata::generate_name(&base);
                object::metadata_mut(&mut candidate)
                    .insert("name".to_owned(), Value::from(target.name.as_str()));
            }
            outcome = self
                .try_create(&target, candidate, ownership, options, warnings)
                .await;
            let name_exists =
                matches!(&outcome, Err(err) if err.reason() == crate::status::Reason::AlreadyExists);
            if !name_exists {
                return outcome;
            }
        }
        if generates {
            return Err(ApiError::generate_name_conflict(
                &resource.group_resource(),
                &target.name,
            ));
        }
        outcome
    }

    async fn try_create(
        &self,
        target: &Target,
        mut working: Value,
        ownership: Ownership,
        options: WriteOptions,
        warnings: &mut Warnings,
    ) -> Result<WriteResult, ApiError> {
        let resource = &target.resource;
        let given_version = object::resource_version(&working).to_owned();
        let now = self.clock.now();
        metadata::initialise(&mut working, now);
        let managers = match ownership {
            Ownership::Tracked => ownership::of_created(target, &working, now),
            Ownership::Given => managed_fields::take(&mut working),
        };
        managed_fields::set(&mut working, managers);
        prepare(target, &mut working);
        target.check_change(None, &working)?;
        validate::create(resource, &working, warnings)?;
        if !matches!(given_version.as_str(), "" | "0") {
            return Err(ApiError::untyped(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        object::metadata_mut(&mut working).remove("resourceVersion");
        let write = Admitted {
            new: Some(&working),
            old: None,
            is_dry_run: options.dry_run,
        };
        self.admit(target, write, warnings)?;
        let already_exists = |is_being_deleted| {
            ApiError::already_exists(&resource.group_resource(), &target.name, is_being_deleted)
        };
        if let Some(existing) = self.store.get(&target.key()) {
            return Err(already_exists(object::is_being_deleted(&existing.json())));
        }
        if options.dry_run {
            return Ok(WriteResult {
                object: ResultObject::Value(working),
                created: true,
            });
        }
        match self.put_new(target, working).await {
            Ok(record) => Ok(WriteResult {
                object: ResultObject::Record(record),
                created: true,
            }),
            Err(PutError::Conflict) => Err(already_exists(false)),
            Err(PutError::Rejected(err)) => Err(err),
        }
    }
}

fn prepare(target: &Target, working: &mut Value) {
    let by = target.by.as_ref().map(|by| &*by.user);
    match &target.resource.origin {
        Origin::BuiltIn(built_in) => built_in.prepare_create(working, by),
        Origin::Custom(custom) => {
            let status = match working.as_object_mut() {
                Some(fields) if custom.has_status => fields.remove("status"),
                Some(_) | None => None,
            };
            // The default of the status, as kube-apiserver sets it when it reads the object.
            if status.is_some() {
                custom.schema.apply_defaults(working);
            }
            object::metadata_mut(working).insert("generation".to_owned(), json!(1));
        }
    }
}

/// Sets the namespace of the request on the object. Fails if the object has another namespace.
/// Removes the namespace of a cluster-scoped object.
pub(super) fn resolve_namespace(target: &Target, working: &mut Value) -> Result<(), ApiError> {
    let expected = target
        .namespace
        .as_deref()
        .filter(|_| target.resource.namespaced)
        .unwrap_or_default();
    let given = object::namespace(working);
    if given.is_empty() {
        if !expected.is_empty() {
            object::metadata_mut(working).insert("namespace".to_owned(), Value::from(expected));
        }
        return Ok(());
    }
    if expected.is_empty() {
        // Clients may send a namespace for cluster-scoped objects.
        object::metadata_mut(working).remove("namespace");
        return Ok(());
    }
    if given != expected {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

pub(super) fn warn_duplicate_owners(working: &mut Value, warnings: &mut Warnings) {
    let removed = metadata::dedup_owner_references(working);
    if !removed.is_empty() {
        warnings.add(format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            removed.join(", ")
        ));
    }
}
