//! Labels, annotations, finalizers and owner references that rooflet puts on objects, and the Leases of nodes.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// On FleetNodes: the machine is simulated, and nothing that is measured there is its speed.
pub const SIMULATED_LABEL: &str = "rooflet.dev/simulated";
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
pub const OS_LABEL: &str = "kubernetes.io/os";
pub const ARCH_LABEL: &str = "kubernetes.io/arch";
pub const CHIP_LABEL: &str = "rooflet.dev/chip";

/// Of a node, those that its agent sets, again and again.
pub const AGENT_LABELS: [&str; 5] = [SIMULATED_LABEL, HOSTNAME_LABEL, OS_LABEL, ARCH_LABEL, CHIP_LABEL];

/// On revisions and replicas: the ModelDeployment they belong to.
pub const DEPLOYMENT_LABEL: &str = "rooflet.dev/deployment";
/// On replicas: the ModelRevision they were made from.
pub const REVISION_LABEL: &str = "rooflet.dev/revision";
/// On revisions: a hash of the template, so that an unchanged template is found again.
pub const TEMPLATE_HASH_LABEL: &str = "rooflet.dev/template-hash";
/// On replicas that an agent mirrors from its `--manifest-dir`; like `kubernetes.io/config.mirror` on pods.
pub const MIRROR_ANNOTATION: &str = "rooflet.dev/config.mirror";
/// On deployments and their replicas: with the value `warn`, what admission has against it is told and not enforced.
pub const ADMISSION_ANNOTATION: &str = "rooflet.dev/admission";
/// See [`ADMISSION_ANNOTATION`].
pub const ADMISSION_WARN: &str = "warn";
/// On deployments and their revisions: what a user says of a change; kubectl's own.
pub const CHANGE_CAUSE_ANNOTATION: &str = "kubernetes.io/change-cause";
/// On deployments: `REVISION/STEP` ends that step of that revision's canary, `REVISION/full` all that are left.
pub const PROMOTE_ANNOTATION: &str = "rooflet.dev/promote";
/// On deployments: the ModelRevision whose rollout is given up.
pub const ABORT_ANNOTATION: &str = "rooflet.dev/abort";
/// On replicas: the FleetNode to which it is to move. It leaves its node as if that were drained, and the scheduler puts its
/// replacement there if it fits, and in no case where it was.
pub const MOVE_ANNOTATION: &str = "rooflet.dev/move-to";
/// On a replica that is to be replaced in place: a model, `hf://OWNER/NAME@COMMIT`, that its agent downloads meanwhile.
pub const PREPARE_ANNOTATION: &str = "rooflet.dev/prepare";
/// On a replica being deleted until its agent has stopped the worker and the memory is free again.
pub const REPLICA_FINALIZER: &str = "rooflet.dev/worker";
/// Where node leases live; exists on every Kubernetes cluster.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// A node whose Lease was not renewed for so long is lost.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);

/// How the names of gateways' Leases begin.
pub const GATEWAY_LEASE_PREFIX: &str = "rooflet-gateway-";
/// On a gateway's Lease: what waits in it, as JSON, for the autoscaler.
pub const DEMAND_ANNOTATION: &str = "rooflet.dev/demand";

/// The name of a node's Lease. The prefix keeps it apart from the lease of a Kubernetes Node of the same name.
pub fn lease_name(node: &str) -> String {
    format!("fleetnode-{node}")
}

/// A reference that makes `owner` the controller of what carries it: deleting the owner deletes the dependent.
///
/// `None` if `owner` was never stored and so has no uid.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> Option<OwnerReference> {
    let mut reference = owner.controller_owner_ref(&())?;
    // `kubectl delete --cascade=foreground` then waits until the dependent is gone.
    reference.block_owner_deletion = Some(true);
    Some(reference)
}
