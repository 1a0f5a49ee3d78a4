//! Chat templates of a model, each with the markers for parsing answers to its prompts.

use camino::Utf8Path;
use jiff::Zoned;
use serde_json::Value;

use super::template_file::{Templates, load_templates};
use super::{Chat, PromptError};
use rooflet_inference_api::openai::json::{Json, Members};
use rooflet_inference_api::openai::message::{self, text_of};
use rooflet_inference_api::openai::request::PromptEnd;
use rooflet_inference_api::openai::tools::Tools;
use rooflet_text::answer::{AnswerShape, CallableTools};
use rooflet_text::reasoning::ReasoningMarkers;
use rooflet_text::template::{ChatTemplate, RenderInput};
use rooflet_text::tokenizer::Tokenizer;
use rooflet_text::tool_calls::{ToolFormat, kimi};

/// Chat template with its markers of reasoning and tool calls.
#[derive(Debug)]
pub(super) struct ChatFormat {
    pub(super) template: ChatTemplate,
    pub(super) reasoning: Option<ReasoningMarkers>,
    /// True if the model reasons by default, although the prompt does not open the reasoning block.
    reasons_by_default: bool,
    tool_format: ToolFormat,
}

impl ChatFormat {
    pub(super) fn new(template: ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let reasoning = ReasoningMarkers::of(template.source(), tokenizer);
        Self {
            reasoning,
            reasons_by_default: reasoning
                .is_some_and(|markers| can_turn_off_reasoning(&template, tokenizer, markers)),
            tool_format: ToolFormat::of(template.source(), tokenizer),
            template,
        }
    }

    /// Returns true if the template expects tool calls as message metadata; see
    /// [`glm`](rooflet_text::tool_calls::glm).
    pub(super) fn writes_calls_as_metadata(&self) -> bool {
        self.tool_format == ToolFormat::Glm
    }

    /// Returns true if the template writes its own identifiers of calls, but those of the client for results; see
    /// [`kimi`].
    pub(super) fn writes_own_call_ids(&self) -> bool {
        self.tool_format == ToolFormat::Kimi && self.template.source().contains("loop.index0")
    }

    /// Returns true if reasoning may precede an answer in a required format: the prompt opens the
    /// reasoning block, the template turns reasoning on by default, or the request turns it on.
    /// Otherwise, the model has markers of reasoning, but neither the template nor the request
    /// enables reasoning.
    pub(super) fn turns_on_reasoning(&self, shape: &AnswerShape, variables: &Members, budget: bool) -> bool {
        let Some((markers, opened)) = shape.reasoning else {
            return false;
        };
        let requested = || {
            let effort = variables.get("reasoning_effort").and_then(Json::as_str);
            budget
                || variables.get("enable_thinking") == Some(&Json::Bool(true))
                || effort.is_some_and(|effort| effort != "none")
        };
        opened || self.reasons_by_default || (self.template.source().contains(markers.close) && requested())
    }

    /// Returns the shape of answers to the conversation `chat`, rendered as `prompt`.
    pub(super) fn answer_shape(&self, prompt: &str, chat: Chat<'_>) -> AnswerShape {
        let reasoning = self.reasoning.filter(|markers| !markers.closed_by(prompt));
        let open = match chat.ending {
            PromptEnd::OpenMessage => chat.messages.last().and_then(text_of),
            PromptEnd::Message | PromptEnd::Answer => None,
        };
        let opened = |markers: &ReasoningMarkers| {
            markers.opened_by(prompt) || open.is_some_and(|message| markers.left_open_in(message))
        };
        AnswerShape {
            reasoning: reasoning.map(|markers| (markers, opened(&markers))),
            tool_format: self.tool_format,
            tools: chat.tools.map(|tools| CallableTools {
                functions: tools.functions.clone().into(),
                choice: tools.choice.clone(),
                parallel: tools.parallel,
                first_call: kimi::next_call(chat.messages),
            }),
        }
    }
}

/// Returns true if `enable_thinking: false` closes the reasoning block in the prompt, and the block
/// is not closed by default.
fn can_turn_off_reasoning(template: &ChatTemplate, tokenizer: &Tokenizer, markers: ReasoningMarkers) -> bool {
    let is_closed = |variables: &Members| {
        let rendered = template.render(RenderInput {
            messages: &[message::user("hello")],
            variables,
            tools: None,
            add_generation_prompt: true,
            special_tokens: tokenizer.named_tokens(),
            now: &Zoned::default(),
        });
        rendered.map(|prompt| markers.closed_by(&prompt))
    };
    let off = Members::new([("enable_thinking", Json::Bool(false))]);
    matches!(
        (is_closed(&Members::default()), is_closed(&off)),
        (Ok(false), Ok(true))
    )
}

