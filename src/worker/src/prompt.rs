//! Conversion of API requests to engine requests, with the tokenizer, chat template and sampling
//! defaults of the model directory. Resolves all limits, and rejects requests that cannot run
//! before they reach the engine.

mod chat_format;
mod constraint;
mod defaults;
mod description;
mod embedding_size;
mod infill;
mod open_message;
mod request_template;
mod system_messages;
mod template_file;
mod text;
mod truncation;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use camino::Utf8Path;
use jiff::Zoned;
use serde_json::Value;

use self::chat_format::{ChatFormat, ChatFormats};
use self::constraint::ConstraintCache;
use self::defaults::SamplingDefaults;
use self::embedding_size::EmbeddingSizes;
use self::request_template::FormatOfRequest;
pub(crate) use self::request_template::{ChildRenderer, RequestTemplates};
pub use self::request_template::{MEMORY_EXCEEDED, RenderedTemplate};
use self::system_messages::merge_system_messages;
use self::template_file::{read_json, read_tokenizer_config};
use crate::batch::thinking::ThinkingBudget;
use crate::sampling::adjustment::Penalties;
use crate::sampling::sampler::Sampling;
use rooflet_artifact::model_dir::{InspectModelError, read_bounded};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::Overrun;
use rooflet_inference_api::openai::json::{Json, Members};
use rooflet_inference_api::openai::request::{ChatRequest, Options, PromptEnd, Stopping};
use rooflet_inference_api::openai::tools::{ToolChoice, Tools};
use rooflet_model::config::ModelConfig;
use rooflet_model::fields::MAX_CONFIG_BYTES;
use rooflet_text::answer::{AnswerParser, AnswerShape};
use rooflet_text::detokenizer::Detokenizer;
use rooflet_text::grammar::constraint::Constraint;
use rooflet_text::grammar::vocabulary::Vocabulary;
use rooflet_text::reasoning::ReasoningMarkers;
use rooflet_text::template::{RenderInput, TemplateError};
use rooflet_text::tokenizer::{Tokenizer, TokenizerError};
use rooflet_text::tool_calls::tool_prompt;
use rooflet_text::tool_calls::tool_prompt::PromptRole;
use rooflet_text::tool_calls::{ToolFormat, glm, kimi};

/// Maximum size of `tokenizer.json`. The largest published file has about 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// OpenAI's default for `max_tokens` of `/v1/completions`. The default of a chat is the remaining
/// context.
const DEFAULT_COMPLETION_TOKENS: usize = 16;

/// Maximum number of reasoning tokens before an answer in a required format, unless the request
/// sets a budget. Reasoning also has at most half of the tokens of the answer, so that the other
/// half remains for the formatted part.
const MAX_FORMAT_REASONING_TOKENS: usize = 16_384;

/// A request that the engine can run.
#[derive(Debug, Clone)]
pub(crate) struct ValidRequest {
    /// Prompt tokens: not empty, shorter than the context, all within the model's vocabulary.
    pub prompt: Vec<u32>,
    pub prompt_use: PromptUse,
    /// Maximum number of generated tokens; prompt and answer fit the context. 0: prefill only.
    pub max_tokens: usize,
    pub stopping: Stopping,
    /// True if the answer continues the prompt's text, as opposed to starting a new message.
    pub continues_prompt: bool,
    /// Special tokens that appear in the answer's text.
    pub shown_tokens: Arc<[u32]>,
    /// Grammar of the answer.
    pub constraint: Option<Constraint>,
    /// Limit of reasoning tokens.
    pub thinking: Option<ThinkingBudget>,
    pub sampling: Sampling,
    /// Number of most probable tokens to return per token. `None`: no logprobs.
    pub logprobs: Option<usize>,
    /// Number of most probable tokens to return per prompt token. `None`: no prompt logprobs.
    pub prompt_logprobs: Option<usize>,
    /// True if the events of the answer contain its token ids.
    pub returns_token_ids: bool,
    /// Priority of scheduling; lower values run first, as in vLLM.
    pub priority: i32,
    /// True for the first choice of a prompt.
    pub is_first_choice: bool,
    /// Cache salt: requests share cached prefixes only if their salts are equal.
    pub cache_salt: String,
}

/// Purpose of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptUse {
    Answer,
    /// Answer that starts with the prompt's text, including the prompt's logprobs if requested.
    Echo(Echo),
    Embed,
}

/// Text of an echoed prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Echo {
    pub text: String,
    /// Offset of each token in characters.
    pub offsets: Vec<usize>,
}

