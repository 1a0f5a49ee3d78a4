//! The controller's shell, modelled: when its reconcilers look, and what their plans are made from. The plans are the real
//! ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use super::event::{Actor, Event, Loop, Reader, Write};
use super::planted::Bug;
use super::run::{Run, Writer};
use super::store::Object;
use super::view::View;
use rooflet_api::meta::lease_name;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::clock::since;
use rooflet_controller::intent::{Deletion, Intent, Intents, Snapshot, Version};
use rooflet_controller::{
    Autoscaling, BINDER_RESYNC, FollowedFleet, Heartbeats, NODE_MONITOR_PERIOD, Settling, binding_intents,
    deployment_intents, node_intents,
};

/// From the end of one leader to the beginning of the next.
const TAKES_OVER: Duration = Duration::from_secs(1);
/// A loop that takes replicas away waits for another one that does, and looks again after this time.
const DISRUPTION_RETRY: Duration = Duration::from_millis(20);
/// What a fault does to it shows for so long.
const AFTERMATH: Duration = Duration::from_secs(180);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) view: View,
    pub(super) life: u32,
    /// It has listed everything.
    synced: bool,
    /// Faults that keep it away, and from hearing.
    pub(super) down: u32,
    pub(super) stale: u32,
    stale_since: Option<Duration>,
    /// When it last could not hear, and last could not act, for the rules.
    deaf: Option<Duration>,
    hindered: Option<Duration>,
    deployment: Writer,
    binder: Writer,
    node_lifecycle: Writer,
    pub(super) autoscaler: Writer,
    pub(super) autoscaling: Autoscaling,
    heartbeats: Heartbeats,
    fleet: FollowedFleet,
    settling: Settling,
    /// Bindings that were not answered, to be read before anything is bound.
    pub(super) unclear: Vec<Version>,
    pub(super) passes: u64,
}

impl Control {
    pub(super) fn writer(&mut self, of: Loop) -> &mut Writer {
        match of {
            Loop::Deployment => &mut self.deployment,
            Loop::Binder => &mut self.binder,
            Loop::NodeLifecycle => &mut self.node_lifecycle,
            Loop::Autoscaler => &mut self.autoscaler,
        }
    }

    /// Until when a loop knew what happened, when it decided on what it writes now.
    pub(super) fn decided(&self, of: Loop) -> Duration {
        match of {
            Loop::Deployment => self.deployment.decided,
            Loop::Binder => self.binder.decided,
            Loop::NodeLifecycle => self.node_lifecycle.decided,
            Loop::Autoscaler => self.autoscaler.decided,
        }
    }

    /// It heard nothing for a while, not long ago.
    pub(super) fn was_deaf(&self, now: Duration) -> bool {
        self.stale > 0 || self.deaf.is_some_and(|at| now.saturating_sub(at) < AFTERMATH)
    }

    /// It was not there, or its writes were lost, not long ago.
    pub(super) fn was_hindered(&self, now: Duration) -> bool {
        self.down > 0 || self.hindered.is_some_and(|at| now.saturating_sub(at) < AFTERMATH)
    }

    /// Its successor, which knows nothing that it knew.
    pub(super) fn succeed(&self, now: Duration) -> Self {
        let life = self.life + 1;
        Self {
            life,
            down: self.down,
            stale: self.stale,
            stale_since: self.stale_since,
            deaf: self.deaf,
            hindered: Some(now).filter(|_| life > 1),
            passes: self.passes,
            ..Self::default()
        }
    }

    /// All that happened until then has reached it, but for what is on its way.
    pub(super) fn knows(&self, now: Duration) -> Duration {
        let deaf = [self.stale_since, self.view.ended];
        deaf.into_iter().flatten().fold(now, Duration::min)
    }

    pub(super) fn hinder(&mut self, now: Duration) {
        self.hindered = Some(now);
    }

