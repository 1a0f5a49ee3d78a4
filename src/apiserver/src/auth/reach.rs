//! What of the objects themselves a user reaches: an agent its own node's, who asks for a certificate the own request. Pure.
//!
//! An object out of reach is refused in the same words whether it is there or not.

use std::sync::Arc;

use serde_json::Value;

use super::authorize::{CSR_GROUP, CSRS, LEASES, NODES, REPLICAS, cannot};
use super::{MASTERS, User};
use crate::object;
use crate::status::{ApiError, GroupResource};
use rooflet_api as api;
use rooflet_api::meta::{LEASE_NAMESPACE, MIRROR_ANNOTATION, lease_name};
use rooflet_apimachinery::verb::Verb;

/// Who asks for something to be done to an object.
#[derive(Debug, Clone)]
pub(crate) struct Requestor {
    pub user: Arc<User>,
    pub verb: Verb,
}

/// Where an object lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub resource: &'a GroupResource,
    pub subresource: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

impl Requestor {
    /// Whether the stored object, or that there is none, may be known.
    pub(crate) fn check_stored(&self, place: Place<'_>, stored: Option<&Value>) -> Result<(), ApiError> {
        self.refuse(place, self.hides(place, stored))
    }

    /// Whether the object may become `new`; `old` is none for a new one.
    pub(crate) fn check_change(
        &self,
        place: Place<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        self.refuse(place, self.forbids(place, old, new))
    }

    fn refuse(&self, place: Place<'_>, why: Option<String>) -> Result<(), ApiError> {
        let Some(why) = why else { return Ok(()) };
        let Place {
            resource,
            subresource,
            namespace,
            name,
        } = place;
        let what = cannot(&self.user, self.verb, resource, subresource, namespace);
        Err(ApiError::forbidden(resource, name, &format!("{what}: {why}")))
    }

    fn hides(&self, place: Place<'_>, stored: Option<&Value>) -> Option<String> {
        if self.user.is_in(MASTERS) {
            return None;
        }
        let at = |path: &[&str]| stored.map_or("", |stored| object::text(stored, path));
        match (place.resource.group.as_str(), place.resource.resource.as_str()) {
            (CSR_GROUP, CSRS) => {
                let is_own = at(&["spec", "username"]) == self.user.name;
                (!is_own).then(|| "only who made a request may see it".to_owned())
            }
            (api::GROUP, REPLICAS) => {
                let node = self.user.node().unwrap_or_default();
                let is_own = !node.is_empty() && at(&["spec", "nodeName"]) == node;
                (!is_own).then(|| only_replicas_of(node))
            }
            _ => None,
        }
    }

