//! Construction of type schemas from OpenAPI schemas.

use std::collections::BTreeMap;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::schema::{
    DEDUCED, Field, ListMerge, ListType, MapType, Scalar, Type, TypeId, TypeSchema, UNTYPED,
};
use crate::builtin::{self, REFERENCE_PREFIX};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const CRD_TYPES: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";
/// Types of CustomResourceDefinitions that accept any JSON. The generated definitions are narrower.
const ANY_JSON: [&str; 4] = [
    "JSON",
    "JSONSchemaPropsOrArray",
    "JSONSchemaPropsOrBool",
    "JSONSchemaPropsOrStringArray",
];
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

impl TypeSchema {
    /// Returns the schema of a built-in kind by the name of its definition. If there is no such
    /// definition, objects merge by field and lists as a whole.
    pub fn of_definition(name: &str) -> Self {
        let mut builder = Builder::new();
        let root = builder.named(name);
        builder.finish(root)
    }

    /// Returns the schema of a custom resource from its `openAPIV3Schema`. Without a schema, objects
    /// merge by field and lists as a whole.
    pub fn of_custom_resource(schema: &Value) -> Self {
        let mut builder = Builder::new();
        let mut root = schema.clone();
        let is_typed = root.as_object().is_some_and(|root| !root.is_empty());
        if is_typed {
            add_object_fields(&mut root);
        }
        let root = if is_typed {
            builder.add(&root, false)
        } else {
            DEDUCED
        };
        builder.finish(root)
    }
}

/// Declares the fields that every object has.
fn add_object_fields(schema: &mut Value) {
    let text = json!({"type": "string"});
    let metadata = json!({"$ref": format!("{REFERENCE_PREFIX}{OBJECT_META}")});
    if let Some(schema) = schema.as_object_mut() {
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            for (name, field) in [("apiVersion", &text), ("kind", &text), ("metadata", &metadata)] {
                properties.insert(name.to_owned(), field.clone());
            }
        }
    }
}

struct Builder {
    types: Vec<Type>,
    /// Types of definitions, by name and by the relationship that the reference sets.
    named: HashMap<(String, Option<bool>), TypeId>,
}

impl Builder {
    fn new() -> Self {
        Self {
            types: TypeSchema::common_types(),
            named: HashMap::new(),
        }
    }

    fn finish(self, root: TypeId) -> TypeSchema {
        TypeSchema {
            types: self.types,
            root,
        }
    }

    fn reserve(&mut self) -> TypeId {
        self.types.push(Type::default());
        TypeId(self.types.len() - 1)
    }

    fn named(&mut self, name: &str) -> TypeId {
        self.reference(name, None)
    }

    /// Adds a definition. `is_atomic` replaces the definition's `x-kubernetes-map-type`. Definitions
    /// may be recursive.
    fn reference(&mut self, name: &str, is_atomic: Option<bool>) -> TypeId {
        let key = (name.to_owned(), is_atomic);
        if let Some(id) = self.named.get(&key) {
            return *id;
        }
        let Some(definition) = builtin::definition(name) else {
            return DEDUCED;
        };
        if name == RAW_EXTENSION {
            return UNTYPED;
        }
        if name
            .strip_prefix(CRD_TYPES)
            .is_some_and(|name| ANY_JSON.contains(&name))
        {
            return DEDUCED;
        }
        let id = self.reserve();
        self.named.insert(key, id);
        let mut built = if name == QUANTITY {
            scalar(Scalar::Any)
        } else {
            self.build(&definition, false)
        };
        if let (Some(is_atomic), Some(map)) = (is_atomic, &mut built.map) {
            map.is_atomic = is_atomic;
        }
        self.types[id.0] = built;
        id
    }

