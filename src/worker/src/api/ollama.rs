//! `/api/chat`, `/api/generate`, `/api/embed` and the other endpoints of Ollama's API.

pub(crate) mod file_facts;
mod models;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};

use self::writer::{AnswerWriter, Format};
use crate::api::app::App;
use crate::api::body;
use crate::api::body::BodyShare;
use crate::api::embeddings::{embed_all, shortened};
use crate::api::spans;
use crate::api::stream;
use crate::api::submission::{Submitted, begin_chat, collect, needs_grammar, submit, submit_error};
use rooflet_inference_api::ollama::ignored::IgnoredFields;
use rooflet_inference_api::ollama::keep_alive::{self, KeepAlive};
use rooflet_inference_api::ollama::model_name::without_default_tag;
use rooflet_inference_api::ollama::request::embed::EmbedRequest;
use rooflet_inference_api::ollama::request::{ChatRequest, GenerateRequest};
use rooflet_inference_api::ollama::response::{DoneReason, Embeddings, SingleEmbedding};
use rooflet_inference_api::ollama::routes::with_common;
use rooflet_inference_api::openai::request::Prompt;
use rooflet_inference_api::openai::{self, ApiError};
use rooflet_text::answer::{AnswerParser, AnswerShape};
use rooflet_text::tool_calls::ToolFormat;

pub(crate) fn routes() -> Router<Arc<App>> {
    let routes = Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(embed))
        .route("/api/embeddings", post(embed_single))
        .route("/api/show", post(models::show))
        .route("/api/tags", get(models::list))
        .route("/api/ps", get(models::running));
    with_common(routes)
}

/// Checks the model of a request, whose name may have the default tag.
fn check_model(app: &App, requested: &str) -> Result<(), ApiError> {
    match without_default_tag(requested) {
        Some(bare) if bare == app.name => Ok(()),
        Some(_) | None => app.check_model(requested),
    }
}

async fn chat(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let began = app.clock.instant();
    let (request, share) = body::parse(body, &app, |_, body| ChatRequest::parse(body)).await?;
    let ChatRequest {
        model,
        chat,
        keep_alive,
        mut ignored,
    } = request;
    check_model(&app, &model)?;
    let keep_alive = effective_keep_alive(&app, keep_alive, &mut ignored);
    let exchange = Exchange {
        app,
        format: Format::Chat,
        began,
        keep_alive,
        ignored,
    };
    match chat {
        Some(chat) => exchange.chat(chat, share).await,
        None => exchange.load().await,
    }
}

async fn generate(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let began = app.clock.instant();
    let (mut request, share) = body::parse(body, &app, |_, body| GenerateRequest::parse(body)).await?;
    check_model(&app, &request.model)?;
    let keep_alive = effective_keep_alive(&app, request.keep_alive, &mut request.ignored);
    let is_text = request.raw || request.suffix.is_some() || !app.prompter.has_chat_template();
    let exchange = Exchange {
        app,
        format: Format::Generate,
        began,
        keep_alive,
        ignored: std::mem::take(&mut request.ignored),
    };
    if request.prompt.is_empty() && request.suffix.is_none() {
        return exchange.load().await;
    }
    match is_text {
        true => exchange.text(request, share).await,
        false => exchange.chat(request.into_chat(), share).await,
    }
}

/// Returns the keep-alive time of a request. If the worker never unloads its model, the field is ignored.
fn effective_keep_alive(
    app: &App,
    requested: Option<KeepAlive>,
    ignored: &mut IgnoredFields,
) -> Option<KeepAlive> {
    let is_limited = app.engine.residency().is_limited();
    if requested.is_some() && !is_limited {
        ignored.add(keep_alive::FIELD.to_owned());
    }
    requested.filter(|_| is_limited)
}

/// Sets the keep-alive time of a request that the engine has received.
fn keep_model(app: &App, keep_alive: Option<KeepAlive>) {
    if let Some(keep_alive) = keep_alive {
        app.engine.residency().set_keep_alive(keep_alive);
    }
}

/// Request whose model was checked.
struct Exchange {
    app: Arc<App>,
    format: Format,
    began: Instant,
    keep_alive: Option<KeepAlive>,
    ignored: IgnoredFields,
}

impl Exchange {
    /// Returns the response to a request without a prompt.
    async fn load(self) -> Result<Response, ApiError> {
        self.app.check_ready()?;
        let reason = match self.keep_alive {
            Some(KeepAlive::NONE) => DoneReason::Unload,
            Some(_) | None => DoneReason::Load,
        };
        if reason == DoneReason::Load {
            load(&self.app).await?;
            keep_model(&self.app, self.keep_alive);
        } else {
            self.app.engine.residency().unload();
        }
        let answer = writer::without_prompt(&self.app, self.format, reason);
        let mut response = Json(answer).into_response();
        self.ignored.set_header(response.headers_mut());
        Ok(response)
    }

