//! Execution of writes by the modelled API server.

use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::run::Run;
use crate::scenario::planted::Bug;
use crate::world::event::{Write, WriteResponse};
use crate::world::store::{Object, Stored, WriteError};
use rooflet_api::meta::{CHANGE_CAUSE_ANNOTATION, REPLICA_FINALIZER};
use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica, ModelRevision};
use rooflet_controller::bound_status;
use rooflet_controller::intent::{Deletion, Intent, Version};

/// Applies a merge patch. The store sets the version of the object.
fn merge<K: Serialize + DeserializeOwned>(object: &mut K, patch: &Value) {
    let mut value = serde_json::to_value(&*object).expect("objects have only string keys");
    json_patch::merge(&mut value, patch);
    if let Ok(merged) = serde_json::from_value(value) {
        *object = merged;
    }
}

fn response_of<K: Stored>(outcome: Result<std::sync::Arc<K>, WriteError>) -> WriteResponse {
    match outcome {
        Ok(object) => WriteResponse::Done(K::object(object)),
        Err(error) => WriteResponse::Rejected(error),
    }
}

fn remove_finalizer(replica: &mut ModelReplica) {
    if let Some(finalizers) = &mut replica.metadata.finalizers {
        finalizers.retain(|name| name != REPLICA_FINALIZER);
    }
}

impl Run<'_> {
    /// Executes a write.
    pub(crate) fn apply(&mut self, write: &Write) -> WriteResponse {
        let now = self.world.clock();
        let store = &mut self.world.store;
        let is_guarded = !self.world.planted.has(Bug::StatusUnguarded);
        let is_binding_guarded = !self.world.planted.has(Bug::DoubleBind);
        let confirms_node = !self.world.planted.has(Bug::MissingImmediately)
            && !self.world.planted.has(Bug::SilentNodeReleased);
        let response = match write {
            Write::Register(node) => response_of(store.create(node.as_ref().clone(), now)),
            Write::RemoveFinalizer { of } => {
                response_of(store.update::<ModelReplica>(of, true, remove_finalizer))
            }
            Write::Intent(intent, _) => match intent {
                Intent::CreateRevision(revision) => response_of(store.create(revision.as_ref().clone(), now)),
                Intent::CreateReplica(replica) => response_of(store.create(replica.as_ref().clone(), now)),
                Intent::DeleteRevision(of) => response_of(store.delete::<ModelRevision>(of, now)),
                Intent::DeleteReplica {
                    of,
                    why: Deletion::Eviction,
                } if store.has_changed::<ModelReplica>(of) => WriteResponse::Rejected(WriteError::Conflict),
                Intent::DeleteReplica { of, .. } => response_of(store.delete::<ModelReplica>(of, now)),
                Intent::RenumberRevision { of, revision } => {
                    response_of(
                        store.update::<ModelRevision>(of, true, |found| found.spec.revision = *revision),
                    )
                }
                Intent::SetChangeCause { of, cause } => {
                    response_of(store.update::<ModelRevision>(of, true, |found| {
                        let cause = (CHANGE_CAUSE_ANNOTATION.to_owned(), cause.clone());
                        found.annotations_mut().extend([cause]);
                    }))
                }
                Intent::ConfirmDeployment { of } => match store.get::<ModelDeployment>(of) {
                    Some(found) if found.metadata.deletion_timestamp.is_none() => {
                        WriteResponse::Done(Object::Deployment(found))
                    }
                    Some(_) | None => WriteResponse::Rejected(WriteError::NotFound),
                },
                Intent::AdoptRevision { of, patch } => {
                    response_of(store.update::<ModelRevision>(of, true, |found| merge(found, patch)))
                }
                Intent::AdoptReplica { of, patch } => {
                    response_of(store.update::<ModelReplica>(of, true, |found| merge(found, patch)))
                }
                Intent::AmendReplica { of, patch } => {
                    response_of(store.update::<ModelReplica>(of, false, |found| merge(found, patch)))
                }
                Intent::Bind { of, node } => {
                    response_of(store.update::<ModelReplica>(of, is_binding_guarded, |found| {
                        found.spec.node_name = Some(node.clone());
                        let finalizers = found.metadata.finalizers.get_or_insert_default();
                        if !finalizers.iter().any(|one| one == REPLICA_FINALIZER) {
                            finalizers.push(REPLICA_FINALIZER.to_owned());
                        }
                    }))
                }
                Intent::ConfirmBinding { of, node } => {
                    response_of(store.update::<ModelReplica>(of, is_guarded, |found| {
                        found.status = Some(bound_status(found, node, now));
                    }))
                }
                Intent::Scale { of, replicas } => {
                    response_of(store.update::<ModelDeployment>(of, true, |found| {
                        found.spec.replicas = *replicas;
                    }))
                }
                Intent::DeploymentStatus { of, status } => {
                    response_of(store.update::<ModelDeployment>(of, is_guarded, |found| {
                        found.status = Some(status.as_ref().clone());
                    }))
                }
                Intent::ReplicaStatus { of, status } => {
                    response_of(store.update::<ModelReplica>(of, is_guarded, |found| {
                        found.status = Some(status.as_ref().clone());
                    }))
                }
                Intent::NodeStatus { of, status } => {
                    response_of(store.update::<FleetNode>(of, is_guarded, |found| {
                        found.status = Some(status.as_ref().clone());
                    }))
                }
                // The modelled store holds no capacity plans and no claims.
                Intent::CapacityPlanStatus { .. } | Intent::ClaimStatus { .. } => {
                    WriteResponse::Rejected(WriteError::NotFound)
                }
                Intent::ReleaseReplica { of } => match store.get::<ModelReplica>(of) {
                    // The controller reads the node from the server before it releases a replica.
                    // If the node exists again, it does not release.
                    Some(found) if confirms_node && store.has_node_of(&found) => {
                        WriteResponse::Rejected(WriteError::Conflict)
                    }
                    None => WriteResponse::Rejected(WriteError::NotFound),
                    Some(found) if found.metadata.deletion_timestamp.is_some() => {
                        response_of(store.update::<ModelReplica>(of, true, remove_finalizer))
                    }
                    Some(_) => match store.delete::<ModelReplica>(of, now) {
                        Ok(left) => response_of(store.update::<ModelReplica>(
                            &Version::of(left.as_ref()),
                            true,
                            remove_finalizer,
                        )),
                        Err(error) => WriteResponse::Rejected(error),
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
                WriteResponse::Done(_),
            ) = (intent, &response)
            {
                self.rules.ledger.evictions += 1;
            }
            self.rules
                .check_intent(&self.world, &self.network, intent, &response);
        }
        response
    }
}
