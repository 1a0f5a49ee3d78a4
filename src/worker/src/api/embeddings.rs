//! `/v1/embeddings`: the mean of a text's final hidden states, at length one.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::api::app::App;
use crate::api::body::{MAX_INLINE_BYTES, accept, off_thread_if};
use crate::api::spans;
use crate::api::submission::{ENGINE_ENDED, not_taken};
use crate::batch::event::Event;
use crate::engine::Reserved;
use crate::prompt::ValidRequest;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::embeddings::EmbeddingsRequest;
use rooflet_inference_api::openai::response::embeddings::EmbeddingList;
use rooflet_telemetry::trace;

/// Inputs of one request that are in the engine's queue together. More would take the places of
/// others.
const INPUTS_AT_ONCE: usize = 8;

pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EmbeddingList>, ApiError> {
    let body = accept(body)?;
    let EmbeddingsRequest {
        model,
        inputs,
        encoding,
    } = EmbeddingsRequest::parse(&body)?;
    app.check_model(&model)?;
    app.check_ready()?;
    let validate = move |app: &App| -> Result<Vec<ValidRequest>, ApiError> {
        inputs.iter().map(|input| app.prompter.embedding(input)).collect()
    };
    let requests = off_thread_if(body.len() > MAX_INLINE_BYTES, body.len(), &app, validate).await?;
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    if let Some(span) = spans::current() {
        span.set(trace::INPUT_TOKENS, prompt_tokens);
    }
    let reserved = app.engine.reserve(requests.len().min(INPUTS_AT_ONCE));
    let reserved = reserved.map_err(|err| not_taken(&app, err))?;
    let vectors = requests
        .into_iter()
        .map(|request| embed(&app, &reserved, request));
    let vectors = stream::iter(vectors)
        .buffered(reserved.places())
        .try_collect()
        .await?;
    Ok(Json(EmbeddingList::new(
        app.name.clone(),
        vectors,
        encoding,
        prompt_tokens,
    )))
}

/// Dropped (the client has gone), it cancels.
async fn embed(app: &App, reserved: &Reserved, request: ValidRequest) -> Result<Vec<f32>, ApiError> {
    let completion = app.engine.submit_in(reserved, request, spans::current());
    let mut completion = completion.map_err(|err| not_taken(app, err))?;
    let mut vector = Vec::new();
    loop {
        match completion.events.recv().await {
            Some(Event::Embedding(found)) => vector = found,
            Some(Event::Done(_)) => return Ok(vector),
            Some(Event::Failed(message)) => return Err(ApiError::server_error(message)),
            // No text is asked for.
            Some(Event::Piece(_)) => {}
            None => return Err(ApiError::server_error(ENGINE_ENDED)),
        }
    }
}
