use camino::Utf8PathBuf;
use serde_json::{Value, json};

use super::*;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::message;
use rooflet_inference_api::openai::request::{ChatRequest, Prompt};
use rooflet_testing::TempDir;

pub(super) fn prompter(context_tokens: usize) -> Prompter {
    let dir = Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/models/guide");
    let config = ModelConfig::parse(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap();
    Prompter::load(&dir, &config, context_tokens).unwrap()
}

/// Loads the example model after `edit` has changed its tokenizer.json and tokenizer_config.json.
pub(super) fn edited(edit: impl FnOnce(&mut Value, &mut Value)) -> Result<Prompter, PromptError> {
    let model =
        Utf8PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("examples/models/guide");
    let dir = TempDir::new();
    let dir = dir.path();
    let [mut tokenizer, mut config] = ["tokenizer.json", "tokenizer_config.json"]
        .map(|file| serde_json::from_slice(&std::fs::read(model.join(file)).unwrap()).unwrap());
    edit(&mut tokenizer, &mut config);
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    let config = ModelConfig::parse(&std::fs::read_to_string(model.join("config.json")).unwrap()).unwrap();
    Prompter::load(dir, &config, 1000)
}

fn chat(prompter: &Prompter, options: &Options) -> Result<ValidRequest, ApiError> {
    let chat = Chat {
        messages: &[message::user("What is rooflet?")],
        template: None,
        variables: &Members::default(),
        tools: None,
        ending: PromptEnd::Answer,
    };
    prompter
        .chat(chat, options, &Zoned::default())
        .map(|chat| chat.request)
}

#[test]
fn limits_max_tokens_to_remaining_context() {
    // The prompt has 12 tokens.
    let options = |max_tokens| Options {
        max_tokens,
        ..Options::default()
    };
    assert_eq!(chat(&prompter(100), &options(None)).unwrap().max_tokens, 88);
    assert_eq!(chat(&prompter(100), &options(Some(7))).unwrap().max_tokens, 7);
    assert_eq!(chat(&prompter(100), &options(Some(500))).unwrap().max_tokens, 88);
    assert_eq!(chat(&prompter(13), &options(Some(5))).unwrap().max_tokens, 1);
    let err = chat(&prompter(12), &options(Some(5))).unwrap_err();
    assert_eq!(
        (err.status.as_u16(), err.code, err.param.as_deref()),
        (400, Some(ErrorCode::ContextLengthExceeded), Some("messages"))
    );
}

#[test]
fn rejects_empty_prompts_and_unknown_tokens() {
    let text = |prompt| prompter(100).text(&prompt, false, &Options::default());
    assert_eq!(text(Prompt::Tokens(vec![5, 6])).unwrap().prompt, [5, 6]);
    assert_eq!(text(Prompt::Tokens(vec![5, 6])).unwrap().max_tokens, 16);
    for prompt in [
        Prompt::Tokens(vec![]),
        Prompt::Text(String::new()),
        Prompt::Tokens(vec![1024]),
    ] {
        assert_eq!(
            text(prompt.clone()).unwrap_err().param.as_deref(),
            Some("prompt"),
            "{prompt:?}"
        );
    }
}

/// The tokenizer of Gemma 3's text models has an image token beyond the last row of the embedding.
#[test]
fn rejects_requests_with_tokens_beyond_vocabulary() {
    let prompter = edited(|tokenizer, _| {
        let added = json!({"id": 1024, "content": "<image>", "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false, "special": true});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    })
    .unwrap();
    let text = |text: &str| prompter.text(&Prompt::Text(text.to_owned()), false, &Options::default());
    assert!(text("What is rooflet?").is_ok());
    assert_eq!(
        text("What is <image>?").unwrap_err().message,
        "'prompt' contains token 1024 (<image>), which is out of vocabulary: the largest token ID is 1023."
    );
}

/// Tokenization of a complete text needs hundreds of bytes of memory per byte.
#[test]
fn rejects_very_long_text_without_tokenizing_all_of_it() {
    let prompter = prompter(1000);
    let overrun = |bytes: usize| {
        let text = Prompt::Text("0,".repeat(bytes / 2));
        let err = prompter.text(&text, false, &Options::default()).unwrap_err();
        assert_eq!(err.code, Some(ErrorCode::ContextLengthExceeded));
        err.overrun.unwrap()
    };
    let long = overrun(200_000);
    assert!(long.is_exact && long.prompt_tokens > 10_000, "{long:?}");
    let longer = overrun(2_000_000);
    assert!(!longer.is_exact, "{longer:?}");
    // Counting stops after the first piece.
    assert!((1001..100_000).contains(&longer.prompt_tokens), "{longer:?}");
    let err = ApiError::context_length_exceeded("prompt", longer, false);
    assert!(
        err.message.contains("your prompt has at least "),
        "{}",
        err.message
    );
}

#[test]
fn token_count_in_pieces_is_close_to_exact_count() {
    let prompter = prompter(1000);
    let text = "What is rooflet? \u{e9}".repeat(20_000);
    let whole = prompter.tokenizer().encode_prompt(&text).unwrap().len();
    let pieces = prompter.tokenizer().count_in_pieces(&text, usize::MAX).unwrap();
    assert!(pieces.abs_diff(whole) < 100, "{pieces} of {whole}");
}

fn render_continued(prompter: &Prompter, text: &str) -> Result<String, ApiError> {
    let chat = Chat {
        messages: &[message::user("Say m."), message::with_role("assistant", text)],
        template: None,
        variables: &Members::default(),
        tools: None,
        ending: PromptEnd::OpenMessage,
    };
    prompter.render_chat(&prompter.format_of(chat)?, chat, &Zoned::default())
}

#[test]
fn prompt_of_continued_message_ends_with_its_text() {
    // Some of these texts also occur in the template's text after the message.
    let prompts = |template: Option<&str>| {
        edited(|_, config| {
            if let Some(template) = template {
                config["chat_template"] = template.into();
            }
        })
        .unwrap()
    };
    let (own, trims) = (
        prompts(None),
        prompts(Some(
            "{% for m in messages %}<s>\n{{ m.content | trim }}</s>{% endfor %}",
        )),
    );
    for message in ["<", "m", "en", "|", "im_end", "s>", "", "The m", " a\n b \n"] {
        let text = render_continued(&own, message).unwrap();
        assert!(
            text.ends_with(&format!("<|im_start|>assistant\n{message}")),
            "{text:?}"
        );
        let text = render_continued(&trims, message).unwrap();
        assert_eq!(text, format!("<s>\nSay m.</s><s>\n{}", message.trim()));
    }
    let changes = prompts(Some("{% for m in messages %}{{ m.content | upper }}{% endfor %}"));
    assert!(render_continued(&changes, "a").is_err());
    let cuts = prompts(Some("{{ messages[-1].content.split('-')[-1] }}"));
    assert!(render_continued(&cuts, "a-b").is_err());
}

/// The template writes the place of a call in its message, and the client's identifiers for results.
#[test]
fn calls_of_kimi_have_identifiers_that_do_not_repeat() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../e2e/fixtures/templates/kimi_k2.jinja"
    );
    let template = std::fs::read_to_string(path).unwrap();
    let prompter = edited(|_, config| config["chat_template"] = template.into()).unwrap();
    let turn = |id: &str| {
        let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        [
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "content": "1"}),
        ]
    };
    let user = json!({"role": "user", "content": "Hi"});
    let messages = [
        vec![user],
        turn("functions.f:0").into(),
        turn("functions.f:1").into(),
    ]
    .concat();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = json!({"model": "m", "messages": messages, "tools": tools}).to_string();
    let request = ChatRequest::parse(body.as_bytes()).unwrap();
    let chat = Chat::from(&request);
    let format = prompter.format_of(chat).unwrap();
    let text = prompter.render_chat(&format, chat, &Zoned::default()).unwrap();
    assert_eq!(text.matches("Return of functions.f:0").count(), 2, "{text}");
    let answer = AnswerParser::new(&format.answer_shape(&text, chat));
    assert_eq!(answer.call_id("call_", "", "f", 1), "functions.f:3");
}
