//! Decoding of built-in kinds like Go's typed decoders: unknown fields are dropped, `null` means
//! absent, and a wrong type fails with the text of `encoding/json`. The types are derived from the
//! OpenAPI schemas of the upstream API.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::builtin as upstream;
use crate::builtin::REFERENCE_PREFIX;
use crate::time::{format_micro_time, format_time};
use rooflet_base::json_syntax::type_name;

const PACKAGE_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Shape of a Go type.
#[derive(Debug)]
enum Shape {
    Struct {
        name: String,
        fields: BTreeMap<String, Shape>,
        drops_empty_text: bool,
    },
    Map(Box<Shape>),
    List(Box<Shape>),
    Text,
    Bytes,
    Time,
    MicroTime,
    Int32,
    Int64,
    Float,
    Bool,
    IntOrString,
    /// A schema, or a simpler value in its place. The JSON type decides.
    SchemaOr(String),
    Any,
    Named(String),
}

/// Compiled definitions.
#[derive(Debug)]
pub struct Types {
    shapes: HashMap<String, Shape>,
}

/// Decoded object.
#[derive(Debug, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// Paths of fields that the type does not have.
    pub unknown: Vec<String>,
}

fn definition(name: &str, schema: &Value) -> Shape {
    let short = name.rsplit('.').next().unwrap_or(name);
    match short {
        "Time" => Shape::Time,
        "MicroTime" => Shape::MicroTime,
        "IntOrString" => Shape::IntOrString,
        "JSON" | "FieldsV1" => Shape::Any,
        "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" => {
            Shape::SchemaOr(name.replace(short, "JSONSchemaProps"))
        }
        _ => shape(schema, name),
    }
}

fn collect_names(shape: &Shape, names: &mut Vec<String>) {
    match shape {
        Shape::Named(name) | Shape::SchemaOr(name) => names.push(name.clone()),
        Shape::Struct { fields, .. } => fields.values().for_each(|field| collect_names(field, names)),
        Shape::Map(inner) | Shape::List(inner) => collect_names(inner, names),
        Shape::Text
        | Shape::Bytes
        | Shape::Time
        | Shape::MicroTime
        | Shape::Int32
        | Shape::Int64
        | Shape::Float
        | Shape::Bool
        | Shape::IntOrString
        | Shape::Any => {}
    }
}

fn shape(schema: &Value, name: &str) -> Shape {
    let reference = schema["$ref"]
        .as_str()
        .or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        return Shape::Named(reference.trim_start_matches(REFERENCE_PREFIX).to_owned());
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("object"), _) => match (
            schema["properties"].as_object(),
            schema.get("additionalProperties"),
        ) {
            (Some(properties), _) => {
                let fields = properties
                    .iter()
                    .map(|(key, field)| (key.clone(), shape(field, key)))
                    .collect();
                let short = name.rsplit('.').next().unwrap_or(name).to_owned();
                let drops_empty_text = short == "ObjectMeta";
                Shape::Struct {
                    name: short,
                    fields,
                    drops_empty_text,
                }
            }
            (None, Some(values)) if values.is_object() => Shape::Map(Box::new(shape(values, name))),
            (None, _) => Shape::Any,
        },
        (Some("array"), _) => Shape::List(Box::new(shape(&schema["items"], name))),
        (Some("string"), Some("byte")) => Shape::Bytes,
        (Some("string"), Some("date-time")) => Shape::Time,
        (Some("string"), _) => Shape::Text,
        (Some("integer"), Some("int32")) => Shape::Int32,
        (Some("integer"), _) => Shape::Int64,
        (Some("number"), _) => Shape::Float,
        (Some("boolean"), _) => Shape::Bool,
        _ => Shape::Any,
    }
}

impl Types {
    /// Compiles the named definitions and all definitions that they reference.
    pub fn of(roots: impl IntoIterator<Item = &'static str>) -> Self {
        let mut shapes = HashMap::new();
        let mut pending: Vec<String> = roots.into_iter().map(str::to_owned).collect();
        while let Some(name) = pending.pop() {
            if shapes.contains_key(&name) {
                continue;
            }
            let Some(schema) = upstream::definition(&name) else {
                continue;
            };
            let shape = definition(&name, &schema);
            collect_names(&shape, &mut pending);
            shapes.insert(name, shape);
        }
        Self { shapes }
    }

    /// Decodes `value` as the definition `name`.
    pub fn decode(&self, name: &str, value: Value) -> Result<Decoded, DecodeTypeError> {
        let mut decoder = Decoder {
            types: self,
            unknown: Vec::new(),
        };
        let place = Place::root("", "");
        let value = decoder.decode(&Shape::Named(name.to_owned()), value, &place)?;
        Ok(Decoded {
            value: value.unwrap_or_else(|| Value::Object(Map::new())),
            unknown: decoder.unknown,
        })
    }

