//! Objects that every active namespace has: the ServiceAccount `default`, and the ConfigMap
//! `kube-root-ca.crt` with the certificate authority of the server. Names, content and field owner
//! are those of kube-controller-manager.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::builtin::{
    BuiltIn, CONFIG_MAP_STORAGE, NAMESPACE_STORAGE, SERVICE_ACCOUNT_STORAGE, is_terminating,
};
use crate::controller::watch_loop::{self, WatchLoop};
use crate::endpoints::options::{DeleteOptions, WriteOptions};
use crate::engine::{Edit, Engine, Target, Warnings};
use crate::object;
use crate::status::{ApiError, Reason};
use rooflet_pki::Authority;
use rooflet_store::{Event, EventKind, ListOptions, Record};

const SERVICE_ACCOUNT: &str = "default";
const CONFIG_MAP: &str = "kube-root-ca.crt";
/// Key of the ConfigMap with the authority.
const AUTHORITY: &str = "ca.crt";
const DESCRIPTION_ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";
const MANAGER: &str = "kube-controller-manager";

/// Controller of the objects.
pub(crate) struct NamespaceDefaults {
    engine: Engine,
    /// Authority of the server's certificate, in PEM. If `None`, namespaces have no ConfigMap.
    authority: Option<Authority>,
    /// Namespaces to process.
    dirty: BTreeSet<String>,
    /// Namespaces to retry after a delay.
    failed: BTreeSet<String>,
}

impl WatchLoop for NamespaceDefaults {
    const LISTED: &'static str = NAMESPACE_STORAGE;

    fn reset(&mut self, listed: Vec<Arc<Record>>) {
        self.dirty = names(&listed);
    }

    fn observe_event(&mut self, event: &Event) {
        if let Some(namespace) = affected_namespace(event.key().as_str(), event.kind) {
            self.dirty.insert(namespace.to_owned());
        }
    }

    fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    async fn work(&mut self) {
        if let Some(namespace) = self.dirty.pop_first()
            && let Err(err) = self.ensure(&namespace).await
        {
            warn!(namespace, error = %err, "failed to create the default objects of a namespace; retrying");
            self.failed.insert(namespace);
        }
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn requeue_failed(&mut self) {
        self.dirty.append(&mut self.failed);
    }
}

impl NamespaceDefaults {
    pub(crate) fn new(engine: Engine, authority: Option<Authority>) -> Self {
        Self {
            engine,
            authority,
            dirty: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.authority.as_ref().map(Authority::changes);
        loop {
            let controller = Self::new(self.engine.clone(), self.authority.clone());
            tokio::select! {
                () = watch_loop::run(&self.engine.store, controller, stop.clone()) => return,
                // The next loop starts with all namespaces.
                () = wait_for_change(&mut changes) => {}
            }
        }
    }

    /// Creates the missing objects of all namespaces. The controller repeats failed writes.
    pub(crate) async fn ensure_all(&self) {
        let listed = self.engine.store.list(NAMESPACE_STORAGE, &ListOptions::default());
        let records = listed.map(|listing| listing.records).unwrap_or_default();
        let namespaces = names(&records);
        future::join_all(namespaces.iter().map(|name| self.ensure(name))).await;
    }

    async fn ensure(&self, namespace: &str) -> Result<(), ApiError> {
        let snapshot = self.engine.registry.snapshot();
        let key = snapshot.built_in(BuiltIn::Namespace).key(None, namespace);
        let is_active = |record: Arc<Record>| !is_terminating(&record.json());
        if !self.engine.store.get(&key).is_some_and(is_active) {
            return Ok(());
        }
        let (account, map) =
            future::join(self.ensure_account(namespace), self.ensure_config_map(namespace)).await;
        account.and(map)
    }

    async fn ensure_account(&self, namespace: &str) -> Result<(), ApiError> {
        let target = self.target(BuiltIn::ServiceAccount, namespace, SERVICE_ACCOUNT);
        match self.engine.store.get(&target.key()) {
            Some(_) => Ok(()),
            None => {
                let account = json!({"metadata": {"name": SERVICE_ACCOUNT, "namespace": namespace}});
                self.create(&target, account).await
            }
        }
    }

    async fn ensure_config_map(&self, namespace: &str) -> Result<(), ApiError> {
        let Some(authority) = self.authority.as_ref().map(Authority::certificate_pem) else {
            return Ok(());
        };
        let authority = authority.as_str();
        let target = self.target(BuiltIn::ConfigMap, namespace, CONFIG_MAP);
        let Some(record) = self.engine.store.get(&target.key()) else {
            let metadata = json!({"name": CONFIG_MAP, "namespace": namespace});
            let map = with_authority(json!({ "metadata": metadata }), authority);
            return self.create(&target, map).await;
        };
        if has_authority(&record.json(), authority) {
            return Ok(());
        }
        // Its content cannot be changed. The event of the deletion causes a new one.
        if record.json()["immutable"] == true {
            let options = DeleteOptions::default();
            let deleted = self.engine.delete(&target, &options).await;
            return expect_race(deleted.map(drop));
        }
        let change = |map: &Value, _: &mut Warnings| Ok(with_authority(map.clone(), authority));
        let (edit, mut warnings) = (Edit::Change(&change), Warnings::default());
        let updated = self
            .engine
            .update(&target, edit, WriteOptions::INTERNAL, &mut warnings);
        expect_race(updated.await.map(drop))
    }

    fn target(&self, kind: BuiltIn, namespace: &str, name: &str) -> Target {
        let snapshot = self.engine.registry.snapshot();
        let mut target = Target::new(snapshot.built_in(kind), Some(namespace), name);
        target.manager = MANAGER.to_owned();
        target
    }

    async fn create(&self, target: &Target, object: Value) -> Result<(), ApiError> {
        let mut warnings = Warnings::default();
        let created = self
            .engine
            .create(target, object, WriteOptions::INTERNAL, &mut warnings);
        expect_race(created.await.map(drop))
    }
}

/// Waits forever if there is no authority.
async fn wait_for_change(changes: &mut Option<watch::Receiver<()>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    future::pending().await
}

fn names(namespaces: &[Arc<Record>]) -> BTreeSet<String> {
    let names = namespaces.iter().map(|record| record.json());
    names
        .map(|namespace| object::name(&namespace).to_owned())
        .collect()
}

/// Returns the namespace whose objects may have to be created after a change of a key.
fn affected_namespace(key: &str, change: EventKind) -> Option<&str> {
    let deleted = matches!(change, EventKind::Deleted);
    if let Some(namespace) = key.strip_prefix(NAMESPACE_STORAGE) {
        return matches!(change, EventKind::Created).then_some(namespace);
    }
    let (path, name, may_need_work) = match key.strip_prefix(SERVICE_ACCOUNT_STORAGE) {
        Some(path) => (path, SERVICE_ACCOUNT, deleted),
        // Another client may have created the ConfigMap, with other content.
        None => (key.strip_prefix(CONFIG_MAP_STORAGE)?, CONFIG_MAP, true),
    };
    let (namespace, own) = path.split_once('/')?;
    (own == name && may_need_work).then_some(namespace)
}

fn has_authority(map: &Value, authority: &str) -> bool {
    map["data"] == json!({AUTHORITY: authority})
        && map["binaryData"].is_null()
        && !object::text(map, &["metadata", "annotations", DESCRIPTION_ANNOTATION]).is_empty()
}

fn with_authority(mut map: Value, authority: &str) -> Value {
    map["data"] = json!({AUTHORITY: authority});
    if let Some(map) = map.as_object_mut() {
        // It could have the same key.
        map.remove("binaryData");
    }
    map["metadata"]["annotations"][DESCRIPTION_ANNOTATION] = json!(DESCRIPTION);
    map
}

/// Ignores errors of a namespace that is being deleted, and of an object that another client created
/// or deleted first. An event of that change follows.
fn expect_race(outcome: Result<(), ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(err)
            if matches!(
                err.reason(),
                Reason::AlreadyExists | Reason::NotFound | Reason::Forbidden
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_changes_affect_a_namespace() {
        use EventKind::{Created, Deleted, Modified};
        let check = |key: &str, expected: [Option<&str>; 3]| {
            let found = [Created, Modified, Deleted].map(|change| affected_namespace(key, change));
            assert_eq!(found, expected, "{key}");
        };
        check("/core/namespaces/a", [Some("a"), None, None]);
        check("/core/serviceaccounts/a/default", [None, None, Some("a")]);
        check("/core/serviceaccounts/a/other", [None, None, None]);
        check(
            "/core/configmaps/a/kube-root-ca.crt",
            [Some("a"), Some("a"), Some("a")],
        );
        check("/core/configmaps/a/other", [None, None, None]);
        check("/core/secrets/a/default", [None, None, None]);
    }

    #[test]
    fn config_map_is_repaired_without_other_changes() {
        let map = json!({"metadata": {"name": "kube-root-ca.crt", "labels": {"a": "b"}},
            "data": {"x": "y"}, "binaryData": {"ca.crt": "eA=="}});
        assert!(!has_authority(&map, "PEM"));
        let repaired = with_authority(map, "PEM");
        assert_eq!(repaired["data"], json!({"ca.crt": "PEM"}));
        assert_eq!(repaired["binaryData"], Value::Null);
        assert_eq!(repaired["metadata"]["labels"]["a"], "b");
        assert!(has_authority(&repaired, "PEM"));
        assert!(!has_authority(&repaired, "rotated"));
    }
}
