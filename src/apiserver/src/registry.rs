//! Registry of the served resources: built-in kinds and those of stored CustomResourceDefinitions.
//!
//! Readers use an immutable [`Snapshot`]. [`Registry::sync`] replaces it when definitions change.

pub(crate) mod resource;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use jiff::Timestamp;
use kube::core::Version;
use tokio_util::sync::CancellationToken;

use crate::builtin::{BuiltIn, CRD_STORAGE};
use crate::crd;
use crate::object;
use crate::registry::resource::{DefinitionVersion, Resource};
use crate::status::ApiError;
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_store::{ListOptions, Record, Revision, Store};

/// Served resources at one point in time.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// Groups in discovery order. The core group has an empty name and is first.
    pub groups: Vec<Group>,
    /// All kinds in their storage version, whether that version is served or not.
    pub stored: Vec<Arc<Resource>>,
    /// Resources by group, version and plural.
    index: HashMap<String, HashMap<String, HashMap<String, Arc<Resource>>>>,
    /// Creation time of the snapshot.
    pub created: Timestamp,
    /// Cached response bodies that depend only on the snapshot, by a key that the caller chooses.
    pub responses: ResponseCache,
}

/// Response bodies that are computed once per snapshot.
#[derive(Debug, Default)]
pub(crate) struct ResponseCache(Mutex<HashMap<String, Arc<OnceLock<Bytes>>>>);

impl ResponseCache {
    pub(crate) fn get_or_compute(&self, key: &str, make: impl FnOnce() -> Bytes) -> Bytes {
        let cell = {
            let mut cells = lock(&self.0);
            Arc::clone(cells.entry(key.to_owned()).or_default())
        };
        cell.get_or_init(make).clone()
    }
}

/// API group.
#[derive(Debug)]
pub(crate) struct Group {
    pub name: String,
    /// Versions in order of preference.
    pub versions: Vec<GroupVersion>,
}

/// Resources of a group version, in discovery order.
#[derive(Debug)]
pub(crate) struct GroupVersion {
    pub version: String,
    pub resources: Vec<Arc<Resource>>,
}

impl GroupVersion {
    /// Returns true if the group has built-in kinds. Their paths have routes of their own.
    pub(crate) fn has_built_in(&self) -> bool {
        self.resources.iter().any(|resource| resource.custom().is_none())
    }
}

impl Snapshot {
    fn new(resources: impl IntoIterator<Item = Arc<Resource>>, created: Timestamp) -> Self {
        let mut snapshot = Self {
            created,
            ..Self::default()
        };
        let built_in: Vec<String> = BuiltIn::ALL
            .iter()
            .map(|kind| kind.facts().group.to_owned())
            .collect();
        for resource in resources {
            if resource.is_stored() {
                snapshot.stored.push(Arc::clone(&resource));
            }
            if resource.is_served() {
                snapshot.insert(resource);
            }
        }
        for group in &mut snapshot.groups {
            let key = |version: &GroupVersion| std::cmp::Reverse(Version::parse(&version.version).priority());
            group.versions.sort_by_key(key);
        }
        // Built-in groups have a fixed order. Groups of definitions follow, sorted by name.
        snapshot.groups.sort_by_key(|group| {
            let place = built_in
                .iter()
                .position(|name| *name == group.name)
                .unwrap_or(usize::MAX);
            (place, group.name.clone())
        });
        snapshot
    }

