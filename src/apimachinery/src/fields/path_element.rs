//! Step of a path from a value to a field or item in it.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::value;

/// Step of a path.
#[derive(Debug, Clone)]
pub(super) enum PathElement {
    /// Field of an object.
    Field(String),
    /// Item of a list of objects, with its key fields, sorted by name.
    Key(Vec<(String, Value)>),
    /// Item of a set.
    Item(Value),
    /// Position in a list. Only in errors: no manager owns a position.
    Index(u64),
}

/// Reason why a text is not a path element.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseElementError {
    #[error("missing colon: {0:?}")]
    NoColon(String),
    #[error("malformed path element {0:?}")]
    Malformed(String),
    /// Later versions of the format may add kinds.
    #[error("unknown kind of path element {0:?}")]
    UnknownKind(String),
}

impl PathElement {
    pub(super) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// Parses a key of `fieldsV1`: `f:name`, `k:{"name":"a"}`, `v:"a"`, `i:0`.
    pub(super) fn parse(text: &str) -> Result<Self, ParseElementError> {
        let malformed = || ParseElementError::Malformed(text.to_owned());
        let mut chars = text.chars();
        let (Some(kind), Some(':')) = (chars.next(), chars.next()) else {
            return Err(ParseElementError::NoColon(text.to_owned()));
        };
        let content = chars.as_str();
        match kind {
            'f' => Ok(Self::field(content)),
            'k' => {
                let fields: Map<String, Value> = serde_json::from_str(content).map_err(|_| malformed())?;
                Ok(Self::Key(fields.into_iter().collect()))
            }
            'v' => serde_json::from_str(content)
                .map(Self::Item)
                .map_err(|_| malformed()),
            'i' => content.parse().map(Self::Index).map_err(|_| malformed()),
            _ => Err(ParseElementError::UnknownKind(text.to_owned())),
        }
    }

    /// Returns the key of `fieldsV1`.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let fields: Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", Value::Object(fields))
            }
            Self::Item(item) => format!("v:{item}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (index, (name, key)) in fields.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", value::text(key))?;
                }
                f.write_str("]")
            }
            Self::Item(item) => write!(f, "[={}]", value::text(item)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => compare_keys(a, b),
            (Self::Item(a), Self::Item(b)) => value::compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

impl PathElement {
    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Item(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

fn compare_keys(a: &[(String, Value)], b: &[(String, Value)]) -> Ordering {
    let mut pairs = a.iter().zip(b);
    let different = pairs.find_map(|((name_a, a), (name_b, b))| {
        Some(name_a.cmp(name_b).then_with(|| value::compare(a, b))).filter(|order| order.is_ne())
    });
    different.unwrap_or_else(|| a.len().cmp(&b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_fields_v1_are_parsed_and_encoded() {
        for text in [
            "f:spec",
            "f:",
            "f:a:b",
            "f:kubernetes.io/name",
            r#"k:{"name":"a","port":80}"#,
            r#"v:"x""#,
            "v:1.5",
            "v:true",
            "v:null",
            "i:7",
        ] {
            let element = PathElement::parse(text).expect(text);
            assert_eq!(element.encode(), text);
        }
        assert_eq!(
            PathElement::parse(r#"k:{"b":1,"a":2}"#).expect("a key").encode(),
            r#"k:{"a":2,"b":1}"#
        );
    }

    #[test]
    fn malformed_keys_are_rejected() {
        for text in ["", "f", ".", "k:{", "v:", "i:-1", "i:x", "k:[]"] {
            assert!(PathElement::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            PathElement::parse("z:1"),
            Err(ParseElementError::UnknownKind("z:1".to_owned()))
        );
    }

    #[test]
    fn elements_sort_by_kind_then_content() {
        let mut texts = [
            r#"v:"b""#,
            r#"k:{"port":443}"#,
            "i:1",
            "f:b",
            r#"k:{"port":80}"#,
            "v:1",
            r#"k:{"name":"z"}"#,
            "f:a",
        ];
        texts.sort_by_key(|text| PathElement::parse(text).expect(text));
        assert_eq!(
            texts,
            [
                "f:a",
                "f:b",
                r#"k:{"name":"z"}"#,
                r#"k:{"port":80}"#,
                r#"k:{"port":443}"#,
                "v:1",
                r#"v:"b""#,
                "i:1"
            ]
        );
    }

    #[test]
    fn paths_display_keys_like_kube_apiserver() {
        let shown = |text: &str| PathElement::parse(text).expect(text).to_string();
        assert_eq!(shown("f:spec"), ".spec");
        assert_eq!(
            shown(r#"k:{"name":"A","port":80,"on":true}"#),
            r#"[name="A",on=true,port=80]"#
        );
        assert_eq!(shown(r#"v:"x""#), r#"[="x"]"#);
        assert_eq!(shown("i:3"), "[3]");
    }
}
