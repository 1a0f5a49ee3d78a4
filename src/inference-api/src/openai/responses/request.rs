//! `POST /v1/responses`: supported parameters and their conversion to a chat request.

use serde::Serialize;
use serde_json::{Value, json};

use super::input;
use super::namespace::{Namespaces, ToolList};
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::request::fields::Fields;
use crate::openai::request::ignored::IgnoredFields;
use crate::openai::request::{
    ChatRequest, IGNORED, Options, SamplingOptions, Stopping, check_hints, logprobs, parse_model, template,
};
use crate::openai::response_format::ResponseFormat;
use crate::openai::tools::Tools;

/// Request, with the settings that the response repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    pub chat: ChatRequest,
    /// Items before the answer: those of the previous responses and of this request. A later
    /// request can continue them.
    pub items: Vec<Json>,
    pub namespaces: Namespaces,
    pub settings: Settings,
}

/// Settings that the response repeats, with defaults.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    background: bool,
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    metadata: Value,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    reasoning: Value,
    pub store: bool,
    temperature: Option<f32>,
    text: Json,
    tool_choice: Value,
    tools: Json,
    top_logprobs: usize,
    top_p: Option<f32>,
    truncation: &'static str,
    user: Option<String>,
}

/// Parameters whose member order is relevant.
const ORDERED: &[&str] = &["chat_template_kwargs", "input", "text", "tools"];

/// Other supported parameters, besides those of [`Options`], [`Stopping`] and [`SamplingOptions`].
const SUPPORTED: &[&str] = &[
    // Accounting, which does not change the answer.
    "client_metadata",
    "enable_thinking",
    "include",
    "instructions",
    "max_output_tokens",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "tool_choice",
    "top_logprobs",
    "truncation",
];

/// Known parameters that are not supported.
const UNSUPPORTED: &[&str] = &[
    "background",
    "context_management",
    "conversation",
    "max_tool_calls",
    "moderation",
    "prompt",
    "prompt_cache_options",
];

/// Values of `include` without effect: they concern tools that are not supported, or data that is
/// always included.
const INCLUDED: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Stored items of earlier responses.
pub trait StoredItems {
    /// Returns the items of a response and of those before it.
    fn response(&self, id: &str) -> Option<Vec<Json>>;
    /// Returns an item of a response.
    fn item(&self, id: &str) -> Option<Json>;
}

impl ResponsesRequest {
    pub fn parse(body: &[u8], stored: &impl StoredItems) -> Result<Self, ApiError> {
        let (mut ordered, mut fields) = Fields::split(body, ORDERED)?;
        let ignored = IgnoredFields::take_from(&mut fields);
        check_parameters(&fields)?;
        let max_output_tokens = fields.integer("max_output_tokens", 1, usize::MAX)?;
        let mut options = Options::parse(&fields, 1)?;
        options.ignored = ignored;
        options.stopping.check_length(max_output_tokens)?;
        options.max_tokens = max_output_tokens;
        options.logprobs = logprobs::of_responses(&fields)?;
        let text = ordered.remove("text").filter(|text| !is_empty(text));
        options.format = text.as_ref().map(parse_text).transpose()?.flatten();
        let listed = ordered.remove("tools").unwrap_or(Json::Array(Vec::new()));
        let choice = fields.get("tool_choice");
        let parallel = fields.boolean("parallel_tool_calls")?;
        let instructions = fields.text("instructions")?;
        let previous = fields.text("previous_response_id")?;
        let mut items = match previous {
            None => Vec::new(),
            Some(id) => stored
                .response(id)
                .ok_or_else(|| ApiError::previous_response_not_found(id))?,
        };
        let own = input::items(ordered.remove("input"), stored)?;
        let own = input::new_items(&items, own);
        let messages = input::messages(instructions, &items, &own)?;
        items.extend(own.into_iter().map(|(_, item)| item));
        let settings = Settings {
            background: false,
            instructions: instructions.map(str::to_owned),
            max_output_tokens,
            metadata: fields.get("metadata").cloned().unwrap_or(json!({})),
            parallel_tool_calls: parallel.unwrap_or(true),
            previous_response_id: previous.map(str::to_owned),
            reasoning: fields
                .get("reasoning")
                .cloned()
                .unwrap_or(json!({"effort": null, "summary": null})),
            store: fields.boolean("store")?.unwrap_or(true),
            temperature: options.sampling.temperature,
            text: text.unwrap_or_else(plain_text),
            tool_choice: choice.cloned().unwrap_or(json!("auto")),
            tools: listed.clone(),
            top_logprobs: options.logprobs.unwrap_or(0),
            top_p: options.sampling.top_p,
            truncation: "disabled",
            user: fields.text("user")?.map(str::to_owned),
        };
        let kwargs = ordered.remove("chat_template_kwargs");
        let (tools, namespaces) = parse_tools(listed, choice, parallel)?;
        Ok(Self {
            chat: ChatRequest {
                model: parse_model(&fields)?,
                messages,
                template: None,
                template_variables: template::parse_variables(kwargs, &without_summary(&fields))?,
                tools,
                continues: false,
                n: 1,
                options,
            },
            items,
            namespaces,
            settings,
        })
    }
}

