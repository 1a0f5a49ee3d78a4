//! Typed access to the fields of a model's `config.json`. Errors name the field and the expected
//! value. The meaning of the fields is defined in [`config`](crate::config) and
//! [`facts`](crate::facts).

use serde_json::{Map, Value};

/// File name for error messages.
pub const CONFIG_FILE: &str = "config.json";

/// Maximum size of `config.json`. Real files have a few kilobytes, or a few hundred with thousands
/// of quantised modules.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Maximum dimension. No real model has a larger one; products of larger dimensions would overflow.
const MAX_DIMENSION: u64 = 1 << 24;

/// Maximum number of parameters, a thousand times that of the largest published models. Sums of
/// more would overflow.
pub(crate) const MAX_PARAMETERS: f64 = 1e15;

/// Reason why a field cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FieldError {
    #[error("{CONFIG_FILE}: not valid JSON")]
    InvalidJson {
        #[source]
        err: serde_json::Error,
    },
    #[error("{CONFIG_FILE}: expected a JSON object at the top level")]
    NotAnObject,
    #[error("{CONFIG_FILE}: required field `{field}` is missing")]
    Missing { field: String },
    #[error(
        "{CONFIG_FILE}: the dimensions result in {parameters:.0e} parameters; the limit is {MAX_PARAMETERS:.0e}, so at least one of them is wrong"
    )]
    TooLarge { parameters: f64 },
    #[error("{CONFIG_FILE}: field `{field}` is {found}, expected {expected}")]
    Invalid {
        field: String,
        found: String,
        expected: String,
    },
}

/// Parses the text of `config.json` to its top-level object.
pub(crate) fn parse_object(text: &str) -> Result<Map<String, Value>, FieldError> {
    let value = serde_json::from_str(text).map_err(|err| FieldError::InvalidJson { err })?;
    let Value::Object(map) = value else {
        return Err(FieldError::NotAnObject);
    };
    Ok(map)
}

/// JSON object with its path in the file, for error messages.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    pub map: &'a Map<String, Value>,
    /// Path of the object; empty at the top level.
    pub path: &'a str,
}

/// Nested object.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl Section<'_> {
    pub(crate) fn as_fields(&self) -> Fields<'_> {
        Fields {
            map: self.map,
            path: &self.path,
        }
    }
}

impl<'a> Section<'a> {
    /// Returns an object inside this object.
    pub fn inner(&self, field: &str) -> Result<Option<Self>, FieldError> {
        let Some(value) = self.map.get(field).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let map = value
            .as_object()
            .ok_or_else(|| self.as_fields().invalid(field, "an object".to_owned()))?;
        let path = format!("{}.{field}", self.path);
        Ok(Some(Self { map, path }))
    }
}

impl<'a> Fields<'a> {
    pub fn top(map: &'a Map<String, Value>) -> Self {
        Self { map, path: "" }
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field)
    }

    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() {
            field.to_owned()
        } else {
            format!("{}.{field}", self.path)
        }
    }

    pub fn found(&self, field: &str) -> String {
        self.get(field)
            .map_or_else(|| "absent".to_owned(), |value| shortened(&value.to_string()))
    }

    pub fn missing(&self, field: &str) -> FieldError {
        FieldError::Missing {
            field: self.name(field),
        }
    }

    pub fn invalid(&self, field: &str, expected: String) -> FieldError {
        FieldError::Invalid {
            field: self.name(field),
            found: self.found(field),
            expected,
        }
    }

    /// Returns a field; `null` counts as absent, as in the programs that write these files.
    pub fn present(&self, field: &str) -> Option<&'a Value> {
        self.get(field).filter(|value| !value.is_null())
    }

    pub fn object(&self, field: &str) -> Result<Option<Section<'a>>, FieldError> {
        self.present(field)
            .map(|value| {
                let map = value
                    .as_object()
                    .ok_or_else(|| self.invalid(field, "an object".to_owned()))?;
                Ok(Section {
                    map,
                    path: self.name(field),
                })
            })
            .transpose()
    }

    pub fn text(&self, field: &str) -> Result<&'a str, FieldError> {
        self.optional_text(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn optional_text(&self, field: &str) -> Result<Option<&'a str>, FieldError> {
        self.present(field)
            .map(|value| {
                value
                    .as_str()
                    .ok_or_else(|| self.invalid(field, "a string".to_owned()))
            })
            .transpose()
    }

    pub(crate) fn optional_bool(&self, field: &str) -> Result<Option<bool>, FieldError> {
        self.present(field)
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| self.invalid(field, "true or false".to_owned()))
            })
            .transpose()
    }

    pub fn dimension(&self, field: &str) -> Result<u32, FieldError> {
        self.optional_dimension(field)?.ok_or_else(|| self.missing(field))
    }

    pub(crate) fn optional_dimension(&self, field: &str) -> Result<Option<u32>, FieldError> {
        self.present(field)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|number| (1..=MAX_DIMENSION).contains(number))
                    .and_then(|number| u32::try_from(number).ok())
                    .ok_or_else(|| self.invalid(field, format!("an integer from 1 to {MAX_DIMENSION}")))
            })
            .transpose()
    }

    pub(crate) fn positive_float(&self, field: &str) -> Result<f32, FieldError> {
        self.optional_positive_float(field)?
            .ok_or_else(|| self.missing(field))
    }

    pub(crate) fn optional_positive_float(&self, field: &str) -> Result<Option<f32>, FieldError> {
        self.present(field)
            .map(|value| {
                value
                    .as_f64()
                    .map(|number| number as f32)
                    .filter(|number| number.is_finite() && *number > 0.0)
                    .ok_or_else(|| self.invalid(field, "a number above 0".to_owned()))
            })
            .transpose()
    }

    pub(crate) fn optional_number(&self, field: &str) -> Result<Option<f64>, FieldError> {
        self.present(field)
            .map(|value| {
                value
                    .as_f64()
                    .filter(|number| number.is_finite())
                    .ok_or_else(|| self.invalid(field, "a number".to_owned()))
            })
            .transpose()
    }

    /// Returns a list of numbers above 0.
    pub(crate) fn positive_floats(&self, field: &str) -> Result<Vec<f32>, FieldError> {
        let value = self.present(field).ok_or_else(|| self.missing(field))?;
        let number = |value: &Value| {
            let number = value.as_f64().map(|number| number as f32);
            number.filter(|number| number.is_finite() && *number > 0.0)
        };
        value
            .as_array()
            .and_then(|list| list.iter().map(number).collect())
            .ok_or_else(|| self.invalid(field, "a list of numbers above 0".to_owned()))
    }

    pub fn token_ids(&self, field: &str) -> Result<Vec<u32>, FieldError> {
        token_ids(self.get(field))
            .ok_or_else(|| self.invalid(field, "a token id or a list of token ids".to_owned()))
    }
}

/// Parses token ids as in `config.json` and `generation_config.json`: absent, null, a number or a
/// list. Returns `None` for any other value.
pub fn token_ids(value: Option<&Value>) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => id(one).map(|id| vec![id]),
    }
}

/// Returns the text, shortened for an error message.
pub(crate) fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
