//! Write path of all kinds: decode, prepare, apply defaults, validate, store.
//!
//! Each decision uses values read from the store. The write expects their revision; if the revision
//! has changed, the engine repeats the decision.

mod admit;
mod apply;
mod create;
mod decode;
mod delete;
pub(crate) mod list;
mod ownership;
mod permissions;
mod scale;
pub(crate) mod selection;
mod update;
mod validate;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::admission::StoredPolicies;
use crate::authorization::stored::StoredPolicy;
use crate::authorization::{ObjectPlace, Requestor};
use crate::builtin::{self, BuiltIn, CRD_STORAGE};
use crate::certificates;
use crate::object::{self, PreEncoded};
use crate::registry::Registry;
use crate::registry::resource::{DefinitionVersion, Resource, Subresource};
use crate::status::{ApiError, GroupResource};
use rooflet_base::clock::Clock;
use rooflet_base::error::Chain;
use rooflet_store::{Change, CommitError, Expect, Guard, Key, Record, Revision, Store, Write};

pub(crate) use apply::AppliedConfiguration;
pub(crate) use decode::{DecodeFault, Warnings, not_registered, object as decode_object, request_body};
pub(crate) use delete::Deleted;
pub(crate) use scale::{ScaleEdit, scale_of};
pub(crate) use update::Edit;
pub(crate) use validate::run_blocking;

/// Time for which a write without a required version is retried after conflicts. Equals the request
/// timeout of kube-apiserver.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// See the module documentation. Clones share one engine.
#[derive(Clone)]
pub(crate) struct Engine {
    pub store: Store,
    pub registry: Registry,
    pub rbac: StoredPolicy,
    pub admission: StoredPolicies,
    pub clock: Clock,
}

/// Object of a request.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub resource: Arc<Resource>,
    pub namespace: Option<String>,
    pub name: String,
    pub subresource: Option<Subresource>,
    /// User of the request. `None` for writes of the server itself.
    pub by: Option<Requestor>,
    /// Field manager of the request. May be empty.
    pub manager: String,
}

/// Field manager of the server's own writes.
const SERVER_MANAGER: &str = "kube-apiserver";

impl Target {
    pub(crate) fn new(resource: &Arc<Resource>, namespace: Option<&str>, name: &str) -> Self {
        Self {
            resource: Arc::clone(resource),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            subresource: None,
            by: None,
            manager: SERVER_MANAGER.to_owned(),
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.resource.key(self.namespace.as_deref(), &self.name)
    }

    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::not_found(&self.resource.group_resource(), &self.name)
    }

    /// Checks whether the user may read the stored object. `None` stands for a missing object.
    pub(crate) fn check_stored(&self, stored: Option<&Record>) -> Result<(), ApiError> {
        match &self.by {
            None => Ok(()),
            Some(by) => by.check_stored(self.place(&self.resource.group_resource()), stored),
        }
    }

    /// Checks whether the user may store `new`, which is already prepared for storage.
    fn check_change(&self, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
        let resource = self.resource.group_resource();
        if let Some(by) = &self.by {
            by.check_change(self.place(&resource), old, new)?;
        }
        if old.is_none() && self.resource.is(BuiltIn::CertificateSigningRequest) {
            certificates::check_subject(new)
                .map_err(|reason| ApiError::forbidden(&resource, &self.name, &reason.to_string()))?;
        }
        Ok(())
    }

    fn place<'a>(&'a self, resource: &'a GroupResource) -> ObjectPlace<'a> {
        ObjectPlace {
            resource,
            version: &self.resource.version,
            subresource: self.subresource.map(Subresource::as_str),
            namespace: self.namespace.as_deref(),
            name: &self.name,
        }
    }
}

/// Object of a response.
#[derive(Debug, Clone)]
pub(crate) enum ResultObject {
    /// Stored record.
    Record(Arc<Record>),
    /// Object that is not stored (dry run, deletion), in working form.
    Value(Value),
}

/// Result of a write.
#[derive(Debug, Clone)]
pub(crate) struct WriteResult {
    pub object: ResultObject,
    pub created: bool,
}

impl Engine {
    pub(crate) fn new(store: Store, registry: Registry, clock: Clock) -> Self {
        Self {
            rbac: StoredPolicy::load(&store),
            admission: StoredPolicies::load(&store),
            store,
            registry,
            clock,
        }
    }

