//! Supported part of JSON Schema. A keyword that constrains values but is not supported is rejected
//! by name. All unknown keywords are annotations (JSON Schema Core, section 6.5).

use std::cmp::Ordering;
use std::collections::HashSet;

use percent_encoding::percent_decode_str;

use super::TooLarge;
use super::disjoint::MAX_ONE_OF;
use super::formats::is_annotation;
use super::numbers::{self, Bound};
use super::regex::RegexError;
use rooflet_inference_api::openai::json::{Json, Members, Number};

const OBJECT: &[&str] = &[
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
];
const ARRAY: &[&str] = &["items", "prefixItems", "minItems", "maxItems", "uniqueItems"];
pub(super) const STRING: &[&str] = &["minLength", "maxLength", "pattern", "format"];
pub(super) const NUMBER: &[&str] = &[
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
const COMBINATIONS: &[&str] = &["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "not"];
/// Constraining keywords that are not supported.
const UNSUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Description of the cases of `propertyNames` that normalization does not remove.
const UNSUPPORTED_NAMES: &str =
    "propertyNames other than listed names or, without named properties, one pattern or length limits";

/// Returns true if a keyword with this value rejects any value.
pub(super) fn constrains(keyword: &str, value: &Json) -> bool {
    let all = [OBJECT, ARRAY, STRING, NUMBER, COMBINATIONS, UNSUPPORTED];
    all.iter().any(|keywords| keywords.contains(&keyword)) && !is_always_met(keyword, value)
}

/// Returns true for keywords that clients generate although every value satisfies them.
fn is_always_met(keyword: &str, value: &Json) -> bool {
    match keyword {
        "uniqueItems" => *value == Json::Bool(false),
        "format" => value.as_str().is_some_and(is_annotation),
        "minProperties" => matches!(value, Json::Number(number) if number.as_u64() == Some(0)),
        "unevaluatedItems" | "unevaluatedProperties" => *value == Json::Bool(true),
        // Property names are strings.
        "propertyNames" => match value {
            Json::Bool(all) => *all,
            Json::Object(schema) => schema.iter().all(|(keyword, value)| {
                !constrains(keyword, value) || (keyword == "type" && value.as_str() == Some("string"))
            }),
            Json::Null | Json::Number(_) | Json::String(_) | Json::Array(_) => false,
        },
        _ => false,
    }
}

/// Error: a schema is invalid or not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("{at}: '{keyword}' is not supported")]
    Unsupported { at: String, keyword: String },
    #[error("{at}: '{keyword}' must be {expected}")]
    Invalid {
        at: String,
        keyword: &'static str,
        expected: &'static str,
    },
    #[error("{at}: '{keyword}' together with {others} is not supported")]
    UnsupportedCombination {
        at: String,
        keyword: &'static str,
        others: &'static str,
    },
    #[error("{at}: no value satisfies all constraints")]
    Empty { at: String },
    #[error("{at}: '$ref' refers to '{target}', which is not part of this schema")]
    Unresolved { at: String, target: String },
    #[error("{at}: 'pattern': {err}")]
    Pattern { at: String, err: RegexError },
    #[error("{at}: two schemas of 'oneOf' may accept the same value; use 'anyOf' instead")]
    Overlapping { at: String },
    #[error(
        "{at}: 'oneOf' has {schemas} schemas, but at most {MAX_ONE_OF} are supported; use 'anyOf' instead"
    )]
    TooManyBranches { at: String, schemas: usize },
    #[error("the schema has more than {MAX_PARTS} values and members in total, which is the maximum")]
    TooManyParts,
    #[error("{0}")]
    TooLarge(#[from] TooLarge),
}

/// Maximum number of values, members and keywords in a schema. Many steps take quadratic time.
const MAX_PARTS: usize = 20_000;

