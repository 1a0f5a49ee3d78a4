//! Parameter `keep_alive`: the time for which a model stays loaded after a request.

use std::time::Duration;

use serde_json::Value;

use crate::openai::ApiError;
use crate::openai::request::fields::Fields;
use rooflet_base::quantity::parse_duration;

/// Name of the field.
pub const FIELD: &str = "keep_alive";

/// Time for which a model stays loaded after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    For(Duration),
    Forever,
}

impl KeepAlive {
    /// Unloads the model after the request.
    pub const NONE: Self = Self::For(Duration::ZERO);

    /// Parses `keep_alive`: seconds, or a Go duration such as `5m`. All negative values mean "forever".
    pub(super) fn parse(fields: &Fields) -> Result<Option<Self>, ApiError> {
        fields.read(FIELD, "a number of seconds or a duration such as '5m'", |value| {
            let of_seconds = |seconds: f64| match seconds {
                _ if seconds < 0.0 => Some(Self::Forever),
                _ => Some(Self::For(Duration::try_from_secs_f64(seconds).ok()?)),
            };
            match value {
                Value::Number(number) => of_seconds(number.as_f64()?),
                Value::String(text) => match (text.parse::<f64>(), text.strip_prefix('-')) {
                    (Ok(seconds), _) => of_seconds(seconds),
                    (Err(_), Some(positive)) => is_duration(positive).then_some(Self::Forever),
                    (Err(_), None) => parse_duration(text).filter(|_| is_duration(text)).map(Self::For),
                },
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
            }
        })
    }
}

fn is_duration(text: &str) -> bool {
    !text.is_empty() && parse_duration(text).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: &Value) -> Result<Option<KeepAlive>, Option<String>> {
        let body = json!({"model": "m", FIELD: value}).to_string();
        let (_, fields) = Fields::split(body.as_bytes(), &[]).unwrap();
        KeepAlive::parse(&fields).map_err(|err| err.param)
    }

    /// The values of Ollama's documentation: durations, seconds, negative numbers and 0.
    #[test]
    fn values_of_the_documentation_are_accepted() {
        let seconds = |seconds| KeepAlive::For(Duration::from_secs(seconds));
        for (value, expected) in [
            (json!("10m"), seconds(600)),
            (json!("24h"), seconds(86_400)),
            (json!("1h30m"), seconds(5400)),
            (json!(3600), seconds(3600)),
            (json!("0"), KeepAlive::NONE),
            (json!(0), KeepAlive::NONE),
            (json!("500ms"), KeepAlive::For(Duration::from_millis(500))),
            (json!(-1), KeepAlive::Forever),
            (json!("-1m"), KeepAlive::Forever),
            (json!("-1"), KeepAlive::Forever),
        ] {
            assert_eq!(parsed(&value), Ok(Some(expected)), "{value}");
        }
        assert_eq!(parsed(&json!(null)), Ok(None));
        for value in [
            json!([]),
            json!(true),
            json!(""),
            json!("-"),
            json!("long"),
            json!("5 minutes"),
            json!(1e300),
        ] {
            assert_eq!(parsed(&value), Err(Some(FIELD.to_owned())), "{value}");
        }
    }
}
