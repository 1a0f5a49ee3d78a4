//! Query parameters of writes, deletions, lists and watches, validated with the texts of
//! kube-apiserver.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::endpoints::request::Query;
use crate::status::ApiError;
use rooflet_schema::FieldError;

const META_GROUP: &str = "meta.k8s.io";
const FIELD_MANAGER_MAX_BYTES: usize = 128;

fn invalid(kind: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid(META_GROUP, kind, "", errors))
    }
}

/// Treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options object that the parameters of a write correspond to, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteVerb {
    Create,
    Update,
    Patch,
    /// Patch that is a server-side apply.
    Apply,
}

/// Parameters of create, update and patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
    /// Only for an apply: takes fields of other managers.
    pub forces: bool,
}

impl WriteOptions {
    /// Options of the server's own writes.
    pub(crate) const INTERNAL: Self = Self {
        dry_run: false,
        validation: FieldValidation::Ignore,
        forces: false,
    };

    pub(crate) fn parse(query: &Query, verb: WriteVerb) -> Result<Self, ApiError> {
        let mut errors = Vec::new();
        if verb == WriteVerb::Patch && query.get("force").is_some() {
            errors.push(FieldError::forbidden(
                "force",
                "may not be specified for non-apply patch",
            ));
        }
        let manager = query.get("fieldManager").unwrap_or_default();
        if verb == WriteVerb::Apply && manager.is_empty() {
            errors.push(FieldError::required(
                "fieldManager",
                "is required for apply patch",
            ));
        }
        check_field_manager(manager, &mut errors);
        let dry_run = parse_dry_run(query.all("dryRun").collect(), &mut errors);
        let validation = match query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                errors.push(FieldError::not_supported(
                    "fieldValidation",
                    &Value::from(other),
                    supported,
                ));
                FieldValidation::Warn
            }
        };
        let kind = match verb {
            WriteVerb::Create => "CreateOptions",
            WriteVerb::Update => "UpdateOptions",
            WriteVerb::Patch | WriteVerb::Apply => "PatchOptions",
        };
        invalid(kind, &errors)?;
        Ok(Self {
            dry_run,
            validation,
            forces: verb == WriteVerb::Apply && query.flag("force") == Some(true),
        })
    }
}

/// Returns the field manager of a request: the parameter, or the client's name in the user agent.
pub(crate) fn field_manager(query: &Query, user_agent: &str) -> String {
    if let Some(manager) = query.non_empty("fieldManager") {
        return manager.to_owned();
    }
    let client = user_agent.split('/').next().unwrap_or_default();
    let mut manager = String::new();
    for char in client.chars().filter(|char| !char.is_control()) {
        if manager.len() + char.len_utf8() > FIELD_MANAGER_MAX_BYTES {
            break;
        }
        manager.push(char);
    }
    manager
}

fn check_field_manager(manager: &str, errors: &mut Vec<FieldError>) {
    if manager.len() > FIELD_MANAGER_MAX_BYTES {
        errors.push(FieldError::too_long(
            "fieldManager",
            FIELD_MANAGER_MAX_BYTES as u64,
        ));
    }
    if let Some((position, bad)) = manager.char_indices().find(|(_, char)| char.is_control()) {
        let detail = format!(
            "invalid character U+{:04X} (at position {position})",
            u32::from(bad)
        );
        errors.push(FieldError::invalid_text("fieldManager", manager, &detail));
    }
}

fn parse_dry_run(values: Vec<&str>, errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", &json!(values), ["All"]));
    }
    !values.is_empty()
}

/// Treatment of dependents when an object is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Foreground,
    Background,
    Orphan,
}

/// Expected identity and version of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// Options of a deletion, from its body or otherwise its query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub dry_run: bool,
    /// `None`: the object's finalizers decide, or else the kind's default.
    pub propagation: Option<Propagation>,
    pub preconditions: Preconditions,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteBody {
    #[serde(default)]
    dry_run: Option<Vec<String>>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
}

impl DeleteOptions {
    /// Parses the options. `body` is the decoded body, or `None` if it was empty.
    pub(crate) fn parse(query: &Query, body: Option<Value>) -> Result<Self, ApiError> {
        let parsed = match body {
            Some(body) => serde_json::from_value::<DeleteBody>(body)
                .map_err(|err| ApiError::bad_request(format!("couldn't decode DeleteOptions: {err}")))?,
            None => DeleteBody {
                dry_run: Some(query.all("dryRun").map(str::to_owned).collect()),
                propagation_policy: query.non_empty("propagationPolicy").map(str::to_owned),
                orphan_dependents: query.flag("orphanDependents"),
                preconditions: None,
            },
        };
        let mut errors = Vec::new();
        if let (Some(_), Some(policy)) = (parsed.orphan_dependents, &parsed.propagation_policy) {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid_text("propagationPolicy", policy, detail));
        }
        let propagation = match parsed.propagation_policy.as_deref() {
            None => parsed.orphan_dependents.map(|orphan| {
                if orphan {
                    Propagation::Orphan
                } else {
                    Propagation::Background
                }
            }),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Background") => Some(Propagation::Background),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(
                    "propagationPolicy",
                    &Value::from(other),
                    supported,
                ));
                None
            }
        };
        let dry_run = parsed.dry_run.unwrap_or_default();
        let dry_run = parse_dry_run(dry_run.iter().map(String::as_str).collect(), &mut errors);
        invalid("DeleteOptions", &errors)?;
        Ok(Self {
            dry_run,
            propagation,
            preconditions: parsed.preconditions.unwrap_or_default(),
        })
    }
}

