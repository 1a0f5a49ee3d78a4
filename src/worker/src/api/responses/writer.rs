//! Conversion of an answer's parts to the output items and events of a response.

use uuid::Uuid;

use super::logprobs::PendingTokens;
use crate::api::answers::{CALL_ID_PREFIX, call_id};
use crate::batch::event::{Done, Piece};
use rooflet_api::wire::replica_id_of;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response::logprobs::ContentLogprob;
use rooflet_inference_api::openai::response::{FinishReason, Usage};
use rooflet_inference_api::openai::responses::event::{Event, EventKind, EventLogprob, PartPosition};
use rooflet_inference_api::openai::responses::item::{
    ContentPart, IncompleteDetails, Item, ItemContent, Response, ResponseError, Status,
};
use rooflet_inference_api::openai::responses::namespace::Namespaces;
use rooflet_inference_api::openai::responses::request::Settings;
use rooflet_text::answer::{AnswerParser, Part};
use rooflet_text::tool_calls::CallPart;

/// Builder of one response and its stream events.
#[derive(Debug)]
pub(super) struct ResponseWriter {
    response: Response,
    parser: AnswerParser,
    namespaces: Namespaces,
    calls: usize,
    /// True while the last item is incomplete.
    open: bool,
    events: Vec<EventKind>,
    /// Number of returned events.
    sent: usize,
    /// Tokens without an item yet. `None`: the response has no logprobs.
    pending_tokens: Option<PendingTokens>,
}

impl ResponseWriter {
    pub(super) fn new(
        id: String,
        model: String,
        created_at: i64,
        settings: Settings,
        namespaces: Namespaces,
        parser: AnswerParser,
    ) -> Self {
        Self {
            response: Response {
                id,
                object: "response",
                created_at,
                model,
                status: Status::InProgress,
                error: None,
                incomplete_details: None,
                output: Vec::new(),
                usage: None,
                settings,
            },
            parser,
            namespaces,
            calls: 0,
            open: false,
            events: Vec::new(),
            sent: 0,
            pending_tokens: None,
        }
    }

    /// Adds logprobs to output texts.
    pub(super) fn enable_logprobs(&mut self) {
        self.pending_tokens = Some(PendingTokens::default());
    }

    pub(super) fn begin(&mut self) -> Vec<Event> {
        let response = self.response.clone();
        self.events.push(EventKind::Created {
            response: response.clone(),
        });
        self.events.push(EventKind::InProgress { response });
        self.numbered()
    }

    /// Appends a piece of the answer and returns its events. `tokens` have the offset of each token
    /// in characters.
    pub(super) fn push(
        &mut self,
        piece: &Piece,
        tokens: impl Iterator<Item = (usize, ContentLogprob)>,
    ) -> Vec<Event> {
        if let Some(pending_tokens) = &mut self.pending_tokens {
            pending_tokens.push(&piece.text, tokens);
        }
        let parts = self.parser.push(&piece.text, piece.tokens);
        self.parts(parts);
        self.numbered()
    }

    pub(super) fn finish(&mut self, done: &Done, usage: Usage) -> Vec<Event> {
        let parts = self.parser.finish();
        self.parts(parts);
        let truncated = match done.reason {
            FinishReason::Length => true,
            FinishReason::Stop | FinishReason::ToolCalls => false,
        };
        let calling = matches!(self.current(), Some(ItemContent::FunctionCall { .. }));
        self.close(if truncated || (calling && !self.parser.has_whole_calls()) {
            Status::Incomplete
        } else {
            Status::Completed
        });
        let usage = usage.with_reasoning_tokens(self.parser.reasoning_tokens());
        self.response.usage = Some(usage.into());
        if truncated {
            self.response.status = Status::Incomplete;
            self.response.incomplete_details = Some(IncompleteDetails {
                reason: "max_output_tokens",
            });
        } else {
            self.response.status = Status::Completed;
        }
        let response = self.response.clone();
        self.events.push(match truncated {
            true => EventKind::Incomplete { response },
            false => EventKind::Completed { response },
        });
        self.numbered()
    }

    pub(super) fn fail(&mut self, err: &ApiError) -> Vec<Event> {
        self.response.status = Status::Failed;
        self.response.error = Some(ResponseError {
            code: "server_error",
            message: err.message.clone(),
        });
        let response = self.response.clone();
        self.events.push(EventKind::Failed { response });
        self.numbered()
    }

    /// Returns the response in its current state.
    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    fn numbered(&mut self) -> Vec<Event> {
        let first = self.sent;
        self.sent += self.events.len();
        let events = std::mem::take(&mut self.events).into_iter();
        let number = |(place, kind)| Event {
            sequence_number: first + place,
            kind,
        };
        events.enumerate().map(number).collect()
    }

    fn parts(&mut self, parts: Vec<Part>) {
        if let Some(pending_tokens) = &mut self.pending_tokens {
            pending_tokens.set_held_bytes(self.parser.held_bytes());
        }
        parts.into_iter().for_each(|part| self.part(part));
    }