fn is_empty(text: &Json) -> bool {
    match text {
        Json::Null => true,
        Json::Object(members) => members.is_empty(),
        Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => false,
    }
}

/// Returns the default of `text`: `{"format": {"type": "text"}}`.
fn plain_text() -> Json {
    let format = Json::Object(Members::new([("type", "text".into())]));
    Json::Object(Members::new([("format", format)]))
}

fn check_parameters(fields: &Fields) -> Result<(), ApiError> {
    let served = [
        SUPPORTED,
        Options::NAMES,
        Stopping::NAMES,
        SamplingOptions::NAMES,
        IGNORED,
    ];
    check_hints(fields)?;
    fields.read("client_metadata", "an object", Value::as_object)?;
    if fields.iter().any(|(name, _)| name == "max_tokens") {
        // This endpoint uses `max_output_tokens`.
        return Err(ApiError::unknown_parameter("max_tokens"));
    }
    fields.check_names(&served, UNSUPPORTED, has_no_effect)?;
    let expected = format!(
        "a list of these values: {}, {}",
        logprobs::INCLUDED,
        INCLUDED.join(", ")
    );
    fields.read("include", &expected, |value| {
        let is_known = |name: &str| name == logprobs::INCLUDED || INCLUDED.contains(&name);
        let known = |name: &Value| name.as_str().is_some_and(is_known);
        value.as_array()?.iter().all(known).then_some(())
    })?;
    match fields.text("truncation")? {
        None | Some("disabled") => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "truncation",
            "'truncation' must be 'disabled': the input is never truncated.",
        )),
    }
}

fn has_no_effect(name: &str, value: &Value) -> bool {
    match name {
        "background" => value.is_null() || *value == json!(false),
        "max_tool_calls" => value.is_null() || *value == json!(0),
        "prompt_cache_options" => value.is_null() || *value == json!({}),
        _ => value.is_null(),
    }
}

/// Removes the summary options, because responses contain the complete reasoning.
fn without_summary(fields: &Fields) -> Fields {
    let mut fields = fields.clone();
    if let Some(Value::Object(reasoning)) = fields.get("reasoning").cloned() {
        let known = |name: &String| name != "summary" && name != "generate_summary";
        let rest = reasoning.into_iter().filter(|(name, _)| known(name)).collect();
        fields.insert("reasoning".to_owned(), Value::Object(rest));
    }
    fields
}

