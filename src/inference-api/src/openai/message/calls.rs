//! Calls in a conversation and the answers to them: every call that the assistant made is answered
//! at once, and nothing answers a call that was not made. OpenAI and Anthropic both insist; a
//! template would write a prompt that no model was trained on.

use crate::openai::json::Json;

/// What is amiss, and in which message.
#[derive(Debug, PartialEq, Eq)]
pub enum CallProblem {
    /// An answer to no call of the assistant's message before.
    Unasked { index: usize, id: String },
    /// The assistant's calls that nothing answers.
    Unanswered { index: usize, ids: Vec<String> },
}

/// `messages` are as templates read them.
pub fn check(messages: &[Json]) -> Result<(), CallProblem> {
    let mut made_at = 0;
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let text = |name: &str| message.get(name).and_then(Json::as_str);
        if text("role") == Some("tool") {
            let id = text("tool_call_id").unwrap_or_default();
            match open.iter().position(|call| *call == id) {
                Some(place) => drop(open.remove(place)),
                None => {
                    let id = id.to_owned();
                    return Err(CallProblem::Unasked { index, id });
                }
            }
            continue;
        }
        all_answered(made_at, &open)?;
        made_at = index;
        if let Some(Json::Array(calls)) = message.get("tool_calls") {
            open = calls.iter().filter_map(|call| call.get("id")?.as_str()).collect();
        }
    }
    all_answered(made_at, &open)
}

fn all_answered(index: usize, open: &[&str]) -> Result<(), CallProblem> {
    if open.is_empty() {
        return Ok(());
    }
    let ids = open.iter().map(|id| (*id).to_owned()).collect();
    Err(CallProblem::Unanswered { index, ids })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a1,2` is an assistant that calls 1 and 2, `t1` the answer to 1, `u` a user.
    fn conversation(text: &str) -> Vec<Json> {
        let message = |word: &str| {
            let (who, ids) = word.split_at(1);
            let role = match who {
                "a" => "assistant",
                "t" => "tool",
                _ => "user",
            };
            let calls: Vec<_> = ids.split(',').filter(|id| !id.is_empty()).collect();
            let calls: Vec<_> = calls.iter().map(|id| serde_json::json!({"id": id})).collect();
            let message = match who {
                "t" => serde_json::json!({"role": role, "tool_call_id": ids}),
                _ => serde_json::json!({"role": role, "tool_calls": calls}),
            };
            serde_json::from_value(message).unwrap()
        };
        text.split(' ').map(message).collect()
    }

    #[test]
    fn calls_are_answered_and_answers_were_asked_for() {
        for text in ["u", "u a u", "u a1 t1", "u a1,2 t2 t1 u a3 t3 a", "a1 t1 a1 t1"] {
            assert_eq!(check(&conversation(text)), Ok(()), "{text}");
        }
        let unasked = |index, id: &str| CallProblem::Unasked {
            index,
            id: id.to_owned(),
        };
        let unanswered = |index, ids: &[&str]| CallProblem::Unanswered {
            index,
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        for (text, problem) in [
            ("t1", unasked(0, "1")),
            ("u a1 t2", unasked(2, "2")),
            ("u a1 t1 t1", unasked(3, "1")),
            ("u a1 t1 u t1", unasked(4, "1")),
            ("u a1", unanswered(1, &["1"])),
            ("u a1,2 t2 u", unanswered(1, &["1"])),
            ("u a1,2 u t1", unanswered(1, &["1", "2"])),
            ("u a1 a2 t2", unanswered(1, &["1"])),
        ] {
            assert_eq!(check(&conversation(text)), Err(problem), "{text}");
        }
    }
}
