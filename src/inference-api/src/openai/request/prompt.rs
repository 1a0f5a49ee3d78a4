//! Raw prompts: a text or token ids, one or several.

use serde_json::Value;

use super::fields::Fields;
use crate::openai::ApiError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// Parses the required parameter `name` with at most `max` prompts.
    pub(super) fn parse_all(fields: &Fields, name: &str, max: usize) -> Result<Vec<Self>, ApiError> {
        let expected = format!("a string, a list of token ids, or a list of at most {max} of these");
        let prompts = fields.read(name, &expected, |value| match value {
            Value::String(text) => Some(vec![Self::Text(text.clone())]),
            Value::Array(list) if list.iter().any(Value::is_number) => {
                Some(vec![Self::Tokens(token_ids(list)?)])
            }
            Value::Array(list) if !list.is_empty() && list.len() <= max => list
                .iter()
                .map(|prompt| match prompt {
                    Value::String(text) => Some(Self::Text(text.clone())),
                    Value::Array(ids) => token_ids(ids).map(Self::Tokens),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
                })
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        })?;
        prompts.ok_or_else(|| ApiError::missing(name))
    }
}

pub(super) fn token_ids(ids: &[Value]) -> Option<Vec<u32>> {
    ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}
