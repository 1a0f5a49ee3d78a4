//! Requests on their way to the engine, and their answers once they are complete.

use std::sync::Arc;

use crate::api::app::App;
use crate::api::body::{MAX_INLINE_BYTES, off_thread_if};
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

/// Said when the engine's thread ends while a request is under way.
pub(crate) const ENGINE_ENDED: &str = "The engine ended before the completion did.";

/// The completions of one request, in the order of its choices.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub completions: Vec<Completion>,
    /// Each prompt once, however many choices it has.
    pub prompt_tokens: usize,
    /// The first of them stands for the prompt in the usage.
    pub choices_per_prompt: usize,
}

/// Validates and submits a chat, whichever API it came by; its body has so many bytes.
pub(crate) async fn begin_chat(
    app: &Arc<App>,
    request: ChatRequest,
    body_bytes: usize,
) -> Result<(AnswerParser, Submitted), ApiError> {
    app.check_model(&request.model)?;
    app.check_ready()?;
    let long = is_long(body_bytes, &request.options, request.tools.as_ref());
    spans::tell_request(&request.options);
    let n = request.n;
    let validate = move |app: &App| {
        let chat = Chat::from(&request);
        app.prompter.chat(chat, &request.options, &app.local_time())
    };
    let ValidChat { request, answer } = off_thread_if(long, body_bytes, app, validate).await?;
    Ok((answer, submit(app, vec![request], n)?))
}

/// Whether a request takes long to be understood: its prompt is long, or a grammar has to be built.
pub(crate) fn is_long(body_bytes: usize, options: &Options, tools: Option<&Tools>) -> bool {
    body_bytes > MAX_INLINE_BYTES || options.format.is_some() || tools.is_some_and(Tools::constrain)
}

pub(crate) fn not_taken(app: &App, err: SubmitError) -> ApiError {
    match err {
        SubmitError::Full { retry_after_seconds } => ApiError::rate_limit_exceeded(
            format!("The model `{}` is busy and its queue is full.", app.name),
            retry_after_seconds,
        ),
        SubmitError::Stopped => ApiError::unavailable(ErrorCode::ModelUnavailable, ENGINE_ENDED),
    }
}

/// `n` choices for each.
pub(crate) fn submit(app: &App, requests: Vec<ValidRequest>, n: usize) -> Result<Submitted, ApiError> {
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let requests: Vec<_> = requests
        .into_iter()
        .flat_map(|request| request.choices(n))
        .collect();
    let span = spans::current();
    if let Some(span) = &span {
        span.set(trace::INPUT_TOKENS, prompt_tokens);
    }
    let completions = app.engine.submit_all(requests, span.as_ref());
    let completions = completions.map_err(|err| not_taken(app, err))?;
    Ok(Submitted {
        completions,
        prompt_tokens,
        choices_per_prompt: n,
    })
}

/// Waits for all completions. Dropped (the client has gone), it drops them, which cancels them.
pub(crate) async fn collect(submitted: Submitted) -> Result<(Vec<(Vec<Piece>, Done)>, Usage), ApiError> {
    let Submitted {
        completions,
        prompt_tokens,
        choices_per_prompt,
    } = submitted;
    let mut answers = Vec::with_capacity(completions.len());
    for mut completion in completions {
        let mut pieces = Vec::new();
        let done = loop {
            match completion.events.recv().await {
                Some(Event::Piece(piece)) => pieces.push(piece),
                // None is asked for.
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
