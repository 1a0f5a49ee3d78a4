//! `/v1/chat/completions` and `/v1/completions`: from a body to the engine and back, whole or as a stream.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use uuid::Uuid;

use crate::api::answers::Answer;
use crate::api::scores;
use crate::api::server::{App, MAX_BODY_BYTES};
use crate::api::spans;
use crate::api::stream;
use crate::api::stream::chunks::{ChunkFrames, ChunkUsage, Chunks};
use crate::batch::event::{Done, Event, Piece, Score};
use crate::engine::{Completion, SubmitError};
use crate::prompt::{Chat, ValidChat, ValidRequest};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::error::ErrorCode;
use rooflet_inference_api::openai::request::{ChatRequest, Options, StreamUsage, TextRequest};
use rooflet_inference_api::openai::response::{ChatCompletion, Envelope, TextChoice, TextCompletion, Usage};
use rooflet_inference_api::openai::tools::Tools;
use rooflet_telemetry::trace;
use rooflet_text::answer::AnswerParser;

/// Said when the engine's thread ends while a request is under way.
pub(crate) const ENGINE_ENDED: &str = "The engine ended before the completion did.";

/// Of long bodies together that are made tokens: that takes up to some 400 bytes of memory for each.
pub(crate) const MAX_BYTES_AT_ONCE: usize = 4 << 20;

/// Longer bodies are tokenized on a thread of their own, so that they do not hold up other connections.
pub(crate) const MAX_INLINE_BYTES: usize = 16 << 10;

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = accept(body)?;
    let request = ChatRequest::parse(&body)?;
    let options = request.options.clone();
    let (answer, submitted) = begin_chat(&app, request, body.len()).await?;
    if options.stream {
        return Ok(respond_streaming(
            &app,
            Chunks::Chat(Box::new(answer)),
            &options,
            submitted,
        ));
    }
    let (answers, usage) = collect(submitted).await?;
    let envelope = envelope(&app, "chatcmpl", "chat.completion");
    let tokenizer = app.prompter.tokenizer();
    let mut reasoning_tokens = 0;
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| {
        let message = Answer::read(answer.clone(), &pieces);
        reasoning_tokens += message.reasoning_tokens;
        let logprobs = options
            .logprobs
            .map(|_| scores::of_chat(tokenizer, all_scores(&pieces)));
        message.into_choice(index, logprobs, done)
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let usage = usage.with_reasoning_tokens(reasoning_tokens);
    Ok(Json(ChatCompletion {
        envelope: &envelope,
        choices,
        usage,
    })
    .into_response())
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
        app.prompter.chat(chat, &request.options, &now(app))
    };
    let ValidChat { request, answer } = off_thread_if(long, body_bytes, app, validate).await?;
    Ok((answer, submit(app, vec![request], n)?))
}

pub(crate) async fn text(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = accept(body)?;
    let TextRequest {
        model,
        prompts,
        n,
        echo,
        options,
    } = TextRequest::parse(&body)?;
    app.check_model(&model)?;
    app.check_ready()?;
    spans::tell_request(&options);
    let kept = options.clone();
    let validate = move |app: &App| {
        prompts
            .iter()
            .map(|prompt| app.prompter.text(prompt, echo, &kept))
            .collect()
    };
    let long = is_long(body.len(), &options, None);
    let requests = off_thread_if(long, body.len(), &app, validate).await?;
    let submitted = submit(&app, requests, n)?;
    if options.stream {
        return Ok(respond_streaming(&app, Chunks::Text, &options, submitted));
    }
    let (answers, usage) = collect(submitted).await?;
    let tokenizer = app.prompter.tokenizer();
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| TextChoice {
        index,
        logprobs: options
            .logprobs
            .map(|_| scores::of_text(tokenizer, all_scores(&pieces))),
        text: pieces.into_iter().map(|piece| piece.text).collect(),
        finish_reason: Some(done.reason),
        stop_reason: done.stopped_by,
    };
    let envelope = envelope(&app, "cmpl", "text_completion");
    let choices = answers.into_iter().enumerate().map(choice).collect();
    Ok(Json(TextCompletion {
        envelope: &envelope,
        choices,
        usage,
    })
    .into_response())
}

pub(crate) fn accept(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    body.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::request_too_large(MAX_BODY_BYTES)
        } else {
            ApiError::invalid_json("the body ended early.")
        }
    })
}

pub(crate) fn now(app: &App) -> jiff::Zoned {
    app.clock.now().to_zoned(jiff::tz::TimeZone::system())
}

/// Whether a request takes long to be understood: its prompt is long, or a grammar has to be built.
fn is_long(body_bytes: usize, options: &Options, tools: Option<&Tools>) -> bool {
    body_bytes > MAX_INLINE_BYTES || options.format.is_some() || tools.is_some_and(Tools::constrain)
}

/// Does work on a body of so many bytes on a thread of its own where it takes `long`, and beside as much other work as
/// [`MAX_BYTES_AT_ONCE`] let.
pub(crate) async fn off_thread_if<T: Send + 'static>(
    long: bool,
    body_bytes: usize,
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !long {
        return work(app);
    }
    let bytes = u32::try_from(body_bytes.min(MAX_BYTES_AT_ONCE)).unwrap_or(u32::MAX);
    let permit = Arc::clone(&app.long_work).acquire_many_owned(bytes).await;
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || {
        // Until it is done, whether or not the client waits for it.
        let _permit = permit;
        work(&app)
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::server_error("The server failed on this request.")))
}

/// The completions of one request, in the order of its choices.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub completions: Vec<Completion>,
    /// Each prompt once, however many choices it has.
    pub prompt_tokens: usize,
    /// The first of them stands for the prompt in the usage.
    pub choices_per_prompt: usize,
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
fn submit(app: &App, requests: Vec<ValidRequest>, n: usize) -> Result<Submitted, ApiError> {
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

fn envelope(app: &App, id_prefix: &str, object: &'static str) -> Envelope {
    Envelope {
        id: format!("{id_prefix}-{}", Uuid::new_v4().simple()),
        object,
        created: app.clock.now().as_second(),
        model: app.name.clone(),
        system_fingerprint: {
            let engine = app.engine.state().engine();
            format!("{}-{}-{}", engine.name, engine.version, engine.device)
        },
    }
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

fn all_scores(pieces: &[Piece]) -> impl Iterator<Item = &Score> {
    pieces.iter().flat_map(|piece| &piece.scores)
}

fn respond_streaming(app: &App, chunks: Chunks, options: &Options, submitted: Submitted) -> Response {
    let envelope = match chunks {
        Chunks::Chat(_) => envelope(app, "chatcmpl", "chat.completion.chunk"),
        Chunks::Text => envelope(app, "cmpl", "text_completion"),
    };
    let logprobs_by = options.logprobs.map(|_| Arc::clone(&app.prompter));
    let choices = submitted.completions.len();
    let usage = match options.usage {
        StreamUsage::Never => ChunkUsage::Never,
        StreamUsage::AtEnd => ChunkUsage::AtEnd,
        StreamUsage::Throughout => ChunkUsage::SoFar(Usage::new(submitted.prompt_tokens, 0)),
    };
    let frames = ChunkFrames::new(chunks, choices, envelope, usage, logprobs_by);
    stream::response(frames, submitted, options.obfuscated)
}
