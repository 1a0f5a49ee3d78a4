//! Compiled node of an `openAPIV3Schema`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Number, Value};

use super::{cel::Rule, format::Format, pattern::Pattern, types::Types};

/// Compiler of the `x-kubernetes-validations` of a node. Its fields and items are already compiled.
pub(super) type CompileRules = fn(Option<&Value>, &Node) -> Vec<Rule>;

/// Schema of fields without a property.
#[derive(Debug, Default)]
pub(super) enum Additional {
    /// Keyword not set: unknown fields are pruned.
    #[default]
    Unset,
    /// `additionalProperties: true`.
    Any,
    /// `additionalProperties: false`.
    Forbidden,
    Schema(Box<Node>),
}

/// Identity of the items of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum ListType {
    #[default]
    Atomic,
    Set,
    /// Items are objects with these key fields.
    Map(Vec<String>),
}

/// Features of a node and its descendants. A walk skips subtrees without the feature it handles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contents {
    pub(super) defaults: bool,
    pub(super) unique_lists: bool,
    pub(super) rules: bool,
    pub(super) embedded: bool,
}

impl Contents {
    fn merge(&mut self, other: Contents) {
        self.defaults |= other.defaults;
        self.unique_lists |= other.unique_lists;
        self.rules |= other.rules;
        self.embedded |= other.embedded;
    }
}

/// Keywords of [`Checks`].
const CHECKS: [&str; 19] = [
    "maximum",
    "minimum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "multipleOf",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "maxProperties",
    "minProperties",
    "required",
    "enum",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
];

/// Checks of the many nodes without such keywords.
static NO_CHECKS: LazyLock<Checks> = LazyLock::new(Checks::default);

/// Constraints on values beyond their type.
#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) maximum: Option<Number>,
    pub(super) exclusive_maximum: bool,
    pub(super) minimum: Option<Number>,
    pub(super) exclusive_minimum: bool,
    pub(super) multiple_of: Option<Number>,
    pub(super) max_length: Option<u64>,
    pub(super) min_length: Option<u64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) max_items: Option<u64>,
    pub(super) min_items: Option<u64>,
    pub(super) unique_items: bool,
    pub(super) max_properties: Option<u64>,
    pub(super) min_properties: Option<u64>,
    pub(super) required: Vec<String>,
    pub(super) allowed: Vec<Value>,
    pub(super) all_of: Vec<Node>,
    pub(super) any_of: Vec<Node>,
    pub(super) one_of: Vec<Node>,
    pub(super) not: Option<Box<Node>>,
}

/// Compiled schema node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) types: Types,
    pub(super) format: Option<Format>,
    pub(super) nullable: bool,
    pub(super) preserve_unknown: bool,
    pub(super) embedded: bool,
    pub(super) default: Option<Value>,
    /// Boxed, because a map allocates the space of 11 values at once.
    properties: BTreeMap<String, Box<Node>>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Node>>,
    pub(super) list_type: ListType,
    checks: Option<Box<Checks>>,
    pub(super) rules: Vec<Rule>,
    pub(super) contents: Contents,
}

impl Node {
    /// Compiles a valid schema. Ignores keywords that the `accept` module rejects.
    pub(super) fn compile(schema: &Value, rules: CompileRules) -> Node {
        let Some(schema) = schema.as_object() else {
            return Node::default();
        };
        let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let int_or_string = flag("x-kubernetes-int-or-string");
        let types = if int_or_string {
            Types::INTEGER_OR_STRING
        } else {
            text("type").map(Types::named).unwrap_or_default()
        };
        let properties: BTreeMap<String, Box<Node>> = members(schema, "properties")
            .map(|(name, property)| (name.clone(), Box::new(Node::compile(property, rules))))
            .collect();
        let additional = match schema.get("additionalProperties") {
            None => Additional::Unset,
            Some(Value::Bool(false)) => Additional::Forbidden,
            Some(Value::Object(inner)) => {
                Additional::Schema(Box::new(Node::compile(&Value::Object(inner.clone()), rules)))
            }
            Some(_) => Additional::Any,
        };
        let items = schema
            .get("items")
            .map(|items| Box::new(Node::compile(items, rules)));
        let list_type = match text("x-kubernetes-list-type") {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(texts(schema, "x-kubernetes-list-map-keys")),
            Some(_) | None => ListType::Atomic,
        };
        let mut node = Node {
            types,
            format: text("format").and_then(|name| Format::recognise(types, name)),
            nullable: flag("nullable"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            default: schema
                .get("default")
                .filter(|default| !default.is_null())
                .cloned(),
            properties,
            additional,
            items,
            list_type,
            checks: CHECKS
                .iter()
                .any(|key| schema.contains_key(*key))
                .then(|| Box::new(Checks::compile(schema, rules))),
            rules: Vec::new(),
            contents: Contents::default(),
        };
        node.rules = rules(schema.get("x-kubernetes-validations"), &node);
        node.contents = node.survey();
        node
    }

    fn survey(&self) -> Contents {
        let mut contents = Contents {
            defaults: self.default.is_some(),
            unique_lists: self.list_type != ListType::Atomic,
            rules: !self.rules.is_empty(),
            embedded: self.embedded,
        };
        for child in self
            .properties
            .values()
            .map(Box::as_ref)
            .chain(self.items.as_deref())
            .chain(self.additional_schema())
        {
            contents.merge(child.contents);
        }
        contents
    }

    /// Returns the schema of `additionalProperties`, if there is one.
    pub(super) fn additional_schema(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
            Additional::Unset | Additional::Any | Additional::Forbidden => None,
        }
    }

    /// Returns the node of a field: its property, or the schema of `additionalProperties`.
    pub(super) fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or_else(|| self.additional_schema())
    }

    pub(super) fn property(&self, name: &str) -> Option<&Node> {
        self.properties.get(name).map(Box::as_ref)
    }

    /// Returns the properties in the order of their names.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&String, &Node)> {
        self.properties.iter().map(|(name, node)| (name, &**node))
    }

    pub(super) fn has_properties(&self) -> bool {
        !self.properties.is_empty()
    }

    pub(super) fn checks(&self) -> &Checks {
        self.checks.as_deref().unwrap_or(&NO_CHECKS)
    }
}

impl Checks {
    fn compile(schema: &Map<String, Value>, rules: CompileRules) -> Checks {
        let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or_default();
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let number = |key: &str| schema.get(key).and_then(Value::as_number).cloned();
        let nodes = |key: &str| -> Vec<Node> {
            schema
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|schema| Node::compile(schema, rules))
                .collect()
        };
        let pattern = schema
            .get("pattern")
            .and_then(Value::as_str)
            .filter(|pattern| !pattern.is_empty());
        Checks {
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: pattern.map(Pattern::new),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            unique_items: flag("uniqueItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: texts(schema, "required"),
            allowed: schema
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            all_of: nodes("allOf"),
            any_of: nodes("anyOf"),
            one_of: nodes("oneOf"),
            not: schema.get("not").map(|not| Box::new(Node::compile(not, rules))),
        }
    }
}

/// Returns the members of an object-valued keyword.
pub fn members<'a>(
    schema: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    schema.get(key).and_then(Value::as_object).into_iter().flatten()
}

/// Returns the strings of an array-valued keyword.
pub fn texts(schema: &Map<String, Value>, key: &str) -> Vec<String> {
    let items = schema.get(key).and_then(Value::as_array);
    items
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
