//! `metav1.Status`: error responses of the API server, with the texts of kube-apiserver.
//!
//! `details.kind` is the plural resource for NotFound, AlreadyExists, Conflict and Forbidden, and
//! the Kind for Invalid.

mod details;

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value, json};

use self::details::{Cause, Details};
use rooflet_apimachinery::fields::Conflicts;
use rooflet_apimachinery::verb::Verb;
use rooflet_schema::{FieldError, aggregate};

/// Group and plural resource. Displayed as `gizmos.example.com`, or `configmaps` in the core group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: String,
    pub resource: String,
}

impl GroupResource {
    pub fn new(group: &str, resource: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
        }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.resource, &self.group)
    }
}

fn write_qualified(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() {
        f.write_str(name)
    } else {
        write!(f, "{name}.{group}")
    }
}

/// Machine-readable reason of a Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    AlreadyExists,
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    InternalError,
    Invalid,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    RequestEntityTooLarge,
    Timeout,
    TooManyRequests,
    Unauthorized,
    UnsupportedMediaType,
    /// Omitted from the Status, like in kube-apiserver.
    Unknown,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyExists => "AlreadyExists",
            Self::BadRequest => "BadRequest",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::Forbidden => "Forbidden",
            Self::InternalError => "InternalError",
            Self::Invalid => "Invalid",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::NotFound => "NotFound",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::Unauthorized => "Unauthorized",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Unknown => "",
        }
    }
}

