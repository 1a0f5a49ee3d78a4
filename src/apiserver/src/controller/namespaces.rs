//! Deletion of namespaces.
//!
//! One task deletes the content of a terminating namespace, reports remaining objects in the
//! namespace's conditions, and removes its own finalizer once the namespace is empty. It recreates
//! initial namespaces, because agents renew their Leases in one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::builtin::{BuiltIn, NAMESPACE_STORAGE, initial_namespaces};
use crate::controller::watch_loop::{self, WatchLoop};
use crate::crd::{Condition, set_condition};
use crate::endpoints::options::{DeleteOptions, Propagation, WriteOptions};
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::registry::resource::{Resource, Subresource};
use crate::status::{ApiError, Reason};
use rooflet_store::{Event, EventKind, ListOptions, Record};

/// Finalizer in `spec.finalizers` that this controller removes.
const FINALIZER: &str = "kubernetes";
/// Maximum concurrent deletions.
const WRITES_MAX: usize = 64;

pub(crate) struct NamespaceController {
    engine: Engine,
    /// Namespaces to process.
    dirty: BTreeSet<String>,
    /// Namespaces that wait for the deletion of their content.
    waiting: BTreeSet<String>,
    /// Namespaces to retry after a delay.
    failed: BTreeSet<String>,
}

impl WatchLoop for NamespaceController {
    const LISTED: &'static str = NAMESPACE_STORAGE;

    fn reset(&mut self, listed: Vec<Arc<Record>>) {
        let terminating = listed.iter().filter(|record| needs_finalization(&record.json()));
        self.dirty = terminating
            .map(|record| object::name(&record.json()).to_owned())
            .collect();
    }

    fn observe_event(&mut self, event: &Event) {
        let object = event.record.json();
        if event.key().as_str().starts_with(NAMESPACE_STORAGE) {
            let name = object::name(&object);
            let has_work = match event.kind {
                EventKind::Deleted => initial_namespaces().contains(&name),
                EventKind::Created | EventKind::Modified => {
                    needs_finalization(&object) && !self.waiting.contains(name)
                }
            };
            if has_work {
                self.dirty.insert(name.to_owned());
            }
        } else if self.waiting.contains(object::namespace(&object)) {
            self.dirty.insert(object::namespace(&object).to_owned());
        }
    }

    fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    async fn work(&mut self) {
        if let Some(name) = self.dirty.pop_first() {
            self.advance(name).await;
        }
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn requeue_failed(&mut self) {
        self.dirty.append(&mut self.failed);
    }
}

impl NamespaceController {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            dirty: BTreeSet::new(),
            waiting: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let store = self.engine.store.clone();
        watch_loop::run(&store, self, stop).await;
    }

    async fn advance(&mut self, name: String) {
        let emptied = match self.empty(&name).await {
            Ok(Emptied::Done) => self.restore(&name).await.map(|()| Emptied::Done),
            other => other,
        };
        match emptied {
            Ok(Emptied::Done) => {
                self.waiting.remove(&name);
                info!(namespace = name, "namespace and its content deleted");
            }
            Ok(Emptied::Waits) => drop(self.waiting.insert(name)),
            Err(err) => {
                warn!(namespace = name, error = %err, "failed to delete the content of a namespace; retrying");
                self.failed.insert(name);
            }
        }
    }

    /// Recreates an initial namespace.
    async fn restore(&self, name: &str) -> Result<(), ApiError> {
        match initial_namespaces().into_iter().find(|initial| *initial == name) {
            Some(name) => create(&self.engine, name).await,
            None => Ok(()),
        }
    }

