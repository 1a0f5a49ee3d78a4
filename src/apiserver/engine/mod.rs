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
use crate::store::{Change, CommitError, Expect, Guard, Key, Record, Revision, Store, Write};

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
        match self.store.get(&namespace_key(namespace)) {
            None => Err(no_namespace(namespace)),
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
        let change = sealed(resource, working);
        let record = self.store.commit(Write { key, expect, change }).await?;
        if resource.is(BuiltIn::CustomResourceDefinition) {
            self.registry.sync();
        }
        Ok(record)
    }

    /// Stores a new object, in a namespace that takes new objects at that very moment.
    async fn put_new(&self, target: &Target, working: Value) -> Result<Arc<Record>, PutError> {
        let resource = &target.resource;
        let Some(namespace) = target.namespace.as_deref().filter(|_| resource.namespaced) else {
            return self.put(resource, target.key(), Expect::Absent, working).await;
        };
        let change = sealed(resource, working);
        let write = Write {
            key: target.key(),
            expect: Expect::Absent,
            change,
        };
        let holds = |namespace: &Record| !builtin::is_terminating(namespace.json());
        let guard = Guard {
            key: namespace_key(namespace),
            holds,
        };
        match self.store.commit_guarded(write, guard).await {
            // The namespace went, or began to, after it was checked.
            Err(CommitError::Unguarded { .. }) => {
                let why = self.check_namespace(target, true).err();
                Err(PutError::Refused(why.unwrap_or_else(|| no_namespace(namespace))))
            }
            outcome => Ok(outcome?),
        }
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
        let removed = self.store.commit(write).await?;
        if resource.is(BuiltIn::CustomResourceDefinition) {
            self.registry.sync();
        }
        Ok(removed)
    }
}

fn namespace_key(name: &str) -> Key {
    Key::new(format!("{}{name}", builtin::NAMESPACE_STORAGE))
}

fn no_namespace(name: &str) -> ApiError {
    ApiError::not_found(&GroupResource::new("", "namespaces"), name)
}

fn sealed(resource: &Resource, working: Value) -> Change {
    let sealed = Sealed::new(resource.stored(working));
    Change::Put(Box::new(move |revision: Revision| sealed.seal(revision)))
}

/// Why a write did not happen.
#[derive(Debug)]
enum PutError {
    /// Somebody else changed the key first.
    Conflict,
    Refused(ApiError),
}

impl From<CommitError> for PutError {
    fn from(err: CommitError) -> Self {
        match err {
            CommitError::Conflict { .. } => Self::Conflict,
            CommitError::TooLarge { bytes, limit, .. } => {
                let what = format!("the object has {bytes} bytes, the limit is {limit}");
                Self::Refused(ApiError::too_large(&what))
            }
            other @ (CommitError::NotJson { .. }
            | CommitError::Encoder { .. }
            | CommitError::Unguarded { .. }
            | CommitError::Io(_)
            | CommitError::Closed) => Self::Refused(ApiError::internal(Chain(&other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::{DeleteOptions, WriteOptions};
    use super::super::status::Reason;
    use super::*;
    use crate::store::StoreConfig;
    use serde_json::json;

    /// The check before a create and its write are two moments; what counts is the second.
    #[tokio::test]
    async fn a_namespace_must_take_objects_at_the_moment_of_the_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = StoreConfig::at(directory.path().join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let engine = Engine::new(store.clone(), Registry::new(store, Clock::System), Clock::System);
        let snapshot = engine.registry.snapshot();
        let namespace = Target::new(snapshot.built_in(BuiltIn::Namespace), None, "n");
        let map = |name: &str| Target::new(snapshot.built_in(BuiltIn::ConfigMap), Some("n"), name);
        let put_new = async |name: &str| {
            let working = json!({"metadata": {"name": name, "namespace": "n"}});
            match engine.put_new(&map(name), working).await {
                Ok(_) => None,
                Err(PutError::Refused(err)) => Some(err.reason()),
                Err(PutError::Conflict) => Some(Reason::Conflict),
            }
        };
        assert_eq!(put_new("too-early").await, Some(Reason::NotFound));
        let mut warnings = Warnings::default();
        let object = json!({"metadata": {"name": "n"}});
        engine
            .create(&namespace, object, WriteOptions::INTERNAL, &mut warnings)
            .await
            .expect("created");
        assert_eq!(put_new("in-time").await, None);
        assert_eq!(put_new("in-time").await, Some(Reason::Conflict));
        engine
            .delete(&namespace, &DeleteOptions::default())
            .await
            .expect("marked");
        assert_eq!(put_new("too-late").await, Some(Reason::Forbidden));
    }
}
