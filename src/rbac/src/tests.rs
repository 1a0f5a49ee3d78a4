//! Decisions, messages and invariants of RBAC.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use escalation::GrantError;
use rule::Rule;

/// Returns a policy with the default roles and bindings, aggregated.
fn default_policy() -> Policy {
    let mut policy = Policy::default();
    for role in defaults::cluster_roles() {
        policy.set(
            Kind::ClusterRole,
            "",
            text(&role, &["metadata", "name"]),
            Some(&role),
        );
    }
    for binding in defaults::cluster_role_bindings() {
        policy.set(
            Kind::ClusterRoleBinding,
            "",
            text(&binding, &["metadata", "name"]),
            Some(&binding),
        );
    }
    policy
}

fn role(rules: Value) -> Value {
    json!({"rules": rules})
}

fn binding(kind: &str, role: &str, subject: Value) -> Value {
    json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": [subject]})
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "name": name})
}

fn on<'a>(namespace: &'a str, resource: &'a str) -> Target<'a> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource)),
        None => (resource, None),
    };
    Target::Resource(ResourceAttributes {
        group: "",
        version: "v1",
        resource,
        subresource,
        namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
        name: None,
        field_selector: "",
    })
}

fn decide(policy: &Policy, user: &User, verb: &str, target: Target<'_>) -> Evaluation {
    policy.evaluate(&Attributes { user, verb, target })
}

fn readers() -> Policy {
    let mut policy = Policy::default();
    let pods = role(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
    policy.set(Kind::Role, "n", "pods", Some(&pods));
    policy.set(Kind::ClusterRole, "", "pods", Some(&pods));
    policy
}

#[test]
fn role_binding_applies_in_its_namespace_and_cluster_role_binding_everywhere() {
    let alice = User::new("alice", &["team"]);
    let mut policy = readers();
    let no_opinion = Evaluation::NoOpinion(String::new());
    assert_eq!(decide(&policy, &alice, "get", on("n", "pods")), no_opinion);
    for (kind, name) in [("Role", "a"), ("ClusterRole", "b")] {
        policy.set(
            Kind::RoleBinding,
            "n",
            name,
            Some(&binding(kind, "pods", user("alice"))),
        );
        let allowed =
            format!("RBAC: allowed by RoleBinding \"{name}/n\" of {kind} \"pods\" to User \"alice\"");
        assert_eq!(
            decide(&policy, &alice, "get", on("n", "pods")),
            Evaluation::Allowed(allowed)
        );
        for other in ["m", ""] {
            assert_eq!(decide(&policy, &alice, "get", on(other, "pods")), no_opinion);
        }
        assert_eq!(decide(&policy, &alice, "list", on("n", "pods")), no_opinion);
        assert_eq!(decide(&policy, &alice, "get", on("n", "pods/status")), no_opinion);
        policy.set(Kind::RoleBinding, "n", name, None);
    }
    let team = json!({"kind": "Group", "name": "team"});
    policy.set(
        Kind::ClusterRoleBinding,
        "",
        "c",
        Some(&binding("ClusterRole", "pods", team)),
    );
    let allowed = "RBAC: allowed by ClusterRoleBinding \"c\" of ClusterRole \"pods\" to Group \"team\"";
    for namespace in ["n", "m", ""] {
        let got = decide(&policy, &alice, "get", on(namespace, "pods"));
        assert_eq!(got, Evaluation::Allowed(allowed.to_owned()), "{namespace}");
    }
}

#[test]
fn service_account_subject_defaults_to_the_namespace_of_the_binding() {
    let mut policy = readers();
    let account =
        |namespace: &str| json!({"kind": "ServiceAccount", "name": "robot", "namespace": namespace});
    let robot = |namespace: &str| User::new(&format!("system:serviceaccount:{namespace}:robot"), &[]);
    let allows = |policy: &Policy, user: &User| {
        matches!(
            decide(policy, user, "get", on("n", "pods")),
            Evaluation::Allowed(_)
        )
    };
    policy.set(
        Kind::RoleBinding,
        "n",
        "a",
        Some(&binding("Role", "pods", account(""))),
    );
    assert!(allows(&policy, &robot("n")) && !allows(&policy, &robot("m")));
    policy.set(
        Kind::RoleBinding,
        "n",
        "a",
        Some(&binding("Role", "pods", account("m"))),
    );
    assert!(!allows(&policy, &robot("n")) && allows(&policy, &robot("m")));
    policy.set(Kind::RoleBinding, "n", "a", None);
    policy.set(
        Kind::ClusterRoleBinding,
        "",
        "a",
        Some(&binding("ClusterRole", "pods", account(""))),
    );
    assert!(!allows(&policy, &robot("n")));
}

#[test]
fn missing_roles_are_part_of_the_reason() {
    let mut policy = Policy::default();
    let alice = User::new("alice", &[]);
    policy.set(
        Kind::ClusterRoleBinding,
        "",
        "a",
        Some(&binding("ClusterRole", "gone", user("alice"))),
    );
    let gone = "clusterrole.rbac.authorization.k8s.io \"gone\" not found";
    assert_eq!(
        decide(&policy, &alice, "get", on("n", "pods")),
        Evaluation::NoOpinion(format!("RBAC: {gone}"))
    );
    policy.set(
        Kind::RoleBinding,
        "n",
        "b",
        Some(&binding("Role", "lost", user("alice"))),
    );
    assert_eq!(
        decide(&policy, &alice, "get", on("n", "pods")),
        Evaluation::NoOpinion(format!(
            "RBAC: [{gone}, role.rbac.authorization.k8s.io \"lost\" not found]"
        ))
    );
}

#[test]
fn rules_match_subresources_names_and_urls_like_kubernetes() {
    let alice = User::new("alice", &[]);
    let allows = |rule: Value, verb: &str, target: Target<'_>| {
        rule::list(&json!([rule]))[0].allows(&Attributes {
            user: &alice,
            verb,
            target,
        })
    };
    let rule = |resources: &[&str]| json!({"verbs": ["get"], "apiGroups": ["*"], "resources": resources});
    for (resources, asked, expect) in [
        (["pods"], "pods", true),
        (["pods"], "pods/log", false),
        (["pods/log"], "pods/log", true),
        (["pods/log"], "pods", false),
        (["pods/*"], "pods/log", false),
        (["*/log"], "pods/log", true),
        (["*/log"], "pods/status", false),
        (["*/log"], "pods", false),
        (["*"], "pods/log", true),
        (["*"], "pods", true),
    ] {
        assert_eq!(
            allows(rule(&resources), "get", on("n", asked)),
            expect,
            "{resources:?} {asked}"
        );
    }
    let mut named = rule(&["pods"]);
    named["resourceNames"] = json!(["a"]);
    for (name, expect) in [(Some("a"), true), (Some("b"), false), (None, false)] {
        let Target::Resource(at) = on("n", "pods") else {
            unreachable!("a resource")
        };
        let target = Target::Resource(ResourceAttributes { name, ..at });
        assert_eq!(allows(named.clone(), "get", target), expect, "{name:?}");
    }
    for (url, path, expect) in [
        ("/healthz", "/healthz", true),
        ("/healthz", "/healthz/ping", false),
        ("/healthz/*", "/healthz/ping", true),
        ("/healthz*", "/healthz", true),
        ("*", "/metrics", true),
        ("/apis", "/apis/", false),
    ] {
        let rule = json!({"verbs": ["get"], "nonResourceURLs": [url]});
        assert_eq!(allows(rule, "get", Target::Path(path)), expect, "{url} {path}");
    }
    assert!(!allows(rule(&["*"]), "get", Target::Path("/metrics")));
}

