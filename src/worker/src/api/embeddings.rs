//! `/v1/embeddings`: mean of a text's final hidden states, normalised to length 1.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse as _, Response};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::api::app::App;
use crate::api::body;
use crate::api::body::BodyShare;
use crate::api::spans;
use crate::api::submission::{ENGINE_ENDED, submit_error};
use crate::batch::event::Event;
use crate::engine::ReservedSlots;
use crate::prompt::ValidRequest;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::Prompt;
use rooflet_inference_api::openai::request::embeddings::EmbeddingsRequest;
use rooflet_inference_api::openai::request::token_options::Truncation;
use rooflet_inference_api::openai::response::embeddings::{EmbeddingList, truncated};
use rooflet_telemetry::trace;

/// Maximum number of a request's inputs in the engine's queue, so that one request does not fill
/// the queue.
const MAX_QUEUED_INPUTS: usize = 8;

pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| EmbeddingsRequest::parse(body)).await?;
    let EmbeddingsRequest {
        model,
        inputs,
        encoding,
        dimensions,
        truncation,
        ignored,
    } = request;
    app.check_model(&model)?;
    app.prompter.check_dimensions(dimensions)?;
    let (vectors, prompt_tokens) = embed_all(&app, inputs, truncation, share).await?;
    let vectors = shortened(vectors, dimensions);
    let list = EmbeddingList::new(app.name.clone(), vectors, encoding, prompt_tokens);
    Ok(ignored.named_in(Json(list).into_response()))
}

/// Returns the first components of each embedding, or whole embeddings without a number.
pub(crate) fn shortened(vectors: Vec<Vec<f32>>, dimensions: Option<usize>) -> Vec<Vec<f32>> {
    match dimensions {
        Some(dimensions) => {
            let shortened = vectors.into_iter().map(|vector| truncated(vector, dimensions));
            shortened.collect()
        }
        None => vectors,
    }
}

/// Returns the embeddings of all inputs, and the total number of their tokens.
pub(crate) async fn embed_all(
    app: &Arc<App>,
    inputs: Vec<Prompt>,
    truncation: Option<Truncation>,
    share: BodyShare,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    app.check_ready()?;
    let validate = move |app: &App| -> Result<Vec<ValidRequest>, ApiError> {
        let embedding = |input| app.prompter.embedding(input, truncation);
        inputs.iter().map(embedding).collect()
    };
    let requests = share.run(false, app, validate).await?;
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    if let Some(span) = spans::current() {
        span.set(trace::INPUT_TOKENS, prompt_tokens);
    }
    let reserved = app.engine.reserve(requests.len().min(MAX_QUEUED_INPUTS));
    let reserved = reserved.map_err(|err| submit_error(app, err))?;
    let vectors = requests.into_iter().map(|request| embed(app, &reserved, request));
    let vectors = stream::iter(vectors)
        .buffered(reserved.slots())
        .try_collect()
        .await?;
    Ok((vectors, prompt_tokens))
}

/// Returns the embedding of one input. Dropping the future cancels the request.
async fn embed(app: &App, reserved: &ReservedSlots, request: ValidRequest) -> Result<Vec<f32>, ApiError> {
    let completion = app.engine.submit_in(reserved, request, spans::current());
    let mut completion = completion.map_err(|err| submit_error(app, err))?;
    let mut vector = Vec::new();
    loop {
        match completion.events.recv().await {
            Some(Event::Embedding(embedding)) => vector = embedding,
            Some(Event::Done(_)) => return Ok(vector),
            Some(Event::Failed(message)) => return Err(ApiError::server_error(message)),
            // A request with `PromptUse::Embed` generates no text.
            Some(Event::Piece(_)) => {}
            None => return Err(ApiError::server_error(ENGINE_ENDED)),
        }
    }
}
