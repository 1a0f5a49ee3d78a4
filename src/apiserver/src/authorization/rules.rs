//! Combination of the built-in rules, authorizers and policies of a server.

use std::fmt;
use std::sync::{Arc, RwLockReadGuard};

use serde_json::Value;

use super::impersonation::LastModes;
use super::stored::StoredPolicy;
use super::{Attributes, Authorizer, Decision, Forbidden, ObjectPolicy, ResourceAttributes, Target};
use crate::authentication::{MASTERS, User};
use crate::endpoints::routes::Route;
use crate::status::{ApiError, GroupResource};
use rooflet_apimachinery::verb::Verb;
use rooflet_rbac::{Evaluation, Policy};
use rooflet_store::Record;

/// See the module documentation.
pub(crate) struct Rules {
    authorizers: Vec<Arc<dyn Authorizer>>,
    policies: Vec<Arc<dyn ObjectPolicy>>,
    rbac: StoredPolicy,
    pub(super) last_modes: LastModes,
}

/// Decision of all rules, with a reason that may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(String),
    Denied(String),
    /// No authorizer and no role has an opinion, so the request is denied.
    NoOpinion(String),
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").finish_non_exhaustive()
    }
}

/// Attributes of a request before its target is resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestHead<'a> {
    pub route: &'a Route,
    pub verb: Verb,
    pub path: &'a str,
    /// Field selector of the query.
    pub field_selector: &'a str,
    /// Name that the field selector of a list or watch requires.
    pub selected: Option<&'a str>,
}

/// User that reads or changes an object.
#[derive(Debug, Clone)]
pub(crate) struct Requestor {
    pub user: Arc<User>,
    pub verb: Verb,
    pub rules: Arc<Rules>,
}

/// Location of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectPlace<'a> {
    pub resource: &'a GroupResource,
    pub version: &'a str,
    pub subresource: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub name: &'a str,
}

impl<'a> ObjectPlace<'a> {
    fn attributes(self) -> ResourceAttributes<'a> {
        ResourceAttributes {
            group: &self.resource.group,
            version: self.version,
            resource: &self.resource.resource,
            subresource: self.subresource,
            namespace: self.namespace,
            name: Some(self.name),
            field_selector: "",
        }
    }
}

impl Rules {
    pub(crate) fn new(
        authorizers: Vec<Arc<dyn Authorizer>>,
        policies: Vec<Arc<dyn ObjectPolicy>>,
        rbac: StoredPolicy,
    ) -> Self {
        Self {
            authorizers,
            policies,
            rbac,
            last_modes: LastModes::default(),
        }
    }

    /// Checks whether the user may make the request.
    pub(crate) fn authorize(&self, user: &User, asked: RequestHead<'_>) -> Result<(), ApiError> {
        if matches!(asked.route, Route::Version | Route::Health { .. }) {
            return Ok(());
        }
        self.require(&Attributes {
            user,
            verb: asked.verb.as_str(),
            target: target_of(asked),
        })
    }

    /// Returns the stored roles and bindings.
    pub(crate) fn policy(&self) -> RwLockReadGuard<'_, Policy> {
        self.rbac.read()
    }

    /// Returns the messages of authorizers that allow the user requests that no role contains.
    pub(crate) fn unlisted(&self, user: &User) -> Vec<String> {
        let authorizers = self.authorizers.iter();
        authorizers
            .filter_map(|authorizer| authorizer.unlisted(user))
            .collect()
    }

    /// Checks that the request is allowed.
    pub(super) fn require(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        match self.evaluate(attributes) {
            Verdict::Allowed(_) => Ok(()),
            Verdict::Denied(reason) | Verdict::NoOpinion(reason) => Err(forbidden(attributes, &reason)),
        }
    }

    /// Decides about a request or a review.
    pub(crate) fn evaluate(&self, attributes: &Attributes<'_>) -> Verdict {
        if attributes.user.is_in(MASTERS) {
            return Verdict::Allowed(String::new());
        }
        let mut reasons = Vec::new();
        for authorizer in &self.authorizers {
            match authorizer.authorize(attributes) {
                Decision::Allow => return Verdict::Allowed(String::new()),
                Decision::Deny(reason) => return Verdict::Denied(reason),
                Decision::NoOpinion(reason) => reasons.push(reason),
            }
        }
        match self.policy().evaluate(attributes) {
            Evaluation::Allowed(reason) => return Verdict::Allowed(reason),
            Evaluation::NoOpinion(reason) => reasons.push(reason),
        }
        reasons.retain(|reason| !reason.is_empty());
        Verdict::NoOpinion(reasons.join("; "))
    }
}

