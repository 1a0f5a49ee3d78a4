//! Validation and submission of requests to the engine, and collection of complete answers.

use std::sync::Arc;

use crate::api::app::App;
use crate::api::body::BodyShare;
use crate::api::spans;
use crate::batch::event::{Done, Event, Piece};
use crate::engine::{Completion, SubmitError};
use crate::prompt::{Chat, ValidChat, ValidRequest};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::request::{ChatRequest, Options};
use rooflet_inference_api::openai::response::Usage;
use rooflet_inference_api::openai::tools::Tools;
use rooflet_telemetry::trace;
use rooflet_text::answer::AnswerParser;

/// Error message for in-flight requests when the engine thread exits.
pub(crate) const ENGINE_ENDED: &str = "The engine terminated before the completion finished.";

/// Completions of one request, in the order of its choices.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub completions: Vec<Completion>,
    /// Total number of prompt tokens, counting each prompt once regardless of its choices.
    pub prompt_tokens: usize,
    /// Number of choices per prompt. The usage counts cached tokens of the first choice only.
    pub choices_per_prompt: usize,
    /// Tokens of each prompt, if the request asks for token ids.
    pub prompt_ids: Option<Vec<Vec<u32>>>,
}

/// Validates and submits a chat of any API. `share` is the memory share of its body.
pub(crate) async fn begin_chat(
    app: &Arc<App>,
    request: ChatRequest,
    share: BodyShare,
) -> Result<(AnswerParser, Submitted), ApiError> {
    app.check_model(&request.model)?;
    app.check_ready()?;
    // The template of a request runs in another process, which takes a while.
    let long = needs_grammar(&request.options, request.tools.as_ref()) || request.template.is_some();
    spans::record_request_attributes(&request.options);
    let n = request.n;
    let validate = move |app: &App| {
        let chat = Chat::from(&request);
        app.prompter.chat(chat, &request.options, &app.local_time())
    };
    let ValidChat { request, answer } = share.run(long, app, validate).await?;
    Ok((answer, submit(app, vec![request], n)?))
}

/// Returns true if the request needs a grammar, whose construction is slow.
pub(crate) fn needs_grammar(options: &Options, tools: Option<&Tools>) -> bool {
    options.format.is_some() || tools.is_some_and(Tools::is_constrained)
}

pub(crate) fn submit_error(app: &App, err: SubmitError) -> ApiError {
    match err {
        SubmitError::Full { retry_after_seconds } => ApiError::rate_limit_exceeded(
            format!("The model `{}` is busy and its queue is full.", app.name),
            retry_after_seconds,
        ),
        SubmitError::Stopped => ApiError::unavailable(ErrorCode::ModelUnavailable, ENGINE_ENDED),
    }
}

/// Submits `n` choices per request.
pub(crate) fn submit(app: &App, requests: Vec<ValidRequest>, n: usize) -> Result<Submitted, ApiError> {
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let returns_ids = requests.iter().any(|request| request.returns_token_ids);
    let prompt_ids = returns_ids.then(|| requests.iter().map(|request| request.prompt.clone()).collect());
    let requests: Vec<_> = requests
        .into_iter()
        .flat_map(|request| request.choices(n))
        .collect();
    let span = spans::current();
    if let Some(span) = &span {
        span.set(trace::INPUT_TOKENS, prompt_tokens);
    }
    let completions = app.engine.submit_all(requests, span.as_ref());
    let completions = completions.map_err(|err| submit_error(app, err))?;
    Ok(Submitted {
        completions,
        prompt_tokens,
        choices_per_prompt: n,
        prompt_ids,
    })
}

/// Waits for all completions. Dropping the future cancels them.
pub(crate) async fn collect(submitted: Submitted) -> Result<(Vec<(Vec<Piece>, Done)>, Usage), ApiError> {
    let Submitted {
        completions,
        prompt_tokens,
        choices_per_prompt,
        prompt_ids: _,
    } = submitted;
    let mut answers = Vec::with_capacity(completions.len());
    for mut completion in completions {
        let mut pieces = Vec::new();
        let done = loop {
            match completion.events.recv().await {
                Some(Event::Piece(piece)) => pieces.push(piece),
                // Completions do not request embeddings.
                Some(Event::Embedding(_)) => {}
                Some(Event::Done(done)) => break done,
                Some(Event::Failed(message)) => return Err(ApiError::server_error(message)),
                None => return Err(ApiError::server_error(ENGINE_ENDED)),
            }
        };
        answers.push((pieces, done));
    }
    let completion_tokens = answers.iter().map(|(_, done)| done.completion_tokens).sum();
    let prompts = answers.iter().step_by(choices_per_prompt);
    let cached_tokens = prompts.map(|(_, done)| done.cached_tokens).sum();
    let usage = Usage::new(prompt_tokens, completion_tokens).with_cached_tokens(cached_tokens);
    Ok((answers, usage))
}