    fn part(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning(text),
            Part::Content(text) => self.content(text),
            Part::Call(CallPart::Begin { name }) => {
                self.close(Status::Completed);
                let call_id = call_id(&self.parser, CALL_ID_PREFIX, &name, self.calls);
                self.calls += 1;
                let (namespace, name) = self.namespaces.split(&name);
                self.open(
                    "fc",
                    ItemContent::FunctionCall {
                        call_id,
                        namespace,
                        name,
                        arguments: String::new(),
                    },
                );
            }
            Part::Call(CallPart::Arguments(json)) => self.arguments(json),
        }
    }

    /// Returns the logprobs of the tokens that form `text`.
    fn logprobs(&mut self, text: &str) -> Vec<ContentLogprob> {
        self.pending_tokens
            .as_mut()
            .map(|pending_tokens| pending_tokens.take(text))
            .unwrap_or_default()
    }

    fn reasoning(&mut self, text: String) {
        // Reasoning items have no logprobs. The call discards the tokens, so that they are not
        // added to the next item.
        self.logprobs(&text);
        if !matches!(self.current(), Some(ItemContent::Reasoning { .. })) {
            self.close(Status::Completed);
            let item = ItemContent::Reasoning {
                summary: [],
                content: Vec::new(),
            };
            self.open("rs", item);
            self.add_part(ContentPart::reasoning(String::new()));
        }
        if let Some(ContentPart::ReasoningText { text: full_text }) = self.current_part() {
            full_text.push_str(&text);
        }
        let place = self.place();
        self.events.push(EventKind::ReasoningDelta { place, delta: text });
    }

    fn content(&mut self, text: String) {
        if !matches!(self.current(), Some(ItemContent::Message { .. })) {
            self.close(Status::Completed);
            let item = ItemContent::Message {
                role: "assistant",
                content: Vec::new(),
            };
            self.open("msg", item);
            self.add_part(ContentPart::output(String::new()));
        }
        let logprobs = self.logprobs(&text);
        let event_logprobs = EventLogprob::all(&logprobs);
        if let Some(ContentPart::OutputText {
            text: full_text,
            logprobs: all_logprobs,
            ..
        }) = self.current_part()
        {
            full_text.push_str(&text);
            all_logprobs.extend(logprobs);
        }
        let place = self.place();
        self.events.push(EventKind::TextDelta {
            place,
            delta: text,
            logprobs: event_logprobs,
        });
    }

    fn arguments(&mut self, json: String) {
        if let Some(ItemContent::FunctionCall { arguments, .. }) = self.current() {
            arguments.push_str(&json);
        }
        let PartPosition {
            item_id,
            output_index,
            ..
        } = self.place();
        self.events.push(EventKind::ArgumentsDelta {
            item_id,
            output_index,
            delta: json,
        });
    }

    /// Returns the content of the open item.
    fn current(&mut self) -> Option<&mut ItemContent> {
        let open = self.open;
        let last = self.response.output.last_mut().filter(|_| open);
        last.map(|item| &mut item.content)
    }

    fn current_part(&mut self) -> Option<&mut ContentPart> {
        match self.current()? {
            ItemContent::Reasoning { content, .. } | ItemContent::Message { content, .. } => {
                content.last_mut()
            }
            ItemContent::FunctionCall { .. } => None,
        }
    }

    fn place(&self) -> PartPosition {
        PartPosition {
            item_id: self
                .response
                .output
                .last()
                .map_or_else(String::new, |item| item.id.clone()),
            output_index: self.response.output.len().saturating_sub(1),
            content_index: 0,
        }
    }

    /// Returns a new item ID with the same replica id as the response ID.
    fn item_id(&self, prefix: &str) -> String {
        let replica_id = replica_id_of(&self.response.id).unwrap_or(0);
        format!("{prefix}_{replica_id:016x}{}", Uuid::new_v4().simple())
    }

    fn open(&mut self, prefix: &str, content: ItemContent) {
        let item = Item {
            id: self.item_id(prefix),
            status: Status::InProgress,
            content,
        };
        self.response.output.push(item.clone());
        self.open = true;
        let output_index = self.place().output_index;
        self.events.push(EventKind::ItemAdded { output_index, item });
    }

    fn add_part(&mut self, part: ContentPart) {
        if let Some(ItemContent::Reasoning { content, .. } | ItemContent::Message { content, .. }) =
            self.current()
        {
            content.push(part.clone());
        }
        let place = self.place();
        self.events.push(EventKind::PartAdded { place, part });
    }

    /// Completes the open item, if any.
    fn close(&mut self, status: Status) {
        if !self.open {
            return;
        }
        self.open = false;
        let place = self.place();
        let Some(item) = self.response.output.last_mut() else {
            return;
        };
        item.status = status;
        let item = item.clone();
        match &item.content {
            ItemContent::Reasoning { content, .. } | ItemContent::Message { content, .. } => {
                for part in content {
                    let place = || place.clone();
                    self.events.push(match part {
                        ContentPart::ReasoningText { text } => EventKind::ReasoningDone {
                            place: place(),
                            text: text.clone(),
                        },
                        ContentPart::OutputText { text, logprobs, .. } => EventKind::TextDone {
                            place: place(),
                            text: text.clone(),
                            logprobs: EventLogprob::all(logprobs),
                        },
                    });
                    self.events.push(EventKind::PartDone {
                        place: place(),
                        part: part.clone(),
                    });
                }
            }
            ItemContent::FunctionCall { name, arguments, .. } => {
                self.events.push(EventKind::ArgumentsDone {
                    item_id: place.item_id.clone(),
                    output_index: place.output_index,
                    name: name.clone(),
                    arguments: arguments.clone(),
                });
            }
        }
        let output_index = place.output_index;
        self.events.push(EventKind::ItemDone { output_index, item });
    }
}
