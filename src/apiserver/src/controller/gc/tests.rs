//! Garbage collector and namespace controller with a real store, through the engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::builtin::BuiltIn;
use crate::controller::namespaces::NamespaceController;
use crate::endpoints::options::{FieldValidation, WriteOptions};
use crate::registry::Registry;
use rooflet_base::clock::Clock;
use rooflet_base::task::Tasks;
use rooflet_store::{ListOptions, Revision, Store};

const DEADLINE: Duration = Duration::from_secs(20);

fn released(object: &Value) -> Value {
    decide::without_finalizer(object, "example.com/hold")
}

struct Scenario {
    engine: Engine,
    tasks: Tasks,
    _directory: tempfile::TempDir,
}

impl Scenario {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(
            crate::store_config(directory.path().join("store.redb")),
            Clock::System,
        )
        .unwrap();
        let engine = Engine::new(store.clone(), Registry::new(store, Clock::System), Clock::System);
        let scenario = Self {
            engine,
            tasks: Tasks::new(),
            _directory: directory,
        };
        for name in ["default", "other"] {
            scenario
                .create(BuiltIn::Namespace, json!({"metadata": {"name": name}}))
                .await;
        }
        scenario
    }

    fn collect(&self) {
        let collector = GarbageCollector::new(self.engine.clone());
        let stop = self.tasks.stop_token();
        self.tasks
            .spawn_detached(async move { collector.run(stop).await });
        let namespaces = NamespaceController::new(self.engine.clone());
        let stop = self.tasks.stop_token();
        self.tasks
            .spawn_detached(async move { namespaces.run(stop).await });
    }

    fn target(&self, kind: BuiltIn, namespace: &str, name: &str) -> Target {
        let resource = Arc::clone(self.engine.registry.snapshot().built_in(kind));
        let namespace = Some(namespace).filter(|_| resource.namespaced);
        Target::new(&resource, namespace, name)
    }

    /// Creates an object and returns its uid.
    async fn create(&self, kind: BuiltIn, object: Value) -> String {
        let target = self.target(kind, object::namespace(&object), object::name(&object));
        let options = WriteOptions {
            dry_run: false,
            validation: FieldValidation::Ignore,
            ..WriteOptions::INTERNAL
        };
        let mut warnings = Warnings::default();
        self.engine
            .create(&target, object, options, &mut warnings)
            .await
            .unwrap();
        object::uid(&self.engine.store.get(&target.key()).unwrap().json()).to_owned()
    }

    /// Updates a ConfigMap.
    async fn change(&self, namespace: &str, name: &str, change: impl Fn(&Value) -> Value + Send + Sync) {
        let target = self.target(BuiltIn::ConfigMap, namespace, name);
        let change = |object: &Value, _: &mut Warnings| Ok(change(object));
        let mut warnings = Warnings::default();
        self.engine
            .update(
                &target,
                Edit::Change(&change),
                WriteOptions::INTERNAL,
                &mut warnings,
            )
            .await
            .unwrap();
    }

    /// Creates a ConfigMap in `default`. Owners are `name:uid`, with a trailing `!` to block the
    /// owner's deletion.
    async fn map(&self, name: &str, owners: &[String]) -> String {
        self.map_in("default", name, owners, &[]).await
    }

    async fn map_in(&self, namespace: &str, name: &str, owners: &[String], finalizers: &[&str]) -> String {
        let references: Vec<Value> = owners
            .iter()
            .map(|owner| {
                let (name, uid) = owner.split_once(':').unwrap();
                json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid.trim_end_matches('!'),
                    "blockOwnerDeletion": uid.ends_with('!')})
            })
            .collect();
        let metadata = json!({"name": name, "namespace": namespace, "ownerReferences": references,
            "finalizers": finalizers});
        self.create(BuiltIn::ConfigMap, json!({"metadata": metadata}))
            .await
    }

    async fn delete(&self, name: &str, propagation: Propagation) {
        let options = DeleteOptions {
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        self.engine
            .delete(&self.target(BuiltIn::ConfigMap, "default", name), &options)
            .await
            .unwrap();
    }

    fn get(&self, name: &str) -> Option<Value> {
        let record = self
            .engine
            .store
            .get(&self.target(BuiltIn::ConfigMap, "default", name).key());
        record.map(|record| Value::clone(&record.json()))
    }

    /// Waits until exactly these ConfigMaps remain.
    async fn left(&self, expect: &[&str]) {
        self.until(|scenario| {
            let listing = scenario
                .engine
                .store
                .list("/core/configmaps/default/", &ListOptions::default())
                .unwrap();
            let names: Vec<String> = listing
                .records
                .iter()
                .map(|record| object::name(&record.json()).to_owned())
                .collect();
            if names == expect {
                Ok(())
            } else {
                Err(format!("{names:?} are left, not {expect:?}"))
            }
        })
        .await;
    }

    async fn until(&self, condition: impl Fn(&Self) -> Result<(), String>) {
        let mut watcher = self
            .engine
            .store
            .watch("/", self.engine.store.revision())
            .unwrap();
        let reached = async {
            while condition(self).is_err() {
                watcher.next().await.unwrap();
            }
        };
        if tokio::time::timeout(DEADLINE, reached).await.is_err() {
            panic!("{}", condition(self).unwrap_err());
        }
    }

    /// Returns the names of ConfigMaps in the order of their deletion.
    fn deletions(&self) -> Vec<String> {
        let mut watcher = self.engine.store.watch("/core/configmaps/", Revision(0)).unwrap();
        std::iter::from_fn(|| watcher.ready())
            .filter(|event| event.kind == rooflet_store::EventKind::Deleted)
            .map(|event| object::name(&event.record.json()).to_owned())
            .collect()
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

#[tokio::test]
async fn dependents_are_deleted_with_their_last_owner() {
    let scenario = Scenario::new().await;
    let a = scenario.map("a", &[]).await;
    let b = scenario.map("b", &[]).await;
    let child = scenario.map("child", &[format!("a:{a}")]).await;
    scenario.map("grandchild", &[format!("child:{child}")]).await;
    scenario
        .map("shared", &[format!("a:{a}"), format!("b:{b}")])
        .await;
    scenario.collect();
    scenario.delete("a", Propagation::Background).await;
    scenario.left(&["b", "shared"]).await;
    scenario
        .until(|scenario| {
            let references = scenario.get("shared").unwrap()["metadata"]["ownerReferences"].clone();
            let uids: Vec<&str> = references
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|r| r["uid"].as_str())
                .collect();
            if uids == [b.as_str()] {
                Ok(())
            } else {
                Err(format!("{uids:?}"))
            }
        })
        .await;
    scenario.delete("b", Propagation::Background).await;
    scenario.left(&[]).await;
}

#[tokio::test]
async fn missing_owner_is_ignored_but_unknown_kind_is_kept() {
    let scenario = Scenario::new().await;
    scenario.collect();
    let elsewhere = scenario.map_in("other", "owner", &[], &[]).await;
    scenario.map("keeper", &[]).await;
    // The owner has another uid, never existed, or is in another namespace.
    scenario
        .map(
            "renamed",
            &["keeper:00000000-0000-0000-0000-000000000000".to_owned()],
        )
        .await;
    scenario
        .map(
            "lost",
            &["nobody:00000000-0000-0000-0000-000000000001".to_owned()],
        )
        .await;
    scenario.map("far", &[format!("owner:{elsewhere}")]).await;
    let unknown = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "2"}]);
    let metadata = json!({"name": "unknown", "namespace": "default", "ownerReferences": unknown});
    scenario
        .create(BuiltIn::ConfigMap, json!({"metadata": metadata}))
        .await;
    scenario.left(&["keeper", "unknown"]).await;
}

