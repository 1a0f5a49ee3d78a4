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
use crate::api::scores::{self, TokenNames};
use crate::api::spans;
use crate::api::stream;
use crate::api::stream::chunks::{ChunkFrames, ChunkKind, ChunkTokens, ChunkUsage};
use crate::api::submission::{Submitted, begin_chat, collect, needs_grammar, submit};
use crate::batch::event::{Done, Piece, Score};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::{ChatRequest, Options, Prompt, StreamUsage, TextRequest};
use rooflet_inference_api::openai::response::logprobs::PromptLogprobs;
use rooflet_inference_api::openai::response::{
    ChatChoice, ChatCompletion, Envelope, TextChoice, TextCompletion, Usage,
};

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| ChatRequest::parse(body)).await?;
    let options = request.options.clone();
    let (answer, mut submitted) = begin_chat(&app, request, share).await?;
    if options.stream {
        return Ok(respond_streaming(
            &app,
            ChunkKind::Chat(Box::new(answer)),
            &options,
            submitted,
        ));
    }
    let prompt_token_ids = submitted.prompt_ids.take().into_iter().flatten().next();
    let (answers, usage) = collect(submitted).await?;
    let envelope = envelope(&app, "chatcmpl", "chat.completion");
    let names = token_names(&app, &options);
    let prompt_logprobs = prompt_logprobs(&app, &answers);
    let mut reasoning_tokens = 0;
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| {
        let message = Answer::parse(answer.clone(), &pieces);
        reasoning_tokens += message.reasoning_tokens;
        let logprobs = options
            .logprobs
            .map(|_| scores::chat_logprobs(names, all_scores(&pieces)));
        ChatChoice {
            token_ids: options.tokens.return_ids.then(|| all_token_ids(&pieces)),
            ..message.into_choice(index, logprobs, done)
        }
    };
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let usage = usage.with_reasoning_tokens(reasoning_tokens);
    let completion = ChatCompletion {
        envelope: &envelope,
        choices,
        usage,
        prompt_logprobs,
        prompt_token_ids,
    };
    Ok(options.ignored.named_in(Json(completion).into_response()))
}

pub(crate) async fn text(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| TextRequest::parse(body)).await?;
    let TextRequest {
        model,
        prompts,
        suffix,
        n,
        echo,
        options,
    } = request;
    app.check_model(&model)?;
    app.check_ready()?;
    spans::record_request_attributes(&options);
    let prompt_options = options.clone();
    let validate = move |app: &App| {
        let valid = |prompt: &Prompt| match (prompt, &suffix) {
            (Prompt::Text(before), Some(after)) => app.prompter.infill(before, after, &prompt_options),
            (Prompt::Text(_) | Prompt::Tokens(_), _) => app.prompter.text(prompt, echo, &prompt_options),
        };
        prompts.iter().map(valid).collect()
    };
    let requests = share.run(needs_grammar(&options, None), &app, validate).await?;
    let mut submitted = submit(&app, requests, n)?;
    if options.stream {
        return Ok(respond_streaming(&app, ChunkKind::Text, &options, submitted));
    }
    let prompt_ids = submitted.prompt_ids.take();
    let (answers, usage) = collect(submitted).await?;
    let names = token_names(&app, &options);
    // The first choice of each prompt has its logprobs.
    let of_prompts: Vec<_> = answers
        .chunks(n)
        .map(|choices| prompt_logprobs(&app, choices))
        .collect();
    let choice = |(index, (pieces, done)): (usize, (Vec<Piece>, Done))| TextChoice {
        index,
        prompt_token_ids: prompt_ids
            .as_ref()
            .and_then(|prompts| prompts.get(index / n).cloned()),
        prompt_logprobs: of_prompts.get(index / n).cloned().flatten(),
        token_ids: options.tokens.return_ids.then(|| all_token_ids(&pieces)),
        logprobs: options
            .logprobs
            .map(|_| scores::text_logprobs(names, all_scores(&pieces))),
        text: pieces.into_iter().map(|piece| piece.text).collect(),
        finish_reason: Some(done.reason),
        stop_reason: done.stopped_by,
    };
    let envelope = envelope(&app, "cmpl", "text_completion");
    let choices = answers.into_iter().enumerate().map(choice).collect();
    let completion = TextCompletion {
        envelope: &envelope,
        choices,
        usage,
    };
    Ok(options.ignored.named_in(Json(completion).into_response()))
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

fn token_names<'a>(app: &'a App, options: &Options) -> TokenNames<'a> {
    TokenNames {
        tokenizer: app.prompter.tokenizer(),
        by_id: options.tokens.named_by_id,
    }
}

fn all_token_ids(pieces: &[Piece]) -> Vec<u32> {
    pieces
        .iter()
        .flat_map(|piece| &piece.token_ids)
        .copied()
        .collect()
}

/// Returns the logprobs of the prompt of these choices, if the request asks for them.
fn prompt_logprobs(app: &App, choices: &[(Vec<Piece>, Done)]) -> Option<PromptLogprobs> {
    let (pieces, _) = choices.first()?;
    let scores = pieces.iter().find_map(|piece| piece.prompt_scores.as_ref())?;
    Some(scores::prompt_logprobs(app.prompter.tokenizer(), scores))
}

fn respond_streaming(app: &App, chunks: ChunkKind, options: &Options, mut submitted: Submitted) -> Response {
    let envelope = match chunks {
        ChunkKind::Chat(_) => envelope(app, "chatcmpl", "chat.completion.chunk"),
        ChunkKind::Text => envelope(app, "cmpl", "text_completion"),
    };
    let tokens = ChunkTokens {
        logprobs_prompter: options.logprobs.map(|_| Arc::clone(&app.prompter)),
        named_by_id: options.tokens.named_by_id,
        prompt_ids: submitted.prompt_ids.take(),
        choices_per_prompt: submitted.choices_per_prompt,
    };
    let choices = submitted.completions.len();
    let usage = match options.usage {
        StreamUsage::Never => ChunkUsage::Never,
        StreamUsage::AtEnd => ChunkUsage::AtEnd,
        StreamUsage::Throughout => ChunkUsage::Continuous(Usage::new(submitted.prompt_tokens, 0)),
    };
    let frames = ChunkFrames::new(chunks, choices, envelope, usage, tokens);
    let response = stream::response(frames, submitted, options.obfuscated);
    options.ignored.named_in(response)
}