impl ValidRequest {
    /// Returns the number of characters of the echoed prompt.
    pub(crate) fn echoed_chars(&self) -> usize {
        match &self.prompt_use {
            PromptUse::Echo(echo) => echo.text.chars().count(),
            PromptUse::Answer | PromptUse::Embed => 0,
        }
    }

    /// Returns a detokenizer for the answer.
    pub(crate) fn detokenizer(&self, tokenizer: &Tokenizer) -> Detokenizer {
        let detokenizer = Detokenizer::new(tokenizer, &self.shown_tokens);
        match self.continues_prompt {
            true => detokenizer.after_prompt(tokenizer, &self.prompt),
            false => detokenizer,
        }
    }

    /// Returns `n` copies of the request with different seeds. The first copy keeps the request's
    /// seed, so that its answer does not depend on `n`.
    pub(crate) fn choices(self, n: usize) -> Vec<Self> {
        let choice = |index: usize| {
            let mut request = self.clone();
            request.sampling.seed = self.sampling.seed_of_choice(index);
            request.is_first_choice = index == 0;
            // All choices have the same prompt.
            request.prompt_logprobs = self.prompt_logprobs.filter(|_| index == 0);
            request
        };
        (0..n).map(choice).collect()
    }
}

/// Conversation to render with the chat template.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chat<'a> {
    pub messages: &'a [Json],
    /// Template of the request. `None`: that of the model.
    pub template: Option<&'a str>,
    /// Additional variables of the template (`chat_template_kwargs`).
    pub variables: &'a Members,
    pub tools: Option<&'a Tools>,
    pub ending: PromptEnd,
}

impl<'a> From<&'a ChatRequest> for Chat<'a> {
    fn from(request: &'a ChatRequest) -> Self {
        Self {
            messages: &request.messages,
            template: request.template.as_deref(),
            variables: &request.template_variables,
            tools: request.tools.as_ref(),
            ending: match request.continues {
                true => PromptEnd::OpenMessage,
                false => PromptEnd::Answer,
            },
        }
    }
}

/// Engine request for a chat, with the parser of its answer.
#[derive(Debug, Clone)]
pub(crate) struct ValidChat {
    pub request: ValidRequest,
    pub answer: AnswerParser,
}

/// Error in the tokenizer or template files of a model directory.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("failed to read the model directory")]
    Read {
        #[source]
        err: InspectModelError,
    },
    #[error("failed to parse {file} in the model directory")]
    InvalidJson {
        file: &'static str,
        #[source]
        err: serde_json::Error,
    },
    #[error("failed to load the tokenizer from the model directory")]
    Tokenizer {
        #[source]
        err: TokenizerError,
    },
    #[error("failed to load the chat template from the model directory")]
    Template {
        #[source]
        err: TemplateError,
    },
}

impl PromptError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { err } => err.reason(),
            Self::InvalidJson { .. } => "InvalidModelFile",
            Self::Tokenizer { err } => err.reason(),
            Self::Template { err } => err.reason(),
        }
    }
}

/// Number of bytes per token of the context above which [`Prompter::check_length`] counts the
/// tokens of a text.
const LONG_TEXT_BYTES_PER_TOKEN: usize = 8;
/// Maximum size of a text that is tokenized without counting its tokens first.
const MAX_UNCOUNTED_BYTES: usize = 256 << 10;

/// Converter from API requests to engine requests; see the module documentation.
#[derive(Debug)]
pub(crate) struct Prompter {
    tokenizer: Tokenizer,
    /// Chat templates. `None`: the model does not support chats.
    formats: Option<ChatFormats>,
    defaults: SamplingDefaults,
    embedding_sizes: EmbeddingSizes,
    /// Content of `tokenizer_config.json`.
    tokenizer_config: Option<Value>,
    vocab_size: u32,
    /// Vocabulary for grammars, built by the first request that needs it. `None`: the tokenizer
    /// does not support grammars.
    vocabulary: OnceLock<Option<Arc<Vocabulary>>>,
    constraints: ConstraintCache,
    request_templates: RequestTemplates,
    context_tokens: AtomicUsize,
}