#[tokio::test]
async fn foreground_deletion_deletes_the_owner_last() {
    let scenario = Scenario::new().await;
    let root = scenario.map("root", &[]).await;
    let child = scenario.map("child", &[format!("root:{root}!")]).await;
    scenario.map("leaf", &[format!("child:{child}!")]).await;
    scenario
        .map_in(
            "default",
            "held",
            &[format!("root:{root}!")],
            &["example.com/hold"],
        )
        .await;
    scenario.collect();
    scenario.delete("root", Propagation::Foreground).await;
    scenario.left(&["held", "root"]).await;
    assert!(object::is_being_deleted(&scenario.get("held").unwrap()));
    scenario.change("default", "held", released).await;
    scenario.left(&[]).await;
    assert_eq!(scenario.deletions(), ["leaf", "child", "held", "root"]);
}

#[tokio::test]
async fn cyclic_foreground_deletion_completes() {
    let scenario = Scenario::new().await;
    let a = scenario.map("a", &[]).await;
    let b = scenario.map("b", &[format!("a:{a}!")]).await;
    let close = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": b,
            "blockOwnerDeletion": true}]);
        object
    };
    scenario.change("default", "a", close).await;
    scenario.collect();
    scenario.delete("a", Propagation::Foreground).await;
    scenario.left(&[]).await;
}

