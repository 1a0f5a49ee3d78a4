//! Reviews and token requests: kinds that are answered, but not stored.

use serde_json::{Value, json};

use super::{CORE, Facts};
use crate::object;
use rooflet_schema::{FieldError, names};

/// Kind of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Review {
    SelfSubject,
    Token,
    LocalSubjectAccess,
    SelfSubjectAccess,
    SelfSubjectRules,
    SubjectAccess,
    /// Request for a token, a subresource of ServiceAccount.
    TokenRequest,
}

/// Lifetime of tokens whose request has no expiration, in seconds.
const LIFETIME_DEFAULT: i64 = 3600;
const LIFETIME_MIN: i64 = 600;
const LIFETIME_MAX: i64 = 1 << 32;

const AUTHENTICATION: Facts = Facts {
    group: "authentication.k8s.io",
    namespaced: false,
    ..CORE
};

const AUTHORIZATION: Facts = Facts {
    group: "authorization.k8s.io",
    namespaced: false,
    ..CORE
};

impl Review {
    pub(super) const fn facts(self) -> Facts {
        match self {
            Self::SelfSubject => Facts {
                plural: "selfsubjectreviews",
                singular: "selfsubjectreview",
                kind: "SelfSubjectReview",
                definition: "io.k8s.api.authentication.v1.SelfSubjectReview",
                ..AUTHENTICATION
            },
            Self::Token => Facts {
                plural: "tokenreviews",
                singular: "tokenreview",
                kind: "TokenReview",
                definition: "io.k8s.api.authentication.v1.TokenReview",
                ..AUTHENTICATION
            },
            Self::LocalSubjectAccess => Facts {
                plural: "localsubjectaccessreviews",
                singular: "localsubjectaccessreview",
                kind: "LocalSubjectAccessReview",
                namespaced: true,
                definition: "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
                ..AUTHORIZATION
            },
            Self::SelfSubjectAccess => Facts {
                plural: "selfsubjectaccessreviews",
                singular: "selfsubjectaccessreview",
                kind: "SelfSubjectAccessReview",
                definition: "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
                ..AUTHORIZATION
            },
            Self::SelfSubjectRules => Facts {
                plural: "selfsubjectrulesreviews",
                singular: "selfsubjectrulesreview",
                kind: "SelfSubjectRulesReview",
                definition: "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
                ..AUTHORIZATION
            },
            Self::SubjectAccess => Facts {
                plural: "subjectaccessreviews",
                singular: "subjectaccessreview",
                kind: "SubjectAccessReview",
                definition: "io.k8s.api.authorization.v1.SubjectAccessReview",
                ..AUTHORIZATION
            },
            Self::TokenRequest => Facts {
                plural: "tokenrequests",
                singular: "tokenrequest",
                kind: "TokenRequest",
                definition: "io.k8s.api.authentication.v1.TokenRequest",
                ..AUTHENTICATION
            },
        }
    }

    pub(super) fn default(self, object: &mut Value) {
        if self == Self::TokenRequest && object["spec"].get("expirationSeconds").is_none() {
            object["spec"]["expirationSeconds"] = json!(LIFETIME_DEFAULT);
        }
    }

    pub(super) fn validate(self, review: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        match self {
            Self::SelfSubject | Self::Token | Self::SelfSubjectRules => return errors,
            Self::TokenRequest => {
                check_lifetime(&review["spec"]["expirationSeconds"], &mut errors);
                return errors;
            }
            Self::SelfSubjectAccess => check_attributes(review, &mut errors),
            Self::SubjectAccess | Self::LocalSubjectAccess => {
                check_attributes(review, &mut errors);
                check_subject(review, &mut errors);
            }
        }
        check_selectors(&review["spec"]["resourceAttributes"], &mut errors);
        self.check_metadata(review, &mut errors);
        errors
    }

    fn check_metadata(self, review: &Value, errors: &mut Vec<FieldError>) {
        let is_local = self == Self::LocalSubjectAccess;
        let metadata = review["metadata"].as_object();
        let is_allowed = |field: &str| field == "managedFields" || is_local && field == "namespace";
        if metadata
            .into_iter()
            .flatten()
            .any(|(field, _)| !is_allowed(field))
        {
            let detail = if is_local {
                "must be empty except for namespace"
            } else {
                "must be empty"
            };
            errors.push(FieldError::invalid("metadata", &review["metadata"], detail));
        }
        if !is_local {
            return;
        }
        let spec = &review["spec"];
        let given = object::text(spec, &["resourceAttributes", "namespace"]);
        if spec.get("resourceAttributes").is_some() && given != object::namespace(review) {
            errors.push(FieldError::invalid_text(
                "spec.resourceAttributes.namespace",
                given,
                "must match metadata.namespace",
            ));
        }
        if let Some(path) = spec.get("nonResourceAttributes") {
            errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                path,
                "disallowed on this kind of request",
            ));
        }
    }
}

