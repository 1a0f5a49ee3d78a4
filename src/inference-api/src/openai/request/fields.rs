//! Typed access to the parameters of a body. A parameter that is null counts as absent.

use serde_json::{Map, Value};

use crate::openai::ApiError;
use crate::openai::json::{Json, Members};

/// Parameters of a body, except those whose member order is relevant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body into the parameters in `ordered`, which keep their member order, and all
    /// others.
    pub fn split(body: &[u8], ordered: &[&str]) -> Result<(Members, Self), ApiError> {
        let invalid = |reason: String| ApiError::invalid_json(&reason);
        let text = std::str::from_utf8(body).map_err(|err| invalid(err.to_string()))?;
        let body = Json::parse(text).map_err(|err| invalid(err.to_string()))?;
        let Json::Object(mut ordered_members) = body else {
            return Err(ApiError::invalid_json("the body must be an object."));
        };
        let mut fields = Self::default();
        for (name, value) in ordered_members.iter().filter(|(name, _)| !ordered.contains(name)) {
            let value = serde_json::to_value(value).expect("JSON values convert to JSON");
            fields.insert(name.to_owned(), value);
        }
        ordered_members.retain(|name, _| ordered.contains(&name));
        Ok((ordered_members, fields))
    }

    pub fn insert(&mut self, name: String, value: Value) {
        self.0.insert(name, value);
    }

    /// Removes the parameters with these names, and returns the names of those that were present.
    pub(super) fn remove_all(&mut self, names: &[&'static str]) -> Vec<&'static str> {
        let is_present = |name: &&str| self.0.remove(*name).is_some();
        names.iter().copied().filter(is_present).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns a parameter that is present and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Rejects unknown parameters, and known ones that are not supported unless their value has no
    /// effect.
    pub(crate) fn check_names(
        &self,
        served: &[&[&str]],
        unserved: &[&str],
        has_no_effect: impl Fn(&str, &Value) -> bool,
    ) -> Result<(), ApiError> {
        for (name, value) in &self.0 {
            let name = name.as_str();
            if served.iter().any(|names| names.contains(&name)) {
                continue;
            }
            if !unserved.contains(&name) {
                return Err(ApiError::unknown_parameter(name));
            }
            if !has_no_effect(name, value) {
                let message = format!("'{name}' is not supported by this server.");
                return Err(ApiError::unsupported(name, message));
            }
        }
        Ok(())
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {min} to {max}");
        self.read(name, &expected, |value| {
            let number = value.as_f64().filter(|number| (min..=max).contains(number))?;
            Some(number as f32)
        })
    }

    /// Reads an integer from `min` to `max`. `usize::MAX` stands for no maximum.
    pub fn integer(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>, ApiError> {
        let expected = match max {
            usize::MAX => format!("an integer of at least {min}"),
            max => format!("an integer from {min} to {max}"),
        };
        self.read(name, &expected, |value| {
            let number = usize::try_from(value.as_u64()?).unwrap_or(usize::MAX);
            (min..=max).contains(&number).then_some(number)
        })
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    /// Reads a parameter. `convert` returns `None` for a value that is not `expected`.
    pub fn read<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name)
            .map(|value| {
                convert(value)
                    .ok_or_else(|| ApiError::invalid_value(name, format!("'{name}' must be {expected}.")))
            })
            .transpose()
    }
}