    async fn chat(
        self,
        mut chat: openai::request::ChatRequest,
        share: BodyShare,
    ) -> Result<Response, ApiError> {
        chat.model.clone_from(&self.app.name);
        let (stream, logprobs) = (chat.options.stream, chat.options.logprobs.is_some());
        let (parser, submitted) = begin_chat(&self.app, chat, share).await?;
        self.respond(parser, submitted, stream, logprobs).await
    }

    async fn text(self, mut request: GenerateRequest, share: BodyShare) -> Result<Response, ApiError> {
        let app = Arc::clone(&self.app);
        app.check_ready()?;
        let suffix = request.suffix.take();
        let (prompt, options) = request.into_text();
        spans::record_request_attributes(&options);
        let (stream, logprobs) = (options.stream, options.logprobs.is_some());
        let long = needs_grammar(&options, None);
        let validate = move |app: &App| match &suffix {
            Some(after) => app.prompter.infill(&prompt, after, &options),
            None => app.prompter.text(&Prompt::Text(prompt), false, &options),
        };
        let request = share.run(long, &app, validate).await?;
        let submitted = submit(&app, vec![request], 1)?;
        let parser = AnswerParser::new(&AnswerShape {
            reasoning: None,
            tool_format: ToolFormat::Tagged,
            tools: None,
        });
        self.respond(parser, submitted, stream, logprobs).await
    }

    async fn respond(
        self,
        parser: AnswerParser,
        submitted: Submitted,
        stream: bool,
        logprobs: bool,
    ) -> Result<Response, ApiError> {
        keep_model(&self.app, self.keep_alive);
        let mut writer = AnswerWriter::new(&self.app, self.format, parser, self.began, logprobs);
        let mut response = match stream {
            true => stream::response(writer, submitted, false),
            false => {
                let (answers, usage) = collect(submitted).await?;
                let mut whole = None;
                // The request has one choice.
                for (pieces, done) in answers {
                    whole = Some(writer.whole(&pieces, &done, usage));
                }
                Json(whole).into_response()
            }
        };
        self.ignored.set_header(response.headers_mut());
        Ok(response)
    }
}

/// Waits until the engine has loaded its model.
async fn load(app: &App) -> Result<(), ApiError> {
    app.engine.load().await.map_err(|err| submit_error(app, err))
}

async fn embed(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let began = app.clock.instant();
    let (mut request, share) = body::parse(body, &app, |_, body| EmbedRequest::parse(body)).await?;
    check_model(&app, &request.model)?;
    let keep_alive = effective_keep_alive(&app, request.keep_alive, &mut request.ignored);
    app.prompter.check_dimensions(request.dimensions)?;
    let (embeddings, prompt_eval_count) = embed_inputs(&app, request.inputs, keep_alive, share).await?;
    let embeddings = shortened(embeddings, request.dimensions);
    let embeddings = Embeddings {
        model: app.name.clone(),
        embeddings,
        total_duration: app.clock.instant() - began,
        load_duration: Duration::ZERO,
        prompt_eval_count,
    };
    let mut response = Json(embeddings).into_response();
    request.ignored.set_header(response.headers_mut());
    Ok(response)
}

/// Returns the embeddings and the number of tokens. Without inputs, loads the model.
async fn embed_inputs(
    app: &Arc<App>,
    inputs: Vec<Prompt>,
    keep_alive: Option<KeepAlive>,
    share: BodyShare,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let is_load = inputs.is_empty();
    let embedded = embed_all(app, inputs, None, share).await?;
    if is_load {
        load(app).await?;
    }
    keep_model(app, keep_alive);
    Ok(embedded)
}

/// Handles the older `/api/embeddings`, with one prompt.
async fn embed_single(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (mut request, share) = body::parse(body, &app, |_, body| EmbedRequest::parse_single(body)).await?;
    check_model(&app, &request.model)?;
    let keep_alive = effective_keep_alive(&app, request.keep_alive, &mut request.ignored);
    let (embeddings, _) = embed_inputs(&app, request.inputs, keep_alive, share).await?;
    let embedding = embeddings.into_iter().next().unwrap_or_default();
    let mut response = Json(SingleEmbedding { embedding }).into_response();
    request.ignored.set_header(response.headers_mut());
    Ok(response)
}
