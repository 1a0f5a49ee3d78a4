//! Text of writes in the journal.

use kube::ResourceExt;

use crate::world::event::{Actor, Write, WriteResponse};
use crate::world::store::Object;
use rooflet_controller::intent::Intent;

pub(crate) fn describe_actor(actor: Actor) -> String {
    match actor {
        Actor::Reconciler(of) => format!("controller {of:?}"),
        Actor::Replicas(node) | Actor::Node(node) => format!("agent {node}"),
    }
}

pub(crate) fn describe_write(write: &Write, response: &WriteResponse) -> String {
    let name = match response {
        WriteResponse::Done(Object::Replica(object)) => {
            let conditions = object.status.iter().flat_map(|status| &status.conditions);
            let conditions: Vec<_> = conditions
                .map(|one| format!("{}={}/{}", one.type_, one.status, one.reason))
                .collect();
            format!("{} {}", object.name_any(), conditions.join(" "))
        }
        WriteResponse::Done(Object::Revision(object)) => object.name_any(),
        WriteResponse::Done(Object::Node(object)) => object.name_any(),
        WriteResponse::Done(Object::Deployment(object)) => object.name_any(),
        WriteResponse::Rejected(error) => format!("{error:?}"),
        WriteResponse::Lost => "lost".to_owned(),
    };
    let kind = match write {
        Write::Register(_) => "Register".to_owned(),
        Write::RemoveFinalizer { of } => format!("RemoveFinalizer {}", of.name),
        Write::Intent(intent, _) => match intent {
            Intent::DeleteRevision(of) => format!("DeleteRevision {}", of.name),
            Intent::CreateRevision(_) => "CreateRevision".to_owned(),
            Intent::RenumberRevision { of, revision } => {
                format!("RenumberRevision {} to {revision}", of.name)
            }
            Intent::SetChangeCause { of, .. } => format!("SetChangeCause {}", of.name),
            Intent::ConfirmDeployment { of } => format!("ConfirmDeployment {}", of.name),
            Intent::AdoptRevision { of, .. } => format!("AdoptRevision {}", of.name),
            Intent::AdoptReplica { of, .. } => format!("AdoptReplica {}", of.name),
            Intent::DeleteReplica { of, why } => format!("DeleteReplica {} ({why:?})", of.name),
            Intent::CreateReplica(_) => "CreateReplica".to_owned(),
            Intent::AmendReplica { of, .. } => format!("AmendReplica {}", of.name),
            Intent::DeploymentStatus { of, .. } => format!("DeploymentStatus {}", of.name),
            Intent::Scale { of, replicas } => format!("Scale {} to {replicas}", of.name),
            Intent::Bind { of, node } => format!("Bind {} to {node}", of.name),
            Intent::ConfirmBinding { of, node } => format!("ConfirmBinding {} to {node}", of.name),
            Intent::ReplicaStatus { of, .. } => format!("ReplicaStatus {}", of.name),
            Intent::NodeStatus { of, .. } => format!("NodeStatus {}", of.name),
            Intent::CapacityPlanStatus { of, .. } => format!("CapacityPlanStatus {}", of.name),
            Intent::ClaimStatus { of, .. } => format!("ClaimStatus {}", of.name),
            Intent::ReleaseReplica { of } => format!("ReleaseReplica {}", of.name),
        },
    };
    format!("{kind}: {name}")
}
