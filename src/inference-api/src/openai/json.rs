//! JSON whose objects keep the order of their members, as in Python. Templates render tool calls
//! into the prompt in their original order, and models were trained on such text.
//! `serde_json::Value` sorts members.
//!
//! The `preserve_order` feature of serde_json is disabled on purpose: the API server writes custom
//! resources with sorted keys, as Kubernetes does, and revision names contain a hash of such text.

use std::fmt;
use std::ops::Deref;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// JSON value; see the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Members),
}

/// Parsed number, and its text if that is more precise.
#[derive(Debug, Clone, PartialEq)]
pub struct Number {
    value: serde_json::Number,
    text: Option<Box<str>>,
}

/// Number of decimal digits that a double represents exactly.
const DIGITS_OF_DOUBLE: usize = 15;

/// Members of an object in their original order. If a name repeats, the last one counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Members(Vec<(String, Json)>);

impl Json {
    /// Parses a text and keeps the digits of numbers beyond 64 bits. `Deserialize` rounds such
    /// numbers.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut json: Self = serde_json::from_str(text)?;
        // Only doubles may have been rounded.
        let mut is_rounded = false;
        json.for_each_number(&mut |number| is_rounded |= number.is_f64());
        if is_rounded {
            let mut texts = NumberTexts { rest: text };
            json.for_each_number(&mut |number| {
                let text = texts.next().unwrap_or_default();
                let digits = text.split(['e', 'E']).next().unwrap_or_default();
                let digits = digits
                    .bytes()
                    .filter(u8::is_ascii_digit)
                    .skip_while(|digit| *digit == b'0');
                if number.is_f64() && digits.count() > DIGITS_OF_DOUBLE {
                    number.text = Some(text.into());
                }
            });
        }
        Ok(json)
    }

    /// Visits all numbers in the order of the text.
    fn for_each_number(&mut self, visit: &mut dyn FnMut(&mut Number)) {
        match self {
            Self::Null | Self::Bool(_) | Self::String(_) => {}
            Self::Number(number) => visit(number),
            Self::Array(items) => items.iter_mut().for_each(|item| item.for_each_number(visit)),
            Self::Object(Members(members)) => {
                let values = members.iter_mut().map(|(_, value)| value);
                values.for_each(|value| value.for_each_number(visit));
            }
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Array(_) | Self::Object(_) => None,
        }
    }

    pub fn as_object(&self) -> Option<&Members> {
        match self {
            Self::Object(members) => Some(members),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    fn as_object_mut(&mut self) -> Option<&mut Members> {
        match self {
            Self::Object(members) => Some(members),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// Returns a member of an object; `None` for other values.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(name)
    }
}

impl Members {
    /// Members in their original order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Members in their original order, with mutable values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Json)> {
        self.0.iter_mut().map(|(name, value)| (name.as_str(), value))
    }

    pub fn new<const N: usize>(members: [(&str, Json); N]) -> Self {
        Self(members.map(|(name, value)| (name.to_owned(), value)).into())
    }

    pub fn get(&self, name: &str) -> Option<&Json> {
        let found = self.0.iter().rev().find(|(own, _)| own == name);
        found.map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Json> {
        let found = self.0.iter_mut().rev().find(|(own, _)| own == name);
        found.map(|(_, value)| value)
    }

    pub fn remove(&mut self, name: &str) -> Option<Json> {
        let place = self.0.iter().rposition(|(own, _)| own == name)?;
        Some(self.0.remove(place).1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn retain(&mut self, keep: impl Fn(&str, &Json) -> bool) {
        self.0.retain(|(name, value)| keep(name, value));
    }

    /// Replaces the value of a member, or appends a new member.
    pub fn insert(&mut self, name: &str, value: Json) {
        match self.get_mut(name) {
            Some(place) => *place = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

impl Number {
    /// Returns the decimal representation, possibly with an exponent: the original text, or the
    /// shortest text of the parsed number.
    pub fn decimal(&self) -> String {
        self.text
            .as_deref()
            .map_or_else(|| self.value.to_string(), str::to_owned)
    }

    /// Returns true if an integer was rounded when it was parsed.
    pub fn is_rounded_whole(&self) -> bool {
        let double = self.value.as_f64().filter(|_| self.text.is_some());
        double.is_some_and(|double| double.fract() == 0.0 && double.abs() >= 2_f64.powi(63))
    }
}

impl<N: Into<serde_json::Number>> From<N> for Number {
    fn from(value: N) -> Self {
        Self {
            value: value.into(),
            text: None,
        }
    }
}

impl Deref for Number {
    type Target = serde_json::Number;

    fn deref(&self) -> &serde_json::Number {
        &self.value
    }
}

/// Iterator over the numbers in a JSON text, as written.
struct NumberTexts<'a> {
    rest: &'a str,
}

impl<'a> Iterator for NumberTexts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let at = self
                .rest
                .find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            let (_, rest) = self.rest.split_at(at);
            if let Some(mut string) = rest.strip_prefix('"') {
                while let Some(at) = string.find(['"', '\\']) {
                    // An escaped character does not end the string. The rest of a longer escape
                    // contains no quote.
                    let skipped = if string[at..].starts_with('\\') { 2 } else { 1 };
                    let is_end = skipped == 1;
                    string = string.get(at + skipped..).unwrap_or_default();
                    if is_end {
                        break;
                    }
                }
                self.rest = string;
                continue;
            }
            let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
            let (number, rest) = rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()));
            self.rest = rest;
            return Some(number);
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.value.serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Self::Object(Members(members)) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                members
                    .iter()
                    .try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Json::Null, |number| Json::Number(number.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(Members(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_member_order() {
        let text = r#"{"z":[1,-2,2.5,true,null],"a":{"y":"é\n","b":{}},"m":18446744073709551615}"#;
        let json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
    }

    #[test]
    fn last_duplicate_member_counts() {
        let mut json: Json = serde_json::from_str(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(json.get("a"), Some(&Json::Number(3_u64.into())));
        let members = json.as_object_mut().unwrap();
        members.insert("b", Json::Null);
        members.insert("c", Json::Bool(true));
        assert_eq!(
            serde_json::to_string(&json).unwrap(),
            r#"{"a":1,"b":null,"a":3,"c":true}"#
        );
        assert_eq!(Json::Null.get("a"), None);
    }

    #[test]
    fn keeps_digits_of_large_numbers() {
        let text = r#"{"a\"-1": "-2 \\", "b": [1, -0.1, {"c": 123456789012345678901234567890}], "b": 1e30, "d":-18446744073709551617,
            "e": 3.4028234663852886e+38, "f": 0.10000000000000000000, "g": "\u00e9 5"}"#;
        let mut json = Json::parse(text).unwrap();
        let mut decimals = Vec::new();
        json.for_each_number(&mut |number| decimals.push((number.decimal(), number.is_rounded_whole())));
        let decimals: Vec<(&str, bool)> = decimals
            .iter()
            .map(|(text, rounded)| (text.as_str(), *rounded))
            .collect();
        assert_eq!(
            decimals,
            [
                ("1", false),
                ("-0.1", false),
                ("123456789012345678901234567890", true),
                ("1e+30", false),
                ("-18446744073709551617", true),
                ("3.4028234663852886e+38", true),
                ("0.10000000000000000000", false),
            ]
        );
        assert_eq!(
            Json::parse("[1, 2.5]").unwrap(),
            serde_json::from_str("[1, 2.5]").unwrap()
        );
        assert!(Json::parse("[1,").is_err());
    }

    #[test]
    fn rejects_deep_nesting() {
        let deep = "[".repeat(100_000);
        assert!(serde_json::from_str::<Json>(&deep).is_err());
    }
}
