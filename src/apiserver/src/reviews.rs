//! Answers to reviews: access of a user, rules of a user, identity of a user or token.

use serde_json::{Value, json};

use crate::authentication::User;
use crate::authorization::{Attributes, ResourceAttributes, Rules, Target, Verdict};
use crate::object;
use rooflet_rbac::aggregate;

/// Returns `status` of an access review about `user`.
pub(crate) fn access(rules: &Rules, user: &User, spec: &Value) -> Value {
    let selector = field_selector(&spec["resourceAttributes"]["fieldSelector"]);
    let (verb, target) = match spec.get("resourceAttributes") {
        Some(resource) => (
            object::text(resource, &["verb"]),
            Target::Resource(resource_attributes(resource, &selector)),
        ),
        None => (
            object::text(spec, &["nonResourceAttributes", "verb"]),
            Target::Path(object::text(spec, &["nonResourceAttributes", "path"])),
        ),
    };
    let verdict = rules.evaluate(&Attributes { user, verb, target });
    let (allowed, denied, reason) = match verdict {
        Verdict::Allowed(reason) => (true, false, reason),
        Verdict::Denied(reason) => (false, true, reason),
        Verdict::NoOpinion(reason) => (false, false, reason),
    };
    let mut status = json!({"allowed": allowed});
    if denied {
        status["denied"] = json!(true);
    }
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    status
}

/// Returns the user that a SubjectAccessReview is about.
pub(crate) fn subject(spec: &Value) -> User {
    let texts = |list: &Value| {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: object::text(spec, &["user"]).to_owned(),
        uid: object::text(spec, &["uid"]).to_owned(),
        groups: texts(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
    }
}

fn resource_attributes<'a>(resource: &'a Value, field_selector: &'a str) -> ResourceAttributes<'a> {
    let text = |key: &str| object::text(resource, &[key]);
    let present = |key: &str| Some(text(key)).filter(|text| !text.is_empty());
    ResourceAttributes {
        group: text("group"),
        version: present("version").unwrap_or("*"),
        resource: text("resource"),
        subresource: present("subresource"),
        namespace: present("namespace"),
        name: present("name"),
        field_selector,
    }
}

/// Returns a field selector in the form of queries. Requirements that have no such form are
/// dropped, which widens the request.
fn field_selector(selector: &Value) -> String {
    let raw = object::text(selector, &["rawSelector"]);
    if !raw.is_empty() {
        return raw.to_owned();
    }
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    let requirements = selector["requirements"].as_array().into_iter().flatten();
    let terms: Vec<String> = requirements
        .filter_map(|requirement| {
            let operator = match object::text(requirement, &["operator"]) {
                "In" => "=",
                "NotIn" => "!=",
                _ => return None,
            };
            let [value] = requirement["values"].as_array()?.as_slice() else {
                return None;
            };
            let key = object::text(requirement, &["key"]);
            Some(format!("{key}{operator}{}", escape(value.as_str()?)))
        })
        .collect();
    terms.join(",")
}

/// Returns `status` of a SelfSubjectRulesReview.
pub(crate) fn rules(rules: &Rules, user: &User, namespace: &str) -> Value {
    let policy = rules.policy();
    let held = policy.held_by(user, namespace);
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    for rule in &held.rules {
        if !rule.resources.is_empty() {
            let mut shown =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resources.push(shown);
        }
        if !rule.non_resource_urls.is_empty() {
            urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let unlisted = rules.unlisted(user);
    let mut errors = unlisted.clone();
    errors.extend(held.missing.iter().map(ToString::to_string));
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": !unlisted.is_empty()});
    if !errors.is_empty() {
        status["evaluationError"] = json!(aggregate(errors));
    }
    status
}

/// Returns the user as in `status` of a SelfSubjectReview or TokenReview.
pub(crate) fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::stored::StoredPolicy;
    use crate::authorization::{Authorizer, Decision};
    use std::sync::Arc;

    /// Authorizer that denies alice everything, and that cannot list the permissions of nodes.
    struct Own;

    impl Authorizer for Own {
        fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
            let field_selector = match attributes.target {
                Target::Resource(resource) => resource.field_selector.to_owned(),
                Target::Path(_) => String::new(),
            };
            match attributes.user.name.as_str() {
                "alice" => Decision::Deny("never".to_owned()),
                _ => Decision::NoOpinion(field_selector),
            }
        }

        fn unlisted(&self, user: &User) -> Option<String> {
            (user.name == "node").then(|| "some rules are not listed".to_owned())
        }
    }

    fn own_rules(policy: StoredPolicy) -> Rules {
        Rules::new(vec![Arc::new(Own)], Vec::new(), policy)
    }

    #[test]
    fn access_review_contains_the_decision_and_its_reason() {
        let rules = own_rules(StoredPolicy::with_defaults());
        let spec = json!({"resourceAttributes": {"verb": "use", "resource": "pods", "namespace": "n"}});
        let of = |name: &str, groups: &[&str]| access(&rules, &User::new(name, groups), &spec);
        assert_eq!(
            of("alice", &[]),
            json!({"allowed": false, "denied": true, "reason": "never"})
        );
        assert_eq!(of("bob", &[]), json!({"allowed": false}));
        assert_eq!(of("root", &["system:masters"]), json!({"allowed": true}));
        let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/version"}});
        assert_eq!(
            access(&rules, &User::new("bob", &["system:authenticated"]), &path),
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"system:discovery\" of ClusterRole \
                \"system:discovery\" to Group \"system:authenticated\""})
        );
    }

    #[test]
    fn authorizers_receive_field_selectors() {
        let rules = own_rules(StoredPolicy::default());
        let reason = |selector: Value| {
            let spec = json!({"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": selector}});
            access(&rules, &User::new("bob", &[]), &spec)["reason"].clone()
        };
        assert_eq!(
            reason(json!({"rawSelector": "spec.nodeName=a"})),
            "spec.nodeName=a"
        );
        let requirements = json!([{"key": "a", "operator": "In", "values": ["x=y"]},
            {"key": "b", "operator": "NotIn", "values": ["z"]}, {"key": "c", "operator": "Exists"}]);
        assert_eq!(reason(json!({"requirements": requirements})), "a=x\\=y,b!=z");
    }

    #[test]
    fn rules_review_is_incomplete_if_an_authorizer_cannot_list_rules() {
        let rules = own_rules(StoredPolicy::with_defaults());
        let of = |name: &str| super::rules(&rules, &User::new(name, &["system:authenticated"]), "n");
        let bob = of("bob");
        assert_eq!(bob["incomplete"], false);
        assert_eq!(bob.get("evaluationError"), None);
        assert!(
            bob["resourceRules"].to_string().contains("selfsubjectreviews"),
            "{bob}"
        );
        assert!(bob["nonResourceRules"].to_string().contains("/openapi"), "{bob}");
        let node = of("node");
        assert_eq!(
            (&node["incomplete"], &node["evaluationError"]),
            (&json!(true), &json!("some rules are not listed"))
        );
    }
}
