//! Local copy of all objects of a kind, updated by a watch that survives restarts of the server.
//!
//! A copy lags behind our own writes. A decision based on it could, for example, create a replica
//! twice. Responses to our own writes therefore overlay the copy until the watch has delivered
//! them.
//!
//! Repeated or late watch events change nothing: of two versions of an object, the newer one wins.
//!
//! An object that this version cannot parse, because a newer version wrote it, does not affect
//! other objects. Its last known version stays, and [`Cache::unreadable`] lists such objects.

mod copy;
mod feed;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch as channel;
use tracing::info;

use self::copy::LocalCopy;
pub use self::copy::ObjectKey;
pub(crate) use self::copy::Unreadable;
use self::feed::Feeds;
pub use self::feed::{Change, Feed};
use super::sleep::SleepDetector;
use super::{ApiError, Attempts, remedy};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_base::task::Tasks;

/// Interval at which a watch compares the clocks to detect sleep of the machine.
const CLOCK_CHECK_PERIOD: Duration = Duration::from_secs(5);

/// Kind that can be watched.
pub trait CachedKind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> CachedKind for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Notifier of the consumers of caches. Several changes before the next wakeup count as one.
#[derive(Debug, Clone)]
pub struct Changes {
    changed_tx: Arc<channel::Sender<u64>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

impl Changes {
    pub fn new() -> Self {
        Self {
            changed_tx: Arc::new(channel::Sender::new(0)),
        }
    }

    pub fn mark(&self) {
        self.changed_tx
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns a receiver whose `changed()` resolves after every following [`Changes::mark`].
    pub fn subscribe(&self) -> channel::Receiver<u64> {
        self.changed_tx.subscribe()
    }
}

/// Local copy of the objects of one kind. Clones share the copy.
pub struct Cache<K: CachedKind> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    synced_tx: channel::Sender<bool>,
    changes: Changes,
}

struct State<K> {
    copy: LocalCopy<K>,
    feeds: Feeds,
}

impl<K: CachedKind> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<K: CachedKind> Cache<K> {
    fn new(changes: Changes) -> Self {
        let state = State {
            copy: LocalCopy::default(),
            feeds: Feeds::default(),
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                synced_tx: channel::Sender::new(false),
                changes,
            }),
        }
    }

    /// Waits for the first list. Never returns if the watch was stopped before.
    pub async fn synced(&self) {
        let mut synced_rx = self.shared.synced_tx.subscribe();
        if synced_rx.wait_for(|synced| *synced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns whether the first list has arrived.
    pub fn is_synced(&self) -> bool {
        self.lock().copy.is_synced()
    }

    /// Returns all objects, ordered by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.lock().copy.list()
    }

    /// Returns one object.
    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<K>> {
        self.lock().copy.get(&ObjectKey::new(namespace, name)).cloned()
    }

    /// Records the server's response to a create, update or patch, or to a delete that waits for
    /// finalizers.
    pub fn wrote(&self, object: K) {
        let mut state = self.lock();
        let changed = state.copy.wrote(object);
        state.feeds.record(changed);
        drop(state);
        self.shared.changes.mark();
    }

    /// Records that the server deleted the object immediately.
    pub fn deleted(&self, object: &K) {
        let mut state = self.lock();
        let changed = state.copy.deleted(object);
        state.feeds.record(changed);
        drop(state);
        self.shared.changes.mark();
    }

    /// Returns namespace, name and UID of existing objects that this version cannot parse.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.lock().copy.unreadable()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        lock(&self.shared.state)
    }

    /// Applies an event of the watch. Returns whether readers get other objects than before. The
    /// delivery of an own write changes nothing for them.
    fn observe(&self, event: watcher::Event<DeserializeGuard<K>>) -> bool {
        let is_synced = matches!(event, watcher::Event::InitDone);
        let mut state = self.lock();
        let changed = state.copy.observe(event);
        let is_any_changed = !changed.is_empty();
        state.feeds.record(changed);
        drop(state);
        if is_synced {
            self.shared.synced_tx.send_replace(true);
        }
        is_any_changed
    }
}

/// Events of a watch that wake the consumers of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakes {
    Never,
    /// The event wakes them if it changes an object for readers.
    IfChanged,
    Always,
}

impl Wakes {
    fn of<K>(event: &watcher::Event<DeserializeGuard<K>>, is_relevant: fn(&K) -> bool) -> Self {
        match event {
            watcher::Event::Init | watcher::Event::InitApply(_) => Self::Never,
            watcher::Event::Apply(DeserializeGuard(Ok(object))) if !is_relevant(object) => Self::Never,
            watcher::Event::Apply(DeserializeGuard(Ok(_)))
            | watcher::Event::Delete(DeserializeGuard(Ok(_))) => Self::IfChanged,
            // The list of objects that cannot be parsed may change.
            watcher::Event::Apply(DeserializeGuard(Err(_)))
            | watcher::Event::Delete(DeserializeGuard(Err(_)))
            | watcher::Event::InitDone => Self::Always,
        }
    }
}

