//! What the model's directory says about text: tokenizer, chat template, sampling defaults. Turns
//! parsed requests into requests the engine can run, with every limit resolved; what cannot run is
//! refused here, before any compute.

mod chat_format;
mod constraint;
mod defaults;
mod one_system;
mod open_message;
mod template_file;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use camino::Utf8Path;
use jiff::Zoned;

use self::chat_format::{ChatFormat, ChatFormats};
use self::constraint::Constraints;
use self::defaults::SamplingDefaults;
use self::one_system::one_system;
use self::template_file::{read_json, read_tokenizer_config};
use crate::batch::thinking::ThinkingBudget;
use crate::batch::transcript::chars_before;
use crate::sampling::adjustment::Penalties;
use crate::sampling::sampler::Sampling;
use rooflet_artifact::model_dir::{InspectModelError, read_bounded};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::Overrun;
use rooflet_inference_api::openai::json::{Json, Members};
use rooflet_inference_api::openai::request::{ChatRequest, Options, Prompt, PromptEnd, Stopping};
use rooflet_inference_api::openai::tools::Tools;
use rooflet_model::config::ModelConfig;
use rooflet_model::fields::MAX_CONFIG_BYTES;
use rooflet_text::answer::{AnswerParser, AnswerShape};
use rooflet_text::detokenizer::Detokenizer;
use rooflet_text::grammar::constraint::Constraint;
use rooflet_text::grammar::vocabulary::Vocabulary;
use rooflet_text::template::{RenderInput, TemplateError};
use rooflet_text::tokenizer::{DecodeError, Tokenizer, TokenizerError};
use rooflet_text::tool_calls::offer;
use rooflet_text::tool_calls::offer::Speaker;
use rooflet_text::tool_calls::{ToolFormat, glm};

/// The largest published ones are about 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// OpenAI's default for `/v1/completions`. A chat may use what is left of the context.
const DEFAULT_COMPLETION_TOKENS: usize = 16;

/// A request that the engine can run.
#[derive(Debug, Clone)]
pub(crate) struct ValidRequest {
    /// Not empty, shorter than the context, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    pub prompt_use: PromptUse,
    /// Prompt plus this fits the context; 0 = the prompt is read, no more.
    pub max_tokens: usize,
    pub stopping: Stopping,
    /// The answer is more of the prompt's text, not a text of its own.
    pub goes_on: bool,
    /// Special tokens that are text.
    pub shown_tokens: Arc<[u32]>,
    /// What the answer has to be.
    pub constraint: Option<Constraint>,
    /// How much it may think.
    pub thinking: Option<ThinkingBudget>,
    pub sampling: Sampling,
    /// How many of the most probable tokens are told with each token; `None`: no logprobs at all.
    pub logprobs: Option<usize>,
    /// Lower goes first.
    pub priority: i32,
    /// Of the choices for its prompt.
    pub is_first_choice: bool,
    /// Prefixes are shared only between requests that have the same.
    pub cache_salt: String,
}

/// What a prompt is for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptUse {
    Answer,
    /// Repeated before the answer, with logprobs of its own where they are asked for.
    Echo(Echo),
    Embed,
}

/// A prompt as its owner sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Echo {
    pub text: String,
    /// Of each token, the characters before it.
    pub offsets: Vec<usize>,
}

impl ValidRequest {
    /// Characters that come before the answer.
    pub(crate) fn echoed_chars(&self) -> usize {
        match &self.prompt_use {
            PromptUse::Echo(echo) => echo.text.chars().count(),
            PromptUse::Answer | PromptUse::Embed => 0,
        }
    }

    /// Of the answer.
    pub(crate) fn detokenizer(&self, tokenizer: &Tokenizer) -> Detokenizer {
        let anew = Detokenizer::new(tokenizer, &self.shown_tokens);
        match self.goes_on {
            true => anew.going_on_with(tokenizer, &self.prompt),
            false => anew,
        }
    }

    /// The same request `n` times, each choosing for itself: the first as if it were the only one.
    pub(crate) fn choices(self, n: usize) -> Vec<Self> {
        let choice = |index: usize| {
            let mut request = self.clone();
            request.sampling.seed = self.sampling.seed_of_choice(index);
            request.is_first_choice = index == 0;
            request
        };
        (0..n).map(choice).collect()
    }
}

/// A conversation to be answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chat<'a> {
    pub messages: &'a [Json],
    /// What the template is told besides.
    pub variables: &'a Members,
    pub tools: Option<&'a Tools>,
    pub ending: PromptEnd,
}

