//! Field-level errors of the API: causes of an `Invalid` status.
//!
//! The texts are those of apimachinery's `field.Error`, so that clients receive the same messages
//! as from a Kubernetes cluster.

use serde_json::Value;

use super::gotext;

/// Machine-readable reason of a cause, as defined by the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseReason {
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
}

impl CauseReason {
    /// Returns the text of `details.causes[].reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// Error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub reason: CauseReason,
    /// Path of the field, for example `spec.env[0].name`. `<nil>` stands for the whole object.
    pub field: String,
    /// Text of `details.causes[].message`, without the field.
    pub message: String,
}

impl FieldError {
    /// Creates an error without a value.
    fn bare(reason: CauseReason, field: impl Into<String>, detail: &str) -> Self {
        let words = reason.words();
        let message = if detail.is_empty() {
            words.to_owned()
        } else {
            format!("{words}: {detail}")
        };
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    /// Creates an error with the invalid value.
    fn shown(reason: CauseReason, field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let words = reason.words();
        let value = gotext::bad_value(value);
        let message = if detail.is_empty() {
            format!("{words}: {value}")
        } else {
            format!("{words}: {value}: {detail}")
        };
        Self {
            reason,
            field: field.into(),
            message,
        }
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::bare(CauseReason::Required, field, detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::bare(CauseReason::Forbidden, field, detail)
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::shown(CauseReason::Invalid, field, value, detail)
    }

    /// Creates `Invalid` with the text of a value, for values whose members have an order.
    pub fn invalid_shown(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::bare(CauseReason::Invalid, field, &format!("{value}: {detail}"))
    }

    /// Creates `Invalid` without the value, for values that are whole objects.
    pub(crate) fn invalid_omitted(field: impl Into<String>, detail: &str) -> Self {
        Self::bare(CauseReason::Invalid, field, detail)
    }

    pub fn invalid_text(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::invalid(field, &Value::from(value), detail)
    }

    pub(crate) fn type_invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::shown(CauseReason::TypeInvalid, field, value, detail)
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::shown(CauseReason::Duplicate, field, value, "")
    }

    /// Creates `Duplicate` without the value.
    pub(crate) fn duplicate_omitted(field: impl Into<String>) -> Self {
        Self::bare(CauseReason::Duplicate, field, "")
    }

    pub fn not_supported(
        field: impl Into<String>,
        value: &Value,
        supported: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        let supported: Vec<String> = supported
            .into_iter()
            .map(|each| gotext::quote(each.as_ref()))
            .collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        Self::shown(CauseReason::NotSupported, field, value, &detail)
    }

    pub fn too_long(field: impl Into<String>, max_bytes: u64) -> Self {
        let unit = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::bare(
            CauseReason::TooLong,
            field,
            &format!("may not be more than {max_bytes} {unit}"),
        )
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        Self::shown(CauseReason::TooMany, field, &Value::from(actual), &detail)
    }

    /// Returns `field: message`, one line of a status message.
    pub fn summary(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// Returns the end of the message `Gizmo.G "x" is invalid: …`. Several errors are in brackets;
/// duplicates are omitted.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let line = error.summary();
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.len() == 1 {
        lines.remove(0)
    } else {
        format!("[{}]", lines.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_match_apimachinery() {
        let check = |error: FieldError, expect: &str| assert_eq!(error.summary(), expect);
        check(
            FieldError::required("spec.image", ""),
            "spec.image: Required value",
        );
        check(
            FieldError::not_supported("spec.tier", &json!("lead"), ["gold", "silver"]),
            r#"spec.tier: Unsupported value: "lead": supported values: "gold", "silver""#,
        );
        check(
            FieldError::too_long("spec.note", 20),
            "spec.note: Too long: may not be more than 20 bytes",
        );
        check(
            FieldError::too_many("spec.tags", 6, 5),
            "spec.tags: Too many: 6: must have at most 5 items",
        );
        check(
            FieldError::duplicate("spec.tags[1]", &json!("a")),
            r#"spec.tags[1]: Duplicate value: "a""#,
        );
        check(
            FieldError::invalid("<nil>", &Value::Null, "x"),
            "<nil>: Invalid value: null: x",
        );
    }

    #[test]
    fn aggregate_puts_several_errors_in_brackets() {
        let a = FieldError::required("a", "");
        let b = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&a)), "a: Required value");
        assert_eq!(
            aggregate(&[a.clone(), b, a]),
            "[a: Required value, b: Required value]"
        );
    }
}
