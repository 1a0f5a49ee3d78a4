//! Top-level members of a request, for routing. The worker parses the rest.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members that routing uses. Others are dropped, because a body may have millions of members.
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
    "options",
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

/// Members in [`NAMES`] of a JSON object, each as raw text. The complete object is checked for
/// syntax errors. If a name repeats, the last one counts, as in the worker.
#[derive(Debug, Default)]
pub struct TopLevel<'a>(BTreeMap<&'static str, &'a RawValue>);

impl<'a> TopLevel<'a> {
    /// Returns `None` if the member is missing or null.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        debug_assert!(NAMES.contains(&name), "`{name}` is not in NAMES");
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
    fn last_duplicate_member_counts() {
        let body = r#"{"model": 1, "\u006e": {"model": 3}, "model": [2 ], "user": null, "other": 5}"#;
        let top: TopLevel<'_> = serde_json::from_str(body).expect("an object");
        let texts = ["model", "n", "user", "tools"].map(|name| top.get(name).map(RawValue::get));
        assert_eq!(texts, [Some("[2 ]"), Some(r#"{"model": 3}"#), None, None]);
        assert_eq!(top.0.len(), 3);
        let unfinished = serde_json::from_str::<TopLevel<'_>>(r#"{"other": [}"#);
        assert!(unfinished.is_err());
    }
}
