//! Values of expressions as JSON, and the types of object literals.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_cel::cel::{
    Value as Cel,
    objects::{Key, OptionalValue},
};
use serde_json::{Map, Number, Value};

use rooflet_schema::cel::message::TYPE;

/// Maximum integer that a float represents exactly.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Returns the name of the type of an object literal.
pub(crate) fn type_of(value: &Cel) -> Option<&str> {
    let Cel::Map(map) = value else { return None };
    match map.map.get(&Key::from(TYPE.to_owned())) {
        Some(Cel::String(name)) => Some(name.as_str()),
        Some(_) | None => None,
    }
}

/// Returns the fields of an object literal.
pub(crate) fn fields(value: &Cel) -> Option<impl Iterator<Item = (&str, &Cel)>> {
    let Cel::Map(map) = value else { return None };
    Some(map.map.iter().filter_map(|(key, value)| match key {
        Key::String(name) if name.as_str() != TYPE => Some((name.as_str(), value)),
        Key::String(_) | Key::Int(_) | Key::Uint(_) | Key::Bool(_) => None,
    }))
}

/// Checks that the types of literals are the paths of their fields. The error has a line per fault.
pub(crate) fn check_types(value: &Cel, path: &str) -> Result<(), String> {
    let mut faults = Vec::new();
    find_faults(value, path, &mut faults);
    match faults.is_empty() {
        true => Ok(()),
        false => Err(faults.join("\n")),
    }
}

fn find_faults(value: &Cel, path: &str, faults: &mut Vec<String>) {
    if let Some(name) = type_of(value) {
        if name != path {
            faults.push(format!(
                "unexpected type name {name:?}, expected {path:?}, which matches field name path from root Object type"
            ));
        }
        for (field, value) in fields(value).into_iter().flatten() {
            find_faults(value, &format!("{path}.{field}"), faults);
        }
    } else if let Cel::List(items) = value {
        items.iter().for_each(|item| find_faults(item, path, faults));
    } else if let Cel::Map(map) = value {
        map.map
            .values()
            .for_each(|entry| find_faults(entry, path, faults));
    }
}

/// Converts a value to JSON, without the types of object literals.
pub(crate) fn to_json(value: &Cel) -> Result<Value, String> {
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(flag) => Value::Bool(*flag),
        Cel::Int(number) => Value::from(*number),
        Cel::UInt(number) => Value::from(*number),
        Cel::Float(number) if number.fract() == 0.0 && number.abs() <= EXACT_MAX => {
            Value::from(*number as i64)
        }
        Cel::Float(number) => Number::from_f64(*number)
            .map(Value::Number)
            .ok_or("a number is not finite")?,
        Cel::String(text) => Value::from(text.as_str()),
        Cel::Bytes(bytes) => Value::from(STANDARD.encode(bytes.as_slice())),
        Cel::List(items) => Value::Array(items.iter().map(to_json).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map.map.iter() {
                let Key::String(name) = key else {
                    return Err(format!("map key {key} is not a string"));
                };
                if name.as_str() != TYPE {
                    object.insert(name.as_str().to_owned(), to_json(value)?);
                }
            }
            Value::Object(object)
        }
        Cel::Opaque(_) => match <&OptionalValue>::try_from(value).map(OptionalValue::value) {
            Ok(Some(inner)) => to_json(inner)?,
            Ok(None) => Value::Null,
            Err(_) => return Err("the value has no JSON form".to_owned()),
        },
        Cel::Function(..) | Cel::Duration(_) | Cel::Timestamp(_) => {
            return Err("the value has no JSON form: convert it with string()".to_owned());
        }
    })
}