/// Starts a watch that updates a [`Cache`] and calls `changes.mark` on every change. The watch
/// restarts with a list after the machine slept, and after its server was unavailable.
pub fn watch<K: CachedKind>(
    tasks: &Tasks,
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    clock: &Clock,
    changes: &Changes,
) -> Cache<K> {
    watch_heeding(tasks, api, config, clock, changes, |_| true)
}

/// Like [`watch`], but does not mark changes of objects for which `is_relevant` returns false.
pub fn watch_heeding<K: CachedKind>(
    tasks: &Tasks,
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    clock: &Clock,
    changes: &Changes,
    is_relevant: fn(&K) -> bool,
) -> Cache<K> {
    let cache = Cache::new(changes.clone());
    let (kept, changes, stop) = (cache.clone(), changes.clone(), tasks.stop_token());
    let kind = K::kind(&()).into_owned();
    let resource = format!("{}.{}", K::plural(&()), K::group(&()));
    let resource = resource.trim_end_matches('.').to_owned();
    let mut sleep = SleepDetector::new(clock.clone());
    tasks.spawn_detached(async move {
        let start = || watcher(api.clone(), config.clone());
        let mut events = std::pin::pin!(start());
        let mut clock_checks = tokio::time::interval(CLOCK_CHECK_PERIOD);
        let mut attempts = Attempts::new(format!("watch of {kind}"));
        // Starts after a failure. A watcher retries when it is polled again.
        let mut pause = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let event = async {
                if !pause.is_elapsed() {
                    pause.as_mut().await;
                }
                events.next().await
            };
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = event => event,
                _ = clock_checks.tick() => {
                    if let Some(slept) = sleep.slept() {
                        info!(kind, slept_seconds = slept.as_secs(), "machine slept; restarting watch");
                        events.set(start());
                    }
                    continue;
                }
            };
            match event {
                // The stream of a watcher never ends.
                None => return,
                Some(Ok(event)) => {
                    // `Init` precedes every attempt to list, so it is no success.
                    if matches!(
                        event,
                        watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_)
                    ) {
                        attempts.succeeded();
                    }
                    let wakes = Wakes::of(&event, is_relevant);
                    let is_any_changed = kept.observe(event);
                    if wakes == Wakes::Always || wakes == Wakes::IfChanged && is_any_changed {
                        changes.mark();
                    }
                }
                Some(Err(err)) => {
                    let err = ApiError::from(&err);
                    // The next server may have another store, in which the last resourceVersion has
                    // no meaning. A list replaces all objects.
                    if matches!(err, ApiError::Refused { .. } | ApiError::Untrusted { .. }) {
                        events.set(start());
                    }
                    let wait = attempts.failed_with(&err, remedy::of_watch(&err, &kind, &resource));
                    pause.set(tokio::time::sleep(wait));
                }
            }
        }
    });
    cache
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::copy::version;
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use kube::ResourceExt;
    use watcher::Event;

    fn object(name: &str, version: u64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("default".to_owned());
        object.metadata.uid = Some(format!("uid-{name}"));
        object.metadata.resource_version = Some(version.to_string());
        object
    }

    struct Fixture {
        cache: Cache<ConfigMap>,
        feed: Feed<ConfigMap>,
        /// Versions of all objects, from the feed.
        followed: BTreeMap<ObjectKey, u64>,
    }

    impl Fixture {
        fn new(listed: &[(&str, u64)]) -> Self {
            let cache = Cache::new(Changes::new());
            let feed = cache.feed();
            let mut fixture = Self {
                cache,
                feed,
                followed: BTreeMap::new(),
            };
            fixture.relist(listed);
            fixture
        }

        fn observe(&mut self, event: Event<ConfigMap>) -> bool {
            let guard = |object| DeserializeGuard(Ok(object));
            let event = match event {
                Event::Init => Event::Init,
                Event::InitDone => Event::InitDone,
                Event::InitApply(object) => Event::InitApply(guard(object)),
                Event::Apply(object) => Event::Apply(guard(object)),
                Event::Delete(object) => Event::Delete(guard(object)),
            };
            self.cache.observe(event)
        }

        fn observe_guarded(&mut self, event: Event<DeserializeGuard<ConfigMap>>) {
            self.cache.observe(event);
        }

        fn relist(&mut self, listed: &[(&str, u64)]) {
            self.observe(Event::Init);
            for (name, version) in listed {
                self.observe(Event::InitApply(object(name, *version)));
            }
            self.observe(Event::InitDone);
        }

        fn check(&mut self, expect: &str) {
            let objects = self.cache.list();
            let got: Vec<_> = objects
                .iter()
                .map(|object| format!("{}@{}", object.name_any(), version(object.as_ref())))
                .collect();
            assert_eq!(got.join(" "), expect);
            for Change { key, object } in self.feed.take() {
                self.followed.remove(&key);
                let version = object.map(|object| version(object.as_ref()));
                self.followed.extend(version.map(|version| (key, version)));
            }
            let listed = objects
                .iter()
                .map(|object| (ObjectKey::of(object.as_ref()), version(object.as_ref())));
            assert_eq!(self.followed, listed.collect());
            for object in objects {
                let one = self.cache.get(Some("default"), &object.name_any());
                assert_eq!(
                    one.map(|one| version(one.as_ref())),
                    Some(version(object.as_ref()))
                );
            }
        }
    }

    #[test]
    fn lists_own_writes_before_the_watch_delivers_them() {
        let mut fixture = Fixture::new(&[("b", 3)]);
        fixture.cache.wrote(object("a", 4));
        fixture.cache.wrote(object("b", 5));
        fixture.check("a@4 b@5");
        fixture.observe(Event::Apply(object("a", 4)));
        fixture.check("a@4 b@5");
        fixture.observe(Event::Apply(object("b", 5)));
        fixture.observe(Event::Apply(object("b", 9)));
        fixture.check("a@4 b@9");
    }

    #[test]
    fn delivery_of_an_own_write_changes_nothing_for_readers() {
        let mut fixture = Fixture::new(&[("b", 1)]);
        fixture.cache.wrote(object("a", 4));
        fixture.check("a@4 b@1");
        let written = fixture.cache.get(Some("default"), "a").expect("written");
        assert!(!fixture.observe(Event::Apply(object("a", 4))));
        assert!(fixture.feed.take().is_empty());
        let delivered = fixture.cache.get(Some("default"), "a").expect("delivered");
        assert!(Arc::ptr_eq(&written, &delivered));
        // An older version below a newer own write changes nothing either.
        fixture.cache.wrote(object("a", 7));
        fixture.check("a@7 b@1");
        assert!(!fixture.observe(Event::Apply(object("a", 6))));
        assert!(fixture.feed.take().is_empty());
        assert!(fixture.observe(Event::Apply(object("a", 9))));
        fixture.check("a@9 b@1");
        fixture.cache.deleted(&object("a", 9));
        fixture.check("b@1");
        assert!(!fixture.observe(Event::Delete(object("a", 10))));
        assert!(fixture.feed.take().is_empty());
        assert!(fixture.observe(Event::Delete(object("b", 11))));
        fixture.check("");
    }

    #[test]
    fn ignores_response_that_arrives_after_its_watch_event() {
        let mut fixture = Fixture::new(&[]);
        fixture.observe(Event::Apply(object("a", 4)));
        fixture.observe(Event::Delete(object("a", 5)));
        fixture.cache.wrote(object("a", 4));
        fixture.check("");
    }

    #[test]
    fn omits_deleted_object_before_the_watch_delivers_the_deletion() {
        let mut fixture = Fixture::new(&[("a", 1), ("b", 2)]);
        fixture.cache.deleted(&object("a", 1));
        fixture.check("b@2");
        fixture.observe(Event::Apply(object("b", 3)));
        fixture.check("b@3");
        fixture.observe(Event::Delete(object("a", 4)));
        fixture.observe(Event::Apply(object("a", 6)));
        fixture.check("a@6 b@3");
    }

    #[test]
    fn ignores_repeated_and_late_events() {
        let mut fixture = Fixture::new(&[("a", 1), ("b", 2)]);
        fixture.observe(Event::Apply(object("a", 5)));
        fixture.observe(Event::Apply(object("a", 3)));
        fixture.observe(Event::Apply(object("a", 5)));
        fixture.check("a@5 b@2");
        // A deletion that arrives early, and a repeated one.
        fixture.observe(Event::Delete(object("b", 7)));
        fixture.observe(Event::Apply(object("b", 6)));
        fixture.observe(Event::Delete(object("b", 7)));
        fixture.check("a@5");
        let mut again = object("b", 9);
        again.metadata.uid = Some("uid-another".to_owned());
        fixture.observe(Event::Apply(again));
        fixture.observe(Event::Delete(object("b", 7)));
        fixture.check("a@5 b@9");
        // A write stays visible until the watch delivers it, whatever else arrives.
        fixture.cache.wrote(object("a", 10));
        fixture.observe(Event::Apply(object("c", 11)));
        fixture.check("a@10 b@9 c@11");
        fixture.observe(Event::Apply(object("a", 10)));
        fixture.observe(Event::Apply(object("a", 12)));
        fixture.check("a@12 b@9 c@11");
    }

    #[test]
    fn cached_objects_have_no_managed_fields() {
        let mut fixture = Fixture::new(&[]);
        let mut managed = object("a", 5);
        managed.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        fixture.observe(Event::Apply(managed));
        let cached = fixture.cache.get(Some("default"), "a").expect("delivered");
        assert_eq!(cached.metadata.managed_fields, None);
    }

    #[test]
    fn list_replaces_earlier_writes() {
        let mut fixture = Fixture::new(&[]);
        fixture.cache.wrote(object("a", 4));
        fixture.check("a@4");
        fixture.relist(&[]);
        fixture.check("");
        fixture.observe(Event::Init);
        fixture.cache.wrote(object("b", 7));
        fixture.observe(Event::InitDone);
        fixture.check("b@7");
    }

    /// Returns an object with `data` of a type that this version cannot parse.
    fn newer(name: &str, version: u64) -> DeserializeGuard<ConfigMap> {
        let mut value = serde_json::to_value(object(name, version)).expect("serialises");
        value["data"] = serde_json::json!(["not a map"]);
        let guarded: DeserializeGuard<ConfigMap> = serde_json::from_value(value).expect("it has metadata");
        assert!(guarded.0.is_err());
        guarded
    }

    #[test]
    fn object_that_cannot_be_parsed_keeps_its_last_version() {
        let mut fixture = Fixture::new(&[("a", 1), ("b", 2)]);
        fixture.observe_guarded(Event::Apply(newer("a", 3)));
        fixture.observe(Event::Apply(object("b", 4)));
        fixture.check("a@1 b@4");
        let unreadable = |fixture: &Fixture| {
            let names = fixture.cache.unreadable().into_iter().map(|one| one.name);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(unreadable(&fixture), "a");
        // A new list contains the same, and reports unknown objects as existing.
        fixture.observe_guarded(Event::Init);
        fixture.observe_guarded(Event::InitApply(newer("a", 3)));
        fixture.observe_guarded(Event::InitApply(newer("c", 5)));
        fixture.observe_guarded(Event::InitApply(DeserializeGuard(Ok(object("b", 4)))));
        fixture.observe_guarded(Event::InitDone);
        fixture.check("a@1 b@4");
        assert_eq!(unreadable(&fixture), "a c");
        fixture.observe(Event::Apply(object("c", 6)));
        fixture.observe_guarded(Event::Delete(newer("a", 7)));
        fixture.check("b@4 c@6");
        assert_eq!(unreadable(&fixture), "");
    }

    /// Returns a client of a server that responds to every request with 403, and the number of
    /// requests.
    fn forbidding_server() -> (kube::Client, Arc<std::sync::atomic::AtomicUsize>) {
        let requests = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = requests.clone();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let body = br#"{"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}"#;
            let answer = http::Response::builder()
                .status(403)
                .body(kube::client::Body::from(body.to_vec()));
            async { Ok::<_, std::convert::Infallible>(answer.expect("a response")) }
        });
        (kube::Client::new(service, "default"), requests)
    }

    /// Returns a client of a server that has one object, refuses connections when it is watched, and
    /// returns as another server without objects.
    fn replaced_server() -> kube::Client {
        let is_replaced = std::sync::atomic::AtomicBool::new(false);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default();
            let answer = if query.contains("watch=") {
                is_replaced.store(true, std::sync::atomic::Ordering::Relaxed);
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
            } else {
                let items = match is_replaced.load(std::sync::atomic::Ordering::Relaxed) {
                    false => vec![object("a", 10)],
                    true => Vec::new(),
                };
                let list = serde_json::json!({
                    "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "10"}, "items": items,
                });
                let body = kube::client::Body::from(list.to_string().into_bytes());
                Ok(http::Response::new(body))
            };
            async { answer }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn watch_lists_again_after_its_server_was_replaced() {
        let tasks = Tasks::new();
        let api: Api<DeserializeGuard<ConfigMap>> = Api::all(replaced_server());
        let config = watcher::Config::default();
        let cache = watch(&tasks, api, config, &Clock::System, &Changes::new());
        cache.synced().await;
        assert_eq!(cache.list().len(), 1);
        tokio::time::sleep(Duration::from_secs(10)).await;
        tasks.cancel();
        assert_eq!(cache.list(), Vec::new());
    }

    #[tokio::test(start_paused = true)]
    async fn failing_watch_retries_with_growing_delays() {
        let (client, requests) = forbidding_server();
        let tasks = Tasks::new();
        let api: Api<DeserializeGuard<ConfigMap>> = Api::all(client);
        let config = watcher::Config::default();
        let _cache = watch(&tasks, api, config, &Clock::System, &Changes::new());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let count = requests.load(std::sync::atomic::Ordering::Relaxed);
        tasks.cancel();
        assert!((10..25).contains(&count), "{count} requests in a minute");
    }
}
