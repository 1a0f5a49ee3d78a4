//! Declaration of a node for rules: its type, and the largest value that fits into a request.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Map, Value, json};

use crate::cel::{RESERVED, escape};
use crate::node::{members, texts};

/// Members of a path below lists and maps.
pub(in crate::cel) const ITEMS: &str = "@items";
pub(in crate::cel) const KEYS: &str = "@keys";
pub(in crate::cel) const VALUES: &str = "@values";

/// Maximum size of a request of kube-apiserver.
const REQUEST_BYTES: u64 = 3 << 20;
/// Bytes of the quotes of a text, or of the brackets of a list or map.
const DELIMITERS: u64 = 2;
/// Maximum length of a duration, and of a date with time, in JSON.
const DURATION_BYTES: u64 = 32;
const DATE_TIME_BYTES: u64 = 32;
const DATE_BYTES: u64 = 12;
/// Bytes of a character in UTF-8, at most.
const CHARACTER_BYTES: u64 = 4;

/// Declared type of a node.
#[derive(Debug)]
pub struct Decl {
    pub(in crate::cel) kind: Kind,
    /// Maximum number of characters, bytes, items or entries.
    max_elements: u64,
    /// Size of the smallest value in JSON.
    min_bytes: u64,
}

#[derive(Debug)]
pub(in crate::cel) enum Kind {
    Dyn,
    Bool,
    Int,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    List(Box<Decl>),
    Map(Box<Decl>),
    /// Declarations by the escaped name of a field.
    Object(BTreeMap<String, Decl>),
}

/// Keys of maps have no limit in a schema.
static KEY: Decl = Decl {
    kind: Kind::Text,
    max_elements: 0,
    min_bytes: 2,
};

impl Decl {
    /// Returns the declaration of a structural schema, or `None` if rules cannot read such values.
    /// `is_resource` is true for the root and for embedded resources.
    pub fn of(schema: &Map<String, Value>, is_resource: bool) -> Option<Self> {
        let limit = |key: &str| limit(schema, key);
        if flag(schema, "x-kubernetes-int-or-string") {
            let max_bytes = limit("maxLength").map(|max| max.saturating_mul(CHARACTER_BYTES));
            let max_elements = max_bytes.unwrap_or(REQUEST_BYTES - DELIMITERS);
            return Some(Self::new(Kind::Dyn, max_elements, 1));
        }
        match text(schema, "type") {
            "array" => {
                let items = schema.get("items").and_then(Value::as_object)?;
                let items = Self::of(items, flag(items, "x-kubernetes-embedded-resource"))?;
                let fit = (REQUEST_BYTES - DELIMITERS) / (items.min_bytes + 1);
                let max_elements = limit("maxItems").unwrap_or(fit);
                Some(Self::new(Kind::List(Box::new(items)), max_elements, DELIMITERS))
            }
            "object" => match schema.get("additionalProperties").and_then(Value::as_object) {
                Some(values) => {
                    let values = Self::of(values, flag(values, "x-kubernetes-embedded-resource"))?;
                    let fit = (REQUEST_BYTES - DELIMITERS) / (values.min_bytes + 6);
                    let max_elements = limit("maxProperties").unwrap_or(fit);
                    Some(Self::new(Kind::Map(Box::new(values)), max_elements, DELIMITERS))
                }
                None => Some(Self::of_object(schema, is_resource)),
            },
            "string" => Some(Self::of_text(schema)),
            "boolean" => Some(Self::new(Kind::Bool, 0, 4)),
            "number" => Some(Self::new(Kind::Double, 0, 1)),
            "integer" => Some(Self::new(Kind::Int, 0, 1)),
            _ => None,
        }
    }

    fn new(kind: Kind, max_elements: u64, min_bytes: u64) -> Self {
        Self {
            kind,
            max_elements,
            min_bytes,
        }
    }

    fn of_object(schema: &Map<String, Value>, is_resource: bool) -> Self {
        let properties = match is_resource {
            true => with_metadata(schema),
            false => Cow::Borrowed(schema),
        };
        let required = texts(schema, "required");
        let mut min_bytes = DELIMITERS;
        let mut fields = BTreeMap::new();
        for (name, property) in members(&properties, "properties") {
            let Some(property) = property.as_object() else {
                continue;
            };
            let embedded = flag(property, "x-kubernetes-embedded-resource");
            let Some(field) = Self::of(property, embedded) else {
                continue;
            };
            let has_default = property.get("default").is_some_and(|default| !default.is_null());
            if required.contains(name) && !has_default {
                // Quotes, colon and comma.
                min_bytes += name.len() as u64 + field.min_bytes + 4;
            }
            fields.insert(escape(name), field);
        }
        Self::new(Kind::Object(fields), 0, min_bytes)
    }

