//! `/v1/responses`: a chat whose answer is told in items.

mod writer;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};

use self::writer::ResponseWriter;
use super::completions::{accept, begin_chat, collect};
use super::event::{Done, Piece};
use super::server::App;
use super::stream::{self, Frames, event_frame};
use crate::openai::ApiError;
use crate::openai::response::Usage;
use crate::openai::responses::ResponsesRequest;
use crate::openai::responses::event::Event;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body = accept(body)?;
    let ResponsesRequest { chat, settings } = ResponsesRequest::parse(&body)?;
    let stream = chat.options.stream;
    let (answer, submitted) = begin_chat(&app, chat, body.len()).await?;
    let created = app.clock.now().as_second();
    let mut writer = ResponseWriter::new(app.name.clone(), created, settings, answer);
    if stream {
        return Ok(stream::response(ResponseFrames { writer }, submitted));
    }
    let (answers, usage) = collect(submitted).await?;
    for (pieces, done) in answers {
        pieces.iter().for_each(|piece| drop(writer.push(piece)));
        drop(writer.finish(&done, usage));
    }
    Ok(Json(writer.into_response()).into_response())
}

struct ResponseFrames {
    writer: ResponseWriter,
}

impl Frames for ResponseFrames {
    fn begin(&mut self, out: &mut VecDeque<Bytes>) {
        write(self.writer.begin(), out);
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut VecDeque<Bytes>) {
        write(self.writer.push(&piece), out);
    }

    fn end(&mut self, _index: usize, done: Done, usage: Usage, out: &mut VecDeque<Bytes>) {
        write(self.writer.finish(&done, usage), out);
    }

    fn failed(&mut self, err: &ApiError, out: &mut VecDeque<Bytes>) {
        write(self.writer.fail(err), out);
    }
}

fn write(events: Vec<Event>, out: &mut VecDeque<Bytes>) {
    out.extend(events.iter().map(event_frame));
}
