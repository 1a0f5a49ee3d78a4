//! Labels, annotations, finalizers, owner references and Lease names.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

/// Label of FleetNodes without a real machine. Their measurements are not real speeds.
pub const SIMULATED_LABEL: &str = "rooflet.dev/simulated";
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
pub const OS_LABEL: &str = "kubernetes.io/os";
pub const ARCH_LABEL: &str = "kubernetes.io/arch";
pub const CHIP_LABEL: &str = "rooflet.dev/chip";

/// Labels of a node that its agent maintains.
pub const AGENT_LABELS: [&str; 5] = [SIMULATED_LABEL, HOSTNAME_LABEL, OS_LABEL, ARCH_LABEL, CHIP_LABEL];

/// Label of revisions and replicas: name of their ModelDeployment.
pub const DEPLOYMENT_LABEL: &str = "rooflet.dev/deployment";
/// Label of replicas: name of their ModelRevision.
pub const REVISION_LABEL: &str = "rooflet.dev/revision";
/// Label of revisions: hash of the template, used to find an unchanged template.
pub const TEMPLATE_HASH_LABEL: &str = "rooflet.dev/template-hash";
/// Annotation of replicas that an agent mirrors from its `--manifest-dir`, like
/// `kubernetes.io/config.mirror` of Pods.
pub const MIRROR_ANNOTATION: &str = "rooflet.dev/config.mirror";
/// Annotation of replicas that an agent created again at a rebuilt API server: UID of the former
/// object. The replica's worker has run without interruption.
pub const RESTORED_ANNOTATION: &str = "rooflet.dev/restored-from";
/// Annotation of deployments and their replicas. With the value `warn`, admission reports its
/// reasons but does not reject.
pub const ADMISSION_ANNOTATION: &str = "rooflet.dev/admission";
/// Value of [`ADMISSION_ANNOTATION`].
pub const ADMISSION_WARN: &str = "warn";
/// Annotation of deployments and revisions: the user's description of a change, as written by
/// kubectl.
pub const CHANGE_CAUSE_ANNOTATION: &str = "kubernetes.io/change-cause";
/// Annotation of deployments: `REVISION/STEP` completes this step of the revision's canary,
/// `REVISION/full` all remaining steps.
pub const PROMOTE_ANNOTATION: &str = "rooflet.dev/promote";
/// Annotation of deployments: name of the ModelRevision whose rollout is aborted.
pub const ABORT_ANNOTATION: &str = "rooflet.dev/abort";
/// Annotation of replicas: name of the FleetNode to which the replica moves. It is evicted as in a
/// drain. The scheduler places its replacement on that node if it fits, and never on the previous
/// node.
pub const MOVE_ANNOTATION: &str = "rooflet.dev/move-to";
/// Annotation of a replica that will be replaced in place: model `hf://OWNER/NAME@COMMIT` that its
/// agent downloads in advance.
pub const PREPARE_ANNOTATION: &str = "rooflet.dev/prepare";
/// Annotation of FleetNodes: each new value requests one measurement of the machine.
pub const PROBE_ANNOTATION: &str = "rooflet.dev/probe";
/// Annotation of FleetNodes: models of a hub that the agent downloads and keeps.
pub(crate) const KEEP_MODELS_ANNOTATION: &str = "rooflet.dev/keep-models";
/// Annotation of FleetNodes: downloaded models that the agent deletes.
pub(crate) const DELETE_MODELS_ANNOTATION: &str = "rooflet.dev/delete-models";
/// Finalizer of replicas. The agent removes it after the worker has stopped and its memory is free.
pub const REPLICA_FINALIZER: &str = "rooflet.dev/worker";
/// Namespace of node Leases; exists on every Kubernetes cluster.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Time without renewal of its Lease after which a node is lost.
pub const LEASE_DURATION: Duration = Duration::from_secs(40);

/// ConfigMap that machines of the fleet read: authorities of certificates and revoked nodes.
pub const FLEET_TRUST: &str = "rooflet-fleet-trust";
/// Namespace of [`FLEET_TRUST`]; exists on every Kubernetes cluster.
pub const FLEET_TRUST_NAMESPACE: &str = "kube-system";

/// Annotation of the ServiceAccount of an agent on a Kubernetes cluster: name of the node. Also the name of the
/// extension of kubeconfigs with a token of this ServiceAccount.
pub const NODE_ANNOTATION: &str = "rooflet.dev/node";

/// Annotation of a node's Lease: agent that uses the name of the node but does not hold the Lease.
pub const OTHER_AGENT_ANNOTATION: &str = "rooflet.dev/other-agent";

/// Prefix of the names of gateway Leases.
pub const GATEWAY_LEASE_PREFIX: &str = "rooflet-gateway-";
/// Annotation of gateway Leases: address at which other machines send requests without an API key.
pub const ANONYMOUS_ACCESS_ANNOTATION: &str = "rooflet.dev/anonymous-access";
/// Annotation of gateway Leases: queued requests as JSON, for the autoscaler.
pub const DEMAND_ANNOTATION: &str = "rooflet.dev/demand";

/// Label or annotation with its meaning, for the reference.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// Form of the key (label or annotation) and kinds of the objects that have it.
    pub on: &'static str,
    /// Component, command or person that sets the key.
    pub set_by: &'static str,
    pub meaning: &'static str,
}

