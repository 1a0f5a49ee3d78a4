//! Reasoning, tool calls and response formats, on scripted models.

use super::script::Script;
use super::*;
use rooflet_testing::TempDir;

mod formats;
mod reasoning;
mod tool_calls;

/// Chat template without tools. The prompt consists of the last message, which is a cue.
const PLAIN: &str = "{{ messages[-1].content }}";

fn config_of(dir: &TempDir) -> WorkerConfig {
    WorkerConfig {
        model: dir.path().to_owned(),
        ..config()
    }
}

fn weather() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "description": "…", "parameters": {
        "type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}])
}

/// Sends a chat with and without streaming, and asserts that both responses are equal. Returns
/// message, finish reason and usage. Checks and removes the IDs of tool calls.
async fn chat(worker: &TestWorker, cue: usize, extra: Value) -> (Value, String, Value) {
    let request = merged(
        json!({"messages": [{"role": "user", "content": format!("<cue {cue}>")}], "max_tokens": 40}),
        extra,
    );
    let whole = worker.chat(request.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let (mut message, reason) = (
        whole["choices"][0]["message"].clone(),
        whole["choices"][0]["finish_reason"].as_str().unwrap().to_owned(),
    );
    take_ids(&mut message);

    let streaming = merged(
        request,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let mut events = worker.chat(streaming).await.events();
    assert_eq!(events.pop().unwrap()["usage"], whole["usage"]);
    let end = events.pop().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], reason);
    assert_eq!(end["choices"][0]["delta"], json!({}));
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    assert_eq!(merge_deltas(deltas, &message), message);
    (message, reason, whole["usage"].clone())
}

fn take_ids(message: &mut Value) {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        let id = call["id"].take();
        assert!(id.as_str().unwrap().len() >= 9, "{id}");
    }
    if message["tool_calls"].is_null() {
        message.as_object_mut().unwrap().remove("tool_calls");
    }
}

/// Merges the deltas of a stream into a message, as clients do.
fn merge_deltas<'a>(deltas: impl Iterator<Item = &'a Value>, like: &Value) -> Value {
    let mut message = json!({"role": null, "content": "", "refusal": null});
    for delta in deltas {
        for (name, value) in delta.as_object().unwrap() {
            match value {
                Value::Array(calls) => {
                    for call in calls {
                        add_call(&mut message, call);
                    }
                }
                _ if name == "role" => message["role"] = value.clone(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    let before = message[name].as_str().unwrap_or_default().to_owned();
                    message[name] = json!(before + value.as_str().unwrap());
                }
            }
        }
    }
    if like["content"].is_null() && message["content"] == "" {
        message["content"] = json!(null);
    }
    message
}

fn add_call(message: &mut Value, part: &Value) {
    let index = part["index"].as_u64().unwrap() as usize;
    if part["id"].is_string() {
        assert_eq!(part["function"]["arguments"], "");
        let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(index, calls, "calls are in order");
        if calls == 0 {
            message["tool_calls"] = json!([]);
        }
        let call = json!({"id": null, "type": part["type"], "function": part["function"]});
        message["tool_calls"].as_array_mut().unwrap().push(call);
    } else {
        let arguments = &mut message["tool_calls"][index]["function"]["arguments"];
        let more = part["function"]["arguments"].as_str().unwrap();
        *arguments = json!(arguments.as_str().unwrap().to_owned() + more);
    }
}

fn message(content: Value, extra: Value) -> Value {
    merged(
        json!({"role": "assistant", "content": content, "refusal": null}),
        extra,
    )
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"id": null, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn schema_of(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}}})
}
