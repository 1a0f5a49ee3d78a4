//! `GET /v1/responses/{id}/input_items`: pages of a response's input items.

use serde::{Deserialize, Serialize};

use super::ID_PREFIX;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};

const DEFAULT_LIMIT: usize = 20;
/// Limit of OpenAI's API.
const MAX_LIMIT: usize = 100;

/// Query parameters of a page.
#[derive(Debug, Default, Deserialize)]
pub struct ItemQuery {
    after: Option<String>,
    limit: Option<String>,
    order: Option<String>,
}

/// Page of items.
#[derive(Debug, PartialEq, Serialize)]
pub struct ItemList {
    object: &'static str,
    data: Vec<Json>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl ItemList {
    /// Creates a page of the items of a response.
    pub fn new(response_id: &str, items: &[Json], query: &ItemQuery) -> Result<Self, ApiError> {
        let limit = match query.limit.as_deref().map(str::parse) {
            None => DEFAULT_LIMIT,
            Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => limit,
            Some(_) => {
                let message = format!("'limit' must be an integer from 1 to {MAX_LIMIT}.");
                return Err(ApiError::invalid_value("limit", message));
            }
        };
        let items = items.iter().enumerate();
        let mut all: Vec<(String, Json)> = items
            .map(|(at, item)| complete_item(response_id, at, item))
            .collect();
        match query.order.as_deref() {
            None | Some("desc") => all.reverse(),
            Some("asc") => {}
            Some(_) => return Err(ApiError::invalid_value("order", "'order' must be asc or desc.")),
        }
        let begin = match &query.after {
            None => 0,
            Some(after) => {
                let position = all.iter().position(|(id, _)| id == after);
                let position = position.ok_or_else(|| {
                    let message = format!("'after' is '{after}', which is not an item of this response.");
                    ApiError::invalid_value("after", message)
                })?;
                position + 1
            }
        };
        let has_more = all.len() - begin > limit;
        let (ids, data): (Vec<_>, Vec<_>) = all.into_iter().skip(begin).take(limit).unzip();
        Ok(Self {
            object: "list",
            data,
            first_id: ids.first().cloned(),
            last_id: ids.last().cloned(),
            has_more,
        })
    }
}

/// Adds missing members that clients expect: id, type, and the parts of the text. Generated ids are
/// stable.
fn complete_item(response_id: &str, at: usize, item: &Json) -> (String, Json) {
    let mut members = item.as_object().cloned().unwrap_or_default();
    let kind = members.get("type").and_then(Json::as_str).unwrap_or("message");
    let kind = kind.to_owned();
    let prefix = match kind.as_str() {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        _ => "fco",
    };
    let own = members.get("id").and_then(Json::as_str).map(str::to_owned);
    let id = own.unwrap_or_else(|| {
        let response = response_id.trim_start_matches(ID_PREFIX);
        format!("{prefix}_{response}{at:04x}")
    });
    if kind == "message" {
        let by_assistant = members.get("role").and_then(Json::as_str) == Some("assistant");
        if let Some(Json::String(text)) = members.get("content") {
            let part = match by_assistant {
                true => Members::new([
                    ("type", "output_text".into()),
                    ("text", text.as_str().into()),
                    ("annotations", Json::Array(Vec::new())),
                ]),
                false => Members::new([("type", "input_text".into()), ("text", text.as_str().into())]),
            };
            members.insert("content", Json::Array(vec![Json::Object(part)]));
        }
    }
    members.insert("id", id.as_str().into());
    members.insert("type", kind.as_str().into());
    if kind != "reasoning" && members.get("status").is_none() {
        members.insert("status", "completed".into());
    }
    (id, Json::Object(members))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(query: Value) -> Result<Value, Option<String>> {
        let items = json!([
            {"role": "user", "content": "Add."},
            {"id": "fc_own", "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
            {"role": "assistant", "content": "Four."},
        ]);
        let items: Vec<Json> = serde_json::from_value(items).unwrap();
        let query: ItemQuery = serde_json::from_value(query).unwrap();
        let list = ItemList::new("resp_1a", &items, &query).map_err(|err| err.param)?;
        Ok(serde_json::to_value(list).unwrap())
    }

    #[test]
    fn items_are_complete_and_paged() {
        let all = page(json!({"order": "asc"})).unwrap();
        let text = json!([{"type": "input_text", "text": "Add."}]);
        assert_eq!(
            all["data"][0],
            json!({"id": "msg_1a0000", "type": "message", "role": "user", "status": "completed", "content": text})
        );
        assert_eq!(all["data"][1]["id"], "fc_own");
        assert_eq!(all["data"][3]["content"][0]["type"], "output_text");
        assert_eq!(
            (&all["has_more"], &all["object"]),
            (&json!(false), &json!("list"))
        );

        let first = page(json!({"limit": "3"})).unwrap();
        assert_eq!(first["first_id"], "msg_1a0003", "the newest item is first");
        assert_eq!(
            (&first["last_id"], &first["has_more"]),
            (&json!("fc_own"), &json!(true))
        );
        let rest = page(json!({"limit": "3", "after": "fc_own"})).unwrap();
        assert_eq!(rest["data"].as_array().unwrap().len(), 1);
        assert_eq!(
            (&rest["last_id"], &rest["has_more"]),
            (&json!("msg_1a0000"), &json!(false))
        );

        for (query, param) in [
            (json!({"limit": "0"}), "limit"),
            (json!({"limit": "many"}), "limit"),
            (json!({"order": "up"}), "order"),
            (json!({"after": "msg_x"}), "after"),
        ] {
            assert_eq!(page(query.clone()), Err(Some(param.to_owned())), "{query}");
        }
    }
}
