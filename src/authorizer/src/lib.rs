//! Authorization of rooflet's nodes at the API server.
//!
//! An agent authenticates as `system:node:NAME` in the group `system:nodes`. [`NodeAuthorizer`]
//! allows an agent to write its own FleetNode, its own Lease, the ConfigMap with the figures of its probe,
//! the replicas bound to its node, and events. A machine that joins authenticates with a bootstrap token. It may create a certificate
//! signing request and read it.
//!
//! `roles` contains the roles of users for rooflet's kinds, and `machine_roles` those of gateways,
//! controllers and agents.
//!
//! `request` decides by the attributes of a request. `object` decides by the content of the
//! objects if the attributes do not identify the node. Both are pure functions.

mod machine_roles;
mod node;
mod object;
mod request;
mod roles;

#[cfg(test)]
mod tests;

pub use roles::roles;

use rooflet_apimachinery::verb::Verb;
use rooflet_apiserver::authorization::{
    Attributes, Authorizer, Decision, Forbidden, ObjectPolicy, ResourceAttributes, Target, User,
};
use serde_json::Value;

const CSR_GROUP: &str = "certificates.k8s.io";
const CSRS: &str = "certificatesigningrequests";
const LEASE_GROUP: &str = "coordination.k8s.io";
const LEASES: &str = "leases";
const CONFIG_MAPS: &str = "configmaps";
const DEPLOYMENTS: &str = "modeldeployments";
const NODES: &str = "fleetnodes";
const REPLICAS: &str = "modelreplicas";

/// Authorizer of agents and joining machines. It has no opinion on other users.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeAuthorizer;

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        match (&attributes.target, Verb::of_resource(attributes.verb)) {
            (Target::Resource(resource), Some(verb)) => request::decide(attributes.user, verb, resource),
            (Target::Path(_), _) | (_, None) => Decision::NoOpinion(String::new()),
        }
    }

    fn unlisted(&self, user: &User) -> Option<String> {
        let message = "node authorizer does not support user rule resolution";
        node::node_of(user).map(|_| message.to_owned())
    }
}

impl ObjectPolicy for NodeAuthorizer {
    fn restricts(&self, user: &User) -> bool {
        object::is_restricted(user)
    }

    fn check_stored(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        stored: Option<&Value>,
    ) -> Result<(), Forbidden> {
        object::check_stored(user, resource, stored)
    }

    fn check_change(
        &self,
        user: &User,
        resource: &ResourceAttributes<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), Forbidden> {
        object::check_change(user, resource, old, new)
    }
}
