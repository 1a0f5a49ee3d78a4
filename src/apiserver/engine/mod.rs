//! The one write path of all kinds: decode, prepare, default, validate, store.
//!
//! Every decision is made on values read from the store; the store's expectation on the revision makes it stick or be
//! made again.

mod create;
mod decode;
mod delete;
mod scale;
mod update;
mod validate;

use std::sync::Arc;

use serde_json::Value;

use super::builtin::{self, BuiltIn};
use super::object::Sealed;
use super::registry::Registry;
use super::resource::{Resource, Subresource};
use super::status::{ApiError, GroupResource};
use crate::clock::Clock;
use crate::error::Chain;
use crate::store::{Change, CommitError, Expect, Key, Record, Revision, Store, Write};

pub(crate) use decode::{DecodeFault, Warnings, object as decode_object, request_body};
pub(crate) use delete::Deleted;
pub(crate) use scale::scale_of;
pub(crate) use update::Edit;

/// How often a write is tried again when somebody else was faster and the client did not insist on a version.
const CONFLICT_RETRIES: usize = 5;

/// See the module's documentation. Clones are the same engine.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
}

/// The object of a request.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) subresource: Option<Subresource>,
}

impl Target {
    pub(crate) fn new(resource: &Arc<Resource>, namespace: Option<&str>, name: &str) -> Self {
        Self {
            resource: Arc::clone(resource),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            subresource: None,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.resource.key(self.namespace.as_deref(), &self.name)
    }

    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.resource.group_resource(), &self.name)
    }
}

/// An object to answer with.
#[derive(Debug, Clone)]
pub(crate) enum Shown {
    /// As it lies in the store.
    Record(Arc<Record>),
    /// Not stored, or not any more: working form.
    Value(Value),
}

/// What a write came to.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) shown: Shown,
    pub(crate) created: bool,
}

impl Engine {
    pub(crate) fn new(store: Store, registry: Registry, clock: Clock) -> Self {
        Self {
            store,
            registry,
            clock,
        }
    }

    /// The namespace must exist; for new content it must not be on its way out.
    fn check_namespace(&self, target: &Target, is_create: bool) -> Result<(), ApiError> {
        let Some(namespace) = target.namespace.as_deref().filter(|_| target.resource.namespaced) else {
            return Ok(());
        };
        let key = Key::new(format!("{}{namespace}", builtin::NAMESPACE_STORAGE));
        match self.store.get(&key) {
            None => Err(ApiError::not_found(
                &GroupResource::new("", "namespaces"),
                namespace,
            )),
            Some(record) if is_create && builtin::is_terminating(record.json()) => {
                let resource = target.resource.group_resource();
                Err(ApiError::namespace_terminating(
                    &resource,
                    &target.name,
                    namespace,
                ))
            }
            Some(_) => Ok(()),
        }
    }

    /// Stores a working object. `Err(None)`: the key is not as expected.
    async fn put(
        &self,
        resource: &Resource,
        key: Key,
        expect: Expect,
        working: Value,
    ) -> Result<Arc<Record>, PutError> {
        let sealed = Sealed::new(resource.stored(working));
        let change = Change::Put(Box::new(move |revision: Revision| sealed.seal(revision)));
        let record = self.commit(Write { key, expect, change }).await?;
        if resource.is(BuiltIn::CustomResourceDefinition) {
            self.registry.sync();
        }
        Ok(record)
    }

    /// Puts a new value in place of a record that must not have changed; no checks are made. False if it has.
    pub(super) async fn replace_unconditionally(
        &self,
        resource: &Resource,
        record: &Record,
        working: Value,
    ) -> Result<bool, ApiError> {
        match self
            .put(resource, record.key.clone(), Expect::At(record.modified), working)
            .await
        {
            Ok(_) => Ok(true),
            Err(PutError::Conflict) => Ok(false),
            Err(PutError::Refused(err)) => Err(err),
        }
    }

    /// Removes a key; watchers see its last value with the revision of the removal.
    async fn remove(&self, resource: &Resource, record: &Record) -> Result<Arc<Record>, PutError> {
        let change = Change::Delete(Box::new(|revision: Revision, last: &Record| {
            Sealed::new(last.json().clone()).seal(revision)
        }));
        let write = Write {
            key: record.key.clone(),
            expect: Expect::At(record.modified),
            change,
        };
        let removed = self.commit(write).await?;
        if resource.is(BuiltIn::CustomResourceDefinition) {
            self.registry.sync();
        }
        Ok(removed)
    }

    async fn commit(&self, write: Write) -> Result<Arc<Record>, PutError> {
        self.store.commit(write).await.map_err(|err| match err {
            CommitError::Conflict { .. } => PutError::Conflict,
            CommitError::TooLarge { bytes, limit, .. } => {
                let what = format!("the object has {bytes} bytes, the limit is {limit}");
                PutError::Refused(ApiError::too_large(&what))
            }
            other @ (CommitError::NotJson { .. }
            | CommitError::Encoder { .. }
            | CommitError::Io(_)
            | CommitError::Closed) => PutError::Refused(ApiError::internal(Chain(&other))),
        })
    }
}

/// Why a write did not happen.
#[derive(Debug)]
enum PutError {
    /// Somebody else changed the key first.
    Conflict,
    Refused(ApiError),
}
