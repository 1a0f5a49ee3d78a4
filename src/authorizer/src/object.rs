//! Authorization by the content of objects.
//!
//! An agent may access the objects of its own node. The author of a certificate signing request
//! may access that request. The message for an inaccessible object does not reveal its existence.

use rooflet_api as api;
use rooflet_api::meta::{
    AGENT_LABELS, LEASE_NAMESPACE, MIRROR_ANNOTATION, RESTORED_ANNOTATION, lease_name, probe_config_map,
};
use rooflet_apiserver::authorization::{BOOTSTRAPPERS, Forbidden, ResourceAttributes, User};
use serde_json::Value;

use crate::node::node_of;
use crate::{CONFIG_MAPS, CSR_GROUP, CSRS, LEASE_GROUP, LEASES, NODES, REPLICAS};

/// Returns true if the content of objects determines the permissions of the user. Roles determine those of
/// all other users.
pub(crate) fn is_restricted(user: &User) -> bool {
    node_of(user).is_some() || user.is_in(BOOTSTRAPPERS)
}

/// Checks whether the user may read the stored object. `None` stands for a missing object.
pub(crate) fn check_stored(
    user: &User,
    at: &ResourceAttributes<'_>,
    stored: Option<&Value>,
) -> Result<(), Forbidden> {
    let member = |field| stored.map_or("", |stored| text_of_spec(stored, field));
    let node = node_of(user);
    match (at.group, at.resource, node) {
        (CSR_GROUP, CSRS, _) if is_restricted(user) => allow_if(member("username") == user.name, || {
            "only the author of a certificate signing request may read it".to_owned()
        }),
        (api::GROUP, REPLICAS, Some(node)) => allow_if(member("nodeName") == node, || only_replicas_of(node)),
        _ => Ok(()),
    }
}

/// Checks whether the user may store `new`. `old` is `None` for a new object.
pub(crate) fn check_change(
    user: &User,
    at: &ResourceAttributes<'_>,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), Forbidden> {
    let Some(node) = node_of(user) else { return Ok(()) };
    match (at.group, at.resource) {
        (api::GROUP, NODES) => {
            match old {
                None => {
                    allow_if(at.name == Some(node), || {
                        format!("node {node:?} may register only itself")
                    })?;
                    allow_if(has_default_spec(new), || {
                        "a node may not set the spec of its FleetNode".to_owned()
                    })?;
                }
                Some(old) => allow_if(old.get("spec") == new.get("spec"), || {
                    "a node may not change the spec of its FleetNode".to_owned()
                })?,
            }
            // A finalizer would delay the revocation of the node's certificate.
            for field in ["annotations", "finalizers", "ownerReferences"] {
                let before = old.and_then(|old| old["metadata"].get(field));
                allow_if(before == new["metadata"].get(field), || {
                    format!("a node may not change metadata.{field} of its FleetNode")
                })?;
            }
            check_labels_of_node(old, new)
        }
        (LEASE_GROUP, LEASES) => {
            let lease = lease_name(node);
            let is_own = at.name == Some(lease.as_str()) && at.namespace == Some(LEASE_NAMESPACE);
            allow_if(is_own, || {
                format!("node {node:?} may have only one Lease, {LEASE_NAMESPACE}/{lease}")
            })
        }
        ("", CONFIG_MAPS) => {
            let map = probe_config_map(node);
            let is_own = at.name == Some(map.as_str()) && at.namespace == Some(LEASE_NAMESPACE);
            allow_if(is_own, || {
                format!("node {node:?} may have only one ConfigMap, {LEASE_NAMESPACE}/{map}")
            })
        }
        (api::GROUP, REPLICAS) => {
            let is_bound_here = text_of_spec(new, "nodeName") == node;
            allow_if(is_bound_here, || only_replicas_of(node))?;
            let annotations = &new["metadata"]["annotations"];
            let may_create = [MIRROR_ANNOTATION, RESTORED_ANNOTATION]
                .iter()
                .any(|name| annotations.get(name).is_some());
            let Some(old) = old else {
                return allow_if(may_create, || {
                    format!(
                        "a node may create only mirrors of its manifests, with the annotation {MIRROR_ANNOTATION}, and replicas of a former API server, with {RESTORED_ANNOTATION}"
                    )
                });
            };
            let is_same = old.get("spec") == new.get("spec")
                && ["labels", "annotations", "ownerReferences"]
                    .iter()
                    .all(|field| old["metadata"].get(field) == new["metadata"].get(field));
            allow_if(is_same, || {
                format!("node {node:?} may change only status and finalizers of a replica")
            })
        }
        _ => Ok(()),
    }
}

