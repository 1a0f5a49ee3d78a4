//! `/v1/chat/completions` and `/v1/completions`, with and without streaming.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use crate::api::answers::Answer;
use crate::api::app::App;
use crate::api::body;
use crate::api::scores;
use crate::api::spans;
use crate::api::stream;
use crate::api::stream::chunks::{ChunkFrames, ChunkKind, ChunkUsage};
use crate::api::submission::{Submitted, begin_chat, collect, needs_grammar, submit};
use crate::batch::event::{Done, Piece, Score};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::{ChatRequest, Options, StreamUsage, TextRequest};
use rooflet_inference_api::openai::response::{ChatCompletion, Envelope, TextChoice, TextCompletion, Usage};

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| ChatRequest::parse(body)).await?;
    let options = request.options.clone();
    let (answer, submitted) = begin_chat(&app, request, share).await?;
    if options.stream {
        return Ok(respond_streaming(
            &app,
            ChunkKind::Chat(Box::new(answer)),
            &options,
            submitted,
        ));
    }
    let (answers, usage) = collect(submitted).await?;
    let envelope = envelope(&app, "chatcmpl", "chat.completion");
    let tokenizer = app.prompter.tokenizer();
    let mut reasoning_tokens = 0;
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| {
        let message = Answer::parse(answer.clone(), &pieces);
        reasoning_tokens += message.reasoning_tokens;
        let logprobs = options
            .logprobs
            .map(|_| scores::chat_logprobs(tokenizer, all_scores(&pieces)));
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

pub(crate) async fn text(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| TextRequest::parse(body)).await?;
    let TextRequest {
        model,
        prompts,
        n,
        echo,
        options,
    } = request;
    app.check_model(&model)?;
    app.check_ready()?;
    spans::record_request_attributes(&options);
    let prompt_options = options.clone();
    let validate = move |app: &App| {
        prompts
            .iter()
            .map(|prompt| app.prompter.text(prompt, echo, &prompt_options))
            .collect()
    };
    let requests = share.run(needs_grammar(&options, None), &app, validate).await?;
    let submitted = submit(&app, requests, n)?;
    if options.stream {
        return Ok(respond_streaming(&app, ChunkKind::Text, &options, submitted));
    }
    let (answers, usage) = collect(submitted).await?;
    let tokenizer = app.prompter.tokenizer();
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| TextChoice {
        index,
        logprobs: options
            .logprobs
            .map(|_| scores::text_logprobs(tokenizer, all_scores(&pieces))),
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

fn all_scores(pieces: &[Piece]) -> impl Iterator<Item = &Score> {
    pieces.iter().flat_map(|piece| &piece.scores)
}

fn respond_streaming(app: &App, chunks: ChunkKind, options: &Options, submitted: Submitted) -> Response {
    let envelope = match chunks {
        ChunkKind::Chat(_) => envelope(app, "chatcmpl", "chat.completion.chunk"),
        ChunkKind::Text => envelope(app, "cmpl", "text_completion"),
    };
    let logprobs_prompter = options.logprobs.map(|_| Arc::clone(&app.prompter));
    let choices = submitted.completions.len();
    let usage = match options.usage {
        StreamUsage::Never => ChunkUsage::Never,
        StreamUsage::AtEnd => ChunkUsage::AtEnd,
        StreamUsage::Throughout => ChunkUsage::Continuous(Usage::new(submitted.prompt_tokens, 0)),
    };
    let frames = ChunkFrames::new(chunks, choices, envelope, usage, logprobs_prompter);
    stream::response(frames, submitted, options.obfuscated)
}
