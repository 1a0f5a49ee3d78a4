//! Which objects a list or watch wants: labels, fields, or both.

use serde_json::Value;

use super::object;
use super::resource::Resource;
use super::status::ApiError;
use crate::selector::{FieldSelector, LabelSelector};

/// The selectors of a request.
#[derive(Debug)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// The one name that can match, if there is only one.
    name: Option<String>,
}

impl Selection {
    /// `name` is the object that a path names in a watch.
    pub(crate) fn parse(
        resource: &Resource,
        labels: &str,
        fields: &str,
        name: Option<&str>,
    ) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(labels)
            .map_err(|err| ApiError::bad_request(format!("unable to parse requirement: {err}")))?;
        let fields = FieldSelector::parse(fields).map_err(|err| ApiError::bad_request(err.to_string()))?;
        for field in fields.fields() {
            if !resource.is_selectable(field) {
                return Err(ApiError::bad_request(format!(
                    "field label not supported: {field}"
                )));
            }
        }
        let selected = fields.exact("metadata.name").map(str::to_owned);
        if let (Some(name), false) = (name, fields.is_empty())
            && selected.as_deref() != Some(name)
        {
            return Err(ApiError::bad_request(
                "fieldSelector metadata.name doesn't match requested name",
            ));
        }
        Ok(Self {
            labels,
            fields,
            name: name.map(str::to_owned).or(selected),
        })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && self.name.is_none()
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether a stored object is wanted.
    pub(crate) fn matches(&self, resource: &Resource, stored: &Value) -> bool {
        if self
            .name
            .as_deref()
            .is_some_and(|name| name != object::name(stored))
        {
            return false;
        }
        let field = |field: &str| {
            resource
                .selectable_field(stored, field)
                .unwrap_or_default()
                .into_owned()
        };
        self.labels.matches(stored) && self.fields.matches_with(field)
    }
}
