//! What a write of the controller does at the server, and what the answer means for the pass that made it.

use kube::ResourceExt;

use super::event::{Answer, Loop, Write};
use super::planted::Bug;
use super::run::Run;
use super::store::{Object, Refusal, Stored};
use rooflet_api::meta::REPLICA_FINALIZER;
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::bound_status;
use rooflet_controller::intent::{Deletion, Intent, Version};

impl Run<'_> {
    /// Carries a write out at the server.
    pub(super) fn apply(&mut self, write: &Write) -> Answer {
        let now = self.clock();
        let store = &mut self.store;
        let exact = !self.planted.has(Bug::StatusUnguarded);
        let alone = !self.planted.has(Bug::DoubleBind);
        let asks = !self.planted.has(Bug::MissingAtOnce) && !self.planted.has(Bug::SilentNodeReleased);
        let answer = match write {
            Write::Register(node) => done(store.create(node.as_ref().clone(), now)),
            Write::LetGo { of } => done(store.update::<ModelReplica>(of, true, let_go)),
            Write::Intent(intent) => match intent {
                Intent::CreateRevision(revision) => done(store.create(revision.as_ref().clone(), now)),
                Intent::CreateReplica(replica) => done(store.create(replica.as_ref().clone(), now)),
                Intent::DeleteRevision(of) => done(store.delete::<ModelRevision>(of, now)),
                Intent::DeleteReplica {
                    of,
                    why: Deletion::Eviction,
                } if store.has_changed::<ModelReplica>(of) => Answer::Refused(Refusal::Conflict),
                Intent::DeleteReplica { of, .. } => done(store.delete::<ModelReplica>(of, now)),
                Intent::RenumberRevision { of, revision } => {
                    done(store.update::<ModelRevision>(of, true, |found| found.spec.revision = *revision))
                }
                Intent::AmendReplica { of, patch } => {
                    done(store.update::<ModelReplica>(of, false, |found| {
                        let mut value =
                            serde_json::to_value(&*found).expect("an object has only string keys");
                        json_patch::merge(&mut value, patch);
                        if let Ok(amended) = serde_json::from_value(value) {
                            *found = amended;
                        }
                    }))
                }
                Intent::Bind { of, node } => done(store.update::<ModelReplica>(of, alone, |found| {
                    found.spec.node_name = Some(node.clone());
                    let finalizers = found.metadata.finalizers.get_or_insert_default();
                    if !finalizers.iter().any(|one| one == REPLICA_FINALIZER) {
                        finalizers.push(REPLICA_FINALIZER.to_owned());
                    }
                })),
                Intent::Scale { of, replicas } => done(store.update::<ModelDeployment>(of, true, |found| {
                    found.spec.replicas = *replicas;
                })),
                Intent::DeploymentStatus { of, status } => {
                    done(store.update::<ModelDeployment>(of, exact, |found| {
                        found.status = Some(status.as_ref().clone());
                    }))
                }
                Intent::ReplicaStatus { of, status } => {
                    done(store.update::<ModelReplica>(of, exact, |found| {
                        found.status = Some(status.as_ref().clone());
                    }))
                }
                Intent::NodeStatus { of, status } => done(store.update::<FleetNode>(of, exact, |found| {
                    found.status = Some(status.as_ref().clone());
                })),
                Intent::ReleaseReplica { of } => match store.get::<ModelReplica>(of) {
                    // The server is asked for the node just before; nothing is done when it is there again.
                    Some(found) if asks && store.has_node_of(&found) => Answer::Refused(Refusal::Conflict),
                    None => Answer::Refused(Refusal::NotFound),
                    Some(found) if found.metadata.deletion_timestamp.is_some() => {
                        done(store.update::<ModelReplica>(of, true, let_go))
                    }
                    Some(_) => match store.delete::<ModelReplica>(of, now) {
                        Ok(left) => {
                            done(store.update::<ModelReplica>(&Version::of(left.as_ref()), true, let_go))
                        }
                        Err(refusal) => Answer::Refused(refusal),
                    },
                },
            },
        };
        if let Write::Intent(intent) = write {
            if let (
                Intent::DeleteReplica {
                    why: Deletion::Eviction,
                    ..
                },
                Answer::Done(_),
            ) = (intent, &answer)
            {
                self.ledger.evictions += 1;
            }
            self.check_intent(intent, &answer);
        }
        answer
    }

    /// What the answer means for the rest of the pass.
    pub(super) fn control_answered(&mut self, of: Loop, write: &Write, answer: &Answer) {
        let Write::Intent(intent) = write else { return };
        let bound_at = self.clock();
        let writer = self.control.writer(of);
        match (intent, answer) {
            (Intent::Bind { node, .. }, Answer::Done(Object::Replica(bound))) => {
                let status = Box::new(bound_status(bound, node, bound_at));
                let of = Version::of(bound.as_ref());
                writer
                    .queue
                    .push_front(Write::Intent(Intent::ReplicaStatus { of, status }));
            }
            // The scaling that follows is of what the status was just written to.
            (Intent::DeploymentStatus { .. }, Answer::Done(Object::Deployment(written))) => {
                if let Some(Write::Intent(Intent::Scale { of, .. })) = writer.queue.front_mut()
                    && Some(&of.uid) == written.metadata.uid.as_ref()
                {
                    *of = Version::of(written.as_ref());
                }
            }
            (_, Answer::Done(_)) => {}
            // Somebody else has deleted it.
            (
                Intent::DeleteReplica { of, .. } | Intent::DeleteRevision(of) | Intent::ReleaseReplica { of },
                Answer::Refused(Refusal::NotFound),
            ) => self.control.view.forget(of),
            // What is left of this deployment's creations rested on it; a deployment's writes end with its status.
            (
                Intent::CreateRevision(_)
                | Intent::CreateReplica(_)
                | Intent::DeleteReplica {
                    why: Deletion::Deployment,
                    ..
                },
                _,
            ) => {
                writer.failed = true;
                let mut this_deployment = true;
                writer.queue.retain(|write| {
                    this_deployment &= !matches!(write, Write::Intent(Intent::DeploymentStatus { .. }));
                    !(this_deployment && matches!(write, Write::Intent(Intent::CreateReplica(_))))
                });
            }
            (Intent::Bind { of: replica, node }, Answer::Lost) if self.planted.has(Bug::DoubleBind) => {
                let others = self.control.view.snapshot().nodes;
                let other = others
                    .iter()
                    .map(|other| other.name_any())
                    .find(|other| other != node);
                let (of_replica, writer) = (replica.clone(), self.control.writer(of));
                writer
                    .queue
                    .extend(other.map(|node| Write::Intent(Intent::Bind { of: of_replica, node })));
            }
            (Intent::Bind { of: replica, .. }, Answer::Refused(_) | Answer::Lost) => {
                writer.failed = true;
                self.control.unclear.push(replica.clone());
            }
            (_, Answer::Refused(_) | Answer::Lost) => writer.failed = true,
        }
    }
}

fn done<K: Stored>(outcome: Result<std::sync::Arc<K>, Refusal>) -> Answer {
    match outcome {
        Ok(object) => Answer::Done(K::object(object)),
        Err(refusal) => Answer::Refused(refusal),
    }
}

fn let_go(replica: &mut ModelReplica) {
    if let Some(finalizers) = &mut replica.metadata.finalizers {
        finalizers.retain(|name| name != REPLICA_FINALIZER);
    }
}