    async fn empty(&self, name: &str) -> Result<Emptied, ApiError> {
        let namespaces = Arc::clone(self.engine.registry.snapshot().built_in(BuiltIn::Namespace));
        let mut target = Target::new(&namespaces, None, name);
        let Some(record) = self.engine.store.get(&target.key()) else {
            return Ok(Emptied::Done);
        };
        if !needs_finalization(&record.json()) {
            return Ok(Emptied::Done);
        }
        self.delete_content(name).await?;
        let remaining = Remaining::new(
            self.content(name)?
                .iter()
                .map(|(resource, record)| (&**resource, &**record)),
        );
        let now = self.engine.clock.now();
        let (subresource, emptied) = match remaining.objects.is_empty() {
            true => (Subresource::Finalize, Emptied::Done),
            false => (Subresource::Status, Emptied::Waits),
        };
        target.subresource = Some(subresource);
        let change = |namespace: &Value, _: &mut Warnings| {
            let mut namespace = namespace.clone();
            match emptied {
                Emptied::Done => release(&mut namespace),
                Emptied::Waits => remaining.set_conditions(&mut namespace, now),
            }
            Ok(namespace)
        };
        let mut warnings = Warnings::default();
        let written = self
            .engine
            .update(
                &target,
                Edit::Change(&change),
                WriteOptions::INTERNAL,
                &mut warnings,
            )
            .await;
        ignore_not_found(written.map(drop))?;
        Ok(emptied)
    }

    /// Returns all objects of the namespace, each only once if several versions serve its kind.
    fn content(&self, namespace: &str) -> Result<Vec<ContentItem>, ApiError> {
        let snapshot = self.engine.registry.snapshot();
        let mut by_prefix: BTreeMap<String, &Arc<Resource>> = BTreeMap::new();
        for resource in snapshot.stored.iter().filter(|resource| resource.namespaced) {
            by_prefix
                .entry(resource.prefix_in(Some(namespace)))
                .or_insert(resource);
        }
        let mut content = Vec::new();
        for (prefix, resource) in by_prefix {
            let listing = self
                .engine
                .store
                .list(&prefix, &ListOptions::default())
                .map_err(ApiError::internal)?;
            content.extend(
                listing
                    .records
                    .into_iter()
                    .map(|record| (Arc::clone(resource), record)),
            );
        }
        Ok(content)
    }

    async fn delete_content(&self, namespace: &str) -> Result<(), ApiError> {
        let mut content = self.content(namespace)?;
        content.retain(|(_, record)| !object::is_being_deleted(&record.json()));
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let outcomes: Vec<Result<(), ApiError>> = futures::stream::iter(content)
            .map(|(resource, record)| {
                let target = Target::new(&resource, Some(namespace), object::name(&record.json()));
                let options = &options;
                async move { ignore_not_found(self.engine.delete(&target, options).await.map(drop)) }
            })
            .buffer_unordered(WRITES_MAX)
            .collect()
            .await;
        outcomes.into_iter().collect()
    }
}

/// Object with its kind.
type ContentItem = (Arc<Resource>, Arc<Record>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// No content remains.
    Done,
    /// Objects with finalizers remain.
    Waits,
}

/// Creates the namespace if it does not exist.
pub(crate) async fn create(engine: &Engine, name: &str) -> Result<(), ApiError> {
    let namespaces = Arc::clone(engine.registry.snapshot().built_in(BuiltIn::Namespace));
    let target = Target::new(&namespaces, None, name);
    let working = json!({"metadata": {"name": name}});
    let mut warnings = Warnings::default();
    let created = engine.create(&target, working, WriteOptions::INTERNAL, &mut warnings);
    match created.await {
        Err(err) if err.reason() != Reason::AlreadyExists => Err(err),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn ignore_not_found(outcome: Result<(), ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(err) if err.code() == StatusCode::NOT_FOUND => Ok(()),
        other => other,
    }
}

/// Returns true if the namespace is being deleted and has this controller's finalizer.
fn needs_finalization(namespace: &Value) -> bool {
    let finalizers = namespace["spec"]["finalizers"].as_array();
    object::is_being_deleted(namespace)
        && finalizers.is_some_and(|names| names.iter().any(|name| name == FINALIZER))
}

fn release(namespace: &mut Value) {
    if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|name| name != FINALIZER);
    }
}