#[tokio::test]
async fn orphaned_dependents_remain_without_owner() {
    let scenario = Scenario::new().await;
    let owner = scenario.map("owner", &[]).await;
    for child in ["child-1", "child-2"] {
        scenario.map(child, &[format!("owner:{owner}!")]).await;
    }
    scenario.collect();
    scenario.delete("owner", Propagation::Orphan).await;
    scenario.left(&["child-1", "child-2"]).await;
    for child in ["child-1", "child-2"] {
        assert!(
            scenario.get(child).unwrap()["metadata"]
                .get("ownerReferences")
                .is_none()
        );
    }
}

#[tokio::test]
async fn start_processes_deletions_from_before() {
    let scenario = Scenario::new().await;
    let a = scenario.map("a", &[]).await;
    let b = scenario.map("b", &[]).await;
    scenario.map("child-a", &[format!("a:{a}")]).await;
    scenario.map("child-b", &[format!("b:{b}!")]).await;
    scenario.delete("a", Propagation::Background).await;
    scenario.delete("b", Propagation::Foreground).await;
    scenario.collect();
    scenario.left(&[]).await;
}

#[tokio::test]
async fn deletes_many_dependents() {
    let scenario = Scenario::new().await;
    let owner = scenario.map("owner", &[]).await;
    let names: Vec<String> = (0..200).map(|child| format!("child-{child}")).collect();
    let owners = [format!("owner:{owner}")];
    futures::future::join_all(names.iter().map(|name| scenario.map(name, &owners))).await;
    scenario.collect();
    scenario.delete("owner", Propagation::Background).await;
    scenario.left(&[]).await;
}

#[tokio::test]
async fn namespace_deletion_deletes_content_and_reports_remaining_objects() {
    let scenario = Scenario::new().await;
    scenario.collect();
    scenario.map("plain", &[]).await;
    scenario
        .map_in("default", "held", &[], &["example.com/hold"])
        .await;
    scenario.map_in("other", "plain", &[], &[]).await;
    let other = scenario.target(BuiltIn::Namespace, "", "other");
    scenario
        .engine
        .delete(&other, &DeleteOptions::default())
        .await
        .unwrap();
    scenario
        .until(|scenario| {
            scenario
                .engine
                .store
                .get(&other.key())
                .map_or(Ok(()), |_| Err("other stays".to_owned()))
        })
        .await;
    scenario
        .create(BuiltIn::Namespace, json!({"metadata": {"name": "third"}}))
        .await;
    scenario.map_in("third", "held", &[], &["example.com/hold"]).await;
    let third = scenario.target(BuiltIn::Namespace, "", "third");
    scenario
        .engine
        .delete(&third, &DeleteOptions::default())
        .await
        .unwrap();
    scenario
        .until(|scenario| {
            let namespace = scenario
                .engine
                .store
                .get(&third.key())
                .ok_or("deleted too early")?;
            let conditions = namespace.json()["status"]["conditions"].clone();
            let remaining = conditions
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["type"] == "NamespaceContentRemaining");
            match remaining.map(|one| one["message"].as_str().unwrap_or_default()) {
                Some("Some resources are remaining: configmaps. has 1 resource instances") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    scenario.change("third", "held", released).await;
    scenario
        .until(|scenario| {
            scenario
                .engine
                .store
                .get(&third.key())
                .map_or(Ok(()), |_| Err("third stays".to_owned()))
        })
        .await;
    scenario.left(&["held", "plain"]).await;
}