impl Prompter {
    /// Loads tokenizer, chat templates and sampling defaults from a model directory.
    pub(crate) fn load(
        dir: &Utf8Path,
        config: &ModelConfig,
        context_tokens: usize,
    ) -> Result<Self, PromptError> {
        let tokenizer_json = read_bounded(dir, "tokenizer.json", MAX_TOKENIZER_BYTES)
            .map_err(|err| PromptError::Read { err })?;
        let tokenizer_config = read_tokenizer_config(dir)?;
        let generation_config = read_json(dir, "generation_config.json")?;
        let tokenizer = Tokenizer::new(
            tokenizer_json.as_bytes(),
            tokenizer_config.as_ref(),
            generation_config.as_ref(),
            &config.eos_token_ids,
        )
        .map_err(|err| PromptError::Tokenizer { err })?;
        let out_of_vocabulary = tokenizer
            .check_vocab_size(config.dimensions.vocabulary)
            .map_err(|err| PromptError::Tokenizer { err })?;
        if let Some(id) = out_of_vocabulary {
            let token = tokenizer.token_text(id).unwrap_or_default();
            tracing::warn!(
                id,
                token,
                vocab_size = config.dimensions.vocabulary,
                "tokenizer has tokens without weights; requests with these tokens will be rejected"
            );
        }
        Ok(Self {
            formats: ChatFormats::load(dir, tokenizer_config.as_ref(), &tokenizer)?,
            tokenizer,
            defaults: SamplingDefaults::new(generation_config.as_ref()),
            embedding_sizes: EmbeddingSizes::new(
                read_json(dir, "config.json")?.as_ref(),
                config.dimensions.hidden as usize,
            ),
            tokenizer_config,
            vocab_size: config.dimensions.vocabulary,
            vocabulary: OnceLock::new(),
            constraints: ConstraintCache::default(),
            request_templates: RequestTemplates::rejected(),
            context_tokens: AtomicUsize::new(context_tokens),
        })
    }

    pub(crate) fn with_request_templates(self, request_templates: RequestTemplates) -> Self {
        Self {
            request_templates,
            ..self
        }
    }

    /// Returns the maximum length of prompt plus answer in tokens.
    pub(crate) fn context_tokens(&self) -> usize {
        self.context_tokens.load(Ordering::Relaxed)
    }

