//! Dispatch of requests to replicas: acquires, waits for and releases slots. Shares the gateway's
//! [`State`] between all requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};

use super::metrics::GatewayMetrics;
use super::queue::QueueTicket;
use super::state::{EnqueueResult, Grant, ModelKey, Refusal, State};
use crate::request::info::RequestInfo;
use crate::routing::health::Fault;
use crate::routing::length::Length;
use crate::routing::table::{Model, Replica, RoutingTable};
use rooflet_base::clock::Clock;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_base::mutex::lock;

type Notifier = oneshot::Sender<Result<Slot, Refusal>>;

/// Dispatcher of requests to replicas; see the module documentation. Clones share the state.
#[derive(Clone)]
pub(super) struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State<Notifier>>,
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    clock: Clock,
    metrics: GatewayMetrics,
    /// Changes when the first request of a model is queued.
    demand_tx: watch::Sender<()>,
    /// Notified when [`State::requeue_after`] may have changed.
    requeue_changed: Notify,
}

/// Capacity of a replica for one request. Released on drop.
pub(super) struct Slot {
    dispatcher: Dispatcher,
    pub(super) model: ModelKey,
    pub(super) replica: Replica,
    /// True if the request was queued for the slot.
    pub(super) was_queued: bool,
    request_id: u64,
    released: bool,
}

impl Dispatcher {
    pub(super) fn new(
        table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
        clock: Clock,
        metrics: GatewayMetrics,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new()),
                table_rx,
                clock,
                metrics,
                demand_tx: watch::Sender::new(()),
                requeue_changed: Notify::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<Notifier>> {
        lock(&self.shared.state)
    }

    fn now(&self) -> Instant {
        self.shared.clock.instant()
    }

    fn table(&self) -> Option<Arc<RoutingTable>> {
        self.shared.table_rx.latest()
    }