fn check_lifetime(seconds: &Value, errors: &mut Vec<FieldError>) {
    let detail = match seconds.as_i64().unwrap_or_default() {
        ..LIFETIME_MIN => "may not specify a duration less than 10 minutes",
        LIFETIME_MIN..=LIFETIME_MAX => return,
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    errors.push(FieldError::invalid("spec.expirationSeconds", seconds, detail));
}

fn check_attributes(review: &Value, errors: &mut Vec<FieldError>) {
    let spec = &review["spec"];
    match (spec.get("resourceAttributes"), spec.get("nonResourceAttributes")) {
        (Some(_), Some(path)) => errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            path,
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => errors.push(FieldError::invalid(
            "spec.resourceAttributes",
            &Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        (Some(_), None) | (None, Some(_)) => {}
    }
}

fn check_subject(review: &Value, errors: &mut Vec<FieldError>) {
    let spec = &review["spec"];
    if object::text(spec, &["user"]).is_empty() && spec.get("groups").is_none() {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::invalid("spec.user", &json!(""), detail));
    }
}

/// Checks the field and label selectors of a request.
fn check_selectors(attributes: &Value, errors: &mut Vec<FieldError>) {
    for kind in ["fieldSelector", "labelSelector"] {
        let Some(selector) = attributes.get(kind) else {
            continue;
        };
        let field = format!("spec.resourceAttributes.{kind}");
        let raw = object::text(selector, &["rawSelector"]);
        let requirements = selector["requirements"].as_array();
        match (raw.is_empty(), requirements.is_none_or(Vec::is_empty)) {
            (false, false) => errors.push(FieldError::invalid_text(
                format!("{field}.rawSelector"),
                raw,
                "may not specified at the same time as requirements",
            )),
            (true, true) => errors.push(FieldError::required(
                format!("{field}.requirements"),
                &format!("when {field} is specified, requirements or rawSelector is required"),
            )),
            (true, false) | (false, true) => {}
        }
        for (index, requirement) in requirements.into_iter().flatten().enumerate() {
            check_requirement(
                requirement,
                kind == "labelSelector",
                &format!("{field}.requirements[{index}]"),
                errors,
            );
        }
    }
}

/// Checks a requirement. Unknown operators are permitted: clients may be newer than the server.
fn check_requirement(requirement: &Value, is_label: bool, field: &str, errors: &mut Vec<FieldError>) {
    let values = requirement["values"].as_array().map_or(0, Vec::len);
    match object::text(requirement, &["operator"]) {
        "In" | "NotIn" if values == 0 => errors.push(FieldError::required(
            format!("{field}.values"),
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if values > 0 => errors.push(FieldError::forbidden(
            format!("{field}.values"),
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        _ => {}
    }
    let key = object::text(requirement, &["key"]);
    match (is_label, key.is_empty()) {
        (true, _) => {
            for fault in names::qualified_name(key) {
                errors.push(FieldError::invalid_text(format!("{field}.key"), key, &fault));
            }
        }
        (false, true) => errors.push(FieldError::required(format!("{field}.key"), "must be specified")),
        (false, false) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(review: Review, object: Value, expect: &[&str]) {
        let got: Vec<String> = review.validate(&object).iter().map(FieldError::summary).collect();
        assert_eq!(got, expect, "{object}");
    }

    #[test]
    fn requires_either_resource_or_path() {
        let of = |spec: Value| json!({"metadata": {}, "spec": spec});
        let resource = json!({"verb": "get", "resource": "pods"});
        let path = json!({"verb": "get", "path": "/metrics"});
        let own = Review::SelfSubjectAccess;
        check(own, of(json!({"resourceAttributes": resource})), &[]);
        check(own, of(json!({"nonResourceAttributes": path})), &[]);
        check(
            own,
            of(json!({})),
            &[
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes \
                must be specified",
            ],
        );
        let user = "spec.user: Invalid value: \"\": at least one of user or group must be specified";
        check(
            Review::SubjectAccess,
            of(json!({"resourceAttributes": resource})),
            &[user],
        );
        check(
            Review::SubjectAccess,
            of(json!({"resourceAttributes": resource, "groups": ["a"]})),
            &[],
        );
        check(
            own,
            json!({"metadata": {"name": "a"}, "spec": {"nonResourceAttributes": path}}),
            &["metadata: Invalid value: {\"name\":\"a\"}: must be empty"],
        );
    }

    #[test]
    fn local_review_is_about_its_namespace() {
        let of = |namespace: &str| {
            json!({"metadata": {"namespace": "n"}, "spec": {"user": "alice",
                "resourceAttributes": {"namespace": namespace, "verb": "get", "resource": "pods"}}})
        };
        check(Review::LocalSubjectAccess, of("n"), &[]);
        check(
            Review::LocalSubjectAccess,
            of("m"),
            &["spec.resourceAttributes.namespace: Invalid value: \"m\": must match metadata.namespace"],
        );
    }

    #[test]
    fn token_lives_for_an_hour_and_at_least_ten_minutes() {
        let mut request = json!({"metadata": {}});
        Review::TokenRequest.default(&mut request);
        assert_eq!(request["spec"]["expirationSeconds"], 3600);
        let of = |seconds: i64| json!({"spec": {"expirationSeconds": seconds}});
        check(Review::TokenRequest, of(600), &[]);
        check(
            Review::TokenRequest,
            of(599),
            &["spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"],
        );
        check(
            Review::TokenRequest,
            of((1 << 32) + 1),
            &[
                "spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
            ],
        );
    }

    #[test]
    fn selector_has_a_text_or_requirements() {
        let of = |selector: Value| {
            json!({"metadata": {}, "spec": {"resourceAttributes": {"verb": "list", "resource": "pods",
                "fieldSelector": selector}}})
        };
        let own = Review::SelfSubjectAccess;
        let field = "spec.resourceAttributes.fieldSelector";
        check(own, of(json!({"rawSelector": "a=b"})), &[]);
        check(
            own,
            of(json!({})),
            &[&format!(
                "{field}.requirements: Required value: when {field} is specified, requirements or rawSelector is required"
            )],
        );
        check(
            own,
            of(json!({"requirements": [{"key": "a", "operator": "In"}]})),
            &[&format!(
                "{field}.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            )],
        );
    }
}
