//! What a write of the controller does at the server, and what the answer means for the pass that
//! made it.

use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Answer, Write};
use crate::world::store::{Object, Refusal, Stored};
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, DEPLOYMENT_LABEL, REPLICA_FINALIZER, REVISION_LABEL};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::bound_status;
use rooflet_controller::intent::{Deletion, Intent, Version};

/// Applies a merge patch. The modelled server sets the version of the object.
fn merge<K: Serialize + DeserializeOwned>(object: &mut K, patch: &Value) {
    let mut value = serde_json::to_value(&*object).expect("an object has only string keys");
    json_patch::merge(&mut value, patch);
    if let Ok(merged) = serde_json::from_value(value) {
        *object = merged;
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

impl Run<'_> {
    /// Carries a write out at the server.
    pub(crate) fn apply(&mut self, write: &Write) -> Answer {
        let now = self.world.clock();
        let store = &mut self.world.store;
        let exact = !self.world.planted.has(Bug::StatusUnguarded);
        let alone = !self.world.planted.has(Bug::DoubleBind);
        let asks =
            !self.world.planted.has(Bug::MissingAtOnce) && !self.world.planted.has(Bug::SilentNodeReleased);
        let answer = match write {
            Write::Register(node) => done(store.create(node.as_ref().clone(), now)),
            Write::LetGo { of } => done(store.update::<ModelReplica>(of, true, let_go)),
            Write::Intent(intent, _) => match intent {
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
                Intent::SetChangeCause { of, cause } => {
                    done(store.update::<ModelRevision>(of, true, |found| {
                        let cause = (CHANGE_CAUSE_ANNOTATION.to_owned(), cause.clone());
                        found.annotations_mut().extend([cause]);
                    }))
                }
                Intent::ConfirmDeployment { of } => match store.get::<ModelDeployment>(of) {
                    Some(found) if found.metadata.deletion_timestamp.is_none() => {
                        Answer::Done(Object::Deployment(found))
                    }
                    Some(_) | None => Answer::Refused(Refusal::NotFound),
                },
                Intent::AdoptRevision { of, patch } => {
                    done(store.update::<ModelRevision>(of, true, |found| merge(found, patch)))
                }
                Intent::AdoptReplica { of, patch } => {
                    done(store.update::<ModelReplica>(of, true, |found| merge(found, patch)))
                }
                Intent::AmendReplica { of, patch } => {
                    done(store.update::<ModelReplica>(of, false, |found| merge(found, patch)))
                }
                Intent::Bind { of, node } => done(store.update::<ModelReplica>(of, alone, |found| {
                    found.spec.node_name = Some(node.clone());
                    let finalizers = found.metadata.finalizers.get_or_insert_default();
                    if !finalizers.iter().any(|one| one == REPLICA_FINALIZER) {
                        finalizers.push(REPLICA_FINALIZER.to_owned());
                    }
                })),
                Intent::ConfirmBinding { of, node } => {
                    done(store.update::<ModelReplica>(of, exact, |found| {
                        found.status = Some(bound_status(found, node, now));
                    }))
                }
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
                // The modelled store holds no capacity plans and no claims.
                Intent::CapacityPlanStatus { .. } | Intent::ClaimStatus { .. } => {
                    Answer::Refused(Refusal::NotFound)
                }
                Intent::ReleaseReplica { of } => match store.get::<ModelReplica>(of) {
                    // The server is asked for the node just before; nothing is done when it is
                    // there again.
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
        if let Write::Intent(intent, _) = write {
            if let (
                Intent::DeleteReplica {
                    why: Deletion::Eviction,
                    ..
                },
                Answer::Done(_),
            ) = (intent, &answer)
            {
                self.rules.ledger.evictions += 1;
            }
            self.check_intent(intent, &answer);
        }
        answer
    }

    /// The revision of a new replica exists, unless its deployment is gone.
    pub(crate) fn check_created(&mut self, replica: &ModelReplica) {
        let label = |name: &str| replica.labels().get(name).cloned().unwrap_or_default();
        let namespace = replica.namespace();
        let revision = (namespace.clone(), label(REVISION_LABEL));
        let deployment = (namespace, label(DEPLOYMENT_LABEL));
        let is_orphaned = !self.world.store.deployments.contains_key(&deployment);
        if !self.world.store.revisions.contains_key(&revision) && !is_orphaned && !self.rules.by_former_leader
        {
            let message = format!(
                "{} is created without its revision {}",
                replica.name_any(),
                revision.1
            );
            self.break_rule("a replica is created after its revision", message);
        }
    }
}