    /// Decodes an object's `metadata`. Paths start with `metadata`.
    pub fn decode_metadata(&self, value: Value) -> Result<Decoded, DecodeTypeError> {
        let mut decoder = Decoder {
            types: self,
            unknown: Vec::new(),
        };
        let place = Place::root("metadata", "ObjectMeta");
        let shape = Shape::Named(format!("{PACKAGE_META}ObjectMeta"));
        // Metadata of custom resources is decoded separately, so errors do not contain `metadata`.
        let value = decoder
            .decode(&shape, value, &place)
            .map_err(DecodeTypeError::without_metadata)?;
        Ok(Decoded {
            value: value.unwrap_or_else(|| Value::Object(Map::new())),
            unknown: decoder.unknown,
        })
    }
}

/// Decoding error, in the wording of Go's decoder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeTypeError {
    #[error(
        "json: cannot unmarshal {found} into Go {} of type {expected}",
        field.as_ref().map_or_else(|| "value".to_owned(), |field| format!("struct field {field}"))
    )]
    Mismatch {
        /// JSON type; for a number that is out of range, also the number.
        found: String,
        /// Struct and path. `None` for the whole value.
        field: Option<String>,
        expected: String,
    },
    #[error("illegal base64 data at input byte {position}")]
    Base64 { position: usize },
    #[error("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")]
    Time {
        text: String,
        layout: &'static str,
        rest: String,
        element: &'static str,
    },
}

impl DecodeTypeError {
    /// Removes `metadata` from the path of an error of separately decoded metadata.
    fn without_metadata(mut self) -> Self {
        if let Self::Mismatch {
            field: Some(field), ..
        } = &mut self
        {
            *field = field.replacen("ObjectMeta.metadata.", "ObjectMeta.", 1);
        }
        self
    }
}

/// Position of the decoder, for errors.
#[derive(Clone)]
struct Place {
    /// Full path with map keys, for example `spec.versions[0].name`.
    path: String,
    /// Path in Go's type errors: struct fields only.
    go_path: String,
    /// Struct that contains the field.
    go_struct: String,
}

impl Place {
    fn root(path: &str, go_struct: &str) -> Self {
        Self {
            path: path.to_owned(),
            go_path: path.to_owned(),
            go_struct: go_struct.to_owned(),
        }
    }

    fn field(&self, go_struct: &str, key: &str) -> Self {
        Self {
            path: join(&self.path, key),
            go_path: join(&self.go_path, key),
            go_struct: go_struct.to_owned(),
        }
    }

    fn key(&self, key: &str) -> Self {
        Self {
            path: join(&self.path, key),
            ..self.clone()
        }
    }

