//! Attribute values.

use opentelemetry::{Array, StringValue};

/// Value of a span's attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Int(i64),
    Float(f64),
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

/// Keeps the decimal form: 0.9 stays 0.9.
impl From<f32> for Value {
    fn from(number: f32) -> Self {
        Self::Float(number.to_string().parse().unwrap_or(f64::from(number)))
    }
}

impl From<Value> for opentelemetry::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) => Self::String(text.into()),
            Value::Int(number) => Self::I64(number),
            Value::Float(number) => Self::F64(number),
            Value::Texts(texts) => {
                let texts = texts.into_iter().map(StringValue::from);
                Self::Array(Array::String(texts.collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_single_precision_by_its_decimal_form() {
        assert_eq!(Value::from(0.9_f32), Value::Float(0.9));
    }
}