#[test]
fn default_roles_permit_discovery_and_reviews_of_oneself() {
    let policy = default_policy();
    let allows = |user: &User, verb: &str, target: Target<'_>| {
        matches!(decide(&policy, user, verb, target), Evaluation::Allowed(_))
    };
    let alice = User::new("alice", &["system:authenticated"]);
    let nobody = User::new("system:anonymous", &["system:unauthenticated"]);
    for path in ["/api", "/apis", "/apis/g/v1", "/openapi/v3", "/version"] {
        assert!(allows(&alice, "get", Target::Path(path)), "{path}");
    }
    assert!(!allows(&alice, "get", Target::Path("/metrics")));
    assert!(!allows(&nobody, "get", Target::Path("/apis")));
    assert!(allows(&nobody, "get", Target::Path("/version")));
    let root = User::new("root", &["system:masters"]);
    assert!(allows(&root, "delete", on("n", "secrets")));
}

#[test]
fn message_for_missing_permissions_has_the_wording_of_kubernetes() {
    let mut policy = readers();
    let alice = User::new("alice", &["team", "system:authenticated"]);
    policy.set(
        Kind::RoleBinding,
        "n",
        "a",
        Some(&binding("Role", "pods", user("alice"))),
    );
    policy.set(
        Kind::RoleBinding,
        "n",
        "b",
        Some(&binding("Role", "gone", user("alice"))),
    );
    let rules = rule::list(&json!([
        {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "secrets"]},
        {"verbs": ["get"], "nonResourceURLs": ["/metrics"]},
        {"verbs": ["delete"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}]));
    let rejected = escalation::check(&policy, &alice, "n", &rules).expect_err("not held");
    assert_eq!(
        rejected.to_string(),
        "user \"alice\" (groups=[\"team\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently \
         held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"a\"], Verbs:[\"delete\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}\n\
         {NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}; resolution errors: \
         [roles.rbac.authorization.k8s.io \"gone\" not found]"
    );
    let held = rule::list(&json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
    assert_eq!(escalation::check(&policy, &alice, "n", &held), Ok(()));
    assert!(escalation::check(&policy, &alice, "m", &held).is_err());
}

#[test]
fn comparison_of_rules_is_bounded() {
    let many: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    let rules = rule::list(&json!([{"verbs": many, "apiGroups": many, "resources": many}]));
    let rejected = escalation::check(&Policy::default(), &User::new("alice", &[]), "", &rules);
    let expected = GrantError::TooMany {
        user: "alice".to_owned(),
        count: 1_000_000_000,
    };
    assert_eq!(rejected, Err(expected));
}

fn texts(choices: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(choices).prop_map(str::to_owned), 1..3)
}

