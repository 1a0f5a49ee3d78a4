//! Inputs and results of the controller's plans. The plans are the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use crate::scenario::planted::Bug;
use crate::world::World;
use crate::world::controller::{Paused, is_silent};
use crate::world::event::{Answer, Event, Loop, Reader, Write};
use crate::world::store::{Object, Refusal};
use crate::world::writer::WriteResult;
use rooflet_api::meta::lease_name;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica};
use rooflet_base::clock::since;
use rooflet_controller::intent::{Deletion, FailedBatches, Intent, Intents, Snapshot, Version};
use rooflet_controller::{binding_intents, deployment_intents, node_intents};

fn result(intent: &Intent, answer: &Answer) -> WriteResult {
    match (intent, answer) {
        (_, Answer::Done(_))
        // Another writer has deleted the object.
        | (
            Intent::DeleteReplica { .. } | Intent::DeleteRevision(_) | Intent::ReleaseReplica { .. },
            Answer::Refused(Refusal::NotFound),
        ) => WriteResult::Done,
        (Intent::ConfirmDeployment { .. }, Answer::Refused(Refusal::NotFound)) => WriteResult::Absent,
        (_, Answer::Refused(_) | Answer::Lost) => WriteResult::Failed,
    }
}

/// A Lease that nobody renews is taken after 15 s, within two.
const TAKES_OVER: Duration = Duration::from_secs(17);

impl World<'_> {
    /// Applies the answer to the rest of the pass.
    pub(crate) fn control_answered(&mut self, of: Loop, write: &Write, answer: &Answer) {
        let Write::Intent(intent, dependency) = write else {
            return;
        };
        let result = result(intent, answer);
        let binds_twice = self.planted.has(Bug::DoubleBind)
            && matches!((intent, answer), (Intent::Bind { .. }, Answer::Lost));
        let writer = self.control.writer(of);
        if result != WriteResult::Done {
            let mut failed = FailedBatches::default();
            failed.record(dependency);
            writer.queue.retain(|write| match write {
                Write::Intent(_, dependency) => !failed.skip(dependency),
                Write::Register(_) | Write::LetGo { .. } => true,
            });
        }
        writer.failed |= result == WriteResult::Failed && !binds_twice;
        match (intent, answer) {
            // The next write of the same pass is based on the version that the server returned.
            (Intent::Bind { .. }, Answer::Done(Object::Replica(bound))) => {
                if let Some(Write::Intent(Intent::ConfirmBinding { of, .. }, _)) = writer.queue.front_mut()
                    && Some(&of.uid) == bound.metadata.uid.as_ref()
                {
                    *of = Version::of(bound.as_ref());
                }
            }
            (Intent::DeploymentStatus { .. }, Answer::Done(Object::Deployment(written))) => {
                if let Some(Write::Intent(Intent::Scale { of, .. }, _)) = writer.queue.front_mut()
                    && Some(&of.uid) == written.metadata.uid.as_ref()
                {
                    *of = Version::of(written.as_ref());
                }
            }
            // Another writer has deleted the object.
            (
                Intent::DeleteReplica { of, .. } | Intent::DeleteRevision(of) | Intent::ReleaseReplica { of },
                Answer::Refused(Refusal::NotFound),
            ) => self.control.view.forget(of),
            (Intent::Bind { of: replica, node }, Answer::Lost) if binds_twice => {
                let others = self.control.view.snapshot().nodes;
                let other = others
                    .iter()
                    .map(|other| other.name_any())
                    .find(|other| other != node);
                let (replica, writer) = (replica.clone(), self.control.writer(of));
                if let Some(node) = other {
                    let of = replica.clone();
                    let confirmed = Intent::ConfirmBinding {
                        of: of.clone(),
                        node: node.clone(),
                    };
                    let writes = [Intent::Bind { of, node }, confirmed];
                    writer.queue.extend(writes.map(Write::from));
                }
            }
            (
                Intent::Bind { of: replica, .. } | Intent::ConfirmBinding { of: replica, .. },
                Answer::Refused(_) | Answer::Lost,
            ) => self.control.unclear.push(replica.clone()),
            (_, Answer::Done(_) | Answer::Refused(_) | Answer::Lost) => {}
        }
    }

    pub(crate) fn controller_goes_stale(&mut self) {
        self.control.stale += 1;
        self.control.stale_since.get_or_insert(self.now);
    }

    pub(crate) fn wake_loop(&mut self, of: Loop, wait: Duration) {
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

    /// What a loop would write by what it knows.
    pub(crate) fn decide(&mut self, of: Loop) -> Intents {
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

    pub(crate) fn somebody_disrupts(&mut self) -> bool {
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
        let mut timings = self.control.heartbeats.observe(&nodes, &replicas, lease, instant);
        // As the controller's shell does: the server itself is asked before a node is taken for
        // silent.
        for name in timings.newly_silent(&nodes) {
            let version = self
                .lease(&name, self.now)
                .and_then(|lease| lease.resource_version());
            let silence = self.control.heartbeats.confirm(&name, version, instant);
            timings.silence.insert(name, silence);
        }
        if self.planted.has(Bug::SilenceBySendersClock) {
            let now = self.clock();
            for (node, silence) in &mut timings.silence {
                let lease = leases.get(&lease_name(node));
                let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
                *silence = renewed.map_or(Duration::ZERO, |renewed| since(now, renewed.0));
            }
        }
        if self.planted.has(Bug::MissingAtOnce) {
            timings
                .missing
                .values_mut()
                .for_each(|missing| *missing = Duration::MAX);
        }
        let mut intents = node_intents(snapshot, timings, self.clock());
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

    /// The node's Lease as of `at`: its time is by the clock of its agent, its version is the
    /// moment of the renewal.
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

    pub(crate) fn nothing_is_silent(&self) -> bool {
        self.control.stale_since.is_none() && self.nodes.iter().all(Self::renews)
    }

    pub(crate) fn leader_pauses(&mut self, fault: usize) {
        let control = self.control.succeed(self.now);
        let (life, was) = (control.life, std::mem::replace(&mut self.control, control));
        self.paused.push(Paused { fault, control: was });
        let reader = Reader::Controller;
        self.after(TAKES_OVER, Event::List { reader, life });
    }
}
