//! `/v1/responses`: chats in the format of OpenAI's Responses API, with output items.

mod logprobs;
pub(crate) mod store;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use self::store::Stored;
use self::writer::ResponseWriter;
use crate::api::app::App;
use crate::api::body;
use crate::api::scores::{self, TokenNames};
use crate::api::stream::{self, Frames, event_frame};
use crate::api::submission::{begin_chat, collect};
use crate::batch::event::{Done, Piece};
use crate::prompt::Chat;
use rooflet_api::wire::{REPLICA_ID_HEADER, replica_id_of};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::json::Json as OrderedJson;
use rooflet_inference_api::openai::response::Usage;
use rooflet_inference_api::openai::responses::event::Event;
use rooflet_inference_api::openai::responses::item_list::{ItemList, ItemQuery};
use rooflet_inference_api::openai::responses::{ID_PREFIX, ResponsesRequest};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let parse = |app: &App, body: &[u8]| ResponsesRequest::parse(body, &app.responses);
    let (request, share) = body::parse(body, &app, parse).await?;
    let ResponsesRequest {
        chat,
        items,
        namespaces,
        settings,
    } = request;
    let (stream, obfuscated) = (chat.options.stream, chat.options.obfuscated);
    let ignored = chat.options.ignored.clone();
    let input_items = settings.store.then_some(items);
    let with_logprobs = chat.options.logprobs.is_some();
    let begun = begin_chat(&app, chat, share).await;
    let (answer, submitted) = begun.map_err(rename_messages_to_input)?;
    let created = app.clock.now().as_second();
    let id = new_id(&headers);
    let mut writer = ResponseWriter::new(id, app.name.clone(), created, settings, namespaces, answer);
    if with_logprobs {
        writer.enable_logprobs();
    }
    let mut frames = ResponseFrames {
        app,
        writer,
        input_items,
    };
    if stream {
        return Ok(ignored.named_in(stream::response(frames, submitted, obfuscated)));
    }
    let (answers, usage) = collect(submitted).await?;
    for (pieces, done) in answers {
        pieces.iter().for_each(|piece| drop(frames.push(piece)));
        drop(frames.writer.finish(&done, usage));
    }
    frames.store();
    Ok(ignored.named_in(Json(frames.writer.response()).into_response()))
}

/// Replaces the parameter name `messages` of a chat error by `input`.
fn rename_messages_to_input(err: ApiError) -> ApiError {
    err.renamed(&[("these messages", "this input"), ("messages", "input")])
}

/// `POST /v1/responses/input_tokens`: number of prompt tokens of a request.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let parse = |app: &App, body: &[u8]| ResponsesRequest::parse(body, &app.responses);
    let (request, share) = body::parse(body, &app, parse).await?;
    let ResponsesRequest { chat, .. } = request;
    app.check_model(&chat.model)?;
    let count = move |app: &App| app.prompter.chat_tokens(Chat::from(&chat), &app.local_time());
    let counted = share.run(false, &app, count).await;
    let tokens = counted.map_err(rename_messages_to_input)?.len();
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": tokens}),
    ))
}

/// Query parameters of [`show`]. The worker rejects parameters that request a replay of events.
#[derive(Debug, Deserialize)]
pub(crate) struct ShowQuery {
    stream: Option<bool>,
    starting_after: Option<u64>,
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<ShowQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(ShowQuery {
        stream,
        starting_after,
    }) = query.map_err(|err| ApiError::invalid_value("query", err.to_string()))?;
    let replay = [
        ("stream", stream == Some(true)),
        ("starting_after", starting_after.is_some()),
    ];
    if let Some((param, _)) = replay.into_iter().find(|(_, requested)| *requested) {
        let message =
            format!("'{param}' is not supported for stored responses: omit it to get the complete response.");
        return Err(ApiError::unsupported(param, message));
    }
    let stored = app.responses.get(&id);
    let stored = stored.ok_or_else(|| ApiError::response_not_found(&id))?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], stored.body.clone()).into_response())
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    query: Result<Query<ItemQuery>, QueryRejection>,
) -> Result<Json<ItemList>, ApiError> {
    let Query(query) = query.map_err(|err| ApiError::invalid_value("query", err.to_string()))?;
    let stored = app.responses.get(&id);
    let stored = stored.ok_or_else(|| ApiError::response_not_found(&id))?;
    let items = stored.items.get(..stored.input_count).unwrap_or_default();
    Ok(Json(ItemList::new(&id, items, &query)?))
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    if !app.responses.remove(&id) {
        return Err(ApiError::response_not_found(&id));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})).into_response())
}

/// Returns a new response ID. The ID contains the replica ID from the gateway's header, or zeros if
/// the header is missing or invalid.
fn new_id(headers: &HeaderMap) -> String {
    let random = Uuid::new_v4().simple().to_string();
    let replica_id = headers
        .get(REPLICA_ID_HEADER)
        .and_then(|value| value.to_str().ok());
    let id = |replica_id: &str| format!("{ID_PREFIX}{replica_id}{random}");
    let is_valid = |replica_id: &&str| replica_id.len() == 16 && replica_id_of(&id(replica_id)).is_some();
    id(replica_id.filter(is_valid).unwrap_or("0000000000000000"))
}

struct ResponseFrames {
    app: Arc<App>,
    writer: ResponseWriter,
    /// Items of the conversation before the answer. `None`: the response is not stored.
    input_items: Option<Vec<OrderedJson>>,
}

impl ResponseFrames {
    fn push(&mut self, piece: &Piece) -> Vec<Event> {
        let names = TokenNames {
            tokenizer: self.app.prompter.tokenizer(),
            by_id: false,
        };
        let scores = piece.scores.iter();
        let tokens = scores.filter_map(|score| Some((score.offset, scores::content_logprob(names, score)?)));
        self.writer.push(piece, tokens)
    }

    /// Stores the finished response.
    fn store(&mut self) {
        let Some(mut items) = self.input_items.take() else {
            return;
        };
        let response = self.writer.response();
        let output = serde_json::to_string(&response.output).and_then(|json| serde_json::from_str(&json));
        let body = serde_json::to_vec(response);
        // Serialization cannot fail: both values consist of strings and numbers.
        if let (Ok(OrderedJson::Array(output)), Ok(body)) = (output, body) {
            let input_count = items.len();
            items.extend(output);
            self.app.responses.insert(Stored {
                id: response.id.clone(),
                body: body.into(),
                items,
                input_count,
            });
        }
    }
}

impl Frames for ResponseFrames {
    fn begin(&mut self, out: &mut VecDeque<Bytes>) {
        write(self.writer.begin(), out);
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut VecDeque<Bytes>) {
        write(self.push(&piece), out);
    }

    fn end(&mut self, _index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>) {
        let events = self.writer.finish(&done, usage);
        // Clients may request the stored response as soon as they receive its last event.
        self.store();
        write(events, out);
    }

    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>) {
        write(self.writer.fail(err), out);
    }
}

fn write(events: Vec<Event>, out: &mut VecDeque<Bytes>) {
    out.extend(events.iter().map(event_frame));
}
