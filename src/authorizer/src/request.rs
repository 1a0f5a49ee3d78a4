//! Authorization by the attributes of a request. [`object`](mod@crate::object) decides by the
//! content of objects.

use rooflet_api as api;
use rooflet_api::meta::{FLEET_TRUST, FLEET_TRUST_NAMESPACE, LEASE_NAMESPACE, lease_name, probe_config_map};
use rooflet_apimachinery::selector::FieldSelector;
use rooflet_apimachinery::verb::Verb;
use rooflet_apiserver::authorization::{BOOTSTRAPPERS, Decision, ResourceAttributes, User};

use crate::node::node_of;
use crate::{CONFIG_MAPS, CSR_GROUP, CSRS, DEPLOYMENTS, LEASE_GROUP, LEASES, NODES, REPLICAS};

pub(crate) fn decide(user: &User, verb: Verb, at: &ResourceAttributes<'_>) -> Decision {
    let node = node_of(user);
    let is_request = at.group == CSR_GROUP && at.resource == CSRS && at.subresource.is_none();
    if is_request && (node.is_some() || user.is_in(BOOTSTRAPPERS)) {
        // `object` checks that the user is the author of the request.
        return match matches!(verb, Verb::Create | Verb::Get) {
            true => Decision::Allow,
            false => no_opinion(),
        };
    }
    match node {
        Some(node) => decide_for_node(node, verb, at),
        None => no_opinion(),
    }
}

fn no_opinion() -> Decision {
    Decision::NoOpinion(String::new())
}

fn allow_if(is_allowed: bool, reason: impl FnOnce() -> String) -> Decision {
    match is_allowed {
        true => Decision::Allow,
        false => Decision::NoOpinion(reason()),
    }
}