    fn forbids(&self, place: Place<'_>, old: Option<&Value>, new: &Value) -> Option<String> {
        if self.user.is_in(MASTERS) {
            return None;
        }
        let node = self.user.node()?;
        match (place.resource.group.as_str(), place.resource.resource.as_str()) {
            (api::GROUP, NODES) => match old {
                None => (place.name != node).then(|| format!("node {node:?} may register itself only")),
                Some(old) => (old.get("spec") != new.get("spec"))
                    .then(|| "a node may not change the spec of its FleetNode".to_owned()),
            },
            ("coordination.k8s.io", LEASES) => {
                let lease = lease_name(node);
                let is_own = place.name == lease && place.namespace == Some(LEASE_NAMESPACE);
                (!is_own).then(|| format!("node {node:?} may have one Lease only, {LEASE_NAMESPACE}/{lease}"))
            }
            (api::GROUP, REPLICAS) => {
                let is_bound_here = object::text(new, &["spec", "nodeName"]) == node;
                let mirrors = new["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some();
                if !is_bound_here {
                    return Some(only_replicas_of(node));
                }
                (old.is_none() && !mirrors).then(|| {
                    format!(
                        "a node may create mirrors of its manifests only, with the annotation {MIRROR_ANNOTATION}"
                    )
                })
            }
            _ => None,
        }
    }
}

fn only_replicas_of(node: &str) -> String {
    format!("node {node:?} may read and write replicas with spec.nodeName {node} only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn requestor(name: &str, groups: &[&str]) -> Requestor {
        Requestor {
            user: Arc::new(User::test(name, groups)),
            verb: Verb::Patch,
        }
    }

    fn node() -> Requestor {
        requestor("system:node:a", &["system:nodes"])
    }

    fn place<'a>(resource: &'a GroupResource, namespace: Option<&'a str>, name: &'a str) -> Place<'a> {
        Place {
            resource,
            subresource: None,
            namespace,
            name,
        }
    }

    #[test]
    fn another_nodes_replica_is_as_one_that_is_not_there() {
        let replicas = GroupResource::new("rooflet.dev", "modelreplicas");
        let place = place(&replicas, Some("default"), "x");
        let on = |node: &str| json!({"spec": {"nodeName": node}});
        let said = |stored: Option<&Value>| {
            let checked = node().check_stored(place, stored);
            checked.map_err(|err| (err.code().as_u16(), err.message().to_owned()))
        };
        assert_eq!(said(Some(&on("a"))), Ok(()));
        let refused = said(None).expect_err("hidden");
        assert_eq!(
            refused,
            (
                403,
                "modelreplicas.rooflet.dev \"x\" is forbidden: User \"system:node:a\" cannot patch resource \
                 \"modelreplicas\" in API group \"rooflet.dev\" in the namespace \"default\": node \"a\" may read and write \
                 replicas with spec.nodeName a only"
                    .to_owned()
            )
        );
        assert_eq!(said(Some(&on("b"))), Err(refused.clone()));
        assert_eq!(said(Some(&json!({"spec": {}}))), Err(refused));
        let admin = requestor("system:admin", &["system:masters"]);
        assert!(admin.check_stored(place, None).is_ok());
    }

    #[test]
    fn a_request_is_seen_by_who_made_it() {
        let requests = GroupResource::new("certificates.k8s.io", "certificatesigningrequests");
        let place = place(&requests, None, "x");
        let of = |name: &str| json!({"spec": {"username": name}});
        for who in [
            requestor("system:bootstrap:abcdef", &["system:bootstrappers"]),
            node(),
        ] {
            let own = of(&who.user.name);
            assert!(who.check_stored(place, Some(&own)).is_ok());
            for stored in [None, Some(&of("somebody")), Some(&json!({}))] {
                assert!(who.check_stored(place, stored).is_err(), "{stored:?}");
            }
        }
    }

    #[test]
    fn a_node_changes_its_own_things_only() {
        let check =
            |group: &str, resource: &str, name: &str, old: Option<Value>, new: Value, expect: &str| {
                let resource = GroupResource::new(group, resource);
                let namespace = match group {
                    "coordination.k8s.io" => Some("kube-node-lease"),
                    _ => None,
                };
                let place = place(&resource, namespace, name);
                let got = node().forbids(place, old.as_ref(), &new).unwrap_or_default();
                assert!(
                    got.contains(expect) && got.is_empty() == expect.is_empty(),
                    "{name} {new}: {got}"
                );
            };
        let fleet_node = |spec: Value| json!({"metadata": {"labels": {"x": "y"}}, "spec": spec});
        let nodes = |name: &str, old, new, expect| check("rooflet.dev", "fleetnodes", name, old, new, expect);
        nodes("a", None, fleet_node(json!({})), "");
        nodes("b", None, fleet_node(json!({})), "may register itself only");
        let cordoned = fleet_node(json!({"unschedulable": true}));
        nodes("a", Some(cordoned.clone()), cordoned.clone(), "");
        let fault = "may not change the spec";
        nodes(
            "a",
            Some(cordoned),
            fleet_node(json!({"unschedulable": false})),
            fault,
        );

        let leases =
            |name: &str, expect| check("coordination.k8s.io", "leases", name, None, json!({}), expect);
        leases("fleetnode-a", "");
        leases("fleetnode-b", "may have one Lease only");

        let replica = |node: &str, annotation: &str| json!({"metadata": {"annotations": {annotation: "x"}}, "spec": {"nodeName": node}});
        let replicas = |old, new, expect| check("rooflet.dev", "modelreplicas", "x", old, new, expect);
        replicas(None, replica("a", MIRROR_ANNOTATION), "");
        replicas(None, replica("a", "other"), "mirrors of its manifests only");
        replicas(None, replica("b", MIRROR_ANNOTATION), "spec.nodeName a only");
        replicas(Some(replica("a", "other")), replica("a", "other"), "");
        replicas(
            Some(replica("a", "other")),
            replica("b", "other"),
            "spec.nodeName a only",
        );
    }
}
