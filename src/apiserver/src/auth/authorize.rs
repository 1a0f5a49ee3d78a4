//! What a user may ask, by the head of the request alone. What depends on the objects is left to [`super::reach`].

use super::{AUTHENTICATED, BOOTSTRAPPERS, MASTERS, User};
use crate::routes::{ResourcePath, Route};
use crate::status::{ApiError, GroupResource};
use rooflet_api as api;
use rooflet_api::meta::{LEASE_NAMESPACE, lease_name};
use rooflet_apimachinery::selector::FieldSelector;
use rooflet_apimachinery::verb::Verb;

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
    pub verb: Verb,
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
        | Route::OpenApiDocument(_) => verb == Verb::Get && user.is_in(AUTHENTICATED),
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
    verb: Verb,
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

fn resource_rule(user: &User, at: &ResourcePath, verb: Verb, field_selector: &str) -> Rule {
    let node = user.node();
    let is_request = at.group == CSR_GROUP && at.resource == CSRS && at.subresource.is_none();
    if is_request && (node.is_some() || user.is_in(BOOTSTRAPPERS)) {
        // Whose request it is, the object says.
        return match matches!(verb, Verb::Create | Verb::Get) {
            true => Rule::Allowed,
            false => Rule::Refused,
        };
    }
    match node {
        Some(node) => node_rule(node, at, verb, field_selector),
        None => Rule::Refused,
    }
}

/// What an agent may ask: of its own node, of the replicas there, and events.
fn node_rule(node: &str, at: &ResourcePath, verb: Verb, field_selector: &str) -> Rule {
    let selects = |field: &str| {
        let parsed = FieldSelector::parse(field_selector).ok();
        parsed.is_some_and(|selector| selector.exact(field) == Some(node))
    };
    let names = |name: &str| at.name.as_deref() == Some(name);
    let subresource = at.subresource.as_deref();
    match (at.group.as_str(), at.resource.as_str(), subresource, verb) {
        (api::GROUP, NODES, None, Verb::Create) => Rule::Allowed,
        (api::GROUP, NODES, None, Verb::List | Verb::Watch) => {
            Rule::of(names(node) || selects("metadata.name"), || {
                format!("node {node:?} sees itself only, with the field selector metadata.name={node}")
            })
        }
        (api::GROUP, NODES, None | Some("status"), Verb::Get | Verb::Update | Verb::Patch) => {
            Rule::of(names(node), || {
                format!("node {node:?} may read and write its own FleetNode only")
            })
        }
        (api::GROUP, REPLICAS, None, Verb::List | Verb::Watch) => Rule::of(selects("spec.nodeName"), || {
            format!("node {node:?} sees its own replicas only, with the field selector spec.nodeName={node}")
        }),
        (api::GROUP, REPLICAS, None, Verb::Create | Verb::Delete)
        | (api::GROUP, REPLICAS, None | Some("status"), Verb::Get | Verb::Update | Verb::Patch)
        | ("" | "events.k8s.io", "events", None, Verb::Create | Verb::Update | Verb::Patch) => Rule::Allowed,
        ("coordination.k8s.io", LEASES, None, Verb::Create) => {
            Rule::of(at.namespace.as_deref() == Some(LEASE_NAMESPACE), || {
                format!("the Lease of node {node:?} lies in the namespace {LEASE_NAMESPACE}")
            })
        }
        ("coordination.k8s.io", LEASES, None, Verb::Get | Verb::Update | Verb::Patch) => {
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

    fn check_selected(user: &User, verb: Verb, path: &str, field_selector: &str) -> Result<(), String> {
        let asked = Asked {
            route: &routes::parse(path),
            verb,
            path,
            field_selector,
        };
        authorize(user, asked).map_err(|err| err.message().to_owned())
    }

    fn check(user: &User, verb: Verb, path: &str) -> Result<(), String> {
        check_selected(user, verb, path, "")
    }

    const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    const NODE: &str = "/apis/rooflet.dev/v1alpha1/fleetnodes";
    const REPLICA: &str = "/apis/rooflet.dev/v1alpha1/namespaces/default/modelreplicas";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

    /// Verb, path and field selector, and whether they are allowed.
    type Case = (Verb, String, &'static str, bool);

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
                (Verb::Create, CSR.to_owned(), "", true),
                (Verb::Get, format!("{CSR}/a"), "", true),
                (Verb::Get, "/apis".to_owned(), "", true),
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
                (Verb::Get, "/metrics".to_owned(), "", false),
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
                (Verb::Create, CSR.to_owned(), "", true),
                (Verb::Get, format!("{CSR}/x"), "", true),
                (Verb::List, CSR.to_owned(), "", false),
                (Verb::Update, format!("{CSR}/x/approval"), "", false),
                (Verb::Create, NODE.to_owned(), "", true),
                (Verb::Get, format!("{NODE}/a"), "", true),
                (Verb::Patch, format!("{NODE}/a/status"), "", true),
                (Verb::Update, format!("{NODE}/a"), "", true),
                (Verb::Delete, format!("{NODE}/a"), "", false),
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
        assert_eq!(
            check(&user, Verb::List, REPLICA).expect_err("forbidden"),
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
            check(&user, Verb::Get, &format!("{NODE}/a")).expect_err("forbidden");
            check(&user, Verb::Create, CSR).expect_err("forbidden");
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
            assert_eq!(check(&alice, Verb::Get, path), Ok(()), "{path}");
        }
        assert_eq!(
            check(&alice, Verb::Create, "/api/v1/namespaces/n/configmaps").expect_err("forbidden"),
            "configmaps is forbidden: User \"alice\" cannot create resource \"configmaps\" in API group \"\" in the \
             namespace \"n\""
        );
        check(&alice, Verb::Get, "/metrics").expect_err("forbidden");
        let root = User::test("root", &[MASTERS]);
        assert_eq!(
            check(&root, Verb::Create, "/api/v1/namespaces/n/configmaps"),
            Ok(())
        );
        assert_eq!(check(&root, Verb::Get, "/metrics"), Ok(()));
    }

    #[test]
    fn anonymous_sees_health_and_version_only() {
        let check =
            |verb: Verb, path: &str| check(&User::test("system:anonymous", &[UNAUTHENTICATED]), verb, path);
        assert_eq!(check(Verb::Get, "/version"), Ok(()));
        assert_eq!(check(Verb::Get, "/readyz/ping"), Ok(()));
        assert_eq!(
            check(Verb::Get, "/apis").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/apis\""
        );
        assert_eq!(
            check(Verb::Get, "/metrics").expect_err("forbidden"),
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
        );
        assert_eq!(
            check(Verb::List, "/apis/g/v1/namespaces/n/gizmos").expect_err("forbidden"),
            "gizmos.g is forbidden: User \"system:anonymous\" cannot list resource \"gizmos\" in API group \"g\" in the \
             namespace \"n\""
        );
        assert_eq!(
            check(Verb::Get, "/api/v1/namespaces/x").expect_err("forbidden"),
            "namespaces \"x\" is forbidden: User \"system:anonymous\" cannot get resource \"namespaces\" in API group \
             \"\" in the namespace \"x\""
        );
    }
}
