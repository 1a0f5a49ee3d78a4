//! Handle of the reconcilers to the [`Index`], which follows the caches.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{MappedMutexGuard, Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify, watch};
use tokio_util::sync::CancellationToken;

use super::index::{Effects, Index};
use super::queue::{Priority, WorkQueue};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_base::clock::Clock;
use rooflet_base::mutex::lock;
use rooflet_client::{Cache, Changes, Feed, ObjectKey};

/// Maximum delay between a change of the fleet and the passes for complete deployments. Their plans
/// rarely depend on other nodes than their own.
const SWEEP_DELAY: Duration = Duration::from_secs(30);

/// Delay of passes after a step of a replica's start. The steps of one start then cause one pass, and one
/// write of the status.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);

/// Delay of passes for deployments that share a node with a changed replica. Replicas that start
/// together on a node then cause one pass.
const NEIGHBOUR_DELAY: Duration = Duration::from_secs(2);

/// Delay of these passes for complete deployments. Only the prediction in their status differs, and each
/// of the replicas that are bound to a node one after the other would change it.
const COMPLETE_NEIGHBOUR_DELAY: Duration = SWEEP_DELAY;

/// Changes of the caches that the index has not applied.
struct Feeds {
    nodes: Feed<FleetNode>,
    deployments: Feed<ModelDeployment>,
    revisions: Feed<ModelRevision>,
    replicas: Feed<ModelReplica>,
}

/// Notifications of the reconcilers that process all their objects in one pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Wakeups {
    pub(super) binder: Changes,
    pub(super) autoscaler: Changes,
    pub(super) node_lifecycle: Changes,
}

/// Queue of the deployments whose plan may differ. Clones share the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedQueue {
    queue: Arc<Mutex<WorkQueue>>,
    added: Arc<Notify>,
}

impl SharedQueue {
    pub(super) fn lock(&self) -> MutexGuard<'_, WorkQueue> {
        lock(&self.queue)
    }

    pub(super) fn add(&self, key: ObjectKey, priority: Priority) {
        self.lock().add(key, priority);
        self.added.notify_one();
    }

    /// Waits until a key is added.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }
}

/// Index that follows the caches. Clones share the index.
#[derive(Clone)]
pub(super) struct SharedIndex {
    state: Arc<AsyncMutex<(Index, Feeds)>>,
    /// Time of the next passes for all deployments.
    sweep_at: Arc<Mutex<Option<Instant>>>,
    pub(super) queue: SharedQueue,
    pub(super) wakeups: Wakeups,
    clock: Clock,
}

impl SharedIndex {
    pub(super) fn new(
        nodes: &Cache<FleetNode>,
        deployments: &Cache<ModelDeployment>,
        revisions: &Cache<ModelRevision>,
        replicas: &Cache<ModelReplica>,
        reserve_node_failures: usize,
        clock: Clock,
    ) -> Self {
        let feeds = Feeds {
            nodes: nodes.feed(),
            deployments: deployments.feed(),
            revisions: revisions.feed(),
            replicas: replicas.feed(),
        };
        Self {
            state: Arc::new(AsyncMutex::new((Index::new(reserve_node_failures), feeds))),
            sweep_at: Arc::default(),
            queue: SharedQueue::default(),
            wakeups: Wakeups::default(),
            clock,
        }
    }

    /// Returns the index in the current state of the caches. Other reconcilers wait for the lock,
    /// so the holder must not write to the API server.
    pub(super) async fn lock(&self) -> MappedMutexGuard<'_, Index> {
        let mut guard = self.state.lock().await;
        let (index, feeds) = &mut *guard;
        let effects = feeds.apply_to(index);
        self.wake(index, effects);
        AsyncMutexGuard::map(guard, |(index, _)| index)
    }

    fn wake(&self, index: &Index, effects: Effects) {
        let mut queue = self.queue.lock();
        let is_any_added = !effects.deployments.is_empty() || effects.fleet;
        let now = self.clock.instant();
        for (key, priority) in effects.deployments {
            match priority {
                Priority::Progress => queue.add_at(key, now + PROGRESS_DELAY),
                Priority::Resync => {
                    let delay = match index.deployments.is_unsettled(&key) {
                        true => NEIGHBOUR_DELAY,
                        false => COMPLETE_NEIGHBOUR_DELAY,
                    };
                    queue.add_at(key, now + delay);
                }
                Priority::Changed | Priority::Created | Priority::Dependent => queue.add(key, priority),
            }
        }
        if effects.fleet {
            for key in index.deployments.unsettled() {
                queue.add(key.clone(), Priority::Dependent);
            }
            lock(&self.sweep_at).get_or_insert(now + SWEEP_DELAY);
        }
        drop(queue);
        if is_any_added {
            self.queue.added.notify_one();
        }
        let wakeups = [
            (effects.binder, &self.wakeups.binder),
            (effects.autoscaler, &self.wakeups.autoscaler),
            (effects.node_lifecycle, &self.wakeups.node_lifecycle),
        ];
        for (_, changes) in wakeups.into_iter().filter(|(is_woken, _)| *is_woken) {
            changes.mark();
        }
    }

    /// Applies the changes of the caches when they arrive, until `stop`.
    pub(super) async fn follow(self, mut changes: watch::Receiver<u64>, stop: CancellationToken) {
        loop {
            changes.mark_unchanged();
            let index = self.lock().await;
            let now = self.clock.instant();
            if lock(&self.sweep_at).take_if(|at| *at <= now).is_some() {
                let mut queue = self.queue.lock();
                for key in index.deployments.keys() {
                    queue.add(key.clone(), Priority::Resync);
                }
                drop(queue);
                self.queue.added.notify_one();
            }
            drop(index);
            let sweep_at = *lock(&self.sweep_at);
            let sweep = async {
                match sweep_at {
                    Some(at) => tokio::time::sleep(at.saturating_duration_since(now)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => {}
                () = sweep => {}
            }
        }
    }
}

impl Feeds {
    fn apply_to(&self, index: &mut Index) -> Effects {
        let mut effects = Effects::default();
        for change in self.nodes.take() {
            index.apply_node(&change, &mut effects);
        }
        for change in self.deployments.take() {
            index.apply_deployment(&change, &mut effects);
        }
        for change in self.revisions.take() {
            index.apply_revision(&change, &mut effects);
        }
        for change in self.replicas.take() {
            index.apply_replica(&change, &mut effects);
        }
        effects
    }
}
