//! Event: one stored form, two groups with different field names.

use std::borrow::Cow;

use serde_json::{Value, json};

use rooflet_schema::{FieldError, names};

/// Pairs of core field and `events.k8s.io/v1` field.
const RENAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];
const SHORT_TEXT_MAX_BYTES: usize = 128;
const NOTE_MAX_BYTES: usize = 1024;

/// Group version of an event. Names of fields and validation differ between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `v1`, the form in which events are stored.
    Core,
    /// `events.k8s.io/v1`.
    Events,
}

/// Returns the text at a path of keys, or an empty text if there is none.
fn text_at<'a>(event: &'a Value, path: &[&str]) -> &'a str {
    let found = path.iter().try_fold(event, |value, key| value.get(key));
    found.and_then(Value::as_str).unwrap_or_default()
}

fn rename(mut object: Value, pairs: impl Iterator<Item = (&'static str, &'static str)>) -> Value {
    if let Some(map) = object.as_object_mut() {
        for (from, to) in pairs {
            if let Some(value) = map.remove(from) {
                map.insert(to.to_owned(), value);
            }
        }
    }
    object
}

/// Converts an event from the stored form to `events.k8s.io/v1`.
pub(crate) fn to_events_v1(event: Value) -> Value {
    let mut event = rename(event, RENAMES.into_iter());
    // `events.k8s.io/v1` omits empty values of these fields.
    if let Some(map) = event.as_object_mut() {
        for field in ["reportingController", "reportingInstance"] {
            if map.get(field).is_some_and(|value| value == "") {
                map.remove(field);
            }
        }
    }
    event
}

/// Converts an event from `events.k8s.io/v1` to the stored form.
pub(crate) fn from_events_v1(event: Value) -> Value {
    rename(event, RENAMES.into_iter().map(|(core, events)| (events, core)))
}

/// Sets members that are serialized even if they are empty.
pub(crate) fn default(event: &mut Value) {
    let Some(map) = event.as_object_mut() else { return };
    for (field, empty) in [
        ("involvedObject", json!({})),
        ("source", json!({})),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("eventTime", Value::Null),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
    ] {
        map.entry(field).or_insert(empty);
    }
}

pub(crate) fn validate(event: &Value, old: Option<&Value>, form: Form) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let is_new_style = event["eventTime"].is_string();
    let namespace = text_at(event, &["metadata", "namespace"]);
    let involved = text_at(event, &["involvedObject", "namespace"]);
    let matches = if is_new_style {
        !involved.is_empty() || matches!(namespace, "" | "default" | "kube-system")
    } else if involved.is_empty() {
        matches!(namespace, "" | "default")
    } else {
        namespace == involved
    };
    if !matches {
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid_text(
            "involvedObject.namespace",
            involved,
            detail,
        ));
    }
    if is_new_style {
        check_new_style(event, form, &mut errors);
    }
    match (form, old) {
        (Form::Events, None) => check_strict_create(event, &mut errors),
        (Form::Events, Some(old)) => check_strict_update(event, old, &mut errors),
        (Form::Core, _) => {}
    }
    errors
}

fn check_new_style(event: &Value, form: Form, errors: &mut Vec<FieldError>) {
    let controller_field = match form {
        Form::Core => "reportingComponent",
        Form::Events => "reportingController",
    };
    let controller = text_at(event, &["reportingComponent"]);
    if controller.is_empty() {
        errors.push(FieldError::required(controller_field, ""));
    }
    for message in names::qualified_name(controller) {
        errors.push(FieldError::invalid_text(controller_field, controller, &message));
    }
    for (field, is_required, max) in [
        ("reportingInstance", true, SHORT_TEXT_MAX_BYTES),
        ("action", true, SHORT_TEXT_MAX_BYTES),
        ("reason", true, SHORT_TEXT_MAX_BYTES),
        ("message", false, NOTE_MAX_BYTES),
    ] {
        let text = text_at(event, &[field]);
        if is_required && text.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        if text.len() > max {
            let detail = format!("can have at most {max} characters");
            errors.push(FieldError::invalid_text(field, "", &detail));
        }
    }
}

