//! `details` of a Status.

use serde_json::{Map, Value};

use super::GroupResource;

/// Entry of `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) field: String,
}

impl Cause {
    fn to_json(&self) -> Value {
        let mut json = Map::new();
        let texts = [
            ("reason", &self.reason),
            ("message", &self.message),
            ("field", &self.field),
        ];
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            json.insert(key.to_owned(), Value::from(text.as_str()));
        }
        Value::Object(json)
    }
}

/// `details` of a Status. Empty members are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) uid: String,
    pub(super) causes: Vec<Cause>,
    pub(super) retry_after_seconds: u32,
}

impl Details {
    pub(super) fn of(resource: &GroupResource, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            ..Self::default()
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut json = Map::new();
        let texts = [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ];
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            json.insert(key.to_owned(), Value::from(text.as_str()));
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(Cause::to_json).collect();
            json.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after_seconds > 0 {
            json.insert(
                "retryAfterSeconds".to_owned(),
                Value::from(self.retry_after_seconds),
            );
        }
        Value::Object(json)
    }
}