    fn item(&self, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.path),
            ..self.clone()
        }
    }

    fn mismatch(&self, value: &Value, expected: &str) -> DecodeTypeError {
        DecodeTypeError::Mismatch {
            found: type_name(value).to_owned(),
            field: match self.go_path.as_str() {
                "" => None,
                path => Some(format!("{}.{path}", self.go_struct)),
            },
            expected: expected.to_owned(),
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

struct Decoder<'a> {
    types: &'a Types,
    unknown: Vec<String>,
}

impl Decoder<'_> {
    /// Decodes a value. Returns `None` if the field is absent.
    fn decode(
        &mut self,
        shape: &Shape,
        value: Value,
        place: &Place,
    ) -> Result<Option<Value>, DecodeTypeError> {
        let value = match (shape, value) {
            (Shape::Any, value) => value,
            (_, Value::Null) => return Ok(None),
            (Shape::Named(name), value) => {
                let Some(shape) = self.types.shapes.get(name) else {
                    return Ok(Some(value));
                };
                return self.decode(shape, value, place);
            }
            (
                Shape::Struct {
                    name,
                    fields,
                    drops_empty_text,
                },
                Value::Object(object),
            ) => Value::Object(self.decode_struct(name, fields, *drops_empty_text, object, place)?),
            (Shape::Map(values), Value::Object(object)) => {
                let mut decoded = Map::new();
                for (key, value) in object {
                    let value = self.decode(values, value, &place.key(&key))?;
                    decoded.insert(key, value.unwrap_or_else(|| zero(values)));
                }
                if decoded.is_empty() {
                    return Ok(None);
                }
                Value::Object(decoded)
            }
            (Shape::List(items), Value::Array(array)) => {
                let mut decoded = Vec::with_capacity(array.len());
                for (index, item) in array.into_iter().enumerate() {
                    let item = self.decode(items, item, &place.item(index))?;
                    decoded.push(item.unwrap_or_else(|| zero(items)));
                }
                if decoded.is_empty() {
                    return Ok(None);
                }
                Value::Array(decoded)
            }
            (Shape::Text | Shape::IntOrString, value @ Value::String(_)) => value,
            (Shape::Bytes, Value::String(text)) => {
                check_base64(&text)?;
                Value::String(text)
            }
            (Shape::Time, Value::String(text)) => Value::String(parse_time(&text)?),
            (Shape::MicroTime, Value::String(text)) => Value::String(parse_micro_time(&text)?),
            (Shape::Int32, Value::Number(number)) => {
                let in_range = number
                    .as_i64()
                    .is_some_and(|number| i32::try_from(number).is_ok());
                if !in_range {
                    return Err(number_mismatch(place, &number, "int32"));
                }
                Value::Number(number)
            }
            (Shape::Int64, Value::Number(number)) => {
                if number.as_i64().is_none() {
                    return Err(number_mismatch(place, &number, "int64"));
                }
                Value::Number(number)
            }
            (Shape::IntOrString | Shape::Float, value @ Value::Number(_)) => value,
            (Shape::Bool, value @ Value::Bool(_)) => value,
            (Shape::SchemaOr(name), value @ Value::Object(_)) => {
                return self.decode(&Shape::Named(name.clone()), value, place);
            }
            (Shape::SchemaOr(name), Value::Array(items)) => {
                let named = Shape::Named(name.clone());
                let mut decoded = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    let item = if item.is_object() {
                        self.decode(&named, item, &place.item(index))?
                            .unwrap_or_else(|| zero(&named))
                    } else {
                        item
                    };
                    decoded.push(item);
                }
                Value::Array(decoded)
            }
            (Shape::SchemaOr(_), value) => value,
            (shape, value) => return Err(place.mismatch(&value, &self.go_type(shape))),
        };
        Ok(Some(value))
    }

    fn decode_struct(
        &mut self,
        name: &str,
        fields: &BTreeMap<String, Shape>,
        drops_empty_text: bool,
        object: Map<String, Value>,
        place: &Place,
    ) -> Result<Map<String, Value>, DecodeTypeError> {
        let mut decoded = Map::new();
        for (key, value) in object {
            let at = place.field(name, &key);
            let Some(shape) = fields.get(&key) else {
                self.unknown.push(at.path);
                continue;
            };
            let Some(value) = self.decode(shape, value, &at)? else {
                continue;
            };
            if !(drops_empty_text && value.as_str() == Some("")) {
                decoded.insert(key, value);
            }
        }
        Ok(decoded)
    }

    fn go_type(&self, shape: &Shape) -> String {
        match shape {
            Shape::Struct { name, .. } => format!("v1.{name}"),
            Shape::Map(values) => format!("map[string]{}", self.go_type(values)),
            Shape::List(items) => format!("[]{}", self.go_type(items)),
            Shape::Text => "string".to_owned(),
            Shape::Bytes => "[]uint8".to_owned(),
            Shape::Time => "v1.Time".to_owned(),
            Shape::MicroTime => "v1.MicroTime".to_owned(),
            Shape::Int32 => "int32".to_owned(),
            Shape::Int64 => "int64".to_owned(),
            Shape::Float => "float64".to_owned(),
            Shape::Bool => "bool".to_owned(),
            Shape::IntOrString => "intstr.IntOrString".to_owned(),
            Shape::SchemaOr(_) => "v1.JSONSchemaProps".to_owned(),
            Shape::Any => "interface {}".to_owned(),
            Shape::Named(name) => self
                .types
                .shapes
                .get(name)
                .map_or_else(|| name.clone(), |shape| self.go_type(shape)),
        }
    }
}

fn number_mismatch(place: &Place, number: &serde_json::Number, expected: &str) -> DecodeTypeError {
    let mut err = place.mismatch(&Value::Number(number.clone()), expected);
    if let DecodeTypeError::Mismatch { found, .. } = &mut err {
        *found = format!("number {number}");
    }
    err
}

/// Returns the value of `null` in a list or map.
fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Text | Shape::Bytes => Value::from(""),
        Shape::Int32 | Shape::Int64 | Shape::Float | Shape::IntOrString => Value::from(0),
        Shape::Bool => Value::from(false),
        Shape::Struct { .. } | Shape::Named(_) => Value::Object(Map::new()),
        Shape::Map(_) | Shape::List(_) | Shape::Time | Shape::MicroTime | Shape::SchemaOr(_) | Shape::Any => {
            Value::Null
        }
    }
}

fn check_base64(text: &str) -> Result<(), DecodeTypeError> {
    use base64::Engine as _;
    let compact: String = text.chars().filter(|char| !matches!(char, '\r' | '\n')).collect();
    base64::engine::general_purpose::STANDARD
        .decode(&compact)
        .map(drop)
        .map_err(|err| base64_fault(&err, &compact))
}

