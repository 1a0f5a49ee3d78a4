//! The gateway's [`State`] shared by all requests: a place at a replica is taken, waited for and given back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};

use super::metrics::GatewayMetrics;
use super::queue::Slip;
use super::state::{Grant, ModelKey, Queued, Refusal, State};
use crate::request::ask::Ask;
use crate::routing::health::Fault;
use crate::routing::length::Length;
use crate::routing::table::{Model, Replica, RoutingTable};
use rooflet_base::clock::Clock;
use rooflet_base::latest::{Latest, LatestSeen};
use rooflet_base::mutex::lock;

type Wake = oneshot::Sender<Result<Place, Refusal>>;

/// See the module. Clones are the same.
#[derive(Clone)]
pub(super) struct Dispatcher {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State<Wake>>,
    table_rx: watch::Receiver<Option<Arc<RoutingTable>>>,
    clock: Clock,
    metrics: GatewayMetrics,
    /// Marked when something begins to wait for a model.
    demand_tx: watch::Sender<()>,
    /// When to look again may have changed.
    looks: Notify,
}

/// A place at a replica, for one request. Given back when dropped.
pub(super) struct Place {
    dispatcher: Dispatcher,
    model: ModelKey,
    pub(super) replica: Replica,
    /// Whether it had to be waited for.
    pub(super) waited: bool,
    flight: u64,
    over: bool,
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
                looks: Notify::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<Wake>> {
        lock(&self.shared.state)
    }

    fn now(&self) -> Instant {
        self.shared.clock.instant()
    }

    fn table(&self) -> Option<Arc<RoutingTable>> {
        self.shared.table_rx.latest()
    }

    /// Hands out what a new table makes room for, again and again.
    pub(super) async fn follow(self) {
        let mut table_rx = self.shared.table_rx.clone();
        loop {
            if let Some(table) = table_rx.see_latest() {
                let orphans = self.lock().update(&table, self.now());
                for wake in orphans {
                    drop(wake.send(Err(Refusal::NotReady)));
                }
                for model in table.all() {
                    self.hand_out(&model.key());
                }
            }
            let mut changed = std::pin::pin!(table_rx.changed());
            loop {
                // Asked for before places are handed out, so that a pause that ends in between is noticed by one of the two.
                let after = self.lock().look_again_after(self.now());
                let waited_for: Vec<ModelKey> = {
                    let state = self.lock();
                    let waited_for = state.waiting().filter(|(_, waiting)| *waiting > 0);
                    waited_for.map(|(key, _)| key.clone()).collect()
                };
                for key in waited_for {
                    self.hand_out(&key);
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
                    () = self.shared.looks.notified() => {}
                }
            }
        }
    }

    fn place(&self, model: ModelKey, grant: Grant, waited: bool) -> Place {
        Place {
            dispatcher: self.clone(),
            model,
            replica: grant.replica,
            waited,
            flight: grant.flight,
            over: false,
        }
    }

    /// Gives places to those that wait for the model, as long as there are both.
    fn hand_out(&self, key: &ModelKey) {
        let Some(table) = self.table() else { return };
        let Some(model) = table.get(key) else { return };
        loop {
            let next = self.lock().next(model, self.now());
            let Some((grant, wake)) = next else { break };
            let place = self.place(key.clone(), grant, true);
            if let Err(Ok(place)) = wake.send(Ok(place)) {
                // Whoever waited has gone; the next one may have the place.
                place.abandon();
            }
        }
        self.show();
    }

    fn show(&self) {
        let state = self.lock();
        let waiting = state.waiting().map(|(_, waiting)| waiting).sum();
        let left_out = state.left_out(self.now());
        drop(state);
        self.shared.metrics.show(waiting, left_out);
    }

    /// Changes when something begins to wait for a model.
    pub(super) fn demand(&self) -> watch::Receiver<()> {
        self.shared.demand_tx.subscribe()
    }

    /// See [`State::take_peaks`].
    pub(super) fn take_peaks(&self) -> BTreeMap<ModelKey, u64> {
        self.lock().take_peaks()
    }

    /// Somebody wants the model, and no replica has room.
    pub(super) fn note_demand(&self, model: &Model) {
        if self.lock().note_demand(model) {
            self.shared.demand_tx.send_replace(());
        }
    }

    /// See [`State::unplaced_for`].
    pub(super) fn unplaced_for(&self, model: &Model) -> Option<Duration> {
        self.lock().unplaced_for(model, self.now())
    }

    /// A place for a request that has just come: at once, or within `patience` when its turn has come.
    pub(super) async fn acquire(
        &self,
        model: &Model,
        ask: &Ask,
        bytes: usize,
        patience: Duration,
    ) -> Result<Place, Refusal> {
        let key = model.key();
        let (wake, woken) = oneshot::channel();
        let slip = {
            let mut state = self.lock();
            if let Some(grant) = state.admit(model, ask, self.now()) {
                drop(state);
                return Ok(self.place(key, grant, false));
            }
            match state.enqueue(model, ask, bytes, patience, wake, self.now()) {
                Queued::Refused(refusal) => {
                    drop(state);
                    // A model at zero is started for who comes back as told.
                    self.note_demand(model);
                    return Err(refusal);
                }
                Queued::Waits(slip, gone) => {
                    let expected = state.expected_wait(model, self.now());
                    drop(state);
                    if let Some(gone) = gone {
                        drop(gone.send(Err(Refusal::QueueFull(expected))));
                    }
                    slip
                }
            }
        };
        let _waiting = Waiting {
            dispatcher: self,
            key: &key,
            slip,
        };
        self.note_demand(model);
        self.shared.looks.notify_one();
        // The table may have changed since the caller looked.
        self.hand_out(&key);
        match tokio::time::timeout(patience, woken).await {
            Ok(Ok(outcome)) => outcome,
            // The model is gone, and its queue with it.
            Ok(Err(_)) => Err(Refusal::NotReady),
            Err(_elapsed) => Err(Refusal::Expired(self.lock().expected_wait(model, self.now()))),
        }
    }