const VERBS: &[&str] = &["get", "list", "create", "*"];
const GROUPS: &[&str] = &["", "g", "*"];
const RESOURCES: &[&str] = &["pods", "pods/status", "secrets", "*/status", "*"];
const URLS: &[&str] = &["/a", "/a/b", "/a/*", "/a*", "*"];

/// Returns rules for few resources, so that rules often overlap.
fn any_rule() -> impl Strategy<Value = Rule> {
    let names = prop_oneof![Just(Vec::new()), texts(&["x", "y"])];
    let resources = (texts(VERBS), texts(GROUPS), texts(RESOURCES), names).prop_map(
        |(verbs, api_groups, resources, resource_names)| Rule {
            verbs,
            api_groups,
            resources,
            resource_names,
            ..Rule::default()
        },
    );
    let urls = (texts(VERBS), texts(URLS)).prop_map(|(verbs, non_resource_urls)| Rule {
        verbs,
        non_resource_urls,
        ..Rule::default()
    });
    prop_oneof![4 => resources, 1 => urls]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(any_rule(), 0..5)
}

/// Returns a policy in which alice has these rules in the namespace `n`.
fn policy_of(rules: Vec<Rule>) -> Policy {
    let mut policy = Policy::default();
    policy
        .roles
        .entry(String::new())
        .or_default()
        .insert("r".to_owned(), rules);
    policy.set(
        Kind::RoleBinding,
        "n",
        "b",
        Some(&binding("ClusterRole", "r", user("alice"))),
    );
    policy.set(
        Kind::ClusterRoleBinding,
        "",
        "b",
        Some(&binding("ClusterRole", "r", user("bob"))),
    );
    policy
}

/// Calls `check` with every request for the verbs, groups, resources, names and paths above.
fn for_each_request(user: &User, mut check: impl FnMut(&Attributes<'_>)) {
    for verb in ["get", "list", "create", "delete"] {
        for group in ["", "g", "h"] {
            for (resource, subresource) in [
                ("pods", None),
                ("pods", Some("status")),
                ("pods", Some("log")),
                ("secrets", None),
                ("other", Some("status")),
            ] {
                for name in [None, Some("x"), Some("z")] {
                    let at = ResourceAttributes {
                        group,
                        version: "v1",
                        resource,
                        subresource,
                        namespace: Some("n"),
                        name,
                        field_selector: "",
                    };
                    check(&Attributes {
                        user,
                        verb,
                        target: Target::Resource(at),
                    });
                }
            }
        }
        for path in ["/a", "/a/b", "/ab", "/b"] {
            check(&Attributes {
                user,
                verb,
                target: Target::Path(path),
            });
        }
    }
}

proptest! {
    #[test]
    fn added_rule_takes_no_permission_away(held in rules(), added in any_rule(), at in 0usize..5) {
        let alice = User::new("alice", &[]);
        let before = policy_of(held.clone());
        let mut more = held;
        more.insert(at.min(more.len()), added);
        let after = policy_of(more);
        for_each_request(&alice, |attributes| {
            if let Evaluation::Allowed(_) = before.evaluate(attributes) {
                assert!(
                    matches!(after.evaluate(attributes), Evaluation::Allowed(_)),
                    "{attributes:?}"
                );
            }
        });
    }

    #[test]
    fn grantable_rules_allow_nothing_that_the_user_lacks(held in rules(), granted in rules()) {
        // Rules for paths apply only to users of a ClusterRoleBinding.
        let bob = User::new("bob", &[]);
        let policy = policy_of(held);
        let checked = escalation::check(&policy, &bob, "n", &granted);
        let mut exceeds = false;
        for_each_request(&bob, |attributes| {
            let is_granted = granted.iter().any(|rule| rule.allows(attributes));
            let is_held = matches!(policy.evaluate(attributes), Evaluation::Allowed(_));
            exceeds |= is_granted && !is_held;
        });
        prop_assert!(checked.is_err() || !exceeds, "{granted:?}");
    }

    #[test]
    fn held_rules_are_grantable(held in rules(), index in 0usize..5) {
        let alice = User::new("alice", &[]);
        let granted: Vec<Rule> = held.iter().skip(index).cloned().collect();
        prop_assert_eq!(escalation::check(&policy_of(held), &alice, "n", &granted), Ok(()));
    }
}
