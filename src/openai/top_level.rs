//! What stands at the top of a request's JSON, for those who route by it and leave the rest to the worker.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object, each as the text it came as. All of it is checked for syntax. Of several members with
/// one name the last counts, as for the worker.
#[derive(Debug, Default)]
pub(crate) struct TopLevel<'a>(HashMap<String, &'a RawValue>);

impl<'a> TopLevel<'a> {
    /// `None`: there is no such member, or it is null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|raw| raw.get() != "null")
    }
}

impl<'de> Deserialize<'de> for TopLevel<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TopLevelVisitor)
    }
}

struct TopLevelVisitor;

impl<'de> Visitor<'de> for TopLevelVisitor {
    type Value = TopLevel<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TopLevel<'de>, A::Error> {
        let mut members = HashMap::new();
        while let Some((name, raw)) = map.next_entry()? {
            members.insert(name, raw);
        }
        Ok(TopLevel(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_members_the_last_counts() {
        let body = r#"{"a": 1, "\u0062": {"a": 3}, "a": [2 ], "c": null}"#;
        let top: TopLevel<'_> = serde_json::from_str(body).expect("an object");
        let texts = ["a", "b", "c", "d"].map(|name| top.get(name).map(RawValue::get));
        assert_eq!(texts, [Some("[2 ]"), Some(r#"{"a": 3}"#), None, None]);
    }
}