    fn of_text(schema: &Map<String, Value>) -> Self {
        let max_length = limit(schema, "maxLength");
        match text(schema, "format") {
            "byte" => Self::new(
                Kind::Bytes,
                max_length.unwrap_or(REQUEST_BYTES - DELIMITERS),
                DELIMITERS,
            ),
            "duration" => Self::new(Kind::Duration, DURATION_BYTES, 3),
            "date" => Self::new(Kind::Timestamp, DATE_BYTES, DATE_BYTES),
            "date-time" => Self::new(Kind::Timestamp, DATE_TIME_BYTES, 21),
            _ => {
                let longest = || {
                    let allowed = schema.get("enum").and_then(Value::as_array);
                    let allowed = allowed.filter(|allowed| !allowed.is_empty())?;
                    let texts = allowed.iter().filter_map(Value::as_str);
                    Some(texts.map(|text| text.len() as u64).max().unwrap_or_default())
                };
                let max_bytes = max_length.map(|max| max.saturating_mul(CHARACTER_BYTES));
                let max_elements = max_bytes.or_else(longest);
                Self::new(
                    Kind::Text,
                    max_elements.unwrap_or(REQUEST_BYTES - DELIMITERS),
                    DELIMITERS,
                )
            }
        }
    }

    /// Returns the number of values of this declaration that fit into a request.
    pub(crate) fn max_per_request(&self) -> u64 {
        REQUEST_BYTES / (self.min_bytes + 1)
    }

    /// Returns the maximum number of elements of the value at a path below this node.
    pub(in crate::cel) fn max_elements(&self, members: &[impl AsRef<str>]) -> Option<u64> {
        let mut decl = self;
        for name in members {
            decl = decl.member(name.as_ref())?;
        }
        Some(decl.max_elements)
    }

    fn member(&self, name: &str) -> Option<&Self> {
        match (&self.kind, name) {
            (Kind::List(child) | Kind::Map(child), ITEMS | VALUES) => Some(child),
            (Kind::Map(_), KEYS) => Some(&KEY),
            (Kind::Object(fields), name) => fields.get(name),
            (_, _) => None,
        }
    }

    /// Returns the declaration of a field. Keywords need not be escaped.
    pub(in crate::cel) fn field(&self, name: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Object(fields) => fields.get(name).or_else(|| {
                let escaped = RESERVED.contains(&name).then(|| escape(name));
                escaped.and_then(|escaped| fields.get(&escaped))
            }),
            Kind::Dyn
            | Kind::Bool
            | Kind::Int
            | Kind::Double
            | Kind::Text
            | Kind::Bytes
            | Kind::Duration
            | Kind::Timestamp
            | Kind::List(_)
            | Kind::Map(_) => None,
        }
    }
}

/// Adds the fields that every resource has, unless the schema declares all of them.
fn with_metadata(schema: &Map<String, Value>) -> Cow<'_, Map<String, Value>> {
    let is = |pointer: &[&str], wanted: &str| {
        let mut node = schema;
        for name in pointer {
            let properties = node.get("properties").and_then(Value::as_object);
            let Some(child) = properties
                .and_then(|all| all.get(*name))
                .and_then(Value::as_object)
            else {
                return false;
            };
            node = child;
        }
        text(node, "type") == wanted
    };
    let declared = is(&["kind"], "string")
        && is(&["apiVersion"], "string")
        && is(&["metadata"], "object")
        && is(&["metadata", "name"], "string")
        && is(&["metadata", "generateName"], "string");
    if declared {
        return Cow::Borrowed(schema);
    }
    let mut properties: Map<String, Value> = members(schema, "properties")
        .map(|(name, property)| (name.clone(), property.clone()))
        .collect();
    let string = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {"name": string, "generateName": string}});
    properties.insert("kind".to_owned(), string.clone());
    properties.insert("apiVersion".to_owned(), string);
    properties.insert("metadata".to_owned(), metadata);
    let mut schema = schema.clone();
    schema.insert("properties".to_owned(), Value::Object(properties));
    Cow::Owned(schema)
}

/// Returns a limit of a schema. A negative limit counts as zero.
pub(crate) fn limit(schema: &Map<String, Value>, key: &str) -> Option<u64> {
    let limit = schema.get(key)?;
    match (limit.as_u64(), limit.as_i64()) {
        (Some(limit), _) => Some(limit),
        (None, Some(_)) => Some(0),
        (None, None) => None,
    }
}

fn flag(schema: &Map<String, Value>, key: &str) -> bool {
    schema.get(key) == Some(&Value::Bool(true))
}

fn text<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}