/// Converts `text.format` to `response_format`. The schema's members are next to the type.
fn parse_text(text: &Json) -> Result<Option<ResponseFormat>, ApiError> {
    let invalid = |param: &str| ApiError::invalid_value(param, format!("'{param}' must be an object."));
    let members = text.as_object().ok_or_else(|| invalid("text"))?;
    let has_effect = |(name, value): &(&str, &Json)| match *name {
        "format" => false,
        "verbosity" => **value != Json::Null && value.as_str() != Some("medium"),
        _ => true,
    };
    let unknown = members.iter().find(has_effect);
    match unknown {
        Some(("verbosity", _)) => {
            let message = "'text.verbosity' is not supported by this server.";
            return Err(ApiError::unsupported("text.verbosity", message));
        }
        Some((name, _)) => return Err(ApiError::unknown_parameter(&format!("text.{name}"))),
        None => {}
    }
    let format = match text.get("format") {
        None | Some(Json::Null) => return Ok(None),
        Some(format @ Json::Object(_)) => format,
        Some(_) => return Err(invalid("text.format")),
    };
    let mut nested = Members::default();
    let mut schema = Members::default();
    for (name, value) in format.as_object().into_iter().flat_map(Members::iter) {
        match name {
            "type" => nested.insert("type", value.clone()),
            name => schema.insert(name, value.clone()),
        }
    }
    if format.get("type").and_then(Json::as_str) == Some("json_object") {
        if let Some(schema) = schema.remove("schema") {
            nested.insert("schema", schema);
        }
    } else if !schema.is_empty() {
        nested.insert("json_schema", Json::Object(schema));
    }
    let fields = Members::new([("response_format", Json::Object(nested))]);
    let names = [
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
    ];
    let format = ResponseFormat::parse(&fields).map_err(|err| err.renamed(&names))?;
    Ok(format.map(|format| ResponseFormat {
        param: names
            .iter()
            .fold(format.param, |param, (own, there)| param.replace(own, there)),
        ..format
    }))
}

