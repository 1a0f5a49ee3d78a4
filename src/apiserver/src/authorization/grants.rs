//! Checks of changes of roles and bindings: a user may grant only permissions that the user holds,
//! unless a role allows the verb `escalate` or `bind`.

use serde_json::{Value, json};

use super::{Attributes, ObjectPlace, Requestor, ResourceAttributes, Target, Verb, Verdict};
use crate::object;
use crate::status::{ApiError, GroupResource};
use rooflet_rbac::escalation::{self, GrantError};
use rooflet_rbac::rule::{self, Rule};
use rooflet_rbac::{self as rbac, RoleRef};

const ESCALATE: &str = "escalate";
const BIND: &str = "bind";

impl Requestor {
    /// Checks that the change of a role or binding grants no permission that the user lacks. Does
    /// not apply to other kinds.
    pub(super) fn check_grant(
        &self,
        place: ObjectPlace<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let is_grant =
            place.resource.group == rbac::GROUP && !old.is_some_and(|old| is_only_collection(old, new));
        match place.resource.resource.as_str() {
            "roles" | "clusterroles" if is_grant => self.check_role(place, old, new),
            "rolebindings" | "clusterrolebindings" if is_grant => self.check_binding(place, new),
            _ => Ok(()),
        }
    }

    fn check_role(&self, place: ObjectPlace<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
        let may_escalate = self.is_allowed(
            ESCALATE,
            ResourceAttributes {
                group: rbac::GROUP,
                version: "*",
                resource: &place.resource.resource,
                subresource: None,
                namespace: place.namespace,
                // The path of a create request has no name.
                name: Some(place.name).filter(|_| self.verb != Verb::Create),
                field_selector: "",
            },
        );
        if may_escalate {
            return Ok(());
        }
        let forbidden = |err: GrantError| ApiError::forbidden(place.resource, place.name, &err.to_string());
        self.check_rules(place, &rule::list(&new["rules"]))
            .map_err(forbidden)?;
        let is_aggregated = |role: &Value| role.get("aggregationRule").is_some();
        if is_aggregated(new) || old.is_some_and(is_aggregated) {
            // A selector can collect every rule.
            let everything = rule::list(&json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]}]));
            self.check_rules(place, &everything).map_err(|_| {
                let reason = "must have cluster-admin privileges to use the aggregationRule";
                ApiError::forbidden(place.resource, place.name, reason)
            })?;
        }
        Ok(())
    }

    fn check_binding(&self, place: ObjectPlace<'_>, new: &Value) -> Result<(), ApiError> {
        // Validation rejects other kinds of roles.
        let Some(role) = RoleRef::of(new) else {
            return Ok(());
        };
        let may_bind = self.is_allowed(
            BIND,
            ResourceAttributes {
                group: object::text(new, &["roleRef", "apiGroup"]),
                version: "*",
                resource: role.resource(),
                subresource: None,
                namespace: place.namespace,
                name: Some(role.name()),
                field_selector: "",
            },
        );
        if may_bind {
            return Ok(());
        }
        let rules = {
            let policy = self.rules.policy();
            let rules = policy.rules_of(&role, place.namespace.unwrap_or_default());
            rules.map(<[Rule]>::to_vec).map_err(|_| {
                ApiError::not_found(&GroupResource::new(rbac::GROUP, role.resource()), role.name())
            })?
        };
        let checked = self.check_rules(place, &rules);
        checked.map_err(|err| ApiError::forbidden(place.resource, place.name, &err.to_string()))
    }

    fn check_rules(&self, place: ObjectPlace<'_>, rules: &[Rule]) -> Result<(), GrantError> {
        let policy = self.rules.policy();
        escalation::check(&policy, &self.user, place.namespace.unwrap_or_default(), rules)
    }

    fn is_allowed(&self, verb: &str, resource: ResourceAttributes<'_>) -> bool {
        let verdict = self.rules.evaluate(&Attributes {
            user: &self.user,
            verb,
            target: Target::Resource(resource),
        });
        matches!(verdict, Verdict::Allowed(_))
    }
}

/// Returns true if only fields differ that the garbage collector changes.
fn is_only_collection(old: &Value, new: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        let metadata = object::metadata_mut(&mut object);
        for field in [
            "ownerReferences",
            "finalizers",
            "managedFields",
            "resourceVersion",
        ] {
            metadata.remove(field);
        }
        object
    };
    without(old) == without(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_finalizers_and_owners_grant_nothing() {
        let old =
            json!({"metadata": {"name": "r", "finalizers": ["a"], "resourceVersion": "1"}, "rules": []});
        let collected = json!({"metadata": {"name": "r", "ownerReferences": [{"uid": "1"}]}, "rules": []});
        assert!(is_only_collection(&old, &collected));
        let labeled = json!({"metadata": {"name": "r", "labels": {"a": "b"}}, "rules": []});
        assert!(!is_only_collection(&old, &labeled));
        assert!(!is_only_collection(
            &old,
            &json!({"metadata": {"name": "r"}, "rules": [{}]})
        ));
    }
}
