//! What a user may ask, by the head of the request alone. What depends on the objects is left to [`super::reach`].

use super::{AUTHENTICATED, BOOTSTRAPPERS, MASTERS, User};
use crate::routes::{ResourcePath, Route};
use crate::status::{ApiError, GroupResource};
use rooflet_api as api;
use rooflet_api::meta::{LEASE_NAMESPACE, lease_name};
use rooflet_apimachinery::selector::FieldSelector;

pub(super) const CSR_GROUP: &str = "certificates.k8s.io";
pub(super) const CSRS: &str = "certificatesigningrequests";
pub(super) const LEASES: &str = "leases";
pub(super) const NODES: &str = "fleetnodes";
pub(super) const REPLICAS: &str = "modelreplicas";

/// A request's head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub route: &'a Route,
    /// The Kubernetes verb.
    pub verb: &'a str,
    pub path: &'a str,
    /// As the query has it.
    pub field_selector: &'a str,
}

/// Decides whether the user may ask this at all.
pub(crate) fn authorize(user: &User, asked: Asked<'_>) -> Result<(), ApiError> {
    let Asked {
        route, verb, path, ..
    } = asked;
    if user.is_in(MASTERS) {
        return Ok(());
    }
    let is_open = match route {
        Route::Version | Route::Health { .. } => true,
        // What the role system:discovery grants.
        Route::CoreVersions
        | Route::Groups
        | Route::Group(_)
        | Route::Resources { .. }
        | Route::OpenApiV2
        | Route::OpenApiIndex
        | Route::OpenApiDocument(_) => verb == "get" && user.is_in(AUTHENTICATED),
        Route::Root | Route::Metrics | Route::Resource(_) | Route::Unknown => false,
    };
    if is_open {
        return Ok(());
    }
    let Route::Resource(at) = route else {
        let why = format!("User {:?} cannot {verb} path {path:?}", user.name);
        return Err(ApiError::forbidden(&GroupResource::new("", ""), "", &why));
    };
    let hint = match resource_rule(user, at, verb, asked.field_selector) {
        Rule::Allowed => return Ok(()),
        Rule::Refused => String::new(),
        Rule::RefusedBecause(why) => format!(": {why}"),
    };
    // A namespace lies in itself.
    let own = at
        .name
        .as_ref()
        .filter(|_| at.resource == "namespaces" && at.group.is_empty());
    let resource = GroupResource::new(&at.group, &at.resource);
    let namespace = at.namespace.as_ref().or(own).map(String::as_str);
    let why = cannot(user, verb, &resource, at.subresource.as_deref(), namespace);
    let name = at.name.as_deref().unwrap_or_default();
    Err(ApiError::forbidden(&resource, name, &format!("{why}{hint}")))
}

/// Kubernetes' words for a refusal.
pub(super) fn cannot(
    user: &User,
    verb: &str,
    resource: &GroupResource,
    subresource: Option<&str>,
    namespace: Option<&str>,
) -> String {
    let qualified = match subresource {
        Some(sub) => format!("{}/{sub}", resource.resource),
        None => resource.resource.clone(),
    };
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    format!(
        "User {:?} cannot {verb} resource {qualified:?} in API group {:?} {place}",
        user.name, resource.group
    )
}

enum Rule {
    /// As far as the head says.
    Allowed,
    Refused,
    RefusedBecause(String),
}

impl Rule {
    fn of(is_allowed: bool, why: impl FnOnce() -> String) -> Self {
        match is_allowed {
            true => Self::Allowed,
            false => Self::RefusedBecause(why()),
        }
    }
}

fn resource_rule(user: &User, at: &ResourcePath, verb: &str, field_selector: &str) -> Rule {
    let node = user.node();
    let is_request = at.group == CSR_GROUP && at.resource == CSRS && at.subresource.is_none();
    if is_request && (node.is_some() || user.is_in(BOOTSTRAPPERS)) {
        // Whose request it is, the object says.
        return match verb {
            "create" | "get" => Rule::Allowed,
            _ => Rule::Refused,
        };
    }
    match node {
        Some(node) => node_rule(node, at, verb, field_selector),
        None => Rule::Refused,
    }
}