impl<'a> From<&'a ChatRequest> for Chat<'a> {
    fn from(request: &'a ChatRequest) -> Self {
        Self {
            messages: &request.messages,
            variables: &request.template_variables,
            tools: request.tools.as_ref(),
            ending: match request.continues {
                true => PromptEnd::OpenMessage,
                false => PromptEnd::Answer,
            },
        }
    }
}

/// A request for an answer, and how to read that.
#[derive(Debug, Clone)]
pub(crate) struct ValidChat {
    pub request: ValidRequest,
    pub answer: AnswerParser,
}

/// Why the text side of a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("model directory")]
    Read {
        #[source]
        err: InspectModelError,
    },
    #[error("model directory: {file}: not valid JSON")]
    InvalidJson {
        file: &'static str,
        #[source]
        err: serde_json::Error,
    },
    #[error("model directory")]
    Tokenizer {
        #[source]
        err: TokenizerError,
    },
    #[error("model directory")]
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

/// Of a text with more bytes to a token than this, or of one that is too long, tokens are counted
/// before they are made.
const LONG_TOKEN_BYTES: usize = 8;
/// Texts up to here are made tokens in any case.
const MAX_PLAIN_BYTES: usize = 256 << 10;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Prompter {
    tokenizer: Tokenizer,
    formats: Option<ChatFormats>,
    defaults: SamplingDefaults,
    vocab_size: u32,
    /// Built for the first request that needs it; `None` where the tokenizer has none that could be
    /// used.
    vocabulary: OnceLock<Option<Arc<Vocabulary>>>,
    /// Of earlier requests.
    constraints: Constraints,
    context_tokens: AtomicUsize,
}