    /// The fleet as the snapshot has it.
    fn follow(&mut self, snapshot: &Snapshot) -> &mut FollowedFleet {
        self.fleet
            .follow(snapshot.nodes.clone(), snapshot.replicas.clone());
        &mut self.fleet
    }

    pub(super) fn hears(&self) -> bool {
        self.down == 0 && self.stale == 0 && self.synced
    }
}

impl Run<'_> {
    /// A new process leads: nothing that an earlier one knew is taken over.
    pub(super) fn start_controller(&mut self) {
        self.control = self.control.succeed(self.now);
        let (life, down) = (self.control.life, self.control.down);
        if down == 0 {
            // Another process has to notice that nobody leads; what the last one sent has arrived by then.
            let wait = if life > 1 { TAKES_OVER } else { self.latency() };
            self.after(
                wait,
                Event::List {
                    reader: Reader::Controller,
                    life,
                },
            );
        }
    }

    pub(super) fn controller_lists(&mut self, life: u32) {
        if self.control.life == life && self.control.down == 0 {
            if self.is_out() {
                self.relist(Reader::Controller, life);
                return;
            }
            let objects = self.listed(Reader::Controller);
            self.control.view.list_anew(objects);
            self.control.synced = true;
            self.wake_controller();
        }
    }

    pub(super) fn controller_goes_stale(&mut self) {
        self.control.stale += 1;
        self.control.stale_since.get_or_insert(self.now);
    }

    pub(super) fn controller_hears_again(&mut self) {
        self.control.stale -= 1;
        self.control.deaf = Some(self.now);
        if self.control.stale == 0 {
            self.control.stale_since = None;
            self.deliver_all(Reader::Controller);
        }
    }

    pub(super) fn wake_loop(&mut self, of: Loop, wait: Duration) {
        if !self.control.synced {
            // Its first list wakes it.
            return;
        }
        let at = self.now + wait;
        let life = self.control.life;
        let writer = self.control.writer(of);
        if writer.wakes.is_none_or(|due| at < due) {
            writer.wakes = Some(at);
            self.queue.push(at, Event::Pass { of, life });
        }
    }

    pub(super) fn pass(&mut self, of: Loop, life: u32) {
        let now = self.now;
        if self.control.life != life || !self.control.synced {
            return;
        }
        let writer = self.control.writer(of);
        if writer.wakes != Some(now) {
            return;
        }
        writer.wakes = None;
        if writer.busy {
            return;
        }
        if of == Loop::Binder && !self.bindings_are_clear() {
            let backoff = self.control.writer(of).backoff();
            self.wake_loop(of, backoff);
            return;
        }
        let writer = self.control.writer(of);
        let was_dirty = std::mem::take(&mut writer.dirty) || writer.failed;
        if of == Loop::NodeLifecycle && !was_dirty && self.nothing_is_silent() {
            // Renewals of healthy nodes are not simulated one by one: the plan would be what it was.
            self.wake_loop(of, NODE_MONITOR_PERIOD);
            return;
        }
        self.control.passes += 1;
        let Intents {
            writes,
            requeue_after,
        } = self.decide(of);
        let writes: Vec<_> = writes.into_iter().map(Write::from).collect();
        if writes.iter().any(Write::disrupts) && self.somebody_disrupts() {
            // As the real ones do: only one at a time takes replicas away, and looks again before.
            self.control.writer(of).dirty = true;
            self.wake_loop(of, DISRUPTION_RETRY);
            return;
        }
        let waiting = self
            .control
            .view
            .replicas()
            .iter()
            .any(|replica| replica.spec.node_name.is_none());
        let resync = match of {
            Loop::Deployment | Loop::Autoscaler => None,
            Loop::Binder => waiting.then_some(BINDER_RESYNC),
            Loop::NodeLifecycle => Some(NODE_MONITOR_PERIOD),
        };
        if let Some(wait) = requeue_after.into_iter().chain(resync).min() {
            self.wake_loop(of, wait);
        }
        if writes.is_empty() {
            if self.control.writer(of).dirty {
                self.wake_loop(of, Duration::from_millis(1));
            }
        } else {
            self.start_writing(Actor::Loop(of), writes);
        }
    }

    /// What a loop would write by what it knows.
    pub(super) fn decide(&mut self, of: Loop) -> Intents {
        if of == Loop::Autoscaler {
            return self.autoscale();
        }
        let snapshot = self.snapshot(of);
        match of {
            Loop::Deployment => {
                let now = self.clock();
                deployment_intents(self.control.follow(&snapshot).fleet(), &snapshot, now)
            }
            Loop::Binder => self.bindings(&snapshot),
            Loop::NodeLifecycle => self.node_life(&snapshot),
            Loop::Autoscaler => self.autoscale(),
        }
    }

    /// Reads what was bound without an answer, as the real binder does before it decides.
    fn bindings_are_clear(&mut self) -> bool {
        while let Some(of) = self.control.unclear.last() {
            if self.is_out() || self.network.chance(self.lost_share) {
                return false;
            }
            if let Some(replica) = self.store.get::<ModelReplica>(of) {
                self.control.view.wrote(Object::Replica(replica));
            }
            self.control.unclear.pop();
        }
        true
    }

    fn somebody_disrupts(&mut self) -> bool {
        Loop::ALL.into_iter().any(|of| self.control.writer(of).disrupts)
    }

    /// What the caches hold; a planted bug may see it wrongly in one of the loops.
    fn snapshot(&self, of: Loop) -> Snapshot {
        let mut snapshot = self.control.view.snapshot();
        if self.planted.has(Bug::ReservationReleasedOnDelete) {
            snapshot
                .replicas
                .retain(|replica| replica.metadata.deletion_timestamp.is_none());
        }
        let bounds = self.planted.bounds(of);
        if let Some(change) = bounds {
            for deployment in &mut snapshot.deployments {
                if let Some(rolling) = &mut Arc::make_mut(deployment).spec.strategy.rolling_update {
                    change(rolling);
                }
            }
        }
        snapshot
    }

    fn bindings(&mut self, snapshot: &Snapshot) -> Intents {
        let now = self.clock();
        let instant = self.origin + self.now;
        let wait = self
            .control
            .settling
            .wait(&snapshot.deployments, &snapshot.replicas, instant);
        if wait.is_some() && self.policy.settles() {
            return Intents {
                requeue_after: wait,
                ..Intents::default()
            };
        }
        let mut snapshot = snapshot.clone();
        if self.planted.has(Bug::UnreachableNotCounted) {
            let silent: BTreeSet<_> = snapshot
                .nodes
                .iter()
                .filter(|node| is_silent(node))
                .map(|node| node.name_any())
                .collect();
            snapshot.replicas.retain(|replica| {
                replica
                    .spec
                    .node_name
                    .as_ref()
                    .is_none_or(|node| !silent.contains(node))
            });
            let awake = |node: &std::sync::Arc<FleetNode>| {
                let mut node = node.as_ref().clone();
                for condition in node.status.iter_mut().flat_map(|status| &mut status.conditions) {
                    if condition.type_ == "Ready" {
                        condition.status = "True".to_owned();
                    }
                }
                std::sync::Arc::new(node)
            };
            snapshot.nodes = snapshot.nodes.iter().map(awake).collect();
        }
        if !self.planted.has(Bug::PromisesForgotten) {
            return self.policy.bind(self.control.follow(&snapshot), &snapshot, now);
        }
        // Each as if it were the only one that waits.
        let mut intents = Intents::default();
        for waiting in snapshot
            .replicas
            .iter()
            .filter(|replica| replica.spec.node_name.is_none())
        {
            let mut alone = snapshot.clone();
            alone
                .replicas
                .retain(|replica| replica.spec.node_name.is_some() || replica == waiting);
            let bound = binding_intents(self.control.follow(&alone), &alone, now);
            intents.writes.extend(bound.writes);
        }
        intents
    }

    fn node_life(&mut self, snapshot: &Snapshot) -> Intents {
        let instant = self.origin + self.now;
        let heard_at = self.control.stale_since.unwrap_or(self.now);
        let leases: BTreeMap<String, Lease> = snapshot
            .nodes
            .iter()
            .filter_map(|node| {
                let name = node.name_any();
                let lease = self.lease(&name, heard_at)?;
                Some((lease_name(&name), lease))
            })
            .collect();
        let lease = |name: &str| leases.get(name).cloned();
        let nodes: Vec<_> = snapshot.nodes.iter().map(AsRef::as_ref).collect();
        let replicas: Vec<_> = snapshot.replicas.iter().map(AsRef::as_ref).collect();
        let mut heard = self.control.heartbeats.observe(&nodes, &replicas, lease, instant);
        // As the controller's shell does: the server itself is asked before a node is taken for silent.
        for name in heard.doubtful(&nodes) {
            let version = self
                .lease(&name, self.now)
                .and_then(|lease| lease.resource_version());
            let silence = self.control.heartbeats.confirm(&name, version, instant);
            heard.silence.insert(name, silence);
        }
        if self.planted.has(Bug::SilenceBySendersClock) {
            let now = self.clock();
            for (node, silence) in &mut heard.silence {
                let lease = leases.get(&lease_name(node));
                let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
                *silence = renewed.map_or(Duration::ZERO, |renewed| since(now, renewed.0));
            }
        }
        if self.planted.has(Bug::MissingAtOnce) {
            heard
                .missing
                .values_mut()
                .for_each(|missing| *missing = Duration::MAX);
        }
        let mut intents = node_intents(snapshot, heard, self.clock());
        if self.planted.has(Bug::SilentStaysReady) {
            intents
                .writes
                .retain(|write| !matches!(write.intent, Intent::ReplicaStatus { .. }));
        }
        let silent: Vec<_> = snapshot
            .nodes
            .iter()
            .filter(|node| is_silent(node))
            .map(|node| node.name_any())
            .collect();
        let theirs = |replica: &&std::sync::Arc<ModelReplica>| {
            replica
                .spec
                .node_name
                .as_ref()
                .is_some_and(|node| silent.contains(node))
        };
        if self.planted.has(Bug::SilentNodeReleased) {
            let held = snapshot
                .replicas
                .iter()
                .filter(theirs)
                .filter(|replica| replica.metadata.deletion_timestamp.is_some());
            intents.writes.extend(held.map(|replica| {
                let of = Version::of(replica.as_ref());
                Intent::ReleaseReplica { of }.into()
            }));
        }
        if self.planted.has(Bug::EvictedAtOnce) {
            let left = snapshot
                .replicas
                .iter()
                .filter(theirs)
                .filter(|replica| replica.metadata.deletion_timestamp.is_none());
            intents.writes.extend(left.map(|replica| {
                let (of, why) = (Version::of(replica.as_ref()), Deletion::Eviction);
                Intent::DeleteReplica { of, why }.into()
            }));
        }
        intents
    }

    /// The node's Lease as of `at`: its time is by the clock of its agent, its version is the moment of the renewal.
    fn lease(&self, name: &str, at: Duration) -> Option<Lease> {
        let node = &self.nodes[*self.by_name.get(name)?];
        let renewed = node.renewed(at)?;
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some(renewed.as_micros().to_string());
        lease.spec = Some(LeaseSpec {
            renew_time: Some(MicroTime(node.shown(self.scenario.start + renewed))),
            ..LeaseSpec::default()
        });
        Some(lease)
    }

    fn nothing_is_silent(&self) -> bool {
        self.control.stale_since.is_none() && self.nodes.iter().all(Self::renews)
    }
}

/// Whether the controller has noticed that nothing comes from the node.
pub(super) fn is_silent(node: &FleetNode) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}