/// Chat formats of a model.
#[derive(Debug)]
pub(super) struct ChatFormats {
    default: ChatFormat,
    /// Separate format for conversations with tools.
    tool_use: Option<ChatFormat>,
}

impl ChatFormats {
    /// Loads the chat formats. Returns `None` if the model has no chat template.
    pub(super) fn load(
        dir: &Utf8Path,
        tokenizer_config: Option<&Value>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, PromptError> {
        let templates = load_templates(dir, tokenizer_config)?;
        Ok(templates.map(|Templates { default, tool_use }| Self {
            default: ChatFormat::new(default, tokenizer),
            tool_use: tool_use.map(|template| ChatFormat::new(template, tokenizer)),
        }))
    }

    pub(super) fn select(&self, tools: Option<&Tools>) -> &ChatFormat {
        match &self.tool_use {
            Some(tool_use) if tools.is_some() => tool_use,
            Some(_) | None => &self.default,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Zoned;
    use serde_json::json;

    use super::super::tests::edited;
    use super::super::{Chat, Prompter, ValidChat};
    use rooflet_inference_api::openai::request::ChatRequest;
    use rooflet_text::answer::Part;
    use rooflet_text::tool_calls::CallPart;

    const TOOLS: &str = r#""tools": [{"type": "function", "function": {"name": "now", "parameters": {}}}]"#;

    fn chat(prompter: &Prompter, messages: &str, tools: &str) -> (String, ValidChat) {
        let body = format!(r#"{{"model": "m", "messages": {messages}{tools}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let chat = prompter.chat(Chat::from(&request), &request.options, &Zoned::default());
        let chat = chat.unwrap();
        let text = prompter.tokenizer().decode_with_special(&chat.request.prompt);
        (text.unwrap(), chat)
    }

    #[test]
    fn conversations_with_tools_use_tool_use_template() {
        let prompter = edited(|_, config| {
            config["chat_template"] = json!([
                {"name": "default", "template": "{{ messages[0].content }}"},
                {"name": "tool_use", "template": "{{ tools[0].function.name }}?"}
            ]);
        })
        .unwrap();
        let messages = r#"[{"role": "user", "content": "Hi"}]"#;
        assert_eq!(chat(&prompter, messages, "").0, "Hi");
        assert_eq!(chat(&prompter, messages, &format!(", {TOOLS}")).0, "now?");
        let unused = format!(r#", {TOOLS}, "tool_choice": "none""#);
        assert_eq!(chat(&prompter, messages, &unused).0, "Hi");
    }

    /// The template is similar to the one of the first Mistral models.
    #[test]
    fn tool_prompt_is_in_user_message_if_template_rejects_system_role() {
        let prompter = edited(|_, config| {
            config["chat_template"] =
                "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
                {{ raise_exception('roles must alternate') }}{% endif %}[{{ m.content }}]{% endfor %}"
                    .into();
        })
        .unwrap();
        let messages = r#"[{"role": "user", "content": "Now?"}, {"role": "assistant", "content": "Why?"},
            {"role": "user", "content": "So."}]"#;
        let (prompt, _) = chat(&prompter, messages, &format!(", {TOOLS}"));
        assert!(prompt.starts_with("[You may call functions."), "{prompt}");
        assert!(prompt.ends_with("</tool_call>\n\nNow?][Why?][So.]"), "{prompt}");
    }

    #[test]
    fn partial_required_call_is_never_content() {
        let prompter = edited(|_, config| {
            config["chat_template"] = "{{ messages[-1].content }}{# tools </think> #}".into();
        })
        .unwrap();
        let messages = r#"[{"role": "user", "content": "Now?"}]"#;
        let begin = || {
            let name = "now".to_owned();
            Part::Call(CallPart::Begin { name })
        };
        let arguments = |json: &str| Part::Call(CallPart::Arguments(json.to_owned()));
        let thought = || Part::Reasoning("Hm".to_owned());
        // With a single function, both values require the same call.
        for choice in [
            r#""required""#,
            r#"{"type": "function", "function": {"name": "now"}}"#,
        ] {
            let extra = format!(r#", {TOOLS}, "tool_choice": {choice}, "enable_thinking": true"#);
            let one = vec![begin()];
            let cases = [
                ("", one.clone()),
                ("<tool_c", one.clone()),
                ("<tool_call>\n{\"name\": \"no", one.clone()),
                ("<think>Hm", vec![thought()]),
                ("<think>Hm</think><tool", [vec![thought()], one].concat()),
                (
                    "<tool_call>\n{\"name\": \"now\", \"arguments\": {",
                    vec![begin(), arguments("{")],
                ),
                (
                    &format!("{CALL}\n<tool_call>\n{{\"na"),
                    vec![begin(), arguments("{}")],
                ),
            ];
            for (text, expected) in cases {
                let (_, mut chat) = chat(&prompter, messages, &extra);
                let mut parts = chat.answer.push(text, 1);
                parts.extend(chat.answer.finish());
                assert_eq!(parts, expected, "{text} of {choice}");
            }
        }
        let (_, mut chat) = chat(&prompter, messages, &format!(", {TOOLS}"));
        assert_eq!(chat.answer.push("<tool_c", 1), []);
        assert_eq!(chat.answer.finish(), [Part::Content("<tool_c".to_owned())]);
    }

    #[test]
    fn continued_message_with_open_reasoning_continues_reasoning() {
        let prompter = edited(|_, config| {
            config["chat_template"] =
                "{% for m in messages %}[{{ m.content }}]{% endfor %}{# </think> #}".into();
        })
        .unwrap();
        let continued = r#", "continue_final_message": true"#;
        for (message, is_reasoning) in [
            ("<think>\\nBecause", true),
            ("<think>", true),
            ("<think>a</think>b", false),
            ("The mark <think> is", false),
            ("a", false),
        ] {
            let messages = format!(
                r#"[{{"role": "user", "content": "Why?"}}, {{"role": "assistant", "content": "{message}"}}]"#
            );
            let (_, mut chat) = chat(&prompter, &messages, continued);
            let part = match is_reasoning {
                true => Part::Reasoning,
                false => Part::Content,
            };
            let mut parts = chat.answer.push("so", 1);
            parts.extend(chat.answer.finish());
            assert_eq!(parts, [part("so".to_owned())], "{message}");
        }
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn tool_markers_in_vocabulary_are_ignored_if_template_has_no_tools() {
        for mark in ["<|python_tag|>", "[TOOL_CALLS]"] {
            let prompter = edited(|tokenizer, _| {
                let added = json!({"id": 1024, "content": mark, "single_word": false, "lstrip": false,
                                   "rstrip": false, "normalized": false, "special": true});
                tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
            })
            .unwrap();
            let messages = r#"[{"role": "user", "content": "Now?"}]"#;
            let (_, mut chat) = chat(&prompter, messages, &format!(", {TOOLS}"));
            chat.answer.push(CALL, 1);
            chat.answer.finish();
            assert!(chat.answer.has_whole_calls(), "{mark}");
        }
    }

    /// The template does not read `tool_calls`. A call is a message with `metadata`, and its result
    /// is a message with the role `observation`.
    #[test]
    fn renders_calls_of_glm_4_as_messages() {
        let file = concat!(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
            "/e2e/fixtures/templates/glm4_0414.jinja"
        );
        let prompter = edited(|_, config| {
            config["chat_template"] = std::fs::read_to_string(file).unwrap().into();
        })
        .unwrap();
        let messages = r#"[{"role": "user", "content": "Now?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{\"in\": \"UTC\"}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "09:05"}, {"role": "user", "content": "And now?"}]"#;
        let (prompt, mut chat) = chat(&prompter, messages, &format!(", {TOOLS}"));
        let turns = "<|user|>\nNow?<|assistant|>now \n{\"in\":\"UTC\"}<|observation|>\n09:05<|user|>\nAnd now?<|assistant|>";
        assert!(prompt.ends_with(turns), "{prompt}");
        let mut parts = chat.answer.push("now\n{\"in\": \"UTC\"}", 1);
        parts.extend(chat.answer.finish());
        assert!(chat.answer.has_whole_calls(), "{parts:?}");
    }

    /// The distilled DeepSeek models have tool markers in vocabulary and template, but the template
    /// does not render tool definitions. The tool prompt therefore requests tagged calls.
    #[test]
    fn parses_calls_in_format_of_tool_prompt() {
        let file = concat!(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
            "/e2e/fixtures/templates/deepseek_r1_distill.jinja"
        );
        let prompter = edited(|_, config| {
            config["chat_template"] = std::fs::read_to_string(file).unwrap().into();
        })
        .unwrap();
        let messages = r#"[{"role": "user", "content": "Now?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{\"in\": \"UTC\"}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "09:05"}, {"role": "user", "content": "And now?"}]"#;
        let (prompt, mut chat) = chat(&prompter, messages, &format!(", {TOOLS}"));
        assert!(prompt.contains("answer with its name"), "{prompt}");
        assert!(
            prompt
                .contains("<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"in\": \"UTC\"}\n```"),
            "{prompt}"
        );
        chat.answer.push(&format!("It is.\n</think>\n{CALL}"), 1);
        chat.answer.finish();
        assert!(chat.answer.has_whole_calls());
    }
}