    /// Adds the type of a schema. `keeps_unknown` is true below a node with
    /// `x-kubernetes-preserve-unknown-fields`.
    fn add(&mut self, schema: &Value, keeps_unknown: bool) -> TypeId {
        let reference = schema["$ref"]
            .as_str()
            .or_else(|| schema["allOf"][0]["$ref"].as_str());
        if let Some(reference) = reference {
            let name = reference.trim_start_matches(REFERENCE_PREFIX);
            return self.reference(name, map_relationship(schema));
        }
        let id = self.reserve();
        self.types[id.0] = self.build(schema, keeps_unknown);
        id
    }

    fn build(&mut self, schema: &Value, keeps_unknown: bool) -> Type {
        let keeps_unknown = keeps_unknown || flag(schema, "x-kubernetes-preserve-unknown-fields");
        let type_name = if flag(schema, "x-kubernetes-int-or-string") {
            None
        } else {
            schema["type"].as_str()
        };
        match (type_name, schema["format"].as_str()) {
            (Some("object"), _) => Type {
                map: Some(self.map(schema, keeps_unknown)),
                ..Type::default()
            },
            (Some("array"), _) => Type {
                list: Some(self.list(schema, keeps_unknown)),
                ..Type::default()
            },
            (Some("integer" | "number"), _) => scalar(Scalar::Number),
            (Some("boolean"), _) => scalar(Scalar::Boolean),
            (Some("string"), None | Some("" | "byte")) => scalar(Scalar::Text),
            (Some(_), _) => scalar(Scalar::Any),
            (None, _) => Type {
                scalar: Some(Scalar::Any),
                list: Some(self.list(schema, keeps_unknown)),
                map: Some(self.map(schema, keeps_unknown)),
            },
        }
    }

    fn map(&mut self, schema: &Value, keeps_unknown: bool) -> MapType {
        let mut properties = schema["properties"].clone();
        if flag(schema, "x-kubernetes-embedded-resource") {
            let mut embedded = json!({"properties": properties});
            add_object_fields(&mut embedded);
            properties = embedded["properties"].take();
        }
        let fields: BTreeMap<String, Field> = properties
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, field)| {
                let default = field.get("default").filter(|default| !default.is_null());
                let field = Field {
                    type_id: self.add(field, keeps_unknown),
                    default: default.cloned(),
                };
                (name.clone(), field)
            })
            .collect();
        let rest = match schema.get("additionalProperties") {
            None if keeps_unknown || fields.is_empty() => Some(DEDUCED),
            None | Some(Value::Bool(false)) => None,
            Some(values @ Value::Object(_)) => Some(self.add(values, keeps_unknown)),
            Some(_) => Some(DEDUCED),
        };
        MapType {
            fields,
            rest,
            is_atomic: map_relationship(schema).unwrap_or_default(),
        }
    }

    fn list(&mut self, schema: &Value, keeps_unknown: bool) -> ListType {
        let text = |key: &str| schema[key].as_str();
        let merge = match (
            text("x-kubernetes-list-type"),
            text("x-kubernetes-patch-strategy"),
        ) {
            (Some("set"), _) => ListMerge::Set,
            (Some("map"), _) => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                ListMerge::Keyed(keys.map(str::to_owned).collect())
            }
            (None, Some(strategy)) if strategy.starts_with("merge") => {
                match text("x-kubernetes-patch-merge-key") {
                    Some(key) => ListMerge::Keyed(vec![key.to_owned()]),
                    None => ListMerge::Set,
                }
            }
            _ => ListMerge::Atomic,
        };
        let items = match schema.get("items") {
            Some(items) => self.add(items, keeps_unknown),
            None => UNTYPED,
        };
        ListType { items, merge }
    }
}

fn scalar(scalar: Scalar) -> Type {
    Type {
        scalar: Some(scalar),
        ..Type::default()
    }
}

fn flag(schema: &Value, key: &str) -> bool {
    schema[key].as_bool().unwrap_or_default()
}

/// Returns true for atomic objects, false for granular ones, `None` if the schema does not specify it.
fn map_relationship(schema: &Value) -> Option<bool> {
    match schema["x-kubernetes-map-type"].as_str() {
        Some("atomic") => Some(true),
        Some("granular") => Some(false),
        _ => None,
    }
}
