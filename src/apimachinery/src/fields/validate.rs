//! Check of a value against a type schema.

use serde_json::Value;

use super::item::element_of;
use super::path_element::PathElement;
use super::schema::{Form, ListMerge, ListType, MapType, Scalar, TypeId, TypeSchema};
use super::type_fault::{TypeFault, TypeFaults};
use rooflet_schema::gotext;

impl TypeSchema {
    /// Checks an object. Two items of a list with the same identity are a violation.
    pub(super) fn validate(&self, object: &Value) -> Result<(), TypeFaults> {
        TypeFaults::result(self.faults(self.root, object))
    }

    fn faults(&self, id: TypeId, value: &Value) -> Vec<TypeFault> {
        match self.form(id, Some(value)) {
            Form::Scalar(scalar) => check_scalar(scalar, Some(value), "")
                .err()
                .map_or_else(Vec::new, |err| err.0),
            Form::List(list) => self.list_faults(list, value),
            Form::Map(map) => self.map_faults(map, value),
            Form::Invalid => TypeFaults::one("schema error: invalid atom: inlined").0,
        }
    }

    fn list_faults(&self, list: &ListType, value: &Value) -> Vec<TypeFault> {
        let items = match value {
            Value::Null => return Vec::new(),
            Value::Array(items) => items,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                return TypeFaults::one(format!("expected list, got {}", shown(value))).0;
            }
        };
        let mut faults = Vec::new();
        let mut seen = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let element = if list.merge == ListMerge::Atomic {
                PathElement::Index(index as u64)
            } else {
                match element_of(self, list, item) {
                    Ok(element) => element,
                    Err(err) => {
                        faults.extend(err.0.into_iter().map(|fault| TypeFault {
                            message: format!("element {index}: {}", fault.message),
                            ..fault
                        }));
                        return faults;
                    }
                }
            };
            if list.merge != ListMerge::Atomic {
                match seen.binary_search(&element) {
                    Ok(_) => faults.extend(TypeFaults::one(format!("duplicate entries for key {element}")).0),
                    Err(place) => seen.insert(place, element.clone()),
                }
            }
            let below = TypeFaults(self.faults(list.items, item)).below(&element);
            faults.extend(below.0);
        }
        faults
    }

    fn map_faults(&self, map: &MapType, value: &Value) -> Vec<TypeFault> {
        let fields = match value {
            Value::Null => return Vec::new(),
            Value::Object(fields) => fields,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return TypeFaults::one(format!("expected map, got {}", shown(value))).0;
            }
        };
        let mut faults = Vec::new();
        for (name, field) in fields {
            let step = format!(".{name}");
            let Some(id) = map.field(name) else {
                faults.extend(TypeFaults::one("field not declared in schema").below(&step).0);
                return faults;
            };
            faults.extend(TypeFaults(self.faults(id, field)).below(&step).0);
        }
        faults
    }
}

/// Checks a scalar. Missing values and null are valid. `prefix` starts the message.
pub(super) fn check_scalar(scalar: Scalar, value: Option<&Value>, prefix: &str) -> Result<(), TypeFaults> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(());
    };
    let (is_valid, expected) = match scalar {
        Scalar::Number => (value.is_number(), "numeric (int or float)"),
        Scalar::Text => (value.is_string(), "string"),
        Scalar::Boolean => (value.is_boolean(), "boolean"),
        Scalar::Any => (!value.is_array() && !value.is_object(), "any scalar"),
    };
    if is_valid {
        return Ok(());
    }
    let found = match scalar {
        Scalar::Number => go_type(value).to_owned(),
        Scalar::Text => format!("&value.valueUnstructured{{Value:{}}}", go_syntax(value)),
        Scalar::Boolean | Scalar::Any => shown(value),
    };
    Err(TypeFaults::one(format!(
        "{prefix}expected {expected}, got {found}"
    )))
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Returns the text of a value in an error: Go's `%v` of a pointer to the value.
fn shown(value: &Value) -> String {
    format!("&{{{}}}", go_text(value))
}

/// Formats a value like Go's `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => gotext::quote(text),
        Value::Number(number) => gotext::number(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, field)| format!("{}:{}", gotext::quote(name), go_syntax(field)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
    }
}

/// Formats a value like Go's `%v`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => gotext::number(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_text).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, field)| format!("{name}:{}", go_text(field)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}
