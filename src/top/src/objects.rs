//! Observed objects of a fleet.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Event;
use kube::Resource as _;

use rooflet_api::v1alpha1::{FleetNode, ModelDeployment, ModelReplica};

/// Observed objects from which a view is computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Objects {
    pub(crate) nodes: Vec<Arc<FleetNode>>,
    pub(crate) deployments: Vec<Arc<ModelDeployment>>,
    pub(crate) replicas: Vec<Arc<ModelReplica>>,
    pub(crate) events: Vec<Arc<Event>>,
}

/// Returns whether the event is about an object without a namespace, that is a node.
pub(crate) fn is_about_cluster(event: &Event) -> bool {
    event.involved_object.kind.as_deref() == Some(&*FleetNode::kind(&()))
}