/// Returns whether the fields of `spec` are missing, false or empty, as in a FleetNode of an agent.
fn has_default_spec(node: &Value) -> bool {
    let is_default =
        |value: &Value| *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty);
    let spec = node["spec"].as_object();
    spec.is_none_or(|spec| spec.values().all(is_default))
}

/// Checks that a node sets, changes or removes only the labels that its agent maintains. Placement
/// trusts the other labels.
fn check_labels_of_node(old: Option<&Value>, new: &Value) -> Result<(), Forbidden> {
    let none = serde_json::Map::new();
    let before = old
        .and_then(|old| old["metadata"]["labels"].as_object())
        .unwrap_or(&none);
    let after = new["metadata"]["labels"].as_object().unwrap_or(&none);
    let changed = before
        .keys()
        .chain(after.keys())
        .find(|name| !AGENT_LABELS.contains(&name.as_str()) && before.get(*name) != after.get(*name));
    match changed {
        None => Ok(()),
        Some(name) => Err(Forbidden(format!(
            "a node may not change the label {name} of its FleetNode, only {}",
            AGENT_LABELS.join(", ")
        ))),
    }
}

fn allow_if(is_allowed: bool, reason: impl FnOnce() -> String) -> Result<(), Forbidden> {
    match is_allowed {
        true => Ok(()),
        false => Err(Forbidden(reason())),
    }
}

/// Returns a text field of `spec`, or an empty text if the field is missing.
fn text_of_spec<'a>(object: &'a Value, field: &str) -> &'a str {
    object["spec"][field].as_str().unwrap_or_default()
}