/// Returns the error of a text that is not base64.
pub fn base64_fault(err: &base64::DecodeError, text: &str) -> DecodeTypeError {
    let position = match *err {
        base64::DecodeError::InvalidByte(position, _)
        | base64::DecodeError::InvalidLastSymbol(position, _) => position,
        base64::DecodeError::InvalidLength(length) => length - length % 4,
        base64::DecodeError::InvalidPadding => text.len().saturating_sub(text.len() % 4),
    };
    DecodeTypeError::Base64 { position }
}

fn parse_time(text: &str) -> Result<String, DecodeTypeError> {
    let time = parse_rfc3339(text, "2006-01-02T15:04:05Z07:00")?;
    Ok(format_time(time))
}

/// Parses a time with exactly six decimals, as `metav1.MicroTime` requires.
fn parse_micro_time(text: &str) -> Result<String, DecodeTypeError> {
    const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
    let time = parse_rfc3339(text, LAYOUT)?;
    let tail = text.get(19..).unwrap_or_default();
    let digits = tail.strip_prefix('.').map_or(0, |fraction| {
        fraction.bytes().take_while(u8::is_ascii_digit).count()
    });
    if digits != 6 {
        return Err(DecodeTypeError::Time {
            text: text.to_owned(),
            layout: LAYOUT,
            rest: tail.to_owned(),
            element: ".000000",
        });
    }
    Ok(format_micro_time(time))
}

fn parse_rfc3339(text: &str, layout: &'static str) -> Result<Timestamp, DecodeTypeError> {
    let well_formed = text.len() >= 20 && text.as_bytes().get(10) == Some(&b'T');
    let parsed = if well_formed {
        text.parse::<Timestamp>().ok()
    } else {
        None
    };
    parsed.ok_or_else(|| DecodeTypeError::Time {
        text: text.to_owned(),
        layout,
        rest: text.to_owned(),
        element: "2006",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CRD: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";

    fn types() -> Types {
        Types::of([CONFIG_MAP, LEASE, CRD, "io.k8s.api.core.v1.Secret"])
    }

    const CONFIG_MAP: &str = "io.k8s.api.core.v1.ConfigMap";
    const LEASE: &str = "io.k8s.api.coordination.v1.Lease";

    #[test]
    fn drops_unknown_fields_and_nulls() {
        let body = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "1"}, "binaryData": null,
            "bogus": 1, "metadata": {"name": "x", "creationTimestamp": null, "labels": {}, "odd": {"a": 1}}});
        let got = types().decode(CONFIG_MAP, body).expect("decodes");
        let expect =
            json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a": "1"}, "metadata": {"name": "x"}});
        assert_eq!(got.value, expect);
        assert_eq!(got.unknown, ["bogus", "metadata.odd"]);
    }

    #[test]
    fn type_errors_match_go_wording() {
        let check = |definition: &str, body: Value, expect: &str| {
            let err = types().decode(definition, body).expect_err(expect);
            assert_eq!(err.to_string(), expect);
        };
        check(
            CONFIG_MAP,
            json!({"data": {"a": 1}}),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        );
        check(
            CONFIG_MAP,
            json!({"metadata": {"labels": "x"}}),
            "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        );
        check(
            LEASE,
            json!({"spec": {"leaseDurationSeconds": "1"}}),
            "json: cannot unmarshal string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
        );
        check(
            "io.k8s.api.core.v1.Secret",
            json!({"data": {"a": "*"}}),
            "illegal base64 data at input byte 0",
        );
    }

    #[test]
    fn micro_time_requires_and_writes_six_decimals() {
        let lease = |time: &str| types().decode(LEASE, json!({"spec": {"renewTime": time}}));
        let got = lease("2026-01-02T03:04:05.000600+01:00")
            .expect("six decimals")
            .value;
        assert_eq!(got["spec"]["renewTime"], "2026-01-02T02:04:05.000600Z");
        let err = lease("2026-01-02T03:04:05.5Z")
            .expect_err("one decimal")
            .to_string();
        assert!(err.ends_with("cannot parse \".5Z\" as \".000000\""), "{err}");
        assert!(lease("yesterday").is_err());
    }

    #[test]
    fn decodes_nested_schemas() {
        let crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
            "properties": {"spec": {"additionalProperties": {"type": "string", "oops": 1}, "default": {"a": null}}}}}}]}});
        let got = types().decode(CRD, crd).expect("decodes");
        assert_eq!(
            got.unknown,
            ["spec.versions[0].schema.openAPIV3Schema.properties.spec.additionalProperties.oops"]
        );
    }
}
