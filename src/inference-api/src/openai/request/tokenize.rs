//! `/tokenize` and `/detokenize`, compatible with vLLM.

use serde_json::Value;

use super::prompt::token_ids;
use super::{Body, PromptEnd, template};
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::message;
use crate::openai::tools;
use crate::openai::tools::Tools;

/// Request of `POST /tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// `None`: the served model.
    pub model: Option<String>,
    pub input: TokenizeInput,
    /// True if the response includes the text of each token.
    pub token_texts: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    Text {
        text: String,
        /// True if the tokenizer's initial tokens are added.
        add_special_tokens: bool,
    },
    Chat {
        messages: Vec<Json>,
        /// Chat template of the request. `None`: the template of the model.
        template: Option<String>,
        template_variables: Members,
        tools: Option<Tools>,
        ending: PromptEnd,
    },
}

/// Request of `POST /detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// `None`: the served model.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

impl TokenizeRequest {
    const NAMES: &[&str] = &[
        "model",
        "prompt",
        "add_special_tokens",
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "return_token_strs",
    ];

    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let Body {
            messages,
            template_variables,
            tools,
            // Formats do not change the prompt.
            formats: _,
            fields,
        } = Body::parse(body)?;
        fields.check_names(&[Self::NAMES, template::NAMES, tools::NAMES], &[], |_, _| false)?;
        let input = if messages.is_some() {
            if fields.get("prompt").is_some() {
                return Err(ApiError::invalid_value(
                    "prompt",
                    "'prompt' and 'messages' cannot be combined.",
                ));
            }
            if fields.boolean("add_special_tokens")? == Some(true) {
                return Err(ApiError::unsupported(
                    "add_special_tokens",
                    "'add_special_tokens' is for 'prompt': the chat template adds all special tokens.",
                ));
            }
            let messages = message::parse(messages)?;
            TokenizeInput::Chat {
                ending: PromptEnd::parse(&fields, &messages)?,
                messages,
                template: template::parse_source(&fields)?,
                template_variables: template::parse_variables(template_variables, &fields)?,
                tools: Tools::parse(
                    tools,
                    fields.get("tool_choice"),
                    fields.boolean("parallel_tool_calls")?,
                )?,
            }
        } else {
            let text = fields
                .text("prompt")?
                .ok_or_else(|| ApiError::missing("prompt"))?;
            TokenizeInput::Text {
                text: text.to_owned(),
                add_special_tokens: fields.boolean("add_special_tokens")?.unwrap_or(true),
            }
        };
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            input,
            token_texts: fields.boolean("return_token_strs")?.unwrap_or(false),
        })
    }
}

impl DetokenizeRequest {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let fields = Body::parse(body)?.into_fields()?;
        fields.check_names(&[&["model", "tokens"]], &[], |_, _| false)?;
        let tokens = fields.read("tokens", "a list of token ids", |value| match value {
            Value::Array(ids) => token_ids(ids),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
        })?;
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            tokens: tokens.ok_or_else(|| ApiError::missing("tokens"))?,
        })
    }
}