fn only_replicas_of(node: &str) -> String {
    format!("node {node:?} may read and write only replicas with spec.nodeName {node}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::meta::CHIP_LABEL;
    use serde_json::json;

    /// Admission policy of the chart.
    const POLICY: &str = include_str!("../../../charts/rooflet/templates/agents.yaml");

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
    fn hides_existence_of_replicas_on_other_nodes() {
        let at = at("rooflet.dev", "modelreplicas", Some("default"), "x");
        let on = |node: &str| json!({"spec": {"nodeName": node}});
        let check = |stored: Option<&Value>| check_stored(&node(), &at, stored);
        assert_eq!(check(Some(&on("a"))), Ok(()));
        let rejected = check(None);
        assert_eq!(
            rejected,
            Err(Forbidden(
                "node \"a\" may read and write only replicas with spec.nodeName a".to_owned()
            ))
        );
        assert_eq!(check(Some(&on("b"))), rejected);
        assert_eq!(check(Some(&json!({"spec": {}}))), rejected);
    }

    #[test]
    fn only_the_author_may_read_a_signing_request() {
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
    fn users_with_roles_are_not_restricted_by_content() {
        let alice = User::new("alice", &["system:authenticated"]);
        for (group, resource) in [
            ("certificates.k8s.io", "certificatesigningrequests"),
            ("rooflet.dev", "modelreplicas"),
        ] {
            let at = at(group, resource, None, "x");
            let stored = json!({"spec": {"username": "bob", "nodeName": "a"}});
            assert_eq!(check_stored(&alice, &at, Some(&stored)), Ok(()), "{resource}");
            assert_eq!(check_change(&alice, &at, None, &stored), Ok(()), "{resource}");
        }
    }

    #[test]
    fn node_may_change_only_its_own_objects() {
        let check =
            |group: &str, resource: &str, name: &str, old: Option<Value>, new: Value, expect: &str| {
                let namespace = match group {
                    "" | "coordination.k8s.io" => Some("kube-node-lease"),
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
        let fleet_node = |spec: Value| json!({"metadata": {"labels": {CHIP_LABEL: "M4"}}, "spec": spec});
        let nodes = |name: &str, old, new, expect| check("rooflet.dev", "fleetnodes", name, old, new, expect);
        nodes("a", None, fleet_node(json!({})), "");
        nodes("b", None, fleet_node(json!({})), "may register only itself");
        nodes("a", None, json!({"metadata": {}}), "");
        let default = json!({"unschedulable": false, "drain": false, "taints": []});
        nodes("a", None, fleet_node(default), "");
        for spec in [
            json!({"unschedulable": true}),
            json!({"drain": true}),
            json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}),
        ] {
            nodes(
                "a",
                None,
                fleet_node(spec),
                "may not set the spec of its FleetNode",
            );
        }
        for (field, value, fault) in [
            (
                "annotations",
                json!({"a": "b"}),
                "may not change metadata.annotations",
            ),
            ("finalizers", json!(["a/b"]), "may not change metadata.finalizers"),
            (
                "ownerReferences",
                json!([{"kind": "Node"}]),
                "may not change metadata.ownerReferences",
            ),
        ] {
            let mut changed = fleet_node(json!({}));
            changed["metadata"][field] = value;
            nodes("a", None, changed.clone(), fault);
            nodes("a", Some(changed.clone()), fleet_node(json!({})), fault);
            nodes("a", Some(changed.clone()), changed, "");
        }
        let cordoned = fleet_node(json!({"unschedulable": true}));
        nodes("a", Some(cordoned.clone()), cordoned.clone(), "");
        let fault = "may not change the spec";
        nodes(
            "a",
            Some(cordoned),
            fleet_node(json!({"unschedulable": false})),
            fault,
        );

        let labelled = |labels: Value| json!({"metadata": {"labels": labels}, "spec": {}});
        let fault = "may not change the label rack of its FleetNode, only rooflet.dev/simulated, ";
        let of_people = labelled(json!({"rack": "7", CHIP_LABEL: "M4"}));
        nodes("a", None, of_people.clone(), fault);
        nodes("a", Some(labelled(json!({}))), of_people.clone(), fault);
        nodes(
            "a",
            Some(of_people.clone()),
            labelled(json!({"rack": "8"})),
            fault,
        );
        nodes(
            "a",
            Some(of_people.clone()),
            json!({"metadata": {}, "spec": {}}),
            fault,
        );
        nodes("a", Some(of_people.clone()), labelled(json!({"rack": "7"})), "");
        nodes(
            "a",
            Some(of_people),
            labelled(json!({"rack": "7", CHIP_LABEL: "M5"})),
            "",
        );

        let leases =
            |name: &str, expect| check("coordination.k8s.io", "leases", name, None, json!({}), expect);
        leases("fleetnode-a", "");
        leases("fleetnode-b", "may have only one Lease");
        let maps = |name: &str, expect| check("", "configmaps", name, None, json!({}), expect);
        maps("fleetnode-a", "");
        maps("fleetnode-b", "may have only one ConfigMap");

        let replica = |node: &str, annotation: &str| json!({"metadata": {"annotations": {annotation: "x"}}, "spec": {"nodeName": node}});
        let replicas = |old, new, expect| check("rooflet.dev", "modelreplicas", "x", old, new, expect);
        replicas(None, replica("a", MIRROR_ANNOTATION), "");
        replicas(None, replica("a", RESTORED_ANNOTATION), "");
        replicas(
            None,
            replica("b", RESTORED_ANNOTATION),
            "only replicas with spec.nodeName a",
        );
        replicas(None, replica("a", "other"), "only mirrors of its manifests");
        replicas(
            None,
            replica("b", MIRROR_ANNOTATION),
            "only replicas with spec.nodeName a",
        );
        replicas(Some(replica("a", "other")), replica("a", "other"), "");
        let fault = "may change only status and finalizers of a replica";
        let mut urgent = replica("a", "other");
        urgent["spec"]["priority"] = json!(1_000);
        replicas(Some(replica("a", "other")), urgent, fault);
        let mut labelled = replica("a", "other");
        labelled["metadata"]["labels"] = json!({"rooflet.dev/deployment": "guide"});
        replicas(Some(replica("a", "other")), labelled.clone(), fault);
        replicas(Some(labelled.clone()), replica("a", "other"), fault);
        let mut adopted = replica("a", "other");
        adopted["metadata"]["ownerReferences"] = json!([{"kind": "ModelDeployment", "name": "guide"}]);
        replicas(Some(replica("a", "other")), adopted, fault);
        replicas(
            Some(replica("a", "other")),
            replica("a", "rooflet.dev/move-to"),
            fault,
        );
        let mut released = labelled.clone();
        released["metadata"]["finalizers"] = json!([]);
        replicas(Some(labelled), released, "");
        replicas(
            Some(replica("a", "other")),
            replica("b", "other"),
            "only replicas with spec.nodeName a",
        );
    }

    #[test]
    fn policy_of_the_chart_has_the_labels_of_agents() {
        let names = AGENT_LABELS.map(|name| format!("'{name}'")).join(", ");
        assert!(POLICY.contains(&format!("expression: \"[{names}]\"")), "{names}");
    }
}
