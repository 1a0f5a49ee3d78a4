//! Garbage collector: deletes objects without owners, and completes deletions that wait for
//! dependents or for their orphaning.
//!
//! One task watches all changes and keeps an index of dependents by owner. It decides from the
//! current objects and writes through the engine, with the object's resourceVersion as
//! precondition. If an object has changed, the decision is repeated.

mod decide;
mod index;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt as _;
use http::StatusCode;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::builtin::CRD_STORAGE;
use crate::controller::watch_loop::{self, WatchLoop};
use crate::endpoints::options::{DeleteOptions, Preconditions, Propagation, WriteOptions};
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::registry::Snapshot;
use crate::registry::resource::Resource;
use crate::status::ApiError;
use decide::{Decision, Dependent, FOREGROUND, ORPHAN, Owner, OwnerReference, owner_references};
use index::{Affected, Index};
use rooflet_store::{Event, Key, Record};

const EVERYTHING: &str = "/";
/// Maximum concurrent writes: enough to fill the store's batches without delaying requests.
const WRITES_MAX: usize = 64;

pub(crate) struct GarbageCollector {
    engine: Engine,
    index: Index,
    /// Objects to process.
    dirty: BTreeSet<Key>,
    /// Objects to retry after a delay.
    failed: BTreeSet<Key>,
}

impl WatchLoop for GarbageCollector {
    const LISTED: &'static str = EVERYTHING;

    fn reset(&mut self, listed: Vec<Arc<Record>>) {
        self.index = Index::default();
        self.dirty = listed
            .iter()
            .filter(|record| self.index.insert(record))
            .map(|record| record.key.clone())
            .collect();
    }

    fn observe_event(&mut self, event: &Event) {
        let Affected { keys, owners } = self.index.apply(event);
        self.dirty.extend(keys);
        if !owners.is_empty() {
            let snapshot = self.engine.registry.snapshot();
            let object = event.record.json();
            let namespace = object::namespace(&object);
            self.dirty.extend(
                owners
                    .iter()
                    .filter_map(|owner| match find(&snapshot, namespace, owner) {
                        OwnerLocation::At(key) => Some(key),
                        OwnerLocation::Unknown => None,
                    }),
            );
        }
        if event.key().as_str().starts_with(CRD_STORAGE) {
            // Owners of kinds that were undefined may be resolvable now.
            self.dirty.extend(self.index.all());
        }
    }

    fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    async fn work(&mut self) {
        self.collect().await;
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn requeue_failed(&mut self) {
        self.dirty.append(&mut self.failed);
    }
}

impl GarbageCollector {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            index: Index::default(),
            dirty: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let store = self.engine.store.clone();
        watch_loop::run(&store, self, stop).await;
    }

