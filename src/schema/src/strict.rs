//! JSON parser that is stricter than `serde_json`: it reports duplicate keys, and converts whole
//! numbers to integers.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// Parsed document with the paths of duplicate keys, in the notation of strict decoding: `duplicate
/// field "spec.replicas"`. The last value is used.
#[derive(Debug, PartialEq)]
pub struct StrictJson {
    pub value: Value,
    pub duplicates: Vec<String>,
}

/// Parses a body. Errors are those of `serde_json`.
pub fn parse(bytes: &[u8]) -> Result<StrictJson, serde_json::Error> {
    serde_json::from_slice(bytes)
}

impl<'de> Deserialize<'de> for StrictJson {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut duplicates = Vec::new();
        let value = deserializer.deserialize_any(Read {
            path: String::new(),
            levels: NESTING_MAX,
            duplicates: &mut duplicates,
        })?;
        Ok(Self { value, duplicates })
    }
}

struct Read<'a> {
    path: String,
    /// Number of levels that may follow below.
    levels: usize,
    duplicates: &'a mut Vec<String>,
}

impl Read<'_> {
    fn levels_below<E: serde::de::Error>(&self) -> Result<usize, E> {
        let below = self.levels.checked_sub(1);
        below.ok_or_else(|| {
            E::custom(format_args!(
                "values are nested more than {NESTING_MAX} levels deep"
            ))
        })
    }
}

impl<'de> DeserializeSeed<'de> for Read<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Read<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// Converts `3.0`, `1e2` and `-0` to 3, 100 and 0 like kube-apiserver, because clients decode
    /// them as integers.
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        if value.fract() == 0.0
            && let Ok(whole) = value.to_string().parse::<i64>()
        {
            return Ok(Value::from(whole));
        }
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let levels = self.levels_below()?;
        let mut items = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, items.len());
            match access.next_element_seed(Read {
                path,
                levels,
                duplicates: &mut *self.duplicates,
            })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let levels = self.levels_below()?;
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let path = super::path::join(&self.path, &name);
            if fields.contains_key(&name) && !self.duplicates.contains(&path) {
                if self.duplicates.len() == DUPLICATES_MAX {
                    return Err(A::Error::custom("too many duplicate fields"));
                }
                self.duplicates.push(path.clone());
            }
            let field = access.next_value_seed(Read {
                path,
                levels,
                duplicates: &mut *self.duplicates,
            })?;
            fields.insert(name, field);
        }
        Ok(Value::Object(fields))
    }
}

/// Maximum nesting of an object. JSON parsers accept 128 levels; lists and watch events wrap the
/// object in further levels.
pub const NESTING_MAX: usize = 100;

/// Maximum number of reported duplicate fields. Bodies with more are rejected.
const DUPLICATES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reports_duplicates_and_keeps_the_last_value() {
        let read = parse(br#"{"spec":{"a":1,"a":2,"l":[{"x":1,"x":1}]},"spec2":null}"#).unwrap();
        assert_eq!(
            read.value,
            json!({"spec": {"a": 2, "l": [{"x": 1}]}, "spec2": null})
        );
        assert_eq!(read.duplicates, ["spec.a", "spec.l[0].x"]);
    }

    #[test]
    fn rejects_trailing_text() {
        assert!(parse(b"{} x").is_err());
    }

    #[test]
    fn rejects_nesting_beyond_the_limit() {
        let nested =
            |levels: usize| parse(format!("{}{}", "[".repeat(levels), "]".repeat(levels)).as_bytes());
        assert!(nested(NESTING_MAX).is_ok());
        let rejected = nested(NESTING_MAX + 1).expect_err("too deep").to_string();
        assert!(
            rejected.starts_with("values are nested more than 100 levels deep"),
            "{rejected}"
        );
    }

    #[test]
    fn converts_whole_numbers_to_integers() {
        let check = |text: &str, expect: Value| {
            assert_eq!(parse(text.as_bytes()).expect(text).value, expect, "{text}");
        };
        check("3.0", json!(3));
        check("1e2", json!(100));
        check("-0", json!(0));
        check("-0.0", json!(0));
        check("[-7.0, 0.5]", json!([-7, 0.5]));
        check("9.2e18", json!(9_200_000_000_000_000_000_i64));
        check("1e19", json!(1e19));
        check("1e-7", json!(1e-7));
    }

    fn with_integers(value: Value) -> Value {
        match value {
            Value::Number(number) => {
                let float = number.as_f64().filter(|_| number.is_f64());
                let whole = float.and_then(|float| float.to_string().parse::<i64>().ok());
                whole.map_or(Value::Number(number), Value::from)
            }
            Value::Array(items) => items.into_iter().map(with_integers).collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter();
                fields.map(|(name, field)| (name, with_integers(field))).collect()
            }
            other @ (Value::Null | Value::Bool(_) | Value::String(_)) => other,
        }
    }

    proptest::proptest! {
        #[test]
        fn accepts_the_same_documents_as_serde_json(text in r#"[\[\]{}",:0-9a-e.\-]{0,40}"#) {
            let plain = serde_json::from_str::<Value>(&text).ok().map(with_integers);
            let strict = parse(text.as_bytes()).ok().map(|read| read.value);
            proptest::prop_assert_eq!(plain, strict);
        }
    }
}