/// All labels and annotations that rooflet reads or sets. Those of users are first.
pub const KEYS: [Key; 21] = [
    Key {
        name: ADMISSION_ANNOTATION,
        on: "annotation of ModelDeployments",
        set_by: "user",
        meaning: "with the value `warn`, admission reports its reasons but does not reject",
    },
    Key {
        name: CHANGE_CAUSE_ANNOTATION,
        on: "annotation of ModelDeployments",
        set_by: "user",
        meaning: "description of a change; `rooflet rollout history` prints it",
    },
    Key {
        name: PROMOTE_ANNOTATION,
        on: "annotation of ModelDeployments",
        set_by: "`rooflet rollout promote`",
        meaning: "`REVISION/STARTED_AT/STEP` completes this step of the canary in `status.rollout`, with `full` all remaining steps",
    },
    Key {
        name: ABORT_ANNOTATION,
        on: "annotation of ModelDeployments",
        set_by: "`rooflet rollout abort`",
        meaning: "`REVISION/STARTED_AT` of the rollout in `status.rollout` that is aborted",
    },
    Key {
        name: MOVE_ANNOTATION,
        on: "annotation of ModelReplicas",
        set_by: "user, `rooflet rebalance --apply`",
        meaning: "FleetNode to which the replica moves, after its replacement is ready",
    },
    Key {
        name: PROBE_ANNOTATION,
        on: "annotation of FleetNodes",
        set_by: "user, `rooflet probe --node`",
        meaning: "each new value requests one measurement, which runs when no worker runs",
    },
    Key {
        name: KEEP_MODELS_ANNOTATION,
        on: "annotation of FleetNodes",
        set_by: "`rooflet models prefetch`",
        meaning: "hub models, separated by commas, that the agent downloads and keeps",
    },
    Key {
        name: DELETE_MODELS_ANNOTATION,
        on: "annotation of FleetNodes",
        set_by: "`rooflet models delete`",
        meaning: "`MODEL=TIME`, separated by commas: the agent deletes copies from before that time, unless a replica uses them",
    },
    Key {
        name: CHIP_LABEL,
        on: "label of FleetNodes",
        set_by: "agent",
        meaning: "chip of the machine, such as `Apple-M4-Pro`",
    },
    Key {
        name: SIMULATED_LABEL,
        on: "label of FleetNodes",
        set_by: "agent",
        meaning: "the node has no real machine; its measurements are not real speeds",
    },
    Key {
        name: HOSTNAME_LABEL,
        on: "label of FleetNodes",
        set_by: "agent",
        meaning: "host name; also `kubernetes.io/os` and `kubernetes.io/arch`",
    },
    Key {
        name: DEPLOYMENT_LABEL,
        on: "label of ModelRevisions and ModelReplicas",
        set_by: "controller",
        meaning: "name of the ModelDeployment",
    },
    Key {
        name: REVISION_LABEL,
        on: "label of ModelReplicas",
        set_by: "controller",
        meaning: "name of the ModelRevision",
    },
    Key {
        name: TEMPLATE_HASH_LABEL,
        on: "label of ModelRevisions",
        set_by: "controller",
        meaning: "hash of the template, used to find an unchanged template",
    },
    Key {
        name: PREPARE_ANNOTATION,
        on: "annotation of ModelReplicas",
        set_by: "controller",
        meaning: "model that the agent downloads before the replica is replaced in place",
    },
    Key {
        name: MIRROR_ANNOTATION,
        on: "annotation of ModelReplicas",
        set_by: "agent",
        meaning: "the replica mirrors a manifest of the agent's `--manifest-dir`",
    },
    Key {
        name: RESTORED_ANNOTATION,
        on: "annotation of ModelReplicas",
        set_by: "agent",
        meaning: "UID of the replica at the former API server, before the control plane was rebuilt",
    },
    Key {
        name: DEMAND_ANNOTATION,
        on: "annotation of Leases",
        set_by: "gateway",
        meaning: "queued requests as JSON, for the autoscaler",
    },
    Key {
        name: ANONYMOUS_ACCESS_ANNOTATION,
        on: "annotation of Leases",
        set_by: "gateway",
        meaning: "address at which other machines send requests without an API key (`--allow-anonymous`)",
    },
    Key {
        name: OTHER_AGENT_ANNOTATION,
        on: "annotation of Leases",
        set_by: "agent",
        meaning: "agent that uses the name of the node but does not hold the Lease; the holder removes it",
    },
    Key {
        name: NODE_ANNOTATION,
        on: "annotation of ServiceAccounts",
        set_by: "chart",
        meaning: "name of the node whose agent uses the ServiceAccount",
    },
];

/// Key of a probe's figures in the ConfigMap of a node.
pub const PROBE_KEY: &str = "probe.json";

/// Returns the name of the ConfigMap with the figures of a node's probe, in [`LEASE_NAMESPACE`].
pub fn probe_config_map(node: &str) -> String {
    format!("fleetnode-{node}")
}

/// Returns the name of a node's Lease. The prefix avoids conflicts with the Lease of a Kubernetes
/// Node of the same name.
pub fn lease_name(node: &str) -> String {
    format!("fleetnode-{node}")
}

/// Returns an owner reference that makes `owner` the controller: deleting the owner deletes the
/// dependent.
///
/// Returns `None` if `owner` was never stored and has no UID.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> Option<OwnerReference> {
    let mut reference = owner.controller_owner_ref(&())?;
    // Makes `kubectl delete --cascade=foreground` wait for the dependent's deletion.
    reference.block_owner_deletion = Some(true);
    Some(reference)
}
