//! Identity of the items of a list.

use serde_json::Value;

use super::path_element::PathElement;
use super::schema::{Field, ListMerge, ListType, TypeSchema};
use super::type_fault::TypeFaults;

/// Returns the path element of an item of a list that is not atomic.
pub(super) fn element_of(
    schema: &TypeSchema,
    list: &ListType,
    item: &Value,
) -> Result<PathElement, TypeFaults> {
    match &list.merge {
        ListMerge::Keyed(keys) => keyed(schema, list, keys, item),
        ListMerge::Set => set_item(item),
        ListMerge::Atomic => Err(TypeFaults::one("invalid indexing of non-associative list")),
    }
}

fn keyed(
    schema: &TypeSchema,
    list: &ListType,
    keys: &[String],
    item: &Value,
) -> Result<PathElement, TypeFaults> {
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err(TypeFaults::one(
                "associative list with keys may not have a null element",
            ));
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(TypeFaults::one(
                "associative list with keys may not have non-map elements",
            ));
        }
    };
    let declared = schema.get(list.items).map.as_ref();
    let default_of = |key: &String| -> Option<&Value> {
        let Field { default, .. } = declared?.fields.get(key)?;
        default.as_ref()
    };
    let mut element: Vec<(String, Value)> = keys
        .iter()
        .filter_map(|key| {
            let value = fields.get(key).or_else(|| default_of(key))?;
            Some((key.clone(), value.clone()))
        })
        .collect();
    if element.is_empty() {
        let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(TypeFaults::one(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default \
             values for any key fields)",
            keys.join(" ")
        )));
    }
    element.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(PathElement::Key(element))
}

fn set_item(item: &Value) -> Result<PathElement, TypeFaults> {
    let reason = match item {
        Value::Object(_) => "associative list without keys has an element that's a map type",
        Value::Array(_) => "not supported: associative list with lists as elements",
        Value::Null => "associative list without keys has an element that's an explicit null",
        Value::Number(_) | Value::String(_) | Value::Bool(_) => return Ok(PathElement::Item(item.clone())),
    };
    Err(TypeFaults::one(reason))
}

/// Returns the path elements of all items, in order.
pub(super) fn elements_of(
    schema: &TypeSchema,
    list: &ListType,
    items: &[Value],
) -> Result<Vec<PathElement>, TypeFaults> {
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            element_of(schema, list, item).map_err(|mut faults| {
                for fault in &mut faults.0 {
                    fault.message = format!("element {index}: {}", fault.message);
                }
                faults
            })
        })
        .collect()
}