/// Rejects a schema with too many parts.
pub(super) fn check_parts(schema: &Json) -> Result<(), SchemaError> {
    let mut parts = 0;
    let mut open = vec![schema];
    while let Some(part) = open.pop() {
        match part {
            Json::Array(items) => {
                parts += items.len();
                open.extend(items);
            }
            Json::Object(members) => {
                let before = open.len();
                open.extend(members.iter().map(|(_, value)| value));
                parts += open.len() - before;
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
        if parts > MAX_PARTS {
            return Err(SchemaError::TooManyParts);
        }
    }
    Ok(())
}

/// Set of values for fast lookup.
#[derive(Debug, Default)]
pub(super) struct ValueSet(HashSet<String>);

impl ValueSet {
    pub(super) fn of(values: &[Json]) -> Self {
        Self(values.iter().map(canonical).collect())
    }

    pub(super) fn contains(&self, value: &Json) -> bool {
        self.0.contains(&canonical(value))
    }

    /// Returns true if the value was not in the set.
    pub(super) fn insert(&mut self, value: &Json) -> bool {
        self.0.insert(canonical(value))
    }
}

/// Returns the same JSON text for equal values: numbers by value, members in any order.
pub(super) fn canonical(value: &Json) -> String {
    let string = |text: &str| serde_json::to_string(text).expect("strings serialize");
    match value {
        Json::Number(number) => match number.as_f64() {
            // The format of integers.
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 2f64.powi(63) => {
                (float as i64).to_string()
            }
            Some(_) | None => numbers::plain(number),
        },
        Json::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Json::Object(members) => {
            let mut members: Vec<(&str, &Json)> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            let member = |(name, value): (&str, &Json)| format!("{}:{}", string(name), canonical(value));
            let members: Vec<String> = members.into_iter().map(member).collect();
            format!("{{{}}}", members.join(","))
        }
        Json::String(text) => string(text),
        Json::Null => "null".to_owned(),
        Json::Bool(value) => value.to_string(),
    }
}

impl SchemaError {
    /// Returns true if the schema may be valid but is not supported.
    pub(super) fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. }
            | Self::UnsupportedCombination { .. }
            | Self::Unresolved { .. }
            | Self::Pattern { .. }
            | Self::Overlapping { .. }
            | Self::TooManyBranches { .. }
            | Self::TooManyParts
            | Self::TooLarge(_) => true,
            Self::Invalid { .. } | Self::Empty { .. } => false,
        }
    }
}

/// Kinds of JSON values. Integers are also numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    pub(super) fn of(value: &Json) -> Self {
        match value {
            Json::Null => Self::Null,
            Json::Bool(_) => Self::Boolean,
            Json::Number(_) => Self::Number,
            Json::String(_) => Self::String,
            Json::Array(_) => Self::Array,
            Json::Object(_) => Self::Object,
        }
    }

    pub(crate) fn fits(self, value: &Json) -> bool {
        match value {
            Json::Null => self == Self::Null,
            Json::Bool(_) => self == Self::Boolean,
            Json::Number(number) => {
                let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
                self == Self::Number || (self == Self::Integer && whole)
            }
            Json::String(_) => self == Self::String,
            Json::Array(_) => self == Self::Array,
            Json::Object(_) => self == Self::Object,
        }
    }

    /// Returns true if no value is of both kinds.
    pub(super) fn is_disjoint_from(self, other: Self) -> bool {
        let general = |kind| if kind == Self::Integer { Self::Number } else { kind };
        general(self) != general(other)
    }
}

/// Schema that is an object, with its path.
#[derive(Debug, Clone)]
pub(super) struct Schema<'a> {
    pub(super) members: &'a Members,
    pub(super) at: String,
}

impl<'a> Schema<'a> {
    /// Rejects keywords that are not supported.
    pub(super) fn new(members: &'a Members, at: String) -> Result<Self, SchemaError> {
        let refused = members
            .iter()
            .find(|(name, value)| UNSUPPORTED.contains(name) && constrains(name, value));
        match refused {
            Some((keyword, _)) => Err(SchemaError::Unsupported {
                at,
                keyword: match keyword {
                    "propertyNames" => UNSUPPORTED_NAMES.to_owned(),
                    _ => keyword.to_owned(),
                },
            }),
            None => Ok(Self { members, at }),
        }
    }