    fn insert(&mut self, resource: Arc<Resource>) {
        let versions = self.index.entry(resource.group.clone()).or_default();
        let plurals = versions.entry(resource.version.clone()).or_default();
        plurals.insert(resource.plural.clone(), Arc::clone(&resource));
        let group = match self.groups.iter().position(|group| group.name == resource.group) {
            Some(index) => &mut self.groups[index],
            None => {
                self.groups.push(Group {
                    name: resource.group.clone(),
                    versions: Vec::new(),
                });
                self.groups.last_mut().expect("a group was added above")
            }
        };
        match group
            .versions
            .iter_mut()
            .find(|version| version.version == resource.version)
        {
            Some(version) => version.resources.push(resource),
            None => {
                let version = resource.version.clone();
                group.versions.push(GroupVersion {
                    version,
                    resources: vec![resource],
                });
            }
        }
    }

    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.index.get(group)?.get(version)?.get(plural)
    }

    /// Returns the error of a path below a group that has no such resource. Like kube-apiserver,
    /// only groups of built-in kinds answer with a status.
    pub(crate) fn not_served(&self, group: &str) -> ApiError {
        match BuiltIn::of_group(group).next() {
            Some(_) => ApiError::resource_not_served(),
            None => ApiError::no_route(),
        }
    }

    pub(crate) fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    pub(crate) fn group_version(&self, group: &str, version: &str) -> Option<&GroupVersion> {
        self.group(group)?
            .versions
            .iter()
            .find(|candidate| candidate.version == version)
    }

    /// Returns the served stored resource of a kind.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mut found = self.index.get(group)?.get(version)?.values();
        found.find(|resource| resource.kind == kind && resource.has_storage())
    }

    /// Returns the other resources with the same stored objects.
    pub(crate) fn equivalents<'a>(&'a self, own: &'a Resource) -> impl Iterator<Item = &'a Arc<Resource>> {
        let versions = self.groups.iter().flat_map(|group| &group.versions);
        versions.flat_map(|version| &version.resources).filter(|other| {
            other.has_storage()
                && other.prefix() == own.prefix()
                && (&other.group, &other.version) != (&own.group, &own.version)
        })
    }

    pub(crate) fn built_in(&self, kind: BuiltIn) -> &Arc<Resource> {
        let facts = kind.facts();
        self.resource(facts.group, facts.version, facts.plural)
            .expect("every snapshot contains all built-in kinds")
    }
}

/// See the module documentation. Clones share one registry.
#[derive(Clone)]
pub(crate) struct Registry {
    store: Store,
    clock: Clock,
    current: Arc<RwLock<Arc<Snapshot>>>,
    /// Definitions that the current snapshot was built from, by key.
    seen: Arc<Mutex<BTreeMap<String, CompiledDefinition>>>,
}

/// Definition with its compiled resources.
struct CompiledDefinition {
    record: Arc<Record>,
    /// Revision of the last change of the spec.
    schema_since: Revision,
    retired: CancellationToken,
    resources: Vec<Arc<Resource>>,
}

impl CompiledDefinition {
    fn new(record: &Arc<Record>, schema_since: Revision, retired: CancellationToken) -> Self {
        let resources = crd::resources(record, schema_since, &retired);
        Self {
            record: Arc::clone(record),
            schema_since,
            retired,
            resources: resources.into_iter().map(Arc::new).collect(),
        }
    }
}

impl Registry {
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        let registry = Self {
            store,
            clock,
            current: Arc::default(),
            seen: Arc::default(),
        };
        registry.sync();
        registry
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the registry to the definitions in the store and returns them.
    pub(crate) fn sync(&self) -> Vec<Arc<Record>> {
        // Lock during the whole update, so that an older list never replaces a newer one.
        let mut seen = lock(&self.seen);
        let records = self
            .store
            .list(CRD_STORAGE, &ListOptions::default())
            .map(|listing| listing.records)
            .unwrap_or_default();
        let is_unchanged = !self.snapshot().groups.is_empty()
            && seen.len() == records.len()
            && records.iter().all(|record| {
                seen.get(record.key.as_str())
                    .is_some_and(|old| old.record.modified == record.modified)
            });
        if is_unchanged {
            return records;
        }
        let mut next = BTreeMap::new();
        let mut retired_before: Vec<CancellationToken> = Vec::new();
        for record in &records {
            let definition = match seen.remove(record.key.as_str()) {
                // Compiling schemas is slow, so unchanged resources are reused.
                Some(old) if same_resources(&old.record, record) => CompiledDefinition {
                    record: Arc::clone(record),
                    ..old
                },
                Some(old) if same_spec(&old.record, record) => {
                    CompiledDefinition::new(record, old.schema_since, old.retired)
                }
                changed => {
                    retired_before.extend(changed.map(|old| old.retired));
                    CompiledDefinition::new(record, record.modified, CancellationToken::new())
                }
            };
            next.insert(record.key.as_str().to_owned(), definition);
        }
        retired_before.extend(seen.values().map(|removed| removed.retired.clone()));
        *seen = next;
        let built_in = BuiltIn::ALL.into_iter().map(Resource::built_in).map(Arc::new);
        let custom = seen.values().flat_map(|definition| &definition.resources);
        let resources = built_in.chain(custom.cloned());
        let snapshot = Arc::new(Snapshot::new(resources, self.clock.now()));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
        // Cancel after the new snapshot is visible, because clients that reconnect must use it.
        retired_before.iter().for_each(CancellationToken::cancel);
        records
    }
}