/// Error response.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    code: StatusCode,
    reason: Reason,
    message: String,
    details: Option<Details>,
    /// Token that continues an expired list inconsistently.
    continue_token: Option<String>,
    /// True for text/plain instead of a Status, for paths outside of the API.
    plain: bool,
    /// True if the request may succeed with the current definition.
    definition_changed: bool,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    fn new(code: StatusCode, reason: Reason, message: String, details: Option<Details>) -> Self {
        Self(Box::new(Parts {
            code,
            reason,
            message,
            details,
            continue_token: None,
            plain: false,
            definition_changed: false,
        }))
    }

    fn plain(code: StatusCode, reason: Reason, message: &str) -> Self {
        let mut err = Self::new(code, reason, message.to_owned(), None);
        err.0.plain = true;
        err
    }

    /// Returns the error of a path that no group serves. Clients convert the plain text to "the
    /// server could not find the requested resource".
    pub(crate) fn no_route() -> Self {
        Self::plain(StatusCode::NOT_FOUND, Reason::NotFound, "404 page not found\n")
    }

    /// Returns the error of a method that no route of a built-in path has.
    pub(crate) fn no_such_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource".to_owned(),
            Some(Details::default()),
        )
    }

    /// Returns the error of a patch in a format that no route of a built-in kind reads.
    pub(crate) fn unsupported_patch_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::UnsupportedMediaType,
            "415: Unsupported Media Type".to_owned(),
            Some(Details::default()),
        )
    }

    /// Returns the error of a request beyond the limit of in-flight requests.
    pub(crate) fn too_many_requests() -> Self {
        let mut err = Self::plain(
            StatusCode::TOO_MANY_REQUESTS,
            Reason::TooManyRequests,
            "Too many requests, please try again later.\n",
        );
        err.0.details = Some(Details {
            retry_after_seconds: 1,
            ..Details::default()
        });
        err
    }

    /// Returns the error of a client that sent too many wrong bootstrap tokens. Its status is 401,
    /// because clients would repeat a request with 429 by themselves.
    pub(crate) fn too_many_wrong_tokens(wait: Duration) -> Self {
        let seconds = wait.as_secs() + 1;
        let message = format!(
            "too many wrong bootstrap tokens from this address: check the token, and try again in {seconds} s"
        );
        Self::new(StatusCode::UNAUTHORIZED, Reason::Unauthorized, message, None)
    }

    /// Returns the error of a resource that a served group does not have.
    pub(crate) fn resource_not_served() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self::new(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            message,
            Some(Details::default()),
        )
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {name:?} not found");
        Self::new(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            message,
            Some(Details::of(resource, name)),
        )
    }

    pub(crate) fn already_exists(resource: &GroupResource, name: &str, is_being_deleted: bool) -> Self {
        let prefix = if is_being_deleted {
            "object is being deleted: "
        } else {
            ""
        };
        let message = format!("{prefix}{resource} {name:?} already exists");
        Self::new(
            StatusCode::CONFLICT,
            Reason::AlreadyExists,
            message,
            Some(Details::of(resource, name)),
        )
    }

    /// Returns the error of a create for which all attempts to generate a unique name failed.
    pub(crate) fn generate_name_conflict(resource: &GroupResource, name: &str) -> Self {
        let message = format!(
            "{resource} {name:?} already exists, the server was not able to generate a unique name for the object"
        );
        let details = Details {
            retry_after_seconds: 1,
            ..Details::of(resource, name)
        };
        Self::new(
            StatusCode::CONFLICT,
            Reason::AlreadyExists,
            message,
            Some(details),
        )
    }

    pub fn conflict(resource: &GroupResource, name: &str, reason: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {reason}");
        Self::new(
            StatusCode::CONFLICT,
            Reason::Conflict,
            message,
            Some(Details::of(resource, name)),
        )
    }

    /// Returns the conflict of a request whose resourceVersion is not the current one.
    pub fn stale(resource: &GroupResource, name: &str) -> Self {
        let reason =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, reason)
    }

    /// Returns the conflicts of a server-side apply.
    pub(crate) fn apply_conflicts(conflicts: &Conflicts) -> Self {
        let causes = conflicts
            .0
            .iter()
            .map(|conflict| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: conflict.path(),
            })
            .collect();
        let details = Details {
            causes,
            ..Details::default()
        };
        Self::new(
            StatusCode::CONFLICT,
            Reason::Conflict,
            conflicts.to_string(),
            Some(details),
        )
    }

    /// Returns the conflict of a write whose definition changed after the object was prepared.
    pub(crate) fn definition_changed(resource: &GroupResource) -> Self {
        let message = format!("the definition of {resource} has changed concurrently; please try again");
        let mut err = Self::new(StatusCode::CONFLICT, Reason::Conflict, message, None);
        err.0.definition_changed = true;
        err
    }

    pub(crate) fn is_definition_change(&self) -> bool {
        self.0.definition_changed
    }

    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let kind_name = GroupResource::new(group, kind);
        let message = format!("{kind_name} {name:?} is invalid: {}", aggregate(errors));
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.reason.as_str().to_owned(),
                message: error.message.clone(),
                field: error.field.clone(),
            })
            .collect();
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        };
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::Invalid,
            message,
            Some(details),
        )
    }

    /// Returns the error of a JSON patch that does not apply.
    pub(crate) fn patch_does_not_apply() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::Invalid,
            message,
            Some(Details::default()),
        )
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Reason::BadRequest, message.into(), None)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            Reason::Unauthorized,
            "Unauthorized".to_owned(),
            None,
        )
    }

    /// Returns the error of a forbidden request. `reason` follows "is forbidden: ".
    pub fn forbidden(resource: &GroupResource, name: &str, reason: &str) -> Self {
        let message = if resource.resource.is_empty() {
            format!("forbidden: {reason}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {reason}")
        } else {
            format!("{resource} {name:?} is forbidden: {reason}")
        };
        Self::new(
            StatusCode::FORBIDDEN,
            Reason::Forbidden,
            message,
            Some(Details::of(resource, name)),
        )
    }

    /// Creates the error of an admission policy. `reason` is one that a policy may have.
    pub(crate) fn denied(resource: &GroupResource, name: &str, reason: &str, message: &str) -> Self {
        let mut err = Self::forbidden(resource, name, message);
        (err.0.code, err.0.reason) = match reason {
            "Forbidden" => (StatusCode::FORBIDDEN, Reason::Forbidden),
            "RequestEntityTooLarge" => (StatusCode::PAYLOAD_TOO_LARGE, Reason::RequestEntityTooLarge),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, Reason::Invalid),
        };
        if let Some(details) = &mut err.0.details {
            details.causes.push(Cause {
                reason: String::new(),
                message: message.to_owned(),
                field: String::new(),
            });
        }
        err
    }

    /// Creates the error of mutating admission policies. As in kube-apiserver, the code of an invalid
    /// request is 403.
    pub(crate) fn not_mutated(
        resource: &GroupResource,
        name: &str,
        messages: Vec<String>,
        is_invalid: bool,
    ) -> Self {
        let mut err = Self::forbidden(resource, name, "");
        err.0.message = messages.first().cloned().unwrap_or_default();
        if is_invalid {
            err.0.reason = Reason::Invalid;
        }
        if let Some(details) = &mut err.0.details {
            details.causes.extend(messages.into_iter().map(|message| Cause {
                reason: String::new(),
                message,
                field: String::new(),
            }));
        }
        err
    }

    pub(crate) fn namespace_terminating(resource: &GroupResource, name: &str, namespace: &str) -> Self {
        let reason =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut err = Self::forbidden(resource, name, &reason);
        if let Some(details) = &mut err.0.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
        }
        err
    }

    pub fn method_not_allowed(resource: &GroupResource, verb: Verb) -> Self {
        // kube-apiserver has no verb for other methods.
        let verb = if verb == Verb::Other { "" } else { verb.as_str() };
        let message = format!("{verb} is not supported on resources of kind \"{resource}\"");
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Reason::MethodNotAllowed,
            message,
            Some(Details::of(resource, "")),
        )
    }

    pub(crate) fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            accepted.join(", ")
        );
        Self::new(StatusCode::NOT_ACCEPTABLE, Reason::NotAcceptable, message, None)
    }

    /// Returns the error of a built-in kind's route if the request accepts none of its media types.
    pub(crate) fn no_representation(available: &[&str]) -> Self {
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: {}",
            available.join(", ")
        );
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            Reason::NotAcceptable,
            message,
            Some(Details::default()),
        )
    }

    pub(crate) fn not_acceptable_because(message: String) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, Reason::NotAcceptable, message, None)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::UnsupportedMediaType,
            message,
            None,
        )
    }

    pub fn too_large(detail: &str) -> Self {
        let message = format!("Request entity too large: {detail}");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Reason::RequestEntityTooLarge,
            message,
            None,
        )
    }

    pub fn expired(message: String) -> Self {
        Self::new(StatusCode::GONE, Reason::Expired, message, None)
    }

    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    pub(crate) fn too_large_resource_version(requested: u64, current: u64) -> Self {
        let details = Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 1,
            ..Details::default()
        };
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            Reason::Timeout,
            message,
            Some(details),
        )
    }

    pub(crate) fn internal(reason: impl fmt::Display) -> Self {
        let cause = Cause {
            reason: String::new(),
            message: reason.to_string(),
            field: String::new(),
        };
        let details = Details {
            causes: vec![cause],
            ..Details::default()
        };
        let message = format!("Internal error occurred: {reason}");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            Reason::InternalError,
            message,
            Some(details),
        )
    }

    /// Returns an error with status 500 and without a reason, as kube-apiserver does.
    pub(crate) fn untyped(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Unknown,
            message.into(),
            None,
        )
    }

    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    pub fn is_plain(&self) -> bool {
        self.0.plain
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.0
            .details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0)
    }

    /// Returns the Status object.
    pub(crate) fn to_json(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.0.continue_token {
            metadata.insert("continue".to_owned(), Value::from(token.as_str()));
        }
        let mut status = Map::new();
        status.insert("kind".to_owned(), Value::from("Status"));
        status.insert("apiVersion".to_owned(), Value::from("v1"));
        status.insert("metadata".to_owned(), Value::Object(metadata));
        status.insert("status".to_owned(), Value::from("Failure"));
        status.insert("message".to_owned(), Value::from(self.0.message.as_str()));
        if self.0.reason != Reason::Unknown {
            status.insert("reason".to_owned(), Value::from(self.0.reason.as_str()));
        }
        if let Some(details) = &self.0.details {
            status.insert("details".to_owned(), details.to_json());
        }
        status.insert("code".to_owned(), Value::from(self.0.code.as_u16()));
        Value::Object(status)
    }
}

