//! Inputs and results of the controller's plans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use crate::scenario::planted::Bug;
use crate::world::World;
use crate::world::controller::{PausedLeader, is_silent};
use crate::world::event::{Event, Reader, Reconciler, Write, WriteResponse};
use crate::world::store::{Object, WriteError};
use crate::world::writer::WriteResult;
use rooflet_api::meta::lease_name;
use rooflet_api::v1alpha1::{FleetNode, ModelReplica, TaintEffect};
use rooflet_base::clock::since;
use rooflet_controller::intent::{Deletion, FailedBatches, Intent, Intents, Snapshot, Version};
use rooflet_controller::{binding_intents, deployment_intents, node_intents};
use rooflet_scheduler::taints_of;

fn result(intent: &Intent, response: &WriteResponse) -> WriteResult {
    match (intent, response) {
        (_, WriteResponse::Done(_))
        // Another writer has deleted the object.
        | (
            Intent::DeleteReplica { .. } | Intent::DeleteRevision(_) | Intent::ReleaseReplica { .. },
            WriteResponse::Rejected(WriteError::NotFound),
        ) => WriteResult::Done,
        (Intent::ConfirmDeployment { .. }, WriteResponse::Rejected(WriteError::NotFound)) => WriteResult::Absent,
        (_, WriteResponse::Rejected(_) | WriteResponse::Lost) => WriteResult::Failed,
    }
}

/// Time until another process acquires the Lease of a paused leader: the lease duration of 15 s,
/// and the retry period of 2 s.
const LEADER_TAKEOVER: Duration = Duration::from_secs(17);