impl Prompter {
    /// Reads the directory's text files.
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
        let beyond = tokenizer
            .check_fits(config.dimensions.vocabulary)
            .map_err(|err| PromptError::Tokenizer { err })?;
        if let Some(id) = beyond {
            let token = tokenizer.token_text(id).unwrap_or_default();
            tracing::warn!(
                id,
                token,
                vocab_size = config.dimensions.vocabulary,
                "tokenizer.json has tokens that the model has no weights for: requests with one of them are refused"
            );
        }
        Ok(Self {
            formats: ChatFormats::load(dir, tokenizer_config.as_ref(), &tokenizer)?,
            tokenizer,
            defaults: SamplingDefaults::new(generation_config.as_ref()),
            vocab_size: config.dimensions.vocabulary,
            vocabulary: OnceLock::new(),
            constraints: Constraints::default(),
            context_tokens: AtomicUsize::new(context_tokens),
        })
    }

    /// The longest prompt and answer together.
    pub(crate) fn context_tokens(&self) -> usize {
        self.context_tokens.load(Ordering::Relaxed)
    }

    /// Requests must not be longer; the engine knows its memory only when it has loaded, before the
    /// first request.
    pub(crate) fn limit_context(&self, tokens: usize) {
        self.context_tokens.fetch_min(tokens, Ordering::Relaxed);
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(crate) fn chat(&self, chat: Chat<'_>, options: &Options, now: &Zoned) -> Result<ValidChat, ApiError> {
        let text = self.rendered(chat, now)?;
        self.check_length("messages", &text)?;
        let prompt = self.encoded_chat(&text)?;
        let request = self.limited("messages", prompt, options, self.context_tokens())?;
        let shape = self.chat_format(chat.tools)?.answer_shape(&text, chat);
        Ok(ValidChat {
            request: ValidRequest {
                goes_on: chat.ending == PromptEnd::OpenMessage,
                shown_tokens: self.shown_tokens(&shape),
                constraint: self.constraint(options.format.as_ref(), chat.tools, &shape)?,
                thinking: self.thinking(options.thinking_tokens, &shape),
                ..request
            },
            answer: AnswerParser::new(&shape),
        })
    }

    /// `None` where none is asked for, and for models that do not think or whose marks are not
    /// single tokens.
    fn thinking(&self, tokens: Option<usize>, shape: &AnswerShape) -> Option<ThinkingBudget> {
        let (markers, begun) = shape.reasoning?;
        let mark = |text: &str| {
            let id = self.tokenizer.token_id(text);
            id.filter(|id| *id < self.vocab_size)
        };
        let marks = (mark(markers.open)?, mark(markers.close)?);
        let vocabulary = self.vocab_size as usize;
        Some(ThinkingBudget::new(tokens?, marks, vocabulary, begun))
    }

    /// A conversation's tokens.
    pub(crate) fn chat_tokens(&self, chat: Chat<'_>, now: &Zoned) -> Result<Vec<u32>, ApiError> {
        let text = self.rendered(chat, now)?;
        self.check_length("messages", &text)?;
        self.encoded_chat(&text)
    }

    fn encoded_chat(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        self.tokenizer
            .encode_chat(text)
            .map_err(|err| ApiError::invalid_value("messages", err.to_string()))
    }

    /// Refuses a text of more than [`MAX_PLAIN_BYTES`] that is plainly longer than the context,
    /// before it is made tokens as a whole: that takes hundreds of bytes of memory for each of its
    /// own.
    pub(crate) fn check_length(&self, param: &str, text: &str) -> Result<(), ApiError> {
        let context_tokens = self.context_tokens();
        if text.len() <= MAX_PLAIN_BYTES.max(context_tokens.saturating_mul(LONG_TOKEN_BYTES)) {
            return Ok(());
        }
        // Far more than the ends of pieces can be wrong by.
        let most = context_tokens.saturating_add(context_tokens / 8);
        let counted = self.tokenizer.count_in_pieces(text, most);
        let counted = counted.map_err(|err| ApiError::invalid_value(param, err.to_string()))?;
        if counted <= most {
            return Ok(());
        }
        let overrun = Overrun {
            prompt_tokens: counted - counted / 9,
            is_whole: false,
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
        Ok(formats.of(tools))
    }

    fn rendered(&self, chat: Chat<'_>, now: &Zoned) -> Result<String, ApiError> {
        let format = self.chat_format(chat.tools)?;
        let template = &format.template;
        let listed = chat.tools.map(|tools| tools.listed.as_slice());
        let marked;
        let messages = match chat.ending {
            PromptEnd::Message | PromptEnd::Answer => chat.messages,
            PromptEnd::OpenMessage => {
                marked = open_message::marked(chat.messages);
                &marked
            }
        };
        let render_as_they_are = |messages: &[Json], tools: Option<&[Json]>| {
            template.render(RenderInput {
                messages,
                variables: chat.variables,
                tools,
                add_generation_prompt: chat.ending == PromptEnd::Answer,
                special_tokens: self.tokenizer.named_tokens(),
                now,
            })
        };
        // Where a template takes them, messages of the system stay where they are: what was read of
        // the prompt before can then be used again.
        let render = |messages: &[Json], tools: Option<&[Json]>| {
            render_as_they_are(messages, tools).or_else(|err| match one_system(messages) {
                Some(messages) => render_as_they_are(&messages, tools).map_err(|_| err),
                None => Err(err),
            })
        };
        let as_metadata;
        let messages = match format.writes_calls_as_metadata() {
            true => {
                as_metadata = glm::turns(messages);
                &as_metadata
            }
            false => messages,
        };
        let told_by = |speaker| {
            let tools = listed.unwrap_or_default();
            render(&offer::offered(template.source(), messages, tools, speaker), None)
        };
        let text = match offer::knows_tools(template.source()) {
            true => render(messages, listed),
            false => told_by(Speaker::System).or_else(|err| told_by(Speaker::User).map_err(|_| err)),
        };
        let text = text.map_err(|err| {
            ApiError::invalid_value(
                "messages",
                format!("The model's chat template refuses these messages: {err}"),
            )
        })?;
        match chat.ending {
            PromptEnd::Message | PromptEnd::Answer => Ok(text),
            PromptEnd::OpenMessage => open_message::cut(text, chat.messages).ok_or_else(|| {
                ApiError::unsupported(
                    "messages",
                    "The last message cannot be gone on with: the model's chat template changes its text.",
                )
            }),
        }
    }

    /// The marks by which an answer is taken apart, where they are special tokens.
    fn shown_tokens(&self, shape: &AnswerShape) -> Arc<[u32]> {
        let mut marks = Vec::new();
        if let Some((markers, _)) = shape.reasoning {
            marks.extend([markers.open, markers.close]);
        }
        if shape.tools.is_some() || shape.tool_format == ToolFormat::Harmony {
            marks.extend(shape.tool_format.markers());
        }
        self.tokenizer.special_tokens(&marks)
    }

    /// `echo`: the prompt is repeated before the answer.
    pub(crate) fn text(
        &self,
        prompt: &Prompt,
        echo: bool,
        options: &Options,
    ) -> Result<ValidRequest, ApiError> {
        let param = "prompt";
        // A bare prompt's answer is text and nothing else.
        let shape = AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: None,
        };
        let constraint = self.constraint(options.format.as_ref(), None, &shape)?;
        if !echo {
            let tokens = self.tokens(param, prompt)?;
            let request = self.limited(param, tokens, options, DEFAULT_COMPLETION_TOKENS)?;
            return Ok(ValidRequest {
                goes_on: true,
                constraint,
                ..request
            });
        }
        let (tokens, echo) = match prompt {
            Prompt::Text(text) => {
                self.check_length(param, text)?;
                let (tokens, offsets) = self
                    .tokenizer
                    .encode_prompt_with_offsets(text)
                    .map_err(|err| ApiError::invalid_value(param, err.to_string()))?;
                let text = text.clone();
                (tokens, Echo { text, offsets })
            }
            Prompt::Tokens(tokens) => {
                let echo = self.echo_of_tokens(tokens);
                (
                    tokens.clone(),
                    echo.map_err(|err| ApiError::invalid_value(param, err.to_string()))?,
                )
            }
        };
        let request = self.limited(param, tokens, options, DEFAULT_COMPLETION_TOKENS)?;
        Ok(ValidRequest {
            prompt_use: PromptUse::Echo(echo),
            goes_on: true,
            constraint,
            ..request
        })
    }

    pub(crate) fn embedding(&self, input: &Prompt) -> Result<ValidRequest, ApiError> {
        let param = "input";
        let tokens = self.tokens(param, input)?;
        let options = Options {
            max_tokens: Some(0),
            ..Options::default()
        };
        let request = self.limited(param, tokens, &options, 0)?;
        Ok(ValidRequest {
            prompt_use: PromptUse::Embed,
            ..request
        })
    }

    fn tokens(&self, param: &str, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
        match prompt {
            Prompt::Text(text) => {
                self.check_length(param, text)?;
                self.tokenizer
                    .encode_prompt(text)
                    .map_err(|err| ApiError::invalid_value(param, err.to_string()))
            }
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    fn echo_of_tokens(&self, tokens: &[u32]) -> Result<Echo, DecodeError> {
        let mut detokenizer = Detokenizer::new(&self.tokenizer, &Arc::default());
        let mut echo = Echo::default();
        let mut said = 0;
        for token in tokens {
            let text = detokenizer.push(&self.tokenizer, *token)?;
            echo.offsets
                .push(said + chars_before(&text, &self.tokenizer, *token));
            said += text.chars().count();
            echo.text.push_str(&text);
        }
        echo.text.push_str(&detokenizer.flush(&self.tokenizer)?);
        Ok(echo)
    }

    pub(crate) fn check_tokens<'a>(
        &self,
        param: &str,
        mut tokens: impl Iterator<Item = &'a u32>,
    ) -> Result<(), ApiError> {
        match tokens.find(|token| **token >= self.vocab_size) {
            None => Ok(()),
            Some(unknown) => {
                let text = self.tokenizer.token_text(*unknown);
                let text = text.map(|text| format!(" ({text})")).unwrap_or_default();
                let end = self.vocab_size - 1;
                Err(ApiError::invalid_value(
                    param,
                    format!(
                        "'{param}' names token {unknown}{text}, but the model's vocabulary ends at {end}."
                    ),
                ))
            }
        }
    }

    fn limited(
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
        let asked = &options.sampling;
        self.check_tokens(param, prompt.iter())?;
        self.check_tokens("logit_bias", asked.logit_bias.keys())?;
        self.check_tokens("stop_token_ids", options.stopping.token_ids.iter())?;
        let context_tokens = self.context_tokens();
        let completes = options.max_tokens != Some(0);
        if prompt.len() + usize::from(completes) > context_tokens {
            let overrun = Overrun {
                prompt_tokens: prompt.len(),
                is_whole: true,
                context_tokens,
            };
            return Err(ApiError::context_length_exceeded(param, overrun, completes));
        }
        let room = context_tokens - prompt.len();
        Ok(ValidRequest {
            max_tokens: options.max_tokens.unwrap_or(default_tokens).min(room),
            prompt,
            prompt_use: PromptUse::Answer,
            stopping: options.stopping.clone(),
            goes_on: false,
            shown_tokens: [].into(),
            constraint: None,
            thinking: None,
            sampling: Sampling {
                temperature: asked.temperature.unwrap_or(self.defaults.temperature),
                top_p: asked.top_p.unwrap_or(self.defaults.top_p),
                top_k: asked.top_k.unwrap_or(self.defaults.top_k),
                min_p: asked.min_p.unwrap_or(self.defaults.min_p),
                penalties: Penalties {
                    bias: asked.logit_bias.clone(),
                    presence: asked.presence_penalty.unwrap_or(0.0),
                    frequency: asked.frequency_penalty.unwrap_or(0.0),
                    repetition: asked
                        .repetition_penalty
                        .unwrap_or(self.defaults.repetition_penalty),
                },
                seed: asked.seed.unwrap_or_else(rand::random),
            },
            logprobs: options.logprobs,
            priority: options.priority,
            is_first_choice: true,
            cache_salt: options.cache_salt.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