/// What an agent may ask: of its own node, of the replicas there, and events.
fn node_rule(node: &str, at: &ResourcePath, verb: &str, field_selector: &str) -> Rule {
    let selects = |field: &str| {
        let parsed = FieldSelector::parse(field_selector).ok();
        parsed.is_some_and(|selector| selector.exact(field) == Some(node))
    };
    let names = |name: &str| at.name.as_deref() == Some(name);
    let subresource = at.subresource.as_deref();
    match (at.group.as_str(), at.resource.as_str(), subresource, verb) {
        (api::GROUP, NODES, None, "create") => Rule::Allowed,
        (api::GROUP, NODES, None, "list" | "watch") => {
            Rule::of(names(node) || selects("metadata.name"), || {
                format!("node {node:?} sees itself only, with the field selector metadata.name={node}")
            })
        }
        (api::GROUP, NODES, None | Some("status"), "get" | "update" | "patch") => {
            Rule::of(names(node), || {
                format!("node {node:?} may read and write its own FleetNode only")
            })
        }
        (api::GROUP, REPLICAS, None, "list" | "watch") => Rule::of(selects("spec.nodeName"), || {
            format!("node {node:?} sees its own replicas only, with the field selector spec.nodeName={node}")
        }),
        (api::GROUP, REPLICAS, None, "create" | "delete")
        | (api::GROUP, REPLICAS, None | Some("status"), "get" | "update" | "patch")
        | ("" | "events.k8s.io", "events", None, "create" | "update" | "patch") => Rule::Allowed,
        ("coordination.k8s.io", LEASES, None, "create") => {
            Rule::of(at.namespace.as_deref() == Some(LEASE_NAMESPACE), || {
                format!("the Lease of node {node:?} lies in the namespace {LEASE_NAMESPACE}")
            })
        }
        ("coordination.k8s.io", LEASES, None, "get" | "update" | "patch") => {
            let lease = lease_name(node);
            let is_own = at.namespace.as_deref() == Some(LEASE_NAMESPACE) && names(&lease);
            Rule::of(is_own, || {
                format!("node {node:?} may read and write its own Lease only, {LEASE_NAMESPACE}/{lease}")
            })
        }
        _ => Rule::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::super::UNAUTHENTICATED;
    use super::*;
    use crate::routes;

    fn check_selected(user: &User, verb: &str, path: &str, field_selector: &str) -> Result<(), String> {
        let asked = Asked {
            route: &routes::parse(path),
            verb,
            path,
            field_selector,
        };
        authorize(user, asked).map_err(|err| err.message().to_owned())
    }

    fn check(user: &User, verb: &str, path: &str) -> Result<(), String> {
        check_selected(user, verb, path, "")
    }

    const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    const NODE: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";
    const REPLICA: &str = "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

    /// Verb, path and field selector, and whether they are allowed.
    type Case = (&'static str, String, &'static str, bool);

    fn check_all(user: &User, cases: Vec<Case>) {
        for (verb, path, selector, expect) in cases {
            let got = check_selected(user, verb, &path, selector);
            assert_eq!(got.is_ok(), expect, "{verb} {path} {selector}: {got:?}");
        }
    }

    #[test]
    fn a_bootstrap_token_asks_for_certificates_and_nothing_else() {
        let user = User::test(
            "system:bootstrap:abcdef",
            &["system:bootstrappers", "system:authenticated"],
        );
        check_all(
            &user,
            vec![
                ("create", CSR.to_owned(), "", true),
                ("get", format!("{CSR}/a"), "", true),
                ("get", "/apis".to_owned(), "", true),
                ("list", CSR.to_owned(), "", false),
                ("watch", CSR.to_owned(), "", false),
                ("update", format!("{CSR}/a"), "", false),
                ("patch", format!("{CSR}/a/approval"), "", false),
                ("update", format!("{CSR}/a/approval"), "", false),
                ("update", format!("{CSR}/a/status"), "", false),
                ("delete", format!("{CSR}/a"), "", false),
                ("create", NODE.to_owned(), "", false),
                ("get", format!("{NODE}/a"), "", false),
                ("list", REPLICA.to_owned(), "spec.nodeName=a", false),
                (
                    "get",
                    "/api/v1/namespaces/kube-system/secrets/x".to_owned(),
                    "",
                    false,
                ),
                ("get", "/metrics".to_owned(), "", false),
            ],
        );
    }

    #[test]
    fn a_node_asks_of_itself_only() {
        let user = User::test("system:node:a", &["system:nodes", "system:authenticated"]);
        let events = "/api/v1/namespaces/default/events";
        check_all(
            &user,
            vec![
                ("create", CSR.to_owned(), "", true),
                ("get", format!("{CSR}/x"), "", true),
                ("list", CSR.to_owned(), "", false),
                ("update", format!("{CSR}/x/approval"), "", false),
                ("create", NODE.to_owned(), "", true),
                ("get", format!("{NODE}/a"), "", true),
                ("patch", format!("{NODE}/a/status"), "", true),
                ("update", format!("{NODE}/a"), "", true),
                ("delete", format!("{NODE}/a"), "", false),
                ("get", format!("{NODE}/b"), "", false),
                ("patch", format!("{NODE}/b/status"), "", false),
                ("list", NODE.to_owned(), "metadata.name=a", true),
                ("watch", NODE.to_owned(), "metadata.name=a", true),
                ("list", NODE.to_owned(), "", false),
                ("list", NODE.to_owned(), "metadata.name=b", false),
                ("list", NODE.to_owned(), "metadata.name!=a", false),
                ("deletecollection", NODE.to_owned(), "metadata.name=a", false),
                ("list", REPLICA.to_owned(), "spec.nodeName=a", true),
                (
                    "watch",
                    "/apis/rooflet.dev/v1alpha1/modelreplicas".to_owned(),
                    "spec.nodeName=a",
                    true,
                ),
                ("list", REPLICA.to_owned(), "spec.nodeName=b", false),
                ("watch", REPLICA.to_owned(), "", false),
                ("get", format!("{REPLICA}/x"), "", true),
                ("create", REPLICA.to_owned(), "", true),
                ("delete", format!("{REPLICA}/x"), "", true),
                ("patch", format!("{REPLICA}/x/status"), "", true),
                ("deletecollection", REPLICA.to_owned(), "spec.nodeName=a", false),
                ("get", format!("{LEASE}/fleetnode-a"), "", true),
                ("patch", format!("{LEASE}/fleetnode-a"), "", true),
                ("create", LEASE.to_owned(), "", true),
                ("patch", format!("{LEASE}/fleetnode-b"), "", false),
                ("delete", format!("{LEASE}/fleetnode-a"), "", false),
                ("list", LEASE.to_owned(), "metadata.name=fleetnode-a", false),
                (
                    "patch",
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases/fleetnode-a".to_owned(),
                    "",
                    false,
                ),
                (
                    "create",
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
                    "",
                    false,
                ),
                ("create", events.to_owned(), "", true),
                ("patch", format!("{events}/x"), "", true),
                (
                    "create",
                    "/apis/events.k8s.io/v1/namespaces/n/events".to_owned(),
                    "",
                    true,
                ),
                ("list", events.to_owned(), "", false),
                (
                    "list",
                    "/apis/rooflet.dev/v1alpha1/modeldeployments".to_owned(),
                    "",
                    false,
                ),
                (
                    "get",
                    "/api/v1/namespaces/default/secrets/x".to_owned(),
                    "",
                    false,
                ),
                (
                    "create",
                    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(),
                    "",
                    false,
                ),
            ],
        );
        assert_eq!(
            check(&user, "list", REPLICA).expect_err("forbidden"),
            "modelreplicas.rooflet.dev is forbidden: User \"system:node:a\" cannot list resource \"modelreplicas\" in API \
             group \"rooflet.dev\" in the namespace \"default\": node \"a\" sees its own replicas only, with the field \
             selector spec.nodeName=a"
        );
    }

    #[test]
    fn a_name_or_a_group_alone_makes_no_node() {
        for user in [
            User::test("system:node:a", &["system:authenticated"]),
            User::test("a", &["system:nodes", "system:authenticated"]),
            User::test("system:node:", &["system:nodes", "system:authenticated"]),
        ] {
            check(&user, "get", &format!("{NODE}/a")).expect_err("forbidden");
            check(&user, "create", CSR).expect_err("forbidden");
        }
    }

    #[test]
    fn users_see_what_is_served_and_masters_everything() {
        let alice = User::test("alice", &[AUTHENTICATED]);
        for path in [
            "/api",
            "/apis",
            "/apis/g",
            "/apis/g/v1",
            "/openapi/v3",
            "/openapi/v3/api/v1",
            "/version",
        ] {
            assert_eq!(check(&alice, "get", path), Ok(()), "{path}");
        }
        assert_eq!(
            check(&alice, "create", "/api/v1/namespaces/n/configmaps").expect_err("forbidden"),
            "configmaps is forbidden: User \"alice\" cannot create resource \"configmaps\" in API group \"\" in the \
             namespace \"n\""
        );
        check(&alice, "get", "/metrics").expect_err("forbidden");
        let root = User::test("root", &[MASTERS]);
        assert_eq!(check(&root, "create", "/api/v1/namespaces/n/configmaps"), Ok(()));
        assert_eq!(check(&root, "get", "/metrics"), Ok(()));
    }

    #[test]
    fn anonymous_sees_health_and_version_only() {
        let check =
            |verb: &str, path: &str| check(&User::test("system:anonymous", &[UNAUTHENTICATED]), verb, path);
        assert_eq!(check("get", "/version"), Ok(()));
        assert_eq!(check("get", "/readyz/ping"), Ok(()));
        assert_eq!(
            check("get", "/apis").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/apis\""
        );
        assert_eq!(
            check("get", "/metrics").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
        assert_eq!(
            check("list", "/apis/g/v1/namespaces/n/gizmos").expect_err("forbidden"),
            "gizmos.g is forbidden: User \"system:anonymous\" cannot list resource \"gizmos\" in API group \"g\" in the \
             namespace \"n\""
        );
        assert_eq!(
            check("get", "/api/v1/namespaces/x").expect_err("forbidden"),
            "namespaces \"x\" is forbidden: User \"system:anonymous\" cannot get resource \"namespaces\" in API group \
             \"\" in the namespace \"x\""
        );
    }
}
