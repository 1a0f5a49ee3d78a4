//! Merge of an applied configuration into an object.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::item::elements_of;
use super::path_element::PathElement;
use super::schema::{Form, ListMerge, ListType, MapType, TypeId, TypeSchema};
use super::type_fault::TypeFaults;
use super::validate::check_scalar;
use super::value::{fields_of, items_of};

impl TypeSchema {
    /// Merges `applied` into `live`. The merge removes no field. If both set a field, the result has
    /// the applied value.
    pub(super) fn merge(&self, live: &Value, applied: &Value) -> Result<Value, TypeFaults> {
        let merged = self.merge_values(self.root, Some(live), Some(applied))?;
        Ok(merged.unwrap_or(Value::Null))
    }

    /// Merges two values of a type. At most one of them is missing. Returns `None` for an empty
    /// result.
    fn merge_values(
        &self,
        id: TypeId,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Result<Option<Value>, TypeFaults> {
        let form = if applied.is_none() {
            self.form(id, live)
        } else {
            self.form(id, applied)
        };
        let whole = || applied.or(live).cloned();
        match form {
            Form::Scalar(scalar) => {
                let errors = (
                    check_scalar(scalar, live, "lhs: "),
                    check_scalar(scalar, applied, "rhs: "),
                );
                if let (Err(mut first), Err(second)) = errors {
                    first.0.extend(second.0);
                    return Err(first);
                }
                Ok(whole())
            }
            Form::List(list) => {
                let (live_items, applied_items) = (items_of(live), items_of(applied));
                if list.merge == ListMerge::Atomic || (live_items.is_empty() && applied_items.is_empty()) {
                    return Ok(whole());
                }
                let items = self.merge_items(list, live_items, applied_items)?;
                Ok((!items.is_empty()).then_some(Value::Array(items)))
            }
            Form::Map(map) => {
                let (live_fields, applied_fields) = (fields_of(live), fields_of(applied));
                if map.is_atomic || (live_fields.is_none() && applied_fields.is_none()) {
                    return Ok(whole());
                }
                let fields = self.merge_fields(map, live_fields, applied_fields)?;
                Ok((!fields.is_empty()).then_some(Value::Object(fields)))
            }
            Form::Invalid => Err(TypeFaults::one("schema error: invalid atom: inlined")),
        }
    }

    fn merge_fields(
        &self,
        map: &MapType,
        live: Option<&Map<String, Value>>,
        applied: Option<&Map<String, Value>>,
    ) -> Result<Map<String, Value>, TypeFaults> {
        let mut merged = Map::new();
        let names: BTreeSet<&String> = live
            .into_iter()
            .chain(applied)
            .flat_map(|fields| fields.keys())
            .collect();
        for name in names {
            let of =
                |fields: Option<&'_ Map<String, Value>>| fields.and_then(|fields| fields.get(name)).cloned();
            let (live, applied) = (of(live), of(applied));
            let Some(id) = map.field(name) else {
                // A live field that the schema does not declare stays.
                merged.extend(applied.or(live).map(|value| (name.clone(), value)));
                continue;
            };
            let value = self
                .merge_values(id, live.as_ref(), applied.as_ref())
                .map_err(|err| err.below(&format_args!(".{name}")))?;
            merged.extend(value.map(|value| (name.clone(), value)));
        }
        Ok(merged)
    }

    /// Merges two lists of items with an identity. Shared items are in the order of `applied`. A
    /// live item stays behind the shared items that it followed.
    fn merge_items(
        &self,
        list: &ListType,
        live: &[Value],
        applied: &[Value],
    ) -> Result<Vec<Value>, TypeFaults> {
        let applied_elements = elements_of(self, list, applied)?;
        let live_elements = elements_of(self, list, live)?;
        let mut applied_by_element: BTreeMap<&PathElement, &Value> = BTreeMap::new();
        for (element, item) in applied_elements.iter().zip(applied) {
            if applied_by_element.insert(element, item).is_some() {
                return Err(TypeFaults::one(format!("duplicate entries for key {element}")));
            }
        }
        // Repeated live items are not merged; an applied item replaces all of them.
        let mut live_by_element: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
        for (element, item) in live_elements.iter().zip(live) {
            live_by_element
                .entry(element)
                .and_modify(|known| *known = None)
                .or_insert(Some(item));
        }
        let merge_item = |element: &PathElement, live: Option<&Value>, applied: Option<&Value>| {
            self.merge_values(list.items, live, applied)
                .map_err(|err| err.below(element))
        };
        let merge_applied = |element: &PathElement| {
            let live = live_by_element.get(element).copied().flatten();
            merge_item(element, live, applied_by_element.get(element).copied())
        };
        let mut shared = applied_elements
            .iter()
            .filter(|element| live_by_element.contains_key(element))
            .peekable();
        let mut merged = Vec::with_capacity(live.len().max(applied.len()));
        let mut emitted: BTreeSet<&PathElement> = BTreeSet::new();
        let (mut next_live, mut next_applied) = (0, 0);
        loop {
            let live_element = live_elements.get(next_live);
            let applied_element = applied_elements.get(next_applied);
            if let (Some(live_element), Some(applied_element)) = (live_element, applied_element) {
                if live_element == applied_element {
                    merged.extend(merge_applied(applied_element)?);
                    emitted.insert(applied_element);
                    (next_live, next_applied) = (next_live + 1, next_applied + 1);
                    shared.next();
                    continue;
                }
                let is_shared = applied_by_element.contains_key(live_element);
                if is_shared && shared.peek().is_some_and(|next| *next != live_element) {
                    // `applied` has this item later.
                    next_live += 1;
                    continue;
                }
            }
            if let Some(element) = live_element {
                if !applied_by_element.contains_key(element) {
                    merged.extend(merge_item(element, live.get(next_live), None)?);
                    next_live += 1;
                    continue;
                }
                if emitted.contains(element) {
                    next_live += 1;
                }
            }
            match applied_element {
                Some(element) => {
                    merged.extend(merge_applied(element)?);
                    emitted.insert(element);
                    next_applied += 1;
                    if shared.peek() == Some(&element) {
                        shared.next();
                    }
                }
                None if live_element.is_none() => return Ok(merged),
                None => {}
            }
        }
    }
}
