//! Selection of objects by label selector, field selector and name.

use std::cell::LazyCell;

use crate::object;
use crate::registry::resource::Resource;
use crate::status::ApiError;
use rooflet_apimachinery::selector::{FieldSelector, LabelSelector};
use rooflet_store::Record;

/// Selectors of a request.
#[derive(Debug)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// Texts of the label selector: the stored JSON of a selected object contains one of each list.
    label_texts: Vec<Vec<String>>,
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
            label_texts: labels.required_texts().collect(),
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

    /// Returns true if the object, in the form that `resource` serves, is selected.
    pub(crate) fn matches(&self, resource: &Resource, record: &Record) -> bool {
        if self.rejects_text(resource, record) {
            return false;
        }
        let stored = record.json();
        if self
            .name
            .as_deref()
            .is_some_and(|name| name != object::name(&stored))
        {
            return false;
        }
        let served = LazyCell::new(|| resource.view(record));
        let field = |field: &str| {
            let object = if field.starts_with("metadata.") {
                &*stored
            } else {
                &**served
            };
            resource
                .selectable_field(object, field)
                .unwrap_or_default()
                .into_owned()
        };
        self.labels.matches(&stored) && self.fields.matches_with(field)
    }

    /// Returns true if the stored text already shows that the object is not selected. Most objects are
    /// rejected without being parsed.
    fn rejects_text(&self, resource: &Resource, record: &Record) -> bool {
        let Ok(text) = std::str::from_utf8(&record.value) else {
            return false;
        };
        let mut labels = self.label_texts.iter();
        let is_labelled = labels.all(|texts| texts.iter().any(|required| text.contains(required)));
        // Built-in kinds compute fields, and conversion to another version adds defaults.
        let has_stored_fields = resource.custom().is_some() && resource.is_verbatim(record);
        !is_labelled
            || has_stored_fields
                && self
                    .fields
                    .required_texts()
                    .any(|required| !text.contains(required))
    }
}