    /// Another place for a request that those in `tried` could not answer. With `may_queue`, at the best of the
    /// others even if that has no room right now.
    pub(super) fn another(&self, model: &Model, ask: &Ask, tried: &[u64], may_queue: bool) -> Option<Place> {
        let grant = self.lock().another(model, ask, tried, may_queue, self.now())?;
        Some(self.place(model.key(), grant, false))
    }

    /// See [`State::keeper`].
    pub(super) fn keeper(&self, model: &Model, ask: &Ask, id: u64) -> Option<Place> {
        let grant = self.lock().keeper(model, ask, id, self.now())?;
        Some(self.place(model.key(), grant, false))
    }

    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.lock().under_way()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting().map(|(_, waiting)| waiting).sum()
    }
}

/// A request in a queue; leaves it when dropped.
struct Waiting<'a> {
    dispatcher: &'a Dispatcher,
    key: &'a ModelKey,
    slip: Slip,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.dispatcher.lock().leave(self.key, self.slip);
        self.dispatcher.show();
    }
}

impl Place {
    /// Its answer told how many requests the replica has.
    pub(super) fn running(&self, count: u64) {
        let now = self.dispatcher.now();
        self.dispatcher.lock().saw_running(self.replica.id, count, now);
    }

    /// The first token has come.
    pub(super) fn first_token(&self) {
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .first_token(self.replica.id, self.flight, now);
    }

    /// The answer is there.
    pub(super) fn finished(mut self, length: Length) {
        self.over = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .finished(&self.model, self.replica.id, self.flight, length, now);
        self.dispatcher.hand_out(&self.model);
    }

    /// It answered, and not with what a model says.
    pub(super) fn refused(mut self) {
        self.over = true;
        let now = self.dispatcher.now();
        self.dispatcher.lock().refused(self.replica.id, self.flight, now);
        self.dispatcher.hand_out(&self.model);
    }

    pub(super) fn failed(mut self, fault: Fault) {
        self.over = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .failed(self.replica.id, self.flight, fault, now);
        self.dispatcher.shared.looks.notify_one();
        self.dispatcher.hand_out(&self.model);
    }

    fn abandon(mut self) {
        self.over = true;
        let now = self.dispatcher.now();
        self.dispatcher
            .lock()
            .abandoned(self.replica.id, self.flight, now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.over {
            let now = self.dispatcher.now();
            self.dispatcher
                .lock()
                .abandoned(self.replica.id, self.flight, now);
            self.dispatcher.hand_out(&self.model);
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
        };
        Model {
            namespace: "default".to_owned(),
            name: "guide".to_owned(),
            starting: starting.to_vec(),
            replicas: ready.iter().map(replica).collect(),
            is_wanted: true,
            ..Model::default()
        }
    }

    /// Else it would never be started for those who are told to come back.
    #[tokio::test]
    async fn a_model_at_zero_that_starts_slowly_is_wanted_by_who_will_not_wait() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let (_table_tx, table_rx) = watch::channel(None);
        let metrics = GatewayMetrics::register(&Registry::new()).unwrap();
        let dispatcher = Dispatcher::new(table_rx, Clock::Manual(manual.clone()), metrics);
        let model = Model {
            last_start: Some(Duration::from_secs(90)),
            ..model(&[], &[])
        };
        dispatcher
            .lock()
            .update(&RoutingTable::of_models([model.clone()]), dispatcher.now());
        let demand_rx = dispatcher.demand();
        let asked = dispatcher
            .acquire(&model, &Ask::default(), 10, Duration::from_secs(60))
            .await;
        let refusal = asked.err().expect("it starts in 90 s");
        assert!(matches!(refusal, Refusal::TooLong(_)), "{refusal:?}");
        assert!(demand_rx.has_changed().unwrap());
        assert_eq!(dispatcher.take_peaks().len(), 1);
    }
    #[tokio::test(start_paused = true)]
    async fn who_waits_is_given_a_replica_when_its_pause_is_over() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let model = model(&[], &[1, 2]);
        let table = RoutingTable::of_models([model.clone()]);
        let (_table_tx, table_rx) = watch::channel(Some(Arc::new(table)));
        let metrics = GatewayMetrics::register(&Registry::new()).unwrap();
        let dispatcher = Dispatcher::new(table_rx, Clock::Manual(manual.clone()), metrics);
        let (patience, ask) = (
            Duration::from_secs(60),
            Ask {
                rows: 1,
                ..Ask::default()
            },
        );
        let acquire = || dispatcher.acquire(&model, &ask, 10, patience);
        let lasts = acquire().await.expect("room");
        let fails = acquire().await.expect("room");
        let failed = fails.replica.id;
        let waiting = async {
            while dispatcher.waiting() == 0 {
                tokio::task::yield_now().await;
            }
            fails.failed(Fault::Unreachable);
            tokio::task::yield_now().await;
            manual.advance(Duration::from_secs(2));
        };
        let both = async { tokio::join!(acquire(), waiting).0 };
        let place = tokio::select! {
            place = both => place.expect("a place"),
            () = dispatcher.clone().follow() => unreachable!("the table stays"),
        };
        assert_eq!(place.replica.id, failed);
        drop(lasts);
    }
}