/// Allows requests for the agent's own node and its replicas, and writes of events.
fn decide_for_node(node: &str, verb: Verb, at: &ResourceAttributes<'_>) -> Decision {
    let selects_value = |field: &str, value: &str| {
        let parsed = FieldSelector::parse(at.field_selector).ok();
        parsed.is_some_and(|selector| selector.exact(field) == Some(value))
    };
    let selects = |field: &str| selects_value(field, node);
    let names = |name: &str| at.name == Some(name);
    match (at.group, at.resource, at.subresource, verb) {
        (api::GROUP, NODES, None, Verb::Create) => Decision::Allow,
        (api::GROUP, NODES, None, Verb::List | Verb::Watch) => {
            allow_if(names(node) || selects("metadata.name"), || {
                format!(
                    "node {node:?} may list and watch only itself, with the field selector metadata.name={node}"
                )
            })
        }
        (api::GROUP, NODES, None, Verb::Delete) => allow_if(names(node), || {
            format!("node {node:?} may delete only its own FleetNode")
        }),
        (api::GROUP, NODES, None | Some("status"), Verb::Get | Verb::Update | Verb::Patch) => {
            allow_if(names(node), || {
                format!("node {node:?} may read and write only its own FleetNode")
            })
        }
        (api::GROUP, REPLICAS, None, Verb::List | Verb::Watch) => allow_if(selects("spec.nodeName"), || {
            format!(
                "node {node:?} may list and watch only its own replicas, with the field selector spec.nodeName={node}"
            )
        }),
        (api::GROUP, REPLICAS, None, Verb::Create | Verb::Delete)
        | (api::GROUP, REPLICAS, None | Some("status"), Verb::Get | Verb::Update | Verb::Patch)
        | ("" | "events.k8s.io", "events", None, Verb::Create | Verb::Update | Verb::Patch) => {
            Decision::Allow
        }
        // After a rebuild of the control plane, an agent restores the replicas of existing deployments.
        (api::GROUP, DEPLOYMENTS, None, Verb::Get) => Decision::Allow,
        // The UID of kube-system identifies the fleet.
        ("", "namespaces", None, Verb::Get) => allow_if(names("kube-system"), || {
            format!("node {node:?} may read only the namespace kube-system")
        }),
        // `object` checks the name of a new ConfigMap.
        ("", CONFIG_MAPS, None, Verb::Create) => allow_if(at.namespace == Some(LEASE_NAMESPACE), || {
            format!("node {node:?} may create its ConfigMap only in the namespace {LEASE_NAMESPACE}")
        }),
        ("", CONFIG_MAPS, None, Verb::Update | Verb::Patch) => {
            let map = probe_config_map(node);
            let is_own = at.namespace == Some(LEASE_NAMESPACE) && names(&map);
            allow_if(is_own, || {
                format!("node {node:?} may write only its own ConfigMap, {LEASE_NAMESPACE}/{map}")
            })
        }
        ("", CONFIG_MAPS, None, Verb::Get | Verb::List | Verb::Watch) => {
            let is_named = names(FLEET_TRUST) || selects_value("metadata.name", FLEET_TRUST);
            allow_if(at.namespace == Some(FLEET_TRUST_NAMESPACE) && is_named, || {
                format!("node {node:?} may read only the ConfigMap {FLEET_TRUST_NAMESPACE}/{FLEET_TRUST}")
            })
        }
        (LEASE_GROUP, LEASES, None, Verb::Create) => allow_if(at.namespace == Some(LEASE_NAMESPACE), || {
            format!("node {node:?} may create its Lease only in the namespace {LEASE_NAMESPACE}")
        }),
        (LEASE_GROUP, LEASES, None, Verb::Get | Verb::Update | Verb::Patch) => {
            let lease = lease_name(node);
            let is_own = at.namespace == Some(LEASE_NAMESPACE) && names(&lease);
            allow_if(is_own, || {
                format!("node {node:?} may read and write only its own Lease, {LEASE_NAMESPACE}/{lease}")
            })
        }
        _ => no_opinion(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a path into the attributes of a resource. Returns `None` for other paths.
    fn resource<'a>(path: &'a str, field_selector: &'a str) -> Option<ResourceAttributes<'a>> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
            rest => (None, rest),
        };
        Some(ResourceAttributes {
            group,
            version,
            resource: rest.first()?,
            subresource: rest.get(2).copied(),
            namespace,
            name: rest.get(1).copied(),
            field_selector,
        })
    }

    fn check_selected(user: &User, verb: Verb, path: &str, field_selector: &str) -> Decision {
        let resource = resource(path, field_selector).expect("a resource");
        decide(user, verb, &resource)
    }

    fn check(user: &User, verb: Verb, path: &str) -> Decision {
        check_selected(user, verb, path, "")
    }

    const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    const NODE: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";
    const REPLICA: &str = "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas";
    const DEPLOYMENT: &str = "/apis/rooflet.dev/v1alpha1/namespaces/default/modeldeployments";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

    const PROBES: &str = "/api/v1/namespaces/kube-node-lease/configmaps";
    const CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps";

    /// Verb, path, field selector, and true if the request is allowed.
    type Case = (Verb, String, &'static str, bool);

    fn check_all(user: &User, cases: Vec<Case>) {
        for (verb, path, selector, expect) in cases {
            let got = check_selected(user, verb, &path, selector);
            assert_eq!(
                got == Decision::Allow,
                expect,
                "{verb} {path} {selector}: {got:?}"
            );
        }
    }

    #[test]
    fn bootstrap_token_may_only_request_certificates() {
        let user = User::new(
            "system:bootstrap:abcdef",
            &["system:bootstrappers", "system:authenticated"],
        );
        check_all(
            &user,
            vec![
                (Verb::Create, CSR.to_owned(), "", true),
                (Verb::Get, format!("{CSR}/a"), "", true),
                (Verb::List, CSR.to_owned(), "", false),
                (Verb::Watch, CSR.to_owned(), "", false),
                (Verb::Update, format!("{CSR}/a"), "", false),
                (Verb::Patch, format!("{CSR}/a/approval"), "", false),
                (Verb::Update, format!("{CSR}/a/approval"), "", false),
                (Verb::Update, format!("{CSR}/a/status"), "", false),
                (Verb::Delete, format!("{CSR}/a"), "", false),
                (Verb::Create, NODE.to_owned(), "", false),
                (Verb::Get, format!("{NODE}/a"), "", false),
                (Verb::List, REPLICA.to_owned(), "spec.nodeName=a", false),
                (
                    Verb::Get,
                    "/api/v1/namespaces/kube-system/secrets/x".to_owned(),
                    "",
                    false,
                ),
            ],
        );
    }

    #[test]
    fn node_may_access_only_its_own_resources() {
        let user = User::new("system:node:a", &["system:nodes", "system:authenticated"]);
        let events = "/api/v1/namespaces/default/events";
        check_all(
            &user,
            vec![
                (Verb::Create, CSR.to_owned(), "", true),
                (Verb::Get, format!("{CSR}/x"), "", true),
                (Verb::List, CSR.to_owned(), "", false),
                (Verb::Update, format!("{CSR}/x/approval"), "", false),
                (Verb::Create, NODE.to_owned(), "", true),
                (Verb::Get, format!("{NODE}/a"), "", true),
                (Verb::Patch, format!("{NODE}/a/status"), "", true),
                (Verb::Update, format!("{NODE}/a"), "", true),
                (Verb::Delete, format!("{NODE}/a"), "", true),
                (Verb::Delete, format!("{NODE}/b"), "", false),
                (Verb::Get, format!("{NODE}/b"), "", false),
                (Verb::Patch, format!("{NODE}/b/status"), "", false),
                (Verb::List, NODE.to_owned(), "metadata.name=a", true),
                (Verb::Watch, NODE.to_owned(), "metadata.name=a", true),
                (Verb::List, NODE.to_owned(), "", false),
                (Verb::List, NODE.to_owned(), "metadata.name=b", false),
                (Verb::List, NODE.to_owned(), "metadata.name!=a", false),
                (Verb::DeleteCollection, NODE.to_owned(), "metadata.name=a", false),
                (Verb::List, REPLICA.to_owned(), "spec.nodeName=a", true),
                (
                    Verb::Watch,
                    "/apis/rooflet.dev/v1alpha1/modelreplicas".to_owned(),
                    "spec.nodeName=a",
                    true,
                ),
                (Verb::List, REPLICA.to_owned(), "spec.nodeName=b", false),
                (Verb::Watch, REPLICA.to_owned(), "", false),
                (Verb::Get, format!("{REPLICA}/x"), "", true),
                (Verb::Create, REPLICA.to_owned(), "", true),
                (Verb::Delete, format!("{REPLICA}/x"), "", true),
                (Verb::Patch, format!("{REPLICA}/x/status"), "", true),
                (
                    Verb::DeleteCollection,
                    REPLICA.to_owned(),
                    "spec.nodeName=a",
                    false,
                ),
                (Verb::Get, format!("{CONFIG}/rooflet-fleet-trust"), "", true),
                (Verb::Get, format!("{CONFIG}/other"), "", false),
                (
                    Verb::Watch,
                    CONFIG.to_owned(),
                    "metadata.name=rooflet-fleet-trust",
                    true,
                ),
                (Verb::List, CONFIG.to_owned(), "", false),
                (Verb::Patch, format!("{CONFIG}/rooflet-fleet-trust"), "", false),
                (
                    Verb::Get,
                    "/api/v1/namespaces/default/configmaps/rooflet-fleet-trust".to_owned(),
                    "",
                    false,
                ),
                (Verb::Create, PROBES.to_owned(), "", true),
                (Verb::Patch, format!("{PROBES}/fleetnode-a"), "", true),
                (Verb::Patch, format!("{PROBES}/fleetnode-b"), "", false),
                (Verb::Get, format!("{PROBES}/fleetnode-b"), "", false),
                (Verb::Delete, format!("{PROBES}/fleetnode-a"), "", false),
                (Verb::Create, CONFIG.to_owned(), "", false),
                (Verb::Patch, format!("{CONFIG}/fleetnode-a"), "", false),
                (Verb::Get, format!("{LEASE}/fleetnode-a"), "", true),
                (Verb::Patch, format!("{LEASE}/fleetnode-a"), "", true),
                (Verb::Create, LEASE.to_owned(), "", true),
                (Verb::Patch, format!("{LEASE}/fleetnode-b"), "", false),
                (Verb::Delete, format!("{LEASE}/fleetnode-a"), "", false),
                (Verb::List, LEASE.to_owned(), "metadata.name=fleetnode-a", false),
                (
                    Verb::Patch,
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases/fleetnode-a".to_owned(),
                    "",
                    false,
                ),
                (
                    Verb::Create,
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
                    "",
                    false,
                ),
                (Verb::Create, events.to_owned(), "", true),
                (Verb::Patch, format!("{events}/x"), "", true),
                (
                    Verb::Create,
                    "/apis/events.k8s.io/v1/namespaces/n/events".to_owned(),
                    "",
                    true,
                ),
                (Verb::List, events.to_owned(), "", false),
                (
                    Verb::List,
                    "/apis/rooflet.dev/v1alpha1/modeldeployments".to_owned(),
                    "",
                    false,
                ),
                (Verb::Get, format!("{DEPLOYMENT}/guide"), "", true),
                (Verb::Patch, format!("{DEPLOYMENT}/guide"), "", false),
                (Verb::Get, format!("{DEPLOYMENT}/guide/scale"), "", false),
                (
                    Verb::Get,
                    "/api/v1/namespaces/default/secrets/x".to_owned(),
                    "",
                    false,
                ),
                (
                    Verb::Create,
                    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
                    "",
                    false,
                ),
            ],
        );
        let reason =
            "node \"a\" may list and watch only its own replicas, with the field selector spec.nodeName=a";
        assert_eq!(
            check(&user, Verb::List, REPLICA),
            Decision::NoOpinion(reason.to_owned())
        );
    }

    #[test]
    fn node_requires_both_user_name_and_group() {
        for user in [
            User::new("system:node:a", &["system:authenticated"]),
            User::new("a", &["system:nodes", "system:authenticated"]),
            User::new("system:node:", &["system:nodes", "system:authenticated"]),
        ] {
            assert_eq!(check(&user, Verb::Get, &format!("{NODE}/a")), no_opinion());
            assert_eq!(check(&user, Verb::Create, CSR), no_opinion());
        }
    }
}
