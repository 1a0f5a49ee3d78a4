//! What stands at the top of a request's JSON, for those who route by it and leave the rest to the
//! worker.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What somebody routes by. Nothing else is kept: a body may have millions of members.
const NAMES: &[&str] = &[
    "cache_salt",
    "include",
    "input",
    "instructions",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "previous_response_id",
    "priority",
    "prompt",
    "prompt_cache_key",
    "prompt_logprobs",
    "stream",
    "system",
    "tools",
    "top_logprobs",
    "user",
];

/// The members of a JSON object that are in [`NAMES`], each as the text it came as. All of the
/// object is checked for syntax. Of several members with one name the last counts, as for the
/// worker.
#[derive(Debug, Default)]
pub struct TopLevel<'a>(BTreeMap<&'static str, &'a RawValue>);

impl<'a> TopLevel<'a> {
    /// `None`: there is no such member, or it is null.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        debug_assert!(NAMES.contains(&name), "`{name}` is not kept");
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
        let mut members = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            match NAMES.iter().find(|known| **known == name) {
                Some(name) => {
                    members.insert(*name, map.next_value()?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(TopLevel(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_members_the_last_counts() {
        let body = r#"{"model": 1, "\u006e": {"model": 3}, "model": [2 ], "user": null, "other": 5}"#;
        let top: TopLevel<'_> = serde_json::from_str(body).expect("an object");
        let texts = ["model", "n", "user", "tools"].map(|name| top.get(name).map(RawValue::get));
        assert_eq!(texts, [Some("[2 ]"), Some(r#"{"model": 3}"#), None, None]);
        assert_eq!(top.0.len(), 3);
        let unfinished = serde_json::from_str::<TopLevel<'_>>(r#"{"other": [}"#);
        assert!(unfinished.is_err());
    }
}