    pub(super) fn get(&self, keyword: &str) -> Option<&'a Json> {
        self.members.get(keyword)
    }

    pub(super) fn invalid(&self, keyword: &'static str, expected: &'static str) -> SchemaError {
        SchemaError::Invalid {
            at: self.at.clone(),
            keyword,
            expected,
        }
    }

    pub(super) fn empty(&self) -> SchemaError {
        SchemaError::Empty { at: self.at.clone() }
    }

    /// Returns the path of a part of the schema.
    pub(super) fn below(&self, part: &str) -> String {
        format!("{}/{part}", self.at)
    }

    /// Returns true if other keywords than these constrain values.
    pub(super) fn constrains_beyond(&self, keywords: &[&str]) -> bool {
        self.members
            .iter()
            .any(|(name, value)| !keywords.contains(&name) && constrains(name, value))
    }

    /// Returns the kinds of values that the schema accepts: those of `type`, or else those that its
    /// other keywords constrain. `None`: any.
    pub(super) fn kinds(&self) -> Result<Option<Vec<Kind>>, SchemaError> {
        let expected = "a JSON type name or a list of JSON type names";
        let invalid = || self.invalid("type", expected);
        let kind = |word: &Json| word.as_str().and_then(Kind::of_word).ok_or_else(invalid);
        match self.get("type") {
            Some(Json::Array(words)) if !words.is_empty() => {
                words.iter().map(kind).collect::<Result<Vec<Kind>, _>>().map(Some)
            }
            Some(word) => Ok(Some(vec![kind(word)?])),
            None => {
                let about = |keywords: &[&str]| keywords.iter().any(|keyword| self.get(keyword).is_some());
                let groups = [
                    (OBJECT, Kind::Object),
                    (ARRAY, Kind::Array),
                    (STRING, Kind::String),
                    (NUMBER, Kind::Number),
                ];
                let kinds: Vec<Kind> = groups
                    .into_iter()
                    .filter(|(keywords, _)| about(keywords))
                    .map(|(_, kind)| kind)
                    .collect();
                Ok((!kinds.is_empty()).then_some(kinds))
            }
        }
    }

    pub(super) fn count(&self, keyword: &'static str) -> Result<Option<u32>, SchemaError> {
        self.get(keyword)
            .map(|value| {
                let count = match value {
                    Json::Number(number) => whole(number).and_then(|count| u32::try_from(count).ok()),
                    Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
                };
                count.ok_or_else(|| self.invalid(keyword, "an integer from 0 to 4294967295"))
            })
            .transpose()
    }

    pub(super) fn number(&self, keyword: &'static str) -> Result<Option<&'a Number>, SchemaError> {
        self.get(keyword)
            .map(|value| match value {
                Json::Number(number) => Ok(number),
                Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => {
                    Err(self.invalid(keyword, "a number"))
                }
            })
            .transpose()
    }

    /// Returns minimum and maximum of a number.
    pub(super) fn bounds(&self) -> Result<(Option<Bound>, Option<Bound>), SchemaError> {
        let bound = |keyword, exclusive_keyword, tighter| {
            let bound = |keyword: &'static str, exclusive| {
                let held = |value: &Number| {
                    Bound::new(value, exclusive).ok_or_else(|| SchemaError::Unsupported {
                        at: self.at.clone(),
                        keyword: format!("{keyword} with too many digits"),
                    })
                };
                self.number(keyword)?.map(held).transpose()
            };
            let (inclusive, exclusive) = (bound(keyword, false)?, bound(exclusive_keyword, true)?);
            Ok::<_, SchemaError>(match (inclusive, exclusive) {
                (Some(bound), Some(limit)) if bound.order(&limit) == tighter => Some(bound),
                (_, Some(limit)) => Some(limit),
                (bound, None) => bound,
            })
        };
        let min = bound("minimum", "exclusiveMinimum", Ordering::Greater)?;
        let max = bound("maximum", "exclusiveMaximum", Ordering::Less)?;
        Ok((min, max))
    }

    pub(super) fn text(&self, keyword: &'static str) -> Result<Option<&'a str>, SchemaError> {
        self.get(keyword)
            .map(|value| value.as_str().ok_or_else(|| self.invalid(keyword, "a string")))
            .transpose()
    }

    pub(super) fn list(&self, keyword: &'static str) -> Result<Option<&'a [Json]>, SchemaError> {
        self.get(keyword)
            .map(|value| match value {
                Json::Array(items) => Ok(items.as_slice()),
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
                    Err(self.invalid(keyword, "a list"))
                }
            })
            .transpose()
    }
}

/// Returns a count, which may be written with a fraction of zero.
fn whole(number: &Number) -> Option<u64> {
    let float = || {
        number
            .as_f64()
            .filter(|float| float.fract() == 0.0 && (0.0..1e15).contains(float))
    };
    number.as_u64().or_else(|| float().map(|float| float as u64))
}

/// Returns the target of a local reference (`#`, `#/$defs/name`).
pub(super) fn resolved<'a>(root: &'a Json, target: &str) -> Option<&'a Json> {
    let pointer = target.strip_prefix('#')?;
    if pointer.is_empty() {
        return Some(root);
    }
    pointer
        .strip_prefix('/')?
        .split('/')
        .try_fold(root, |value, part| {
            // JSON pointers in a URI are percent-encoded (RFC 6901, section 6).
            let part = percent_decode_str(part).decode_utf8().ok()?;
            let part = part.replace("~1", "/").replace("~0", "~");
            match value {
                Json::Array(items) => items.get(part.parse::<usize>().ok()?),
                Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
                    value.get(&part)
                }
            }
        })
}

/// Follows the references of a schema, at most 16.
pub(crate) fn dereferenced<'a>(root: &'a Json, mut schema: &'a Json) -> Option<&'a Json> {
    for _ in 0..16 {
        match schema.get("$ref").and_then(Json::as_str) {
            Some(target) => schema = resolved(root, target)?,
            None => return Some(schema),
        }
    }
    None
}

/// Returns true if two values are equal.
pub(super) fn are_equal(one: &Json, other: &Json) -> bool {
    canonical(one) == canonical(other)
}

/// Returns the values that a schema lists.
pub(crate) fn listed_values(schema: &Json) -> Option<Vec<Json>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Json::Array(values))) => Some(values.clone()),
        (None, _) => None,
    }
}