impl World<'_> {
    /// Applies a response to the remaining writes of the pass.
    pub(crate) fn apply_response(&mut self, of: Reconciler, write: &Write, response: &WriteResponse) {
        let Write::Intent(intent, dependency) = write else {
            return;
        };
        let result = result(intent, response);
        let binds_twice = self.planted.has(Bug::DoubleBind)
            && matches!((intent, response), (Intent::Bind { .. }, WriteResponse::Lost));
        let writer = self.control.writer(of);
        if result != WriteResult::Done {
            let mut failed = FailedBatches::default();
            failed.record(dependency);
            writer.queue.retain(|write| match write {
                Write::Intent(_, dependency) => !failed.skip(dependency),
                Write::Register(_) | Write::RemoveFinalizer { .. } => true,
            });
        }
        writer.failed |= result == WriteResult::Failed && !binds_twice;
        match (intent, response) {
            // The next write of the same pass is based on the version that the server returned.
            (Intent::Bind { .. }, WriteResponse::Done(Object::Replica(bound))) => {
                if let Some(Write::Intent(Intent::ConfirmBinding { of, .. }, _)) = writer.queue.front_mut()
                    && Some(&of.uid) == bound.metadata.uid.as_ref()
                {
                    *of = Version::of(bound.as_ref());
                }
            }
            (Intent::DeploymentStatus { .. }, WriteResponse::Done(Object::Deployment(written))) => {
                if let Some(Write::Intent(Intent::Scale { of, .. }, _)) = writer.queue.front_mut()
                    && Some(&of.uid) == written.metadata.uid.as_ref()
                {
                    *of = Version::of(written.as_ref());
                }
            }
            // Another writer has deleted the object.
            (
                Intent::DeleteReplica { of, .. } | Intent::DeleteRevision(of) | Intent::ReleaseReplica { of },
                WriteResponse::Rejected(WriteError::NotFound),
            ) => self.control.view.mark_deleted(of),
            (Intent::Bind { of: replica, node }, WriteResponse::Lost) if binds_twice => {
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
                WriteResponse::Rejected(_) | WriteResponse::Lost,
            ) => self.control.unclear.push(replica.clone()),
            (_, WriteResponse::Done(_) | WriteResponse::Rejected(_) | WriteResponse::Lost) => {}
        }
    }

    pub(crate) fn begin_stale_controller(&mut self) {
        self.control.stale += 1;
        self.control.stale_since.get_or_insert(self.now);
    }

    pub(crate) fn wake_reconciler(&mut self, of: Reconciler, wait: Duration) {
        if !self.control.synced {
            // The first list schedules the passes.
            return;
        }
        let at = self.now + wait;
        let incarnation = self.control.incarnation;
        let writer = self.control.writer(of);
        if writer.due_at.is_none_or(|due| at < due) {
            writer.due_at = Some(at);
            self.queue.push(at, Event::Pass { of, incarnation });
        }
    }

    /// Returns the writes that a reconciler plans.
    pub(crate) fn decide(&mut self, of: Reconciler) -> Intents {
        if of == Reconciler::Autoscaler {
            return self.autoscale();
        }
        let snapshot = self.snapshot(of);
        match of {
            Reconciler::Deployment => {
                let now = self.clock();
                deployment_intents(self.control.follow(&snapshot).fleet(), &snapshot, now)
            }
            Reconciler::Binder => self.binder_intents(&snapshot),
            Reconciler::NodeLifecycle => self.node_lifecycle_intents(&snapshot),
            Reconciler::Autoscaler => self.autoscale(),
        }
    }

    pub(crate) fn any_reconciler_disrupts(&mut self) -> bool {
        Reconciler::ALL
            .into_iter()
            .any(|of| self.control.writer(of).disrupts)
    }

    /// Returns the controller's copy of the objects, changed by planted bugs.
    fn snapshot(&self, of: Reconciler) -> Snapshot {
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

    fn binder_intents(&mut self, snapshot: &Snapshot) -> Intents {
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
        if !self.planted.has(Bug::PassPlacementsIgnored) {
            return self.policy.bind(self.control.follow(&snapshot), &snapshot, now);
        }
        // The planted bug binds each replica without the other bindings of the pass.
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

    fn node_lifecycle_intents(&mut self, snapshot: &Snapshot) -> Intents {
        let instant = self.origin + self.now;
        let received_until = self.control.stale_since.unwrap_or(self.now);
        let leases: BTreeMap<String, Lease> = snapshot
            .nodes
            .iter()
            .filter_map(|node| {
                let name = node.name_any();
                let lease = self.lease(&name, received_until)?;
                Some((lease_name(&name), lease))
            })
            .collect();
        let lease = |name: &str| leases.get(name).cloned();
        let nodes: Vec<_> = snapshot.nodes.iter().map(AsRef::as_ref).collect();
        let replicas: Vec<_> = snapshot.replicas.iter().map(AsRef::as_ref).collect();
        let mut timings = self.control.heartbeats.observe(&nodes, &replicas, lease, instant);
        // As in the controller, the Lease is read from the server before a node is marked silent.
        for name in timings.newly_silent(&nodes) {
            let version = self
                .lease(&name, self.now)
                .and_then(|lease| lease.resource_version());
            let silence = self.control.heartbeats.confirm(&name, version, instant);
            timings.silence.insert(name, silence);
        }
        if self.planted.has(Bug::SilenceByAgentClock) {
            let now = self.clock();
            for (node, silence) in &mut timings.silence {
                let lease = leases.get(&lease_name(node));
                let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
                *silence = renewed.map_or(Duration::ZERO, |renewed| since(now, renewed.0));
            }
        }
        if self.planted.has(Bug::MissingImmediately) {
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
        if self.planted.has(Bug::EvictedImmediately) {
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

    /// Returns the node's Lease as of `at`. Its renewal time is that of the agent's clock. Its
    /// version is the correct time of the renewal.
    fn lease(&self, name: &str, at: Duration) -> Option<Lease> {
        let node = &self.nodes[*self.by_name.get(name)?];
        let renewed = node.last_renewal_at(at)?;
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some(renewed.as_micros().to_string());
        lease.spec = Some(LeaseSpec {
            renew_time: Some(MicroTime(node.local_time(self.scenario.start + renewed))),
            ..LeaseSpec::default()
        });
        Some(lease)
    }

    pub(crate) fn all_nodes_renew(&self) -> bool {
        self.control.stale_since.is_none() && self.nodes.iter().all(Self::renews)
    }

    /// Returns whether a taint can evict replicas later, although no object changes.
    pub(crate) fn may_evict_later(&self) -> bool {
        let mut taints = self.store.nodes.values().flat_map(|node| taints_of(node));
        taints.any(|taint| taint.effect == TaintEffect::NoExecute)
    }

    pub(crate) fn pause_leader(&mut self, fault: usize) {
        let control = self.control.successor(self.now);
        let (incarnation, was) = (control.incarnation, std::mem::replace(&mut self.control, control));
        self.paused.push(PausedLeader { fault, control: was });
        let reader = Reader::Controller;
        self.after(LEADER_TAKEOVER, Event::List { reader, incarnation });
    }
}