    /// Dispatches queued requests after every change of the routing table and every
    /// [`State::requeue_after`]. Never returns while the table's sender exists.
    pub(super) async fn follow(self) {
        let mut table_rx = self.shared.table_rx.clone();
        let mut known = Arc::new(RoutingTable::default());
        loop {
            if let Some(table) = table_rx.see_latest() {
                let changed = table.changed_since(&known);
                let orphans = self.lock().update(&table, &changed, self.now());
                for notifier in orphans {
                    drop(notifier.send(Err(Refusal::NotReady)));
                }
                known = table;
                self.update_gauges();
            }
            let mut changed = std::pin::pin!(table_rx.changed());
            loop {
                // Compute this before dispatching. An ejection that ends in between is then covered
                // by the dispatch or by the timer.
                let after = self.lock().requeue_after(self.now());
                let with_queue: Vec<ModelKey> = {
                    let state = self.lock();
                    state.queued().map(|(key, _)| key.clone()).collect()
                };
                for key in with_queue {
                    self.dispatch_queued(&key);
                }
                let pause = async {
                    match after {
                        Some(after) => tokio::time::sleep(after).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = &mut changed => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = pause => break,
                    () = self.shared.requeue_changed.notified() => {}
                }
            }
        }
    }

    fn slot(&self, model: ModelKey, grant: Grant, was_queued: bool) -> Slot {
        Slot {
            dispatcher: self.clone(),
            model,
            replica: grant.replica,
            was_queued,
            request_id: grant.request_id,
            released: false,
        }
    }

    /// Dispatches queued requests of the model until no request or no slot is left.
    fn dispatch_queued(&self, key: &ModelKey) {
        let Some(table) = self.table() else { return };
        let Some(model) = table.get(key) else { return };
        loop {
            let next = self.lock().next(model, self.now());
            let Some((grant, notifier)) = next else { break };
            let slot = self.slot(key.clone(), grant, true);
            if let Err(Ok(slot)) = notifier.send(Ok(slot)) {
                // The client has left. The next request may use the slot.
                slot.abandon();
            }
        }
        self.update_gauges();
    }

    fn update_gauges(&self) {
        let state = self.lock();
        let queued = state.queued().map(|(_, queued)| queued).sum();
        let ejected = state.ejected(self.now());
        drop(state);
        self.shared.metrics.update_gauges(queued, ejected);
    }

    /// Returns a channel that changes when the first request of a model is queued.
    pub(super) fn demand(&self) -> watch::Receiver<()> {
        self.shared.demand_tx.subscribe()
    }

    /// Calls [`State::take_peaks`].
    pub(super) fn take_peaks(&self) -> BTreeMap<ModelKey, u64> {
        self.lock().take_peaks()
    }

    /// Records demand for a model without free replicas. See [`State::note_demand`].
    pub(super) fn note_demand(&self, model: &Model) {
        if self.lock().note_demand(model) {
            self.shared.demand_tx.send_replace(());
        }
    }

    /// Calls [`State::grace_period_left`].
    pub(super) fn grace_period_left(&self, model: &Model) -> Option<Duration> {
        self.lock().grace_period_left(model, self.now())
    }

    /// Acquires a slot for a new request: immediately, or from the queue within `max_wait`.
    ///
    /// Returns a [`Refusal`] if the queue rejects the request or `max_wait` elapses.
    pub(super) async fn acquire(
        &self,
        model: &Model,
        info: &RequestInfo,
        bytes: usize,
        max_wait: Duration,
    ) -> Result<Slot, Refusal> {
        let key = model.key();
        let (notifier, notified) = oneshot::channel();
        let ticket = {
            let mut state = self.lock();
            if let Some(grant) = state.admit(model, info, self.now()) {
                drop(state);
                return Ok(self.slot(key, grant, false));
            }
            match state.enqueue(model, info, bytes, max_wait, notifier, self.now()) {
                EnqueueResult::Rejected(refusal) => {
                    drop(state);
                    // Scale a model from zero although this request is rejected: the client
                    // retries.
                    self.note_demand(model);
                    return Err(refusal);
                }
                EnqueueResult::Queued(ticket, evicted) => {
                    let expected = state.expected_wait(model, self.now());
                    drop(state);
                    if let Some(evicted) = evicted {
                        drop(evicted.send(Err(Refusal::QueueFull(expected))));
                    }
                    ticket
                }
            }
        };
        let _guard = QueueGuard {
            dispatcher: self,
            key: &key,
            ticket,
        };
        self.note_demand(model);
        self.shared.requeue_changed.notify_one();
        // The table may have changed since the caller read it.
        self.dispatch_queued(&key);
        match tokio::time::timeout(max_wait, notified).await {
            Ok(Ok(outcome)) => outcome,
            // The model was removed together with its queue.
            Ok(Err(_)) => Err(Refusal::NotReady),
            Err(_elapsed) => Err(Refusal::Expired(self.lock().expected_wait(model, self.now()))),
        }
    }

    /// Acquires a slot outside the replicas in `tried`. With `may_queue`, the replica may be full.
    pub(super) fn retry(
        &self,
        model: &Model,
        info: &RequestInfo,
        tried: &[u64],
        may_queue: bool,
    ) -> Option<Slot> {
        let grant = self.lock().retry(model, info, tried, may_queue, self.now())?;
        Some(self.slot(model.key(), grant, false))
    }

    /// Calls [`State::assign_to_owner`].
    pub(super) fn assign_to_owner(&self, model: &Model, info: &RequestInfo, id: u64) -> Option<Slot> {
        let grant = self.lock().assign_to_owner(model, info, id, self.now())?;
        Some(self.slot(model.key(), grant, false))
    }

    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.lock().queued().map(|(_, queued)| queued).sum()
    }
}

/// Guard that removes a request from its queue on drop.
struct QueueGuard<'a> {
    dispatcher: &'a Dispatcher,
    key: &'a ModelKey,
    ticket: QueueTicket,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        self.dispatcher.lock().remove_queued(self.key, self.ticket);
        self.dispatcher.update_gauges();
    }
}

impl Slot {
    /// Records the number of requests that the replica reported in its response.
    pub(super) fn running(&self, count: u64) {
        let now = self.dispatcher.now();
        self.dispatcher.lock().record_running(self.replica.id, count, now);
    }

    /// Records the first token of the response.
    pub(super) fn first_token(&self) {
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .first_token(self.replica.id, self.request_id, now);
    }

    /// Records the end of a successful response, and releases the slot.
    pub(super) fn finished(mut self, length: Length) {
        self.released = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .finished(&self.model, self.replica.id, self.request_id, length, now);
        self.dispatcher.dispatch_queued(&self.model);
    }