pub(super) fn target_of(asked: RequestHead<'_>) -> Target<'_> {
    let Route::Resource(at) = asked.route else {
        return Target::Path(asked.path);
    };
    // For a Namespace, the namespace attribute is its own name.
    let own = at
        .name
        .as_ref()
        .filter(|_| at.resource == "namespaces" && at.group.is_empty());
    Target::Resource(ResourceAttributes {
        group: &at.group,
        version: &at.version,
        resource: &at.resource,
        subresource: at.subresource.as_deref(),
        namespace: at.namespace.as_ref().or(own).map(String::as_str),
        // As in Kubernetes, a list of one object by its name is a request for this name.
        name: at.name.as_deref().or(asked.selected),
        field_selector: asked.field_selector,
    })
}

/// Returns a forbidden error in the wording of Kubernetes, with an optional reason.
pub(super) fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let hint = match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let Attributes { user, verb, target } = attributes;
    let ResourceAttributes {
        group,
        resource,
        subresource,
        namespace,
        name,
        ..
    } = match target {
        Target::Path(path) => {
            let message = format!("User {:?} cannot {verb} path {path:?}{hint}", user.name);
            return ApiError::forbidden(&GroupResource::new("", ""), "", &message);
        }
        Target::Resource(resource) => resource,
    };
    let qualified = match subresource {
        Some(sub) => format!("{resource}/{sub}"),
        None => (*resource).to_owned(),
    };
    let place = match namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let message = format!(
        "User {:?} cannot {verb} resource {qualified:?} in API group {group:?} {place}{hint}",
        user.name
    );
    ApiError::forbidden(
        &GroupResource::new(group, resource),
        name.unwrap_or_default(),
        &message,
    )
}

impl Requestor {
    /// Checks whether the user may read the stored object. `None` stands for a missing object.
    pub(crate) fn check_stored(
        &self,
        place: ObjectPlace<'_>,
        stored: Option<&Record>,
    ) -> Result<(), ApiError> {
        self.check(place, |policy, resource| {
            let stored = stored.map(Record::json);
            policy.check_stored(&self.user, resource, stored.as_deref())
        })
    }

    /// Checks whether the user may store `new`. `old` is `None` for a new object.
    pub(crate) fn check_change(
        &self,
        place: ObjectPlace<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        if self.user.is_in(MASTERS) {
            return Ok(());
        }
        if old.is_none() && self.verb != Verb::Create {
            // An update or patch creates the object.
            self.rules.require(&Attributes {
                user: &self.user,
                verb: Verb::Create.as_str(),
                target: Target::Resource(place.attributes()),
            })?;
        }
        self.check_grant(place, old, new)?;
        self.check_signer(place, old, new)?;
        self.check(place, |policy, resource| {
            policy.check_change(&self.user, resource, old, new)
        })
    }