fn check_series(event: &Value, errors: &mut Vec<FieldError>) {
    let Some(series) = event.get("series").filter(|series| series.is_object()) else {
        return;
    };
    if series["count"].as_i64().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid_text(
            "series.count",
            "",
            "should be at least 2",
        ));
    }
    if !series["lastObservedTime"].is_string() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

/// Checks creation through `events.k8s.io/v1`, which rejects deprecated fields.
fn check_strict_create(event: &Value, errors: &mut Vec<FieldError>) {
    check_series(event, errors);
    if !event["eventTime"].is_string() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text_at(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid_text(
            "type",
            "",
            &format!("has invalid value: {kind}"),
        ));
    }
    let source_is_set = ["component", "host"]
        .iter()
        .any(|field| !text_at(event, &["source", field]).is_empty());
    for (field, is_set) in [
        ("firstTimestamp", event["firstTimestamp"].is_string()),
        ("lastTimestamp", event["lastTimestamp"].is_string()),
        ("count", event["count"].as_i64().unwrap_or_default() != 0),
        ("source", source_is_set),
    ] {
        if is_set {
            errors.push(FieldError::invalid_text(field, "", "needs to be unset"));
        }
    }
}

/// Checks updates through `events.k8s.io/v1`: only the series may change.
fn check_strict_update(event: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    check_series(event, errors);
    for field in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingComponent",
        "reportingInstance",
    ] {
        if event[field] != old[field] {
            errors.push(FieldError::invalid(field, &event[field], "field is immutable"));
        }
    }
}

/// Returns the value of a selectable field of an event in stored form.
pub(crate) fn selectable_field<'a>(form: Form, event: &'a Value, field: &str) -> Option<Cow<'a, str>> {
    let at = |path: &[&str]| Some(Cow::Borrowed(text_at(event, path)));
    let involved = if form == Form::Events {
        "regarding."
    } else {
        "involvedObject."
    };
    if let Some(member) = field.strip_prefix(involved) {
        return match member {
            "kind" | "namespace" | "name" | "uid" | "apiVersion" | "resourceVersion" | "fieldPath" => {
                at(&["involvedObject", member])
            }
            _ => None,
        };
    }
    match field {
        "reason" => at(&["reason"]),
        "type" => at(&["type"]),
        "reportingComponent" if form == Form::Core => at(&["reportingComponent"]),
        "reportingController" if form == Form::Events => at(&["reportingComponent"]),
        "source" if form == Form::Core => {
            let component = text_at(event, &["source", "component"]);
            if component.is_empty() {
                at(&["reportingComponent"])
            } else {
                Some(Cow::Borrowed(component))
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_convert_field_names() {
        let mut core = json!({"metadata": {"name": "e", "namespace": "n"}, "message": "m", "count": 3});
        default(&mut core);
        let events = to_events_v1(core.clone());
        assert_eq!(
            events.as_object().expect("an object").keys().collect::<Vec<_>>(),
            [
                "deprecatedCount",
                "deprecatedFirstTimestamp",
                "deprecatedLastTimestamp",
                "deprecatedSource",
                "eventTime",
                "metadata",
                "note",
                "regarding"
            ]
        );
        let mut back = from_events_v1(events);
        default(&mut back);
        assert_eq!(back, core);
    }

    #[test]
    fn namespace_must_match_the_involved_object() {
        let check = |event: Value, expect: usize| {
            assert_eq!(validate(&event, None, Form::Core).len(), expect, "{event}")
        };
        check(
            json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}}),
            0,
        );
        check(
            json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "b"}}),
            1,
        );
        check(json!({"metadata": {"namespace": "a"}, "involvedObject": {}}), 1);
        check(
            json!({"metadata": {"namespace": "default"}, "involvedObject": {}}),
            0,
        );
    }

    #[test]
    fn new_style_event_requires_reporter_and_type() {
        let event = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "eventTime": "t",
            "type": "Odd"});
        let got: Vec<String> = validate(&event, None, Form::Events)
            .iter()
            .map(FieldError::summary)
            .collect();
        assert!(
            got.contains(&"reportingController: Required value".to_owned()),
            "{got:?}"
        );
        assert!(got.contains(&"action: Required value".to_owned()), "{got:?}");
        assert!(
            got.contains(&"type: Invalid value: \"\": has invalid value: Odd".to_owned()),
            "{got:?}"
        );
    }
}