fn parse_tools(
    listed: Json,
    choice: Option<&Value>,
    parallel: Option<bool>,
) -> Result<(Option<Tools>, Namespaces), ApiError> {
    let tools = match listed {
        Json::Null => Vec::new(),
        Json::Array(tools) => tools,
        Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
            return Err(ApiError::invalid_value("tools", "'tools' must be a list."));
        }
    };
    let listed = ToolList::new(&tools)?;
    // Form of this API: `{"type": "function", "name": …}`.
    let nested = choice.map(|choice| match choice.get("name") {
        Some(name) => json!({"type": choice["type"], "function": {"name": name}}),
        None => choice.clone(),
    });
    let names = [
        (".function.", "."),
        (
            "{\"type\": \"function\", \"function\": {\"name\": …}}",
            "{\"type\": \"function\", \"name\": …}",
        ),
    ];
    let functions = Json::Array(listed.functions.clone());
    let tools = Tools::parse(Some(functions), nested.as_ref(), parallel)
        .map_err(|err| listed.with_request_path(err).renamed(&names))?;
    Ok((tools, listed.namespaces))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::openapi::properties_of;
    use crate::openai::tools::ToolChoice;

    fn parse(extra: Value) -> Result<ResponsesRequest, String> {
        let stored = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"}]"#;
        struct Stored(Vec<Json>);
        impl StoredItems for Stored {
            fn response(&self, id: &str) -> Option<Vec<Json>> {
                match id {
                    "resp_0" => Some(self.0[..2].to_vec()),
                    "resp_call" => Some(self.0[2..].to_vec()),
                    _ => None,
                }
            }
            fn item(&self, id: &str) -> Option<Json> {
                (id == "msg_0").then(|| self.0[1].clone())
            }
        }
        let stored = Stored(serde_json::from_str(stored).unwrap());
        let mut body = json!({"model": "m", "input": "Hi"});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        ResponsesRequest::parse(body.to_string().as_bytes(), &stored)
            .map_err(|err| err.param.unwrap_or_default())
    }

    #[test]
    fn converts_request_to_chat_request() {
        let request = parse(json!({
            "instructions": "Be terse.", "max_output_tokens": 7, "temperature": 0.5, "stream": true, "store": true,
            "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"}, "truncation": "disabled", "previous_response_id": null,
            "text": {"format": {"type": "json_schema", "name": "a", "strict": true, "schema": {"type": "integer"}}},
        }))
        .unwrap();
        let ChatRequest {
            messages,
            template_variables,
            tools,
            options,
            ..
        } = request.chat;
        assert_eq!(messages.len(), 2);
        assert_eq!(template_variables.get("reasoning_effort"), Some(&"low".into()));
        let tools = tools.unwrap();
        assert_eq!(tools.choice, ToolChoice::Function("f".to_owned()));
        assert_eq!(
            serde_json::to_value(&tools.listed).unwrap(),
            json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": true}}])
        );
        assert_eq!((options.max_tokens, options.stream), (Some(7), true));
        assert_eq!(options.format.unwrap().param, "text.format.schema");
        let settings = serde_json::to_value(&request.settings).unwrap();
        assert_eq!(
            (&settings["store"], &settings["tools"][0]["name"]),
            (&json!(true), &json!("f"))
        );
    }

    #[test]
    fn include_requests_logprobs() {
        let parsed = |extra: Value| parse(extra).unwrap();
        let name = "message.output_text.logprobs";
        for (extra, top) in [
            (json!({}), None),
            (json!({"top_logprobs": 0, "include": []}), None),
            (json!({"include": [name]}), Some(0)),
            (
                json!({"include": ["reasoning.encrypted_content", name], "top_logprobs": 20}),
                Some(20),
            ),
        ] {
            let request = parsed(extra.clone());
            assert_eq!(request.chat.options.logprobs, top, "{extra}");
            let settings = serde_json::to_value(&request.settings).unwrap();
            assert_eq!(settings["top_logprobs"], top.unwrap_or(0));
        }
    }

    #[test]
    fn previous_items_come_first_without_their_instructions() {
        let request =
            parse(json!({"previous_response_id": "resp_0", "instructions": "Be terse.", "store": false}))
                .unwrap();
        assert_eq!(
            serde_json::to_value(&request.chat.messages).unwrap(),
            json!([{"role": "system", "content": "Be terse."}, {"role": "user", "content": "a"},
                   {"role": "assistant", "content": "b"}, {"role": "user", "content": "Hi"}])
        );
        assert_eq!(
            serde_json::to_value(&request.items).unwrap(),
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                   {"role": "user", "content": "Hi"}])
        );
        assert!(!request.settings.store);
        // Paths refer to the request's own items.
        let wrong = json!({"previous_response_id": "resp_0", "input": [{"role": "user"}]});
        assert_eq!(parse(wrong).unwrap_err(), "input[0].content");
    }

    /// A second copy in the store would lack an output in the next request.
    #[test]
    fn stores_a_call_that_is_sent_again_only_once() {
        let call = json!({"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "call_0", "output": "b"});
        let request = parse(json!({"previous_response_id": "resp_call", "input": [call, output]})).unwrap();
        assert_eq!(
            serde_json::to_value(&request.items).unwrap(),
            json!([call, output])
        );
    }

    #[test]
    fn item_reference_resolves_to_stored_item() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let input = json!([user("a"), {"type": "item_reference", "id": "msg_0"}, user("c")]);
        let request = parse(json!({"input": input})).unwrap();
        let resolved = json!([user("a"), {"role": "assistant", "content": "b"}, user("c")]);
        assert_eq!(serde_json::to_value(&request.chat.messages).unwrap(), resolved);
        assert_eq!(
            serde_json::to_value(&request.items).unwrap(),
            resolved,
            "references are stored resolved"
        );
        for id in [json!("msg_1"), json!(null), json!(3)] {
            let input = json!([user("a"), {"type": "item_reference", "id": id}]);
            assert_eq!(parse(json!({"input": input})).unwrap_err(), "input[1].id");
        }
    }

    #[test]
    fn openapi_document_lists_all_parameters() {
        let served = [
            ORDERED,
            SUPPORTED,
            Options::NAMES,
            Stopping::NAMES,
            SamplingOptions::NAMES,
            IGNORED,
        ];
        let names = served.concat().into_iter().filter(|name| *name != "max_tokens");
        assert_eq!(
            properties_of("ResponsesRequest"),
            names.map(str::to_owned).collect()
        );
    }

    #[test]
    fn namespace_functions_have_qualified_names() {
        let tool = |name: &str, about: &str| json!({"type": "function", "name": name, "description": about, "parameters": {"type": "object"}});
        let crm = json!({"type": "namespace", "name": "crm", "description": "Of customers.", "tools": [tool("find", "Finds."), tool("add", "Adds.")]});
        let request = parse(json!({
            "tools": [tool("find", "Finds files."), crm],
            "input": [{"role": "user", "content": "a"},
                {"type": "function_call", "call_id": "c", "namespace": "crm", "name": "find", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "b"}],
        }))
        .unwrap();
        let called = serde_json::to_value(&request.chat.messages[1]).unwrap();
        assert_eq!(called["tool_calls"][0]["function"]["name"], "crm__find");
        let listed = serde_json::to_value(&request.chat.tools.unwrap().listed).unwrap();
        let entry = |index: usize| {
            let function = &listed[index]["function"];
            [function["name"].as_str(), function["description"].as_str()].map(Option::unwrap_or_default)
        };
        assert_eq!(
            [entry(0), entry(1), entry(2)],
            [
                ["find", "Finds files."],
                ["crm__find", "Of customers.\n\nFinds."],
                ["crm__add", "Adds."]
            ]
        );
        let split = |name: &str| request.namespaces.split(name);
        assert_eq!(split("crm__add"), (Some("crm".to_owned()), "add".to_owned()));
        assert_eq!(split("find"), (None, "find".to_owned()));
        assert_eq!(split("a__b"), (None, "a__b".to_owned()));
    }

    #[test]
    fn errors_name_the_parameter_of_this_api() {
        for (extra, param) in [
            (json!({"input": null}), "input"),
            (json!({"max_tokens": 5}), "max_tokens"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"messages": []}), "messages"),
            (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
            (json!({"background": true}), "background"),
            (json!({"background": 0}), "background"),
            (json!({"conversation": 0}), "conversation"),
            (json!({"metadata": "a"}), "metadata"),
            (json!({"store": 1}), "store"),
            (json!({"truncation": "auto"}), "truncation"),
            (
                json!({"include": ["message.output_text.loglikelihoods"]}),
                "include",
            ),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (
                json!({"include": ["message.output_text.logprobs"], "top_logprobs": 21}),
                "top_logprobs",
            ),
            (json!({"reasoning": {"effort": "most"}}), "reasoning.effort"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
            (
                json!({"tools": [{"type": "namespace", "name": "n"}]}),
                "tools[0].tools",
            ),
            (
                json!({"tools": [{"type": "namespace", "tools": []}]}),
                "tools[0].name",
            ),
            (
                json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}]}),
                "tools[0].tools[1].type",
            ),
            (
                json!({"tools": [{"type": "function", "name": "f"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a b"}]}]}),
                "tools[1].tools[0].name",
            ),
            (json!({"client_metadata": "a"}), "client_metadata"),
            (
                json!({"text": {"format": {"type": "json_object", "schema": 1}}}),
                "text.format.schema",
            ),
            (
                json!({"tools": [{"type": "function", "name": "f", "parameters": 1}]}),
                "tools[0].parameters",
            ),
            (
                json!({"tool_choice": {"type": "function", "name": "f"}}),
                "tool_choice",
            ),
            (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
            (
                json!({"text": {"format": {"type": "json_schema", "name": "a"}}}),
                "text.format.schema",
            ),
            (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        ] {
            assert_eq!(parse(extra.clone()).unwrap_err(), param, "{extra}");
        }
    }
}