/// Returns the Status of a deletion that removed the object immediately.
pub(crate) fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Value {
    let details = Details {
        uid: uid.to_owned(),
        ..Details::of(resource, name)
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details.to_json()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_schema::CauseReason;

    fn gizmos() -> GroupResource {
        GroupResource::new("example.com", "gizmos")
    }

    #[test]
    fn not_found_contains_the_plural_resource() {
        assert_eq!(
            ApiError::not_found(&gizmos(), "x").to_json(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "gizmos.example.com \"x\" not found", "reason": "NotFound",
                "details": {"name": "x", "group": "example.com", "kind": "gizmos"}, "code": 404
            })
        );
    }

    #[test]
    fn invalid_contains_the_kind_and_brackets_several_errors() {
        let error = |field: &str, message: &str| FieldError {
            reason: CauseReason::Required,
            field: field.to_owned(),
            message: message.to_owned(),
        };
        let one = [error("spec.a", "Required value")];
        let err = ApiError::invalid("example.com", "Gizmo", "x", &one);
        assert_eq!(
            err.message(),
            "Gizmo.example.com \"x\" is invalid: spec.a: Required value"
        );
        let two = [
            error("spec.a", "Required value"),
            error("spec.b", "Required value"),
        ];
        let err = ApiError::invalid("example.com", "Gizmo", "x", &two);
        assert_eq!(
            err.message(),
            "Gizmo.example.com \"x\" is invalid: [spec.a: Required value, spec.b: Required value]"
        );
        assert_eq!(err.to_json()["details"]["kind"], "Gizmo");
        assert_eq!(
            err.to_json()["details"]["causes"][1]["reason"],
            "FieldValueRequired"
        );
    }

    #[test]
    fn untyped_error_has_no_reason() {
        assert_eq!(ApiError::untyped("odd").to_json().get("reason"), None);
    }
}