    /// Reduces the context to at most `tokens`. The engine calls this after loading the model, when
    /// it has determined the memory for the KV cache.
    pub(crate) fn limit_context(&self, tokens: usize) {
        self.context_tokens.fetch_min(tokens, Ordering::Relaxed);
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn chat(&self, chat: Chat<'_>, options: &Options, now: &Zoned) -> Result<ValidChat, ApiError> {
        let format = self.format_of(chat)?;
        let text = self.render_chat(&format, chat, now)?;
        let kept = self.kept_tokens(options.tokens.truncation, options.max_tokens.unwrap_or(1))?;
        let encode = |text: &str| self.tokenizer.encode_chat(text);
        let prompt = self.encode_last("messages", &text, kept, &[], encode)?;
        let request = self.build_request("messages", prompt, options, self.context_tokens())?;
        let mut shape = format.answer_shape(&text, chat);
        let must_call = chat.tools.is_some_and(|tools| tools.choice != ToolChoice::Auto);
        let has_format = options.format.is_some() || must_call;
        let budget = options.thinking_tokens;
        if has_format && !format.turns_on_reasoning(&shape, chat.variables, budget.is_some()) {
            shape.reasoning = None;
        }
        let default_budget = || has_format.then(|| (request.max_tokens / 2).min(MAX_FORMAT_REASONING_TOKENS));
        Ok(ValidChat {
            request: ValidRequest {
                continues_prompt: chat.ending == PromptEnd::OpenMessage,
                shown_tokens: self.shown_tokens(&shape),
                constraint: self.constraint(options.format.as_ref(), chat.tools, &shape)?,
                thinking: self.thinking(budget.or_else(default_budget), &shape),
                ..request
            },
            answer: AnswerParser::new(&shape),
        })
    }

    /// Returns the budget of reasoning tokens. `None` without a limit, or if the model does not
    /// reason.
    fn thinking(&self, tokens: Option<usize>, shape: &AnswerShape) -> Option<ThinkingBudget> {
        let (markers, begins_in_reasoning) = match shape.tool_format {
            ToolFormat::Harmony => (ReasoningMarkers::HARMONY, false),
            ToolFormat::Tagged
            | ToolFormat::Llama
            | ToolFormat::Mistral
            | ToolFormat::DeepSeek { .. }
            | ToolFormat::Kimi
            | ToolFormat::Glm => shape.reasoning?,
        };
        let close = match self.tokenizer.token_id(markers.close) {
            Some(token) => vec![token],
            None => self.tokenizer.encode_chat(markers.close).ok()?,
        };
        let text: Vec<u8> = close
            .iter()
            .flat_map(|token| self.tokenizer.standalone_bytes(*token))
            .collect();
        let is_complete = text.trim_ascii() == markers.close.as_bytes();
        if !is_complete || close.iter().any(|token| *token >= self.vocab_size) {
            return None;
        }
        let vocabulary = self.vocab_size as usize;
        Some(ThinkingBudget::new(
            tokens?,
            markers,
            &close,
            vocabulary,
            begins_in_reasoning,
        ))
    }

    /// Returns the prompt tokens of a conversation.
    pub(crate) fn chat_tokens(&self, chat: Chat<'_>, now: &Zoned) -> Result<Vec<u32>, ApiError> {
        let text = self.render_chat(&self.format_of(chat)?, chat, now)?;
        self.encode_last("messages", &text, None, &[], |text| {
            self.tokenizer.encode_chat(text)
        })
    }

    /// Rejects texts of more than [`MAX_UNCOUNTED_BYTES`] that are clearly longer than the context.
    ///
    /// Tokenization of a complete text needs hundreds of bytes of memory per byte of text. This
    /// check counts tokens in small pieces instead.
    pub(crate) fn check_length(&self, param: &str, text: &str) -> Result<(), ApiError> {
        let context_tokens = self.context_tokens();
        if text.len() <= MAX_UNCOUNTED_BYTES.max(context_tokens.saturating_mul(LONG_TEXT_BYTES_PER_TOKEN)) {
            return Ok(());
        }
        // The margin exceeds the counting error at the boundaries between pieces.
        let max_tokens = context_tokens.saturating_add(context_tokens / 8);
        let counted = self.tokenizer.count_in_pieces(text, max_tokens);
        let counted = counted.map_err(|err| ApiError::invalid_value(param, err.to_string()))?;
        if counted <= max_tokens {
            return Ok(());
        }
        let overrun = Overrun {
            prompt_tokens: counted - counted / 9,
            is_exact: false,
            context_tokens,
        };
        Err(ApiError::context_length_exceeded(param, overrun, false))
    }

    fn chat_format(&self, tools: Option<&Tools>) -> Result<&ChatFormat, ApiError> {
        let formats = self.formats.as_ref().ok_or_else(|| {
            ApiError::unsupported(
                "messages",
                "This model has no chat template; use /v1/completions.",
            )
        })?;
        Ok(formats.select(tools))
    }

    /// Returns the format of the request's own template, otherwise that of the model.
    fn format_of(&self, chat: Chat<'_>) -> Result<FormatOfRequest<'_>, ApiError> {
        match chat.template {
            Some(source) => self.request_templates.format(source, &self.tokenizer),
            None => self.chat_format(chat.tools).map(FormatOfRequest::Model),
        }
    }

    fn render_chat(
        &self,
        format: &FormatOfRequest<'_>,
        chat: Chat<'_>,
        now: &Zoned,
    ) -> Result<String, ApiError> {
        let template = &format.template;
        let listed = chat.tools.map(|tools| tools.listed.as_slice());
        let messages_with_marker;
        let messages = match chat.ending {
            PromptEnd::Message | PromptEnd::Answer => chat.messages,
            PromptEnd::OpenMessage => {
                messages_with_marker = open_message::with_marker(chat.messages);
                &messages_with_marker
            }
        };
        let render_unchanged = |messages: &[Json], tools: Option<&[Json]>| {
            template.render(RenderInput {
                messages,
                variables: chat.variables,
                tools,
                add_generation_prompt: chat.ending == PromptEnd::Answer,
                special_tokens: self.tokenizer.named_tokens(),
                now,
            })
        };
        // System messages keep their positions if the template accepts this, because merging them
        // would change the prompt's prefix and prevent a hit in the prefix cache.
        let render = |messages: &[Json], tools: Option<&[Json]>| {
            render_unchanged(messages, tools).or_else(|err| match merge_system_messages(messages) {
                Some(messages) => render_unchanged(&messages, tools).map_err(|_| err),
                None => Err(err),
            })
        };
        let converted;
        let messages = if format.writes_calls_as_metadata() {
            converted = glm::turns(messages);
            &converted
        } else if format.writes_own_call_ids() {
            converted = kimi::with_template_ids(messages);
            &converted
        } else {
            messages
        };
        let render_with_tool_prompt = |role| {
            let tools = listed.unwrap_or_default();
            render(
                &tool_prompt::with_tool_prompt(template.source(), messages, tools, role),
                None,
            )
        };
        let text = match tool_prompt::supports_tools(template.source()) {
            true => render(messages, listed),
            false => render_with_tool_prompt(PromptRole::System)
                .or_else(|err| render_with_tool_prompt(PromptRole::User).map_err(|_| err)),
        };
        let text = text.map_err(|err| format.rejection(&err.to_string()))?;
        match chat.ending {
            PromptEnd::Message | PromptEnd::Answer => Ok(text),
            PromptEnd::OpenMessage => open_message::cut_at_marker(text, chat.messages).ok_or_else(|| {
                ApiError::unsupported(
                    "messages",
                    "The last message cannot be continued: the model's chat template changes its text.",
                )
            }),
        }
    }

    /// Returns the special tokens among the markers of reasoning and tool calls.
    fn shown_tokens(&self, shape: &AnswerShape) -> Arc<[u32]> {
        let mut markers = Vec::new();
        if let Some((reasoning, _)) = shape.reasoning {
            markers.extend([reasoning.open, reasoning.close]);
        }
        if shape.tools.is_some() || shape.tool_format == ToolFormat::Harmony {
            markers.extend(shape.tool_format.markers());
        }
        self.tokenizer.special_tokens(&markers)
    }

    /// Returns `tokenizer_config.json` with the source of the default chat template.
    pub(crate) fn tokenizer_info(&self) -> Value {
        let mut info = match &self.tokenizer_config {
            Some(Value::Object(config)) => config.clone(),
            Some(_) | None => serde_json::Map::new(),
        };
        if let Some(formats) = &self.formats {
            let source = formats.select(None).template.source();
            info.insert("chat_template".to_owned(), source.into());
        }
        Value::Object(info)
    }

    pub(crate) fn check_tokens<'a>(
        &self,
        param: &str,
        mut tokens: impl Iterator<Item = &'a u32>,
    ) -> Result<(), ApiError> {
        match tokens.find(|token| **token >= self.vocab_size) {
            None => Ok(()),
            Some(token) => {
                let text = self.tokenizer.token_text(*token);
                let text = text.map(|text| format!(" ({text})")).unwrap_or_default();
                let largest = self.vocab_size - 1;
                Err(ApiError::invalid_value(
                    param,
                    format!(
                        "'{param}' contains token {token}{text}, which is out of vocabulary: the largest token ID is {largest}."
                    ),
                ))
            }
        }
    }

    fn build_request(
        &self,
        param: &str,
        prompt: Vec<u32>,
        options: &Options,
        default_tokens: usize,
    ) -> Result<ValidRequest, ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::invalid_value(
                param,
                format!("'{param}' must not be empty."),
            ));
        }
        let sampling = &options.sampling;
        self.check_tokens(param, prompt.iter())?;
        self.check_tokens("logit_bias", sampling.logit_bias.keys())?;
        self.check_tokens("stop_token_ids", options.stopping.token_ids.iter())?;
        let context_tokens = self.context_tokens();
        let generates = options.max_tokens != Some(0);
        if prompt.len() + usize::from(generates) > context_tokens {
            let overrun = Overrun {
                prompt_tokens: prompt.len(),
                is_exact: true,
                context_tokens,
            };
            return Err(ApiError::context_length_exceeded(param, overrun, generates));
        }
        let remaining = context_tokens - prompt.len();
        Ok(ValidRequest {
            max_tokens: options.max_tokens.unwrap_or(default_tokens).min(remaining),
            prompt,
            prompt_use: PromptUse::Answer,
            stopping: options.stopping.clone(),
            continues_prompt: false,
            shown_tokens: [].into(),
            constraint: None,
            thinking: None,
            sampling: Sampling {
                temperature: sampling.temperature.unwrap_or(self.defaults.temperature),
                top_p: sampling.top_p.unwrap_or(self.defaults.top_p),
                top_k: sampling.top_k.unwrap_or(self.defaults.top_k),
                min_p: sampling.min_p.unwrap_or(self.defaults.min_p),
                penalties: Penalties {
                    bias: sampling.logit_bias.clone(),
                    presence: sampling.presence_penalty.unwrap_or(0.0),
                    frequency: sampling.frequency_penalty.unwrap_or(0.0),
                    repetition: sampling
                        .repetition_penalty
                        .unwrap_or(self.defaults.repetition_penalty),
                },
                seed: sampling.seed.unwrap_or_else(rand::random),
            },
            logprobs: options.logprobs,
            prompt_logprobs: options.tokens.prompt_logprobs,
            returns_token_ids: options.tokens.return_ids,
            priority: options.priority,
            is_first_choice: true,
            cache_salt: options.cache_salt.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