/// Remaining content of a namespace.
#[derive(Debug, Default)]
struct Remaining {
    /// Number of objects by `resource.group`.
    objects: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    fn new<'a>(content: impl Iterator<Item = (&'a Resource, &'a Record)>) -> Self {
        let mut remaining = Self::default();
        for (resource, record) in content {
            let name = format!("{}.{}", resource.plural, resource.group);
            *remaining.objects.entry(name).or_default() += 1;
            for finalizer in object::finalizers(&record.json()) {
                *remaining.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        remaining
    }

    /// Sets the conditions with the texts of Kubernetes.
    fn set_conditions(&self, namespace: &mut Value, now: Timestamp) {
        let counted = |counts: &BTreeMap<String, usize>, verb: &str| {
            let parts: Vec<String> = counts
                .iter()
                .map(|(name, count)| format!("{name} {verb} {count} resource instances"))
                .collect();
            parts.join(", ")
        };
        let content = match self.objects.is_empty() {
            true => (
                false,
                "ContentRemoved",
                "All content successfully removed".to_owned(),
            ),
            false => {
                let message = format!("Some resources are remaining: {}", counted(&self.objects, "has"));
                (true, "SomeResourcesRemain", message)
            }
        };
        let finalizers = match self.finalizers.is_empty() {
            true => (
                false,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished".to_owned(),
            ),
            false => {
                let content = counted(&self.finalizers, "in");
                (
                    true,
                    "SomeFinalizersRemain",
                    format!("Some content in the namespace has finalizers remaining: {content}"),
                )
            }
        };
        let ok = |reason, message: &str| (false, reason, message.to_owned());
        let deleted = "All content successfully deleted, may be waiting on finalization";
        let conditions = [
            (
                "NamespaceDeletionDiscoveryFailure",
                ok("ResourcesDiscovered", "All resources successfully discovered"),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                ok("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            ("NamespaceDeletionContentFailure", ok("ContentDeleted", deleted)),
            ("NamespaceContentRemaining", content),
            ("NamespaceFinalizersRemaining", finalizers),
        ];
        for (kind, (status, reason, message)) in conditions {
            let condition = Condition {
                kind,
                status,
                reason: reason.to_owned(),
                message,
            };
            set_condition(namespace, &condition, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn processes_only_terminating_namespaces_with_the_finalizer() {
        let check = |namespace: Value, expect: bool| {
            assert_eq!(needs_finalization(&namespace), expect, "{namespace}")
        };
        check(
            json!({"metadata": {}, "spec": {"finalizers": ["kubernetes"]}}),
            false,
        );
        check(
            json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"finalizers": ["kubernetes"]}}),
            true,
        );
        check(
            json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"finalizers": ["a/b"]}}),
            false,
        );
        check(json!({"metadata": {"deletionTimestamp": "t"}, "spec": {}}), false);
    }

    #[test]
    fn release_removes_only_its_finalizer() {
        let mut namespace = json!({"spec": {"finalizers": ["a/b", "kubernetes"]}});
        release(&mut namespace);
        assert_eq!(namespace, json!({"spec": {"finalizers": ["a/b"]}}));
    }

    #[test]
    fn conditions_report_remaining_content() {
        let remaining = Remaining {
            objects: [
                ("configmaps.".to_owned(), 1),
                ("gizmos.example.com".to_owned(), 2),
            ]
            .into(),
            finalizers: [("a/b".to_owned(), 3)].into(),
        };
        let mut namespace = json!({"status": {"phase": "Terminating"}});
        remaining.set_conditions(&mut namespace, Timestamp::UNIX_EPOCH);
        let reported: Vec<String> = namespace["status"]["conditions"]
            .as_array()
            .expect("conditions")
            .iter()
            .map(|condition| {
                let text = |key| condition[key].as_str().unwrap_or_default();
                format!("{}={} {}", text("type"), text("status"), text("message"))
            })
            .collect();
        assert_eq!(
            reported[3..],
            [
                "NamespaceContentRemaining=True Some resources are remaining: configmaps. has 1 resource instances, \
                 gizmos.example.com has 2 resource instances",
                "NamespaceFinalizersRemaining=True Some content in the namespace has finalizers remaining: a/b in 3 \
                 resource instances",
            ]
        );
        let again = namespace.clone();
        remaining.set_conditions(&mut namespace, Timestamp::MAX);
        assert_eq!(
            namespace, again,
            "lastTransitionTime changes only with the status"
        );
        Remaining::default().set_conditions(&mut namespace, Timestamp::MAX);
        assert_eq!(namespace["status"]["conditions"][3]["reason"], "ContentRemoved");
    }
}