fn parse_integer(query: &Query, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.non_empty(name) else {
        return Ok(None);
    };
    let value = text
        .parse()
        .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?;
    Ok(Some(value))
}

/// Interpretation of a list's resourceVersion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Unset,
    Exact,
    NotOlderThan,
}

/// Parameters of list, watch and deletecollection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub watch: bool,
    pub allow_bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub resource_version: String,
    pub version_match: VersionMatch,
    pub timeout_seconds: Option<u64>,
    pub limit: Option<usize>,
    pub continue_token: String,
}

impl ListOptions {
    pub(crate) fn parse(query: &Query, force_watch: bool) -> Result<Self, ApiError> {
        let text = |name: &str| query.get(name).unwrap_or_default().to_owned();
        let watch = force_watch || query.flag("watch").unwrap_or(false);
        let non_negative = |name: &str| -> Result<Option<u64>, ApiError> {
            Ok(parse_integer(query, name)?
                .and_then(|value| u64::try_from(value).ok())
                .filter(|value| *value > 0))
        };
        let limit = non_negative("limit")?;
        let timeout_seconds = non_negative("timeoutSeconds")?;
        let match_text = text("resourceVersionMatch");
        let resource_version = text("resourceVersion");
        let continue_token = text("continue");
        let send_initial_events = query.flag("sendInitialEvents");
        let request = VersionRequest {
            match_text: &match_text,
            resource_version: &resource_version,
            continue_token: &continue_token,
            send_initial_events,
        };
        let errors = if watch {
            request.watch_errors()
        } else {
            request.list_errors()
        };
        invalid("ListOptions", &errors)?;
        Ok(Self {
            label_selector: text("labelSelector"),
            field_selector: text("fieldSelector"),
            watch,
            allow_bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            send_initial_events,
            version_match: match match_text.as_str() {
                "Exact" => VersionMatch::Exact,
                "NotOlderThan" => VersionMatch::NotOlderThan,
                _ => VersionMatch::Unset,
            },
            resource_version,
            timeout_seconds,
            limit: limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            continue_token,
        })
    }
}

struct VersionRequest<'a> {
    match_text: &'a str,
    resource_version: &'a str,
    continue_token: &'a str,
    send_initial_events: Option<bool>,
}

impl VersionRequest<'_> {
    const MATCH: &'static str = "resourceVersionMatch";

    fn list_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut forbid = |detail: &str| errors.push(FieldError::forbidden(Self::MATCH, detail));
        if !self.match_text.is_empty() {
            if self.resource_version.is_empty() {
                forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !self.continue_token.is_empty() {
                forbid("resourceVersionMatch is forbidden when continue is provided");
            }
            if self.match_text == "Exact" && self.resource_version == "0" {
                forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            if !matches!(self.match_text, "Exact" | "NotOlderThan") {
                let supported = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported(
                    Self::MATCH,
                    &Value::from(self.match_text),
                    supported,
                ));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        errors
    }

    fn watch_errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.send_initial_events.is_some() && self.match_text != "NotOlderThan" {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(Self::MATCH, detail));
        }
        if !self.match_text.is_empty() {
            if self.send_initial_events.is_none() {
                let detail =
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(FieldError::forbidden(Self::MATCH, detail));
            }
            if self.match_text != "NotOlderThan" {
                let value = Value::from(self.match_text);
                errors.push(FieldError::not_supported(Self::MATCH, &value, ["NotOlderThan"]));
            }
            if !self.continue_token.is_empty() {
                let detail = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(Self::MATCH, detail));
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str) -> Result<ListOptions, ApiError> {
        ListOptions::parse(&Query::parse(query), false)
    }

    #[test]
    fn write_option_errors_name_the_options_object() {
        let err =
            WriteOptions::parse(&Query::parse("fieldValidation=Maybe"), WriteVerb::Create).expect_err("bad");
        assert_eq!(
            err.message(),
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Maybe\": \
             supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
        );
        let err = WriteOptions::parse(&Query::parse("dryRun=Some"), WriteVerb::Patch).expect_err("bad");
        assert!(
            err.message()
                .starts_with("PatchOptions.meta.k8s.io \"\" is invalid: dryRun: "),
            "{err}"
        );
        assert!(
            WriteOptions::parse(&Query::parse("dryRun=All"), WriteVerb::Update)
                .expect("good")
                .dry_run
        );
    }

    #[test]
    fn list_options_are_validated_like_in_kubernetes() {
        assert_eq!(list("limit=500&continue=").expect("good").limit, Some(500));
        assert_eq!(
            list("limit=abc").expect_err("bad").code(),
            http::StatusCode::BAD_REQUEST
        );
        let err = list("resourceVersionMatch=Exact").expect_err("no version");
        assert_eq!(err.code(), http::StatusCode::UNPROCESSABLE_ENTITY);
        let err = list("watch=1&sendInitialEvents=true").expect_err("no match");
        assert!(
            err.message()
                .contains("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        );
    }

    #[test]
    fn delete_options_are_read_from_body_or_query() {
        let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u"}});
        let got = DeleteOptions::parse(&Query::default(), Some(body)).expect("good");
        assert_eq!(got.propagation, Some(Propagation::Foreground));
        assert_eq!(got.preconditions.uid.as_deref(), Some("u"));
        let got = DeleteOptions::parse(&Query::parse("propagationPolicy=Orphan"), None).expect("good");
        assert_eq!(got.propagation, Some(Propagation::Orphan));
        let err = DeleteOptions::parse(&Query::parse("propagationPolicy=Maybe"), None).expect_err("bad");
        assert!(
            err.message()
                .contains("supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"")
        );
    }
}