fn same_spec(old: &Record, new: &Record) -> bool {
    let (old, new) = (&old.json(), &new.json());
    object::uid(old) == object::uid(new) && old["spec"] == new["spec"]
}

/// Returns true if both definitions result in the same resources.
fn same_resources(old: &Record, new: &Record) -> bool {
    let facts = |record: &Record| {
        let definition = record.json();
        (
            object::is_being_deleted(&definition),
            DefinitionVersion::of(&definition),
        )
    };
    old.modified == new.modified
        || same_spec(old, new) && old.json()["status"] == new.json()["status"] && facts(old) == facts(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::resource::to_bytes;
    use rooflet_store::{Change, Expect, Key, Write};
    use serde_json::{Value, json};

    #[test]
    fn groups_have_discovery_order() {
        let snapshot = Snapshot::new(
            BuiltIn::ALL.into_iter().map(Resource::built_in).map(Arc::new),
            Timestamp::UNIX_EPOCH,
        );
        let names: Vec<&str> = snapshot.groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "",
                "events.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "certificates.k8s.io",
                "rbac.authorization.k8s.io",
                "admissionregistration.k8s.io",
                "apiextensions.k8s.io",
                "coordination.k8s.io"
            ]
        );
        assert!(snapshot.resource("", "v1", "configmaps").is_some());
        assert!(snapshot.resource("", "v1", "pods").is_none());
    }

    /// Stores an established definition.
    async fn put(store: &Store, name: &str, labels: Value) {
        let key = Key::new(format!("{CRD_STORAGE}{name}"));
        let expect = Expect::Any;
        let (plural, group) = name.split_once('.').expect("plural and group");
        let names = json!({"plural": plural, "kind": "Thing", "singular": "thing"});
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        let definition = json!({"metadata": {"name": name, "uid": name, "labels": labels},
            "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [version]},
            "status": {"acceptedNames": names, "conditions": [{"type": "Established", "status": "True"}]}});
        let change = Change::Put(Box::new(move |_| to_bytes(&definition)));
        store.commit(Write { key, expect, change }).await.expect("stored");
    }

    fn opened(directory: &tempfile::TempDir) -> Store {
        let config = crate::store_config(directory.path().join("store.redb"));
        Store::open(config, Clock::System).expect("a new store")
    }

    #[tokio::test]
    async fn unchanged_definitions_are_not_recompiled() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = opened(&directory);
        put(&store, "things.a.com", json!({})).await;
        let registry = Registry::new(store.clone(), Clock::System);
        let resource = |registry: &Registry| {
            let snapshot = registry.snapshot();
            snapshot
                .resource("a.com", "v1", "things")
                .cloned()
                .expect("served")
        };
        let before = resource(&registry);
        put(&store, "things.b.com", json!({})).await;
        put(&store, "things.a.com", json!({"x": "y"})).await;
        registry.sync();
        assert!(Arc::ptr_eq(&before, &resource(&registry)));
        assert!(registry.snapshot().resource("b.com", "v1", "things").is_some());
    }

    #[tokio::test]
    async fn stored_definition_cannot_replace_a_built_in_kind() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = opened(&directory);
        let name = "customresourcedefinitions.apiextensions.k8s.io";
        put(&store, name, json!({})).await;
        let registry = Registry::new(store, Clock::System);
        let kept = BuiltIn::CustomResourceDefinition;
        assert!(registry.snapshot().built_in(kept).is(kept));
    }

    #[test]
    fn cached_body_is_computed_once() {
        let cache = ResponseCache::default();
        assert_eq!(cache.get_or_compute("a", || Bytes::from_static(b"1")), "1");
        assert_eq!(cache.get_or_compute("a", || unreachable!("cached above")), "1");
    }
}
