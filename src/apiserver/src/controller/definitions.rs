//! Lifecycle of CustomResourceDefinitions: accepts names, establishes definitions, and deletes the
//! objects of definitions that are being deleted.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::builtin::{BuiltIn, CRD_STORAGE};
use crate::crd;
use crate::endpoints::options::{DeleteOptions, WriteOptions};
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::registry::resource::Resource;
use crate::status::ApiError;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;
use rooflet_store::{ListOptions, Record};

/// Delay before failed steps are retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Controller of the definitions.
pub(crate) struct CrdController {
    engine: Engine,
    tasks: Tasks,
    /// Names of definitions whose objects are being deleted.
    emptying: Arc<Mutex<BTreeSet<String>>>,
}

impl CrdController {
    pub(crate) fn new(engine: Engine, tasks: Tasks) -> Self {
        Self {
            engine,
            tasks,
            emptying: Arc::default(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let after = self.engine.store.revision();
            if let Ok(mut watcher) = self.engine.store.watch(CRD_STORAGE, after) {
                loop {
                    let records = settle(&self.engine).await;
                    self.empty_terminating(&records);
                    let event = tokio::select! {
                        () = stop.cancelled() => return,
                        event = watcher.next() => event,
                    };
                    if event.is_none() {
                        break;
                    }
                }
            }
            // The watch lagged, or the store is closing.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
    }

    fn empty_terminating(&self, records: &[Arc<Record>]) {
        for record in records {
            let definition = record.json();
            let waits = object::finalizers(&definition).any(|name| name == crd::CLEANUP_FINALIZER);
            if !object::is_being_deleted(&definition) || !waits {
                continue;
            }
            let name = object::name(&definition).to_owned();
            let is_new = lock(&self.emptying).insert(name.clone());
            if !is_new {
                continue;
            }
            let (engine, emptying) = (self.engine.clone(), Arc::clone(&self.emptying));
            let stop = self.tasks.stop_token();
            self.tasks.spawn_detached(async move {
                let work = empty(&engine, &definition);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = work => info!(definition = name, "definition and its objects deleted"),
                }
                lock(&emptying).remove(&name);
            });
        }
    }
}

/// Updates the status of all definitions, and the registry.
pub(crate) async fn settle(engine: &Engine) -> Vec<Arc<Record>> {
    loop {
        let mut records = engine.registry.sync();
        // In a name conflict, the oldest definition keeps the name.
        records.sort_by_key(|record| record.created);
        let Some((record, mut next)) = next_change(engine, &records) else {
            return records;
        };
        let name = object::name(&record.json()).to_owned();
        let resource = Arc::clone(
            engine
                .registry
                .snapshot()
                .built_in(BuiltIn::CustomResourceDefinition),
        );
        let target = Target::new(&resource, None, &name);
        engine.track_own_status(&target, &mut next, &record.json());
        if let Err(err) = engine.replace_unconditionally(&resource, &record, next).await {
            warn!(definition = name, error = %err, "failed to update the status of a definition");
            return records;
        }
    }
}

fn next_change(engine: &Engine, records: &[Arc<Record>]) -> Option<(Arc<Record>, Value)> {
    records.iter().find_map(|record| {
        let definition = record.json();
        let group = object::text(&definition, &["spec", "group"]);
        let others: Vec<Arc<Value>> = records
            .iter()
            .filter(|other| other.key != record.key)
            .map(|other| other.json())
            .filter(|other| object::text(other, &["spec", "group"]) == group)
            .collect();
        let in_use = crd::names_in_use(group, others.iter().map(|other| &**other));
        let next = crd::next_status(&definition, &in_use, engine.clock.now())?;
        Some((Arc::clone(record), next))
    })
}

/// Deletes all objects of a definition, waits until their finalizers are removed, then removes the
/// finalizer of the definition.
async fn empty(engine: &Engine, definition: &Value) {
    while let Err(err) = try_empty(engine, definition).await {
        warn!(definition = object::name(definition), error = %err, "failed to delete objects of a definition; retrying");
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn try_empty(engine: &Engine, definition: &Value) -> Result<(), ApiError> {
    let name = object::name(definition);
    let snapshot = engine.registry.snapshot();
    let resource = snapshot
        .stored
        .iter()
        .find(|resource| {
            resource
                .custom()
                .is_some_and(|custom| custom.definition.name == name)
        })
        .cloned();
    if let Some(resource) = resource {
        remove_objects(engine, &resource).await?;
    }
    let definitions = Arc::clone(snapshot.built_in(BuiltIn::CustomResourceDefinition));
    let target = Target::new(&definitions, None, name);
    let release = |definition: &Value, _: &mut Warnings| {
        let mut definition = definition.clone();
        let kept = object::finalizers(&definition).filter(|name| *name != crd::CLEANUP_FINALIZER);
        let kept = kept.map(str::to_owned).collect();
        object::set_finalizers(&mut definition, kept);
        Ok(definition)
    };
    let mut warnings = Warnings::default();
    match engine
        .update(
            &target,
            Edit::Change(&release),
            WriteOptions::INTERNAL,
            &mut warnings,
        )
        .await
    {
        Ok(_) => Ok(()),
        Err(err) if err.code() == http::StatusCode::NOT_FOUND => Ok(()),
        Err(err) => Err(err),
    }
}

async fn remove_objects(engine: &Engine, resource: &Arc<Resource>) -> Result<(), ApiError> {
    let prefix = resource.prefix();
    loop {
        let listing = engine
            .store
            .list(&prefix, &ListOptions::default())
            .map_err(ApiError::internal)?;
        if listing.records.is_empty() {
            return Ok(());
        }
        let mut watcher = engine
            .store
            .watch(&prefix, listing.revision)
            .map_err(ApiError::internal)?;
        for record in &listing.records {
            let stored = record.json();
            if object::is_being_deleted(&stored) {
                continue;
            }
            let namespace = Some(object::namespace(&stored)).filter(|namespace| !namespace.is_empty());
            let target = Target::new(resource, namespace, object::name(&stored));
            match engine.delete(&target, &DeleteOptions::default()).await {
                Ok(_) => {}
                Err(err) if err.code() == http::StatusCode::NOT_FOUND => {}
                Err(err) => return Err(err),
            }
        }
        // Deleting the last object causes an event. If the watcher was closed, list again.
        drop(watcher.next().await);
    }
}
