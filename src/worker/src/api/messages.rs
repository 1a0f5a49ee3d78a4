//! `/v1/messages` and `/v1/messages/count_tokens`: chats in the format of Anthropic's API.

mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use self::writer::MessageWriter;
use crate::api::app::App;
use crate::api::body;
use crate::api::stream::{self, Frames, error_frame, event_frame};
use crate::api::submission::{begin_chat, collect};
use crate::batch::event::{Done, Piece};
use crate::prompt::Chat;
use rooflet_inference_api::anthropic::error;
use rooflet_inference_api::anthropic::request::MessagesRequest;
use rooflet_inference_api::anthropic::response::{Event, token_count};
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response::Usage;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| MessagesRequest::parse(body)).await?;
    let MessagesRequest { chat } = request;
    let stream = chat.options.stream;
    let ignored = chat.options.ignored.clone();
    let (answer, submitted) = begin_chat(&app, chat, share).await?;
    let mut writer = MessageWriter::new(app.name.clone(), submitted.prompt_tokens, answer);
    if stream {
        return Ok(ignored.named_in(stream::response(MessageFrames { writer }, submitted, false)));
    }
    let (answers, usage) = collect(submitted).await?;
    for (pieces, done) in answers {
        pieces.iter().for_each(|piece| drop(writer.push(piece)));
        drop(writer.finish(done, usage));
    }
    Ok(ignored.named_in(Json(writer.into_message()).into_response()))
}

pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let (request, share) = body::parse(body, &app, |_, body| MessagesRequest::parse_countable(body)).await?;
    let MessagesRequest { chat } = request;
    app.check_model(&chat.model)?;
    let count = move |app: &App| app.prompter.chat_tokens(Chat::from(&chat), &app.local_time());
    let tokens = share.run(false, &app, count).await?;
    Ok(Json(token_count(tokens.len())))
}

struct MessageFrames {
    writer: MessageWriter,
}

impl Frames for MessageFrames {
    fn begin(&mut self, out: &mut VecDeque<Bytes>) {
        out.push_back(event_frame(&self.writer.begin()));
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut VecDeque<Bytes>) {
        out.extend(self.writer.push(&piece).iter().map(event_frame));
    }

    fn end(&mut self, _index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>) {
        out.extend(self.writer.finish(done, usage).iter().map(event_frame));
    }

    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>) {
        out.push_back(error_frame(&error::body(err)));
    }

    fn keep_alive(&self) -> Bytes {
        event_frame(&Event::Ping)
    }
}
