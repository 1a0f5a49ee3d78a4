//! Selection of objects by label selector, field selector and name.

use std::cell::LazyCell;

use serde_json::Value;

use crate::registry::resource::Resource;
use crate::status::ApiError;
use rooflet_apimachinery::selector::{FieldSelector, LabelSelector};
use rooflet_store::Record;

/// Selectors of a request.
#[derive(Debug)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// Name of the only object that can match, if known.
    name: Option<String>,
}

impl Selection {
    /// Parses the selectors. `name` is the object name in the path of a watch.
    pub(crate) fn parse(
        resource: &Resource,
        labels: &str,
        fields: &str,
        name: Option<&str>,
    ) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(labels).map_err(|err| ApiError::bad_request(err.to_string()))?;
        let fields = FieldSelector::parse(fields).map_err(|err| ApiError::bad_request(err.to_string()))?;
        for field in fields.fields() {
            if !resource.is_selectable(field) {
                return Err(ApiError::bad_request(resource.unselectable(field)));
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

    /// Returns true if the object, in the form that `resource` serves, is selected. Parses the object only
    /// if its labels and its key do not decide.
    pub(crate) fn matches(&self, resource: &Resource, record: &Record) -> bool {
        let (namespace, name) = resource.namespace_and_name(&record.key);
        if self.name.as_deref().is_some_and(|selected| selected != name) {
            return false;
        }
        let stored = LazyCell::new(|| record.json());
        let is_labelled = self.labels.matches_text(record.excerpt());
        if !is_labelled.unwrap_or_else(|| self.labels.matches(&stored)) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        if self.rejects_text(resource, record) {
            return false;
        }
        let served = LazyCell::new(|| resource.view(record));
        self.fields.matches_with(|field| match field {
            "metadata.name" => name.to_owned(),
            "metadata.namespace" if resource.namespaced => namespace.to_owned(),
            _ => {
                let object = if field.starts_with("metadata.") {
                    &*stored
                } else {
                    &*served
                };
                resource
                    .selectable_field(object, field)
                    .unwrap_or_default()
                    .into_owned()
            }
        })
    }

    /// Like [`Selection::matches`], for one of many watches that check the same record in the form in
    /// which it is stored: a record is parsed once for all watches. May return true for an object that is
    /// not selected.
    pub(crate) fn may_match(&self, resource: &Resource, record: &Record) -> bool {
        let (_, name) = resource.namespace_and_name(&record.key);
        if self.name.as_deref().is_some_and(|selected| selected != name) {
            return false;
        }
        if resource.custom().is_none() {
            return self.matches(resource, record);
        }
        let mut required = self.fields.exact_terms();
        let has_fields = required.all(|(field, value)| {
            let read = |stored: &Value| {
                let found = resource.selectable_field(stored, field);
                found.unwrap_or_default().into_owned()
            };
            field.starts_with("metadata.") || record.has_field(field, value, read)
        });
        has_fields && (self.labels.is_empty() || self.matches(resource, record))
    }

    /// Returns true if the stored text already shows that the object is not selected by its fields. Most
    /// objects are rejected without being parsed.
    fn rejects_text(&self, resource: &Resource, record: &Record) -> bool {
        // Built-in kinds compute fields, and conversion to another version adds defaults.
        if resource.custom().is_none() || !resource.is_verbatim(record) {
            return false;
        }
        let Ok(text) = std::str::from_utf8(&record.value) else {
            return false;
        };
        self.fields
            .required_texts()
            .any(|required| !text.contains(required))
    }
}