    /// Decides on all dirty objects and applies the decisions.
    async fn collect(&mut self) {
        let snapshot = self.engine.registry.snapshot();
        let mut jobs = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            let Some(record) = self.engine.store.get(&key) else {
                continue;
            };
            let object = record.json();
            match self.decide(&snapshot, &object) {
                Decision::Keep => {}
                Decision::AwaitDependents => {
                    let waiting = self.dependents(&object);
                    let next =
                        waiting.filter(|(_, dependent)| dependent.blocks && !dependent.is_being_deleted);
                    // A dependent's own decision applies. If the dependent is dirty, too, this is
                    // the same decision a second time, which `dedup_by` removes below.
                    jobs.extend(next.filter_map(|(record, _)| {
                        let decision = self.decide(&snapshot, &record.json());
                        (!matches!(decision, Decision::Keep | Decision::AwaitDependents))
                            .then_some((record, decision))
                    }));
                }
                decision @ (Decision::Delete(_)
                | Decision::UnblockAndDelete
                | Decision::DropOwners(_)
                | Decision::Orphan
                | Decision::Release) => jobs.push((record, decision)),
            }
        }
        jobs.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
        jobs.dedup_by(|(a, _), (b, _)| a.key == b.key);
        let this = &*self;
        let outcomes: Vec<Option<Key>> = futures::stream::iter(jobs)
            .map(|(record, decision)| {
                let snapshot = &snapshot;
                async move {
                    let outcome = this.apply(snapshot, &record, &decision).await;
                    outcome.err().map(|err| {
                        if err.code() == StatusCode::CONFLICT {
                            debug!(key = %record.key, "object changed during garbage collection");
                        } else {
                            warn!(key = %record.key, error = %err, "failed to collect object; retrying");
                        }
                        record.key.clone()
                    })
                }
            })
            .buffer_unordered(WRITES_MAX)
            .collect()
            .await;
        self.failed.extend(outcomes.into_iter().flatten());
    }

    fn decide(&self, snapshot: &Snapshot, item: &Value) -> Decision {
        let references = owner_references(item);
        let namespace = object::namespace(item);
        let owners: Vec<Owner> = references
            .iter()
            .map(|reference| self.owner(snapshot, namespace, reference))
            .collect();
        let dependents: Vec<Dependent> = self.dependents(item).map(|(_, dependent)| dependent).collect();
        decide::decide(item, &references, &owners, &dependents)
    }

    fn owner(&self, snapshot: &Snapshot, namespace: &str, reference: &OwnerReference) -> Owner {
        if self.index.has_seen_deletion(&reference.uid) {
            return Owner::Absent;
        }
        let OwnerLocation::At(key) = find(snapshot, namespace, reference) else {
            return Owner::Present;
        };
        match self.engine.store.get(&key) {
            None => Owner::Absent,
            Some(record) => {
                let owner = record.json();
                match object::uid(&owner) == reference.uid {
                    true if waits_for_dependents(&owner) => Owner::WaitsForDependents,
                    true => Owner::Present,
                    false => Owner::Absent,
                }
            }
        }
    }

    /// Returns the current objects that reference `item` as an owner.
    fn dependents(&self, item: &Value) -> impl Iterator<Item = (Arc<Record>, Dependent)> {
        let uid = object::uid(item);
        self.index.dependents(uid).filter_map(move |key| {
            let record = self.engine.store.get(key)?;
            let object = record.json();
            let reference = owner_references(&object)
                .into_iter()
                .find(|reference| reference.uid == uid)?;
            let dependent = Dependent {
                blocks: reference.blocks,
                is_being_deleted: object::is_being_deleted(&object),
                waits_for_dependents: waits_for_dependents(&object),
            };
            Some((record, dependent))
        })
    }

    async fn apply(&self, snapshot: &Snapshot, record: &Record, decision: &Decision) -> Result<(), ApiError> {
        let object = record.json();
        let uid = object::uid(&object);
        match decision {
            Decision::Keep | Decision::AwaitDependents => Ok(()),
            Decision::Delete(propagation) => {
                let version = object::resource_version(&object);
                self.delete(snapshot, record, *propagation, Some(version)).await
            }
            Decision::UnblockAndDelete => {
                self.edit(snapshot, record, decide::unblocked).await?;
                self.delete(snapshot, record, Propagation::Foreground, None).await
            }
            Decision::DropOwners(uids) => {
                self.edit(snapshot, record, |object| decide::without_owners(object, uids))
                    .await
            }
            Decision::Orphan => {
                let owner = [uid.to_owned()];
                let freed = futures::stream::iter(self.dependents(&object).collect::<Vec<_>>())
                    .map(|(dependent, _)| {
                        let owner = &owner;
                        async move {
                            self.edit(snapshot, &dependent, |object| {
                                decide::without_owners(object, owner)
                            })
                            .await
                        }
                    })
                    .buffer_unordered(WRITES_MAX)
                    .collect::<Vec<_>>()
                    .await;
                // If a dependent still references the owner, it would be deleted with the owner.
                freed.into_iter().collect::<Result<(), ApiError>>()?;
                self.edit(snapshot, record, |object| {
                    decide::without_finalizer(object, ORPHAN)
                })
                .await
            }
            Decision::Release => {
                self.edit(snapshot, record, |object| {
                    decide::without_finalizer(object, FOREGROUND)
                })
                .await
            }
        }
    }

    async fn delete(
        &self,
        snapshot: &Snapshot,
        record: &Record,
        propagation: Propagation,
        version: Option<&str>,
    ) -> Result<(), ApiError> {
        let Some(target) = target(snapshot, record) else {
            return Ok(());
        };
        let preconditions = Preconditions {
            uid: Some(object::uid(&record.json()).to_owned()),
            resource_version: version.map(str::to_owned),
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            preconditions,
            ..DeleteOptions::default()
        };
        ignore_not_found(self.engine.delete(&target, &options).await.map(drop))
    }

    /// Updates an object if its uid is unchanged.
    async fn edit(
        &self,
        snapshot: &Snapshot,
        record: &Record,
        change: impl Fn(&Value) -> Value + Send + Sync,
    ) -> Result<(), ApiError> {
        let Some(target) = target(snapshot, record) else {
            return Ok(());
        };
        let stored = record.json();
        let uid = object::uid(&stored);
        let change = |object: &Value, _: &mut Warnings| {
            if object::uid(object) == uid {
                Ok(change(object))
            } else {
                Err(target.not_found())
            }
        };
        let mut warnings = Warnings::default();
        let edit = Edit::Change(&change);
        ignore_not_found(
            self.engine
                .update(&target, edit, WriteOptions::INTERNAL, &mut warnings)
                .await
                .map(drop),
        )
    }
}

fn waits_for_dependents(object: &Value) -> bool {
    object::is_being_deleted(object) && object::finalizers(object).any(|name| name == FOREGROUND)
}

/// Ignores the error of an object that is already deleted.
fn ignore_not_found(outcome: Result<(), ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(err) if err.code() == StatusCode::NOT_FOUND => Ok(()),
        other => other,
    }
}

/// Location of the owner of an object.
enum OwnerLocation {
    At(Key),
    /// Not resolvable: the owner's kind is not defined, or is namespaced while the object is not.
    /// Such an owner keeps its dependents.
    Unknown,
}

fn find(snapshot: &Snapshot, namespace: &str, reference: &OwnerReference) -> OwnerLocation {
    let is_kind =
        |resource: &&Arc<Resource>| resource.group == reference.group && resource.kind == reference.kind;
    match snapshot.stored.iter().find(is_kind) {
        Some(resource) if !resource.namespaced => OwnerLocation::At(resource.key(None, &reference.name)),
        Some(resource) if !namespace.is_empty() => {
            OwnerLocation::At(resource.key(Some(namespace), &reference.name))
        }
        Some(_) | None => OwnerLocation::Unknown,
    }
}

/// Returns the target of a record, or `None` if its kind is no longer defined.
fn target(snapshot: &Snapshot, record: &Record) -> Option<Target> {
    let key = record.key.as_str();
    let resource = snapshot
        .stored
        .iter()
        .find(|resource| key.starts_with(&*resource.prefix()))?;
    let object = record.json();
    let namespace = Some(object::namespace(&object)).filter(|namespace| !namespace.is_empty());
    Some(Target::new(resource, namespace, object::name(&object)))
}

#[cfg(test)]
mod tests;