    /// Checks that the namespace exists and, for creations, that it is not terminating.
    fn check_namespace(&self, target: &Target, is_create: bool) -> Result<(), ApiError> {
        let Some(namespace) = target.namespace.as_deref().filter(|_| target.resource.namespaced) else {
            return Ok(());
        };
        match self.store.get(&namespace_key(namespace)) {
            None => Err(no_namespace(namespace)),
            Some(record) if is_create && builtin::is_terminating(&record.json()) => {
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

    /// Stores an object in working form, if the definition it was prepared with is still current.
    async fn put(
        &self,
        resource: &Resource,
        key: Key,
        expect: Expect,
        working: Value,
    ) -> Result<Arc<Record>, PutError> {
        let change = put_change(resource, working);
        let write = Write { key, expect, change };
        let guards = definition_guard(resource, |_| true).into_iter().collect();
        let outcome = self.commit(resource, write, guards).await;
        outcome.map_err(|err| self.put_error(resource, err))
    }

    /// Stores a new object, if its namespace and definition accept new objects at commit time.
    async fn put_new(&self, target: &Target, working: Value) -> Result<Arc<Record>, PutError> {
        let resource = &target.resource;
        let change = put_change(resource, working);
        let write = Write {
            key: target.key(),
            expect: Expect::Absent,
            change,
        };
        let namespace = target.namespace.as_deref().filter(|_| resource.namespaced);
        let in_namespace = namespace.map(|namespace| Guard {
            key: namespace_key(namespace),
            holds: Box::new(|namespace| !builtin::is_terminating(&namespace.json())),
        });
        let by_definition = definition_guard(resource, |definition| !object::is_being_deleted(definition));
        let guards = in_namespace.into_iter().chain(by_definition).collect();
        match (self.commit(resource, write, guards).await, namespace) {
            // The namespace was deleted, or began to terminate, after the check.
            (Err(CommitError::GuardFailed { key }), Some(namespace)) if key == namespace_key(namespace) => {
                let error = self.check_namespace(target, true).err();
                Err(PutError::Rejected(
                    error.unwrap_or_else(|| no_namespace(namespace)),
                ))
            }
            (outcome, _) => outcome.map_err(|err| self.put_error(resource, err)),
        }
    }

    /// Commits a guarded write. Updates the registry, the RBAC policy or the admission policies if
    /// they contain the object.
    async fn commit(
        &self,
        resource: &Resource,
        write: Write,
        guards: Vec<Guard>,
    ) -> Result<Arc<Record>, CommitError> {
        let record = self.store.commit_guarded(write, guards).await?;
        if resource.is(BuiltIn::CustomResourceDefinition) {
            self.registry.sync();
        }
        self.rbac.refresh(&self.store, &record.key);
        self.admission.refresh(&self.store, &record.key);
        Ok(record)
    }

    /// Converts the error of a write. If the definition has changed, updates the registry first.
    fn put_error(&self, resource: &Resource, err: CommitError) -> PutError {
        if matches!(err, CommitError::GuardFailed { .. }) {
            self.registry.sync();
            return PutError::Rejected(ApiError::definition_changed(&resource.group_resource()));
        }
        err.into()
    }

    /// Replaces a record without checks. Returns false if the record has changed.
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
            Err(PutError::Rejected(err)) => Err(err),
        }
    }

    /// Deletes a key. Watchers receive its last value with the revision of the deletion.
    async fn remove(&self, resource: &Resource, record: &Record) -> Result<Arc<Record>, PutError> {
        let change = Change::Delete(Box::new(|revision: Revision, last: &Record| {
            PreEncoded::new(Value::clone(&last.json())).with_resource_version(revision)
        }));
        let write = Write {
            key: record.key.clone(),
            expect: Expect::At(record.modified),
            change,
        };
        Ok(self.commit(resource, write, Vec::new()).await?)
    }
}

pub(crate) fn namespace_key(name: &str) -> Key {
    Key::new(format!("{}{name}", builtin::NAMESPACE_STORAGE))
}

/// Returns a guard for a custom resource: the definition is unchanged, and `holds` is true for it.
fn definition_guard(resource: &Resource, holds: fn(&Value) -> bool) -> Option<Guard> {
    let version = resource.custom()?.definition.clone();
    Some(Guard {
        key: Key::new(format!("{CRD_STORAGE}{}", version.name)),
        holds: Box::new(move |definition| {
            let definition = definition.json();
            DefinitionVersion::of(&definition) == version && holds(&definition)
        }),
    })
}

fn no_namespace(name: &str) -> ApiError {
    ApiError::not_found(&GroupResource::new("", "namespaces"), name)
}

fn put_change(resource: &Resource, working: Value) -> Change {
    let is_being_deleted = object::is_being_deleted(&working);
    let encoded = PreEncoded::new(resource.stored(working));
    let encode = Box::new(move |revision: Revision| encoded.with_resource_version(revision));
    match is_being_deleted {
        true => Change::PutBeforeDeletion(encode),
        false => Change::Put(encode),
    }
}

/// Failure of a write.
#[derive(Debug)]
enum PutError {
    /// The key has been changed concurrently.
    Conflict,
    Rejected(ApiError),
}

impl From<CommitError> for PutError {
    fn from(err: CommitError) -> Self {
        match err {
            CommitError::Conflict { .. } => Self::Conflict,
            CommitError::TooLarge { bytes, limit, .. } => {
                let message = format!("the object has {bytes} bytes, the limit is {limit}");
                Self::Rejected(ApiError::too_large(&message))
            }
            other @ (CommitError::NotJson { .. }
            | CommitError::Encoder { .. }
            | CommitError::GuardFailed { .. }
            | CommitError::Full { .. }
            | CommitError::Io(_)
            | CommitError::Closed) => Self::Rejected(ApiError::internal(Chain(&other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::status::Reason;
    use super::*;
    use crate::endpoints::options::{DeleteOptions, WriteOptions};
    use serde_json::json;

    /// The definition may change between reading an object and writing it.
    #[tokio::test]
    async fn write_fails_if_the_definition_changed_since_the_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = crate::store_config(directory.path().join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let engine = Engine::new(store.clone(), Registry::new(store, Clock::System), Clock::System);
        let mut warnings = Warnings::default();
        let names =
            json!({"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"});
        let definition = json!({"metadata": {"name": "things.a.com"}, "spec": {"group": "a.com", "scope": "Cluster",
            "names": names, "conversion": {"strategy": "None"}, "versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        let definitions = Arc::clone(
            engine
                .registry
                .snapshot()
                .built_in(BuiltIn::CustomResourceDefinition),
        );
        let target = Target::new(&definitions, None, "things.a.com");
        let options = WriteOptions::INTERNAL;
        let created = engine.create(&target, definition, options, &mut warnings).await;
        created.expect("created");
        crate::controller::definitions::settle(&engine).await;
        let things = || {
            let snapshot = engine.registry.snapshot();
            Arc::clone(snapshot.resource("a.com", "v1", "things").expect("served"))
        };
        let before = things();
        let deprecate = |old: &Value, _: &mut Warnings| {
            let mut new = old.clone();
            new["spec"]["versions"][0]["deprecated"] = json!(true);
            Ok(new)
        };
        let edit = Edit::Change(&deprecate);
        let changed = engine.update(&target, edit, options, &mut warnings).await;
        changed.expect("changed");
        let thing = json!({"apiVersion": "a.com/v1", "kind": "Thing", "metadata": {"name": "t"}});
        let mut create = async |resource: &Arc<Resource>| {
            let target = Target::new(resource, None, "t");
            let created = engine
                .create(&target, thing.clone(), options, &mut warnings)
                .await;
            created.map(drop).map_err(|err| err.is_definition_change())
        };
        assert_eq!(create(&before).await, Err(true));
        assert_eq!(create(&things()).await, Ok(()));
    }

    /// The state of the namespace counts at commit time, not when it was checked.
    #[tokio::test]
    async fn namespace_must_accept_objects_at_commit_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = crate::store_config(directory.path().join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let engine = Engine::new(store.clone(), Registry::new(store, Clock::System), Clock::System);
        let snapshot = engine.registry.snapshot();
        let namespace = Target::new(snapshot.built_in(BuiltIn::Namespace), None, "n");
        let map = |name: &str| Target::new(snapshot.built_in(BuiltIn::ConfigMap), Some("n"), name);
        let put_new = async |name: &str| {
            let working = json!({"metadata": {"name": name, "namespace": "n"}});
            match engine.put_new(&map(name), working).await {
                Ok(_) => None,
                Err(PutError::Rejected(err)) => Some(err.reason()),
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
