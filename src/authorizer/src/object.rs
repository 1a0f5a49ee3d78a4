//! What of the objects themselves a user may read and change.
//!
//! An agent reaches the objects of its own node. The author of a certificate signing request
//! reaches that request. The reason for an object out of reach is the same whether it exists or
//! not.

use rooflet_api as api;
use rooflet_api::meta::{LEASE_NAMESPACE, MIRROR_ANNOTATION, lease_name};
use rooflet_apiserver::authorization::{Forbidden, ResourceAttributes, User};
use serde_json::Value;

use crate::node::node_of;
use crate::{CSR_GROUP, CSRS, LEASE_GROUP, LEASES, NODES, REPLICAS};

/// Decides whether the user may learn of the stored object, or that there is none.
pub(crate) fn check_stored(
    user: &User,
    at: &ResourceAttributes<'_>,
    stored: Option<&Value>,
) -> Result<(), Forbidden> {
    let member = |field| stored.map_or("", |stored| text_of_spec(stored, field));
    match (at.group, at.resource) {
        (CSR_GROUP, CSRS) => allow_if(member("username") == user.name, || {
            "only who made a request may see it".to_owned()
        }),
        (api::GROUP, REPLICAS) => {
            let node = node_of(user).unwrap_or_default();
            let is_own = !node.is_empty() && member("nodeName") == node;
            allow_if(is_own, || only_replicas_of(node))
        }
        _ => Ok(()),
    }
}

/// Decides whether the user may store `new`; `old` is `None` for a new object.
pub(crate) fn check_change(
    user: &User,
    at: &ResourceAttributes<'_>,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Forbidden> {
    let Some(node) = node_of(user) else { return Ok(()) };
    match (at.group, at.resource) {
        (api::GROUP, NODES) => match old {
            None => allow_if(at.name == Some(node), || {
                format!("node {node:?} may register itself only")
            }),
            Some(old) => allow_if(old.get("spec") == new.get("spec"), || {
                "a node may not change the spec of its FleetNode".to_owned()
            }),
        },
        (LEASE_GROUP, LEASES) => {
            let lease = lease_name(node);
            let is_own = at.name == Some(lease.as_str()) && at.namespace == Some(LEASE_NAMESPACE);
            allow_if(is_own, || {
                format!("node {node:?} may have one Lease only, {LEASE_NAMESPACE}/{lease}")
            })
        }
        (api::GROUP, REPLICAS) => {
            let is_bound_here = text_of_spec(new, "nodeName") == node;
            allow_if(is_bound_here, || only_replicas_of(node))?;
            let mirrors = new["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some();
            allow_if(old.is_some() || mirrors, || {
                format!(
                    "a node may create mirrors of its manifests only, with the annotation {MIRROR_ANNOTATION}"
                )
            })
        }
        _ => Ok(()),
    }
}

fn allow_if(is_allowed: bool, why_not: impl FnOnce() -> String) -> Result<(), Forbidden> {
    match is_allowed {
        true => Ok(()),
        false => Err(Forbidden(why_not())),
    }
}

/// The text of a member of `spec`; empty if there is none.
fn text_of_spec<'a>(object: &'a Value, field: &str) -> &'a str {
    object["spec"][field].as_str().unwrap_or_default()
}

fn only_replicas_of(node: &str) -> String {
    format!("node {node:?} may read and write replicas with spec.nodeName {node} only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node() -> User {
        User::new("system:node:a", &["system:nodes"])
    }

    fn at<'a>(
        group: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
        name: &'a str,
    ) -> ResourceAttributes<'a> {
        ResourceAttributes {
            group,
            version: "v1",
            resource,
            subresource: None,
            namespace,
            name: Some(name),
            field_selector: "",
        }
    }

    #[test]
    fn another_nodes_replica_is_as_one_that_is_not_there() {
        let at = at("rooflet.dev", "modelreplicas", Some("default"), "x");
        let on = |node: &str| json!({"spec": {"nodeName": node}});
        let said = |stored: Option<&Value>| check_stored(&node(), &at, stored);
        assert_eq!(said(Some(&on("a"))), Ok(()));
        let refused = said(None);
        assert_eq!(
            refused,
            Err(Forbidden(
                "node \"a\" may read and write replicas with spec.nodeName a only".to_owned()
            ))
        );
        assert_eq!(said(Some(&on("b"))), refused);
        assert_eq!(said(Some(&json!({"spec": {}}))), refused);
    }

    #[test]
    fn a_request_is_seen_by_who_made_it() {
        let at = at("certificates.k8s.io", "certificatesigningrequests", None, "x");
        let of = |name: &str| json!({"spec": {"username": name}});
        for user in [
            User::new("system:bootstrap:abcdef", &["system:bootstrappers"]),
            node(),
        ] {
            let own = of(&user.name);
            assert!(check_stored(&user, &at, Some(&own)).is_ok());
            for stored in [None, Some(&of("somebody")), Some(&json!({}))] {
                assert!(check_stored(&user, &at, stored).is_err(), "{stored:?}");
            }
        }
    }

    #[test]
    fn a_node_changes_its_own_things_only() {
        let check =
            |group: &str, resource: &str, name: &str, old: Option<Value>, new: Value, expect: &str| {
                let namespace = match group {
                    "coordination.k8s.io" => Some("kube-node-lease"),
                    _ => None,
                };
                let at = at(group, resource, namespace, name);
                let got = check_change(&node(), &at, old.as_ref(), &new);
                let got = got.err().map_or_else(String::new, |Forbidden(why)| why);
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
