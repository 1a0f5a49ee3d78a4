//! `fieldsV1`: the JSON form of a field set.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::field_set::{FieldSet, Node};
use super::path_element::{ParseElementError, PathElement};

/// Key that marks a field which belongs to the set and has fields of the set below it.
const SELF: &str = ".";

impl Serialize for FieldSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.nodes().len()))?;
        for (element, node) in self.nodes() {
            map.serialize_entry(&element.encode(), node)?;
        }
        map.end()
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.is_member && !self.children.is_empty() {
            map.serialize_entry(SELF, &serde_json::Map::new())?;
        }
        for (element, node) in self.children.nodes() {
            map.serialize_entry(&element.encode(), node)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for FieldSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(NodeVisitor)
            .map(|node| node.children)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut is_member = false;
        let mut nodes = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            if key == SELF {
                map.next_value::<IgnoredAny>()?;
                is_member = true;
                continue;
            }
            match PathElement::parse(&key) {
                Ok(element) => nodes.push((element, map.next_value()?)),
                // Fields of later versions of the format are dropped, as by kube-apiserver.
                Err(ParseElementError::UnknownKind(_)) => drop(map.next_value::<IgnoredAny>()?),
                Err(err) => return Err(A::Error::custom(err)),
            }
        }
        let children = FieldSet::of_nodes(nodes);
        Ok(Node {
            is_member: is_member || children.is_empty(),
            children,
        })
    }
}

/// Key of a JSON object, borrowed from the text if it contains no escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(json: &str, expect: &str) {
        let set: FieldSet = serde_json::from_str(json).expect(json);
        assert_eq!(serde_json::to_string(&set).expect("JSON"), expect, "{json}");
    }

    #[test]
    fn encoding_keeps_members_and_sorts_fields() {
        let sorted = r#"{"f:a":{},"f:b":{".":{},"f:c":{}},"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:v":{}}}}"#;
        check(sorted, sorted);
        check(
            r#"{"f:b":{"f:c":{},".":{}},"f:a":{},"f:b":{"f:d":{}}}"#,
            r#"{"f:a":{},"f:b":{".":{},"f:c":{},"f:d":{}}}"#,
        );
        check("{}", "{}");
    }

    #[test]
    fn fields_of_an_unknown_kind_are_dropped() {
        check(r#"{"f:a":{},"z:b":{"f:c":{}}}"#, r#"{"f:a":{}}"#);
        check(r#"{"f:a":{"z:b":{}}}"#, r#"{"f:a":{}}"#);
    }

    #[test]
    fn malformed_sets_are_rejected() {
        for json in [r#"{"a":{}}"#, r#"{"f:a":1}"#, "[]", r#"{"k:{":{}}"#] {
            assert!(serde_json::from_str::<FieldSet>(json).is_err(), "{json}");
        }
    }

    fn any_element() -> impl Strategy<Value = PathElement> {
        prop_oneof![
            "[a-z.:]{0,3}".prop_map(PathElement::Field),
            ("[a-z]", 0..9_i64).prop_map(|(name, port)| {
                PathElement::Key(vec![
                    ("name".to_owned(), name.into()),
                    ("port".to_owned(), port.into()),
                ])
            }),
            "[a-z\"]{0,2}".prop_map(|item| PathElement::Item(item.into())),
        ]
    }

    proptest! {
        #[test]
        fn decoding_restores_an_encoded_set(
            paths in prop::collection::vec(prop::collection::vec(any_element(), 1..4), 0..8)
        ) {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(path);
            }
            let json = serde_json::to_string(&set).expect("JSON");
            let back: FieldSet = serde_json::from_str(&json).expect("a set");
            prop_assert_eq!(&back, &set);
            let value = serde_json::to_value(&set).expect("JSON");
            prop_assert_eq!(serde_json::from_value::<FieldSet>(value).expect("a set"), set);
        }
    }
}
