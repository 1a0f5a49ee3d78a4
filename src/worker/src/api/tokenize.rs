//! `/tokenize` and `/detokenize`: conversion between text and tokens, without the engine.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::Serialize;

use crate::api::app::App;
use crate::api::body;
use crate::prompt::Chat;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::request::tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};

#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    count: usize,
    /// Maximum length of prompt plus completion in tokens.
    max_model_len: usize,
    tokens: Vec<u32>,
    /// Token texts as in the vocabulary, if requested.
    token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Detokenized {
    prompt: String,
}

pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Tokenized>, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| TokenizeRequest::parse(body)).await?;
    check_model(&app, request.model.as_deref())?;
    // The template of a request runs in another process, which takes a while.
    let waits = matches!(
        &request.input,
        TokenizeInput::Chat {
            template: Some(_),
            ..
        }
    );
    let work = move |app: &App| tokenized(app, &request);
    share.run(waits, &app, work).await.map(Json)
}

fn tokenized(app: &App, request: &TokenizeRequest) -> Result<Tokenized, ApiError> {
    let tokenizer = app.prompter.tokenizer();
    let tokens = match &request.input {
        TokenizeInput::Text {
            text,
            add_special_tokens,
        } => {
            app.prompter.check_length("prompt", text)?;
            let encoded = if *add_special_tokens {
                tokenizer.encode_prompt(text)
            } else {
                tokenizer.encode_chat(text)
            };
            encoded.map_err(|err| ApiError::invalid_value("prompt", err.to_string()))?
        }
        TokenizeInput::Chat {
            messages,
            template,
            template_variables,
            tools,
            ending,
        } => {
            let chat = Chat {
                messages,
                template: template.as_deref(),
                variables: template_variables,
                tools: tools.as_ref(),
                ending: *ending,
            };
            app.prompter.chat_tokens(chat, &app.local_time())?
        }
    };
    let text = |token: &u32| tokenizer.token_text(*token).unwrap_or_default();
    Ok(Tokenized {
        count: tokens.len(),
        max_model_len: app.prompter.context_tokens(),
        token_strs: request.token_texts.then(|| tokens.iter().map(text).collect()),
        tokens,
    })
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Detokenized>, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| DetokenizeRequest::parse(body)).await?;
    check_model(&app, request.model.as_deref())?;
    app.prompter.check_tokens("tokens", request.tokens.iter())?;
    let detokenized = move |app: &App| {
        let text = app.prompter.tokenizer().decode_with_special(&request.tokens);
        text.map_err(|err| ApiError::invalid_value("tokens", err.to_string()))
    };
    let prompt = share.run(false, &app, detokenized).await?;
    Ok(Json(Detokenized { prompt }))
}

fn check_model(app: &App, requested: Option<&str>) -> Result<(), ApiError> {
    requested.map_or(Ok(()), |requested| app.check_model(requested))
}