    /// Records a response without generated tokens, and releases the slot.
    pub(super) fn rejected(mut self) {
        self.released = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .rejected(self.replica.id, self.request_id, now);
        self.dispatcher.dispatch_queued(&self.model);
    }

    /// Records a failure of the replica, and releases the slot.
    pub(super) fn failed(mut self, fault: Fault) {
        self.released = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .failed(self.replica.id, self.request_id, fault, now);
        self.dispatcher.shared.requeue_changed.notify_one();
        self.dispatcher.dispatch_queued(&self.model);
    }

    /// Releases the slot without dispatching the next request.
    fn abandon(mut self) {
        self.released = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .abandoned(self.replica.id, self.request_id, now);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.released {
            let now = self.dispatcher.now();
            self.dispatcher
                .lock()
                .abandoned(self.replica.id, self.request_id, now);
            self.dispatcher.dispatch_queued(&self.model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::estimate::Speed;
    use crate::routing::table::Target;
    use rooflet_api::v1alpha1::ModelReplicaStatus;
    use rooflet_base::clock::ManualClock;
    use rooflet_base::metrics::Registry;
    use rooflet_proxy::Upstream;

    fn model(starting: &[u64], ready: &[u64]) -> Model {
        let replica = |id: &u64| Replica {
            target: Target {
                namespace: "default".to_owned(),
                replica: format!("g{id}"),
            },
            id: *id,
            upstream: Upstream::unix("/x"),
            revision: None,
            rows: 1,
            speed: Speed::of(&ModelReplicaStatus::default(), 1),
            reported: None,
            unloads: false,
        };
        Model {
            namespace: "default".to_owned(),
            name: "guide".to_owned(),
            starting: starting.to_vec(),
            replicas: ready.iter().map(replica).collect(),
            has_desired_replicas: true,
            ..Model::default()
        }
    }

    /// Otherwise the model would never scale from zero for clients that retry later.
    #[tokio::test]
    async fn rejected_request_counts_as_demand_for_model_at_zero() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let (_table_tx, table_rx) = watch::channel(None);
        let metrics = GatewayMetrics::register(&Registry::new()).unwrap();
        let dispatcher = Dispatcher::new(table_rx, Clock::Manual(manual.clone()), metrics);
        let model = Model {
            last_start: Some(Duration::from_secs(90)),
            ..model(&[], &[])
        };
        let table = RoutingTable::of_models([model.clone()]);
        let changed = [model.key()].into();
        dispatcher.lock().update(&table, &changed, dispatcher.now());
        let demand_rx = dispatcher.demand();
        let rejected = dispatcher
            .acquire(&model, &RequestInfo::default(), 10, Duration::from_secs(60))
            .await;
        let refusal = rejected.err().expect("it starts in 90 s");
        assert!(matches!(refusal, Refusal::TooLong(_)), "{refusal:?}");
        assert!(demand_rx.has_changed().unwrap());
        assert_eq!(dispatcher.take_peaks().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn queued_request_gets_replica_when_its_ejection_ends() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let model = model(&[], &[1, 2]);
        let table = RoutingTable::of_models([model.clone()]);
        let (_table_tx, table_rx) = watch::channel(Some(Arc::new(table)));
        let metrics = GatewayMetrics::register(&Registry::new()).unwrap();
        let dispatcher = Dispatcher::new(table_rx, Clock::Manual(manual.clone()), metrics);
        let (max_wait, info) = (
            Duration::from_secs(60),
            RequestInfo {
                rows: 1,
                ..RequestInfo::default()
            },
        );
        let acquire = || dispatcher.acquire(&model, &info, 10, max_wait);
        let busy = acquire().await.expect("a free slot");
        let failing = acquire().await.expect("a free slot");
        let failed = failing.replica.id;
        let queueing = async {
            while dispatcher.queued() == 0 {
                tokio::task::yield_now().await;
            }
            failing.failed(Fault::Unreachable);
            tokio::task::yield_now().await;
            manual.advance(Duration::from_secs(2));
        };
        let both = async { tokio::join!(acquire(), queueing).0 };
        let slot = tokio::select! {
            slot = both => slot.expect("a slot"),
            () = dispatcher.clone().follow() => unreachable!("the table does not change"),
        };
        assert_eq!(slot.replica.id, failed);
        drop(busy);
    }
}