    fn check(
        &self,
        place: ObjectPlace<'_>,
        check: impl Fn(&dyn ObjectPolicy, &ResourceAttributes<'_>) -> Result<(), Forbidden>,
    ) -> Result<(), ApiError> {
        if self.user.is_in(MASTERS) {
            return Ok(());
        }
        let resource = place.attributes();
        let restricting = |policy: &&Arc<dyn ObjectPolicy>| policy.restricts(&self.user);
        for policy in self.rules.policies.iter().filter(restricting) {
            check(policy.as_ref(), &resource).map_err(|Forbidden(reason)| {
                let attributes = Attributes {
                    user: &self.user,
                    verb: self.verb.as_str(),
                    target: Target::Resource(resource),
                };
                forbidden(&attributes, &reason)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::routes;
    use rooflet_rbac::AUTHENTICATED;

    fn check_by(rules: &Rules, user: &User, verb: Verb, path: &str) -> Result<(), String> {
        let asked = RequestHead {
            route: &routes::parse(path),
            verb,
            path,
            field_selector: "",
            selected: None,
        };
        let allowed = rules.authorize(user, asked);
        allowed.map_err(|err| err.message().to_owned())
    }

    fn check(user: &User, verb: Verb, path: &str) -> Result<(), String> {
        let rules = Rules::new(Vec::new(), Vec::new(), StoredPolicy::with_defaults());
        check_by(&rules, user, verb, path)
    }

    /// Authorizer with a constant decision.
    struct Fixed(Decision);

    impl Authorizer for Fixed {
        fn authorize(&self, _: &Attributes<'_>) -> Decision {
            self.0.clone()
        }
    }

    #[test]
    fn first_decision_applies_and_no_opinion_denies() {
        let no_opinion = || Decision::NoOpinion("not mine".to_owned());
        let deny = || Decision::Deny("never".to_owned());
        let cases = [
            (vec![Decision::Allow, deny()], None),
            (vec![no_opinion(), Decision::Allow], None),
            (vec![deny(), Decision::Allow], Some(": never")),
            (vec![no_opinion(), no_opinion()], Some(": not mine; not mine")),
            (vec![Decision::NoOpinion(String::new())], Some("")),
        ];
        for (decisions, expect) in cases {
            let shown = format!("{decisions:?}");
            let authorizers = decisions
                .into_iter()
                .map(|decision| Arc::new(Fixed(decision)) as Arc<dyn Authorizer>);
            let rules = Rules::new(authorizers.collect(), Vec::new(), StoredPolicy::default());
            let got = check_by(&rules, &User::new("alice", &[]), Verb::List, "/api/v1/configmaps");
            let expect = expect.map(|hint| {
                format!(
                    "configmaps is forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" at the \
                     cluster scope{hint}"
                )
            });
            assert_eq!(got.err(), expect, "{shown}");
        }
    }

    /// Policy that hides every object and forbids every change.
    struct Closed;

    impl ObjectPolicy for Closed {
        fn check_stored(
            &self,
            _: &User,
            _: &ResourceAttributes<'_>,
            _: Option<&Value>,
        ) -> Result<(), Forbidden> {
            Err(Forbidden("hidden".to_owned()))
        }

        fn check_change(
            &self,
            _: &User,
            _: &ResourceAttributes<'_>,
            _: Option<&Value>,
            _: &Value,
        ) -> Result<(), Forbidden> {
            Err(Forbidden("frozen".to_owned()))
        }
    }

    #[test]
    fn policies_apply_to_all_users_except_masters() {
        let policies: Vec<Arc<dyn ObjectPolicy>> = vec![Arc::new(Closed)];
        let rules = Arc::new(Rules::new(Vec::new(), policies, StoredPolicy::default()));
        let resource = GroupResource::new("g", "gizmos");
        let place = ObjectPlace {
            resource: &resource,
            version: "v1",
            subresource: Some("status"),
            namespace: Some("n"),
            name: "x",
        };
        let by = |groups: &[&str]| Requestor {
            user: Arc::new(User::new("alice", groups)),
            verb: Verb::Patch,
            rules: Arc::clone(&rules),
        };
        let rejected = by(&[]).check_stored(place, None).expect_err("hidden");
        assert_eq!(
            rejected.message(),
            "gizmos.g \"x\" is forbidden: User \"alice\" cannot patch resource \"gizmos/status\" in API group \"g\" in the \
             namespace \"n\": hidden"
        );
        let rejected = by(&[]).check_change(place, Some(&Value::Null), &Value::Null);
        assert!(rejected.expect_err("frozen").message().ends_with(": frozen"));
        assert!(by(&[MASTERS]).check_stored(place, None).is_ok());
        assert!(by(&[MASTERS]).check_change(place, None, &Value::Null).is_ok());
    }

    #[test]
    fn users_may_read_discovery_and_masters_everything() {
        let alice = User::new("alice", &[AUTHENTICATED]);
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
        let root = User::new("root", &[MASTERS]);
        assert_eq!(
            check(&root, Verb::Create, "/api/v1/namespaces/n/configmaps"),
            Ok(())
        );
        assert_eq!(check(&root, Verb::Get, "/metrics"), Ok(()));
    }

    #[test]
    fn anonymous_may_read_only_health_and_version() {
        let check = |verb: Verb, path: &str| {
            check(
                &User::new("system:anonymous", &["system:unauthenticated"]),
                verb,
                path,
            )
        };
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
